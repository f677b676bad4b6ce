/** Training on batches: of rows, several at once where that can be, and one by one. */

import { batchRows, inOrder } from "../../data/epoch.js";
import type { Remainder, StepsTask, WireBatch } from "../../wire/fit.js";
import type { NamedTensor } from "../../wire/protocol.js";
import { fetchesOfLoss, scalarOf } from "../evaluation.js";
import type { FailedBatch } from "../places.js";
import type { RanBatches } from "../host.js";
import type { SessionCore } from "../session-core.js";
import { CLIP, OPTIMIZER, TRAIN } from "../step-kind.js";
import { Columns, limitsOf, RowBatches, type BatchOptions, type Rates } from "./rows.js";
import { FitSteps } from "./steps.js";

/** Rows of an epoch in their order, cut into batches. */
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
  /** Null: rows are trained on one batch at a time. */
  #rows: RowBatches | null = null;

  /** @param columns - data that lies in the worker */
  constructor(core: SessionCore, steps: FitSteps, columns: Columns | null, options: BatchOptions) {
    this.#core = core;
    this.#steps = steps;
    this.#columns = columns;
    this.#options = options;
    if (columns !== null && !core.info.valuesDecide && !core.checksNumerics) {
      this.#rows = new RowBatches(core, steps, columns, options);
    }
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
    try {
      const ran = await this.#rows?.run(rows, Math.min(size, rows.length), rates, most);
      if (ran) {
        return ran;
      }
    } catch (error) {
      return { losses: new Float32Array(0), error };
    }
    this.#rows = null;
    return this.on({ feeds: this.#feeds(rows.subarray(0, size)), rows: Math.min(size, rows.length) }, rates);
  }

  /** A batch of an epoch, where its step failed. */
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
      const loss = await this.#train(batch);
      return { losses: Float32Array.of(loss), error: null };
    } catch (error) {
      return { losses: new Float32Array(0), error };
    }
  }

  async #train({ feeds, rows }: Pick<WireBatch, "feeds" | "rows">): Promise<number> {
    const { loss: name } = this.#options;
    const { output } = this.#core.lossCounts.train;
    const { results } = await this.#core.step(TRAIN, feeds, fetchesOfLoss(name, output));
    const [loss, count] = results;
    let value: number;
    try {
      value = scalarOf(loss, name);
    } catch (error) {
      // The fit has begun nevertheless: the gradients are others now.
      await this.#core.host.tellFit("tw_fit_trained", NaN, 0);
      throw error;
    }
    if (await this.#steps.call("tw_fit_trained", value, output === null ? rows : scalarOf(count, output))) {
      await this.update();
    }
    return value;
  }

  /** Use the gradients that wait. */
  async update(): Promise<void> {
    const { clip } = this.#options;
    if (clip !== null) {
      await this.#core.runner.run(CLIP, true, [limitsOf(clip)], []);
    }
    await this.#core.step(OPTIMIZER, [], []);
    await this.#steps.call("tw_fit_updated");
  }
}

/**
 * Steps on batches, each with its optimizer step.
 *
 * @returns the losses
 */
export async function runTrainSteps(core: SessionCore, { batches, stacked }: StepsTask, loss: string): Promise<Float32Array> {
  const steps = await FitSteps.start(core, { accumulate: 1, onNaN: "ignore", proximal: 0 });
  const columns = stacked && new Columns(stacked, true);
  const trained = new Batches(core, steps, columns, { loss, clip: null, accumulate: 1 });
  const losses = new Float32Array(columns?.rows ?? batches.length);
  const rows: EpochRows = { order: inOrder(losses.length), size: 1, remainder: "keep" };
  try {
    for (let k = 0; k < losses.length; k = steps.at.step) {
      const ran = columns === null ? await trained.on(batches[k] as WireBatch, null) : await trained.onRows(rows, null, Infinity);
      losses.set(ran.losses, k);
      if (ran.error !== null) {
        throw Object.assign(ran.error as Error, { step: steps.at.step });
      }
    }
    return losses;
  } finally {
    await steps.end();
  }
}
