/** The host of a session that trains on the GPU. It wraps the kernels' host, which has heads of plans, the state and the mirror. */

import {
  FIT_WAITING, ON_NAN_IGNORE, ON_NAN_RESTORE, ON_NAN_SKIP, ON_NAN_STOP, PARAMETERS, SEGMENT_NAMES, STATE_SHARE, STATE_STEP,
  SUMS_GRADIENTS, type SessionCalls,
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
import { runAhead } from "./ahead.js";
import { sharedDevice, type GpuDevice } from "./device.js";
import { timesOf } from "./profile.js";
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

/** The GPU of this worker. */
export const openGpu: GpuScript["openGpu"] = async (gpu, tools, isAuto) => {
  useTools(tools);
  const opened = await sharedDevice(gpu);
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
    over: (kernels) => new GpuHost(opened, kernels, isAuto).whole,
  };
};

/** Members of a host that change segments. */
const CHANGES: readonly PropertyKey[] = ["clear", "save", "putBack", "goBack", "exchangeAverages", "isAnyBad"];
/** Members whose first argument is a plan: on the GPU, or of the kernels. */
const OF_PLANS: readonly PropertyKey[] = ["listing", "write", "read", "workspace"];

/** A host for plans on the GPU. All else is the kernels', as it is or once segments are claimed. */
class GpuHost implements Partial<StepHost> {
  /** The host with the kernels' members. */
  readonly whole: StepHost;
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
    this.whole = new Proxy(kernels, { get: (_, name) => this.#member(name) });
    const onGpu = ON_GPU.map((step): DevicePlan => ({ step, device: "webgpu", dispatches: null, pipelines: null, why: "" }));
    const why = "only training steps run on the GPU";
    const others = ON_WASM.map((step): DevicePlan => ({ step, device: "wasm", dispatches: null, pipelines: null, why }));
    const reason = isAuto ? "a GPU is here" : "the option device";
    this.#device = { kind: "webgpu", adapter: gpu.adapter, why: reason, plans: [...onGpu, ...others] };
  }

  #member(name: PropertyKey): unknown {
    const call = (host: object, args: readonly unknown[]): unknown => Reflect.apply(Reflect.get(host, name) as () => unknown, host, args);
    if (CHANGES.includes(name)) {
      return (...args: readonly unknown[]) => this.#claimed(() => call(this.#kernels, args));
    }
    if (OF_PLANS.includes(name)) {
      return (...args: readonly unknown[]) => call(args[0] instanceof GpuPlan ? this : this.#kernels, args);
    }
    const host = name in this ? this : this.#kernels;
    const member: unknown = Reflect.get(host, name);
    return typeof member === "function" ? member.bind(host) : member;
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
    return this.#segments.bytes;
  }

  // Plans.

  get plans(): readonly BundlePlan[] {
    const whole = new Map([...this.#loaded].map(([head, { plan }]) => [head.plan, plan]));
    return this.#kernels.plans.map((plan) => whole.get(plan) ?? plan);
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
    try {
      const tell = (compiled: number, total: number): void => tellShaders(this.whole, compiled, total);
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

  listing({ plan: { body, text, nodes }, dispatches }: GpuPlan): Listing {
    const names = text?.slice(nodes.length) ?? dispatches.map(({ pipeline, grid }) => `shader${pipeline} (${grid.join(", ")})`);
    return { text: names, nodes: body.nodes };
  }

  // Steps.

  write(loaded: GpuPlan, feeds: readonly Feed[]): void {
    this.#check();
    this.#runner.feed(loaded, feeds);
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
    const encode = (): void => {
      runner.runHead(loaded);
      runner.encode(loaded, this.#timed);
    };
    // Results are read with the commands of a step. Commands of the first step are submitted, for their errors.
    return loaded.hasRun ? encode() : runner.submit([loaded], encode).catch((error: unknown) => this.#fail(error));
  }

  read(loaded: GpuPlan, places: readonly TensorPlace[]): MaybePromise<readonly PlacedTensor[]> {
    if (places.length === 0) {
      this.#runner.commands.submit();
      return [];
    }
    return this.#runner.read(loaded, places).catch((error: unknown) => this.#fail(error));
  }

  /** Feeds of steps on the GPU travel: their places are beyond all memory. */
  workspace({ plan }: GpuPlan, feeds: readonly Feed[]): Workspace {
    const { generation } = this.#kernels;
    return { generation, nbytes: Math.max(plan.arenaBytes, 1), feeds: feeds.map(() => ({ ptr: Infinity, nbytes: 0 })) };
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

  addresses(copy: number, loaded?: LoadedPlan): Addresses {
    return this.#kernels.addresses(copy, loaded instanceof GpuPlan ? loaded.head : loaded);
  }

  // Fits.

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
    const { guard } = this.#runner;
    const looks = UNDOES.includes(action);
    const saves = looks && action !== ON_NAN_RESTORE;
    guard.rules = { accumulate, stops: action !== ON_NAN_IGNORE, looks, saves, weighs: accumulate > 1 && (sums & SUMS_GRADIENTS) === 0 };
    this.#isCopyThere = false;
    this.#copies = saves ? ["tw_fit_batch", "tw_fit_rest"] : looks ? ["tw_fit_keep", "tw_fit_epoch"] : [];
    // The kernels pull parameters, in float64.
    this.#guards = mu === 0 && this.#device.kind === "webgpu";
    if (looks || mu !== 0) {
      await this.claim({ reads: LASTING, writes: [] }, "host");
    }
    await this.#kernels.tellFit("tw_fit_start", accumulate, action, sums, mu);
    if (this.#guards) {
      await guard.open().catch((error: unknown) => this.#fail(error));
      void this.#kernels.tellFit("tw_fit_elsewhere", 1, 0);
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
  async #tellGuarded(name: FitCall, [loss, weight]: readonly number[], tell: () => MaybePromise<void>): Promise<void> {
    const { guard } = this.#runner;
    const { accumulate, weighs } = guard.rules;
    if (this.#copies.includes(name)) {
      guard.save();
      this.#isCopyThere = true;
    }
    const isFirst = this.#waiting === 0;
    if (name === "tw_fit_trained") {
      await this.#judged(() => guard.trained(isFirst, this.#waiting + 1 >= accumulate, loss, weight));
    } else if (name === "tw_fit_rest") {
      await this.#judged(() => guard.trained(false, true));
    } else if (name === "tw_fit_updated") {
      await this.#judged(() => guard.updated());
    }
    await tell();
    if (weighs && name === "tw_fit_batch" && !isFirst) {
      this.#kernels.state.setFloat32(4 * STATE_SHARE, 1, true);
    }
  }

  /** Have the guard judge a step, of which the kernels are told next. */
  async #judged(judge: () => void): Promise<void> {
    const { guard } = this.#runner;
    const { looks, weighs } = guard.rules;
    if (!looks && !weighs) {
      return;
    }
    guard.begin();
    judge();
    const fault = looks ? (await guard.read().catch((error: unknown) => this.#fail(error))).fault : 0;
    guard.goOn();
    void this.#kernels.tellFit("tw_fit_elsewhere", 1, fault);
  }

  async runBatches(batches: StagedBatches, n: number): Promise<RanBatches> {
    try {
      this.#check();
      if (!(batches.train instanceof GpuPlan)) {
        this.#leaveGuard();
        return await this.#claimed(() => this.#kernels.runBatches(batches, n));
      }
      this.#isCopyThere ||= this.#runner.guard.rules.saves;
      return await runAhead(this.#runner, batches as StagedBatches<GpuPlan>, n, stagedFeeds(batches, n));
    } catch (error) {
      return { losses: new Float32Array(0), error: this.#located(error) };
    }
  }

  get #waiting(): number {
    return this.#kernels.fit.getUint32(4 * FIT_WAITING, true);
  }

  endFit(): MaybePromise<void> {
    this.#guards = false;
    this.#runner.guard.forget();
    return this.#kernels.endFit();
  }

  release(): void {
    this.#runner.release();
    this.#kernels.release();
  }

  /** @throws DeviceError of a lost device */
  #check(): void {
    this.#gpu.check(this.#steps);
  }

  /** Optimizer steps until now. */
  get #steps(): number {
    return Number(this.#kernels.state.getBigInt64(4 * STATE_STEP, true));
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
