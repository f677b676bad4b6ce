/** Training on batches. Batches of rows run several at once where plans allow it, others one by one. */

import { batchRows, inOrder } from "../../data/epoch.js";
import type { Remainder, StepsTask, WireBatch, WireClip } from "../../wire/fit.js";
import type { Feed, NamedTensor } from "../../wire/protocol.js";
import { CLIP_INPUTS } from "../bundle/bundle.js";
import { MOST_BATCHES, MOST_BYTES } from "../../wire/constants.js";
import { fetchesOfLoss, numbersOf } from "../evaluation.js";
import { signatureOf } from "../feeds.js";
import type { RanBatches, StepPlans } from "../host.js";
import type { FailedBatch } from "../places.js";
import type { SessionCore } from "../session-core.js";
import { checkRate } from "../session-values.js";
import { CLIP, OPTIMIZER, TRAIN } from "../step-kind.js";
import { Columns } from "./rows.js";
import { FitSteps } from "./steps.js";

const NO_BYTES = new Uint8Array(0);

/** Learning rates of the optimizer steps from a number on. */
export interface Rates {
  readonly from: number;
  readonly values: Float64Array;
}

/** Settings of a session's training on batches. */
export interface BatchOptions {
  /** An output of the training model, or that with the loss and its terms. */
  readonly loss: string;
  readonly clip: WireClip | null;
  /** Batches for an optimizer step. */
  readonly accumulate: number;
}

/** The rows of an epoch in their order, and how they are cut into batches. */
export interface EpochRows {
  readonly order: Uint32Array;
  readonly size: number;
  readonly remainder: Remainder;
}

/** Trains on batches, with the optimizer steps that are due. */
export class Batches {
  readonly #core: SessionCore;
  readonly #steps: FitSteps;
  readonly #columns: Columns | null;
  readonly #options: BatchOptions;
  readonly #numbers: number;
  /** False: rows are trained on one batch at a time. */
  #runsSeveral: boolean;
  /** Batches to run at once. */
  #most = 1;

  /** @param columns - data that lies in the worker */
  constructor(core: SessionCore, steps: FitSteps, columns: Columns | null, options: BatchOptions) {
    this.#core = core;
    this.#steps = steps;
    this.#columns = columns;
    this.#options = options;
    const { losses, terms } = core.lossCounts.train;
    this.#numbers = 1 + (options.loss === losses ? terms.length : 0);
    this.#runsSeveral = columns !== null && !core.info.valuesDecide && core.numerics === null;
  }

  /**
   * Train on the next batches of an epoch.
   *
   * @param most - batches at most
   * @returns the losses up to a batch that fails, and its error
   */
  async onRows({ order, size, remainder }: EpochRows, rates: Rates | null, most: number): Promise<RanBatches> {
    const { step } = this.#steps.at;
    const whole = Math.floor(order.length / size) - step;
    const rows = whole > 0 ? order.subarray(step * size, (step + whole) * size) : batchRows(order, step, size, remainder);
    const batchSize = Math.min(size, rows.length);
    try {
      const plans = this.#runsSeveral ? await this.#plans(batchSize) : null;
      if (plans !== null) {
        return await this.#runSeveral(plans, rows, batchSize, rates, most);
      }
    } catch (error) {
      return { losses: new Float32Array(0), error };
    }
    this.#runsSeveral = false;
    return this.on({ feeds: this.#feeds(rows.subarray(0, size)), rows: batchSize }, rates);
  }

  /** The plans of a batch, loaded in turn; null: they do not stay loaded together, or the loss is not one float32. */
  async #plans(size: number): Promise<StepPlans | null> {
    const { host, runner, lossCounts, info } = this.#core;
    const { clip: limits, accumulate, loss } = this.#options;
    const target = host.targetOf(TRAIN);
    const types = (this.#columns as Columns).types(size, info.trainingInputNames);
    const update = await runner.prepare(OPTIMIZER, true, []);
    const clipTypes = limits && signatureOf(CLIP_INPUTS, [limitsOf(limits)], () => NO_BYTES);
    const clip = clipTypes && (await runner.prepare(CLIP, true, clipTypes));
    const other = accumulate === 1 ? null : await runner.prepare(TRAIN, false, types);
    const train = await runner.prepare(TRAIN, true, types);
    const adding = other ?? train;
    if (host.targetOf(TRAIN) !== target) {
      // The session has left the GPU meanwhile.
      return this.#plans(size);
    }
    // A session may keep one plan of a step only.
    const areHere = [adding, update, clip].every((one) => one === null || host.plans.includes(one.plan));
    const results = train.plan.outputs.filter(({ name }) => [loss, lossCounts.train.output].includes(name));
    const areNumbers = results.every(({ dtype, nbytes, name }) => dtype === "float32" && nbytes === (name === loss ? 4 * this.#numbers : 4));
    return areHere && areNumbers && host.runsSeveral ? { train, adding, update, clip } : null;
  }

  /** Run the first of some batches, as many as take a few milliseconds. */
  async #runSeveral(
    plans: StepPlans,
    rows: Uint32Array,
    size: number,
    rates: Rates | null,
    most: number,
  ): Promise<RanBatches> {
    const columns = this.#columns as Columns;
    const { loss, clip, accumulate } = this.#options;
    const { waiting, optimizerSteps } = this.#steps.at;
    const n = Math.min(this.#most, most, rows.length / size);
    const next = optimizerSteps - (rates?.from ?? 0);
    const values = rates?.values.subarray(next, next + Math.ceil((waiting + n) / accumulate)) ?? null;
    values?.forEach((rate) => checkRate("learningRate", rate));
    const taken = rows.subarray(0, n * size);
    const now = waiting === 0 ? plans.train : plans.adding;
    const start = performance.now();
    const ran = await this.#steps.run(
      {
        ...(n === 1 ? { ...plans, train: now, adding: now } : plans),
        limits: clip && limitsOf(clip).data,
        loss,
        numbers: this.#numbers,
        count: this.#core.lossCounts.train.output,
        rows: size,
        rates: values && Float32Array.from(values),
        write: (input, target) => columns.write(input, target, taken),
      },
      n,
    );
    if (n === this.#most && performance.now() - start < this.#core.host.sliceMs / 2) {
      const bytes = Math.max(size * columns.rowBytes, 1);
      this.#most = Math.min(2 * n, MOST_BATCHES, Math.max(1, Math.floor(MOST_BYTES / bytes)));
    }
    return ran;
  }

  /** The batch of an epoch whose step failed. */
  failed({ order, size, remainder }: EpochRows): FailedBatch {
    const rows = batchRows(order, this.#steps.at.step, size, remainder);
    return { feeds: this.#feeds(rows), rows: rows.length, numberOf: (k) => rows[k] as number };
  }

  #feeds(rows: Uint32Array): NamedTensor[] {
    return (this.#columns as Columns).feeds(rows, this.#core.info.trainingInputNames);
  }

  /** Train on a batch; its loss, or its error. */
  async on(batch: Pick<WireBatch, "feeds" | "rows">, rates: Rates | null): Promise<RanBatches> {
    try {
      await this.#steps.call("tw_fit_batch");
      const { waiting, optimizerSteps } = this.#steps.at;
      if (waiting === 0 && rates !== null) {
        this.#core.setLearningRate(rates.values[optimizerSteps - rates.from] as number);
      }
      const [loss, ...terms] = await this.#train(batch);
      this.#steps.addTerms(terms, batch.rows, this.#steps.at.kept - 1);
      return { losses: Float32Array.of(loss as number), error: null };
    } catch (error) {
      return { losses: new Float32Array(0), error };
    }
  }

  async #train({ feeds, rows }: Pick<WireBatch, "feeds" | "rows">): Promise<Float32Array> {
    const { loss: name } = this.#options;
    const { output } = this.#core.lossCounts.train;
    const { results } = await this.#core.step(TRAIN, feeds, fetchesOfLoss(name, output));
    const [loss, count] = results;
    let losses: Float32Array;
    try {
      losses = numbersOf(loss, name, this.#numbers);
    } catch (error) {
      // The fit has begun: gradients have changed.
      await this.#core.host.tellFit("tw_fit_trained", NaN, 0);
      throw error;
    }
    if (await this.#steps.call("tw_fit_trained", losses[0] as number, output === null ? rows : numbersOf(count, output)[0] as number)) {
      await this.update();
    }
    return losses;
  }

  /** Make the optimizer step that is due. */
  async update(): Promise<void> {
    const { clip } = this.#options;
    if (clip !== null) {
      await this.#core.runner.run(CLIP, true, [limitsOf(clip)], []);
    }
    await this.#core.step(OPTIMIZER, [], []);
    await this.#steps.call("tw_fit_updated");
  }
}

/** The feed of a plan that clips. */
export function limitsOf({ value, norm }: WireClip): Feed & NamedTensor {
  const limits = Float32Array.of(value ?? Infinity, norm ?? Infinity);
  return { name: "limits", dtype: "float32", dims: [2], data: new Uint8Array(limits.buffer) };
}

/** Steps on batches, each with its optimizer step. @returns the losses */
export async function runTrainSteps(core: SessionCore, { batches, stacked }: StepsTask, loss: string): Promise<Float32Array> {
  const steps = await FitSteps.start(core, { accumulate: 1, sumsGradients: false, onNaN: "ignore", proximal: 0 });
  const columns = stacked && new Columns(stacked, true);
  const trained = new Batches(core, steps, columns, { loss, clip: null, accumulate: 1 });
  const losses = new Float32Array(columns?.rows ?? batches.length);
  const rows: EpochRows = { order: inOrder(losses.length), size: 1, remainder: "keep" };
  try {
    for (let k = 0; k < losses.length; k = steps.at.step) {
      const ran = columns === null ? await trained.on(batches[k] as WireBatch, null) : await trained.onRows(rows, null, Infinity);
      losses.set(ran.losses, k);
      if (ran.error !== null) {
        throw Object.assign(ran.error as Error, { step: steps.at.step, ...ran.error });
      }
    }
    return losses;
  } finally {
    await steps.end();
  }
}
