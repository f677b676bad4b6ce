/** What crosses between the page and its worker. Nothing else may. */

import type { WireError } from "./errors.js";
import type { PackageFiles } from "./files.js";
import type {
  CheckpointFolder, EpochRecord, EvalValues, FitSpec, Resumed, StepsTask, TrainAnswer, TrainTask, WireBatch,
  WireEvaluation,
} from "./fit.js";
import type { GivenImage, ResolvedImageOptions } from "./images.js";
import type { LogLevel } from "./log.js";
import type { FileProgress } from "./progress.js";
import type { WireProfile } from "./profile.js";
import type { WireModelReport } from "./report.js";
import type { SessionCalls } from "./session-calls.js";
import type {
  Feed, FileBytes, FileData, FileForm, InputDeclaration, NamedTensor, PlacedBytes, ValueMetadata, WireDtype,
  WireModelMetadata,
} from "./values.js";

export type {
  AdapterFiles, DeadUnits, Feed, FileBytes, FileData, FileForm, InputDeclaration, NamedTensor, PlacedBytes, PropertyKind, PropertyValue,
  ModelMetadata, SessionMemory, TensorType, ValueMetadata, WireDtype, WireModelMetadata, WireTensor,
} from "./values.js";

/** Every call answers with one of these, so that errors keep their class and fields. */
export type Result<T> = { readonly ok: T } | { readonly error: WireError };

/** Whether to start from the snapshot; "auto" where the network carries it faster than Python starts. */
export type SnapshotChoice = boolean | "auto";

/** A plan of a session; the scheduler's recomputes the learning rate. */
export type StepKind = "train" | "eval" | "optimizer" | "scheduler";

/** One output that the caller wants; dtype and dims are given when it wants it in its own tensor. */
export interface Fetch {
  readonly name: string;
  readonly dtype?: WireDtype;
  readonly dims?: readonly number[];
}

/** How a worker sets itself up. */
export interface WorkerSettings {
  readonly files: PackageFiles;
  /** Whether Python starts from the snapshot. */
  readonly snapshot: SnapshotChoice;
  readonly threads: number;
  readonly reproducible: boolean;
  /** Whether the kernels run there; not in the worker that reads images. */
  readonly hasKernels: boolean;
  /** How long a file that is fetched may send nothing, in milliseconds. */
  readonly stallMs: number;
}

/** What runs in a worker. */
export interface WorkerInfo {
  readonly build: string;
  readonly threads: number;
  /** The kernels' memory, where it is shared. */
  readonly memory: WebAssembly.Memory | null;
  /** Address of the word that wakes the kernels' threads; 0: there are none. */
  readonly wakeWord: number;
  /** What was wrong with kernels that were said to lie elsewhere, so that the package's own run; null: nothing. */
  readonly kernelsFault: string | null;
}

export interface PythonInfo {
  /** Version of Pyodide. */
  readonly python: string;
}

/** What a page may ask of the Python session; JSON on the way into Python. */
export interface SessionLimits {
  /** Bytes of all tensors together; default 4 GiB, the size of a WebAssembly memory. */
  readonly arenaBytes?: number;
  /** Nodes after functions and loops are written out; default 250 000. */
  readonly nodes?: number;
  /** Iterations of a Loop whose end is only known as it runs, of a model that is built; default 1024, at most 65 535. */
  readonly loopIterations?: number;
  /** Bytes of one model or checkpoint; default 2 GiB - 1, the most that protobuf and flatbuffers hold. */
  readonly fileBytes?: number;
}

/** A training session as the page knows it. */
export interface SessionInfo {
  readonly handle: number;
  readonly trainingInputNames: readonly string[];
  readonly trainingOutputNames: readonly string[];
  readonly evalInputNames: readonly string[];
  readonly inputs: Readonly<Record<"train" | "eval", readonly InputDeclaration[]>>;
  readonly evalOutputNames: readonly string[];
  readonly hasEval: boolean;
  readonly hasOptimizer: boolean;
  /** Whether averages of the parameters are kept. */
  readonly hasAverages: boolean;
  /** What the loss of the eval model compares with its last input, if that is one tensor. */
  readonly compared: string | null;
  readonly nominal: boolean;
  /** Whether values of feeds decide which plan runs: such feeds travel with their calls. */
  readonly valuesDecide: boolean;
}

/** An inference session as the page knows it. */
export interface InferenceInfo {
  readonly handle: number;
  readonly about: InferenceAbout;
  readonly inputs: readonly InputDeclaration[];
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  /** As of a training session. */
  readonly valuesDecide: boolean;
}

/** What sessions on one checkpoint state share, as the worker made it. */
export interface SharedState {
  readonly metadata: Readonly<Record<string, string>>;
  readonly tensors: ReadonlyMap<string, NamedTensor>;
}

/** What an inference session tells of its model. */
export interface InferenceAbout {
  readonly inputs: readonly ValueMetadata[];
  readonly outputs: readonly ValueMetadata[];
  readonly model: WireModelMetadata;
}

/** A file that a model has tensors in, by the path that the model has of it. */
export interface ExternalFile {
  readonly path: string;
  readonly data: FileData;
}

/** The files of a training session. */
export interface ArtifactFiles {
  readonly trainModel: FileData;
  readonly checkpoint: FileData;
  readonly evalModel: FileData | null;
  readonly optimizerModel: FileData | null;
}

/** A call of a session besides its steps. */
export type SessionCall = {
  readonly [Name in keyof SessionCalls]: { readonly name: Name; readonly args: SessionCalls[Name]["args"] };
}[keyof SessionCalls];

/** Files that `buildArtifacts` makes. */
export interface BuiltArtifacts {
  readonly trainModel: FileData;
  readonly checkpointState: FileData;
  readonly nominalCheckpoint: FileData;
  readonly evalModel: FileData;
  readonly optimizerModel: FileData | null;
}

/** The calls of a checkpoint state apart from sessions: some of a session's. */
export type StateCallNames =
  | "parameterNames"
  | "getParameterTypeAndShape"
  | "getParameter"
  | "updateParameter"
  | "addProperty"
  | "getProperty"
  | "getPropertyKind"
  | "propertyNames"
  | "deleteProperty"
  | "saveCheckpoint";

/** As a session's worker has them. */
export type StateCalls = {
  readonly [Name in StateCallNames]: (...args: SessionCalls[Name]["args"]) => SessionCalls[Name]["result"];
};

/** The workspace that a plan ran in. */
export interface Workspace {
  /** Changes when addresses given out before are void. */
  readonly generation: number;
  /** What the plan uses of it. */
  readonly nbytes: number;
  /** Where the feeds lie, in their order; no bytes for one that the plan does not read. */
  readonly feeds: readonly PlacedBytes[];
}

/** What a plan gave, and the buffers of its feeds, for the page to use again. */
export interface RunAnswer {
  readonly results: readonly NamedTensor[];
  readonly buffers: readonly ArrayBuffer[];
  readonly workspace: Workspace;
}

export type MaybePromise<T> = T | Promise<T>;

/**
 * The calls a worker answers. Those on a session run to their end in the order in which they arrive, whatever
 * one of them has to wait for.
 */
export interface WorkerApi {
  /** Take the lock that shows the page whether this worker lives; false where there are no locks. */
  holdLock(name: string): Promise<Result<boolean>>;
  /**
   * Start the kernels.
   *
   * @param logLevel - of what the worker writes to the console
   */
  start(settings: WorkerSettings, logLevel: LogLevel): Promise<Result<WorkerInfo>>;
  /**
   * Have a worker of this one send messages through a port, for as long as both live.
   *
   * @param script - of pool-worker.js
   */
  /** Whether messages come on the port from now on: false where the script does not run. */
  pulse(port: MessagePort, script: string): Promise<Result<boolean>>;
  /** Settles when nothing is being stored. */
  finish(): Promise<Result<null>>;
  /** Start Python as well; after the call of `start`, not necessarily its end. */
  startPython(): Promise<Result<PythonInfo>>;
  /** With `cache`, from the bundle of an earlier visit if there is one. */
  createTraining(artifacts: ArtifactFiles, optionsJson: string, cache: boolean): Promise<Result<SessionInfo>>;
  createFromModel(
    model: FileData,
    external: readonly ExternalFile[],
    configJson: string,
    optionsJson: string,
    cache: boolean,
  ): Promise<Result<SessionInfo>>;
  createFromBundle(file: FileData, optionsJson: string): Promise<Result<SessionInfo>>;
  /**
   * @param mayStop - `stop` may end it: it runs in slices, between which messages come in
   * @param averaged - averages stand for the parameters
   */
  step(
    handle: number,
    kind: StepKind,
    feeds: readonly Feed[],
    fetches: readonly Fetch[],
    mayStop: boolean,
    averaged: boolean,
  ): MaybePromise<Result<RunAnswer>>;
  /** Train on batches, each with its optimizer step; the losses. */
  trainSteps(handle: number, task: StepsTask, loss: string): MaybePromise<Result<Float32Array>>;
  /**
   * Begin a fit, the only one of its session; what it goes on from, if its checkpoint is there.
   *
   * @param port - where the page says a `FitOrder`, and is told the `FitProgress`
   */
  startFit(handle: number, spec: FitSpec, port: MessagePort): MaybePromise<Result<Resumed | null>>;
  fitTrain(handle: number, task: TrainTask): MaybePromise<Result<TrainAnswer>>;
  /**
   * Evaluate a batch; null: the values, for all batches were there.
   *
   * @param number - of the evaluation, of which several may be under way
   */
  evaluate(handle: number, number: number, spec: WireEvaluation, batch: WireBatch | null, averaged: boolean):
    MaybePromise<Result<EvalValues | null>>;
  /**
   * The outputs of the eval model for a batch.
   *
   * @param whole - rows that the batch is filled up to
   */
  predict(handle: number, outputs: readonly string[], batch: WireBatch, whole: number, averaged: boolean):
    MaybePromise<Result<readonly NamedTensor[]>>;
  /** The values once the last batches have come; null before, and when the fit ends early. */
  fitEvaluate(
    handle: number,
    batches: readonly WireBatch[] | null,
    isLast: boolean,
  ): MaybePromise<Result<EvalValues | null>>;
  /** An epoch is done: have the checkpoint written. */
  fitSave(handle: number, record: EpochRecord): MaybePromise<Result<null>>;
  /** Settles when the checkpoint is written. */
  endFit(handle: number): MaybePromise<Result<null>>;
  /** Keep all that a session goes on from. */
  saveSession(handle: number, where: CheckpointFolder, name: string): MaybePromise<Result<null>>;
  /** What sessions on one checkpoint state share. */
  lendState(handle: number): MaybePromise<Result<SharedState>>;
  /** Have a session go on from that. */
  takeState(handle: number, shared: SharedState): MaybePromise<Result<null>>;
  /** Have a session go on from what was kept. */
  loadSession(handle: number, where: CheckpointFolder, name: string): MaybePromise<Result<null>>;
  profile(handle: number, kind: "train" | "eval", feeds: readonly Feed[], runs: number):
    MaybePromise<Result<WireProfile>>;
  /** End the step of a session that is under way and may be stopped, if there is one. */
  stop(handle: number): Result<null>;
  /** The result is that of the call in `SessionCalls`. */
  call(handle: number, call: SessionCall): MaybePromise<Result<unknown>>;
  release(handle: number): MaybePromise<Result<null>>;
  inspectModel(model: FileData, external: readonly ExternalFile[], configJson: string, dimsJson: string):
    Promise<Result<WireModelReport>>;
  createInference(model: FileData, external: readonly ExternalFile[], optionsJson: string): Promise<Result<InferenceInfo>>;
  runInference(handle: number, feeds: readonly Feed[], fetches: readonly Fetch[], mayStop: boolean):
    MaybePromise<Result<RunAnswer>>;
  releaseInference(handle: number): Result<null>;
  /** Build the training artifacts of a forward model. */
  buildArtifacts(
    model: FileData,
    external: readonly ExternalFile[],
    configJson: string,
    optionsJson: string,
    form: FileForm,
  ): Promise<Result<BuiltArtifacts>>;
  /** A model extended by gradients of `y` for `x`; `loss` is the one of `y` whose gradient is 1, or "". */
  gradientGraph(
    model: FileData,
    external: readonly ExternalFile[],
    y: readonly string[],
    x: readonly string[],
    loss: string,
    optionsJson: string,
  ): Promise<Result<FileBytes>>;
  /** Read a checkpoint; the handle is for `callState`. */
  openState(file: FileData): Promise<Result<number>>;
  callState(handle: number, call: SessionCall): Result<unknown>;
  releaseState(handle: number): Result<null>;
  /** The numbers of an image; a bitmap is closed. */
  readImage(given: GivenImage, options: ResolvedImageOptions): Promise<Result<{ readonly data: Float32Array<ArrayBuffer> }>>;
  /** Bytes allocated in the kernels' memory, and its size. */
  memory(): Result<{ readonly inUse: number; readonly total: number }>;
}

export type Method = keyof WorkerApi;

/** A call before it is sent. */
export interface Call<M extends Method = Method> {
  readonly method: M;
  readonly args: Parameters<WorkerApi[M]>;
  /** What goes over instead of being copied. */
  readonly buffers: readonly (ArrayBuffer | MessagePort | ImageBitmap)[];
}

/** What a call gives. */
export type Answer<M extends Method> = Extract<Awaited<ReturnType<WorkerApi[M]>>, { readonly ok: unknown }>["ok"];

/** A message to the worker is a list of these, to be run in their order. */
export interface Request {
  /** Of the reply; 0: nobody waits for one. */
  readonly id: number;
  readonly method: Method;
  readonly args: readonly unknown[];
}

/** An answer of the worker. */
export interface Reply {
  readonly id: number;
  readonly result: Result<unknown>;
}

/** What the worker says unasked: how far a file has come. */
export interface Note {
  readonly progress: FileProgress;
}

/** What the worker says once, when it takes calls: the end of its script, by which it is known as whole. */
export interface Listening {
  readonly listens: "the worker of trainweb";
}
