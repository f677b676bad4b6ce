/** Steps: writes the feeds, runs a plan and reads the fetches. Plans are asked for once for each kind of feeds. */

import { sessionError } from "../wire/messages.js";
import type { WireProfile } from "../wire/profile.js";
import type { Feed, Fetch, MaybePromise, PlacedTensor, TensorType, Workspace } from "../wire/protocol.js";
import { planKey, type BundlePlan, type Declaration, type FeedType, type TensorPlace } from "./bundle/bundle.js";
import { ofBits, signatureOf } from "./feeds.js";
import { withValue, type InstructionTimes, type LoadedPlan, type ReadFile, type StepHost } from "./host.js";
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

/** A loaded plan by its key. */
export interface PreparedPlan {
  readonly key: string;
  readonly loaded: LoadedPlan;
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
    return this.#with(kind, overwrite, feeds, (loaded, given): MaybePromise<Run> => {
      const outputs = fetches.map((fetch) => findOutput(loaded.plan, fetch));
      if (stop?.aborted === true) {
        throw sessionError("TERMINATED", {});
      }
      const answer = (results: Run["results"]): Run => ({ results, workspace: this.#host.workspace(loaded, feeds) });
      return withValue(this.execute(loaded, given, stop), () => withValue(this.#host.read(loaded, outputs), answer));
    });
  }

  /** The plan of a step, loaded, and the key by which the host finds it. */
  prepare(kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): MaybePromise<PreparedPlan> {
    const key = planKey(kind, overwrite, signature);
    const known = this.#host.find(key);
    if (known !== undefined) {
      return { key, loaded: known };
    }
    this.#source.check(kind, signature);
    return withValue(this.#load(key, kind, overwrite, signature), (loaded) => ({ key, loaded }));
  }

  /** Number of instructions of a step, whose plan is loaded then. */
  countInstructions(kind: StepKind, overwrite: boolean, feeds: readonly Feed[]): MaybePromise<number> {
    return this.#with(kind, overwrite, feeds, ({ plan }) => plan.nodes.length);
  }

  /** Time every instruction of a step, the mean over `runs` runs. */
  profile(
    kind: StepKind,
    overwrite: boolean,
    feeds: readonly Feed[],
    runs: number,
    times: InstructionTimes,
  ): MaybePromise<WireProfile> {
    return this.#with(kind, overwrite, feeds, async (loaded, given) => {
      const listing = this.#host.listing(loaded);
      const sums = await times.measure(loaded, async () => {
        for (let run = 0; run < runs; run++) {
          await this.execute(loaded, given);
        }
      });
      return { ...listing, milliseconds: Array.from(sums, (sum) => sum / runs) };
    });
  }

  /** Do something with the plan of a step, and feeds to run it with: to load one may move what lies in the arena. */
  #with<T>(
    kind: StepKind,
    overwrite: boolean,
    feeds: readonly Feed[],
    action: (loaded: LoadedPlan, given: readonly Feed[]) => MaybePromise<T>,
  ): MaybePromise<T> {
    const signature = signatureOf(this.#source.inputsOf(kind), feeds, (feed) => this.#host.bytesOf(feed));
    const key = planKey(kind, overwrite, signature);
    const known = this.#host.find(key);
    if (known !== undefined) {
      return action(known, feeds);
    }
    this.#source.check(kind, signature);
    const given = feeds.map((feed) => ({ ...feed, data: this.#host.bytesOf(feed) }));
    return withValue(this.#load(key, kind, overwrite, signature), (loaded) => action(loaded, given));
  }

  #load(key: string, kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): MaybePromise<LoadedPlan> {
    if (signature.length > 0) {
      this.#host.evict();
    }
    return withValue(this.#source.make(kind, overwrite, signature), (plan) => this.#host.load(key, plan, this.#source.readFile));
  }

  /** Run a plan that is loaded. */
  execute(loaded: LoadedPlan, feeds: readonly Feed[], stop: AbortSignal | null = null): MaybePromise<void> {
    return withValue(this.#host.write(loaded, feeds), () => this.#host.run(loaded, stop));
  }
}

/** The place of an output; a tensor of the caller's must fit before anything runs. */
function findOutput({ outputs }: BundlePlan, { name, dtype, dims }: Fetch): TensorPlace {
  const slot = outputs.find((output) => output.name === name);
  if (slot === undefined) {
    throw sessionError("UNKNOWN_FETCH", { name, names: outputs.map((output) => output.name).join(", ") });
  }
  if (dtype !== undefined && dims !== undefined && !sameType({ dtype, dims }, slot)) {
    const given = `${dtype} of dims [${dims.join(", ")}]`;
    throw sessionError("FETCH_TYPE", { name, dtype: slot.dtype, shape: slot.dims, given });
  }
  return slot;
}

function sameType(a: TensorType, b: TensorType): boolean {
  const dtype = b.dtype === "bfloat16" ? ofBits(a.dtype) : a.dtype;
  return dtype === b.dtype && String(a.dims) === String(b.dims);
}
