/**
 * A session in the worker. Python is asked for a plan once per signature; from then on a step writes
 * the feeds, runs the plan and reads the fetches, with no Python at all.
 */

import type { Engine } from "../engine/engine.js";
import { FeedError, EngineError } from "../wire/errors.js";
import type { WireProfile } from "../wire/profile.js";
import type { Feed, Fetch, NamedTensor, StepKind, WireDtype, Workspace } from "../wire/protocol.js";

/** Where a feed goes or a result comes from. */
export interface Slot {
  readonly name: string;
  readonly ptr: number;
  readonly nbytes: number;
  readonly dtype: WireDtype;
  readonly dims: readonly number[];
}

/** A plan in kernel memory, with the places of its inputs and outputs. */
export interface LoadedPlan {
  readonly ptr: number;
  /** Changes when addresses given out before are void. */
  readonly generation: number;
  /** What it uses of the workspace. */
  readonly arenaBytes: number;
  readonly inputs: readonly Slot[];
  readonly outputs: readonly Slot[];
}

/** The type of a feed, which is all of it that plans depend on. */
export type Signature = readonly Omit<Feed, "data">[];

/** What Python answers for a session. */
export interface PlanSource {
  plan(kind: string, signature: Signature): LoadedPlan;
  /** The error behind a status that is not 0. */
  explain(ptr: number, status: number): Error;
  /** What the instructions of a plan are. */
  listing(ptr: number): Listing;
}

/** Per instruction of a plan, its disassembly and the node it came from. */
export interface Listing {
  readonly text: readonly string[];
  readonly nodes: readonly string[];
}

/** What a run gave, and where. */
export interface Run {
  readonly results: readonly NamedTensor[];
  readonly workspace: Workspace;
}

/** Word of a plan's header with the address where its instructions' times are added up. */
const PROFILE_WORD = 17;

/** Plans of one session by signature, and how to run them. */
export class PlanRunner {
  readonly #engine: Engine;
  readonly #source: PlanSource;
  readonly #plans = new Map<string, LoadedPlan>();
  #generation = -1;

  constructor(engine: Engine, source: PlanSource) {
    this.#engine = engine;
    this.#source = source;
  }

  /** Forget all plans: their addresses may be void. */
  clear(): void {
    this.#plans.clear();
  }

  /**
   * Run a plan.
   *
   * @param variant - what else plans depend on, e.g. the reset flag
   */
  run(
    kind: string,
    variant: number,
    feeds: readonly Feed[],
    fetches: readonly Fetch[],
  ): Run {
    const { plan, given } = this.#find(kind, variant, feeds);
    const outputs = fetches.map((fetch) => findOutput(plan, fetch));
    this.#execute(plan, given);
    const results = outputs.map(({ name, dtype, dims, ptr, nbytes }) => {
      return { name, dtype, dims, data: this.#engine.read(ptr, nbytes) };
    });
    const places = feeds.map(({ name }) => plan.inputs.find((slot) => slot.name === name) ?? NOWHERE);
    return {
      results,
      workspace: {
        generation: this.#generation,
        nbytes: plan.arenaBytes,
        feeds: places.map(({ ptr, nbytes }) => ({ ptr, nbytes })),
      },
    };
  }

  /** Time every instruction of a plan, the mean over `runs` runs. */
  profile(kind: string, variant: number, feeds: readonly Feed[], runs: number): WireProfile {
    const { plan, given } = this.#find(kind, variant, feeds);
    const listing = this.#source.listing(plan.ptr);
    const count = listing.nodes.length;
    const times = this.#engine.alloc(Float64Array.BYTES_PER_ELEMENT * Math.max(count, 1));
    this.#engine.write(times, new Float64Array(count));
    this.#setProfile(plan, times);
    try {
      for (let run = 0; run < runs; run++) {
        this.#execute(plan, given);
      }
      const sums = new Float64Array(this.#engine.read(times, Float64Array.BYTES_PER_ELEMENT * count).buffer);
      return { ...listing, milliseconds: Array.from(sums, (sum) => sum / runs) };
    } finally {
      this.#setProfile(plan, 0);
      this.#engine.free(times);
    }
  }

  #setProfile({ ptr }: LoadedPlan, times: number): void {
    this.#engine.u32[ptr / Uint32Array.BYTES_PER_ELEMENT + PROFILE_WORD] = times;
  }

  #execute(plan: LoadedPlan, feeds: readonly Feed[]): void {
    const sources = plan.inputs.map((slot) => this.#missing(slot, feeds));
    plan.inputs.forEach(({ ptr }, index) => {
      const source = sources[index] ?? null;
      if (source !== null) {
        this.#engine.write(ptr, source);
      }
    });
    const status = this.#engine.run(plan.ptr);
    if (status !== 0) {
      throw this.#source.explain(plan.ptr, status);
    }
  }

  /** A plan, and the feeds to run it with: to load one may move the workspace, and what lies in it. */
  #find(kind: string, variant: number, feeds: readonly Feed[]): { plan: LoadedPlan; given: readonly Feed[] } {
    const key = keyOf(kind, variant, feeds);
    const known = this.#plans.get(key);
    if (known !== undefined) {
      return { plan: known, given: feeds };
    }
    const given = feeds.map((feed) => ({ ...feed, data: this.#bytesOf(feed) }));
    const signature = feeds.map(({ name, dtype, dims }) => ({ name, dtype, dims }));
    const plan = this.#ask(kind, signature);
    if (plan.generation !== this.#generation) {
      this.#plans.clear();
      this.#generation = plan.generation;
    }
    this.#plans.set(key, plan);
    return { plan, given };
  }

  #ask(kind: string, signature: Signature): LoadedPlan {
    try {
      return this.#source.plan(kind, signature);
    } catch (error) {
      // Memory that ran out on the way may have moved the plans that are known.
      this.#plans.clear();
      throw error;
    }
  }

  /** What is to be written to the place of an input; null where it lies there already. */
  #missing(slot: Slot, feeds: readonly Feed[]): Uint8Array | null {
    const feed = feeds.find(({ name }) => name === slot.name);
    const nbytes = feed?.data instanceof Uint8Array ? feed.data.byteLength : feed?.data.nbytes;
    if (feed === undefined || nbytes !== slot.nbytes) {
      throw new EngineError(`the plan wants ${slot.nbytes} bytes for '${slot.name}'.`);
    }
    const isThere = !(feed.data instanceof Uint8Array) && feed.data.ptr === slot.ptr;
    return isThere || nbytes === 0 ? null : this.#bytesOf(feed);
  }

  #bytesOf({ data }: Feed): Uint8Array {
    return data instanceof Uint8Array ? data : this.#engine.read(data.ptr, data.nbytes);
  }
}

/** The place of a feed that a plan does not read. */
const NOWHERE = { ptr: 0, nbytes: 0 };

const LAZY_RESET = 0;
const LEARNING_RATE = 1;

/** A training session: its plans and its state words. */
export class CompiledSession {
  readonly #engine: Engine;
  readonly #runner: PlanRunner;
  readonly #state: number;

  /** @param statePtr - address of the state words */
  constructor(engine: Engine, source: PlanSource, statePtr: number) {
    this.#engine = engine;
    this.#runner = new PlanRunner(engine, source);
    this.#state = statePtr;
  }

  step(kind: StepKind, feeds: readonly Feed[], fetches: readonly Fetch[]): Run {
    if (kind !== "train") {
      return this.#runner.run(kind, 0, feeds, fetches);
    }
    const run = this.#runner.run(kind, this.#words(LAZY_RESET)[0] as number, feeds, fetches);
    this.#words(LAZY_RESET)[0] = 0;
    return run;
  }

  /** Step once, as a check of the feeds, then time `runs` steps more. */
  profile(kind: "train" | "eval", feeds: readonly Feed[], runs: number): WireProfile {
    this.step(kind, feeds, []);
    return this.#runner.profile(kind, 0, feeds, runs);
  }

  lazyResetGrad(): void {
    this.#words(LAZY_RESET)[0] = 1;
  }

  get learningRate(): number {
    return this.#floats(LEARNING_RATE)[0] as number;
  }

  set learningRate(rate: number) {
    this.#floats(LEARNING_RATE)[0] = rate;
  }

  /** Forget all plans: their addresses may be void. */
  clearPlans(): void {
    this.#runner.clear();
  }

  #words(word: number): Uint32Array {
    return new Uint32Array(this.#engine.u8.buffer, this.#state + 4 * word, 1);
  }

  #floats(word: number): Float32Array {
    return new Float32Array(this.#engine.u8.buffer, this.#state + 4 * word, 1);
  }
}

function keyOf(kind: string, variant: number, feeds: readonly Feed[]): string {
  let key = `${kind} ${variant}`;
  for (const { name, dtype, dims } of feeds) {
    key += `\n${name}\n${dtype} ${dims.join("x")}`;
  }
  return key;
}

/** The place of an output; a tensor of the caller's must fit before anything runs. */
function findOutput(plan: LoadedPlan, { name, dtype, dims }: Fetch): Slot {
  const slot = plan.outputs.find((output) => output.name === name);
  if (slot === undefined) {
    throw new RangeError(`'fetches' contains invalid output name: ${name}.`);
  }
  if (dtype !== undefined && dims !== undefined) {
    const fits = dtype === slot.dtype && String(dims) === String(slot.dims);
    if (!fits) {
      throw new FeedError(
        `the tensor given for output '${name}' is ${dtype} of dims [${dims.join(", ")}], ` +
          `the result is ${slot.dtype} of dims [${slot.dims.join(", ")}].`,
      );
    }
  }
  return slot;
}
