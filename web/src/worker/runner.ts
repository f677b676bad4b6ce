/** Steps: writes the feeds, runs a plan and reads the fetches. Plans are asked for once for each kind of feeds. */

import type { Engine } from "../engine/engine.js";
import { APART_BYTES } from "../engine/layout.js";
import { EngineError } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import type { WireProfile } from "../wire/profile.js";
import type { Feed, Fetch, MaybePromise, PlacedTensor, TensorType, Workspace } from "../wire/protocol.js";
import { planKey, type Bundle, type BundlePlan, type Declaration, type FeedType, type TensorPlace } from "./bundle/bundle.js";
import { ofBits, signatureOf } from "./feeds.js";
import type { LoadedPlan, PlanMemory, ReadFile } from "./plan-memory.js";
import { withValue } from "./python-models.js";
import type { StepKind } from "./step-kind.js";

/** The source of plans that are not in kernel memory. */
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

/** A plan in kernel memory by its key. */
export interface PreparedPlan {
  readonly key: string;
  readonly loaded: LoadedPlan;
}

/** What steps of a session need of it. */
export interface StepHost {
  readonly engine: Engine;
  readonly memory: PlanMemory;
  readonly runner: PlanRunner;
  /** By what losses of steps were divided. */
  readonly lossCounts: Bundle["lossCounts"];
}

export class PlanRunner {
  readonly #engine: Engine;
  readonly #memory: PlanMemory;
  readonly #source: PlanSource;
  readonly #workspaces = new WeakMap<LoadedPlan, Workspace>();

  constructor(engine: Engine, memory: PlanMemory, source: PlanSource) {
    this.#engine = engine;
    this.#memory = memory;
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
      const answer = (): Run => {
        return { results: outputs.map((slot) => this.#read(loaded, slot)), workspace: this.#workspace(loaded, feeds) };
      };
      if (stop === null) {
        this.execute(loaded, given);
        return answer();
      }
      if (stop.aborted) {
        throw sessionError("TERMINATED", {});
      }
      this.#write(loaded, given);
      return this.#memory.runUntil(loaded, stop).then(answer);
    });
  }

  /** The plan of a step, loaded, and what `PlanMemory.find` finds it by. */
  prepare(kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): MaybePromise<PreparedPlan> {
    const key = planKey(kind, overwrite, signature);
    const known = this.#memory.find(key);
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

  /** Time every instruction of a step, the mean over `runs` runs; they are added up at `times`. */
  profile(
    kind: StepKind,
    overwrite: boolean,
    feeds: readonly Feed[],
    runs: number,
    times: number,
  ): MaybePromise<WireProfile> {
    return this.#with(kind, overwrite, feeds, (loaded, given) => {
      const listing = this.#memory.listing(loaded);
      const count = listing.nodes.length;
      this.#engine.write(times, new Float64Array(count));
      this.#memory.setProfile(loaded, times);
      try {
        for (let run = 0; run < runs; run++) {
          this.execute(loaded, given);
        }
        const sums = new Float64Array(this.#engine.read(times, Float64Array.BYTES_PER_ELEMENT * count).buffer);
        return { ...listing, milliseconds: Array.from(sums, (sum) => sum / runs) };
      } finally {
        this.#memory.setProfile(loaded, 0);
      }
    });
  }

  /** Do something with the plan of a step, and feeds to run it with: to load one may move what lies in the arena. */
  #with<T>(
    kind: StepKind,
    overwrite: boolean,
    feeds: readonly Feed[],
    action: (loaded: LoadedPlan, given: readonly Feed[]) => MaybePromise<T>,
  ): MaybePromise<T> {
    const signature = signatureOf(this.#source.inputsOf(kind), feeds, (feed) => this.#bytesOf(feed));
    const key = planKey(kind, overwrite, signature);
    const known = this.#memory.find(key);
    if (known !== undefined) {
      return action(known, feeds);
    }
    this.#source.check(kind, signature);
    const given = feeds.map((feed) => ({ ...feed, data: this.#bytesOf(feed) }));
    return withValue(this.#load(key, kind, overwrite, signature), (loaded) => action(loaded, given));
  }

  #load(key: string, kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): MaybePromise<LoadedPlan> {
    if (signature.length > 0) {
      this.#memory.evict();
    }
    const load = (made: BundlePlan): LoadedPlan => this.#memory.load(key, made, this.#source.readFile);
    return withValue(this.#source.make(kind, overwrite, signature), load);
  }

  /** Run a plan that is loaded. */
  execute(loaded: LoadedPlan, feeds: readonly Feed[]): void {
    this.#write(loaded, feeds);
    this.#memory.run(loaded);
  }

  #write(loaded: LoadedPlan, feeds: readonly Feed[]): void {
    const { inputs } = loaded.plan;
    const places = inputs.map((slot) => this.#memory.addressOf(loaded, slot));
    const sources = inputs.map((slot, index) => this.#missing(slot, places[index] as number, feeds));
    sources.forEach((source, index) => {
      if (source !== null) {
        this.#engine.write(places[index] as number, source);
      }
    });
  }

  #read(loaded: LoadedPlan, slot: TensorPlace): PlacedTensor {
    const { name, dtype, dims, nbytes } = slot;
    const ptr = this.#memory.addressOf(loaded, slot);
    return { name, dtype, dims, ptr, nbytes, data: this.#engine.read(ptr, nbytes) };
  }

  #workspace(loaded: LoadedPlan, feeds: readonly Feed[]): Workspace {
    const known = this.#workspaces.get(loaded);
    const { generation } = this.#memory;
    if (known?.generation === generation) {
      return known;
    }
    const { inputs, signature, arenaBytes } = loaded.plan;
    const workspace = {
      generation,
      // Feeds may be written meanwhile where the plan does not run in the arena (`tw_session_load`).
      nbytes: signature.length === 0 && arenaBytes <= APART_BYTES ? 0 : arenaBytes,
      feeds: feeds.map(({ name }) => {
        const slot = inputs.find((one) => one.name === name);
        // No bytes for a feed that the plan does not read.
        return slot === undefined
          ? { ptr: 0, nbytes: 0 }
          : { ptr: this.#memory.addressOf(loaded, slot), nbytes: slot.nbytes };
      }),
    };
    this.#workspaces.set(loaded, workspace);
    return workspace;
  }

  /** What is to be written to the place of an input; null where it lies there already. */
  #missing(slot: TensorPlace, ptr: number, feeds: readonly Feed[]): Uint8Array | null {
    const feed = feeds.find(({ name }) => name === slot.name);
    const nbytes = feed?.data instanceof Uint8Array ? feed.data.byteLength : feed?.data.nbytes;
    if (feed === undefined || nbytes !== slot.nbytes) {
      throw new EngineError(`the plan wants ${slot.nbytes} bytes for '${slot.name}'.`);
    }
    const isThere = !(feed.data instanceof Uint8Array) && feed.data.ptr === ptr;
    return isThere || nbytes === 0 ? null : this.#bytesOf(feed);
  }

  #bytesOf({ data }: Feed): Uint8Array {
    return data instanceof Uint8Array ? data : this.#engine.read(data.ptr, data.nbytes);
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
