/// <reference lib="esnext.disposable" preserve="true" />
/** `TrainingSession`: the interface of onnxruntime-web/training, continued. */

import type { Tensor } from "onnxruntime-common";

import { sessionError } from "../wire/messages.js";
import { Profile, type ProfileOptions, type WireProfile } from "../wire/profile.js";
import { log } from "../wire/log.js";
import type {
  Call,
  FileForm,
  PropertyKind,
  PropertyValue,
  SessionCall,
  SessionInfo,
  SessionMemory,
  StepKind,
  ValueMetadata,
} from "../wire/protocol.js";
import type { SessionCalls } from "../wire/session-calls.js";
import {
  parseRunArguments,
  parseRunOptions,
  tagged,
  type FetchesType,
  type FeedsType,
  type ReturnType,
  type RunArguments,
  type RunOptions,
} from "./arguments.js";
import { Channel } from "./channel.js";
import { callOf, withWorker, type WorkerClient } from "./client.js";
import { env } from "./env.js";
import type { FileName } from "./integrity.js";
import { resolveOptions, type ResolvedOptions, type SessionOptions } from "./options.js";
import { SharedFeeds, signatureOf } from "./shared-feeds.js";
import { buffersOf, isSource, loadExternalData, loadSource, type Source } from "./sources.js";
import {
  copyBytes,
  describe,
  describeFetch,
  isTensor,
  ownBytes,
  packFeeds,
  packTensor,
  SpareBuffers,
  unpackResults,
  unpackTensor,
} from "./tensors.js";
import { resolveConfig, type TrainingConfig } from "./training-config.js";

/** The files of a training session: URLs, bytes or Blobs. */
export interface TrainingSessionCreateOptions {
  readonly trainModel: Source;
  readonly checkpointState: Source;
  readonly evalModel?: Source | null;
  readonly optimizerModel?: Source | null;
}

/** A session that `trainweb compile` compiled ahead: it trains without Python. */
export interface TrainingSessionBundle {
  readonly bundle: Source;
}

export interface ParameterTypeAndShape {
  readonly type: Tensor.Type;
  readonly dims: readonly number[];
}

/**
 * What a file is handed out as: "bytes" is a Uint8Array in the page's memory (the default), "blob" a Blob, which
 * the browser keeps elsewhere: to be stored, sent, downloaded, or given to `create` again, it need not be in memory.
 */
export interface FileOptions<Form extends FileForm = FileForm> {
  readonly as?: Form;
}

export interface SaveCheckpointOptions<Form extends FileForm = FileForm> extends FileOptions<Form> {
  /**
   * Keep what exact resumption takes: moments, step count, learning rate and schedule, accumulated gradients, and the
   * seed and position of random numbers. A run that goes on from it gives the same bytes as one that was not ended.
   */
  readonly includeOptimizerState?: boolean;
}

/** Training artifacts, as `TrainingSession.create` takes them. */
export interface Artifacts<File extends Uint8Array | Blob = Uint8Array> {
  readonly trainModel: File;
  /** As it was before training. */
  readonly checkpointState: File;
  readonly evalModel: File | null;
  readonly optimizerModel: File | null;
}

const KEY = Symbol("TrainingSession");
const FILES: readonly FileName[] = ["bundle", "trainModel", "checkpointState", "evalModel", "optimizerModel"];

export class TrainingSession {
  readonly #info: SessionInfo;
  readonly #client: WorkerClient;
  readonly #channel: Channel;
  readonly #spare = new SpareBuffers();
  /** Null where the page shares no memory with the kernels. */
  readonly #shared: SharedFeeds | null;
  /** Steps that use no workspace. */
  readonly #apart = new Set<StepKind>();
  /** The optimizer step before; null until the first has succeeded. */
  #update: Promise<void> | null = null;
  /** Whether the cost of a memory budget is yet to be logged. */
  #hasCost = false;
  #seed = 0n;

  private constructor(key: symbol, client: WorkerClient, info: SessionInfo) {
    if (key !== KEY) {
      throw new TypeError("use TrainingSession.create() or TrainingSession.createFromModel().");
    }
    this.#info = info;
    this.#client = client;
    this.#channel = new Channel(this, client, "release", info.handle);
    this.#shared = client.memory === null ? null : new SharedFeeds(client.memory);
  }

  /** @internal */
  static async open(client: WorkerClient, info: SessionInfo, options: Pick<ResolvedOptions, "hasBudget">): Promise<TrainingSession> {
    const session = new TrainingSession(KEY, client, info);
    session.#hasCost = options.hasBudget;
    if (env.seed !== undefined) {
      await session.#call("setSeed", env.seed);
    }
    session.#seed = await session.#call("getSeed");
    return session;
  }

  /**
   * Make a session of training artifacts, or of a bundle. A bundle needs no Python for the shapes that it
   * was compiled for; for anything else Python starts when it is needed.
   *
   * @throws TypeError when a required file or hash is not given; ModelError, CheckpointError, UnsupportedError
   *   or LimitError when trainweb cannot use a file; EngineError when the worker does not start
   */
  static async create(
    trainingOptions: TrainingSessionCreateOptions | TrainingSessionBundle,
    sessionOptions?: SessionOptions,
  ): Promise<TrainingSession> {
    checkTrainingOptions(trainingOptions);
    const options = resolveOptions(sessionOptions);
    if (options.externalData.length > 0) {
      throw new TypeError("'externalData' is of models for createFromModel; artifacts and bundles have none.");
    }
    options.integrity.expect(FILES.filter((name) => (trainingOptions as Partial<Record<FileName, unknown>>)[name]));
    // The worker starts while the files are on their way.
    return withWorker(options, (client) =>
      "bundle" in trainingOptions
        ? createFromBundle(client, trainingOptions.bundle, options)
        : createFromArtifacts(client, trainingOptions, options),
    );
  }

  /**
   * Make a session of a forward model: its training artifacts are built in the page.
   *
   * @throws GradientError when an operator between the loss and a parameter has no gradient; and as `create`
   */
  static async createFromModel(
    model: Source,
    config: TrainingConfig,
    sessionOptions?: SessionOptions,
  ): Promise<TrainingSession> {
    if (!isSource(model)) {
      throw new TypeError(`'model' must be a URL, Uint8Array, ArrayBuffer or Blob, got ${describe(model)}.`);
    }
    const configJson = resolveConfig(config);
    const options = resolveOptions(sessionOptions);
    options.integrity.expect(["model"]);
    return withWorker(options, async (client) => {
      // What is cached needs no Python, or it starts when that turns out to be nothing.
      const python = options.cache ? null : client.startPython();
      const [file, external] = await Promise.all([
        loadSource("model", model, options.integrity, options.progress),
        loadExternalData(options.externalData, options.progress),
      ]);
      await client.ready;
      await python;
      if (!options.cache) {
        options.progress.compiles();
      }
      const buffers = buffersOf(file, ...external.map(({ data }) => data));
      const info = await client.request(
        callOf("createFromModel", [file, external, configJson, options.json, options.cache], buffers),
      );
      return TrainingSession.open(client, info, options);
    });
  }

  /** The seed of its random operators (Dropout), of 64 bits: `env.seed` as it was, or else 0, or what a bundle has. */
  get seed(): bigint {
    return this.#seed;
  }

  /** User inputs of the training model: no parameters, gradients or reset flag. */
  get trainingInputNames(): readonly string[] {
    return this.#info.trainingInputNames;
  }

  get trainingOutputNames(): readonly string[] {
    return this.#info.trainingOutputNames;
  }

  /** User inputs of the eval model; empty without one. */
  get evalInputNames(): readonly string[] {
    return this.#info.evalInputNames;
  }

  get evalOutputNames(): readonly string[] {
    return this.#info.evalOutputNames;
  }

  /**
   * Forward and backward: gradients accumulate until the step after a `lazyResetGrad`.
   *
   * @throws FeedError when a feed is missing, unknown, or has the wrong type, dims or values
   */
  runTrainStep(feeds: FeedsType, options?: RunOptions): Promise<ReturnType>;
  runTrainStep(feeds: FeedsType, fetches: FetchesType, options?: RunOptions): Promise<ReturnType>;
  async runTrainStep(
    feeds: FeedsType,
    arg1?: FetchesType | RunOptions,
    arg2?: RunOptions,
  ): Promise<ReturnType> {
    this.#channel.check();
    const [names, args] = this.#parse("train", feeds, arg1, arg2);
    return tagged(args.options, () => this.#run("train", names, args));
  }

  /**
   * The eval model with the current parameters; changes nothing.
   *
   * @throws SessionError without an eval model; FeedError as `runTrainStep`
   */
  runEvalStep(feeds: FeedsType, options?: RunOptions): Promise<ReturnType>;
  runEvalStep(feeds: FeedsType, fetches: FetchesType, options?: RunOptions): Promise<ReturnType>;
  async runEvalStep(
    feeds: FeedsType,
    arg1?: FetchesType | RunOptions,
    arg2?: RunOptions,
  ): Promise<ReturnType> {
    this.#channel.check();
    const [names, args] = this.#parse("eval", feeds, arg1, arg2);
    return tagged(args.options, () => this.#run("eval", names, args));
  }

  /**
   * Update the parameters with the accumulated gradients, which stay: call `lazyResetGrad` afterwards.
   * After the first one it resolves when the update is on its way, which every later call comes behind.
   *
   * @throws SessionError without an optimizer model
   */
  async runOptimizerStep(options?: RunOptions): Promise<void> {
    this.#channel.check();
    this.#checkOptimizer();
    const { signal, tag } = parseRunOptions(options);
    if (signal !== undefined || tag !== undefined) {
      await tagged({ tag }, () => this.#step("optimizer", signal));
      return;
    }
    const update = this.#step("optimizer");
    if (this.#update === null) {
      await update;
      this.#update = update;
      return;
    }
    // A plan that ran once fails only with its worker, which fails the next call. One step under way is enough.
    const before = this.#update;
    this.#update = update;
    update.catch(() => {});
    await before;
  }

  /** The next train step overwrites the gradients instead of adding to them. */
  async lazyResetGrad(): Promise<void> {
    this.#channel.check();
    const { handle } = this.#info;
    // It sets a flag for later calls: there is nothing to wait for, and a lost worker fails the next call.
    this.#channel.hold(callOf("call", [handle, { name: "lazyResetGrad", args: [] }]));
  }

  /** Number of elements of the (trainable) parameters. */
  async getParametersSize(trainableOnly = true): Promise<number> {
    return this.#call("getParametersSize", trainableOnly);
  }

  /** All (trainable) parameters as one float32 tensor, in the order of the training model's inputs. */
  async getContiguousParameters(trainableOnly = true): Promise<Tensor> {
    return unpackTensor(await this.#call("getContiguousParameters", trainableOnly));
  }

  /**
   * Overwrite all (trainable) parameters.
   *
   * @param buffer - the bytes of the float32 array, or the array itself
   * @throws BufferSizeError when the length is not that of the parameters
   */
  async loadParametersBuffer(buffer: Uint8Array | Float32Array, trainableOnly = true): Promise<void> {
    if (!(buffer instanceof Uint8Array || buffer instanceof Float32Array)) {
      throw new TypeError(`'buffer' must be a Uint8Array or Float32Array, got ${describe(buffer)}.`);
    }
    await this.#call("loadParametersBuffer", copyBytes(buffer), trainableOnly);
  }

  /** @throws SessionError without an optimizer model */
  async getLearningRate(): Promise<number> {
    this.#channel.check();
    this.#checkOptimizer();
    return this.#call("getLearningRate");
  }

  /** @throws SessionError without an optimizer model */
  async setLearningRate(learningRate: number): Promise<void> {
    this.#channel.check();
    this.#checkOptimizer();
    checkNumbers({ learningRate });
    await this.#call("setLearningRate", learningRate);
  }

  /**
   * Warm up linearly to `initialLr` over the first steps, then go down to 0. `schedulerStep` applies it.
   *
   * @param warmupStepCount - optimizer steps of the warm-up
   * @param totalStepCount - optimizer steps after which the rate is 0, at least those of the warm-up
   * @throws SessionError when a count is no integer >= 0, or the rate no float32 >= 0
   */
  async registerLinearLRScheduler(
    warmupStepCount: number,
    totalStepCount: number,
    initialLr: number,
  ): Promise<void> {
    this.#channel.check();
    this.#checkOptimizer();
    checkNumbers({ warmupStepCount, totalStepCount, initialLr });
    await this.#call("registerLinearLrScheduler", warmupStepCount, totalStepCount, initialLr);
  }

  /**
   * Set the learning rate for the number of optimizer steps done.
   *
   * @throws SessionError without a registered scheduler
   */
  async schedulerStep(): Promise<void> {
    this.#channel.check();
    this.#checkOptimizer();
    await this.#step("scheduler");
  }

  /**
   * The checkpoint as onnxruntime's training APIs read it, of 2 GiB at most.
   *
   * @throws LimitError when it would be larger, or the browser has no room for it
   */
  saveCheckpoint(options: SaveCheckpointOptions<"blob"> & { readonly as: "blob" }): Promise<Blob>;
  saveCheckpoint(options?: SaveCheckpointOptions<"bytes">): Promise<Uint8Array>;
  async saveCheckpoint(options: SaveCheckpointOptions = {}): Promise<Uint8Array | Blob> {
    const form = formOf(options);
    return (await this.#call("saveCheckpoint", options.includeOptimizerState ?? false, form)).data;
  }

  /**
   * The eval model as an inference model, with the current parameters.
   *
   * @param outputNames - tensors of the eval model to become outputs
   * @throws LimitError when it would be larger than 2 GiB, or the browser has no room for it
   */
  exportModelForInferencing(
    outputNames: readonly string[],
    options: FileOptions & { readonly as: "blob" },
  ): Promise<Blob>;
  exportModelForInferencing(outputNames: readonly string[], options?: FileOptions<"bytes">): Promise<Uint8Array>;
  async exportModelForInferencing(
    outputNames: readonly string[],
    options: FileOptions = {},
  ): Promise<Uint8Array | Blob> {
    if (!Array.isArray(outputNames)) {
      throw new TypeError(`'outputNames' must be an array of strings, got ${describe(outputNames)}.`);
    }
    return (await this.#call("exportModelForInferencing", outputNames, formOf(options))).data;
  }

  /** A copy of one parameter. */
  async getParameter(name: string): Promise<Tensor> {
    return unpackTensor(await this.#call("getParameter", name));
  }

  /** Overwrite one parameter; type and dims must be its own. Gradients and moments stay as they are. */
  async updateParameter(name: string, tensor: Tensor): Promise<void> {
    this.#channel.check();
    if (!isTensor(tensor)) {
      throw new TypeError(`'tensor' must be a Tensor, got ${describe(tensor)}.`);
    }
    const packed = packTensor(name, tensor, copyBytes);
    await this.#channel.post(packed, (given) => this.#callOf("updateParameter", [given], [given.data.buffer]));
  }

  async getParameterTypeAndShape(name: string): Promise<ParameterTypeAndShape> {
    const { dtype, dims } = await this.#call("getParameterTypeAndShape", name);
    return { type: dtype, dims };
  }

  /** Names of all (trainable) parameters, in the order of the training model's inputs. */
  async parameterNames({ trainableOnly = false }: { readonly trainableOnly?: boolean } = {}): Promise<
    readonly string[]
  > {
    return this.#call("parameterNames", trainableOnly);
  }

  /**
   * A copy of one accumulated gradient: zeros before the first step.
   *
   * @throws CheckpointError for a name that is not there, or a frozen parameter
   */
  async getGradient(name: string): Promise<Tensor> {
    return unpackTensor(await this.#call("getGradient", name));
  }

  /** Completed optimizer steps. */
  async getStepCount(): Promise<number> {
    this.#channel.check();
    this.#checkOptimizer();
    return this.#call("getStepCount");
  }

  /** Name, type and dims, with symbols, of the inputs of a train (or eval) step. */
  async inputMetadata({ training = true }: { readonly training?: boolean } = {}): Promise<
    readonly ValueMetadata[]
  > {
    return this.#call("inputMetadata", training);
  }

  /**
   * Keep a value in the checkpoint: an int64 (an integer number or bigint), a float32, or a string.
   *
   * @param kind - what it is kept as, where the value does not say it: 1 as "float" stays a float
   */
  async addProperty(name: string, value: PropertyValue, kind?: PropertyKind): Promise<void> {
    if (!["number", "bigint", "string"].includes(typeof value)) {
      throw new TypeError(`'value' must be a number, bigint or string, got ${describe(value)}.`);
    }
    checkKind(value, kind);
    await this.#call("addProperty", name, value, kind ?? null);
  }

  /** A value that the checkpoint keeps; an integer that a number cannot hold is a bigint. */
  async getProperty(name: string): Promise<PropertyValue> {
    return this.#call("getProperty", name);
  }

  /** Names of the values that the checkpoint keeps. */
  async propertyNames(): Promise<readonly string[]> {
    return this.#call("propertyNames");
  }

  /** @throws CheckpointError for a name that is not there */
  async deleteProperty(name: string): Promise<void> {
    await this.#call("deleteProperty", name);
  }

  /**
   * The files that `createFromModel` built, to keep or to use elsewhere.
   *
   * @throws SessionError for a session that was made of artifacts
   */
  getArtifacts(options: FileOptions & { readonly as: "blob" }): Promise<Artifacts<Blob>>;
  getArtifacts(options?: FileOptions<"bytes">): Promise<Artifacts>;
  async getArtifacts(options: FileOptions = {}): Promise<Artifacts<Uint8Array | Blob>> {
    const form = formOf(options);
    const names = ["training_model", "checkpoint", "eval_model", "optimizer_model"] as const;
    const [trainModel, checkpointState, evalModel, optimizerModel] = await Promise.all(
      names.map(async (name) => (await this.#call("artifact", name, form))?.data),
    );
    return {
      trainModel: trainModel ?? new Uint8Array(),
      checkpointState: checkpointState ?? new Uint8Array(),
      evalModel: evalModel ?? null,
      optimizerModel: optimizerModel ?? null,
    };
  }

  /**
   * Time every instruction of a step, the mean over `runs` runs. A training profile leaves gradients and running
   * statistics as `runs` steps would, and one before them; one that fails leaves the session as it was.
   *
   * @throws FeedError as `runTrainStep`; SessionError without an eval model, if it is to be timed
   */
  async profile(feeds: FeedsType, { runs = 10, training = true }: ProfileOptions = {}): Promise<Profile> {
    this.#channel.check();
    checkNumbers({ runs });
    const kind = training ? "train" : "eval";
    const [inputNames, args] = this.#parse(kind, feeds);
    const packed = packFeeds(inputNames, args.feeds, copyBytes);
    const { handle } = this.#info;
    const answer = this.#channel.post(packed, ({ feeds, buffers }) => {
      return callOf("profile", [handle, kind, feeds, runs], buffers);
    });
    return new Profile(await this.#follow<WireProfile>(answer));
  }

  /** What the session takes of the kernels' memory, and what `memoryBudget` costs; after a step. */
  async memory(): Promise<SessionMemory> {
    return this.#call("memory");
  }

  /** Free the session after the calls already made. Harmless when repeated. */
  release(): Promise<void> {
    return this.#channel.release();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  /** Names of the inputs of a step, and its arguments after the checks. */
  #parse(
    kind: "train" | "eval",
    feeds: FeedsType,
    arg1?: FetchesType | RunOptions,
    arg2?: RunOptions,
  ): [readonly string[], RunArguments] {
    const info = this.#info;
    if (kind === "eval" && !info.hasEval) {
      throw sessionError("NO_EVAL_MODEL", {});
    }
    const [names, outputs] =
      kind === "train"
        ? [info.trainingInputNames, info.trainingOutputNames]
        : [info.evalInputNames, info.evalOutputNames];
    return [names, parseRunArguments(info.inputs[kind], outputs, feeds, arg1, arg2)];
  }

  #checkOptimizer(): void {
    if (!this.#info.hasOptimizer) {
      throw sessionError("NO_OPTIMIZER_MODEL", {});
    }
  }

  async #call<Name extends keyof SessionCalls>(
    name: Name,
    ...args: SessionCalls[Name]["args"]
  ): Promise<SessionCalls[Name]["result"]> {
    this.#channel.check();
    const buffers = args.flatMap((arg: unknown) => (arg instanceof Uint8Array ? [arg.buffer as ArrayBuffer] : []));
    // None of them uses the workspace or moves it.
    const answer = this.#channel.post(null, () => this.#callOf(name, args, buffers));
    return answer as Promise<SessionCalls[Name]["result"]>;
  }

  #callOf<Name extends keyof SessionCalls>(
    name: Name,
    args: SessionCalls[Name]["args"],
    buffers: readonly ArrayBuffer[],
  ): Call<"call"> {
    return callOf("call", [this.#info.handle, { name, args } as SessionCall], buffers);
  }

  async #step(kind: StepKind, signal?: AbortSignal): Promise<void> {
    const { handle } = this.#info;
    const turn = signal === undefined ? null : this.#channel.turn(signal, null);
    const answer = this.#channel.post(turn, () => callOf("step", [handle, kind, [], []]));
    const { workspace } = await (this.#apart.has(kind) ? answer : this.#follow(answer));
    if (workspace.nbytes === 0) {
      this.#apart.add(kind);
    }
  }

  /** Let no feed be written in place while a call is under way that may use the workspace or move it. */
  #follow<T extends object>(answer: Promise<T>): Promise<T> {
    return this.#shared === null ? answer : this.#shared.follow(answer);
  }

  async #run(
    kind: StepKind,
    inputNames: readonly string[],
    { feeds, fetches, options }: RunArguments,
  ): Promise<ReturnType> {
    const wanted = [...fetches].map(([name, target]) => describeFetch(name, target));
    this.#client.wakeThreads();
    const shared = this.#shared;
    const travel = shared === null || this.#info.valuesDecide;
    const signature = travel ? null : signatureOf(kind, inputNames, feeds);
    const { signal } = options;
    // Feeds of a step that waits may not lie where the one before it runs.
    const writer = signal === undefined ? shared?.writer(signature) : undefined;
    const take = options.transfer ? ownBytes : (writer ?? this.#spare.copy);
    const packed = packFeeds(inputNames, feeds, take);
    const { handle } = this.#info;
    const ready = signal === undefined ? packed : this.#channel.turn(signal, packed);
    const answer = this.#channel.post(ready, ({ feeds, buffers }) => {
      return callOf("step", [handle, kind, feeds, wanted], buffers);
    });
    const { results, buffers } = await (shared === null ? answer : shared.follow(answer, signature));
    if (this.#hasCost && kind === "train") {
      this.#hasCost = false;
      // A session that is released meanwhile has nothing to tell.
      this.memory().then(logCost, () => {});
    }
    this.#spare.keep(buffers);
    return unpackResults(results, fetches);
  }
}

function formOf({ as = "bytes" }: FileOptions): FileForm {
  if (as !== "bytes" && as !== "blob") {
    throw new TypeError(`'as' must be "bytes" or "blob", got ${describe(as)}.`);
  }
  return as;
}

/** @throws TypeError or RangeError when a value cannot be kept as this kind */
function checkKind(value: PropertyValue, kind: PropertyKind | undefined): void {
  if (kind === undefined) {
    return;
  }
  if (!["int", "float", "string"].includes(kind)) {
    throw new TypeError(`'kind' must be "int", "float" or "string", got ${String(kind)}.`);
  }
  if ((kind === "string") !== (typeof value === "string")) {
    throw new TypeError(`'value' is ${describe(value)}, which is not kept as "${kind}".`);
  }
  if (kind === "int" && typeof value === "number" && !Number.isSafeInteger(value)) {
    throw new RangeError(`'value' is ${value}; "int" keeps integers, those beyond 2^53 as bigint.`);
  }
}

function logCost(memory: SessionMemory): void {
  const { arena, arenaWithoutBudget: full, recomputedInstructions: count, recomputedShare: share } = memory;
  const cost = `${count} instructions run again, for some ${Math.round(100 * share)} % more time`;
  log("info", `the workspace of a step takes ${arena} bytes instead of ${full}: ${cost}`);
}

async function createFromArtifacts(
  client: WorkerClient,
  { trainModel, checkpointState, evalModel, optimizerModel }: TrainingSessionCreateOptions,
  { json, cache, integrity, progress, ...options }: ResolvedOptions,
): Promise<TrainingSession> {
  // What is cached needs no Python, or it starts when that turns out to be nothing.
  const python = cache ? null : client.startPython();
  const [train, checkpoint, evaluate, optimizer] = await Promise.all([
    loadSource("trainModel", trainModel, integrity, progress),
    loadSource("checkpointState", checkpointState, integrity, progress),
    evalModel ? loadSource("evalModel", evalModel, integrity, progress) : null,
    optimizerModel ? loadSource("optimizerModel", optimizerModel, integrity, progress) : null,
  ]);
  await client.ready;
  await python;
  if (!cache) {
    progress.compiles();
  }
  const artifacts = { trainModel: train, checkpoint, evalModel: evaluate, optimizerModel: optimizer };
  const buffers = buffersOf(train, checkpoint, evaluate, optimizer);
  const info = await client.request(callOf("createTraining", [artifacts, json, cache], buffers));
  return TrainingSession.open(client, info, options);
}

async function createFromBundle(
  client: WorkerClient,
  bundle: Source,
  options: ResolvedOptions,
): Promise<TrainingSession> {
  const file = await loadSource("bundle", bundle, options.integrity, options.progress);
  await client.ready;
  options.progress.compiles();
  const info = await client.request(callOf("createFromBundle", [file, options.json], buffersOf(file)));
  return TrainingSession.open(client, info, options);
}

function checkTrainingOptions(options: unknown): void {
  if (typeof options !== "object" || options === null) {
    throw new TypeError("'trainingOptions' must be an object with 'trainModel' and 'checkpointState'.");
  }
  if ("bundle" in options) {
    checkBundleOptions(options);
    return;
  }
  for (const name of ["trainModel", "checkpointState", "evalModel", "optimizerModel"] as const) {
    const source = (options as Partial<TrainingSessionCreateOptions>)[name];
    const required = name === "trainModel" || name === "checkpointState";
    if (!source && !required) {
      continue;
    }
    if (!source) {
      throw new TypeError(`'trainingOptions.${name}' is required: a URL, Uint8Array, ArrayBuffer or Blob.`);
    }
    if (!isSource(source)) {
      throw new TypeError(
        `'trainingOptions.${name}' must be a URL, Uint8Array, ArrayBuffer or Blob, got ${describe(source)}.`,
      );
    }
  }
}

function checkBundleOptions(options: { readonly bundle: unknown }): void {
  const others = Object.keys(options).filter((name) => name !== "bundle");
  if (others.length > 0) {
    throw new TypeError(`'trainingOptions.bundle' has the whole session; '${others[0]}' cannot be given besides.`);
  }
  if (!options.bundle || !isSource(options.bundle)) {
    throw new TypeError(
      `'trainingOptions.bundle' must be a URL, Uint8Array, ArrayBuffer or Blob, got ${describe(options.bundle)}.`,
    );
  }
}

function checkNumbers(given: Readonly<Record<string, unknown>>): void {
  for (const [name, value] of Object.entries(given)) {
    if (typeof value !== "number") {
      throw sessionError("NOT_A_NUMBER", { name, given: describe(value) });
    }
  }
}
