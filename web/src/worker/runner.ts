/** Steps: writes the feeds, runs a plan and reads the fetches. Plans are asked for once for each kind of feeds. */

import { raise, refuseIf, sessionError } from "../wire/messages.js";
import type { Feed, Fetch, MaybePromise, PlacedTensor, TensorType, Workspace } from "../wire/protocol.js";
import { planKey, type BundlePlan, type Declaration, type FeedType, type TensorPlace } from "./bundle/bundle.js";
import { ofBits, signatureOf } from "./feeds.js";
import { unless, withValue, type LoadedPlan, type ReadFile, type StepHost } from "./host.js";
import type { StepKind } from "./step-kind.js";

/** The source of plans that are not loaded. */
export interface PlanSource {
  /** The inputs of such a step; none for a step without feeds. */
  inputsOf(kind: StepKind): readonly Declaration[];
  /** Raise unless the session can run such a step now. */
  check(kind: StepKind, signature: readonly FeedType[]): void;
  /** The plan; Python may have to start first. */
  make(kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): MaybePromise<BundlePlan>;
  /** Reads files that the session was made of. */
  readonly readFile: ReadFile;
}

/** The results of a run, and their positions. */
export interface Run {
  readonly results: readonly PlacedTensor[];
  /** The same object while addresses are the same. */
  readonly workspace: Workspace;
}

export class PlanRunner {
  readonly #host: StepHost;
  readonly #source: PlanSource;

  constructor(host: StepHost, source: PlanSource) {
    this.#host = host;
    this.#source = source;
  }

  /**
   * Run a step.
   *
   * @param overwrite - whether gradients overwrite instead of adding
   * @param stop - ends it between two of its instructions, everything being as before; null: it runs through
   */
  run(
    kind: StepKind,
    overwrite: boolean,
    feeds: readonly Feed[],
    fetches: readonly Fetch[],
    stop: AbortSignal | null = null,
  ): MaybePromise<Run> {
    const signature = this.signatureOf(kind, feeds);
    const known = this.#host.find(this.#keyOf(kind, overwrite, signature));
    // To load a plan may move the arena, where feeds may lie.
    const copies = known === undefined ? feeds.map((feed) => ({ ...feed, data: this.#host.bytesOf(feed) })) : feeds;
    return withValue(known ?? this.prepare(kind, overwrite, signature), (loaded) => {
      const outputs = fetches.map((fetch) => findOutput(loaded.plan, fetch));
      refuseIf(stop?.aborted === true, "TERMINATED");
      const answer = (results: Run["results"]): Run => ({ results, workspace: this.#host.workspace(loaded, feeds) });
      return withValue(this.execute(loaded, copies, stop), () => withValue(this.#host.read(loaded, outputs), answer));
    });
  }

  /** The plan of a step, loaded. */
  prepare(kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): MaybePromise<LoadedPlan> {
    const host = this.#host;
    const key = this.#keyOf(kind, overwrite, signature);
    const known = host.find(key);
    if (known !== undefined) {
      return known;
    }
    this.#source.check(kind, signature);
    if (signature.length > 0) {
      host.evict();
    }
    const load = (): MaybePromise<LoadedPlan> =>
      withValue(this.#source.make(kind, overwrite, signature), (plan) => host.load(key, plan, this.#source.readFile));
    return this.whereItRuns(kind, load, () => this.prepare(kind, overwrite, signature));
  }

  /** Do something for steps of a kind; something else if the GPU cannot run them, and the kernels do from now on. */
  whereItRuns<T>(kind: StepKind, action: () => MaybePromise<T>, otherwise = action): MaybePromise<T> {
    return unless(action, (error) => {
      if (!this.#host.leavesGpu(error, kind)) {
        throw error;
      }
      return otherwise();
    });
  }

  #keyOf(kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): string {
    return planKey(kind, overwrite, signature, this.#host.targetOf(kind));
  }

  signatureOf(kind: StepKind, feeds: readonly Feed[]): FeedType[] {
    return signatureOf(this.#source.inputsOf(kind), feeds, (feed) => this.#host.bytesOf(feed));
  }

  /** Run a plan that is loaded. */
  execute(loaded: LoadedPlan, feeds: readonly Feed[], stop: AbortSignal | null = null): MaybePromise<void> {
    return withValue(this.#host.write(loaded, feeds), () => this.#host.run(loaded, stop));
  }
}

/** The place of an output; a tensor of the caller's must fit before anything runs. */
function findOutput({ outputs }: BundlePlan, { name, dtype, dims }: Fetch): TensorPlace {
  const output = outputs.find((one) => one.name === name);
  const slot = output ?? raise("UNKNOWN_FETCH", { name, names: outputs.map((one) => one.name).join(", ") });
  if (dtype !== undefined && dims !== undefined && !sameType({ dtype, dims }, slot)) {
    const fetchType = `${dtype} of dims [${dims.join(", ")}]`;
    throw sessionError("FETCH_TYPE", { name, dtype: slot.dtype, shape: slot.dims, actual: fetchType });
  }
  return slot;
}

function sameType(a: TensorType, b: TensorType): boolean {
  const dtype = b.dtype === "bfloat16" ? ofBits(a.dtype) : a.dtype;
  return dtype === b.dtype && String(a.dims) === String(b.dims);
}
