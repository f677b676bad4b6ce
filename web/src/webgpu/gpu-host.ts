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
import { TRAIN, type StepKind } from "../worker/step-kind.js";
import { runAhead } from "./ahead.js";
import { checkSize, log, sessionError, sharedDevice, tellShaders, useTools, type GpuDevice } from "./device.js";
import { Guard } from "./guard.js";
import { DISPATCH_WORDS, LASTING, LOOKS } from "./plans.js";
import { measured } from "./profile.js";
import { GpuPlan, GpuRunner } from "./runner.js";

/** Kinds of steps by the device where they run, until the GPU cannot run one. */
const ON_GPU: readonly string[] = ["train", "optimizer", "clip", "eval", "predict"];
const ON_WASM: readonly string[] = ["scheduler", "generate"];
/** Values of `onNaN` that undo batches. */
const UNDOES: readonly number[] = [ON_NAN_STOP, ON_NAN_SKIP, ON_NAN_RESTORE];
const EVERYTHING: Held = { reads: LASTING, writes: LASTING };
/** Target time of a call that runs batches. */
const SLICE_MS = 100;
/** Errors of plans that a device cannot run, though another may. */
const CANNOT: readonly string[] = ["UnsupportedError", "DeviceError"];

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
    segments: LASTING,
    check: (segments) => segments.forEach(({ bytes }, segment) => checkSize(opened, bytes, SEGMENT_NAMES[segment] as string)),
    over: (kernels) => new GpuHost(opened, kernels, isAuto).whole,
  };
};

/** Members of a host that change segments. */
const CHANGES: readonly PropertyKey[] = ["save", "putBack", "goBack", "exchangeAverages", "isAnyBad"];
/** Members whose first argument is a plan: on the GPU, or of the kernels. */
const OF_PLANS: readonly PropertyKey[] = ["listing", "write", "read", "workspace"];

/** A host for plans on the GPU. All else is the kernels', as it is or once segments are claimed. */
class GpuHost implements Partial<StepHost> {
  readonly whole: StepHost;
  readonly #kernels: StepHost;
  readonly #runner: GpuRunner;
  readonly #guard: Guard;
  readonly #isAuto: boolean;
  device: SessionDevice;
  /** True if the guard looks at the batches of the fit. Else the kernels do, and segments are claimed for them. */
  #isGuarded = false;
  /** Calls of the fit that copy all that it may go back to. */
  #copies: readonly FitCall[] = [];
  /** True if the guard made the last such copy. */
  #isCopyThere = false;
  /** True while the start of segments goes to the GPU. */
  #isFilling = false;

  constructor(gpu: GpuDevice, kernels: StepHost, isAuto: boolean) {
    this.#kernels = kernels;
    this.#runner = new GpuRunner(gpu, kernels);
    this.#guard = new Guard(this.#runner);
    this.#isAuto = isAuto;
    this.whole = new Proxy(kernels, { get: (_, name) => this.#member(name) });
    const planOf = (device: DevicePlan["device"], why: string) => (step: string): DevicePlan =>
      ({ step, device, dispatches: null, pipelines: null, why });
    const plans = [...ON_GPU.map(planOf("webgpu", "")), ...ON_WASM.map(planOf("wasm", "such steps run on the CPU only"))];
    this.device = { kind: "webgpu", adapter: gpu.adapter, why: isAuto ? "a GPU is here" : "the option device", plans };
  }

  #member(name: PropertyKey): unknown {
    const host: object = name in this ? this : this.#kernels;
    const member: unknown = Reflect.get(host, name);
    if (typeof member !== "function") {
      return member;
    }
    return (...args: readonly unknown[]) => {
      const owner = OF_PLANS.includes(name) && !(args[0] instanceof GpuPlan) ? this.#kernels : host;
      const call = (): unknown => Reflect.apply(Reflect.get(owner, name) as () => unknown, owner, args);
      const result = CHANGES.includes(name) ? this.#claimed(call) : call();
      return result instanceof Promise ? result.catch((error: unknown) => Promise.reject(this.#located(error))) : result;
    };
  }

  targetOf({ base }: StepKind): string {
    return this.device.plans.find(({ step }) => step === base)?.device ?? "wasm";
  }

  leavesGpu(error: unknown, kind: StepKind): boolean {
    const { name, message } = error as Error;
    const looks = LOOKS.includes(kind.base);
    const isHere = this.targetOf(kind) === "webgpu" && !this.#runner.gpu.isBroken;
    const leaves = (looks || this.#isAuto) && isHere && CANNOT.includes(name);
    if (leaves) {
      log("info", `the session ${looks ? `runs ${kind.base} steps` : "trains"} on the CPU: ${message}`);
      const left = { device: "wasm", dispatches: null, pipelines: null, why: message } as const;
      const plans = this.device.plans.map((plan): DevicePlan => (looks && plan.step !== kind.base ? plan : { ...plan, ...left }));
      this.device = { ...this.device, ...(!looks && { kind: "wasm", why: message }), plans };
    }
    return leaves;
  }

  claim(segments: Held, side: Side): MaybePromise<void> {
    this.#check();
    return side === "device" ? undefined : this.#runner.segments.claim(segments);
  }

  async fill(action: () => Promise<void>): Promise<void> {
    const { segments } = this.#runner;
    try {
      await segments.reserve(0);
    } catch (error) {
      if (!this.leavesGpu(error, TRAIN)) {
        throw error;
      }
      segments.leave();
    }
    this.#isFilling = this.device.kind === "webgpu";
    await action();
    this.#isFilling = false;
    segments.sendRoom();
  }

  range(segment: number, offset: number, nbytes: number): Uint8Array {
    const isThere = this.#isFilling && LASTING.includes(segment);
    return isThere ? this.#runner.segments.room(segment, offset, nbytes) : this.#kernels.range(segment, offset, nbytes);
  }

  /** Have all segments here, to change them. */
  #claimed<T>(action: () => MaybePromise<T>): MaybePromise<T> {
    return withValue(this.claim(EVERYTHING, "host"), action);
  }

  get gpuBytes(): Readonly<Record<string, number>> {
    return this.#runner.segments.bytes;
  }

  find(key: string): LoadedPlan | undefined {
    const loaded = this.#kernels.find(key);
    return loaded && (this.#runner.plans.get(loaded) ?? loaded);
  }

  evict(): void {
    this.#kernels.evict();
    const here = new Set(this.#kernels.plans);
    const gone = [...this.#runner.plans.values()].filter(({ head }) => !here.has(head.plan));
    gone.forEach((loaded) => this.#runner.unload(loaded));
  }

  async load(key: string, plan: BundlePlan, read: ReadFile): Promise<LoadedPlan> {
    if (plan.body === null) {
      return this.#kernels.load(key, plan, read);
    }
    this.#check();
    const tell = (compiled: number, total: number): void => tellShaders(this.whole, compiled, total);
    const loaded = await this.#runner.load(key, plan as GpuPlan["plan"], read, tell);
    const counts = { dispatches: loaded.pipelines.length, pipelines: new Set(loaded.pipelines).size };
    const plans = this.device.plans.map((one) => (one.step === plan.kind.base ? { ...one, ...counts } : one));
    this.device = { ...this.device, plans };
    return loaded;
  }

  listing({ plan: { body, text, nodes }, dispatches: { words } }: GpuPlan): Listing {
    const shaderAndGrid = (k: number): string => words.subarray(DISPATCH_WORDS * k, DISPATCH_WORDS * k + 4).join(", ");
    return { text: text?.slice(nodes.length) ?? body.nodes.map((_, k) => shaderAndGrid(k)), nodes: body.nodes };
  }

  write(loaded: GpuPlan, feeds: readonly Feed[]): void {
    this.#check();
    this.#runner.feed(loaded, feeds);
  }

  run(loaded: LoadedPlan, stop: AbortSignal | null): MaybePromise<void> {
    if (!(loaded instanceof GpuPlan)) {
      const { base } = loaded.plan.kind;
      // The scheduler's changes the state only.
      const held = LOOKS.includes(base) ? { reads: [PARAMETERS], writes: [] } : base === "scheduler" ? { reads: [], writes: [] } : EVERYTHING;
      return withValue(this.claim(held, "host"), () => this.#kernels.run(loaded, stop));
    }
    this.#check();
    const encode = (): void => {
      this.#runner.runHead(loaded);
      this.#runner.encode(loaded, LOOKS.includes(loaded.plan.kind.base));
    };
    // Results are read with the commands of a step. Commands of the first step are submitted, for their errors.
    return loaded.hasRun ? encode() : this.#runner.submit([loaded], encode);
  }

  read(loaded: GpuPlan, places: readonly TensorPlace[]): MaybePromise<readonly PlacedTensor[]> {
    if (places.length === 0) {
      this.#runner.commands.submit();
      return [];
    }
    return this.#runner.read(loaded, places);
  }

  /** Feeds of steps on the GPU travel: their places are beyond all memory. */
  workspace({ plan }: GpuPlan, feeds: readonly Feed[]): Workspace {
    const { generation } = this.#kernels;
    return { generation, nbytes: Math.max(plan.arenaBytes, 1), feeds: feeds.map(() => ({ ptr: Infinity, nbytes: 0 })) };
  }

  times(count: number): InstructionTimes {
    const ofKernels = this.#kernels.times(count);
    const measure: InstructionTimes["measure"] = (loaded, action) =>
      loaded instanceof GpuPlan
        ? measured(this.#runner, loaded, action).catch((error: unknown) => Promise.reject(this.#located(error)))
        : ofKernels.measure(loaded, action);
    return { measure, release: () => ofKernels.release() };
  }

  addresses(copy: number, loaded?: LoadedPlan): Addresses {
    return this.#kernels.addresses(copy, loaded instanceof GpuPlan ? loaded.head : loaded);
  }

  get sliceMs(): number {
    return this.device.kind === "webgpu" ? SLICE_MS : this.#kernels.sliceMs;
  }

  get runsSeveral(): boolean {
    return this.device.kind === "webgpu" ? this.#isGuarded : !this.#isGuarded || this.#waiting === 0;
  }

  tellFit<Name extends FitCall>(name: Name, ...args: SessionCalls[Name]): MaybePromise<void> {
    if (name === "tw_fit_start") {
      return this.#startFit(args as SessionCalls["tw_fit_start"]);
    }
    if (name === "tw_fit_batch") {
      this.#leaveGuard();
    }
    if (!this.#isGuarded && this.#copies.includes(name)) {
      this.#isCopyThere = false;
    }
    const tell = (): MaybePromise<void> => this.#kernels.tellFit(name, ...args);
    if (name === "tw_fit_undo" && this.#isCopyThere) {
      return withValue(tell(), () => this.#guard.putBack());
    }
    return this.#isGuarded ? this.#tellGuarded(name, args, tell) : this.#claimed(tell);
  }

  async #startFit([accumulate, action, sums, mu]: SessionCalls["tw_fit_start"]): Promise<void> {
    const guard = this.#guard;
    const looks = UNDOES.includes(action);
    const saves = looks && action !== ON_NAN_RESTORE;
    guard.rules = { accumulate, stops: action !== ON_NAN_IGNORE, looks, saves, weighs: accumulate > 1 && (sums & SUMS_GRADIENTS) === 0 };
    this.#isCopyThere = false;
    this.#copies = saves ? ["tw_fit_batch", "tw_fit_rest"] : looks ? ["tw_fit_keep", "tw_fit_epoch"] : [];
    // The kernels pull parameters, in float64.
    this.#isGuarded = mu === 0 && this.device.kind === "webgpu";
    if (looks || mu !== 0) {
      await this.claim({ reads: LASTING, writes: [] }, "host");
    }
    await this.#kernels.tellFit("tw_fit_start", accumulate, action, sums, mu);
    if (this.#isGuarded) {
      await guard.open();
      void this.#kernels.tellFit("tw_fit_elsewhere", 1, 0);
    }
  }

  /** Leave segments to the kernels if steps run there now, and no gradients wait that the guard has weighted. */
  #leaveGuard(): void {
    if (this.#isGuarded && this.device.kind === "wasm" && this.#waiting === 0) {
      this.#isGuarded = false;
      void this.#kernels.tellFit("tw_fit_elsewhere", 0, 0);
    }
  }

  /** Tell the kernels, while the guard copies, looks at and scales segments. */
  async #tellGuarded(name: FitCall, [loss, weight]: readonly number[], tell: () => MaybePromise<void>): Promise<void> {
    const guard = this.#guard;
    const { accumulate, looks, weighs } = guard.rules;
    const waiting = this.#waiting;
    if (this.#copies.includes(name)) {
      guard.save();
      this.#isCopyThere = true;
    }
    const judges: Partial<Record<FitCall, () => void>> = {
      tw_fit_trained: () => guard.trained(waiting === 0, waiting + 1 >= accumulate, loss, weight),
      tw_fit_rest: () => guard.trained(false, true),
      tw_fit_updated: () => guard.updated(),
    };
    const judge = judges[name];
    if (judge !== undefined && (looks || weighs)) {
      guard.begin();
      judge();
      const fault = looks ? (await guard.read()).fault : 0;
      guard.goOn();
      void this.#kernels.tellFit("tw_fit_elsewhere", 1, fault);
    }
    await tell();
    if (weighs && name === "tw_fit_batch" && waiting > 0) {
      this.#kernels.state.setFloat32(4 * STATE_SHARE, 1, true);
    }
  }

  async runBatches(batches: StagedBatches, n: number): Promise<RanBatches> {
    try {
      this.#check();
      if (!(batches.train instanceof GpuPlan)) {
        this.#leaveGuard();
        return await this.#claimed(() => this.#kernels.runBatches(batches, n));
      }
      this.#isCopyThere ||= this.#guard.rules.saves;
      return await runAhead(this.#guard, batches as StagedBatches<GpuPlan>, n, stagedFeeds(batches, n));
    } catch (error) {
      return { losses: new Float32Array(0), error: this.#located(error) };
    }
  }

  get #waiting(): number {
    return this.#kernels.fit.getUint32(4 * FIT_WAITING, true);
  }

  endFit(): MaybePromise<void> {
    this.#isGuarded = false;
    this.#guard.forget();
    return this.#kernels.endFit();
  }

  release(): void {
    this.#runner.release();
    this.#kernels.release();
  }

  /** @throws DeviceError of a lost device */
  #check(): void {
    this.#runner.gpu.check(Number(this.#kernels.state.getBigInt64(4 * STATE_STEP, true)));
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
