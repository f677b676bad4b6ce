/** Losses of several batches together; trainweb/loss_counts.py is the same, and finds the divisor of a loss. */

import type { LossCount } from "./bundle/bundle.js";

/** The loss of several batches. */
export class MeanLoss {
  readonly #isSum: boolean;
  #total = 0;
  #weight = 0;

  constructor({ isSum }: LossCount) {
    this.#isSum = isSum;
  }

  /** @param weight - the divisor of the loss; for a sum, the number of rows */
  add(loss: number, weight: number): void {
    if (weight !== 0) {
      // Of no label there is no loss, or one of 0 / 0.
      this.#total += this.#isSum ? loss : loss * weight;
      this.#weight += weight;
    }
  }

  /** The loss of all rows; NaN where every label is ignored, as PyTorch's. */
  get value(): number {
    return this.#weight === 0 ? NaN : this.#total / this.#weight;
  }
}
