/** The host of a session whose plans the kernels run. All of its results are there at once, except of runs with a stop. */

import { MORE, type Engine } from "../../engine/engine.js";
import * as layout from "../../engine/layout.js";
import { EngineError, FeedError } from "../../wire/errors.js";
import { refuseIf, sessionError } from "../../wire/messages.js";
import type { Feed, MaybePromise, PlacedTensor, SessionDevice, Workspace } from "../../wire/protocol.js";
import type { TensorPlace } from "../bundle/bundle.js";
import { FEED_FAULTS, IMAGE_PADDING, SLICE_S, WASM } from "../../wire/constants.js";
import type {
  FitCall, HostOptions, HostStart, InstructionTimes, Listing, RanBatches, StagedBatches, StepHost,
} from "../host.js";
import type { Addresses } from "../python-models.js";
import { disassemble, type KernelDescription } from "./disassembly.js";
import { PlanMemory, type PlacedPlan } from "./plan-memory.js";

/** Segments that are read before they are first written to. */
const MOMENTS = [layout.MOMENTUM0, layout.MOMENTUM1] as const;

/** Words of int32 that the system gives memory for at once. */
const SYSTEM_PAGE_WORDS = 4096 / 4;

/** Time that a run with a stop signal takes before the worker looks at messages. */
const SLICE_MS = 10;

const EMPTY = new Uint8Array(0);
/** Bits of all segments. */
const ALL = 2 ** layout.SEGMENT_NAMES.length - 1;

/** The kernels' own description of themselves, as far as sessions need it. */
export interface Kernels {
  readonly fingerprint: number;
  readonly status: Readonly<Record<string, number>>;
  readonly kernels: readonly KernelDescription[];
}

export class WasmHost extends PlanMemory implements StepHost {
  readonly device: SessionDevice;
  readonly gpuBytes = {};
  readonly runsSeveral = true;
  readonly sliceMs = 1000 * SLICE_S;
  readonly #kernels: Kernels;
  readonly #workspaces = new WeakMap<PlacedPlan, Workspace>();
  /** True if the moments have memory. */
  #hasMoments = false;
  /** A block for batches: its address and size. */
  #staging: readonly [number, number] = [0, 0];

  /** @throws EngineError when the kernels' memory has no room */
  constructor(engine: Engine, kernels: Kernels, start: HostStart, options: HostOptions, why: string) {
    super(engine, start, options);
    this.#kernels = kernels;
    this.device = { kind: WASM, adapter: null, why, plans: [] };
  }

  /** Kernel memory is the only side. */
  claim(): void {}

  fill(action: () => Promise<void>): Promise<void> {
    return action();
  }

  targetOf(): string {
    return WASM;
  }

  leavesGpu(): boolean {
    return false;
  }

  get state(): DataView {
    return new DataView(this.engine.u8.buffer, this.call("tw_session_base", layout.STATE), this.call("tw_session_bytes", layout.STATE));
  }

  squares(segment: number, offset: number, count: number): number {
    return this.engine.range(this.call("tw_session_base", segment) + offset, count).squares;
  }

  clear(segment: number, offset: number, nbytes: number): void {
    this.range(segment, offset, nbytes).fill(0);
  }

  // Steps.

  bytesOf({ data }: Feed): Uint8Array {
    return data instanceof Uint8Array ? data : this.engine.read(data.ptr, data.nbytes);
  }

  write(loaded: PlacedPlan, feeds: readonly Feed[]): void {
    const { inputs } = loaded.plan;
    const places = inputs.map((slot) => this.addressOf(loaded, slot));
    const sources = inputs.map((slot, index) => this.#missing(slot, places[index] as number, feeds));
    sources.forEach((source, index) => {
      if (source !== null) {
        this.engine.write(places[index] as number, source);
      }
    });
  }

  /** The bytes to write to the place of an input; null where they lie there already. */
  #missing(slot: TensorPlace, ptr: number, feeds: readonly Feed[]): Uint8Array | null {
    const feed = feeds.find(({ name }) => name === slot.name);
    const nbytes = feed?.data instanceof Uint8Array ? feed.data.byteLength : feed?.data.nbytes;
    if (feed === undefined || nbytes !== slot.nbytes) {
      throw new EngineError(`the plan wants ${slot.nbytes} bytes for '${slot.name}'.`);
    }
    const isThere = !(feed.data instanceof Uint8Array) && feed.data.ptr === ptr;
    return isThere || nbytes === 0 ? null : this.bytesOf(feed);
  }

  run(loaded: PlacedPlan, stop: AbortSignal | null): MaybePromise<void> {
    this.#claimMoments(loaded);
    return stop === null ? this.#take(loaded, this.engine.run(loaded.ptr)) : this.#runUntil(loaded, stop);
  }

  async #runUntil(loaded: PlacedPlan, stop: AbortSignal): Promise<void> {
    const { engine } = this;
    this.save(layout.COPY_STEP, engine.written(loaded.ptr));
    try {
      let code = engine.runSlice(loaded.ptr, true, SLICE_MS);
      while (code === MORE) {
        await nextTask();
        refuseIf(stop.aborted, "TERMINATED");
        code = engine.runSlice(loaded.ptr, false, SLICE_MS);
      }
      this.#take(loaded, code);
    } catch (error) {
      // Also where another session's step has ended the engine: this one's parameters can still be read.
      this.putBack(layout.COPY_STEP);
      throw error;
    } finally {
      this.forget(layout.COPY_STEP);
    }
  }

  read(loaded: PlacedPlan, places: readonly TensorPlace[]): readonly PlacedTensor[] {
    return places.map((slot) => {
      const { name, dtype, dims, nbytes } = slot;
      const ptr = this.addressOf(loaded, slot);
      return { name, dtype, dims, ptr, nbytes, data: this.engine.read(ptr, nbytes) };
    });
  }

  workspace(loaded: PlacedPlan, feeds: readonly Feed[]): Workspace {
    const known = this.#workspaces.get(loaded);
    const { generation } = this;
    if (known?.generation === generation) {
      return known;
    }
    const { inputs, signature, arenaBytes } = loaded.plan;
    const workspace = {
      generation,
      // Feeds may be written meanwhile where the plan does not run in the arena (`tw_session_load`).
      nbytes: signature.length === 0 && arenaBytes <= layout.APART_BYTES ? 0 : arenaBytes,
      feeds: feeds.map(({ name }) => {
        const slot = inputs.find((one) => one.name === name);
        // No bytes for a feed that the plan does not read.
        return slot === undefined ? { ptr: 0, nbytes: 0 } : { ptr: this.addressOf(loaded, slot), nbytes: slot.nbytes };
      }),
    };
    this.#workspaces.set(loaded, workspace);
    return workspace;
  }

  times(count: number): InstructionTimes {
    const { engine } = this;
    const at = engine.alloc(Float64Array.BYTES_PER_ELEMENT * Math.max(count, 1));
    return {
      measure: async (loaded: PlacedPlan, action) => {
        engine.write(at, new Float64Array(count));
        engine.profile(loaded.ptr, at);
        try {
          await action();
          return { sums: new Float64Array(engine.read(at, Float64Array.BYTES_PER_ELEMENT * count).buffer), ofSubmits: false };
        } finally {
          engine.profile(loaded.ptr, 0);
        }
      },
      release: () => engine.free(at),
    };
  }

  listing({ plan }: PlacedPlan): Listing {
    return { text: plan.text ?? disassemble(plan.words, this.#kernels.kernels), nodes: plan.nodes };
  }

  // Copies.

  save(copy: number, segments = ALL): void {
    this.demand("tw_session_save", copy, segments);
  }

  putBack(copy: number): void {
    this.demand("tw_session_put_back", copy);
  }

  goBack(copy: number): void {
    this.demand("tw_session_go_back", copy);
  }

  forget(copy: number): void {
    this.demand("tw_session_forget", copy);
  }

  exchangeAverages(): void {
    this.demand("tw_session_exchange");
  }

  isAnyBad(segments: readonly number[], copy: number, loaded?: PlacedPlan): boolean {
    const isBad = (ptr: number, nbytes: number): boolean => {
      const { nan, infinite } = this.engine.range(ptr, nbytes / 4);
      return nan + infinite > 0;
    };
    const blocks = segments.flatMap((segment) => {
      const nbytes = this.call("tw_session_bytes", segment);
      return [this.call("tw_session_base", segment), this.call("tw_session_copy", copy, segment)].map((ptr) => [ptr, nbytes]);
    });
    const outputs = loaded?.plan.outputs.filter(({ dtype }) => dtype === "float32") ?? [];
    const results = outputs.map((place) => [this.addressOf(loaded as PlacedPlan, place), place.nbytes]);
    return [...blocks, ...results].some(([ptr = 0, nbytes = 0]) => ptr > 0 && nbytes > 0 && isBad(ptr, nbytes));
  }

  addresses(copy: number, loaded?: PlacedPlan): Addresses {
    const { constants = 0, large = 0 } = loaded ?? {};
    const bases = Object.assign([...this.bases], { [layout.CONSTANTS]: constants, [layout.LARGE_CONSTANTS]: large });
    return { bases, copies: layout.SEGMENT_NAMES.map((_, segment) => this.call("tw_session_copy", copy, segment)) };
  }

  // Fits.

  get fit(): DataView {
    return new DataView(this.engine.u8.buffer, this.call("tw_fit_at"), 4 * layout.FIT_WORDS);
  }

  tellFit<Name extends FitCall>(name: Name, ...args: layout.SessionCalls[Name]): void {
    this.demand(name, ...args);
  }

  runBatches(batches: StagedBatches<PlacedPlan>, n: number): RanBatches {
    const { engine } = this;
    const { train, adding, update, clip, limits, rates, numbers } = batches;
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
    const losses = 4 * (layout.BATCHES_WORDS + 4 * inputs.length);
    const ratesAt = losses + 4 * n * numbers;
    const first = ratesAt + 4 * (n + 1);
    const places = inputs.map((_, k) => inputs.slice(0, k).reduce((place, { size }) => place + size, first));
    const block = this.#staged(inputs.reduce((place, { size }) => place + size, first));
    const words = [
      ...steps.flatMap((step) => [step.ptr, ...this.#resultsOf(step, batches)]),
      ...[update.ptr, clip?.ptr ?? 0, batches.rows, rates === null ? 0 : ratesAt, staged.length, 0, numbers],
      ...inputs.flatMap(({ nbytes, targets }, k) => [places[k] as number, nbytes, ...targets]),
    ];
    engine.write(block, Uint32Array.from(words));
    engine.write(block + ratesAt, rates ?? EMPTY);
    engine.write(block + (places[staged.length] ?? first), limits ?? EMPTY);
    fed.forEach((slot, k) => {
      const ptr = n === 1 ? this.addressOf(train, slot) : block + (places[k] as number);
      batches.write(slot.name, engine.view(ptr, n * slot.nbytes));
    });
    const status = engine.runBatches(this.session, block, n);
    return {
      losses: new Float32Array(engine.read(block + losses, 4 * n * numbers).buffer),
      error: status === 0 ? null : this.#failureOf(engine.u32[block / 4 + layout.BATCHES_RAN] as number, status),
    };
  }

  /** Addresses of the loss of a step and of its divisor; 0: the rows of a batch. */
  #resultsOf(step: PlacedPlan, { loss, count }: StagedBatches): number[] {
    return [loss, count].map((name) => (name === null ? 0 : this.addressOf(step, placeOf(step.plan.outputs, name))));
  }

  #failureOf(ran: number, status: number): unknown {
    const loaded = this.loaded.find(({ ptr }) => ptr === ran);
    return loaded === undefined ? this.engine.failure("tw_fit_run", status) : this.#failure(loaded, status);
  }

  endFit(): void {
    this.#unstage();
    this.demand("tw_fit_end");
  }

  release(): void {
    this.#unstage();
    this.close();
  }

  /** A block of at least so many bytes, which lasts until the fit ends. */
  #staged(nbytes: number): number {
    if (nbytes > this.#staging[1]) {
      this.#unstage();
      this.#staging = [this.engine.alloc(nbytes), nbytes];
    }
    return this.#staging[0];
  }

  #unstage(): void {
    if (this.#staging[0] !== 0) {
      this.engine.free(this.#staging[0]);
    }
    this.#staging = [0, 0];
  }

  /** @throws the error that a status means, when it is not 0 */
  #take(loaded: PlacedPlan, code: number): void {
    if (code !== 0) {
      throw this.#failure(loaded, code);
    }
  }

  /** The error that a status other than 0 means. */
  #failure({ plan, ptr }: PlacedPlan, code: number): Error {
    const header = new DataView(this.engine.read(ptr, 4 * layout.HEADER_WORDS).buffer);
    const instruction = header.getUint32(4 * layout.HEADER_FAILED, true);
    const fault = {
      node: plan.nodes[instruction] ?? "the plan",
      value: header.getBigInt64(4 * layout.HEADER_VALUE, true),
      position: header.getBigInt64(4 * layout.HEADER_POSITION, true),
      last: header.getUint32(4 * layout.HEADER_CLASSES, true) - 1,
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
    if (code === layout.TW_BAD_SEGMENT || code === layout.TW_BAD_POINTER) {
      this.engine.giveUp(`its memory is in disorder (${error.message})`);
    }
    this.options.onRefused();
    return error;
  }

  /**
   * Before the first plan that updates moments: have the system give them memory.
   *
   * Memory that is read before it is written takes two faults a page, the first for a page of zeros that all share; to
   * write the existing value takes one. With more threads than two, their faults at the same time take less.
   */
  #claimMoments({ ptr }: PlacedPlan): void {
    const { engine } = this;
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
}

/** The place of an input or output that the plan has. */
function placeOf(places: readonly TensorPlace[], name: string): TensorPlace {
  return places.find((place) => place.name === name) as TensorPlace;
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
