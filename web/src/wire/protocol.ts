/** All messages between the page and its worker. */

import type { WireError } from "./errors.js";
import type { PackageFiles } from "./files.js";
import type {
  CheckpointFolder, Evaluated, FitSpec, FitStart, StepsAnswer, StepsTask, WireBatch,
  WireEvaluation,
} from "./fit.js";
import type { PortableImage, ResolvedImageOptions } from "./images.js";
import type { LogLevel } from "./log.js";
import type { FileHashes, SourceData } from "./pieces.js";
import type { FileProgress } from "./progress.js";
import type { WireProfile } from "./profile.js";
import type { SessionCalls, StateCallNames } from "./session-calls.js";
import type {
  Feed, FileData, FileForm, InputDeclaration, NamedTensor, PlacedBytes, SessionDevice, ValueMetadata, WireDtype, WireModelMetadata,
} from "./values.js";

export type {
  AdapterFiles, DeadUnits, Feed, FileBytes, FileData, FileForm, FileOf, InputDeclaration, NamedTensor, PlacedBytes, PropertyKind,
  PropertyValue,
  DevicePlan, GpuAdapter, ModelMetadata, SessionDevice, SessionLimits, SessionMemory, TensorType, ValueMetadata, WireDtype, WireModelMetadata, WireTensor,
} from "./values.js";

/** Every call answers with one of these, so that errors keep their class and fields. */
export type Result<T> = { readonly ok: T } | { readonly error: WireError };

/** Start from the snapshot or plainly; "auto" uses the snapshot if the network carries it faster than Python starts. */
export type SnapshotChoice = boolean | "auto";

/** A plan of a session; the scheduler's recomputes the learning rate. */
export type StepName = "train" | "eval" | "optimizer" | "scheduler";

/** One output that the caller wants; dtype and dims are given when it wants it in its own tensor. */
export interface Fetch {
  readonly name: string;
  readonly dtype?: WireDtype;
  readonly dims?: readonly number[];
}

/** Settings of a new worker. */
export interface WorkerSettings {
  readonly files: PackageFiles;
  /** Start Python from the snapshot or plainly. */
  readonly snapshot: SnapshotChoice;
  readonly threads: number;
  readonly reproducible: boolean;
  /** True if the kernels run there; false in the worker that reads images. */
  readonly hasKernels: boolean;
  /** Limit of a silence during a download, in milliseconds. */
  readonly stallMs: number;
  /** The module that has WebGPU, in Node. */
  readonly gpu: string | null;
}

/** The kernels that run in a worker. */
export interface WorkerInfo {
  readonly build: string;
  readonly threads: number;
  /** The kernels' memory, where it is shared. */
  readonly memory: WebAssembly.Memory | null;
  /** Address of the word that wakes the kernels' threads; 0: there are none. */
  readonly wakeWord: number;
  /** Words of the lane (lane.ts); null without shared memory. */
  readonly lane: Int32Array | null;
  /** The error of kernels from another place, after which the package's own kernels run; null: no error. */
  readonly kernelsFault: string | null;
}

/** A training session as the page knows it. */
export interface SessionInfo {
  readonly handle: number;
  /** The device of its steps. */
  readonly device: SessionDevice;
  readonly trainingInputNames: readonly string[];
  readonly trainingOutputNames: readonly string[];
  readonly evalInputNames: readonly string[];
  readonly inputs: Readonly<Record<"train" | "eval", readonly InputDeclaration[]>>;
  readonly evalOutputNames: readonly string[];
  readonly hasEval: boolean;
  readonly hasOptimizer: boolean;
  /** The optimizer; "" without one. */
  readonly optimizer: string;
  /** Elements of all parameters, and of the trainable ones. */
  readonly sizes: readonly [size: number, trainableSize: number];
  /** True if the session keeps averages of the parameters. */
  readonly hasAverages: boolean;
  /** The tensor that the loss compares with the last input, where the eval model does not note its own outputs. */
  readonly compared: string | null;
  /** The outputs of the base model, which `predict` gives. */
  readonly ownOutputs: readonly string[];
  /** Predictions and targets that the loss compares, where the eval model notes the outputs of its base model. */
  readonly pairs: readonly (readonly [predictions: string, targets: string])[];
  /** Predictions and targets of metrics where `pairs` does not decide; null: they must be named. */
  readonly defaultPair: readonly [predictions: string | null, targets: string | null];
  /** Mean cross entropies without weights of rows: the loss by "", its terms by their outputs. */
  readonly entropies: readonly (readonly [output: string, loss: string])[];
  /** The inputs with weights of rows or labels, or gradients of outputs. */
  readonly sampleWeights: readonly string[];
  /** The labels that have weights; "": all. */
  readonly weighedLabels: readonly string[];
  /** Terms whose gradients of several batches do not become those of a large batch; null: no gradients do. */
  readonly unevenTerms: readonly string[] | null;
  /** Outputs of the eval model whose weighted sum is the loss, if it has several terms. */
  readonly terms: readonly string[];
  /** Parameters that a train step changes though they are not trained: running statistics and other buffers. */
  readonly moving: readonly string[];
  /** True if values of feeds select the plan: such feeds travel with their calls. */
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

/** The state that sessions on one checkpoint state share, as the worker made it. */
export interface SharedState {
  readonly metadata: Readonly<Record<string, string>>;
  readonly tensors: ReadonlyMap<string, NamedTensor>;
}

/** The worker's description of an inference session's model. */
export interface InferenceAbout {
  readonly inputs: readonly ValueMetadata[];
  readonly outputs: readonly ValueMetadata[];
  readonly model: WireModelMetadata;
}

/** Arguments of a function of Python's bridge, files among them. */
export type BridgeArguments = readonly (SourceData | string | null)[];

/** The call that opens the models of a session in Python: a function of the bridge, and its arguments. */
export interface Origin {
  readonly call: "create" | "create_from_model" | "open_models";
  readonly args: BridgeArguments;
}

/** Hashes of the files of a session in their order; null: nobody knows them yet. */
export type KnownHashes = readonly (FileHashes | null)[];

/** A call of a session besides its steps. */
export type SessionCall = {
  readonly [Name in keyof SessionCalls]: { readonly name: Name; readonly args: SessionCalls[Name]["args"] };
}[keyof SessionCalls];

/** As a session's worker has them. */
export type StateCalls = {
  readonly [Name in StateCallNames]: (...args: SessionCalls[Name]["args"]) => SessionCalls[Name]["result"];
};

/** The workspace that a plan ran in. */
export interface Workspace {
  /** Changes when addresses given out before are void. */
  readonly generation: number;
  /** The number of bytes that the plan uses. */
  readonly nbytes: number;
  /** Places of the feeds, in their order; no bytes for a feed that the plan does not read. */
  readonly feeds: readonly PlacedBytes[];
}

/** Settings of the choice of a token, as `Sampling` of trainweb/generation/generate.py. */
export interface SamplingSettings {
  readonly temperature: number;
  readonly topK: number | null;
  readonly topP: number | null;
  readonly seed: number;
}

/** A text whose next token is asked for. */
export interface TokenTask {
  /** The prompt and the tokens that were chosen before. */
  readonly tokens: readonly number[];
  /** Number of tokens that were chosen before. */
  readonly place: number;
  readonly maxTokens: number;
  /** The logits. */
  readonly output: string;
  readonly sampling: SamplingSettings;
  /** False leaves out what adapters add. */
  readonly adapter: boolean;
}

/** A result, and where it lies in the kernels' memory. */
export interface PlacedTensor extends NamedTensor, PlacedBytes {}

/** Results of a plan, and the buffers of its feeds, for the page to use again. */
export interface RunAnswer {
  readonly results: readonly PlacedTensor[];
  readonly buffers: readonly ArrayBuffer[];
  readonly workspace: Workspace;
}

export type MaybePromise<T> = T | Promise<T>;

/**
 * The calls that a worker answers. Calls on a session run to their end in the order in which they arrive, also if one
 * of them has to wait.
 */
export interface WorkerApi {
  /** Take the lock that shows the page if this worker lives; false where there are no locks. */
  holdLock(name: string): Promise<boolean>;
  /** Start the kernels. @param logLevel - of the worker's messages on the console */
  start(settings: WorkerSettings, logLevel: LogLevel): Promise<WorkerInfo>;
  /**
   * Have a worker of this one send messages through a port, for as long as both live.
   *
   * @param script - of pool-worker.js
   */
  /** True once messages arrive on the port; false if the script does not run. */
  pulse(port: MessagePort, script: string): Promise<boolean>;
  /** Settles when nothing is being stored. */
  finish(): Promise<null>;
  /** Start Python as well, after the call of `start`, not necessarily its end; the version of Pyodide. */
  startPython(): Promise<string>;
  /** Begin to open the GPU, if a session with these options takes it: one that is made later waits for less. */
  openDevice(optionsJson: string): null;
  /** From the bundle of an earlier visit if there is one. `cached` is null if no bundle is kept. */
  /** @returns null: a file of which nobody has checked the hashes is damaged */
  createSession(origin: Origin, optionsJson: string, cached: KnownHashes | null): Promise<SessionInfo | null>;
  createFromBundle(file: FileData, optionsJson: string): Promise<SessionInfo>;
  /**
   * @param mayStop - `stop` may end it: it runs in slices, between which messages come in
   * @param averaged - averages stand for the parameters
   */
  step(
    handle: number,
    kind: StepName | "inference",
    feeds: readonly Feed[],
    fetches: readonly Fetch[],
    mayStop: boolean,
    averaged: boolean,
  ): MaybePromise<RunAnswer>;
  /** Train on batches, each with its optimizer step. */
  trainSteps(handle: number, task: StepsTask, loss: string): MaybePromise<StepsAnswer>;
  /**
   * Begin a fit, the only one of its session, or go on from its checkpoint.
   *
   * @param port - the page sends each `FitOrder` and `FitAnswer` on it, and receives `FitProgress`, `FitLosses` and `FitAsk`
   */
  startFit(handle: number, spec: FitSpec, port: MessagePort): MaybePromise<FitStart>;
  /** Run the fit. Other calls of the session run between its parts. */
  runFit(handle: number): Promise<null>;
  /**
   * Evaluate a batch; null: the values, for all batches were there.
   *
   * @param number - of the evaluation, of which several may be under way
   */
  evaluate(handle: number, number: number, spec: WireEvaluation, batch: WireBatch | null, averaged: boolean):
    MaybePromise<Evaluated | null>;
  /** The inputs of the eval model that these outputs do not depend on. */
  unread(handle: number, outputs: readonly string[]): MaybePromise<readonly string[]>;
  /** The outputs of the eval model for a batch. @param size - rows that the batch is filled up to */
  predict(handle: number, outputs: readonly string[], batch: WireBatch, size: number, averaged: boolean):
    MaybePromise<readonly NamedTensor[]>;
  /** The next token of a text. */
  nextToken(handle: number, task: TokenTask): MaybePromise<number>;
  /** Keep all that a session goes on from. */
  saveSession(handle: number, where: CheckpointFolder, name: string): MaybePromise<null>;
  /** Copy the state that sessions on one checkpoint state share. */
  lendState(handle: number): MaybePromise<SharedState>;
  /** Make a session continue from such a state. */
  takeState(handle: number, shared: SharedState): MaybePromise<null>;
  /** Make a session continue from a stored checkpoint. */
  loadSession(handle: number, where: CheckpointFolder, name: string): MaybePromise<null>;
  profile(handle: number, kind: "train" | "eval", feeds: readonly Feed[], runs: number): MaybePromise<WireProfile>;
  /** End the step of a session that is under way and may be stopped, if there is one. */
  stop(handle: number): null;
  /** Run a call of `SessionCalls`, and return its result. */
  call(handle: number, call: SessionCall): MaybePromise<unknown>;
  release(handle: number): MaybePromise<null>;
  createInference(args: BridgeArguments, optionsJson: string): Promise<InferenceInfo>;
  /** Have a function of Python's bridge work on a model that nobody keeps. `data` is the file that it makes, if one. */
  ofModel(call: ModelCall, args: BridgeArguments, form: FileForm):
    Promise<{ readonly value: unknown; readonly data: FileData | null }>;
  /** Read a checkpoint; the handle is for `call` and `release`. */
  openState(file: SourceData): Promise<number>;
  /** The numbers of an image; a bitmap is closed. */
  readImage(image: PortableImage, options: ResolvedImageOptions): Promise<{ readonly data: Float32Array<ArrayBuffer> }>;
  /** Bytes allocated in the kernels' memory, and its size. */
  memory(): { readonly inUse: number; readonly total: number };
}

/** Functions of the bridge for `ofModel`. */
export type ModelCall = "build_files" | "inspect_model" | "gradient_graph" | "quantize";

export type Method = keyof WorkerApi;

export interface Call<M extends Method = Method> {
  readonly method: M;
  readonly args: Parameters<WorkerApi[M]>;
  /** Objects that are transferred instead of copied. */
  readonly buffers: readonly (ArrayBuffer | MessagePort | ImageBitmap)[];
  /** Of a step that may be asked for again (lane.ts): calls with the same key are the same. */
  readonly key?: string | undefined;
}

export type Answer<M extends Method> = Awaited<ReturnType<WorkerApi[M]>>;

/** A message to the worker is a list of these, to be run in their order. */
export interface Request {
  /** The reply has the same number; 0: no reply is expected. */
  readonly id: number;
  readonly method: Method;
  readonly args: readonly unknown[];
  /** The number by which the page may ask for this message again (lane.ts). */
  readonly step?: number;
}

export interface Reply {
  readonly id: number;
  readonly result: Result<unknown>;
}

/** A message that the worker sends without a call: the progress of a download. */
export interface Note {
  readonly progress: FileProgress;
}

/** A message that the steps of a session run elsewhere, or have other plans. */
export interface DeviceNote {
  readonly handle: number;
  readonly device: SessionDevice;
}

/** A message that so many shaders of a step are compiled. */
export interface ShaderNote {
  readonly handle: number;
  readonly shaders: readonly [compiled: number, total: number];
}

/**
 * The worker's first message, when it takes calls. Its text is at the end of the script, and shows that the script is
 * complete.
 */
export interface Listening {
  readonly listens: "the worker of trainweb";
}
