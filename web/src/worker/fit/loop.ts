/**
 * Fits: epochs of rows that lie in the worker, or of batches as the page has them. `trainweb/fit/trainer.py` is the same in
 * Python. Between steps, at times, the worker receives the page's messages and reports its progress.
 */

import { countBatches, emptyData, epochBatches } from "../../data/epoch.js";
import { permutation } from "../../data/random.js";
import type {
  EpochRecord,
  EvalValues,
  FitEnd,
  FitProgress,
  FitSpec,
  FitStart,
  StepsTask,
  StreamBatch,
  WireBatch,
  WireClip,
  WireEvaluation,
} from "../../wire/fit.js";
import { sessionError } from "../../wire/messages.js";
import type { MaybePromise, NamedTensor } from "../../wire/protocol.js";
import { Evaluation, failedBatch, fetchesOfLoss, scalarOf } from "../evaluation.js";
import { CheckpointWriter } from "./checkpoint.js";
import { Control } from "./control.js";
import { FitEpochs } from "./epochs.js";
import { Columns, readLoss, RowSteps, Updates } from "./fast-steps.js";
import { FitSteps } from "./steps.js";
import { withValue } from "../python-models.js";
import { located, type FailedBatch } from "../places.js";
import type { SessionCore } from "../session-core.js";

/** Runs a part of a fit while no other call of its session runs. */
type Turn = <T>(action: () => MaybePromise<T>) => Promise<T>;

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

type EvaluatedData = "validation" | "training";

/** A fit of one session. */
export class WorkerFit {
  readonly #core: SessionCore;
  readonly #spec: FitSpec;
  readonly #control: Control;
  readonly #train: Columns | null;
  readonly #validation: Columns | null;
  readonly #trainSteps: RowSteps | null;
  readonly #updates: Updates;
  readonly #steps: FitSteps;
  /** Of all batches so far. */
  readonly #losses: number[] = [];
  /** Number of losses that the page knows. */
  #told = 0;
  readonly #epochs: FitEpochs;
  #checkpoint: CheckpointWriter | null = null;
  /** True if NaN or infinity has ended it. */
  #isNaN = false;
  #hasEnded = false;

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
    try {
      if (this.#spec.checkpoint !== null) {
        this.#checkpoint = await CheckpointWriter.open(this.#core, this.#spec.checkpoint);
        await this.#resume(this.#checkpoint);
      }
    } catch (error) {
      await this.end(false).catch(() => {});
      throw error;
    }
    const { epoch, optimizerSteps } = this.#steps.at;
    const { done: epochs, bestEpoch } = this.#epochs;
    return { position: { epoch, optimizerSteps }, epochs, bestEpoch, losses: Float32Array.from(this.#losses) };
  }

  async #resume(checkpoint: CheckpointWriter): Promise<void> {
    const record = await checkpoint.resume(this.#spec.early?.metric ?? "loss");
    if (record === null) {
      return;
    }
    const { position, losses } = record;
    const { epoch, step, lossSum, rows, optimizerSteps } = position;
    losses.forEach((loss) => this.#losses.push(loss));
    this.#told = losses.length;
    const kept = losses.subarray(losses.length - step).filter((loss) => !Number.isNaN(loss)).length;
    this.#steps.call("tw_fit_resume", epoch, step, kept, optimizerSteps, lossSum, rows);
    record.epochs.forEach((epoch) => this.#epochs.observe(epoch));
    this.#epochs.best = record.best;
  }

  /** All epochs, and the end. */
  async run(turn: Turn): Promise<void> {
    let isWhole = false;
    try {
      await this.#control.listen(null);
      const ended = await this.#runEpochs(turn);
      isWhole = !this.#control.isAborted;
      await this.#control.ask("end", ended);
    } finally {
      const end = turn(() => this.end(isWhole));
      // A session that was released meanwhile has no fit either.
      const matters = isWhole && (this.#checkpoint !== null || this.#epochs.best !== null);
      await (matters ? end : end.catch(() => {}));
    }
  }

  async #runEpochs(turn: Turn): Promise<FitEnd> {
    const { epochs } = this.#spec;
    for (let number = this.#steps.at.epoch; number < epochs && !this.#epochs.areOver; number++) {
      await this.#control.unpaused();
      await this.#epoch(number, turn);
      if (this.#isOver) {
        return this.#isNaN ? "nan" : "stopped";
      }
    }
    return this.#epochs.areOver ? "early" : "done";
  }

  /** True: the epoch does not go on. */
  get #isOver(): boolean {
    return this.#isNaN || this.#control.isStopping;
  }

  async #epoch(number: number, turn: Turn): Promise<void> {
    const start = performance.now();
    await turn(() => this.#steps.call("tw_fit_epoch", number));
    await (this.#train === null ? this.#trainStream(number, turn) : this.#trainRows(this.#train, number, turn));
    const { hasValidation, evaluatesTraining } = this.#spec;
    const validation = hasValidation ? await this.#values("validation", number, turn) : null;
    const training = evaluatesTraining ? await this.#values("training", number, turn) : null;
    if (this.#control.isAborted) {
      return;
    }
    const values = { seconds: (performance.now() - start) / 1e3, validation, training };
    const record = await turn(() => this.#endEpoch(values));
    if (record !== null) {
      await this.#control.ask("epoch", { record, bestEpoch: this.#epochs.bestEpoch });
    }
  }

  async #trainRows(columns: Columns, number: number, turn: Turn): Promise<void> {
    const { batchSize, remainder, accumulate, hasSchedule } = this.#spec;
    const { step, optimizerSteps: from } = this.#steps.at;
    const count = Math.ceil((countBatches(columns.rows, batchSize, remainder) - step) / accumulate);
    const rates = hasSchedule ? await this.#control.ask("rates", { from, count }) : null;
    if (this.#control.isAborted) {
      return;
    }
    await turn(async () => {
      await this.#trainOn(this.#stepsOf(columns, number), rates, from);
      await this.#endTraining(number);
    });
    this.#tell();
  }

  /** Batches as they come: the page makes one while the worker is at the one before. */
  async #trainStream(number: number, turn: Turn): Promise<void> {
    const control = this.#control;
    const { step: start, optimizerSteps: first } = this.#steps.at;
    const { accumulate, onNaN, hasSchedule } = this.#spec;
    const ask = async (count: number): Promise<(StreamBatch & { readonly from: number }) | null> => {
      // If batches may be skipped, the worker gets the rates of all steps that it may be at.
      const most = first + Math.floor(count / accumulate);
      const from = onNaN === null ? most : this.#steps.at.optimizerSteps;
      const steps = hasSchedule ? { from, count: most - from + 1 } : null;
      const next = await control.ask("batch", { of: "train", start, steps });
      return next && { ...next, from };
    };
    let count = 0;
    for (let next = ask(count); ; ) {
      const found = await next;
      await control.unpaused();
      if (found === null || this.#isOver) {
        break;
      }
      const { batch, rates, from } = found;
      next = ask(++count);
      const run = (): MaybePromise<Stepped> => this.#runBatch(batch);
      await turn(() => this.#trainOn([{ run, failed: () => failedBatch(batch) }], rates, from));
      this.#tell();
    }
    if (count === 0 && start === 0 && !this.#isOver) {
      throw emptyData(number);
    }
    await turn(() => this.#endTraining(number));
    this.#tell();
  }

  /** Tell the page of batches that it does not know. */
  #tell(): void {
    const losses = Float32Array.from(this.#losses.slice(this.#told));
    this.#told = this.#losses.length;
    this.#control.tell({ losses, optimizerSteps: this.#steps.at.optimizerSteps, isNaN: this.#isNaN });
  }

  /** Take note of the epoch; null if all of its batches were undone, or none was trained on. */
  async #endEpoch(values: Pick<EpochRecord, "seconds" | "validation" | "training">): Promise<EpochRecord | null> {
    const { kept, loss, epoch } = this.#steps.at;
    if (kept === 0) {
      return null;
    }
    const core = this.#core;
    const record = { epoch: epoch + 1, steps: kept, loss, learningRate: core.getLearningRate(), ...values };
    if (this.#isOver) {
      this.#epochs.add(record);
      return record;
    }
    if (this.#epochs.observe(record)) {
      const { data } = await core.getContiguousParameters(false, this.#spec.ema);
      this.#epochs.best = data;
    }
    this.#steps.call("tw_fit_epoch", epoch + 1);
    this.#keep();
    return record;
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

  /**
   * Train on batches, until an order ends it.
   *
   * @param rates - learning rates of the optimizer steps from `from` on; null: the rate stays as it is
   */
  async #trainOn(batches: Iterable<Step>, rates: Float64Array | null, from: number): Promise<void> {
    for (const step of batches) {
      try {
        await this.#take(step, rates, from);
      } catch (error) {
        const at = this.#steps.at;
        throw located(error, step.failed(), { epoch: at.epoch + 1, batch: at.step + 1 });
      }
      if (this.#isNaN || (this.#control.isDue && !(await this.#control.listen(this.#progress())))) {
        return;
      }
    }
  }

  /** Use gradients that wait where the epoch or the fit ends. */
  async #endTraining(number: number): Promise<void> {
    const { isStopping, isAborted } = this.#control;
    if (isAborted || this.#isNaN) {
      return;
    }
    if (this.#steps.at.waiting > 0) {
      await this.#lastUpdate();
    } else if (isStopping) {
      this.#keep();
    }
    if (this.#spec.onNaN !== null && this.#steps.at.kept === 0 && !this.#isOver) {
      throw sessionError("ALL_SKIPPED", { epoch: number + 1 });
    }
  }

  /** Train on a batch, and update the parameters if it is time. */
  async #take(step: Step, rates: Float64Array | null, from: number): Promise<void> {
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
      this.#isNaN = steps.undo(error);
      loss = NaN;
    }
    if (!this.#isNaN) {
      this.#losses.push(loss);
    }
    const { optimizerSteps } = steps.at;
    if (optimizerSteps > before.optimizerSteps && this.#checkpoint?.isDue(optimizerSteps) === true) {
      this.#keep();
    }
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
      this.#isNaN = this.#steps.undo(error);
    }
  }

  /** The values of data; null where the fit ends before. */
  async #values(of: EvaluatedData, number: number, turn: Turn): Promise<EvalValues | null> {
    if (this.#isOver) {
      return null;
    }
    const evaluation = new Evaluation(this.#core, this.#spec.evaluation as WireEvaluation);
    const add = (batches: Iterable<WireBatch>): Promise<void> =>
      turn(() => this.#core.withAverages(this.#spec.ema, () => this.#evaluate(evaluation, batches, of)));
    const columns = of === "training" ? this.#train : this.#validation;
    if (columns !== null) {
      await add(this.#batchesInOrder(columns));
    } else {
      const ask = (): Promise<StreamBatch | null> =>
        this.#control.ask("batch", { of: "validation", start: 0, steps: null });
      for (let next = ask(); ; ) {
        const found = await next;
        if (found === null) {
          break;
        }
        next = ask();
        await add([found.batch]);
      }
      if (evaluation.batches === 0 && !this.#isOver) {
        throw emptyData(number);
      }
    }
    if (this.#isOver) {
      return null;
    }
    const evaluated = evaluation.result();
    return this.#spec.evaluation?.collects !== true ? evaluated.values : this.#control.ask("values", evaluated);
  }

  /** Evaluate batches, until an order ends it. */
  async #evaluate(evaluation: Evaluation, batches: Iterable<WireBatch>, of: EvaluatedData): Promise<void> {
    for (const batch of batches) {
      try {
        const done = evaluation.add(batch);
        if (done instanceof Promise) {
          await done;
        }
      } catch (error) {
        const place = { epoch: this.#steps.at.epoch + 1, batch: evaluation.batches + 1 };
        throw located(error, failedBatch(batch), place, of === "training" ? "the data" : "validation data");
      }
      if (this.#control.isDue && !(await this.#control.listen(null))) {
        return;
      }
    }
  }

  /** End, once. @param isWhole - it did not fail */
  async end(isWhole: boolean): Promise<void> {
    if (this.#hasEnded) {
      return;
    }
    this.#hasEnded = true;
    this.#control.end();
    this.#steps.end();
    await this.#checkpoint?.end();
    if (isWhole && this.#epochs.best !== null) {
      this.#core.loadParametersBuffer(this.#epochs.best, false);
    }
  }

  *#stepsOf(columns: Columns, epoch: number): Generator<Step> {
    const { batchSize, remainder, seed, loss: name } = this.#spec;
    const core = this.#core;
    const { output } = core.host.lossCounts.train;
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
            loss: this.#lossOf(() => readLoss(core.host, plan, name)),
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
      loss: this.#lossOf(() => scalarOf(loss, name)),
      weight: output === null ? rows : scalarOf(count, output),
    }));
  }

  /** The loss of a step; where it is not one number, the fit has begun nevertheless: the gradients are others now. */
  #lossOf(read: () => number): number {
    try {
      return read();
    } catch (error) {
      this.#core.host.memory.demand("tw_fit_trained", NaN, 0);
      throw error;
    }
  }

  *#batchesInOrder(columns: Columns): Generator<WireBatch> {
    for (const rows of epochBatches(inOrder(columns.rows), this.#spec.batchSize, "keep")) {
      yield { feeds: columns.feeds(rows, this.#core.info.evalInputNames), rows: rows.length, first: rows[0] as number };
    }
  }

  #progress(): FitProgress {
    const { epoch, step, loss } = this.#steps.at;
    return { epoch: epoch + 1, step, loss };
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
