/** The host of a session that trains on the GPU. It wraps the kernels' host, which has heads of plans, the state and the mirror. */

import {
  ARENA, CONSTANTS, FIT_NEXT, FIT_OPTIMIZER_STEPS, FIT_WAITING, LARGE_CONSTANTS, NEXT_BATCH, NEXT_UPDATE, PARAMETERS,
  STATE_LEARNING_RATE, STATE_STEP, type SessionCalls,
} from "../engine/layout.js";
import { FeedError } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import type { Feed, MaybePromise, PlacedTensor, SessionDevice, Workspace } from "../wire/protocol.js";
import type { Held } from "../wire/session-calls.js";
import type { BundlePlan, TensorPlace } from "../worker/bundle/bundle.js";
import type {
  FitCall, GpuScript, InstructionTimes, Listing, LoadedPlan, RanBatches, ReadFile, Side, StagedBatches, StepHost,
} from "../worker/host.js";
import type { Addresses } from "../worker/python-models.js";
import type { StepKind } from "../worker/step-kind.js";
import { SharedDevice, USAGE, type GpuDevice } from "./device.js";
import { BLOCK_BYTES, dispatchesOf, largeBytesOf, Pipelines, type Body, type Dispatch } from "./plans.js";
import { LASTING, Segments } from "./segments.js";

/** Kinds of steps that run on the GPU. The others only look. */
const ON_GPU: readonly string[] = ["train", "optimizer", "clip"];
const LOOKS: readonly string[] = ["eval", "predict", "generate", "inference"];
/** Values of `onNaN` that undo a batch, in the kernels' enumeration. */
const UNDOES: readonly number[] = [1, 2, 3];
/** What a session says of its plans. */
const PLANS: SessionDevice["plans"] = [
  ...ON_GPU.map((step) => ({ step, device: "webgpu" as const })),
  ...["scheduler", "eval", "predict", "generate"].map((step) => ({ step, device: "wasm" as const })),
];
const EVERYTHING: Held = { reads: LASTING, writes: LASTING };

/** A plan whose body is on the GPU. */
class GpuPlan implements LoadedPlan {
  /** Of the buffers of this generation. */
  group: { readonly bound: GPUBindGroup; readonly generation: number } | null = null;
  /** True once the device took a step of it without an error. */
  hasRun = false;

  constructor(
    readonly plan: BundlePlan & { readonly body: Body },
    /** The head, which the kernels run. */
    readonly head: LoadedPlan,
    readonly dispatches: readonly Dispatch[],
    readonly pipelines: readonly GPUComputePipeline[],
    /** Constants, large constants and numbers. */
    readonly own: readonly [constants: GPUBuffer, large: GPUBuffer, numbers: GPUBuffer],
  ) {}
}

const shared = new Map<GPU | undefined, SharedDevice>();

/** The GPU of this worker, with room for segments of so many bytes. @throws DeviceError */
export const openGpu: GpuScript["openGpu"] = async (gpu, nbytes) => {
  const device = shared.get(gpu) ?? new SharedDevice(gpu);
  shared.set(gpu, device);
  const needed = { maxStorageBufferBindingSize: 2 ** 27, maxBufferSize: 2 ** 28 };
  const limits = Object.entries(needed).map(([name, least]) => [name, Math.max(least, nbytes)]);
  const opened = await device.get(Object.fromEntries(limits));
  return { adapter: opened.adapter, plans: PLANS, over: (kernels) => new GpuHost(opened, kernels) };
};

class GpuHost implements StepHost {
  readonly #gpu: GpuDevice;
  readonly #kernels: StepHost;
  readonly #segments: Segments;
  readonly #pipelines: Pipelines;
  /** By what the kernels loaded of them. */
  readonly #loaded = new Map<LoadedPlan, GpuPlan>();
  /** Commands that are not submitted yet. */
  #encoder: GPUCommandEncoder | null = null;
  /** True if each call of the fit looks at segments. */
  #fitLooks = false;

  constructor(gpu: GpuDevice, kernels: StepHost) {
    this.#gpu = gpu;
    this.#kernels = kernels;
    this.#segments = new Segments(gpu, kernels);
    this.#pipelines = Pipelines.of(gpu);
  }

  targetOf({ base }: StepKind): string {
    return ON_GPU.includes(base) ? "webgpu" : this.#kernels.targetOf({ base, request: null, key: base });
  }

  // Memory.

  claim({ reads, writes }: Held, side: Side): MaybePromise<void> {
    this.#check();
    if (side === "device") {
      return undefined;
    }
    this.#submit();
    const missing = this.#segments.missing([...reads, ...writes]);
    const note = (): void => this.#segments.writesHere(writes);
    return missing.length === 0 ? note() : this.#segments.bringDown(missing).then(note, (error: unknown) => this.#fail(error));
  }

  /** Have all segments here, to change them. */
  #claimed<T>(action: () => MaybePromise<T>): MaybePromise<T> {
    const claim = this.claim(EVERYTHING, "host");
    return claim instanceof Promise ? claim.then(action) : action();
  }

  view(segment: number): Uint8Array {
    return this.#kernels.view(segment);
  }

  range(segment: number, offset: number, nbytes: number): Uint8Array {
    return this.#kernels.range(segment, offset, nbytes);
  }

  get state(): DataView {
    return this.#kernels.state;
  }

  get sizes(): readonly number[] {
    return this.#kernels.sizes;
  }

  get bases(): readonly number[] {
    return this.#kernels.bases;
  }

  squares(segment: number, offset: number, count: number): number {
    return this.#kernels.squares(segment, offset, count);
  }

  clear(segment: number, offset: number, nbytes: number): MaybePromise<void> {
    return this.#claimed(() => this.#kernels.clear(segment, offset, nbytes));
  }

  // Plans.

  get generation(): number {
    return this.#kernels.generation;
  }

  get plans(): readonly BundlePlan[] {
    const whole = new Map([...this.#loaded].map(([head, { plan }]) => [head.plan, plan]));
    return this.#kernels.plans.map((plan) => whole.get(plan) ?? plan);
  }

  get planBytes(): number {
    return this.#kernels.planBytes;
  }

  find(key: string): LoadedPlan | undefined {
    const loaded = this.#kernels.find(key);
    return loaded && (this.#loaded.get(loaded) ?? loaded);
  }

  evict(): void {
    this.#kernels.evict();
    const here = new Set(this.#kernels.plans);
    for (const [head, { own }] of this.#loaded) {
      if (!here.has(head.plan)) {
        own.forEach((buffer) => buffer.destroy());
        this.#loaded.delete(head);
      }
    }
  }

  load(key: string, plan: BundlePlan, read: ReadFile): MaybePromise<LoadedPlan> {
    const { body } = plan;
    return body === null ? this.#kernels.load(key, plan, read) : this.#loadBody(key, { ...plan, body }, read, plan);
  }

  async #loadBody(
    key: string,
    whole: BundlePlan & { readonly body: Body },
    read: ReadFile,
    plan: BundlePlan,
  ): Promise<LoadedPlan> {
    this.#check();
    this.#submit();
    const { body } = whole;
    const dispatches = dispatchesOf(whole, this.#kernels.sizes);
    const pipelines = await this.#pipelines.compile(body, dispatches);
    await this.#segments.reserve(body.arenaBytes);
    const own = await this.#ownBuffers(body, read);
    const head = await this.#kernels.load(key, { ...plan, outputs: [] }, read);
    // The caller compares plans by identity.
    const loaded = new GpuPlan(plan as typeof whole, head, dispatches, pipelines, own);
    this.#loaded.set(head, loaded);
    return loaded;
  }

  /** Buffers of the constants, the large constants and the numbers of a body. */
  async #ownBuffers(body: Body, read: ReadFile): Promise<GpuPlan["own"]> {
    const segments = this.#segments;
    const constants = await segments.make(body.constants.length, "constants");
    segments.write(constants, 0, body.constants);
    const large = await segments.make(largeBytesOf(body), "large constants");
    for (const { offset, nbytes, file, start, data } of body.large) {
      const bytes = new Uint8Array(nbytes);
      if (data === null) {
        read(file, start, bytes);
      } else {
        bytes.set(data instanceof Uint8Array ? data : new Uint8Array(await data.blob.slice(data.start, data.start + nbytes).arrayBuffer()));
      }
      segments.write(large, offset, bytes);
    }
    const numbers = await segments.make(Math.max(BLOCK_BYTES, body.uniforms.length), "numbers", USAGE.UNIFORM);
    segments.write(numbers, 0, body.uniforms);
    return [constants, large, numbers];
  }

  listing(loaded: LoadedPlan): Listing {
    return this.#kernels.listing(headOf(loaded));
  }

  // Steps.

  bytesOf(feed: Feed): Uint8Array {
    return this.#kernels.bytesOf(feed);
  }

  write(loaded: LoadedPlan, feeds: readonly Feed[]): MaybePromise<void> {
    if (!(loaded instanceof GpuPlan)) {
      return this.#kernels.write(loaded, feeds);
    }
    this.#check();
    this.#submit();
    const { inputs } = loaded.plan.body;
    const sources = inputs.map(({ name }) => this.bytesOf(feeds.find((feed) => feed.name === name) as Feed));
    inputs.forEach((place, k) => checkWidth(place, sources[k] as Uint8Array));
    const done = this.#kernels.write(loaded.head, feeds);
    inputs.forEach((place, k) => this.#segments.write(this.#bufferOf(loaded, place), place.offset, sources[k] as Uint8Array));
    return done;
  }

  run(loaded: LoadedPlan, stop: AbortSignal | null): MaybePromise<void> {
    if (loaded instanceof GpuPlan) {
      return this.#runBody(loaded);
    }
    // Others look at parameters, and the scheduler's changes the state only.
    const { base } = loaded.plan.kind;
    const held = LOOKS.includes(base) ? { reads: [PARAMETERS], writes: [] } : base === "scheduler" ? { reads: [], writes: [] } : EVERYTHING;
    const claim = this.claim(held, "host");
    return claim instanceof Promise ? claim.then(() => this.#kernels.run(loaded, stop)) : this.#kernels.run(loaded, stop);
  }

  #runBody(loaded: GpuPlan): MaybePromise<void> {
    this.#check();
    this.#submit();
    const { body } = loaded.plan;
    // Its faults end the step before anything has changed. Without a stop the kernels answer at once.
    void this.#kernels.run(loaded.head, null);
    const { device } = this.#gpu;
    if (!loaded.hasRun) {
      device.pushErrorScope("validation");
    }
    this.#segments.bringUp();
    for (const [source, target, nbytes] of body.uploads) {
      this.#segments.write(this.#segments.buffer(ARENA), target, this.#kernels.range(ARENA, source, nbytes));
    }
    this.#encoder = device.createCommandEncoder();
    const pass = this.#encoder.beginComputePass();
    const group = this.#groupOf(loaded);
    let last = -1;
    for (const { pipeline, grid, block } of loaded.dispatches) {
      if (pipeline !== last) {
        pass.setPipeline(loaded.pipelines[pipeline] as GPUComputePipeline);
        last = pipeline;
      }
      pass.setBindGroup(0, group, [BLOCK_BYTES * block]);
      pass.dispatchWorkgroups(...grid);
    }
    pass.end();
    this.#segments.wroteThere();
    return loaded.hasRun ? undefined : this.#firstRun(loaded);
  }

  /** Wait for the errors of the first run of a plan. */
  async #firstRun(loaded: GpuPlan): Promise<void> {
    this.#submit();
    const error = await this.#gpu.settled(this.#gpu.device.popErrorScope()).catch((fault: unknown) => this.#fail(fault));
    if (error !== null) {
      throw sessionError("DEVICE_ERROR", { message: error.message });
    }
    loaded.hasRun = true;
  }

  #groupOf(loaded: GpuPlan): GPUBindGroup {
    const { generation } = this.#segments;
    if (loaded.group?.generation !== generation) {
      const [constants, large, numbers] = loaded.own;
      const buffers = Object.assign(this.#segments.buffers, { [CONSTANTS]: constants, [LARGE_CONSTANTS]: large });
      loaded.group = { bound: this.#pipelines.group(buffers, numbers), generation };
    }
    return loaded.group.bound;
  }

  #bufferOf({ own }: GpuPlan, { segment }: TensorPlace): GPUBuffer {
    return segment === CONSTANTS ? own[0] : segment === LARGE_CONSTANTS ? own[1] : this.#segments.buffer(segment);
  }

  read(loaded: LoadedPlan, places: readonly TensorPlace[]): MaybePromise<readonly PlacedTensor[]> {
    if (!(loaded instanceof GpuPlan)) {
      return this.#kernels.read(loaded, places);
    }
    if (places.length === 0) {
      this.#submit();
      return [];
    }
    return this.#readBody(loaded, places);
  }

  async #readBody(loaded: GpuPlan, places: readonly TensorPlace[]): Promise<readonly PlacedTensor[]> {
    const words = places.map(({ nbytes }) => Math.ceil(nbytes / 4) * 4);
    const starts = words.map((_, k) => words.slice(0, k).reduce((sum, length) => sum + length, 0));
    const total = words.reduce((sum, length) => sum + length, 0);
    const staging = this.#segments.staging(total);
    // The copies go with the step.
    this.#encoder ??= this.#gpu.device.createCommandEncoder();
    places.forEach((place, k) => {
      this.#encoder?.copyBufferToBuffer(this.#bufferOf(loaded, place), place.offset, staging, starts[k] as number, words[k] as number);
    });
    this.#submit();
    const bytes = await this.#segments.mapped(staging, total).catch((error: unknown) => this.#fail(error));
    return places.map(({ name, dtype, dims, nbytes }, k) => {
      const start = starts[k] as number;
      return { name, dtype, dims, ptr: 0, nbytes, data: bytes.slice(start, start + nbytes) };
    });
  }

  /** Feeds of steps on the GPU travel: their places are beyond all memory. */
  workspace(loaded: LoadedPlan, feeds: readonly Feed[]): Workspace {
    if (!(loaded instanceof GpuPlan)) {
      return this.#kernels.workspace(loaded, feeds);
    }
    return { generation: this.generation, nbytes: Math.max(loaded.plan.arenaBytes, 1), feeds: feeds.map(() => ({ ptr: Infinity, nbytes: 0 })) };
  }

  times(count: number): InstructionTimes {
    return this.#kernels.times(count);
  }

  // Copies.

  save(copy: number, segments?: number): MaybePromise<void> {
    return this.#claimed(() => this.#kernels.save(copy, segments));
  }

  putBack(copy: number): MaybePromise<void> {
    return this.#claimed(() => this.#kernels.putBack(copy));
  }

  goBack(copy: number): MaybePromise<void> {
    return this.#claimed(() => this.#kernels.goBack(copy));
  }

  forget(copy: number): MaybePromise<void> {
    return this.#kernels.forget(copy);
  }

  exchangeAverages(side: Side): MaybePromise<void> {
    return this.#claimed(() => this.#kernels.exchangeAverages(side));
  }

  isAnyBad(segments: readonly number[], copy: number, loaded?: LoadedPlan): MaybePromise<boolean> {
    return this.#claimed(() => this.#kernels.isAnyBad(segments, copy, loaded));
  }

  addresses(copy: number, loaded?: LoadedPlan): Addresses {
    return this.#kernels.addresses(copy, loaded && headOf(loaded));
  }

  // Fits.

  get fit(): DataView {
    return this.#kernels.fit;
  }

  tellFit<Name extends FitCall>(name: Name, ...args: SessionCalls[Name]): MaybePromise<void> {
    if (name === "tw_fit_start") {
      const [accumulate = 1, action = 0, sums = 0, mu = 0] = args as readonly number[];
      const scales = accumulate > 1 && sums === 0;
      this.#fitLooks = UNDOES.includes(action) || scales || mu !== 0;
    }
    return this.#fitLooks ? this.#claimed(() => this.#kernels.tellFit(name, ...args)) : this.#kernels.tellFit(name, ...args);
  }

  async runBatches(batches: StagedBatches, n: number): Promise<RanBatches> {
    const losses = new Float32Array(n);
    try {
      const all = batches.train.plan.signature.map(({ name, dtype, dims }) => {
        const nbytes = nbytesOf(batches.train.plan, name);
        const data = new Uint8Array(n * nbytes);
        if (nbytes > 0) {
          batches.write(name, data);
        }
        return { name, dtype, dims, nbytes, data };
      });
      const first = this.fit.getUint32(4 * FIT_OPTIMIZER_STEPS, true);
      for (let k = 0; k < n; k++) {
        const feeds = all.map(({ name, dtype, dims, nbytes, data }) => {
          return { name, dtype, dims, data: data.subarray(k * nbytes, (k + 1) * nbytes) };
        });
        await this.tellFit("tw_fit_batch");
        if (!(await this.#runBatch(batches, feeds, first, losses, k))) {
          break;
        }
      }
      return { losses, error: null };
    } catch (error) {
      return { losses, error };
    }
  }

  /** Run a batch, and the optimizer step if it is due; true if the next batch may follow. */
  async #runBatch(batches: StagedBatches, feeds: readonly Feed[], first: number, losses: Float32Array, k: number): Promise<boolean> {
    const { fit, state } = this;
    const [waiting, steps] = [fit.getUint32(4 * FIT_WAITING, true), fit.getUint32(4 * FIT_OPTIMIZER_STEPS, true)];
    const { rates, clip, limits, update } = batches;
    if (rates !== null && waiting === 0) {
      state.setFloat32(4 * STATE_LEARNING_RATE, rates[steps - first] as number, true);
    }
    const names = [batches.loss, ...(batches.count === null ? [] : [batches.count])];
    const step = waiting === 0 ? batches.train : batches.adding;
    const results = await this.#step(step, feeds, names);
    const [loss = NaN, weight = batches.rows] = results.map(({ data }) => new Float32Array(data.buffer, data.byteOffset, 1)[0]);
    losses[k] = loss;
    await this.tellFit("tw_fit_trained", loss, weight);
    if (!this.#isNext(NEXT_UPDATE)) {
      return this.#isNext(NEXT_BATCH);
    }
    if (clip !== null) {
      await this.#step(clip, [{ name: "limits", dtype: "float32", dims: [2], data: limits as Uint8Array }], []);
    }
    await this.#step(update, [], []);
    await this.tellFit("tw_fit_updated");
    return this.#isNext(NEXT_BATCH);
  }

  #isNext(action: number): boolean {
    return this.fit.getUint32(4 * FIT_NEXT, true) === action;
  }

  async #step(loaded: LoadedPlan, feeds: readonly Feed[], names: readonly string[]): Promise<readonly PlacedTensor[]> {
    await this.write(loaded, feeds);
    await this.run(loaded, null);
    return this.read(loaded, names.map((name) => loaded.plan.outputs.find((place) => place.name === name) as TensorPlace));
  }

  endFit(): MaybePromise<void> {
    this.#fitLooks = false;
    return this.#kernels.endFit();
  }

  release(): void {
    this.#encoder = null;
    this.#loaded.forEach(({ own }) => own.forEach((buffer) => buffer.destroy()));
    this.#segments.release();
    this.#kernels.release();
  }

  #submit(): void {
    if (this.#encoder !== null) {
      this.#gpu.device.queue.submit([this.#encoder.finish()]);
      this.#encoder = null;
    }
  }

  /** @throws DeviceError of a lost device, with the optimizer steps until then */
  #check(): void {
    try {
      this.#gpu.check();
    } catch (error) {
      this.#fail(error);
    }
  }

  #fail(error: unknown): never {
    // Sessions share the device's error.
    const { constructor, message } = error as Error;
    const own = new (constructor as new (text: string) => Error)(message);
    throw Object.assign(own, error, { step: Number(this.state.getBigInt64(4 * STATE_STEP, true)) });
  }
}

function headOf(loaded: LoadedPlan): LoadedPlan {
  return loaded instanceof GpuPlan ? loaded.head : loaded;
}

/** Bytes of a feed; 0: the plan does not read it. */
function nbytesOf({ inputs, body }: BundlePlan, name: string): number {
  return [...inputs, ...(body?.inputs ?? [])].find((place) => place.name === name)?.nbytes ?? 0;
}

/** @throws FeedError for an integer of more than 32 bits, of which shaders would read the lower half */
function checkWidth({ name, dtype, nbytes }: TensorPlace, bytes: Uint8Array): void {
  if (dtype !== "int64" && dtype !== "uint64") {
    return;
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, nbytes);
  for (let at = 0; at < nbytes; at += 8) {
    const low = view.getInt32(at, true);
    if (view.getInt32(at + 4, true) !== (dtype === "int64" ? low >> 31 : 0)) {
      const value = dtype === "int64" ? view.getBigInt64(at, true) : view.getBigUint64(at, true);
      const error = sessionError("WIDE_FEED", { name, value, position: at / 8 });
      throw error instanceof FeedError ? Object.assign(error, { input: name, position: at / 8, value: Number(value) }) : error;
    }
  }
}
