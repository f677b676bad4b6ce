/** Kernel memory of a session: its segments, and the plans that run on them. training/host.py is the same in Python. */

import { MORE, sameBytes, type Engine } from "../engine/engine.js";
import {
  ARENA,
  CONSTANTS,
  HEADER_FAILED,
  HEADER_POSITION,
  HEADER_VALUE,
  HEADER_WORDS,
  GRADIENTS,
  MOMENTUM0,
  MOMENTUM1,
  PARAMETERS,
  PREPARED,
  SEGMENT_NAMES,
  STATE,
  TW_BAD_POINTER,
  TW_BAD_SEGMENT,
} from "../engine/layout.js";
import { streamBlob } from "../python/given-files.js";
import { EngineError, FeedError } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import type { BundlePlan, KeptValue, TensorPlace, SegmentStart } from "./bundle.js";
import { nextTask } from "./tasks.js";
import { disassemble, type KernelDescription } from "./disassembly.js";

/** How the names of words start that say when kept values were made; new, they are zeros. */
const SEEN = "seen";

/** Statuses that feeds are at fault for. */
const FAULTS = {
  TW_BAD_LABEL: "BAD_LABEL",
  TW_BAD_INDEX: "BAD_INDEX",
  TW_BAD_VALUE: "BAD_VALUE",
  TW_LOOP_LIMIT: "LOOP_LIMIT",
} as const;

/** The label of pixels that do not count, where labels are images of uint8. */
const IMAGE_PADDING = 255;

/** Segments whose contents outlast a run. */
const LASTING = [PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1, STATE] as const;

/** Segments that are read before they are first written to. */
const MOMENTS = [MOMENTUM0, MOMENTUM1] as const;

/** Words of int32 that the system gives memory for at once. */
const SYSTEM_PAGE_WORDS = 4096 / 4;

/** How long a run that may be stopped goes on before messages are looked at. */
const SLICE_MS = 10;

/** The kernels' own description of themselves, as far as sessions need it. */
export interface Kernels {
  readonly fingerprint: number;
  readonly status: Readonly<Record<string, number>>;
  readonly kernels: readonly KernelDescription[];
}

/** A plan in kernel memory. */
export interface LoadedPlan {
  readonly plan: BundlePlan;
  readonly ptr: number;
  readonly constants: number;
  /** Table slot of its generated functions; 0: it has none. */
  readonly codeBase: number;
}

export interface MemoryOptions {
  /** Bytes that the workspace may have. */
  readonly arenaLimit: number;
  /** Plans of steps that are kept in kernel memory. */
  readonly maxPlans: number;
  /** Called when the verifier refuses a plan. */
  onRefused(): void;
}

/** Copies of segments, by their numbers. */
export type Saved = ReadonlyMap<number, Uint8Array>;

/** Fills a target with bytes of a file that the session was made of. */
export type ReadFile = (file: number, start: number, target: Uint8Array) => void;

/** Per instruction of a plan, its disassembly and the node it came from. */
export interface Listing {
  readonly text: readonly string[];
  readonly nodes: readonly string[];
}

/** Constants in kernel memory, and how many plans use them. */
interface HeldConstants {
  readonly ptr: number;
  readonly plan: BundlePlan;
  uses: number;
}

export class PlanMemory {
  readonly #engine: Engine;
  readonly #kernels: Kernels;
  readonly #options: MemoryOptions;
  readonly #bases: number[] = new Array<number>(SEGMENT_NAMES.length).fill(0);
  readonly #sizes: number[];
  /** The least this session's arena and prepared values get, so that plans that are known need not move them. */
  readonly #reserved: readonly number[];
  /** The least recently used first. */
  readonly #loaded = new Map<string, LoadedPlan>();
  #constants: HeldConstants[] = [];
  #generation = 0;
  /** Whether the moments have memory. */
  #hasMoments = false;

  /**
   * @param reserved - plans that are known already
   * @throws EngineError when the kernels' memory has no room
   */
  constructor(
    engine: Engine,
    kernels: Kernels,
    segments: readonly SegmentStart[],
    reserved: readonly BundlePlan[],
    options: MemoryOptions,
  ) {
    this.#engine = engine;
    this.#kernels = kernels;
    this.#options = options;
    this.#sizes = segments.map(({ bytes }) => bytes);
    const within = reserved.filter(({ arenaBytes }) => arenaBytes <= options.arenaLimit);
    this.#reserved = this.#sizes.map((_, segment) => {
      const needs = within.map((plan) => needOf(plan, segment));
      return Math.max(0, ...needs);
    });
    try {
      this.#fill(segments);
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** Changes when addresses given out before are void. */
  get generation(): number {
    return this.#generation;
  }

  /** Addresses of the segments; 0: there is none. */
  get bases(): readonly number[] {
    return this.#bases;
  }

  /** Bytes of the segments as they are now. */
  get sizes(): readonly number[] {
    return this.#sizes;
  }

  get plans(): readonly BundlePlan[] {
    return [...this.#loaded.values()].map(({ plan }) => plan);
  }

  /** Bytes of plans and their constants. */
  get planBytes(): number {
    const words = this.plans.reduce((sum, plan) => sum + plan.words.length, 0);
    return this.#constants.reduce((sum, { plan }) => sum + plan.constantBytes, words);
  }

  /** What the plans keep in the segment of prepared values. */
  get kept(): readonly KeptValue[] {
    return this.plans.flatMap((plan) => plan.kept);
  }

  /** A segment in place. Valid until the next allocation. */
  view(segment: number): Uint8Array {
    return this.#engine.view(this.#bases[segment] as number, this.#sizes[segment] as number);
  }

  /**
   * Bytes of a segment in place. Valid until the next allocation.
   *
   * @throws EngineError when they do not lie in it
   */
  range(segment: number, offset: number, nbytes: number): Uint8Array {
    const size = this.#sizes[segment] ?? 0;
    if (!(offset >= 0 && nbytes >= 0 && offset + nbytes <= size)) {
      throw new EngineError(`bytes [${offset}, ${offset + nbytes}) lie outside segment ${segment} of ${size} bytes.`);
    }
    return this.#engine.view((this.#bases[segment] as number) + offset, nbytes);
  }

  /** A plan that is in kernel memory, with room to run in, as the one that was used last. */
  find(key: string): LoadedPlan | undefined {
    const loaded = this.#loaded.get(key);
    if (loaded !== undefined) {
      this.#makeRoom(loaded.plan);
      this.#loaded.delete(key);
      this.#loaded.set(key, loaded);
    }
    return loaded;
  }

  /** Whether a plan is in kernel memory; it is not used by that. */
  has(key: string): boolean {
    return this.#loaded.has(key);
  }

  /** Give back plans of steps that were not used for long, until there is one less than may be kept. */
  evict(): void {
    const steps = [...this.#loaded].filter(([, { plan }]) => plan.signature.length > 0);
    for (const [key] of steps.slice(0, Math.max(0, steps.length - this.#options.maxPlans + 1))) {
      this.#unload(key);
    }
  }

  /**
   * Put a plan into kernel memory.
   *
   * @throws LimitError when it needs more workspace than is allowed; EngineError when there is no room
   */
  load(key: string, plan: BundlePlan, read: ReadFile): LoadedPlan {
    const { arenaLimit } = this.#options;
    if (plan.arenaBytes > arenaLimit) {
      throw sessionError("ARENA_LIMIT", { nbytes: plan.arenaBytes, limit: arenaLimit });
    }
    this.#makeRoom(plan);
    const engine = this.#engine;
    const codeBase = plan.code.length === 0 ? 0 : engine.loadCode(plan.code);
    let constants = 0;
    let ptr = 0;
    try {
      constants = this.#holdConstants(plan, read);
      ptr = engine.alloc(plan.words.length);
      engine.write(ptr, plan.words);
      this.#place({ plan, ptr, constants, codeBase });
    } catch (error) {
      this.#drop({ plan, ptr, constants, codeBase });
      throw error;
    }
    const loaded = { plan, ptr, constants, codeBase };
    for (const [name, offset, nbytes] of plan.kept) {
      // Who had the place before may have left words there.
      if (name.startsWith(SEEN)) {
        engine.view((this.#bases[PREPARED] as number) + offset, nbytes).fill(0);
      }
    }
    this.#loaded.set(key, loaded);
    return loaded;
  }

  /** Address of a feed or result of a plan. */
  addressOf({ constants }: LoadedPlan, { segment, offset }: TensorPlace): number {
    return (segment === CONSTANTS ? constants : (this.#bases[segment] as number)) + offset;
  }

  /** @throws what the status of a run means, when it is not 0 */
  run(loaded: LoadedPlan): void {
    this.#claimMoments(loaded);
    this.#take(loaded, this.#engine.run(loaded.ptr));
  }

  /**
   * Run a plan, and look between instructions whether it is to end.
   *
   * @param stop - is aborted to end it: what it wrote into segments that outlast it is undone
   * @throws SessionError when it was ended, and what `run` throws
   */
  async runUntil(loaded: LoadedPlan, stop: AbortSignal): Promise<void> {
    const engine = this.#engine;
    this.#claimMoments(loaded);
    const written = engine.written(loaded.ptr);
    const before = this.save((segment) => ((written >>> segment) & 1) !== 0);
    try {
      let code = engine.runSlice(loaded.ptr, true, SLICE_MS);
      while (code === MORE) {
        await nextTask();
        if (stop.aborted) {
          throw sessionError("TERMINATED", {});
        }
        code = engine.runSlice(loaded.ptr, false, SLICE_MS);
      }
      this.#take(loaded, code);
    } catch (error) {
      // Also where another session's step has ended the engine: this one's parameters can still be read.
      this.putBack(before);
      throw error;
    }
  }

  /** Copies of all that outlasts a run, or of the segments that are wanted. */
  save(wanted: (segment: number) => boolean = () => true): Saved {
    const lasting = LASTING.filter((segment) => this.#sizes[segment] !== 0 && wanted(segment));
    return new Map(lasting.map((segment) => [segment, this.view(segment).slice()]));
  }

  /**
   * Have everything as it was when it was saved: before the step that is to be undone, and no earlier. Values that plans
   * keep stay true: those that a step prepared are of the parameters that it started from.
   */
  putBack(saved: Saved): void {
    saved.forEach((data, segment) => this.view(segment).set(data));
  }

  /** @throws what a status means, when it is not 0 */
  #take({ plan, ptr }: LoadedPlan, code: number): void {
    if (code === 0) {
      return;
    }
    const header = new DataView(this.#engine.read(ptr, 4 * HEADER_WORDS).buffer);
    const instruction = header.getUint32(4 * HEADER_FAILED, true);
    const fault = {
      node: plan.nodes[instruction] ?? "the plan",
      value: header.getBigInt64(4 * HEADER_VALUE, true),
      position: header.getBigInt64(4 * HEADER_POSITION, true),
    };
    const [status = `status ${code}`] = Object.entries(this.#kernels.status).find(([, one]) => one === code) ?? [];
    if (status in FAULTS) {
      const [value, position] = [Number(fault.value), Number(fault.position)];
      const isPadding = status === "TW_BAD_LABEL" && (value < 0 || value === IMAGE_PADDING);
      const error = sessionError(isPadding ? "PADDED_LABEL" : FAULTS[status as keyof typeof FAULTS], fault);
      throw error instanceof FeedError ? Object.assign(error, { value, position }) : error;
    }
    const line = plan.text?.[instruction] ?? "";
    const error = sessionError("PLAN_FAILED", { status, code, instruction, line, ...fault });
    // The segments were allocated here, and the plan placed here: no plan makes these wrong.
    if (code === TW_BAD_SEGMENT || code === TW_BAD_POINTER) {
      this.#engine.giveUp(`its memory is in disorder (${error.message})`);
    }
    this.#options.onRefused();
    throw error;
  }

  /** Let a plan add up the times of its instructions at an address; 0: no more. */
  setProfile({ ptr }: LoadedPlan, times: number): void {
    this.#engine.profile(ptr, times);
  }

  listing({ plan }: LoadedPlan): Listing {
    return { text: plan.text ?? disassemble(plan.words, this.#kernels.kernels), nodes: plan.nodes };
  }

  release(): void {
    for (const key of [...this.#loaded.keys()]) {
      this.#unload(key);
    }
    this.#bases.forEach((base) => {
      if (base !== 0) {
        this.#engine.free(base);
      }
    });
    this.#bases.fill(0);
  }

  #fill(segments: readonly SegmentStart[]): void {
    segments.forEach(({ bytes, data }, segment) => {
      if (bytes === 0) {
        return;
      }
      const base = this.#engine.alloc(bytes, data === null);
      this.#bases[segment] = base;
      if (data instanceof Uint8Array) {
        this.#engine.write(base, data);
      }
    });
  }

  /**
   * Before the first plan that updates moments: have the system give them memory.
   *
   * What is read before it is written takes two faults a page, the first for a page of zeros that all share; to write
   * what is there already takes one. With more threads than two, their faults at the same time take less.
   */
  #claimMoments({ ptr }: LoadedPlan): void {
    const engine = this.#engine;
    if (this.#hasMoments || engine.threads > 2) {
      return;
    }
    const written = engine.written(ptr);
    for (const segment of MOMENTS) {
      if (((written >>> segment) & 1) !== 0) {
        this.#hasMoments = true;
        const { buffer, byteOffset, length } = this.view(segment);
        const words = new Int32Array(buffer, byteOffset, Math.floor(length / 4));
        for (let k = 0; k < words.length; k += SYSTEM_PAGE_WORDS) {
          Atomics.compareExchange(words, k, 0, 0);
        }
      }
    }
  }

  #makeRoom(plan: BundlePlan): void {
    for (const segment of [ARENA, PREPARED]) {
      const needed = needOf(plan, segment);
      if (needed > (this.#sizes[segment] as number)) {
        this.#grow(segment, Math.max(needed, this.#reserved[segment] as number));
      }
    }
  }

  #grow(segment: number, nbytes: number): void {
    const old = this.#bases[segment] as number;
    // The old one is freed first: memory may not hold both.
    if (old !== 0) {
      this.#engine.free(old);
    }
    this.#bases[segment] = this.#sizes[segment] = 0;
    try {
      this.#bases[segment] = this.#engine.alloc(nbytes, segment === PREPARED); // nothing is prepared
      this.#sizes[segment] = nbytes;
    } finally {
      // Feeds and results moved: plans are relocated again.
      this.#generation++;
      this.#loaded.forEach((loaded) => this.#place(loaded));
    }
  }

  #place({ plan, ptr, constants, codeBase }: LoadedPlan): void {
    const segments = this.#bases.flatMap((base, segment) =>
      segment === CONSTANTS ? [constants, plan.constantBytes] : [base, this.#sizes[segment] as number],
    );
    this.#engine.place(ptr, Uint32Array.from(segments), codeBase);
  }

  #holdConstants(plan: BundlePlan, read: ReadFile): number {
    if (plan.constantBytes === 0) {
      return 0;
    }
    let held = this.#constants.find((one) => sameConstants(one.plan, plan));
    if (held === undefined) {
      const ptr = this.#engine.alloc(plan.constantBytes);
      try {
        this.#engine.write(ptr, plan.constants);
        for (const { offset, nbytes, file, start } of plan.large) {
          read(file, start, this.#engine.view(ptr + offset, nbytes));
        }
      } catch (error) {
        this.#engine.free(ptr);
        throw error;
      }
      held = { ptr, plan, uses: 0 };
      this.#constants.push(held);
    }
    held.uses++;
    return held.ptr;
  }

  #unload(key: string): void {
    const loaded = this.#loaded.get(key);
    this.#loaded.delete(key);
    if (loaded !== undefined) {
      this.#drop(loaded);
    }
  }

  #drop({ ptr, constants, codeBase }: LoadedPlan): void {
    if (ptr !== 0) {
      this.#engine.free(ptr);
    }
    const held = this.#constants.find((one) => one.ptr === constants);
    if (held !== undefined && --held.uses === 0) {
      this.#constants = this.#constants.filter((one) => one !== held);
      this.#engine.free(held.ptr);
    }
    if (codeBase !== 0) {
      this.#engine.unloadCode(codeBase);
    }
  }
}

/** Write what segments start from that lies in a file: until then they hold anything. */
export async function fillFromFile(
  starts: readonly SegmentStart[],
  segments: Pick<PlanMemory, "range">,
): Promise<void> {
  for (const [segment, { bytes, data }] of starts.entries()) {
    if (data instanceof Blob) {
      await streamBlob(data, bytes, (start, part) => segments.range(segment, start, part.length).set(part));
    }
  }
}

function needOf(plan: BundlePlan, segment: number): number {
  return segment === ARENA ? plan.arenaBytes : segment === PREPARED ? plan.preparedBytes : 0;
}

function sameConstants(a: BundlePlan, b: BundlePlan): boolean {
  return JSON.stringify(a.large) === JSON.stringify(b.large) && sameBytes(a.constants, b.constants);
}
