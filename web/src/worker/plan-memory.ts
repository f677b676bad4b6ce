/** A session of the kernels (`wasm_kernels/session/`): its segments, and the plans that run on them. */

import { MORE, sameBytes, type Engine } from "../engine/engine.js";
import {
  ARENA,
  BATCHES_RAN,
  BATCHES_WORDS,
  CONSTANTS,
  COPY_STEP,
  HEADER_FAILED,
  HEADER_POSITION,
  HEADER_VALUE,
  HEADER_WORDS,
  LARGE_CONSTANTS,
  MOMENTUM0,
  MOMENTUM1,
  PREPARED,
  SEGMENT_NAMES,
  TW_BAD_POINTER,
  TW_BAD_SEGMENT,
  LOAD_NO_FEEDS,
  LOAD_STEP,
  type SessionCalls,
} from "../engine/layout.js";
import { copyInto, streamBlob } from "../python/given-files.js";
import { EngineError, FeedError } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import type { BundlePlan, KeptValue, LargeConstant, TensorPlace, SegmentStart } from "./bundle/bundle.js";
import { FEED_FAULTS, IMAGE_PADDING, KERNEL_MEMORY, SEEN } from "./constants.js";
import { disassemble, type KernelDescription } from "./disassembly.js";

/** Segments that are read before they are first written to. */
const MOMENTS = [MOMENTUM0, MOMENTUM1] as const;

/** Words of int32 that the system gives memory for at once. */
const SYSTEM_PAGE_WORDS = 4096 / 4;

/** Time that a run with a stop signal takes before the worker looks at messages. */
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
  /** Addresses of its constants and large constants; 0: it has none. */
  readonly constants: number;
  readonly large: number;
  /** Table slot of its generated functions; 0: it has none. */
  readonly codeBase: number;
}

/** The plans of a fit's steps. */
export interface StepPlans {
  /** The train step that overwrites gradients, and the one that adds to them. */
  readonly train: LoadedPlan;
  readonly adding: LoadedPlan;
  /** The optimizer step. */
  readonly update: LoadedPlan;
  /** Runs before it, if gradients are clipped. */
  readonly clip: LoadedPlan | null;
}

/** Batches of one size that a fit runs at once. */
export interface StagedBatches extends StepPlans {
  /** What `clip` is fed. */
  readonly limits: Uint8Array | null;
  /** Outputs of a train step: the loss, and its divisor (null: the rows of a batch). */
  readonly loss: string;
  readonly count: string | null;
  /** Rows of a batch. */
  readonly rows: number;
  /** Learning rates of the optimizer steps, the next one first; null: the rate stays. */
  readonly rates: Float32Array | null;
  /** Write an input of all batches to an address. */
  write(input: string, ptr: number): void;
}

/** Losses up to a batch that fails, and its error or null. */
export interface RanBatches {
  readonly losses: Float32Array;
  readonly error: unknown;
}

export interface MemoryOptions {
  /** Bytes that the workspace may have. */
  readonly arenaLimit: number;
  /** Plans of steps that are kept in kernel memory. */
  readonly maxPlans: number;
  /** Called when the verifier refuses a plan. */
  onRefused(): void;
}

const EMPTY = new Uint8Array(0);
/** Bits of all segments. */
const ALL = 2 ** SEGMENT_NAMES.length - 1;

/** First byte and end of a run of parameters in their segment. */
export interface ParameterRun {
  readonly start: number;
  readonly end: number;
}

/** Fills a target with bytes of a file that the session was made of. */
export type ReadFile = (file: number, start: number, target: Uint8Array) => void;

/** Per instruction of a plan, its disassembly and the node it came from. */
export interface Listing {
  readonly text: readonly string[];
  readonly nodes: readonly string[];
}

export class PlanMemory {
  readonly #engine: Engine;
  readonly #kernels: Kernels;
  readonly #options: MemoryOptions;
  /** The address of the session. */
  readonly #session: number;
  /** The least this session's arena and prepared values get, so that plans that are known need not move them. */
  readonly #reserved: readonly number[];
  readonly #loaded = new Map<string, LoadedPlan>();
  /** True if the moments have memory. */
  #hasMoments = false;
  /** A block for batches: its address and size. */
  #staging: readonly [number, number] = [0, 0];

  /**
   * @param reserved - plans that are known already
   * @param trained - where the trained parameters lie
   * @throws EngineError when the kernels' memory has no room
   */
  constructor(
    engine: Engine,
    kernels: Kernels,
    segments: readonly SegmentStart[],
    reserved: readonly BundlePlan[],
    options: MemoryOptions,
    trained: readonly ParameterRun[] = [],
  ) {
    this.#engine = engine;
    this.#kernels = kernels;
    this.#options = options;
    const within = reserved.filter(({ arenaBytes }) => arenaBytes <= options.arenaLimit);
    this.#reserved = SEGMENT_NAMES.map((_, segment) => {
      const needs = within.map((plan) => needOf(plan, segment));
      return Math.max(0, ...needs);
    });
    this.#session = engine.openSession();
    try {
      this.#fill(segments);
      this.#setTrained(trained);
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** Call a function of the session; what it returns. */
  call<Name extends keyof SessionCalls>(name: Name, ...args: SessionCalls[Name]): number {
    return this.#engine.call(name, this.#session, ...args);
  }

  /** @throws EngineError when the function of the session fails */
  demand<Name extends keyof SessionCalls>(name: Name, ...args: SessionCalls[Name]): void {
    this.#engine.demand(name, this.#session, ...args);
  }

  /** Changes when addresses given out before are void. */
  get generation(): number {
    return this.call("tw_session_generation");
  }

  /** Addresses of the segments; 0: there is none. */
  get bases(): readonly number[] {
    return SEGMENT_NAMES.map((_, segment) => this.call("tw_session_base", segment));
  }

  /** Bytes of the segments as they are now. */
  get sizes(): readonly number[] {
    return SEGMENT_NAMES.map((_, segment) => this.call("tw_session_bytes", segment));
  }

  get plans(): readonly BundlePlan[] {
    return [...this.#loaded.values()].map(({ plan }) => plan);
  }

  /** Bytes of plans and their constants. */
  get planBytes(): number {
    const loaded = [...this.#loaded.values()];
    const blocks = new Map(
      loaded.flatMap(({ plan, ptr, constants, large }) => [
        [ptr, plan.words.length],
        [constants, plan.constants.length],
        [large, plan.largeBytes],
      ]),
    );
    return [...blocks.values()].reduce((sum, nbytes) => sum + nbytes, 0);
  }

  /** The values of plans in the segment of prepared values. */
  get kept(): readonly KeptValue[] {
    return this.plans.flatMap((plan) => plan.kept);
  }

  /** A segment in place. Valid until the next allocation. */
  view(segment: number): Uint8Array {
    return this.#engine.view(this.call("tw_session_base", segment), this.call("tw_session_bytes", segment));
  }

  /**
   * Bytes of a segment in place. Valid until the next allocation.
   *
   * @throws EngineError when they do not lie in it
   */
  range(segment: number, offset: number, nbytes: number): Uint8Array {
    const size = this.call("tw_session_bytes", segment);
    if (!(offset >= 0 && nbytes >= 0 && offset + nbytes <= size)) {
      throw new EngineError(`bytes [${offset}, ${offset + nbytes}) lie outside segment ${segment} of ${size} bytes.`);
    }
    return this.#engine.view(this.call("tw_session_base", segment) + offset, nbytes);
  }

  /** A plan that is in kernel memory. */
  find(key: string): LoadedPlan | undefined {
    return this.#loaded.get(key);
  }

  /** True if a plan is in kernel memory. */
  has(key: string): boolean {
    return this.#loaded.has(key);
  }

  /** Give back plans of steps that were not used for long, until there is one less than may be kept. */
  evict(): void {
    for (;;) {
      const ptr = this.call("tw_session_excess", this.#options.maxPlans);
      const gone = [...this.#loaded].find(([, loaded]) => loaded.ptr === ptr);
      if (gone === undefined) {
        return;
      }
      this.#unload(...gone);
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
    for (const segment of [ARENA, PREPARED]) {
      const needed = needOf(plan, segment);
      if (needed > this.call("tw_session_bytes", segment)) {
        this.#reserve(segment, Math.max(needed, this.#reserved[segment] as number));
      }
    }
    const engine = this.#engine;
    const codeBase = plan.code.length === 0 ? 0 : engine.loadCode(plan.code);
    let [constants, large, ptr] = [0, 0, 0];
    try {
      constants = this.#constantsOf(plan);
      large = this.#largeOf(plan, read);
      ptr = engine.alloc(plan.words.length);
      engine.write(ptr, plan.words);
      const kind = plan.signature.length > 0 ? LOAD_STEP : LOAD_NO_FEEDS;
      this.demand("tw_session_load", ptr, constants, large, codeBase, kind);
    } catch (error) {
      this.#drop({ plan, ptr, constants, large, codeBase });
      throw error;
    }
    const loaded = { plan, ptr, constants, large, codeBase };
    for (const [name, offset, nbytes] of plan.kept) {
      // The former owner of the place may have left words there.
      if (name.startsWith(SEEN)) {
        this.range(PREPARED, offset, nbytes).fill(0);
      }
    }
    this.#loaded.set(key, loaded);
    return loaded;
  }

  /** Address of a feed or result of a plan. */
  addressOf({ constants, large }: LoadedPlan, { segment, offset }: TensorPlace): number {
    const own = { [CONSTANTS]: constants, [LARGE_CONSTANTS]: large }[segment];
    return (own ?? this.call("tw_session_base", segment)) + offset;
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
    this.save(COPY_STEP, written);
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
      this.putBack(COPY_STEP);
      throw error;
    } finally {
      this.forget(COPY_STEP);
    }
  }

  /**
   * Run so many batches of a fit, with the optimizer steps that are due, up to one that fails. One batch alone goes right
   * to where it is read: `train` and `adding` are the step that it takes.
   */
  runBatches(batches: StagedBatches, n: number): RanBatches {
    const engine = this.#engine;
    const { train, adding, update, clip, limits, rates } = batches;
    this.#claimMoments(update);
    const steps = [train, adding];
    const fed = train.plan.inputs.filter(({ nbytes }) => nbytes > 0);
    const staged = n === 1 ? [] : fed;
    const inputs = [
      ...staged.map(({ name, nbytes }) => {
        return { nbytes, size: n * nbytes, targets: steps.map(({ plan }) => placeOf(plan.inputs, name).offset) };
      }),
      ...(clip?.plan.inputs ?? []).map(({ nbytes, offset }) => ({ nbytes, size: nbytes, targets: [offset, offset] })),
    ];
    const losses = 4 * (BATCHES_WORDS + 4 * inputs.length);
    const ratesAt = losses + 4 * n;
    const first = ratesAt + 4 * (n + 1);
    const places = inputs.map((_, k) => inputs.slice(0, k).reduce((place, { size }) => place + size, first));
    const block = this.#staged(inputs.reduce((place, { size }) => place + size, first));
    const words = [
      ...steps.flatMap((step) => [step.ptr, ...this.#resultsOf(step, batches)]),
      ...[update.ptr, clip?.ptr ?? 0, batches.rows, rates === null ? 0 : ratesAt, staged.length, 0],
      ...inputs.flatMap(({ nbytes, targets }, k) => [places[k] as number, nbytes, ...targets]),
    ];
    engine.write(block, Uint32Array.from(words));
    engine.write(block + ratesAt, rates ?? EMPTY);
    engine.write(block + (places[staged.length] ?? first), limits ?? EMPTY);
    fed.forEach((slot, k) => {
      batches.write(slot.name, n === 1 ? this.addressOf(train, slot) : block + (places[k] as number));
    });
    const status = engine.runBatches(this.#session, block, n);
    return {
      losses: new Float32Array(engine.read(block + losses, 4 * n).buffer),
      error: status === 0 ? null : this.#failureOf(engine.u32[block / 4 + BATCHES_RAN] as number, status),
    };
  }

  /** Addresses of the loss of a step and of its divisor; 0: the rows of a batch. */
  #resultsOf(step: LoadedPlan, { loss, count }: StagedBatches): number[] {
    return [loss, count].map((name) => (name === null ? 0 : this.addressOf(step, placeOf(step.plan.outputs, name))));
  }

  #failureOf(ran: number, status: number): unknown {
    const loaded = [...this.#loaded.values()].find(({ ptr }) => ptr === ran);
    return loaded === undefined ? this.#engine.failure("tw_fit_run", status) : this.#failure(loaded, status);
  }

  /** The fit ends. */
  endFit(): void {
    this.#unstage();
    this.demand("tw_fit_end");
  }

  /** A block of at least so many bytes, which lasts until the fit ends. */
  #staged(nbytes: number): number {
    if (nbytes > this.#staging[1]) {
      this.#unstage();
      this.#staging = [this.#engine.alloc(nbytes), nbytes];
    }
    return this.#staging[0];
  }

  #unstage(): void {
    if (this.#staging[0] !== 0) {
      this.#engine.free(this.#staging[0]);
    }
    this.#staging = [0, 0];
  }

  /** Copy all that outlasts a run, or the segments whose bits are set. */
  save(copy: number, segments = ALL): void {
    this.demand("tw_session_save", copy, segments);
  }

  /**
   * Have everything as it was when it was copied: before the step that is to be undone, and no earlier. Values that
   * plans keep stay true: a step prepared them from the parameters that it started with.
   */
  putBack(copy: number): void {
    this.demand("tw_session_put_back", copy);
  }

  /** Give back the memory of a copy. */
  forget(copy: number): void {
    this.demand("tw_session_forget", copy);
  }

  /** @throws what a status means, when it is not 0 */
  #take(loaded: LoadedPlan, code: number): void {
    if (code !== 0) {
      throw this.#failure(loaded, code);
    }
  }

  /** What a status other than 0 means. */
  #failure({ plan, ptr }: LoadedPlan, code: number): Error {
    const header = new DataView(this.#engine.read(ptr, 4 * HEADER_WORDS).buffer);
    const instruction = header.getUint32(4 * HEADER_FAILED, true);
    const fault = {
      node: plan.nodes[instruction] ?? "the plan",
      value: header.getBigInt64(4 * HEADER_VALUE, true),
      position: header.getBigInt64(4 * HEADER_POSITION, true),
    };
    const [status = `status ${code}`] = Object.entries(this.#kernels.status).find(([, one]) => one === code) ?? [];
    if (status in FEED_FAULTS) {
      const [value, position] = [Number(fault.value), Number(fault.position)];
      const isPadding = status === "TW_BAD_LABEL" && (value < 0 || value === IMAGE_PADDING);
      const error = sessionError(isPadding ? "PADDED_LABEL" : FEED_FAULTS[status as keyof typeof FEED_FAULTS], fault);
      return error instanceof FeedError ? Object.assign(error, { value, position }) : error;
    }
    const line = plan.text?.[instruction] ?? "";
    const error = sessionError("PLAN_FAILED", { status, code, instruction, line, ...fault });
    // The segments were allocated here, and the plan placed here: no plan makes these wrong.
    if (code === TW_BAD_SEGMENT || code === TW_BAD_POINTER) {
      this.#engine.giveUp(`its memory is in disorder (${error.message})`);
    }
    this.#options.onRefused();
    return error;
  }

  /** Let a plan add up the times of its instructions at an address; 0: no more. */
  setProfile({ ptr }: LoadedPlan, times: number): void {
    this.#engine.profile(ptr, times);
  }

  listing({ plan }: LoadedPlan): Listing {
    return { text: plan.text ?? disassemble(plan.words, this.#kernels.kernels), nodes: plan.nodes };
  }

  release(): void {
    this.#loaded.forEach((loaded, key) => this.#unload(key, loaded));
    this.#unstage();
    this.call("tw_session_close");
  }

  #fill(segments: readonly SegmentStart[]): void {
    segments.forEach(({ bytes, data }, segment) => {
      if (bytes > 0) {
        this.#reserve(segment, bytes);
      }
      if (data instanceof Uint8Array) {
        this.range(segment, 0, bytes).set(data);
      }
    });
  }

  #setTrained(runs: readonly ParameterRun[]): void {
    const table = this.#engine.alloc(2 * Uint32Array.BYTES_PER_ELEMENT * runs.length);
    try {
      this.#engine.write(table, Uint32Array.from(runs.flatMap(({ start, end }) => [start, end - start])));
      this.demand("tw_session_trained", table);
    } catch (error) {
      this.#engine.free(table);
      throw error;
    }
  }

  /**
   * Before the first plan that updates moments: have the system give them memory.
   *
   * Memory that is read before it is written takes two faults a page, the first for a page of zeros that all share; to
   * write the existing value takes one. With more threads than two, their faults at the same time take less.
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

  #reserve(segment: number, nbytes: number): void {
    if (nbytes >= KERNEL_MEMORY) {
      throw this.#engine.noMemory(nbytes);
    }
    this.demand("tw_session_reserve", segment, nbytes);
  }

  /** Address of a plan's constants; equal ones are there once. */
  #constantsOf({ constants }: BundlePlan): number {
    if (constants.length === 0) {
      return 0;
    }
    const held = [...this.#loaded.values()].find((one) => sameBytes(one.plan.constants, constants));
    if (held !== undefined) {
      return held.constants;
    }
    const ptr = this.#engine.alloc(constants.length);
    this.#engine.write(ptr, constants);
    return ptr;
  }

  /** Address of a plan's large constants; equal ones are there once. */
  #largeOf({ large, largeBytes }: BundlePlan, read: ReadFile): number {
    if (largeBytes === 0) {
      return 0;
    }
    const held = [...this.#loaded.values()].find((one) => sameLarge(one.plan.large, large));
    if (held !== undefined) {
      return held.large;
    }
    const ptr = this.#engine.alloc(largeBytes);
    try {
      for (const { offset, nbytes, file, start, data } of large) {
        const target = this.#engine.view(ptr + offset, nbytes);
        if (data === null) {
          read(file, start, target);
        } else {
          copyInto(target, data);
        }
      }
      return ptr;
    } catch (error) {
      this.#engine.free(ptr);
      throw error;
    }
  }

  #unload(key: string, { ptr, codeBase }: LoadedPlan): void {
    this.#loaded.delete(key);
    this.call("tw_session_unload", ptr);
    if (codeBase !== 0) {
      this.#engine.unloadCode(codeBase);
    }
  }

  /** Free what a plan has that the session did not take over. */
  #drop({ ptr, constants, large, codeBase }: LoadedPlan): void {
    this.#engine.free(ptr);
    const shared = new Set([...this.#loaded.values()].flatMap((one) => [one.constants, one.large]));
    [constants, large].filter((block) => !shared.has(block)).forEach((block) => this.#engine.free(block));
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
    if (data !== null && "blob" in data) {
      const part = data.blob.slice(data.start, data.start + bytes);
      await streamBlob(part, bytes, (start, part) => segments.range(segment, start, part.length).set(part));
    }
  }
}

/** The place of an input or output that the plan has. */
function placeOf(places: readonly TensorPlace[], name: string): TensorPlace {
  return places.find((place) => place.name === name) as TensorPlace;
}

function needOf(plan: BundlePlan, segment: number): number {
  return segment === ARENA ? plan.arenaBytes : segment === PREPARED ? plan.preparedBytes : 0;
}

function sameLarge(a: readonly LargeConstant[], b: readonly LargeConstant[]): boolean {
  const places = (large: readonly LargeConstant[]): string =>
    String(large.flatMap(({ offset, nbytes, file, start, data }) => [offset, nbytes, ...(data === null ? [file, start] : [])]));
  return (
    places(a) === places(b) &&
    a.every(({ data }, k) => {
      const other = b[k]?.data ?? null;
      return data === other || (data instanceof Uint8Array && other instanceof Uint8Array && sameBytes(data, other));
    })
  );
}

/** Settle in a new task, which lets the messages in that are there; timers would wait for 4 ms. */
function nextTask(): Promise<void> {
  // A channel for each: one that stays open would keep a process alive where workers are its threads (Node).
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
