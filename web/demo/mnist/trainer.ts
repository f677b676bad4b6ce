/** The training run: fits of half an epoch, an evaluation on the test images after each, checkpoints. */

import {
  type Artifacts,
  type Batch,
  CheckpointError,
  Dataset,
  type FitRun,
  type LoadProgress,
  type PropertyValue,
  schedule,
  type SessionDevice,
  type Tensor,
  TrainingSession,
} from "trainweb";

import { type Digits, toUnit } from "./data.js";
import { evaluate, type Evaluation, feeds, logitsOf, type Results, softmax } from "./evaluation.js";
import { History } from "./history.js";
import { mulberry32, shuffledIndices } from "./random.mjs";

const EVALUATIONS_PER_EPOCH = 2;
/** Pixels by which a training image may be moved each way. */
const REACH = 2;
/** Keeps the steps of different seeds apart. */
const SEED_STRIDE = 1_000_003;
const WARMUP_STEPS = 50;
/** Seconds over which the speed is averaged. */
const SPEED_WINDOW = 1;

export type TrainerState = "loading" | "ready" | "running" | "paused" | "finished" | "failed";

export interface Settings {
  epochs: number;
  batchSize: number;
  learningRate: number;
  seed: number;
  /** Stop after so many steps, in any epoch. */
  maxSteps: number;
  /** Where it trains: on the CPU or on the GPU. */
  readonly device: "wasm" | "webgpu";
}

/** Listener to the training run. */
export interface Observer {
  /** While the package and the model are on their way. */
  loading(progress: LoadProgress): void;
  stateChanged(): void;
  /** At most once a frame. */
  stepped(): void;
  evaluated(evaluation: Evaluation): void;
}

export class Trainer {
  readonly settings: Settings;
  history = new History();
  state: TrainerState = "loading";
  error: Error | undefined;
  /** Optimizer steps taken. */
  step = 0;
  /** Seconds spent in training steps. */
  trainSeconds = 0;

  readonly #digits: Digits;
  readonly #observer: Observer;
  #session: TrainingSession | undefined;
  #artifacts: Artifacts | undefined;
  #tail: Promise<unknown> = Promise.resolve();
  #loop: Promise<void> | undefined;
  #fit: FitRun | undefined;
  /** Time of the last noted losses. */
  #noted = 0;
  #order: Uint32Array = new Uint32Array();
  #orderEpoch = -1;

  constructor(digits: Digits, settings: Settings, observer: Observer) {
    this.#digits = digits;
    this.settings = settings;
    this.#observer = observer;
  }

  /** Where its steps run; null before it is loaded. */
  get device(): SessionDevice | null {
    return this.#session?.device ?? null;
  }

  get stepsPerEpoch(): number {
    return Math.floor(this.#digits.train.count / this.settings.batchSize);
  }

  get totalSteps(): number {
    return Math.min(this.settings.epochs * this.stepsPerEpoch, this.settings.maxSteps);
  }

  /** Epochs done, with the fraction of the running one. */
  get epoch(): number {
    return this.step / this.stepsPerEpoch;
  }

  get stepsPerSecond(): number {
    let seconds = 0;
    const recent = this.history.train.findLast((record) => (seconds += record.seconds) > SPEED_WINDOW);
    return seconds > 0 ? (this.step - (recent?.step ?? 1) + 1) / seconds : 0;
  }

  /** Build training, eval and optimizer models from the forward model, here in the page. */
  async load(modelUrl: string): Promise<void> {
    await this.#guarded(async () => {
      const config = {
        loss: "CrossEntropyLoss",
        optimizer: "AdamW",
        additionalOutputNames: ["logits"],
      } as const;
      const onProgress = this.#observer.loading.bind(this.#observer);
      const { device } = this.settings;
      this.#session = await TrainingSession.createFromModel(modelUrl, config, { onProgress, device });
      this.#artifacts = await this.#session.artifacts();
      await this.#evaluate();
      this.#setState("ready");
    });
  }

  start(): void {
    if (this.state === "finished" && this.step >= this.totalSteps) {
      return;
    }
    if (this.state === "ready" || this.state === "paused" || this.state === "finished") {
      this.#setState("running");
      this.#loop = this.#guarded(() => this.#run());
    }
  }

  /** Stop after the step in progress. */
  async pause(): Promise<void> {
    if (this.state === "running") {
      this.#setState("paused");
    }
    this.#fit?.stop();
    await this.#loop;
  }

  /** Back to the random weights. */
  async reset(): Promise<void> {
    await this.pause();
    await this.#guarded(async () => {
      await this.#replaceSession(this.#built().checkpoint);
      this.step = 0;
      this.history = new History();
      await this.#evaluate();
      this.#setState("ready");
    });
  }

  /** A new peak learning rate, from the next step but one on: a batch is made ahead. */
  setLearningRate(rate: number): void {
    this.settings.learningRate = rate;
  }

  /** More (or fewer) epochs; the decay of the learning rate follows. */
  setEpochs(epochs: number): void {
    this.settings.epochs = epochs;
    this.#observer.stepped();
  }

  /** Another batch size; only before the first step. */
  setBatchSize(batchSize: number): void {
    this.settings.batchSize = batchSize;
    this.#orderEpoch = -1;
    this.#observer.stepped();
  }

  /** Probabilities of the ten digits for one image; may be called while training goes on. */
  async predict(image: Uint8Array): Promise<Float32Array> {
    return softmax(logitsOf(await this.#read(toUnit(image), BigInt64Array.of(0n))));
  }

  /** Weights, moments of the optimizer, and where the run stands. */
  async saveCheckpoint(): Promise<Uint8Array> {
    const { epochs, batchSize, learningRate, seed } = this.settings;
    return this.#exclusively(async (session) => {
      const properties = { step: this.step, epochs, batchSize, learningRate, seed };
      for (const [name, value] of Object.entries(properties)) {
        await session.addProperty(name, value);
      }
      await session.addProperty("history", this.history.toText());
      return session.saveCheckpoint({ includeOptimizerState: true });
    });
  }

  /** Continue a run that `saveCheckpoint` saved. A file that does not fit leaves this run as it is. */
  async resume(checkpoint: Uint8Array): Promise<void> {
    await this.pause();
    const before = this.state;
    try {
      await this.#replaceSession(checkpoint);
    } catch (error) {
      this.#setState(before);
      throw error;
    }
    await this.#guarded(async () => {
      await this.#readProperties();
      await this.#evaluate({ record: false });
      this.#setState(this.step < this.totalSteps ? "paused" : "finished");
    });
  }

  /** The trained forward model, as any ONNX runtime takes it. */
  async exportModel(): Promise<Uint8Array> {
    return this.#exclusively((session) => session.exportModelForInferencing(["logits"]));
  }

  async #readProperties(): Promise<void> {
    const { settings } = this;
    for (const name of ["epochs", "batchSize", "learningRate", "seed"] as const) {
      settings[name] = Number(await this.#property(name, settings[name]));
    }
    this.step = Number(await this.#property("step", 0));
    this.history = History.fromText(String(await this.#property("history", "")));
    this.trainSeconds = this.history.train.reduce((sum, { seconds }) => sum + seconds, 0);
  }

  /** Read a property of the checkpoint; `otherwise` if it has none, because another program wrote it. */
  #property(name: string, otherwise: PropertyValue): Promise<PropertyValue> {
    return this.#exclusively(async (session) => {
      try {
        return await session.getProperty(name);
      } catch (error) {
        if (error instanceof CheckpointError) {
          return otherwise;
        }
        throw error;
      }
    });
  }

  /** A session on these bytes in place of the present one, which goes only once the new one is there. */
  async #replaceSession(checkpoint: Uint8Array): Promise<void> {
    const files = { ...this.#built(), checkpoint };
    const session = await TrainingSession.create(files, { device: this.settings.device });
    const old = this.#session;
    await this.#tail;
    this.#session = session;
    this.#orderEpoch = -1;
    this.trainSeconds = 0;
    await old?.release();
  }

  async #run(): Promise<void> {
    while (this.state === "running" && this.step < this.totalSteps) {
      const goal = this.#nextEvaluation();
      await this.#trainTo(goal);
      if (this.step === goal || this.step >= this.totalSteps) {
        await this.#evaluate();
      }
    }
    if (this.state === "running") {
      this.#setState("finished");
    }
  }

  #nextEvaluation(): number {
    const every = Math.ceil(this.stepsPerEpoch / EVALUATIONS_PER_EPOCH);
    const inEpoch = this.step % this.stepsPerEpoch;
    const next = Math.min((Math.floor(inEpoch / every) + 1) * every, this.stepsPerEpoch);
    return Math.min(this.step - inEpoch + next, this.totalSteps);
  }

  /** Train until so many steps are done, or the user pauses. */
  async #trainTo(goal: number): Promise<void> {
    const first = this.step;
    const fit = this.#loaded().fit(this.#batches(first, goal), {
      schedule: (step) => this.#rate(first + step),
      callbacks: (_event, run) => {
        this.#note(first, run.history.losses);
        if (this.step >= this.totalSteps) {
          run.stop();
        }
      },
    });
    this.#fit = fit;
    this.#noted = performance.now();
    try {
      const { losses } = await fit;
      this.#note(first, losses);
    } finally {
      this.#fit = undefined;
    }
  }

  /** Remember the losses of the steps since the last time. */
  #note(first: number, losses: readonly number[]): void {
    const fresh = losses.slice(this.step - first);
    if (fresh.length === 0) {
      return;
    }
    const now = performance.now();
    const seconds = (now - this.#noted) / 1000;
    this.#noted = now;
    this.trainSeconds += seconds;
    for (const loss of fresh) {
      this.step += 1;
      this.history.train.push({ step: this.step, loss, seconds: seconds / fresh.length });
    }
    this.#observer.stepped();
  }

  /** The batches of these steps, each made while the worker trains on the previous one. */
  #batches(first: number, end: number): Dataset {
    const steps = Array.from({ length: end - first }, (_, k) => ({ step: first + k }));
    return new Dataset(steps).batch(1).map(({ step }: Batch) => this.#batchOf(Number(step?.data[0])));
  }

  #batchOf(step: number): Record<string, Tensor> {
    const { train } = this.#digits;
    const { pixels, labels } = train.movedBatch(this.#indicesOf(step), REACH, this.#randomOf(step));
    return feeds(this.#loaded().trainingInputNames, pixels, labels, train.side);
  }

  /** Randomness that seed and step determine, so that a resumed run sees the same images. */
  #randomOf(step: number): () => number {
    return mulberry32(this.settings.seed * SEED_STRIDE + step);
  }

  /** Indices of a batch; each epoch has its own order, which seed and epoch determine. */
  #indicesOf(step: number): Uint32Array {
    const epoch = Math.floor(step / this.stepsPerEpoch);
    if (epoch !== this.#orderEpoch) {
      this.#order = shuffledIndices(this.#digits.train.count, this.settings.seed + epoch);
      this.#orderEpoch = epoch;
    }
    const at = (step % this.stepsPerEpoch) * this.settings.batchSize;
    return this.#order.subarray(at, at + this.settings.batchSize);
  }

  async #evaluate({ record } = { record: true }): Promise<void> {
    const evaluation = await evaluate(this.#digits.test, (pixels, labels) => this.#read(pixels, labels));
    if (record) {
      const { loss, accuracy } = evaluation;
      this.history.test.push({ step: this.step, loss, accuracy });
    }
    this.#observer.evaluated(evaluation);
  }

  /** Run the network on some images, between the batches of a fit. */
  #read(pixels: Float32Array, labels: BigInt64Array): Promise<Results> {
    const { side } = this.#digits.test;
    return this.#exclusively((session) => session.runEvalStep(feeds(session.evalInputNames, pixels, labels, side)));
  }

  /** Linear warm-up to the peak rate, then linear decay to zero at the last step, as the settings are now. */
  #rate(step: number): number {
    const total = this.totalSteps;
    const warmup = Math.min(WARMUP_STEPS, Math.floor(total / 10));
    // As checkpoints keep it: a run that goes on has the same rates to the last bit.
    const learningRate = Math.fround(this.settings.learningRate);
    const warmupStart = 1 / (warmup + 1);
    return schedule({ type: "Linear", learningRate, total: total - warmup, warmup, warmupStart }).rate(step);
  }

  #loaded(): TrainingSession {
    if (!this.#session) {
      throw new Error("the network is still loading");
    }
    return this.#session;
  }

  /** Run one piece of work on the session; the pieces queue up, so predictions go between steps. */
  #exclusively<T>(work: (session: TrainingSession) => Promise<T> | T): Promise<T> {
    const result = this.#tail.then(() => work(this.#loaded()));
    this.#tail = result.catch(() => undefined);
    return result;
  }

  #built(): Artifacts {
    if (!this.#artifacts) {
      throw new Error("the network is still loading");
    }
    return this.#artifacts;
  }

  async #guarded(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.error = error instanceof Error ? error : new Error(String(error));
      this.#setState("failed");
    }
  }

  #setState(state: TrainerState): void {
    this.state = state;
    this.#observer.stateChanged();
  }
}
