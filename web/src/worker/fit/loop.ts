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
import { NumericsError } from "../../wire/errors.js";
import { sessionError } from "../../wire/messages.js";
import type { MaybePromise, NamedTensor } from "../../wire/protocol.js";
import { Evaluation, failedBatch, fetchesOfLoss, scalarOf } from "../evaluation.js";
import { CheckpointWriter } from "./checkpoint.js";
import { FitEpochs } from "./epochs.js";
import { Columns, readLoss, RowSteps, Updates } from "./fast-steps.js";
import { MeanLoss } from "../loss-counts.js";
import { NanGuard } from "./on-nan.js";
import { withValue } from "../python-models.js";
import { located, type FailedBatch } from "../places.js";
import { ProximalTerm } from "./proximal.js";
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
  readonly #proximal: ProximalTerm | null;
  /** Batches whose gradients no optimizer step took yet. */
  #waiting = 0;
  #optimizerSteps = 0;
  #epoch = 0;
  #step = 0;
  /** Batches of the epoch that were not undone. */
  #kept = 0;
  #mean: MeanLoss;
  /** Of all batches so far. */
  #losses: number[] = [];
  readonly #epochs: FitEpochs;
  #checkpoint: CheckpointWriter | null = null;
  readonly #guard: NanGuard | null;
  /** How the session was before the fit; null: it is another since. */
  #before: { readonly overwrites: boolean; readonly rate: number } | null;
  /** The epoch whose begin can be gone back to. */
  #goodEpoch = -1;

  constructor(core: SessionCore, spec: FitSpec, port: MessagePort) {
    this.#core = core;
    this.#spec = spec;
    this.#control = new Control(port, spec);
    this.#epochs = new FitEpochs(spec.early);
    this.#mean = new MeanLoss(core.host.lossCounts.train);
    this.#before = { overwrites: core.overwrites, rate: core.getLearningRate() };
    this.#updates = updatesOf(core, spec.clip);
    this.#proximal = spec.proximal > 0 ? new ProximalTerm(core, spec.proximal) : null;
    this.#guard = spec.onNaN === null ? null : new NanGuard(core, spec.onNaN);
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
    const position = { epoch: this.#epoch, step: this.#step, optimizerSteps: this.#optimizerSteps };
    return { ...this.#epochs.answer(this.#epochs.done), position, losses: Float32Array.from(this.#losses) };
  }

  async #resume(checkpoint: CheckpointWriter): Promise<void> {
    const record = await checkpoint.resume(this.#spec.early?.metric ?? "loss");
    if (record === null) {
      return;
    }
    const { position, losses } = record;
    this.#before = null;
    this.#losses = [...losses];
    this.#optimizerSteps = position.optimizerSteps;
    this.#begin(position.epoch, position.step, new MeanLoss(this.#core.host.lossCounts.train, position));
    this.#kept = this.#losses.slice(this.#losses.length - position.step).filter((loss) => !Number.isNaN(loss)).length;
    record.epochs.forEach((epoch) => this.#epochs.observe(epoch));
    this.#epochs.best = record.best;
  }

  /** The page has an epoch end. */
  async endEpoch({ isStopped, ...told }: EpochTask): Promise<EpochAnswer> {
    if (this.#kept === 0) {
      return this.#epochs.answer([]);
    }
    const core = this.#core;
    const rate = core.getLearningRate();
    const record = { epoch: this.#epoch + 1, steps: this.#kept, loss: this.#mean.value, learningRate: rate, ...told };
    if (isStopped) {
      this.#epochs.add(record);
    } else {
      if (this.#epochs.observe(record)) {
        const { data } = await core.getContiguousParameters(false, this.#spec.ema);
        this.#epochs.best = data;
      }
      this.#begin(this.#epoch + 1);
      this.#keep();
    }
    return this.#epochs.answer([record]);
  }

  #begin(epoch: number, step = 0, mean = new MeanLoss(this.#core.host.lossCounts.train)): void {
    [this.#epoch, this.#step, this.#kept, this.#mean] = [epoch, step, 0, mean];
  }

  #keep(): void {
    this.#core.setLazyReset(true);
    const position = { epoch: this.#epoch, step: this.#step, ...this.#mean.position, optimizerSteps: this.#optimizerSteps };
    const { done: epochs, best } = this.#epochs;
    this.#checkpoint?.save({ position, epochs, losses: Float32Array.from(this.#losses), best });
    this.#guard?.keepGood();
  }

  /** Train on an epoch of the rows, or on batches. */
  async train(task: TrainTask): Promise<TrainAnswer> {
    const core = this.#core;
    if (task.epoch !== this.#epoch) {
      this.#begin(task.epoch);
    }
    const guard = this.#guard;
    if (guard !== null && this.#goodEpoch !== task.epoch) {
      this.#goodEpoch = task.epoch;
      guard.keepGood();
    }
    const losses: number[] = [];
    let current: Step | null = null;
    try {
      for (const step of guard?.hasEnded === true ? [] : this.#stepsOf(task)) {
        current = step;
        const loss = await this.#take(step, task);
        if (guard?.hasEnded === true) {
          break;
        }
        losses.push(loss);
        if (this.#control.isDue && !(await this.#control.listen(this.#progress()))) {
          break;
        }
      }
      await this.#endTask(task, guard);
    } catch (error) {
      // Gradients that no optimizer step has used are dropped, unless the fit was refused: then nothing changes.
      this.#waiting = 0;
      core.setLazyReset(this.#before?.overwrites ?? true);
      if (this.#before !== null) {
        core.setLearningRate(this.#before.rate);
      }
      const place = { epoch: this.#epoch + 1, batch: this.#step + 1 };
      throw current === null ? error : located(error, current.failed(), place);
    }
    return {
      losses: Float32Array.from(losses),
      optimizerSteps: this.#optimizerSteps,
      isNaN: guard?.hasEnded === true,
    };
  }

  /** Use gradients that wait, or drop them, where the epoch or the fit ends. */
  async #endTask(task: TrainTask, guard: NanGuard | null): Promise<void> {
    const isStopping = task.isStopped || this.#control.isStopping;
    if (this.#control.isAborted || guard?.hasEnded === true) {
      this.#waiting = 0;
    } else if (this.#waiting > 0 && (task.isLast || isStopping)) {
      await this.#lastUpdate();
    } else if (this.#waiting === 0 && isStopping) {
      this.#keep();
    }
    this.#core.setLazyReset(this.#waiting === 0);
    if (guard?.hasEnded === false && task.isLast && this.#kept === 0 && !isStopping) {
      throw sessionError("ALL_SKIPPED", { epoch: task.epoch + 1 });
    }
  }

  /** Train on a batch, and update the parameters if it is time; the loss, NaN if the batch was undone. */
  async #take(step: Step, { rates, from }: TrainTask): Promise<number> {
    const waiting = this.#waiting;
    this.#guard?.begin();
    try {
      if (waiting === 0 && rates !== null) {
        this.#core.setLearningRate(rates[this.#optimizerSteps - from] as number);
      }
      const stepped = step.run(waiting === 0);
      const { loss, weight } = stepped instanceof Promise ? await stepped : stepped;
      this.#before = null;
      this.#check(loss, this.#step + 1);
      this.#waiting++;
      const isUpdated = this.#waiting === this.#spec.accumulate;
      if (isUpdated) {
        await this.#update(loss, this.#step + 1);
      }
      this.#note(loss, weight);
      if (isUpdated && this.#checkpoint?.isDue(this.#optimizerSteps) === true) {
        this.#keep();
      }
      return loss;
    } catch (error) {
      const { action, hasEnded } = this.#undo(error);
      this.#waiting = action === "restore" ? 0 : waiting;
      if (!hasEnded) {
        this.#note(NaN, null);
      }
      return NaN;
    }
  }

  /** @throws TrainwebError for a loss that is NaN or infinite; with `onNaN` NumericsError for gradients and others, too */
  #check(loss: number, step: number): void {
    const epoch = this.#epoch + 1;
    this.#guard?.check(loss, step, epoch);
    if (!Number.isFinite(loss)) {
      throw sessionError("NON_FINITE_LOSS", { value: loss, step, epoch });
    }
  }

  /** Use the gradients that wait. */
  async #update(loss: number, step: number): Promise<void> {
    this.#proximal?.add();
    const updated = this.#updates.run();
    if (updated instanceof Promise) {
      await updated;
    }
    this.#check(loss, step);
    this.#waiting = 0;
    this.#optimizerSteps++;
  }

  /** Use the gradients that are left over at the end of an epoch. */
  async #lastUpdate(): Promise<void> {
    this.#guard?.begin();
    try {
      await this.#update(0, this.#step);
    } catch (error) {
      this.#undo(error);
    }
    this.#waiting = 0;
  }

  /** Undo a batch that made NaN or infinity; throws other errors. */
  #undo(error: unknown): NanGuard {
    if (this.#guard === null || !(error instanceof NumericsError)) {
      throw error;
    }
    this.#guard.undo(error, this.#step + 1, this.#epoch + 1);
    return this.#guard;
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
        const place = { epoch: this.#epoch + 1, batch: evaluation.batches + 1 };
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
    this.#guard?.end();
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
        yield { run: (overwrite) => this.#runBatch(batch, overwrite), failed: () => failedBatch(batch) };
      }
      return;
    }
    const { output } = core.host.lossCounts.train;
    const columns = this.#train as Columns;
    const order = seed === null ? inOrder(columns.rows) : permutation(columns.rows, seed, epoch);
    const steps = this.#trainSteps;
    // A fit that goes on has done the first ones.
    let skipped = this.#step;
    for (const rows of epochBatches(order, batchSize, remainder)) {
      if (skipped > 0) {
        skipped--;
        continue;
      }
      const feeds = (): NamedTensor[] => columns.feeds(rows, core.info.trainingInputNames);
      const failed = (): FailedBatch => ({ feeds: feeds(), rows: rows.length, numberOf: (k) => rows[k] as number });
      if (steps === null) {
        yield { run: (overwrite) => this.#runBatch({ feeds: feeds(), rows: rows.length, first: 0 }, overwrite), failed };
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

  #runBatch({ feeds, rows }: WireBatch, overwrite: boolean): MaybePromise<Stepped> {
    const name = this.#spec.loss;
    const { output } = this.#core.host.lossCounts.train;
    this.#core.setLazyReset(overwrite);
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

  /** @param weight - by what the loss was divided; null: the batch was undone */
  #note(loss: number, weight: number | null): void {
    this.#step++;
    this.#losses.push(loss);
    if (weight !== null) {
      this.#kept++;
      this.#mean.add(loss, weight);
    }
  }

  #progress(): FitProgress {
    return { epoch: this.#epoch + 1, step: this.#step, loss: this.#mean.value };
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
