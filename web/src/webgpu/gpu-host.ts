/** The host of a session that trains on the GPU. It wraps the kernels' host, which has heads of plans, the state and the mirror. */

import {
  FIT_NEXT, FIT_WAITING, NEXT_BATCH, NEXT_UPDATE, ON_NAN_IGNORE, ON_NAN_RESTORE, ON_NAN_SKIP, ON_NAN_STOP, PARAMETERS, SEGMENT_NAMES,
  STATE_SHARE, STATE_STEP, SUMS_GRADIENTS, type SessionCalls,
} from "../engine/layout.js";
import type { DevicePlan, Feed, MaybePromise, PlacedTensor, SessionDevice, Workspace } from "../wire/protocol.js";
import type { Held } from "../wire/session-calls.js";
import type { BundlePlan, TensorPlace } from "../worker/bundle/bundle.js";
import type {
  FitCall, GpuScript, InstructionTimes, Listing, LoadedPlan, RanBatches, ReadFile, Side, StagedBatches, StepHost,
} from "../worker/host.js";
import { withValue } from "../worker/host.js";
import type { Addresses } from "../worker/python-models.js";
import type { StepKind } from "../worker/step-kind.js";
import { runAhead, type AheadRules } from "./ahead.js";
import { SharedDevice, type GpuDevice } from "./device.js";
import { timesOf } from "./profile.js";
import { readPage } from "./guard.js";
import { GpuPlan, GpuRunner, type TimedPass } from "./runner.js";
import { checkSize, LASTING, type Segments } from "./segments.js";
import { log, sessionError, tellShaders, useTools } from "./worker-tools.js";

/** Kinds of steps that run on the GPU. The others only look. */
const ON_GPU: readonly string[] = ["train", "optimizer", "clip"];
const LOOKS: readonly string[] = ["eval", "predict", "generate", "inference"];
const ON_WASM = ["scheduler", "eval", "predict", "generate"];
/** Values of `onNaN` that undo batches. */
const UNDOES: readonly number[] = [ON_NAN_STOP, ON_NAN_SKIP, ON_NAN_RESTORE];
const EVERYTHING: Held = { reads: LASTING, writes: LASTING };
/** Target time of a call that runs batches. */
const SLICE_MS = 100;
/** Errors of plans that a device cannot run, though another may. */
const CANNOT: readonly string[] = ["UnsupportedError", "DeviceError"];

const shared = new Map<GPU | undefined, SharedDevice>();

/** The GPU of this worker. */
export const openGpu: GpuScript["openGpu"] = async (gpu, tools, isAuto) => {
  useTools(tools);
  const device = shared.get(gpu) ?? new SharedDevice(gpu);
  shared.set(gpu, device);
  const opened = await device.get();
  const { isFallback, description, vendor } = opened.adapter;
  if (isFallback) {
    const warning = sessionError("SOFTWARE_ADAPTER", { adapter: description || vendor });
    if (isAuto) {
      throw warning;
    }
    log("warning", warning.message);
  }
  return {
    check: (segments) => segments.forEach(({ bytes }, segment) => checkSize(opened, bytes, SEGMENT_NAMES[segment] as string)),
    over: (kernels) => new GpuHost(opened, kernels, isAuto),
  };
};

class GpuHost implements StepHost {
  readonly #gpu: GpuDevice;
  readonly #kernels: StepHost;
  readonly #segments: Segments;
  readonly #runner: GpuRunner;
  readonly #isAuto: boolean;
  /** By what the kernels loaded of them. */
  readonly #loaded = new Map<LoadedPlan, GpuPlan>();
  #device: SessionDevice;
  /** True if the guard looks at the batches of the fit. Else the kernels do, and segments are claimed for them. */
  #guards = false;
  #rules: AheadRules = { accumulate: 1, stops: false, looks: false, saves: false, weighs: false };
  /** Calls of the fit that copy all that it may go back to. */
  #copies: readonly FitCall[] = [];
  /** True if the guard made the last such copy. */
  #isCopyThere = false;
  #timed: TimedPass | null = null;

  constructor(gpu: GpuDevice, kernels: StepHost, isAuto: boolean) {
    this.#gpu = gpu;
    this.#kernels = kernels;
    this.#runner = new GpuRunner(gpu, kernels);
    this.#segments = this.#runner.segments;
    this.#isAuto = isAuto;
    const onGpu = ON_GPU.map((step): DevicePlan => ({ step, device: "webgpu", dispatches: null, pipelines: null, why: "" }));
    const why = "only training steps run on the GPU";
    const others = ON_WASM.map((step): DevicePlan => ({ step, device: "wasm", dispatches: null, pipelines: null, why }));
    const reason = isAuto ? "a GPU is here" : "the option device";
    this.#device = { kind: "webgpu", adapter: gpu.adapter, why: reason, plans: [...onGpu, ...others] };
  }

  get device(): SessionDevice {
    return this.#device;
  }

  targetOf(kind: StepKind): string {
    const isHere = this.#device.kind === "webgpu" && ON_GPU.includes(kind.base);
    return isHere ? "webgpu" : this.#kernels.targetOf(kind);
  }

  leavesGpu(error: unknown): boolean {
    const { name, message } = error as Error;
    const leaves = this.#isAuto && this.#device.kind === "webgpu" && !this.#gpu.isBroken && CANNOT.includes(name);
    if (leaves) {
      log("info", `the session trains on the CPU: ${message}`);
      const plans = this.#device.plans.map((plan): DevicePlan => ({ ...plan, device: "wasm", dispatches: null, pipelines: null, why: message }));
      this.#device = { ...this.#device, kind: "wasm", why: message, plans };
    }
    return leaves;
  }

  // Memory.

  claim({ reads, writes }: Held, side: Side): MaybePromise<void> {
    this.#check();
    if (side === "device") {
      return undefined;
    }
    this.#runner.commands.submit();
    const missing = this.#segments.missing([...reads, ...writes]);
    const note = (): void => this.#segments.writesHere(writes);
    return missing.length === 0 ? note() : this.#segments.bringDown(missing).then(note, (error: unknown) => this.#fail(error));
  }

  /** Have all segments here, to change them. */
  #claimed<T>(action: () => MaybePromise<T>): MaybePromise<T> {
    const claim = this.claim(EVERYTHING, "host");
    return claim instanceof Promise ? claim.then(action) : action();
  }

  get gpuBytes(): Readonly<Record<string, number>> {
    const plans = [...this.#loaded.values()];
    const sum = (buffers: readonly GPUBuffer[]): number => [...new Set(buffers)].reduce((nbytes, { size }) => nbytes + size, 0);
    return {
      ...this.#segments.bytes,
      constants: sum(plans.map(({ own }) => own.constants)),
      largeConstants: sum(plans.map(({ own }) => own.large)),
      numbers: sum(plans.map(({ own }) => own.numbers)),
      guard: this.#runner.guard.bytes,
    };
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
    for (const [head, loaded] of this.#loaded) {
      if (!here.has(head.plan)) {
        this.#loaded.delete(head);
        this.#runner.unload(loaded, this.#loaded.values());
      }
    }
  }

  load(key: string, plan: BundlePlan, read: ReadFile): MaybePromise<LoadedPlan> {
    return plan.body === null ? this.#kernels.load(key, plan, read) : this.#loadBody(key, plan as GpuPlan["plan"], read);
  }

  async #loadBody(key: string, plan: GpuPlan["plan"], read: ReadFile): Promise<LoadedPlan> {
    this.#check();
    this.#runner.commands.submit();
    try {
      const tell = (compiled: number, total: number): void => tellShaders(this, compiled, total);
      const loaded = await this.#runner.load(key, plan, read, this.#loaded.values(), tell);
      this.#loaded.set(loaded.head, loaded);
      const { dispatches, pipelines } = loaded;
      const counts = { dispatches: dispatches.length, pipelines: pipelines.size };
      const plans = this.#device.plans.map((one) => (one.step === plan.kind.base ? { ...one, ...counts } : one));
      this.#device = { ...this.#device, plans };
      return loaded;
    } catch (error) {
      return this.#fail(error);
    }
  }

  listing(loaded: LoadedPlan): Listing {
    if (!(loaded instanceof GpuPlan)) {
      return this.#kernels.listing(loaded);
    }
    const { body, text, nodes } = loaded.plan;
    const names = text?.slice(nodes.length) ?? loaded.dispatches.map(({ pipeline, grid }) => `shader${pipeline} (${grid.join(", ")})`);
    return { text: names, nodes: body.nodes };
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
    this.#runner.commands.submit();
    this.#runner.feed(loaded, feeds);
    return undefined;
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
    const runner = this.#runner;
    runner.commands.submit();
    const encode = (): void => {
      runner.runHead(loaded);
      runner.encode(loaded, this.#timed);
    };
    // Results are read with the commands of a step. Commands of the first step are submitted, for their errors.
    return loaded.hasRun ? encode() : runner.submit([loaded], encode).catch((error: unknown) => this.#fail(error));
  }

  read(loaded: LoadedPlan, places: readonly TensorPlace[]): MaybePromise<readonly PlacedTensor[]> {
    if (!(loaded instanceof GpuPlan)) {
      return this.#kernels.read(loaded, places);
    }
    if (places.length === 0) {
      this.#runner.commands.submit();
      return [];
    }
    return this.#runner.read(loaded, places).catch((error: unknown) => this.#fail(error));
  }

  /** Feeds of steps on the GPU travel: their places are beyond all memory. */
  workspace(loaded: LoadedPlan, feeds: readonly Feed[]): Workspace {
    if (!(loaded instanceof GpuPlan)) {
      return this.#kernels.workspace(loaded, feeds);
    }
    return { generation: this.generation, nbytes: Math.max(loaded.plan.arenaBytes, 1), feeds: feeds.map(() => ({ ptr: Infinity, nbytes: 0 })) };
  }

  times(count: number): InstructionTimes {
    const ofKernels = this.#kernels.times(count);
    const measure: InstructionTimes["measure"] = async (loaded, action) => {
      if (!(loaded instanceof GpuPlan)) {
        return ofKernels.measure(loaded, action);
      }
      const times = timesOf(this.#runner, loaded.dispatches.length);
      this.#timed = times.pass;
      try {
        await action();
        return await times.milliseconds();
      } finally {
        this.#timed = null;
        times.release();
      }
    };
    return { measure, release: () => ofKernels.release() };
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

  get sliceMs(): number {
    return this.#device.kind === "webgpu" ? SLICE_MS : this.#kernels.sliceMs;
  }

  get runsSeveral(): boolean {
    return this.#device.kind === "webgpu" ? this.#guards : !this.#guards || this.#waiting === 0;
  }

  tellFit<Name extends FitCall>(name: Name, ...args: SessionCalls[Name]): MaybePromise<void> {
    if (name === "tw_fit_start") {
      return this.#startFit(args as SessionCalls["tw_fit_start"]);
    }
    if (name === "tw_fit_batch") {
      this.#leaveGuard();
    }
    if (!this.#guards && this.#copies.includes(name)) {
      this.#isCopyThere = false;
    }
    const tell = (): MaybePromise<void> => this.#kernels.tellFit(name, ...args);
    if (name === "tw_fit_undo" && this.#isCopyThere) {
      return withValue(tell(), () => this.#runner.guard.putBack());
    }
    return this.#guards ? this.#tellGuarded(name, args, tell) : this.#claimed(tell);
  }

  async #startFit([accumulate, action, sums, mu]: SessionCalls["tw_fit_start"]): Promise<void> {
    const looks = UNDOES.includes(action);
    const saves = looks && action !== ON_NAN_RESTORE;
    this.#rules = { accumulate, stops: action !== ON_NAN_IGNORE, looks, saves, weighs: accumulate > 1 && (sums & SUMS_GRADIENTS) === 0 };
    this.#isCopyThere = false;
    this.#copies = saves ? ["tw_fit_batch", "tw_fit_rest"] : looks ? ["tw_fit_keep", "tw_fit_epoch"] : [];
    // The kernels pull parameters, in float64.
    this.#guards = mu === 0 && this.#device.kind === "webgpu";
    if (looks || mu !== 0) {
      await this.claim({ reads: LASTING, writes: [] }, "host");
    }
    await this.#kernels.tellFit("tw_fit_start", accumulate, action, sums, mu);
    if (this.#guards) {
      const { guard } = this.#runner;
      await guard.open(looks).catch((error: unknown) => this.#fail(error));
      void this.#kernels.tellFit("tw_fit_elsewhere", 1, 0);
      if (looks) {
        guard.start();
      }
    }
  }

  /** Leave segments to the kernels if steps run there now, and no gradients wait that the guard has weighted. */
  #leaveGuard(): void {
    if (this.#guards && this.#device.kind === "wasm" && this.#waiting === 0) {
      this.#guards = false;
      void this.#kernels.tellFit("tw_fit_elsewhere", 0, 0);
    }
  }

  /** Tell the kernels, while the guard copies, looks at and scales segments. */
  async #tellGuarded(name: FitCall, [, weight = 0]: readonly number[], tell: () => MaybePromise<void>): Promise<void> {
    const { guard } = this.#runner;
    const { looks, weighs } = this.#rules;
    const isFirst = this.#waiting === 0;
    const isTrained = name === "tw_fit_trained";
    if (this.#copies.includes(name)) {
      guard.save();
      this.#isCopyThere = true;
    }
    if (looks && (isTrained || name === "tw_fit_updated")) {
      void this.#kernels.tellFit("tw_fit_elsewhere", 1, await this.#fault());
    }
    await tell();
    if (isTrained) {
      guard.noteWeight(weight, isFirst, this.#next);
    }
    if (weighs && name === "tw_fit_batch" && !isFirst) {
      this.state.setFloat32(4 * STATE_SHARE, 1, true);
    } else if (weighs && this.#next === NEXT_UPDATE && (isTrained || name === "tw_fit_rest")) {
      guard.average();
    } else if (weighs && isTrained && isFirst && this.#next === NEXT_BATCH) {
      guard.scale(weight);
    }
  }

  /** The segment that a step has spoiled; 0: there is none. */
  async #fault(): Promise<number> {
    const { guard } = this.#runner;
    guard.begin();
    guard.updated();
    const [bytes] = await this.#runner.readAll([guard.record]).catch((error: unknown) => this.#fail(error));
    guard.goOn();
    return readPage(bytes as Uint8Array).fault;
  }

  async runBatches(batches: StagedBatches, n: number): Promise<RanBatches> {
    try {
      this.#check();
      if (!(batches.train instanceof GpuPlan)) {
        this.#leaveGuard();
        return await this.#claimed(() => this.#kernels.runBatches(batches, n));
      }
      this.#runner.commands.submit();
      this.#isCopyThere ||= this.#rules.saves;
      return await runAhead(this.#runner, batches as StagedBatches<GpuPlan>, n, this.#rules, stagedFeeds(batches, n));
    } catch (error) {
      return { losses: new Float32Array(0), error: this.#located(error) };
    }
  }

  get #next(): number {
    return this.fit.getUint32(4 * FIT_NEXT, true);
  }

  get #waiting(): number {
    return this.fit.getUint32(4 * FIT_WAITING, true);
  }

  endFit(): MaybePromise<void> {
    this.#guards = false;
    this.#runner.commands.submit();
    this.#runner.guard.forget();
    return this.#kernels.endFit();
  }

  release(): void {
    const plans = [...this.#loaded.values()];
    plans.forEach((plan) => this.#runner.unload(plan, []));
    this.#runner.release();
    this.#kernels.release();
  }

  /** @throws DeviceError of a lost device */
  #check(): void {
    this.#gpu.check(this.#steps);
  }

  /** Optimizer steps until now. */
  get #steps(): number {
    return Number(this.state.getBigInt64(4 * STATE_STEP, true));
  }

  /** The error of a lost device in the place of another, which follows from it. */
  #located(error: unknown): unknown {
    try {
      this.#check();
      return error;
    } catch (lost) {
      return lost;
    }
  }

  #fail(error: unknown): never {
    throw this.#located(error);
  }
}

function headOf(loaded: LoadedPlan): LoadedPlan {
  return loaded instanceof GpuPlan ? loaded.head : loaded;
}

/** Feeds of batches whose inputs are written at once. */
function stagedFeeds(batches: StagedBatches, n: number): (k: number) => readonly Feed[] {
  const { plan } = batches.train;
  const places = [...plan.inputs, ...(plan.body?.inputs ?? [])];
  const all = plan.signature.map(({ name, dtype, dims }) => {
    // The plan may not read it.
    const nbytes = places.find((place) => place.name === name)?.nbytes ?? 0;
    const data = new Uint8Array(n * nbytes);
    if (nbytes > 0) {
      batches.write(name, data);
    }
    return { name, dtype, dims, nbytes, data };
  });
  return (k) => all.map(({ name, dtype, dims, nbytes, data }) => ({ name, dtype, dims, data: data.subarray(k * nbytes, (k + 1) * nbytes) }));
}
