/**
 * The host of a session: its segments, the plans that run on them, and the only way to both. The kernels' is `wasm/`.
 * Results may be on their way, as on a GPU.
 */

import type { SessionCalls } from "../engine/layout.js";
import type { log } from "../wire/log.js";
import type { sessionError } from "../wire/messages.js";
import type { Feed, MaybePromise, PlacedTensor, SessionDevice, Workspace } from "../wire/protocol.js";
import type { Held } from "../wire/session-calls.js";
import type { BundlePlan, SegmentStart, TensorPlace } from "./bundle/bundle.js";
import type { Addresses, FilledSegments } from "./python-models.js";
import type { StepKind } from "./step-kind.js";

/** A plan that a host has loaded. Hosts add what they know of it. */
export interface LoadedPlan {
  readonly plan: BundlePlan;
}

/** The plans of a fit's steps. */
export interface StepPlans<Plan = LoadedPlan> {
  /** The train step that overwrites gradients, and the one that adds to them. */
  readonly train: Plan;
  readonly adding: Plan;
  /** The optimizer step. */
  readonly update: Plan;
  /** Runs before it, if gradients are clipped. */
  readonly clip: Plan | null;
}

/** Batches of one size that a fit runs at once. */
export interface StagedBatches<Plan = LoadedPlan> extends StepPlans<Plan> {
  /** The feed of `clip`. */
  readonly limits: Uint8Array | null;
  /** Outputs of a train step: the loss, and its divisor (null: the rows of a batch). */
  readonly loss: string;
  /** Numbers of the loss: itself, and its terms if it gives some. */
  readonly numbers: number;
  readonly count: string | null;
  /** Rows of a batch. */
  readonly rows: number;
  /** Learning rates of the optimizer steps, the next one first; null: the rate stays. */
  readonly rates: Float32Array | null;
  /** Write an input of all batches. */
  write(input: string, target: Uint8Array): void;
}

/** Losses up to a batch that fails, and its error or null. */
export interface RanBatches {
  readonly losses: Float32Array;
  readonly error: unknown;
}

export interface HostOptions {
  /** Bytes that the workspace may have. */
  readonly arenaLimit: number;
  /** Plans of steps that stay loaded. */
  readonly maxPlans: number;
  /** Called when the verifier refuses a plan. */
  onRefused(): void;
}

/** First byte and end of a run of parameters in their segment. */
export interface ParameterRun {
  readonly start: number;
  readonly end: number;
}

/** The contents that a host starts from. */
export interface HostStart {
  readonly segments: readonly SegmentStart[];
  /** Segments that get no memory before `hold`. */
  readonly elsewhere?: readonly number[];
  /** Plans that are known already. */
  readonly reserved: readonly BundlePlan[];
  /** Places of the trained parameters. */
  readonly trained: readonly ParameterRun[];
}

/** Opens the host of a session; throws EngineError when memory has no room. */
export type HostOpener = (start: HostStart, options: HostOptions) => StepHost;

/** Fills a target with bytes of a file that the session was made of. */
export type ReadFile = (file: number, start: number, target: Uint8Array) => void;

/** Per instruction of a plan, its disassembly and the node it came from. */
export interface Listing {
  readonly text: readonly string[];
  readonly nodes: readonly string[];
}

/** Room for the times of a plan's instructions. */
export interface InstructionTimes {
  /** Milliseconds of each instruction of a plan while it runs in an action, or of a submit for each. */
  measure(loaded: LoadedPlan, action: () => Promise<void>): Promise<{ readonly sums: Float64Array; readonly ofSubmits: boolean }>;
  release(): void;
}

/** The kernels' functions that count the steps of a fit (`wasm_kernels/session/fit.c`). */
export type FitCall = Exclude<Extract<keyof SessionCalls, `tw_fit_${string}`>, "tw_fit_at" | "tw_fit_run" | "tw_fit_end">;

/** The sides on which an action may use segments. Steps run on the device. */
export type Side = "host" | "device";

/** Bytes of segments are read and written in place on the side "host" only, once they were claimed for it. */
export interface StepHost extends FilledSegments {
  /** Wait until the segments of an action are up to date on the side where it reads and writes them. */
  claim(segments: Held, side: Side): MaybePromise<void>;
  /** A segment in place. Valid until the next allocation, as are `state` and `fit`. */
  view(segment: number): Uint8Array;
  /** Have memory for a segment that lies elsewhere. */
  hold(segment: number): void;
  /** Fill segments with what the session starts from: no byte twice, and each range before the next one. */
  fill(action: () => Promise<void>): Promise<void>;
  /** The words of the state. Calls claim them, steps do not. */
  readonly state: DataView;
  /** Bytes of the segments. */
  readonly sizes: readonly number[];
  /** Bytes of kernel memory that they have. */
  readonly kernelBytes: readonly number[];
  /** Sum of the squares of so many float32 values of a segment. */
  squares(segment: number, offset: number, count: number): number;
  /** Fill a part of a segment that the host alone has with zeros. */
  clear(segment: number, offset: number, nbytes: number): MaybePromise<void>;

  /** Where steps run; another object when that changes. */
  readonly device: SessionDevice;
  /** Bytes on the GPU, by segment. */
  readonly gpuBytes: Readonly<Record<string, number>>;
  /** The back end whose plans run such steps. */
  targetOf(kind: StepKind): string;
  /** True if such steps run elsewhere from now on, since the device cannot run one: this is the error. */
  leavesGpu(error: unknown, kind: StepKind): boolean;
  /** Changes when former places are void. */
  readonly generation: number;
  readonly plans: readonly BundlePlan[];
  /** Bytes of plans and their constants. */
  readonly planBytes: number;
  find(key: string): LoadedPlan | undefined;
  /** Give back plans of steps that were not used for long, until there is one less than may be kept. */
  evict(): void;
  /** @throws LimitError when the plan needs more workspace than is allowed; EngineError when there is no room */
  load(key: string, plan: BundlePlan, read: ReadFile): MaybePromise<LoadedPlan>;
  listing(loaded: LoadedPlan): Listing;

  /** The bytes of a feed, wherever it lies. */
  bytesOf(feed: Feed): Uint8Array;
  /** Write the inputs of a plan. */
  write(loaded: LoadedPlan, feeds: readonly Feed[]): MaybePromise<void>;
  /**
   * Run a plan.
   *
   * @param stop - ends it between two of its instructions, everything being as before; null: it runs through
   * @throws SessionError when it was ended, and the error of a fault in feeds or plan
   */
  run(loaded: LoadedPlan, stop: AbortSignal | null): MaybePromise<void>;
  /** Copies of outputs of a plan. */
  read(loaded: LoadedPlan, places: readonly TensorPlace[]): MaybePromise<readonly PlacedTensor[]>;
  /** The places of feeds: the same object while they are the same. */
  workspace(loaded: LoadedPlan, feeds: readonly Feed[]): Workspace;
  /** Have room for the times of so many instructions. */
  times(count: number): InstructionTimes;

  /** Copy all that outlasts a run, or the segments whose bits are set. */
  save(copy: number, segments?: number): MaybePromise<void>;
  /**
   * Have everything as it was when it was copied: before the step that is to be undone, and no earlier. Values that
   * plans keep stay true: a step prepared them from the parameters that it started with.
   */
  putBack(copy: number): MaybePromise<void>;
  /** The same for a copy from before other steps. */
  goBack(copy: number): MaybePromise<void>;
  /** Give back the memory of a copy. */
  forget(copy: number): MaybePromise<void>;
  /** Let trained parameters and their averages change places on one side. */
  exchangeAverages(side: Side): MaybePromise<void>;
  /** True if a number is not finite: in segments, in their copy before a step, or in the outputs of a plan. */
  isAnyBad(segments: readonly number[], copy: number, loaded?: LoadedPlan): MaybePromise<boolean>;
  /** Addresses for Python: of the segments with the constants of a plan, and of a copy; 0: there is none. */
  addresses(copy: number, loaded?: LoadedPlan): Addresses;

  /** The position of the fit: `layout fit` of kernels.def. */
  readonly fit: DataView;
  /** Target time of `runBatches`. */
  readonly sliceMs: number;
  /** Call a function of `fit.c`; EngineError when it fails. */
  tellFit<Name extends FitCall>(name: Name, ...args: SessionCalls[Name]): MaybePromise<void>;
  /**
   * Run so many batches of a fit, with the optimizer steps that are due, up to one that fails. A single batch is written
   * in place; `train` and `adding` are then equal.
   */
  runBatches(batches: StagedBatches, n: number): MaybePromise<RanBatches>;
  /** True if it can run batches of the fit at once. */
  readonly runsSeveral: boolean;
  endFit(): MaybePromise<void>;

  release(): void;
}

/** The worker's functions that the script of the GPU uses. */
export interface WorkerTools {
  readonly sessionError: typeof sessionError;
  readonly log: typeof log;
  /** Tell the page that so many shaders of a step are compiled. */
  tellShaders(host: StepHost, compiled: number, total: number): void;
}

/** The script that runs plans on a GPU (`webgpu/`). */
export interface GpuScript {
  /**
   * @param isAuto - the session trains on the CPU where the GPU cannot, or is none
   * @throws DeviceError when there is no GPU
   */
  openGpu(gpu: GPU | undefined, tools: WorkerTools, isAuto: boolean): Promise<SessionGpu>;
}

export interface SessionGpu {
  /** @throws DeviceError for a segment that is too large */
  check(segments: readonly Pick<SegmentStart, "bytes">[]): void;
  /** Segments that lie on the GPU. */
  readonly segments: readonly number[];
  /** A host that trains on the GPU, and leaves the rest to the kernels' host. */
  over(kernels: StepHost): StepHost;
}

/** Do something with a value that may be on its way. */
export function withValue<T, R>(value: MaybePromise<T>, action: (value: T) => MaybePromise<R>): MaybePromise<R> {
  return value instanceof Promise ? value.then(action) : action(value);
}

/** Do something, or something else where it fails. */
export function unless<T>(action: () => MaybePromise<T>, otherwise: (error: unknown) => MaybePromise<T>): MaybePromise<T> {
  try {
    const result = action();
    return result instanceof Promise ? result.catch(otherwise) : result;
  } catch (error) {
    return otherwise(error);
  }
}
