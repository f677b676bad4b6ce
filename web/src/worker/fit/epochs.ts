/** The finished epochs of a fit, early stopping, and the parameters of the best epoch. */

import type { EpochRecord, WireEarlyStopping } from "../../wire/fit.js";
import { Course } from "../../wire/formulas.js";
import { refuseIf } from "../../wire/messages.js";

export class FitEpochs {
  readonly #early: WireEarlyStopping | null;
  readonly #course: Course | null;
  /** A stop may have ended the last one. */
  readonly done: EpochRecord[] = [];
  bestEpoch: number | null = null;
  /** Parameters of the best epoch. */
  best: Uint8Array | null = null;

  constructor(early: WireEarlyStopping | null) {
    this.#early = early;
    this.#course = early === null ? null : new Course(early.rule, early.settings);
  }

  /** True if early stopping ends the fit. */
  get areOver(): boolean {
    return this.#course !== null && this.#course.value() !== 0;
  }

  /** Add a whole epoch; true if its parameters are the best so far and must be kept. @throws FeedError where its metric is NaN */
  observe(epoch: EpochRecord): boolean {
    this.done.push(epoch);
    if (this.#early === null || this.#course === null) {
      return false;
    }
    const [name, value] = [this.#early.metric, (epoch.validation ?? epoch)[this.#early.metric as "loss"] as number];
    refuseIf(name !== "loss" && Number.isNaN(value), "NAN_METRIC", { name, source: "validation data" });
    this.#course.observe({ value });
    const isBest = this.#course.get("is_better") !== 0;
    this.bestEpoch = isBest ? epoch.epoch : this.bestEpoch;
    return isBest && this.#early.restoresBest;
  }
}
