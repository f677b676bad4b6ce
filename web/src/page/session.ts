/// <reference lib="esnext.disposable" preserve="true" />
/** `TrainingSession`: the interface of onnxruntime-web/training, continued. */

import type { Tensor, TypedTensor } from "onnxruntime-common";

import { throwIf } from "../wire/errors.js";
import { byInputs } from "../wire/feed-names.js";
import { isObject, isRecord } from "../wire/kinds.js";
import { log } from "../wire/log.js";
import { sessionError, refuseIf } from "../wire/messages.js";
import { Profile, type ProfileOptions, type WireProfile } from "../wire/profile.js";
import type {
  DeadUnits,
  Feed,
  FileForm,
  FileOf,
  SessionMemory,
  SessionDevice,
  SessionInfo,
  SharedState,
  StepName,
  TokenTask,
} from "../wire/protocol.js";
import type { SessionCalls, StateCallNames } from "../wire/session-calls.js";
import type { CheckpointFolder } from "../wire/fit.js";
import type { DataSource } from "../data/dataset.js";
import {
  parseRunArguments,
  parseRunOptions,
  tagged,
  withoutAverages,
  type FetchesType,
  type FeedsType,
  type ReturnType,
  type RunArguments,
} from "./arguments.js";
import type { RunOptions } from "./run-options.js";
import { checkFlag, checkNumber, trainableOnlyOf, type TrainableOnly } from "./call-values.js";
import { checkForm, type FileOptions } from "./call-arguments.js";
import type { SharedContents } from "./shared-contents.js";
import { Channel } from "./channel.js";
import { whole } from "./download.js";
import { callOf, withWorker, type WorkerClient } from "./client.js";
import { env } from "./env.js";
import { FederatedClient } from "./federated.js";
import type { FederatedFields } from "./settings/federated.js";
import { FitRun, runTrainSteps, type FitHost } from "./fit/run.js";
import { checkAverages, type FitOptions } from "./fit/options.js";
import { generate, type GeneratedToken, type GenerateOptions, type Prompt } from "./generate.js";
import type { Metrics, ValuesOf } from "./own-metrics.js";
import { evaluate, ownOutputs, predict, type EvaluateOptions, type PredictOptions } from "./predict.js";
import { expectFiles, type FileName } from "./integrity.js";
import { readPretrained, type PretrainedConfig, type Repository } from "./pretrained.js";
import { resolveOptions, type ResolvedOptions, type SessionOptions } from "./options.js";
import { findLearningRate, type FindRateOptions, type LearningRates } from "./fit/find-rate.js";
import { checkTrainingOptions } from "./session-files.js";
import type {
  Artifacts,
  ContiguousOptions,
  NamedExportOptions,
  SaveCheckpointOptions,
  TrainingSessionBundle,
  TrainingSessionCreateOptions,
} from "./session-types.js";
import { SessionMethods, type MethodsByHand } from "./session-methods.js";
import { StepSender } from "./step-sender.js";
import { openArtifacts, openBundle, openModel } from "./open-session.js";
import { checkSource, loadSource, type Source } from "./sources.js";
import { isTensor, mustBe } from "../data/checks.js";
import { checkOptions } from "../data/nearest.js";
import { copiedInto, copyBytes, packFeeds, packTensor, unpackTensor } from "./tensors.js";
import type { TrainingConfig } from "./training-config.js";

const KEY = Symbol("TrainingSession");
const FILES: readonly FileName[] = ["bundle", "trainModel", "checkpointState", "evalModel", "optimizerModel"];

/** Trains a model in a worker. You need not await each call: calls run in order. */
export class TrainingSession extends SessionMethods {
  readonly #info: SessionInfo;
  readonly #client: WorkerClient;
  readonly #channel: Channel;
  readonly #steps: StepSender;
  /** Steps that use no workspace. */
  readonly #apart = new Set<StepName>();
  /** The optimizer step before; null until the first has succeeded. */
  #update: Promise<void> | null = null;
  /** Severity of steps without their own. */
  #severity: RunOptions["logSeverityLevel"];
  /** True: any optimizer step may fail. */
  #checksNumerics = false;
  /** True until the cost of a memory budget is logged. */
  #hasCost = false;
  #seed = 0n;
  /** The contents that other sessions and a `CheckpointState` share. */
  #state: SharedContents | null = null;
  /** The fit under way. */
  #fit: FitRun | null = null;
  /** Options of `generate` where none are given; `createFromPretrained` sets the folder's options. */
  generationConfig: GenerateOptions = {};

  private constructor(key: symbol, client: WorkerClient, info: SessionInfo) {
    throwIf(key !== KEY, TypeError, "use TrainingSession.create() or TrainingSession.createFromModel().");
    const channel = new Channel(client, info.handle, info.hasOptimizer);
    super(channel);
    channel.endWith(this);
    this.#info = info;
    this.#client = client;
    this.#channel = channel;
    this.#steps = new StepSender(client, channel, info);
  }

  /** @internal */
  static async open(client: WorkerClient, info: SessionInfo, options: ResolvedOptions): Promise<TrainingSession> {
    const session = new TrainingSession(KEY, client, info);
    session.#hasCost = options.hasBudget;
    session.#severity = options.severity;
    session.#checksNumerics = options.checksNumerics;
    if (info.device.kind !== "wasm") {
      client.compiling.set(info.handle, options.progress);
    }
    if (env.seed !== undefined) {
      await session.#channel.call("setSeed", env.seed);
    }
    session.#seed = await session.#channel.call("getSeed");
    return session;
  }

  /**
   * Create a session from training artifacts or a bundle. A bundle needs no Python for the shapes that it was compiled
   * for. Python starts when another call needs it.
   *
   * @throws TypeError when a required file or hash is not given; ModelError, CheckpointError, UnsupportedError
   *   or LimitError when trainweb cannot use a file; EngineError when the worker does not start
   */
  static async create(
    trainingOptions: TrainingSessionCreateOptions | TrainingSessionBundle,
    sessionOptions?: SessionOptions,
  ): Promise<TrainingSession> {
    const files = checkTrainingOptions(trainingOptions);
    const options = resolveOptions(sessionOptions);
    throwIf(options.hasDims && "bundle" in files, TypeError, "'freeDimensionOverrides' is for models; a bundle has the sizes that it was compiled for.");
    throwIf(options.externalData.length > 0, TypeError, "'externalData' and 'weights' are for createFromModel; artifacts and bundles have none.");
    expectFiles(options.integrity, FILES.filter((name) => (files as Partial<Record<FileName, unknown>>)[name]));
    // The worker starts while the files are on their way.
    return withWorker(options, (client) =>
      "bundle" in files
        ? openBundle(client, files.bundle, options, TrainingSession.open)
        : openArtifacts(client, files, options, TrainingSession.open),
    );
  }

  /**
   * Create a session from a forward model. The page builds its training artifacts.
   *
   * @throws GradientError when an operator between the loss and a parameter has no gradient; and as `create`
   */
  static async createFromModel(
    model: Source,
    config: TrainingConfig,
    sessionOptions?: SessionOptions,
  ): Promise<TrainingSession> {
    return openModel(model, config, sessionOptions, TrainingSession.open);
  }

  /**
   * Create a session from a folder with the files of a Hugging Face repository.
   *
   * The graph is `model.onnx` or `onnx/model.onnx`, with external data beside it. Initializers without data get it from
   * `model.safetensors` or its shards in the same folder. Other files are not fetched. `generation_config.json` and
   * `config.json` give `generationConfig`.
   *
   * @param folder - a URL prefix (in Node also a path), a handle of a folder, or the files of a folder
   * @throws ModelError when the folder has no graph, or a file cannot be read; and as `createFromModel`
   */
  static async createFromPretrained(
    folder: Repository,
    config: PretrainedConfig = {},
    sessionOptions: SessionOptions = {},
  ): Promise<TrainingSession> {
    const { file, tokenizer, loss = { type: "CrossEntropyLoss", ignoreIndex: -100 }, ...others } = config;
    const { model, beside, generation, task } = await readPretrained(folder, file);
    const lora = isRecord(others.lora) && !("adapterConfig" in others.lora) ? { lora: { ...task, ...others.lora } } : {};
    const session = await openModel(model, { loss, ...others, ...lora }, sessionOptions, TrainingSession.open, beside);
    session.generationConfig = { ...generation, ...(tokenizer === undefined ? {} : { tokenizer }) };
    return session;
  }

  /** The number of parameters, and the optimizer, as text. The worker knows the rest: `getLearningRate`, `stepCount`. */
  override toString(): string {
    const [all, trainable] = this.#info.sizes.map((size) => size.toLocaleString("en"));
    return `<TrainingSession: ${all} parameters, ${trainable} trainable, ${this.#info.optimizer || "no optimizer"}>`;
  }

  /** The device of its steps, and the reason: the GPU's adapter, and the device of each kind of step. */
  get device(): SessionDevice {
    return this.#client.devices.get(this.#info.handle) ?? this.#info.device;
  }

  /** The 64-bit seed of its random operators (Dropout): `env.seed` at the creation, else 0; a bundle has its own. */
  get seed(): bigint {
    return this.#seed;
  }

  /** Inputs of the training model that you feed, without parameters, gradients and reset flag. */
  get trainingInputNames(): readonly string[] {
    return Object.freeze([...this.#info.trainingInputNames]);
  }

  /** Outputs of the training model, without gradients. The loss is the first. */
  get trainingOutputNames(): readonly string[] {
    return Object.freeze([...this.#info.trainingOutputNames]);
  }

  /** Inputs of the eval model; empty without one. */
  get evalInputNames(): readonly string[] {
    return Object.freeze([...this.#info.evalInputNames]);
  }

  /** Outputs of the eval model; empty without one. */
  get evalOutputNames(): readonly string[] {
    return Object.freeze([...this.#info.evalOutputNames]);
  }

  /**
   * Run the model forward and backward. Gradients accumulate until the step after a `lazyResetGrad`.
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
    const results = await tagged("train step", args.options, this.#severity, () => this.#steps.run("train", names, args));
    if (this.#hasCost) {
      this.#hasCost = false;
      // A session that is released meanwhile has nothing to tell.
      this.memory().then(logCost, () => {});
    }
    return results;
  }

  /**
   * Run the eval model with the current parameters. Nothing changes.
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
    return tagged("eval step", args.options, this.#severity, () => this.#steps.run("eval", names, args));
  }

  /**
   * Update the parameters with the accumulated gradients. The gradients stay, so call `lazyResetGrad` afterwards. From
   * the second call on, the promise may resolve before the update has ended; later calls wait for the update.
   *
   * @throws SessionError without an optimizer model
   */
  async runOptimizerStep(options?: RunOptions): Promise<void> {
    this.#channel.checkOptimizer();
    const run = parseRunOptions(options);
    const { signal, tag, logSeverityLevel = this.#severity } = run;
    if (this.#checksNumerics || signal !== undefined || tag !== undefined || logSeverityLevel !== undefined) {
      await tagged("optimizer step", run, this.#severity, () => this.#step("optimizer", signal));
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
    // It sets a flag for later calls: there is nothing to wait for, and a lost worker fails the next call.
    this.#channel.hold(this.#channel.callOf("lazyResetGrad", []));
  }

  /**
   * Train on all rows of the data, `epochs` times. The loop runs in the worker.
   *
   * @returns a promise of the history that is also an async iterable of events, and has `pause`, `resume`, `stop` and
   *   `abort`. It rejects with a ModelError for a wrong option, and a FeedError for data that does not fit the model.
   *   It rejects with a SessionError while another fit of the session runs, and with a NumericsError when the loss is
   *   NaN or infinite. After `abort` it rejects with the reason
   */
  fit<const M extends Metrics = Metrics>(data: DataSource, options: FitOptions<M> = {}): FitRun<ValuesOf<M>> {
    const run = new FitRun<ValuesOf<M>>(this.#fitHost(this.#fit), data, options);
    if (this.#fit === null) {
      this.#fit = run;
      const end = (): void => {
        this.#fit = null;
      };
      run.then(end, end);
    }
    return run;
  }

  /**
   * Compute the loss and metrics of data, as `fit` does for validation data. Nothing changes.
   *
   * @param data - with labels
   * @returns "loss" and each metric by its name
   * @throws SessionError without an eval model or averages; FeedError for data that does not fit the model or has no
   *   rows; ModelError for a metric or option that is wrong
   */
  evaluate<const M extends Metrics = Metrics>(data: DataSource, options: EvaluateOptions<M> = {}): Promise<ValuesOf<M>> {
    return evaluate(this.#fitHost(this.#fit), data, options) as Promise<ValuesOf<M>>;
  }

  /**
   * Compute the outputs of the model for data, with the current parameters. Labels are not needed, and nothing changes.
   *
   * @param data - the inputs of the model, or a tensor for the first; labels are ignored
   * @returns each output for all rows
   * @throws SessionError without an eval model or averages, or for an output without a row axis in several batches;
   *   FeedError for data that does not fit the model or has no rows; ModelError for an unknown output
   */
  predict(data: DataSource | Tensor, options: PredictOptions = {}): Promise<Readonly<Record<string, Tensor>>> {
    return predict(this.#fitHost(null), data, options);
  }

  /**
   * Write tokens after a prompt with a causal language model and the current parameters, one by one. Options that are
   * not given come from `generationConfig`.
   *
   * @param prompt - text, which needs a tokenizer, or token ids
   * @throws ModelError or UnsupportedError if the model is not a causal language model; SessionError for logits that
   *   are NaN
   */
  generate(prompt: Prompt, options: GenerateOptions = {}): AsyncGenerator<GeneratedToken, void, undefined> {
    const { send } = this.#fitHost(null);
    const next = (task: TokenTask): Promise<number> => send(() => callOf("nextToken", [this.#info.handle, task], []));
    return generate(ownOutputs(this.#info), next, prompt, options, this.generationConfig);
  }

  /**
   * Call `runTrainStep`, `runOptimizerStep` and `lazyResetGrad` for each batch, in one message to the worker.
   *
   * @returns the losses
   * @throws FeedError as `runTrainStep`; `step` of the error is the position of the batch. Earlier batches are trained
   */
  async runTrainSteps(batches: readonly FeedsType[]): Promise<Float32Array> {
    return runTrainSteps(this.#fitHost(this.#fit), batches, this.#steps.spare);
  }

  /**
   * The client's part of federated learning: train locally from the common parameters, and return the update.
   *
   * @param options - clipping and noise of the updates, and running statistics
   * @throws ModelError: an option is wrong, or there is noise without a clip norm or with averaged statistics
   */
  federated(options: FederatedFields = {}): FederatedClient {
    return new FederatedClient(this, this.#info, options);
  }

  /** @internal */
  async keepIn(where: CheckpointFolder, name: string): Promise<void> {
    await this.#fitHost(null).send(() => callOf("saveSession", [this.#info.handle, where, name]));
  }

  /** @internal */
  async goOnFrom(where: CheckpointFolder, name: string): Promise<void> {
    await this.#fitHost(this.#fit).send(() => callOf("loadSession", [this.#info.handle, where, name]));
  }

  /** @param other - a fit that must have ended */
  #fitHost(other: FitRun | null): FitHost {
    return {
      info: this.#info,
      send: (make) => (other !== null ? Promise.reject(sessionError("FIT_RUNNING", {})) : this.#steps.send(make)),
      run: (call) => {
        this.#client.wakeThreads();
        return this.#steps.follow(this.#client.request(call));
      },
    };
  }

  /**
   * Set the learning rate for the number of optimizer steps done.
   *
   * @throws SessionError without a registered scheduler
   */
  async schedulerStep(): Promise<void> {
    this.#channel.checkOptimizer();
    await this.#step("scheduler");
  }

  /**
   * All (trainable) parameters as one vector, in the order of the training model's inputs.
   *
   * @param trainableOnly - leave out the frozen ones; default true. It may be one of the settings
   * @param options - settings by name
   * @param options.ema - use the averages of the parameters that the session keeps; default false
   * @param options.out - the array for the result, of `getParametersSize` elements; default: a new array
   * @returns float32 of shape [n], on `out` if you give it
   * @throws CheckpointError: the session has a nominal checkpoint, which has no values yet
   * @throws SessionError: `ema` is true, but the session keeps no averages
   * @throws BufferSizeError: `out` has another number of elements
   */
  async getContiguousParameters(
    trainableOnly: boolean | (ContiguousOptions & TrainableOnly) = true,
    options: ContiguousOptions = {},
  ): Promise<TypedTensor<"float32">> {
    const isNamed = isObject(trainableOnly);
    const { trainableOnly: flag, ...rest } = isNamed ? trainableOnly : { trainableOnly };
    const settings = isNamed ? rest : options;
    const { ema = false, out } = checkOptions("getContiguousParameters", settings, { ema: true, out: true });
    const isShort = trainableOnlyOf(flag ?? true);
    checkFlag("ema", ema);
    mustBe(out === undefined || out instanceof Float32Array, "out", "a Float32Array", out);
    const parameters = unpackTensor(await this.#channel.call("getContiguousParameters", isShort, ema));
    return (out === undefined ? parameters : copiedInto(out, parameters)) as TypedTensor<"float32">;
  }

  /** Overwrite one parameter by a tensor of its type and dims. Gradients and moments stay as they are. */
  async updateParameter(name: string, tensor: Tensor): Promise<void> {
    this.#channel.check();
    mustBe(isTensor(tensor), "tensor", "a Tensor", tensor);
    const packed = packTensor(name, tensor, copyBytes);
    await this.#channel.post(packed, (parameter) => this.#channel.callOf("updateParameter", [parameter]));
  }

  /**
   * The files that `createFromModel` built, to keep or to use elsewhere.
   *
   * @throws SessionError for a session that was created from artifacts
   */
  async artifacts<Form extends FileForm = "bytes">(options: FileOptions<Form> = {}): Promise<Artifacts<FileOf<Form>>> {
    const form = checkForm(checkOptions("artifacts", options, { as: true }).as);
    const names = ["training_model", "checkpoint", "eval_model", "optimizer_model"] as const;
    const [trainModel, checkpoint, evalModel = null, optimizerModel = null] = await Promise.all(
      names.map(async (name) => (await this.#channel.call("artifact", name, form))?.data),
    );
    return { trainModel, checkpoint, evalModel, optimizerModel } as Artifacts<FileOf<Form>>;
  }

  /**
   * Time every instruction of a step, as the mean over `runs` runs. A training profile changes gradients and running
   * statistics like `runs` + 1 steps. If it fails, the session is as before.
   *
   * @throws FeedError as `runTrainStep`; SessionError for an eval step without an eval model
   */
  async profile(feeds: FeedsType, options: ProfileOptions = {}): Promise<Profile> {
    this.#channel.check();
    const { runs = 10, training = true } = checkOptions("profile", options, { runs: true, training: true });
    checkNumber("runs", runs);
    checkFlag("training", training);
    const kind = training ? "train" : "eval";
    const { handle } = this.#info;
    const answer = this.#channel.post(this.#copy(kind, feeds), (inputs) => callOf("profile", [handle, kind, inputs, runs]));
    return new Profile(await this.#steps.follow<WireProfile>(answer));
  }

  /**
   * Compile the plans of steps with feeds of these shapes ahead, for example while data load.
   *
   * These are the plans of the train step, the eval step and the optimizer step, if the session has their models.
   * Nothing runs. The plan of the train step overwrites gradients, as the first step does, and each step after
   * `lazyResetGrad`. A train step that adds to gradients has another plan; its first call compiles it.
   *
   * Without this call, the first steps compile them. If the model has no symbolic dims, an idle worker compiles them.
   *
   * @param shapes - dims of every training input, by its name
   * @throws FeedError: a shape is missing, unknown, or does not fit the model
   * @throws SessionError: the values of an input decide about shapes: only a step has them
   */
  async prepare(shapes: Readonly<Record<string, readonly number[]>>): Promise<void> {
    this.#channel.check();
    mustBe(isObject(shapes), "shapes", "an object of input names and dims", shapes);
    const named = byInputs(shapes, this.trainingInputNames);
    await this.#steps.follow(this.#channel.post(null, () => this.#channel.callOf("prepare", [named])));
  }

  /**
   * Explain the compilation of a step for such feeds. Nothing runs, and no plan is kept. A session from a bundle starts
   * Python for it.
   *
   * @param feeds - as for the step; only their types count, and values that decide about shapes
   * @param options - settings by name
   * @param options.training - false for an eval step; default true
   * @returns the instructions of the operators, one a line, by names of tensors; then the changes of every pass as a
   *   unified diff
   * @throws FeedError: as `runTrainStep`
   * @throws SessionError: the session has no eval model for an eval step, or comes from a bundle without models
   */
  async explain(feeds: FeedsType, options: { readonly training?: boolean } = {}): Promise<string> {
    this.#channel.check();
    const { training = true } = checkOptions("explain", options, { training: true });
    checkFlag("training", training);
    const kind = training ? "train" : "eval";
    const answer = this.#channel.post(this.#copy(kind, feeds), (inputs) => this.#channel.callOf("explain", [kind, inputs]));
    return answer as Promise<string>;
  }

  /**
   * Find units of ReLU, ThresholdedRelu, and Clip from 0 that are 0 for every row of some batches. Nothing changes.
   * A unit is a channel of a convolution, or a column of a product. A session from a bundle starts Python for it.
   *
   * @param batches - feeds as for `runEvalStep`
   * @returns one entry for each such activation of the eval model, in their order
   * @throws SessionError: the session has no eval model, or comes from a bundle without models
   * @throws FeedError: there are no batches, or one does not fit
   */
  async deadUnits(batches: readonly FeedsType[]): Promise<readonly DeadUnits[]> {
    this.#channel.check();
    mustBe(Array.isArray(batches), "batches", "an array of feeds", batches);
    const packed = (batches as readonly FeedsType[]).map(async (feeds) => this.#copy("eval", feeds));
    const answer = this.#channel.post(Promise.all(packed), (all) => this.#channel.callOf("deadUnits", [all]));
    return (await this.#steps.follow(answer)) as readonly DeadUnits[];
  }

  /**
   * Losses of steps whose learning rate grows, and a rate to train with; afterwards the session is as before. It is
   * fastai's
   * finder: rates grow by a factor, losses are smoothed, and the suggestion lies in their valley.
   *
   * @param data - as of `fit`
   * @throws SessionError without an optimizer model; FeedError for data that does not fit the model or has no rows
   */
  findLearningRate(data: DataSource, options: FindRateOptions = {}): Promise<LearningRates> {
    this.#channel.checkOptimizer();
    return findLearningRate(this, this.#info, (name) => this.#channel.call(name), data, options);
  }

  /** `saveCheckpoint` with the state of the optimizer, unless `includeOptimizerState` is false. */
  async save<Form extends FileForm = "bytes">(options: SaveCheckpointOptions<Form> = {}): Promise<FileOf<Form>> {
    const known = { includeOptimizerState: true, as: true } as const;
    return this.saveCheckpoint({ includeOptimizerState: true, ...checkOptions("save", options, known) });
  }

  /**
   * Continue from a file of `save`, or from the contents that `CheckpointStore.read` returned. Without the state of an
   * optimizer, moments and step count start at 0.
   *
   * @param checkpoint - a URL, in Node also a path, bytes or a Blob
   * @throws CheckpointError: it is damaged, or of a session with other parameters, optimizer, constants or scaling;
   *   nothing was changed. SessionError while a fit runs
   */
  async loadCheckpoint(checkpoint: Source): Promise<void> {
    this.#channel.check();
    refuseIf(this.#fit !== null, "FIT_RUNNING");
    checkSource("checkpoint", checkpoint);
    const load = async (): Promise<Uint8Array> => {
      const file = await whole(await loadSource("checkpointState", checkpoint, resolveOptions()));
      return new Uint8Array(await new Response(file).arrayBuffer());
    };
    await this.#steps.follow(this.#channel.post(load(), (file) => this.#channel.callOf("loadCheckpoint", [file])));
  }

  /** `exportModelForInferencing` of the outputs of the model, or of the named outputs. */
  async export<Form extends FileForm = "bytes">(options: NamedExportOptions<Form> = {}): Promise<FileOf<Form>> {
    const { outputs, ...form } = checkOptions("export", options, { outputs: true, ema: true, as: true });
    return this.exportModelForInferencing(outputs ?? ownOutputs(this.#info), form);
  }

  /** Free the session after all earlier calls. You may call it again. */
  release(): Promise<void> {
    this.#fit?.abort(sessionError("RELEASED", {}));
    this.#state?.takeBack(this, () => this.saveCheckpoint({ includeOptimizerState: true, as: "blob" }));
    this.#state = null;
    this.#client.compiling.delete(this.#info.handle);
    return this.#channel.release();
  }

  /** @internal Share the contents of a `CheckpointState`. */
  async workOn(state: SharedContents): Promise<void> {
    await state.use(this);
    this.#state = state;
    this.#channel.precede(() => this.#state?.moveTo(this) ?? null);
  }

  /** @internal What other sessions on its state continue with. */
  lendState(): Promise<SharedState> {
    return this.#channel.send(null, () => callOf("lendState", [this.#info.handle]));
  }

  /** @internal Go on with that, when it comes. */
  async takeState(shared: Promise<SharedState>): Promise<void> {
    await this.#channel.send(shared, (state) => callOf("takeState", [this.#info.handle, state]));
  }

  /** @internal */
  callForState<Name extends StateCallNames>(name: Name, args: SessionCalls[Name]["args"]): Promise<unknown> {
    this.#channel.check();
    return this.#channel.send(null, () => this.#channel.callOf(name, args));
  }

  /** `release`, at the end of a block with `await using`. */
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
    refuseIf(kind === "eval" && !info.hasEval, "NO_EVAL_MODEL");
    const [names, outputs] =
      kind === "train"
        ? [info.trainingInputNames, info.trainingOutputNames]
        : [info.evalInputNames, info.evalOutputNames];
    const args = parseRunArguments(info.inputs[kind], outputs, feeds, arg1, arg2);
    if (kind === "train") {
      withoutAverages(args.options);
    } else if (args.options.ema === true) {
      checkAverages(info);
    }
    return [names, args];
  }

  /** The feeds of a step, which is not to run as usual. */
  #copy(kind: "train" | "eval", feeds: FeedsType): readonly Feed[] | Promise<readonly Feed[]> {
    const [names, args] = this.#parse(kind, feeds);
    return packFeeds(names, args.feeds, copyBytes);
  }

  async #step(kind: StepName, signal?: AbortSignal): Promise<void> {
    const { handle } = this.#info;
    const answer = this.#channel.step(signal, null, (_, mayStop) =>
      callOf("step", [handle, kind, [], [], mayStop, false], [], mayStop ? undefined : `${handle} ${kind}`),
    );
    const { workspace } = await (this.#apart.has(kind) ? answer : this.#steps.follow(answer));
    if (workspace.nbytes === 0) {
      this.#apart.add(kind);
    }
  }
}

/** Log the cost of a memory budget. */
function logCost({ arena, arenaWithoutBudget: full, recomputedInstructions: count, recomputedShare: share }: SessionMemory): void {
  const cost = `${count} instructions run again, for some ${Math.round(100 * share)} % more time`;
  log("info", `the workspace of a step takes ${arena} bytes instead of ${full}: ${cost}`);
}

/** The compiler finds a call that the class lacks. @internal */
export const asCalls: (session: TrainingSession) => MethodsByHand = (session) => session;
