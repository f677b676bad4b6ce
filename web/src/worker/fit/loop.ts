/**
 * Fits: epochs of rows that lie in the worker, or of batches as the page has them. `trainweb/fit/trainer.py` is the same in
 * Python. Between steps, at times, the worker receives the page's messages and reports its progress.
 */

import { countBatches, epochBatches, inOrder, refuseEmpty } from "../../data/epoch.js";
import { permutation } from "../../data/random.js";
import type {
  EpochRecord,
  EvalValues,
  FitEnd,
  FitProgress,
  FitSpec,
  FitStart,
  StreamBatch,
  WireBatch,
  WireEvaluation,
} from "../../wire/fit.js";
import { refuseIf } from "../../wire/messages.js";
import type { MaybePromise, WireTensor } from "../../wire/protocol.js";
import { Evaluation, failedBatch } from "../evaluation.js";
import { Batches, type EpochRows, type Rates } from "./batches.js";
import { CheckpointWriter } from "./checkpoint.js";
import { Control } from "./control.js";
import { FitEpochs } from "./epochs.js";
import { Columns } from "./rows.js";
import { FitSteps } from "./steps.js";
import { located, type FailedBatch } from "../places.js";
import type { RanBatches } from "../host.js";
import type { SessionCore } from "../session-core.js";

/** Runs a part of a fit while no other call of its session runs. */
type Turn = <T>(action: () => MaybePromise<T>) => Promise<T>;

type EvaluatedData = "validation" | "training";

/** A fit of one session. */
export class WorkerFit {
  readonly #core: SessionCore;
  readonly #spec: FitSpec;
  readonly #control: Control;
  readonly #train: Columns | null;
  readonly #validation: Columns | null;
  readonly #steps: FitSteps;
  readonly #batches: Batches;
  /** Of all batches so far. */
  readonly #losses: number[] = [];
  /** Number of losses that the page knows. */
  #reported = 0;
  readonly #epochs: FitEpochs;
  #checkpoint: CheckpointWriter | null = null;
  /** True if NaN or infinity has ended it. */
  #isNaN = false;
  #hasEnded = false;

  private constructor(core: SessionCore, spec: FitSpec, port: MessagePort, steps: FitSteps) {
    this.#core = core;
    this.#spec = spec;
    this.#control = new Control(port, spec);
    this.#epochs = new FitEpochs(spec.early);
    this.#steps = steps;
    this.#train = spec.train === null ? null : new Columns(spec.train);
    this.#validation = spec.validation === null ? null : new Columns(spec.validation);
    this.#batches = new Batches(core, steps, this.#train, { ...spec, loss: core.lossCounts.train.losses ?? spec.loss });
  }

  static async open(core: SessionCore, spec: FitSpec, port: MessagePort): Promise<WorkerFit> {
    return new WorkerFit(core, spec, port, await FitSteps.start(core, spec));
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
    const { optimizerSteps } = this.#steps.at;
    const { done: epochs, bestEpoch } = this.#epochs;
    return { optimizerSteps, epochs, bestEpoch, losses: Float32Array.from(this.#losses) };
  }

  async #resume(checkpoint: CheckpointWriter): Promise<void> {
    const record = await checkpoint.resume(this.#spec.early?.metric ?? "loss");
    if (record === null) {
      return;
    }
    const { position, losses } = record;
    const { epoch, step, lossSum, rows, optimizerSteps, terms } = position;
    losses.forEach((loss) => this.#losses.push(loss));
    this.#reported = losses.length;
    const kept = losses.subarray(losses.length - step).filter((loss) => !Number.isNaN(loss)).length;
    await this.#steps.call("tw_fit_resume", epoch, step, kept, optimizerSteps, lossSum, rows);
    this.#steps.terms = terms.slice(0, this.#core.lossCounts.train.terms.length);
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
    } catch (error) {
      throw this.#checkpoint === null ? error : await this.#checkpoint.named(error);
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
    const { batchSize: size, remainder, accumulate, hasSchedule, seed } = this.#spec;
    const { step, optimizerSteps: from } = this.#steps.at;
    const batches = countBatches(columns.rows, size, remainder);
    refuseIf(batches === 0, "BATCH_BEYOND_DATA", { size, rows: columns.rows });
    const count = Math.ceil((batches - step) / accumulate);
    const values = hasSchedule ? await this.#control.ask("rates", { from, count }) : null;
    if (this.#control.isAborted) {
      return;
    }
    const order = seed === null ? inOrder(columns.rows) : permutation(columns.rows, seed, number);
    await turn(async () => {
      await this.#trainOnRows({ order, size, remainder }, batches, values && { from, values });
      await this.#endTraining(number);
    });
    this.#tell();
  }

  /** Train on the rows of an epoch, until an order ends it. */
  async #trainOnRows(rows: EpochRows, batches: number, rates: Rates | null): Promise<void> {
    while (this.#steps.at.step < batches) {
      const { optimizerSteps, waiting } = this.#steps.at;
      const updates = this.#checkpoint?.untilDue(optimizerSteps) ?? Infinity;
      const ran = await this.#batches.onRows(rows, rates, updates * this.#spec.accumulate - waiting);
      if (!(await this.#note(ran, optimizerSteps, () => this.#batches.failed(rows)))) {
        return;
      }
    }
  }

  /** Batches as they come: the page makes one while the worker is at the one before. */
  async #trainStream(number: number, turn: Turn): Promise<void> {
    const control = this.#control;
    const { step: start, optimizerSteps: first } = this.#steps.at;
    const { accumulate, onNaN, hasSchedule, stepsPerEpoch } = this.#spec;
    const done = stepsPerEpoch === null ? start : number * stepsPerEpoch + start;
    const ask = async (count: number): Promise<(StreamBatch & { readonly from: number }) | null> => {
      if (start + count === stepsPerEpoch) {
        return null;
      }
      // If batches may be skipped, the worker gets the rates of all steps that it may be at.
      const most = first + Math.floor(count / accumulate);
      const from = onNaN === null ? most : this.#steps.at.optimizerSteps;
      const steps = hasSchedule ? { from, count: most - from + 1 } : null;
      const next = await control.ask("batch", { of: "train", start: done, steps });
      return next && { ...next, from };
    };
    let count = 0;
    for (let next = ask(count); ; ) {
      const item = await next;
      await control.unpaused();
      if (item === null || this.#isOver) {
        break;
      }
      const { batch, rates, from } = item;
      next = ask(++count);
      await turn(async () => {
        const { optimizerSteps } = this.#steps.at;
        const ran = await this.#batches.on(batch, rates && { from, values: rates });
        await this.#note(ran, optimizerSteps, () => failedBatch(batch));
      });
      this.#tell();
    }
    const isShort = stepsPerEpoch === null ? start + count === 0 : start + count < stepsPerEpoch;
    refuseEmpty(isShort && !this.#isOver, number);
    await turn(() => this.#endTraining(number));
    this.#tell();
  }

  /** Tell the page of batches that it does not know. */
  #tell(): void {
    const losses = Float32Array.from(this.#losses.slice(this.#reported));
    this.#reported = this.#losses.length;
    this.#control.tell({ losses, optimizerSteps: this.#steps.at.optimizerSteps, isNaN: this.#isNaN });
  }

  /** Take note of the epoch; null if all of its batches were undone, or none was trained on. */
  async #endEpoch(values: Pick<EpochRecord, "seconds" | "validation" | "training">): Promise<EpochRecord | null> {
    const { kept, loss, epoch, rows, terms: sums } = this.#steps.at;
    if (kept === 0) {
      return null;
    }
    const core = this.#core;
    const terms = Object.fromEntries(sums.map((sum, k) => [core.lossCounts.train.terms[k] as string, sum / rows]));
    const record = { epoch: epoch + 1, steps: kept, loss, learningRate: core.getLearningRate(), ...values, terms };
    if (this.#isOver) {
      this.#epochs.done.push(record);
      return record;
    }
    if (this.#epochs.observe(record)) {
      const { data } = (await core.call("getContiguousParameters", [false, this.#spec.ema])) as WireTensor;
      this.#epochs.best = data;
    }
    await this.#steps.call("tw_fit_epoch", epoch + 1);
    await this.#keep();
    return record;
  }

  async #keep(): Promise<void> {
    if (this.#checkpoint !== null) {
      await this.#steps.call("tw_fit_keep");
      const { epoch, step, lossSum, rows, optimizerSteps, terms } = this.#steps.at;
      const position = { epoch, step, lossSum, rows, optimizerSteps, terms };
      const { done: epochs, best } = this.#epochs;
      await this.#checkpoint.save({ position, epochs, losses: Float32Array.from(this.#losses), best });
    }
  }

  /**
   * Take note of batches, and listen if it is time; false: an order ends the epoch, or NaN or infinity does.
   *
   * @param optimizerSteps - those before the batches
   * @param failed - the batch behind the last loss
   * @throws the error of that batch, unless it is undone
   */
  async #note({ losses, error }: RanBatches, optimizerSteps: number, failed: () => FailedBatch): Promise<boolean> {
    losses.forEach((loss) => this.#losses.push(loss));
    if (error !== null) {
      const { epoch, step } = this.#steps.at;
      try {
        this.#isNaN = await this.#steps.undo(error);
      } catch (left) {
        throw located(left, failed(), epoch + 1, step + 1);
      }
      if (!this.#isNaN) {
        this.#losses.push(NaN);
      }
    }
    const { optimizerSteps: now } = this.#steps.at;
    if (now > optimizerSteps && this.#checkpoint?.isDue(now) === true) {
      await this.#keep();
    }
    return !this.#isNaN && (!this.#control.isDue || (await this.#control.listen(this.#progress())));
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
      await this.#keep();
    }
    refuseIf(this.#spec.onNaN !== null && this.#steps.at.kept === 0 && !this.#isOver, "ALL_SKIPPED", { epoch: number + 1 });
  }

  /** Use the gradients that are left over at the end of an epoch. */
  async #lastUpdate(): Promise<void> {
    try {
      if (await this.#steps.call("tw_fit_rest")) {
        await this.#batches.update();
      }
    } catch (error) {
      this.#isNaN = await this.#steps.undo(error);
    }
  }

  /** The values of data; null where the fit ends before. */
  async #values(of: EvaluatedData, number: number, turn: Turn): Promise<EvalValues | null> {
    if (this.#isOver) {
      return null;
    }
    const name = of === "training" ? "data" : "validation data";
    const evaluation = new Evaluation(this.#core, this.#spec.evaluation as WireEvaluation, number + 1, name);
    const add = (batches: Iterable<WireBatch>): Promise<void> =>
      turn(() => this.#core.withAverages(this.#spec.ema, () => this.#evaluate(evaluation, batches)));
    const columns = of === "training" ? this.#train : this.#validation;
    if (columns !== null) {
      await add(this.#batchesInOrder(columns));
    } else {
      const ask = (): Promise<StreamBatch | null> =>
        this.#control.ask("batch", { of: "validation", start: 0, steps: null });
      let next = ask();
      for (let item = await next; item !== null; item = await next) {
        next = ask();
        await add([item.batch]);
      }
      refuseEmpty(evaluation.batches === 0 && !this.#isOver, number, "validation data");
    }
    if (this.#isOver) {
      return null;
    }
    const evaluated = evaluation.result();
    return (this.#spec.evaluation?.collects ?? null) === null ? evaluated.values : this.#control.ask("values", evaluated);
  }

  /** Evaluate batches, until an order ends it. */
  async #evaluate(evaluation: Evaluation, batches: Iterable<WireBatch>): Promise<void> {
    for (const batch of batches) {
      await evaluation.add(batch);
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
    await this.#leave();
    await this.#checkpoint?.end();
    if (isWhole && this.#epochs.best !== null) {
      await this.#core.call("loadParametersBuffer", [this.#epochs.best, false]);
    }
  }

  /** End for a session that is released. Nobody is left to hear that its checkpoint was not written. */
  drop(): MaybePromise<void> {
    void this.#checkpoint?.end().catch(() => {});
    return this.#hasEnded ? undefined : this.#leave();
  }

  #leave(): MaybePromise<void> {
    this.#hasEnded = true;
    this.#control.end();
    return this.#steps.end();
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
