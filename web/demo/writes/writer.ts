/** The network that learns to write: text in, more of such text out. */

import {
  buildArtifacts, Tensor, TrainingSession, type Artifacts, type EpochEvent, type FitRun, type SessionDevice, type SessionOptions,
} from "trainweb";

import { fastest, PAGE_BYTES } from "../page.js";
import { characterOf, numbersOf } from "./alphabet.js";

/** Characters that the model sees at once, as scripts/make_writer_model.py has it. */
const CONTEXT = 128;
const BATCH = 8;
/** Steps between two samples. */
export const STEPS = 25;
/** Windows of the end of the text, which are never trained on. */
const TESTS = 16;
const ROUNDS = 1_000_000;
const LEARNING_RATE = 0.002;
/** A train step takes the time of this many steps that only predict. */
const STEPS_OF_EVAL = 3;

/** What a round of steps takes here. */
export interface Needs {
  /** Memory of the page and the session. */
  readonly bytes: number;
  readonly seconds: number;
  readonly device: SessionDevice;
}

export interface SampleOptions {
  readonly length: number;
  readonly temperature: number;
  readonly seed: number;
  readonly signal: AbortSignal;
}

export class Writer {
  /** The least text: a few windows to train on, and those to test. */
  static readonly leastText = 4 * TESTS * CONTEXT;

  readonly #artifacts: Artifacts;
  #session: TrainingSession;
  #text: Uint8Array = new Uint8Array();

  private constructor(artifacts: Artifacts, session: TrainingSession) {
    this.#artifacts = artifacts;
    this.#session = session;
  }

  static async load(model: string, options: Required<Pick<SessionOptions, "device" | "onProgress">>): Promise<Writer> {
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", clipGradNorm: 1 } as const;
    const artifacts = await buildArtifacts(model, config, { onProgress: options.onProgress });
    return new Writer(artifacts, await TrainingSession.create(artifacts, options));
  }

  /** Learn from this text from now on; returns the number of its characters. */
  read(text: string): number {
    this.#text = Uint8Array.from(numbersOf(text));
    if (this.#text.length < Writer.leastText) {
      const [found, least] = [this.#text.length, Writer.leastText].map((count) => count.toLocaleString("en"));
      throw new Error(`The text has ${found} characters of ASCII. The network needs ${least} or more.`);
    }
    return this.#text.length;
  }

  /** Memory and time of a round, measured. */
  async needs(): Promise<Needs> {
    const session = this.#session;
    await session.prepare({ ids: [BATCH, CONTEXT], labels: [BATCH, CONTEXT] });
    const batch = stacked(Array.from({ length: BATCH }, (_, k) => this.#window(k)));
    const seconds = (await fastest(() => session.runEvalStep(batch))) * STEPS * STEPS_OF_EVAL;
    const { parameters, gradients, moments, arena, prepared, plans } = await session.memory();
    return { bytes: PAGE_BYTES + parameters + gradients + moments + arena + prepared + plans, seconds, device: session.device };
  }

  /** Train until it is stopped. The next round waits for the end of `onRound`. */
  learn(onRound: (event: EpochEvent) => Promise<void>): FitRun {
    const tests = Array.from({ length: TESTS }, (_, k) => this.#window(this.#trainable + k * CONTEXT));
    const rows = (): Iterable<Row> => this.#drawn();
    return this.#session.fit(rows, {
      epochs: ROUNDS,
      batchSize: BATCH,
      learningRate: LEARNING_RATE,
      validationData: stacked(tests),
      callbacks: (event) => (event.type === "epoch" ? onRound(event) : undefined),
    });
  }

  /** Characters that follow a beginning. */
  async *write(beginning: string, { length, temperature, seed, signal }: SampleOptions): AsyncGenerator<string> {
    // A beginning may have no character of the alphabet.
    const known = numbersOf(beginning);
    const ids = known.length > 0 ? known : numbersOf("\n");
    const end = ids.length + length;
    while (ids.length < end) {
      const seen = ids.slice(-CONTEXT / 2);
      const options = { maxTokens: Math.min(CONTEXT - seen.length, end - ids.length), temperature, signal };
      for await (const { token } of this.#session.generate(seen, { ...options, seed: seed + ids.length })) {
        ids.push(token);
        yield characterOf(token);
      }
    }
  }

  save(): Promise<Blob> {
    return this.#session.save({ as: "blob" });
  }

  /** Go on from a file of `save`. */
  async resume(file: Blob): Promise<void> {
    const before = this.#session;
    this.#session = await TrainingSession.create({ ...this.#artifacts, checkpoint: file }, { device: before.device.kind });
    await before.release();
  }

  export(): Promise<Blob> {
    return this.#session.export({ as: "blob" });
  }

  /** Position of the first window that is only tested. */
  get #trainable(): number {
    return this.#text.length - TESTS * CONTEXT - 1;
  }

  *#drawn(): Generator<Row> {
    for (let k = 0; k < STEPS * BATCH; k++) {
      yield this.#window(Math.floor(Math.random() * (this.#trainable - CONTEXT)));
    }
  }

  /** Characters as input, and as labels those that follow each of them. */
  #window(start: number): Row {
    const numbersFrom = (first: number): BigInt64Array =>
      BigInt64Array.from(this.#text.subarray(first, first + CONTEXT), BigInt);
    return { ids: numbersFrom(start), labels: numbersFrom(start + 1) };
  }
}

type Row = Record<"ids" | "labels", BigInt64Array>;

function stacked(rows: readonly Row[]): Record<keyof Row, Tensor> {
  const joined = (name: keyof Row): Tensor =>
    new Tensor("int64", BigInt64Array.from(rows.flatMap((row) => [...row[name]])), [rows.length, CONTEXT]);
  return { ids: joined("ids"), labels: joined("labels") };
}
