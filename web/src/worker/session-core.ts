/** A training session in the worker, with Python or without. In Python training/core.py. */

import * as layout from "../engine/layout.js";
import type { Handout } from "../python/handout.js";
import { raise, refuseIf } from "../wire/messages.js";
import type { WireProfile } from "../wire/profile.js";
import type {
  AdapterFiles,
  DeadUnits,
  Feed,
  Fetch,
  FileBytes,
  FileForm,
  MaybePromise,
  NamedTensor,
  SessionInfo,
  SessionMemory,
  TensorType,
  ValueMetadata,
  WireTensor,
} from "../wire/protocol.js";
import { HELD, type ArtifactName, type Held, type SessionCalls } from "../wire/session-calls.js";
import {
  CLIP_INPUTS, parsePlan, planKey, type Bundle, type BundlePlan, type Declaration, type FeedType, type ParameterSlot,
  type RawPlan,
} from "./bundle/bundle.js";
import { sizeOf } from "./bundle/reader.js";
import type { PlanMetric } from "./bundle/metrics.js";
import { WASM } from "../wire/constants.js";
import { checkFeeds, checkValuesDecideNothing, fixedTypes, typesOf, type Shapes } from "./feeds.js";
import { assemble, converting, type ReadPlace } from "./files.js";
import { InspectedPlans, type InspectedStep } from "./inspected-plans.js";
import { coveringKind } from "./fit/metrics.js";
import { NumericsCheck } from "./numerics.js";
import { unless, withValue, type HostOpener, type HostOptions, type LoadedPlan, type ReadFile, type Side, type StepHost } from "./host.js";
import type { LazyModels, PythonModels } from "./python-models.js";
import { PropertyCalls } from "./properties.js";
import { PlanRunner, type PlanSource, type Run } from "./runner.js";
import type { TensorFile } from "./safetensors.js";
import { bytesOf, checkCount, checkRate, memoryOf, readParameter, typeOf, writeParameter } from "./session-values.js";
import { writeContents, type SessionContents } from "./session-contents.js";
import { isSafetensors, openSnapshot, readSnapshot, takeSnapshot } from "./snapshot.js";
import { EVAL, isForward, OPTIMIZER, outputsOf, stepKind, TRAIN, type StepKind } from "./step-kind.js";

/** Options of a session. */
export interface CoreOptions extends HostOptions {
  /** Plans that use more are compiled again, by Python, within this budget. */
  readonly memoryBudget: number;
  /** True if steps are checked for NaN and infinities. */
  readonly checkNumerics: boolean;
}

/** Called with each plan that Python compiled for the session. */
type PlanListener = (raw: RawPlan) => void;

/** The calls of a session in the worker: one that is missing does not compile. */
type CallTable = {
  readonly [Name in keyof SessionCalls]: (
    ...args: SessionCalls[Name]["args"]
  ) => MaybePromise<SessionCalls[Name]["result"]>;
};

/** All contents of a session. */
const WRITES_ALL: Held = { reads: [], writes: HELD.saveCheckpoint.reads };

export class SessionCore extends PropertyCalls implements CallTable, PlanSource {
  /** The loaded plans and the memory. */
  readonly host: StepHost;
  readonly runner: PlanRunner;
  /** The divisors of losses. */
  readonly lossCounts: Bundle["lossCounts"];
  /** Warnings that were said. */
  readonly notices = new Set<string>();
  readonly #fingerprint: number;
  readonly #bundle: Omit<Bundle, "models" | "segments" | "plans" | "properties">;
  readonly #owner: Pick<Bundle, "segments" | "inputs" | "outputs" | "lossCounts">;
  readonly #plans: ReadonlyMap<string, BundlePlan>;
  /** Plans that were compiled before their steps were called. */
  readonly #ahead = new Map<string, BundlePlan>();
  readonly #models: LazyModels;
  readonly #onPlan: PlanListener;
  readonly #inspected: InspectedPlans;
  /** Checks each step for NaN and infinities. */
  readonly numerics: NumericsCheck | null;
  #nominal: boolean;

  /** @throws EngineError when the kernels' memory has no room */
  constructor(
    openHost: HostOpener,
    fingerprint: number,
    bundle: Bundle,
    options: CoreOptions,
    models: LazyModels,
    onPlan: PlanListener,
  ) {
    super();
    const { models: _, segments, plans, properties, ...rest } = bundle;
    this.#fingerprint = fingerprint;
    this.#bundle = rest;
    this.lossCounts = rest.lossCounts;
    this.#owner = { ...rest, segments: segments.map(({ bytes }) => ({ bytes, data: null })) };
    this.#models = models;
    this.#onPlan = onPlan;
    this.#nominal = bundle.nominal;
    this.properties = properties;
    const usable = plans.filter((plan) => plan.arenaBytes + plan.preparedBytes <= options.memoryBudget);
    this.#plans = new Map(usable.map((plan) => [planKey(plan.kind, plan.overwrite, plan.signature, plan.target), plan]));
    this.host = openHost({ segments, reserved: usable, trained: this.#slots(true).map(bytesOf) }, options);
    this.runner = new PlanRunner(this.host, this);
    this.#inspected = new InspectedPlans({
      host: this.host,
      runner: this.runner,
      models,
      readFile: this.readFile,
      parse: (raw, outputs) => {
        const owner = { ...this.#owner, outputs: { train: outputs, eval: outputs }, lossCounts: {} };
        return parsePlan(raw, owner, fingerprint, models.sources);
      },
    });
    this.numerics = options.checkNumerics ? new NumericsCheck(this.#inspected) : null;
  }

  /** The page's view of the session. */
  get info(): Omit<SessionInfo, "handle"> {
    const { outputs, parameters: _, lossCounts: _counts, size, trainableSize, ...facts } = this.#bundle;
    const { inputs, compared } = facts;
    const predictions = outputs.eval.length === 2 ? (outputs.eval[1] as string) : compared;
    return {
      ...facts,
      // Older bundles lack it.
      defaultPair: facts.defaultPair ?? [predictions, inputs.eval.at(-1)?.name ?? null],
      trainingInputNames: inputs.train.map(({ name }) => name),
      trainingOutputNames: outputs.train,
      evalInputNames: inputs.eval.map(({ name }) => name),
      evalOutputNames: outputs.eval,
      sizes: [size, trainableSize],
      valuesDecide: [...inputs.train, ...inputs.eval].some(({ decides }) => decides > 0),
      device: this.host.device,
    };
  }

  release(): void {
    this.host.release();
    this.#models.release();
  }

  /** Set whether the next train step overwrites the gradients. */
  #setLazyReset(overwrites: boolean): void {
    this.host.state.setUint32(4 * layout.STATE_LAZY_RESET, Number(overwrites), true);
  }

  // Steps.

  /** @param stop - ends the step between two of its instructions, the session being as before; null: it runs through */
  step(
    kind: StepKind,
    feeds: readonly Feed[],
    fetches: readonly Fetch[],
    stop: AbortSignal | null = null,
  ): MaybePromise<Run> {
    const run = (overwrite: boolean, copies = feeds): MaybePromise<Run> =>
      withValue(this.runner.run(kind, overwrite, copies, fetches, stop), (result) => {
        if (kind.base === "train") {
          this.#setLazyReset(false);
        }
        return result;
      });
    if (this.numerics === null || kind.base === "scheduler" || isForward(kind)) {
      return run(kind.base !== "train" || this.overwrites);
    }
    if (kind.base === "optimizer") {
      this.check(kind, []);
      return this.numerics.optimizerStep(() => run(true));
    }
    const step = this.#inspectedStep(stepKind(kind.base), feeds);
    return this.numerics.step(step, () => run(step.overwrite, step.feeds));
  }

  /** The kind of an eval step that sums up metrics: of a bundle, one that sums up these and maybe others. */
  metricsKind(wanted: StepKind): StepKind {
    return coveringKind([...this.#plans.values()].map(({ kind }) => kind), wanted);
  }

  /** The metrics that such a step sums up. */
  planMetrics(kind: StepKind, feeds: readonly Feed[]): MaybePromise<readonly PlanMetric[]> {
    return withValue(this.runner.prepare(kind, true, this.runner.signatureOf(kind, feeds)), ({ plan }) => plan.metrics);
  }

  #inspectedStep(kind: StepKind, feeds: readonly Feed[]): InspectedStep {
    const copies = this.#copied(feeds);
    const signature = this.runner.signatureOf(kind, copies);
    this.check(kind, signature);
    return { kind, overwrite: kind.base === "eval" || this.overwrites, signature, feeds: copies };
  }

  deadUnits(batches: readonly (readonly Feed[])[]): Promise<readonly DeadUnits[]> {
    refuseIf(batches.length === 0, "NO_BATCHES");
    return this.#inspected.deadUnits(batches.map((feeds) => this.#inspectedStep(EVAL, feeds)));
  }

  /** Step once, then time `runs` more steps. Memory is allocated before the first step. */
  async profile(base: "train" | "eval", feeds: readonly Feed[], runs: number): Promise<WireProfile> {
    checkCount("runs", runs, 1);
    const copies = this.#copied(feeds);
    const [kind, overwrite] = [stepKind(base), base === "eval"];
    const signature = this.runner.signatureOf(kind, copies);
    const prepare = (): MaybePromise<LoadedPlan> => this.runner.prepare(kind, overwrite, signature);
    const times = this.host.times((await prepare()).plan.nodes.length);
    try {
      await this.step(kind, copies, []);
      const loaded = await prepare();
      const { sums, ofSubmits } = await times.measure(loaded, async () => {
        for (let run = 0; run < runs; run++) {
          await this.runner.execute(loaded, copies);
        }
      });
      return { ...this.host.listing(loaded), ofSubmits, milliseconds: Array.from(sums, (sum) => sum / runs) };
    } finally {
      times.release();
    }
  }

  #copied(feeds: readonly Feed[]): NamedTensor[] {
    return feeds.map((feed) => ({ ...feed, data: this.host.bytesOf(feed) }));
  }

  check(kind: StepKind, signature: readonly FeedType[]): void {
    const { base } = kind;
    if (base === "train" || base === "eval" || isForward(kind)) {
      this.#checkStep(base === "train" ? base : "eval");
      checkFeeds(this.inputsOf(kind), signature, base !== "train");
      return;
    }
    this.#checkOptimizer();
    refuseIf(base === "optimizer" && this.#nominal, "NOMINAL", { action: "construct the optimizer of" });
    refuseIf(base === "scheduler" && this.host.state.getUint32(4 * layout.STATE_SCHEDULER, true) === 0, "NO_SCHEDULER");
  }

  /** The inputs of a step that predicts or makes tokens; Python knows them. */
  openForward(kind: StepKind): MaybePromise<readonly Declaration[]> {
    this.#checkStep("eval");
    return withValue(this.#models.get(kind.base), (models) => models.forwardInputs(kind));
  }

  inputsOf(kind: StepKind): readonly Declaration[] {
    if (isForward(kind)) {
      return this.#models.opened?.forwardInputs(kind) ?? [];
    }
    const { base } = kind;
    return base === "train" || base === "eval" ? this.#bundle.inputs[base] : base === "clip" ? CLIP_INPUTS : [];
  }

  make(kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): MaybePromise<BundlePlan> {
    const key = planKey(kind, overwrite, signature, this.host.targetOf(kind));
    const known = this.#plans.get(key) ?? this.#ahead.get(key);
    if (known !== undefined) {
      this.#ahead.delete(key);
      return known;
    }
    refuseIf(kind.base === "eval" && this.#plans.has(planKey(kind, overwrite, signature, WASM)), "ONLY_ON_CPU");
    const feeds = signature.map((feed) => `${feed.name} ${feed.dtype}[${feed.dims.join(", ")}]`);
    const special = isForward(kind) ? "a prediction" : "an eval step with these metrics";
    const name = kind.request === null ? `a ${kind.base} step` : special;
    const what = feeds.length === 0 ? name : `${name} of ${feeds.join(", ")}`;
    return withValue(this.#models.get(what), (models) => this.#compile(models, kind, overwrite, signature));
  }

  #compile(models: PythonModels, kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): BundlePlan {
    // Plans of the bundle, and those made ahead, keep their places even while they are not in kernel memory.
    const others = [...this.#plans.values(), ...this.#ahead.values(), ...this.host.plans];
    const kept = others.flatMap((plan) => plan.kept);
    const raw = models.compile(kind, overwrite, signature, kept, this.host.targetOf(kind));
    const { inputs, outputs } = this.#owner;
    const owner = isForward(kind)
      ? { ...this.#owner, inputs: { ...inputs, [kind.base]: this.inputsOf(kind) }, outputs: { ...outputs, [kind.base]: outputsOf(kind) } }
      : this.#owner;
    const plan = parsePlan(raw, owner, this.#fingerprint, this.#models.sources);
    if (!isForward(kind)) {
      this.#onPlan(raw);
    }
    return plan;
  }

  readonly readFile: ReadFile = (file, start, target) => this.#models.readGiven(file, start, target);

  #checkStep(kind: "train" | "eval"): void {
    refuseIf(kind === "eval" && !this.#bundle.hasEval, "NO_EVAL_MODEL");
    this.#checkNotNominal(`perform ${kind === "train" ? "Train" : "Eval"}Step with`);
  }

  #checkOptimizer(): void {
    refuseIf(!this.#bundle.hasOptimizer, "NO_OPTIMIZER_MODEL");
  }

  lazyResetGrad(): null {
    this.#setLazyReset(true);
    return null;
  }

  // Learning rate and seed.

  getLearningRate(): number {
    this.#checkOptimizer();
    return this.host.state.getFloat32(4 * layout.STATE_LEARNING_RATE, true);
  }

  setLearningRate(rate: number): null {
    this.#checkOptimizer();
    checkRate("learningRate", rate);
    this.host.state.setFloat32(4 * layout.STATE_LEARNING_RATE, rate, true);
    return null;
  }

  registerLinearLrScheduler(warmup: number, total: number, rate: number): null {
    this.#checkOptimizer();
    checkCount("warmupStepCount", warmup);
    checkCount("totalStepCount", total);
    refuseIf(warmup > total, "WARMUP_BEYOND_TOTAL", { name: "warmupStepCount", total, value: warmup });
    checkRate("initialLr", rate);
    const state = this.host.state;
    state.setFloat32(4 * layout.STATE_LEARNING_RATE, rate, true);
    state.setFloat32(4 * layout.STATE_INITIAL_LR, rate, true);
    state.setUint32(4 * layout.STATE_SCHEDULER, 1, true);
    state.setBigInt64(4 * layout.STATE_WARMUP, BigInt(warmup), true);
    state.setBigInt64(4 * layout.STATE_TOTAL, BigInt(total), true);
    return null;
  }

  getSeed(): bigint {
    return this.host.state.getBigUint64(4 * layout.STATE_SEED, true);
  }

  setSeed(value: bigint): null {
    this.host.state.setBigUint64(4 * layout.STATE_SEED, BigInt.asUintN(64, value), true);
    this.host.state.setBigUint64(4 * layout.STATE_RANDOM_OFFSET, 0n, true);
    return null;
  }

  // Parameters.

  getParametersSize(trainableOnly: boolean): number {
    return trainableOnly ? this.#bundle.trainableSize : this.#bundle.size;
  }

  /**
   * Do something while the averages stand for the trainable parameters.
   *
   * @param on - false: with the parameters as they are
   * @param side - where the action uses them
   * @throws SessionError where no averages are kept
   */
  withAverages<T>(on: boolean, action: () => MaybePromise<T>, side: Side = "device"): MaybePromise<T> {
    if (!on) {
      return action();
    }
    refuseIf(!this.#bundle.hasAverages, "NO_AVERAGES");
    if (this.stepCount() === 0) {
      return action(); // without steps the averages are the parameters
    }
    const exchange = (): MaybePromise<void> => this.host.exchangeAverages(side);
    return withValue(exchange(), () => finallyDo(action, exchange));
  }

  getContiguousParameters(trainableOnly: boolean, ema: boolean): MaybePromise<WireTensor> {
    return this.withAverages(ema, () => this.#contiguousParameters(trainableOnly), "host");
  }

  #contiguousParameters(trainableOnly: boolean): WireTensor {
    this.#checkNotNominal();
    const size = this.getParametersSize(trainableOnly);
    const all = this.host.view(layout.PARAMETERS);
    const data = new Uint8Array(4 * size);
    let at = 0;
    for (const slot of this.#slots(trainableOnly)) {
      data.set(readParameter(all, slot), at);
      at += 4 * sizeOf(slot.dims);
    }
    return { dtype: "float32", dims: [size], data };
  }

  loadParametersBuffer(data: Uint8Array, trainableOnly: boolean): null {
    refuseIf(this.#nominal && trainableOnly, "NOMINAL_LOAD");
    const expected = 4 * this.getParametersSize(trainableOnly);
    refuseIf(data.length !== expected, "BUFFER_SIZE", { expected, actual: data.length });
    const all = this.host.view(layout.PARAMETERS);
    let at = 0;
    for (const slot of this.#slots(trainableOnly)) {
      writeParameter(all, slot, data.subarray(at, (at += 4 * sizeOf(slot.dims))));
    }
    this.#countLoad();
    this.#nominal = false;
    return null;
  }

  getParameter(name: string): WireTensor {
    const slot = this.#slot(name);
    this.#checkNotNominal("get parameter from");
    return { ...typeOf(slot), data: readParameter(this.host.view(layout.PARAMETERS), slot) };
  }

  updateParameter({ name, dtype, dims, data }: NamedTensor): null {
    const slot = this.#slot(name);
    this.#checkNotNominal("copy parameter to");
    refuseIf(dtype !== "float32", "PARAMETER_DTYPE", { name, expected: "float32", actual: dtype });
    refuseIf(String(dims) !== String(slot.dims) || data.length !== 4 * sizeOf(slot.dims), "PARAMETER_SHAPE", { name, expected: slot.dims, actual: dims });
    writeParameter(this.host.view(layout.PARAMETERS), slot, data);
    this.#countLoad();
    return null;
  }

  getParameterTypeAndShape(name: string): TensorType {
    return typeOf(this.#slot(name));
  }

  parameterNames(trainableOnly: boolean): readonly string[] {
    return this.#slots(trainableOnly).map(({ name }) => name);
  }

  getGradient(name: string): WireTensor {
    const slot = this.#slot(name);
    refuseIf(slot.trainableOffset < 0, "FROZEN_GRADIENT", { name });
    const { start, end } = bytesOf({ ...slot, offset: slot.trainableOffset });
    return { ...typeOf(slot), data: new Uint8Array(this.host.view(layout.GRADIENTS).subarray(start, end)) };
  }

  gradientNorms(): Readonly<Record<string, number>> {
    this.#checkNotNominal();
    const trained = this.#bundle.parameters.filter(({ trainableOffset }) => trainableOffset >= 0);
    const squares = ({ trainableOffset, dims }: ParameterSlot): number =>
      this.host.squares(layout.GRADIENTS, 4 * trainableOffset, sizeOf(dims));
    return Object.fromEntries(trained.map((slot) => [slot.name, Math.sqrt(squares(slot))]));
  }

  keepState(): MaybePromise<null> {
    this.#checkNotNominal("save");
    return withValue(this.host.save(layout.COPY_TRIAL), () => null);
  }

  goBack(): MaybePromise<null> {
    return withValue(this.host.goBack(layout.COPY_TRIAL), () => withValue(this.host.forget(layout.COPY_TRIAL), () => null));
  }

  stepCount(): number {
    this.#checkOptimizer();
    return Number(this.host.state.getBigInt64(4 * layout.STATE_STEP, true));
  }

  inputMetadata(training: boolean): readonly ValueMetadata[] {
    return this.#bundle.inputs[training ? "train" : "eval"].map(({ name, dtype, dims }) => ({
      name,
      isTensor: true,
      type: dtype,
      shape: (dims ?? []).map((dim) => dim ?? ""),
    }));
  }

  outputMetadata(training: boolean): MaybePromise<readonly ValueMetadata[]> {
    if (!training && !this.#bundle.hasEval) {
      return [];
    }
    return withValue(this.#models.get("outputMetadata"), (models) => models.ask("output_metadata", training).value);
  }

  getMoments(name: string): MaybePromise<readonly NamedTensor[]> {
    this.#checkOptimizer();
    this.#slot(name);
    return withValue(this.#models.get("getMoments"), (models) =>
      models.ask("moment_places", name).value.map(({ moment, segment, offset, dims }) => {
        const data = new Uint8Array(this.host.range(segment, offset, 4 * sizeOf(dims)));
        return { name: moment, dtype: "float32", dims, data };
      }),
    );
  }

  /** The contents of the session as a file. */
  snapshot(): MaybePromise<TensorFile> {
    this.#checkNotNominal("save");
    return withValue(this.host.claim(HELD.saveCheckpoint, "host"), () => takeSnapshot(this.host, this.#bundle, this.properties));
  }

  /** @throws CheckpointError when it is of another session or was changed */
  read(snapshot: TensorFile): SessionContents {
    return readSnapshot(this.host, this.#bundle, snapshot);
  }

  restore(contents: SessionContents): MaybePromise<void> {
    return withValue(this.host.claim(WRITES_ALL, "host"), () => {
      writeContents(this.host, contents);
      this.properties = contents.properties;
      this.#countLoad(); // plans prepared values of the old parameters
      this.#nominal = false;
    });
  }

  // Files.

  saveCheckpoint(includeOptimizerState: boolean, form: FileForm): MaybePromise<FileBytes> {
    this.#checkNotNominal("save");
    return withValue(this.#models.get("saveCheckpoint"), (models) => {
      const { file } = models.ask("checkpoint", includeOptimizerState, this.properties, this.host.bases);
      return this.#assembled(models, "saveCheckpoint", file, form);
    });
  }

  loadCheckpoint(file: Uint8Array): MaybePromise<null> {
    if (isSafetensors(file)) {
      return withValue(this.restore(this.read(openSnapshot(file))), () => null);
    }
    return withValue(this.#models.get("loadCheckpoint"), (models) => {
      this.properties = models.ask("load_checkpoint", file, this.host.bases).value;
      this.#nominal = false;
      return null;
    });
  }

  exportModelForInferencing(outputNames: readonly string[], form: FileForm, ema: boolean): MaybePromise<FileBytes> {
    refuseIf(!this.#bundle.hasEval, "NO_EVAL_MODEL_TO_EXPORT");
    this.#checkNotNominal("export the model with");
    return withValue(this.#models.get("exportModelForInferencing"), (models) =>
      this.withAverages(
        ema,
        () => {
          const { file } = models.ask("export", outputNames, this.host.bases);
          return this.#assembled(models, "exportModelForInferencing", file, form);
        },
        "host",
      ),
    );
  }

  exportWeights(format: "safetensors" | "npz", ema: boolean): MaybePromise<Uint8Array> {
    this.#checkNotNominal();
    return withValue(this.#models.get("exportWeights"), (models) =>
      this.withAverages(ema, () => ownBytes(models.ask("export_weights", format, this.host.bases)), "host"),
    );
  }

  loadWeights(weights: Uint8Array, strict: boolean): MaybePromise<null> {
    this.#checkNotNominal();
    return withValue(this.#models.get("loadWeights"), (models) => models.ask("load_weights", weights, strict, this.host.bases).value);
  }

  #checkNotNominal(action = "copy parameters from"): void {
    refuseIf(this.#nominal, "NOMINAL", { action });
  }

  adapter(): MaybePromise<AdapterFiles> {
    return withValue(this.#adapted("adapter"), (models) => {
      const answer = models.ask("adapter", this.host.bases);
      return { weights: ownBytes(answer), config: answer.value };
    });
  }

  loadAdapter({ weights, config }: AdapterFiles): MaybePromise<null> {
    return withValue(this.#adapted("loadAdapter"), (models) => models.ask("load_adapter", weights, config, this.host.bases).value);
  }

  mergeAdapter(form: FileForm): MaybePromise<FileBytes> {
    return withValue(this.#adapted("mergeAdapter"), (models) =>
      this.#assembled(models, "mergeAdapter", models.ask("merge_adapter", this.host.bases).file, form),
    );
  }

  /** Python's models of a session that may have adapters. */
  #adapted(what: string): MaybePromise<PythonModels> {
    refuseIf(!this.#models.hasArtifacts, "NO_ADAPTERS");
    this.#checkNotNominal();
    return this.#models.get(what);
  }

  artifact(name: ArtifactName, form: FileForm): MaybePromise<FileBytes | null> {
    refuseIf(!this.#models.hasArtifacts, "NO_ARTIFACTS");
    return withValue(this.#models.get("artifacts"), (models) => {
      const { file } = models.ask("artifact", name, this.host.bases);
      return file === null ? null : this.#assembled(models, "artifacts", file, form);
    });
  }

  #assembled(models: PythonModels, call: string, file: Handout | null, form: FileForm): FileBytes {
    const copy: ReadPlace = ([store, index, offset], start, target) => {
      if (store === "file") {
        models.readFile(index, offset + start, target);
      } else {
        target.set(this.host.range(index, offset + start, target.length));
      }
    };
    return { data: assemble(call, file as Handout, converting(copy), form) };
  }

  async prepare(shapes: Shapes): Promise<null> {
    const { hasEval, hasOptimizer } = this.#bundle;
    const ofTrain = { kind: TRAIN, signature: this.#typesOf("train", shapes) };
    const ofEval = hasEval ? [{ kind: EVAL, signature: this.#typesOf("eval", shapes) }] : [];
    const ofOptimizer = hasOptimizer ? [{ kind: OPTIMIZER, signature: [] }] : [];
    // The train step's comes after the eval step's, so that it is there even where only one is kept.
    for (const { kind, signature } of [...ofEval, ofTrain, ...ofOptimizer]) {
      await this.runner.prepare(kind, true, signature);
    }
    return null;
  }

  #typesOf(base: "train" | "eval", shapes: Shapes): readonly FeedType[] {
    const inputs = this.#bundle.inputs[base];
    const types = typesOf(inputs, shapes, base === "train");
    this.check(stepKind(base), types);
    checkValuesDecideNothing(inputs, types);
    return inputs.map(({ name }) => types.find((type) => type.name === name) as FeedType);
  }

  /**
   * Compile one more of the plans that the first steps will run. The model must say the shapes of its feeds, and Python
   * must have the models open. It takes no room in the kernels' memory until its step is called.
   *
   * @returns whether there may be more
   */
  compileAhead(): boolean {
    const models = this.#models.opened;
    const feeds = this.#nominal ? null : fixedTypes(this.#bundle.inputs.train);
    if (models === null || feeds === null) {
      return false;
    }
    const steps: { readonly kind: StepKind; readonly signature: readonly FeedType[] }[] = [
      { kind: TRAIN, signature: feeds },
      ...(this.#bundle.hasOptimizer ? [{ kind: OPTIMIZER, signature: [] }] : []),
    ];
    for (const { kind, signature } of steps) {
      const key = planKey(kind, true, signature, this.host.targetOf(kind));
      if (!this.#plans.has(key) && !this.#ahead.has(key) && this.host.find(key) === undefined) {
        this.#ahead.set(key, this.#compile(models, kind, true, signature));
        return true;
      }
    }
    return false;
  }

  explain(base: "train" | "eval", feeds: readonly Feed[]): MaybePromise<string> {
    const kind = stepKind(base);
    const signature = this.runner.signatureOf(kind, feeds);
    this.check(kind, signature);
    const overwrite = base === "eval" || this.overwrites;
    return withValue(this.#models.get("explain"), (models) =>
      this.runner.whereItRuns(kind, () => models.ask("explain", base, overwrite, signature, this.host.targetOf(kind)).value),
    );
  }

  memory(): SessionMemory {
    return memoryOf(this.host);
  }

  /** Note that values which plans prepared from the parameters are void. */
  #countLoad(): void {
    this.host.state.setUint32(4 * layout.STATE_LOADS, this.host.state.getUint32(4 * layout.STATE_LOADS, true) + 1, true);
  }

  #slot(name: string): ParameterSlot {
    const { parameters } = this.#bundle;
    const slot = parameters.find((one) => one.name === name);
    return slot ?? raise("UNKNOWN_PARAMETER", { name, names: parameters.map((one) => one.name).join(", ") });
  }

  #slots(trainableOnly: boolean): readonly ParameterSlot[] {
    const { parameters } = this.#bundle;
    return trainableOnly ? parameters.filter((slot) => slot.trainableOffset >= 0) : parameters;
  }

  /** True if the next train step overwrites the gradients. */
  get overwrites(): boolean {
    return this.host.state.getUint32(4 * layout.STATE_LAZY_RESET, true) !== 0;
  }

  /** Call a method once the segments are here that it reads or writes. */
  override call(name: string, args: readonly unknown[]): unknown {
    return withValue(this.host.claim(HELD[name as keyof SessionCalls], "host"), () => super.call(name, args));
  }
}

/** The bytes of a file, which Python has whole. */
function ownBytes({ file }: { readonly file: Handout | null }): Uint8Array {
  return (file as Handout).data.slice();
}

/** Do something, and something else afterwards, however the former ends. */
function finallyDo<T>(action: () => MaybePromise<T>, end: () => MaybePromise<void>): MaybePromise<T> {
  const fail = (error: unknown): MaybePromise<never> =>
    withValue(end(), () => {
      throw error;
    });
  return withValue(unless(action, fail), (value) => withValue(end(), () => value));
}
