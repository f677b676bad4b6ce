/** Losses of several batches together; trainweb/loss_counts.py is the same, and finds the divisor of a loss. */

import type { FitPosition } from "../wire/fit.js";

/** The divisor of a batch's loss. */
export interface LossCount {
  /** The output of a plan that has it, a float32; null: the batch's rows. */
  readonly output: string | null;
  /** True if the loss is a sum, without a divisor: the loss of several batches is then the loss per row. */
  readonly isSum: boolean;
}

/** The loss of several batches. */
export class MeanLoss {
  readonly #isSum: boolean;
  #total: number;
  #weight: number;

  constructor({ isSum }: LossCount, { lossSum, rows }: Pick<FitPosition, "lossSum" | "rows"> = { lossSum: 0, rows: 0 }) {
    this.#isSum = isSum;
    this.#total = lossSum;
    this.#weight = rows;
  }

  /** @param weight - the divisor of the loss; for a sum, the number of rows */
  add(loss: number, weight: number): void {
    this.#total += this.#isSum ? loss : loss * weight;
    this.#weight += weight;
  }

  /** As a checkpoint has it. */
  get position(): Pick<FitPosition, "lossSum" | "rows"> {
    return { lossSum: this.#total, rows: this.#weight };
  }

  /** The loss of all rows; 0 where every label is ignored, as the loss of such a batch. */
  get value(): number {
    return this.#weight === 0 ? 0 : this.#total / this.#weight;
  }
}
