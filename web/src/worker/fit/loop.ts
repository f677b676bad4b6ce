/**
 * Many steps at once: an epoch of rows that lie in the worker, or batches as they come. `trainweb/fit/trainer.py` is the
 * same in Python. Between steps, at times, the worker receives the page's messages and reports its progress.
 */

import { epochBatches } from "../../data/epoch.js";
import { permutation } from "../../data/random.js";
import { FIT_ORDERS, FIT_TELL } from "../../wire/fit.js";
import type {
  EpochAnswer,
  EpochTask,
  Evaluated,
  EvaluatedData,
  FitOrder,
  FitProgress,
  FitSpec,
  FitStart,
  StepsTask,
  TrainAnswer,
  TrainTask,
  WireBatch,
  WireClip,
  WireEvaluation,
} from "../../wire/fit.js";
import { sessionError } from "../../wire/messages.js";
import type { MaybePromise, NamedTensor } from "../../wire/protocol.js";
import { Evaluation, failedBatch, fetchesOfLoss, scalarOf } from "../evaluation.js";
import { CheckpointWriter } from "./checkpoint.js";
import { FitEpochs } from "./epochs.js";
import { Columns, readLoss, RowSteps, Updates } from "./fast-steps.js";
import { FitSteps } from "./steps.js";
import { withValue } from "../python-models.js";
import { located, type FailedBatch } from "../places.js";
import type { SessionCore } from "../session-core.js";

/** Steps follow each other for this long before the worker listens, if they are shorter: to listen takes time, too. */
const SLICE_MS = 4;
/** The least time between two words on the progress: a frame. */
const FRAME_MS = 16;

/** The result of a step. */
interface Stepped {
  readonly loss: number;
  /** By what the loss was divided. */
  readonly weight: number;
}

/** The step over some data: one at a time, in their order. */
interface Step {
  run(overwrite: boolean): MaybePromise<Stepped>;
  /** The batch, where its step failed. */
  failed(): FailedBatch;
}

/** A fit of one session. */
export class WorkerFit {
  readonly #core: SessionCore;
  readonly #spec: FitSpec;
  readonly #control: Control;
  readonly #train: Columns | null;
  readonly #validation: Columns | null;
  readonly #trainSteps: RowSteps | null;
  #evaluation: Evaluation | null = null;
  readonly #updates: Updates;
  readonly #steps: FitSteps;
  /** Of all batches so far. */
  #losses: number[] = [];
  readonly #epochs: FitEpochs;
  #checkpoint: CheckpointWriter | null = null;

  constructor(core: SessionCore, spec: FitSpec, port: MessagePort) {
    this.#core = core;
    this.#spec = spec;
    this.#control = new Control(port, spec);
    this.#epochs = new FitEpochs(spec.early);
    this.#updates = updatesOf(core, spec.clip);
    this.#steps = new FitSteps(core.host, spec);
    this.#train = spec.train === null ? null : new Columns(spec.train);
    this.#validation = spec.validation === null ? null : new Columns(spec.validation);
    const { trainingInputNames, valuesDecide } = core.info;
    const isFast = this.#train !== null && !valuesDecide && !core.checksNumerics;
    this.#trainSteps = isFast ? new RowSteps(core.host, "train", this.#train as Columns, trainingInputNames) : null;
  }

  /** Go on from the checkpoint, if there is one. */
  async start(): Promise<FitStart> {
    if (this.#spec.checkpoint !== null) {
      this.#checkpoint = await CheckpointWriter.open(this.#core, this.#spec.checkpoint);
      await this.#resume(this.#checkpoint);
    }
    const { at: position } = this.#steps;
    return { ...this.#epochs.answer(this.#epochs.done), position, losses: Float32Array.from(this.#losses) };
  }

  async #resume(checkpoint: CheckpointWriter): Promise<void> {
    const record = await checkpoint.resume(this.#spec.early?.metric ?? "loss");
    if (record === null) {
      return;
    }
    const { position, losses } = record;
    const { epoch, step, lossSum, rows, optimizerSteps } = position;
    this.#losses = [...losses];
    const kept = losses.subarray(losses.length - step).filter((loss) => !Number.isNaN(loss)).length;
    this.#steps.call("tw_fit_resume", epoch, step, kept, optimizerSteps, lossSum, rows);
    record.epochs.forEach((epoch) => this.#epochs.observe(epoch));
    this.#epochs.best = record.best;
  }

  /** The page has an epoch end. */
  async endEpoch({ isStopped, ...told }: EpochTask): Promise<EpochAnswer> {
    const { kept, loss, epoch } = this.#steps.at;
    if (kept === 0) {
      return this.#epochs.answer([]);
    }
    const core = this.#core;
    const record = { epoch: epoch + 1, steps: kept, loss, learningRate: core.getLearningRate(), ...told };
    if (isStopped) {
      this.#epochs.add(record);
    } else {
      if (this.#epochs.observe(record)) {
        const { data } = await core.getContiguousParameters(false, this.#spec.ema);
        this.#epochs.best = data;
      }
      this.#steps.call("tw_fit_epoch", epoch + 1);
      this.#keep();
    }
    return this.#epochs.answer([record]);
  }

  #keep(): void {
    if (this.#checkpoint !== null) {
      this.#steps.call("tw_fit_keep");
      const { epoch, step, lossSum, rows, optimizerSteps } = this.#steps.at;
      const position = { epoch, step, lossSum, rows, optimizerSteps };
      const { done: epochs, best } = this.#epochs;
      this.#checkpoint.save({ position, epochs, losses: Float32Array.from(this.#losses), best });
    }
  }

  /** Train on an epoch of the rows, or on batches. */
  async train(task: TrainTask): Promise<TrainAnswer> {
    const steps = this.#steps;
    steps.call("tw_fit_epoch", task.epoch);
    const losses: number[] = [];
    let current: Step | null = null;
    try {
      for (const step of steps.hasEnded ? [] : this.#stepsOf(task)) {
        current = step;
        const loss = await this.#take(step, task);
        if (steps.hasEnded) {
          break;
        }
        losses.push(loss);
        if (this.#control.isDue && !(await this.#control.listen(this.#progress()))) {
          break;
        }
      }
      await this.#endTask(task);
    } catch (error) {
      const { epoch, step } = steps.at;
      steps.end();
      throw current === null ? error : located(error, current.failed(), { epoch: epoch + 1, batch: step + 1 });
    }
    const { optimizerSteps } = steps.at;
    return { losses: Float32Array.from(losses), optimizerSteps, isNaN: steps.hasEnded };
  }

  /** Use gradients that wait where the epoch or the fit ends. */
  async #endTask(task: TrainTask): Promise<void> {
    const steps = this.#steps;
    const isStopping = task.isStopped || this.#control.isStopping;
    if (this.#control.isAborted || steps.hasEnded) {
      return;
    }
    const { waiting } = steps.at;
    if (waiting === 0 && isStopping) {
      this.#keep();
    } else if (waiting > 0 && (task.isLast || isStopping)) {
      await this.#lastUpdate();
    }
    if (this.#spec.onNaN !== null && !steps.hasEnded && task.isLast && steps.at.kept === 0 && !isStopping) {
      throw sessionError("ALL_SKIPPED", { epoch: task.epoch + 1 });
    }
  }

  /** Train on a batch, and update the parameters if it is time; the loss, NaN if the batch was undone. */
  async #take(step: Step, { rates, from }: TrainTask): Promise<number> {
    const steps = this.#steps;
    steps.call("tw_fit_batch");
    const before = steps.at;
    let loss: number;
    try {
      if (before.waiting === 0 && rates !== null) {
        this.#core.setLearningRate(rates[before.optimizerSteps - from] as number);
      }
      const stepped = step.run(before.waiting === 0);
      const { weight, ...done } = stepped instanceof Promise ? await stepped : stepped;
      ({ loss } = done);
      if (steps.call("tw_fit_trained", loss, weight)) {
        await this.#update();
      }
    } catch (error) {
      steps.undo(error);
      loss = NaN;
    }
    if (!steps.hasEnded) {
      this.#losses.push(loss);
    }
    const { optimizerSteps } = steps.at;
    if (optimizerSteps > before.optimizerSteps && this.#checkpoint?.isDue(optimizerSteps) === true) {
      this.#keep();
    }
    return loss;
  }

  /** Use the gradients that wait. */
  async #update(): Promise<void> {
    const updated = this.#updates.run();
    if (updated instanceof Promise) {
      await updated;
    }
    this.#steps.call("tw_fit_updated");
  }

  /** Use the gradients that are left over at the end of an epoch. */
  async #lastUpdate(): Promise<void> {
    try {
      if (this.#steps.call("tw_fit_rest")) {
        await this.#update();
      }
    } catch (error) {
      this.#steps.undo(error);
    }
  }

  /** Evaluate the rows, or batches; the values when the last have come. */
  async evaluate(
    batches: readonly WireBatch[] | null,
    isLast: boolean,
    data: EvaluatedData,
  ): Promise<Evaluated | null> {
    return this.#core.withAverages(this.#spec.ema, () => this.#evaluate(batches, isLast, data));
  }

  async #evaluate(
    batches: readonly WireBatch[] | null,
    isLast: boolean,
    data: EvaluatedData,
  ): Promise<Evaluated | null> {
    const spec = this.#spec.evaluation as WireEvaluation;
    this.#evaluation ??= new Evaluation(this.#core, spec);
    const evaluation = this.#evaluation;
    for (const batch of batches ?? this.#batchesInOrder(data)) {
      try {
        const done = evaluation.add(batch);
        if (done instanceof Promise) {
          await done;
        }
      } catch (error) {
        const place = { epoch: this.#steps.at.epoch + 1, batch: evaluation.batches + 1 };
        throw located(error, failedBatch(batch), place, data === "training" ? "the data" : "validation data");
      }
      if (this.#control.isDue && !(await this.#control.listen(null))) {
        this.#evaluation = null;
        return null;
      }
    }
    if (!isLast) {
      return null;
    }
    this.#evaluation = null;
    return evaluation.result();
  }

  /** @param isWhole - it did not fail */
  async end(isWhole: boolean): Promise<void> {
    this.#control.end();
    this.#steps.end();
    await this.#checkpoint?.end();
    if (isWhole && this.#epochs.best !== null) {
      this.#core.loadParametersBuffer(this.#epochs.best, false);
    }
  }

  *#stepsOf({ batches, seed, epoch }: TrainTask): Generator<Step> {
    const { batchSize, remainder, loss: name } = this.#spec;
    const core = this.#core;
    if (batches !== null) {
      for (const batch of batches) {
        yield { run: () => this.#runBatch(batch), failed: () => failedBatch(batch) };
      }
      return;
    }
    const { output } = core.host.lossCounts.train;
    const columns = this.#train as Columns;
    const order = seed === null ? inOrder(columns.rows) : permutation(columns.rows, seed, epoch);
    const steps = this.#trainSteps;
    // A fit that goes on has done the first ones.
    let skipped = this.#steps.at.step;
    for (const rows of epochBatches(order, batchSize, remainder)) {
      if (skipped > 0) {
        skipped--;
        continue;
      }
      const feeds = (): NamedTensor[] => columns.feeds(rows, core.info.trainingInputNames);
      const failed = (): FailedBatch => ({ feeds: feeds(), rows: rows.length, numberOf: (k) => rows[k] as number });
      if (steps === null) {
        yield { run: () => this.#runBatch({ feeds: feeds(), rows: rows.length, first: 0 }), failed };
      } else {
        const run = (overwrite: boolean): MaybePromise<Stepped> =>
          withValue(steps.run(rows, overwrite), (plan) => ({
            loss: readLoss(core.host, plan, name),
            weight: output === null ? rows.length : readLoss(core.host, plan, output),
          }));
        yield { run, failed };
      }
    }
  }

  #runBatch({ feeds, rows }: WireBatch): MaybePromise<Stepped> {
    const name = this.#spec.loss;
    const { output } = this.#core.host.lossCounts.train;
    return withValue(this.#core.step("train", feeds, fetchesOfLoss(name, output)), ({ results: [loss, count] }) => ({
      loss: scalarOf(loss, name),
      weight: output === null ? rows : scalarOf(count, output),
    }));
  }

  *#batchesInOrder(data: EvaluatedData): Generator<WireBatch> {
    const columns = (data === "training" ? this.#train : this.#validation) as Columns;
    for (const rows of epochBatches(inOrder(columns.rows), this.#spec.batchSize, "keep")) {
      yield { feeds: columns.feeds(rows, this.#core.info.evalInputNames), rows: rows.length, first: rows[0] as number };
    }
  }

  #progress(): FitProgress {
    const { epoch, step, loss } = this.#steps.at;
    return { epoch: epoch + 1, step, loss };
  }
}

/** Messages of the page, and reports to it. */
class Control {
  readonly #port: MessagePort;
  readonly #self = new MessageChannel();
  readonly #shared: FitSpec["order"];
  /** Whether anybody wants to know of the progress: what nobody hears takes time of the page. */
  #tells: boolean;
  #heard: FitOrder = "resume";
  #resumed: (() => void) | null = null;
  #listened = performance.now();
  #told = 0;

  constructor(port: MessagePort, { order, tells }: Pick<FitSpec, "order" | "tells">) {
    this.#port = port;
    this.#shared = order;
    this.#tells = tells;
    port.onmessage = ({ data }: MessageEvent<FitOrder | typeof FIT_TELL>) => {
      if (data === FIT_TELL) {
        this.#tells = true;
        return;
      }
      // A fit that ends does not begin again.
      this.#heard = this.isStopping ? this.#heard : data;
      this.#resumed?.();
    };
  }

  get #order(): FitOrder {
    return this.#shared === null ? this.#heard : (FIT_ORDERS[Atomics.load(this.#shared, 0)] as FitOrder);
  }

  get isStopping(): boolean {
    const order = this.#order;
    return order === "stop" || order === "abort";
  }

  get isAborted(): boolean {
    return this.#order === "abort";
  }

  /** Whether it is time to listen: for a while nobody did, or something is there to hear. */
  get isDue(): boolean {
    return this.#order !== "resume" || performance.now() - this.#listened > SLICE_MS;
  }

  /** Tell the progress, if it is time, and hear what there is to hear; false: end here. */
  async listen(progress: FitProgress | null): Promise<boolean> {
    if (this.#tells && progress !== null && performance.now() - this.#told > FRAME_MS) {
      this.#told = performance.now();
      this.#port.postMessage(progress);
    }
    await this.#turn();
    while (this.#order === "pause") {
      await new Promise<void>((resolve) => {
        this.#resumed = resolve;
      });
    }
    this.#listened = performance.now();
    return !this.isStopping;
  }

  end(): void {
    this.#port.close();
    this.#self.port1.close();
  }

  /** A turn of the event loop, in which the worker receives waiting messages. */
  #turn(): Promise<void> {
    return new Promise((resolve) => {
      this.#self.port1.onmessage = () => resolve();
      this.#self.port2.postMessage(null);
    });
  }
}

/** The optimizer's steps of a session. */
function updatesOf(core: SessionCore, clip: WireClip | null): Updates {
  const checked = core.checksNumerics ? () => withValue(core.step("optimizer", [], []), () => {}) : null;
  return new Updates(core.host, clip, checked);
}

function inOrder(rows: number): Uint32Array {
  return Uint32Array.from({ length: rows }, (_, k) => k);
}

/**
 * Steps on batches, each with its optimizer step.
 *
 * @returns the losses
 */
export async function runTrainSteps(core: SessionCore, { batches, stacked }: StepsTask, name: string): Promise<Float32Array> {
  const { host, info } = core;
  const columns = stacked === null ? null : new Columns(stacked, true);
  const isFast = !info.valuesDecide && !core.checksNumerics;
  const steps = columns === null || !isFast ? null : new RowSteps(host, "train", columns, info.trainingInputNames);
  const updates = updatesOf(core, null);
  const losses = new Float32Array(columns?.rows ?? batches.length);
  for (let k = 0; k < losses.length; k++) {
    try {
      let loss: MaybePromise<number>;
      if (steps === null) {
        core.setLazyReset(true);
        const feeds = columns?.batch(k) ?? (batches[k] as WireBatch).feeds;
        const run = core.step("train", feeds, [{ name }]);
        loss = withValue(run, ({ results }) => scalarOf(results[0], name));
      } else {
        loss = withValue(steps.run(Uint32Array.of(k), true), (plan) => readLoss(host, plan, name));
      }
      losses[k] = loss instanceof Promise ? await loss : loss;
      const update = updates.run();
      if (update instanceof Promise) {
        await update;
      }
    } catch (error) {
      throw Object.assign(error as Error, { step: k });
    } finally {
      core.setLazyReset(true);
    }
  }
  return losses;
}
