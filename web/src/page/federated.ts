/** A client of federated learning: trainweb/federated/client.py is the same. */

import type { Tensor } from "onnxruntime-common";

import { Dataset, type DataSource } from "../data/dataset.js";
import { addNoise, checkVector, clipUpdate, type ClientUpdate } from "../federated/updates.js";
import { refuseSettingIf } from "../data/checks.js";
import { isObject } from "../wire/kinds.js";
import { refuseIf, warnIf } from "../wire/messages.js";
import { settingsOf } from "./check-settings.js";
import type { History } from "./fit/events.js";
import type { FitOptions } from "./fit/options.js";
import { FEDERATED, type FederatedFields } from "./settings/federated.js";
import { Opaque } from "../wire/opaque.js";
import type { SessionInfo } from "../wire/protocol.js";

/** Methods of a session that rounds need. */
export interface FederatedSession {
  /** Train on rows. */
  fit(data: DataSource, options?: FitOptions): PromiseLike<History> & {
    /** Rows trained on. */
    readonly rows: number;
  };
  /** All (trained) parameters. */
  getContiguousParameters(trainableOnly: boolean): Promise<Tensor>;
  /** The number of elements in the parameters. */
  getParametersSize(trainableOnly: boolean): Promise<number>;
  /** Put all (trained) parameters in. */
  loadParametersBuffer(buffer: Float32Array, trainableOnly: boolean): Promise<void>;
}

/** The result of a round. */
export interface RoundUpdate extends ClientUpdate {
  /** Of the local training; it stays in the page. */
  readonly history: History;
}

/** Rounds of a session, as a client; `TrainingSession.federated` makes it. */
export class FederatedClient extends Opaque {
  readonly #session: FederatedSession;
  readonly #clipNorm: number | null;
  readonly #deviation: number;
  readonly #seed: number | null;
  readonly #trainableOnly: boolean;
  #rounds = 0;

  /** @internal */
  constructor(session: FederatedSession, { moving, optimizer }: SessionInfo, options: FederatedFields) {
    super();
    refuseSettingIf(!isObject(options), "options", options, "an object");
    const settings = settingsOf<Required<FederatedFields>>("federated", options, FEDERATED);
    const { clipNorm, noiseMultiplier, noiseClients, seed, statistics } = settings;
    refuseIf(noiseMultiplier > 0 && clipNorm === null, "NOISE_WITHOUT_CLIP");
    refuseIf(noiseMultiplier > 0 && statistics === "average", "NOISE_AND_STATISTICS");
    warnIf(moving.length > 0 && statistics === "local", "LOCAL_STATISTICS", { count: moving.length, name: moving[0] });
    warnIf(!["", "SGD"].includes(optimizer), "LOCAL_MOMENTS", { optimizer });
    this.#session = session;
    this.#clipNorm = clipNorm;
    this.#seed = seed;
    this.#trainableOnly = statistics === "local";
    // The noise of the sum has the variance of all shares together.
    this.#deviation = (noiseMultiplier / Math.sqrt(noiseClients)) * (clipNorm ?? 0);
  }

  /**
   * Train from the common parameters on this page's data.
   *
   * @param parameters - all trained parameters, as `getContiguousParameters(true)` gives them; all parameters, trained
   *   or not, where statistics are averaged
   * @param data - as `fit` takes it; its rows must be countable
   * @param options - of `fit`: `epochs`, `batchSize`, `proximal` (FedProx), `seed` (of the order of rows: give another
   *   one each round) and the others
   * @returns only its `delta` may leave the page, and `examples` if the server may know them.
   * @throws BufferSizeError: the parameters are of another length than the session's
   * @throws ModelError, FeedError, SessionError, NumericsError: as `fit`; or an update that is not finite
   */
  async round(parameters: Float32Array, data: DataSource, options: FitOptions = {}): Promise<RoundUpdate> {
    const [session, trainableOnly] = [this.#session, this.#trainableOnly];
    checkVector("parameters", parameters, await session.getParametersSize(trainableOnly));
    const dataset = Dataset.of(data);
    refuseIf(!dataset.known || dataset.size === null, "UNCOUNTED_ROWS");
    // A copy: loading may take the buffer away.
    const start = parameters.slice();
    await session.loadParametersBuffer(parameters.slice(), trainableOnly);
    const run = session.fit(dataset, options);
    const [history, examples] = [await run, run.rows];
    const learned = (await session.getContiguousParameters(trainableOnly)).data as Float32Array;
    const { delta, norm } = clipUpdate(learned.map((x, i) => x - (start[i] as number)), this.#clipNorm ?? Number.MAX_VALUE);
    if (this.#deviation === 0) {
      return { delta, examples, norm, isNoised: false, history };
    }
    const noised = addNoise(delta, this.#deviation, { seed: this.#seed, stream: this.#rounds++ });
    return { delta: noised, examples, norm, isNoised: true, history };
  }
}
