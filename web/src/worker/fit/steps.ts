/** The steps of a fit as the kernels count them (`wasm_kernels/session/fit.c`); `trainweb/fit/steps.py` is the same in Python. */

import * as layout from "../../engine/layout.js";
import { NumericsError } from "../../wire/errors.js";
import type { FitPosition, FitSpec } from "../../wire/fit.js";
import { refuseIf, sessionError } from "../../wire/messages.js";
import type { MaybePromise } from "../../wire/protocol.js";
import { FAULTS } from "../../wire/constants.js";
import { withValue, type FitCall, type RanBatches, type StagedBatches, type StepHost } from "../host.js";
import type { SessionCore } from "../session-core.js";

/** Values of the option `onNaN`, and "ignore" for steps without a fit, in the order of the kernels' enumeration. */
const ACTIONS = [null, "stop", "skip", "restore", "ignore"] as const;

/** `layout fit` of `kernels.def`, which says what the fields are. */
interface Position extends FitPosition {
  readonly next: number;
  readonly fault: number;
  readonly isBatch: number;
  readonly waiting: number;
  readonly kept: number;
  /** Mean loss of the epoch so far; NaN without a label that counts. */
  readonly loss: number;
}

/** Settings that count and check the steps of a fit. */
type FitRules = Pick<FitSpec, "accumulate" | "sumsGradients" | "proximal"> & { readonly onNaN: FitSpec["onNaN"] | "ignore" };

/** The batches and updates of a fit, which the session's kernels count, check and undo. */
export class FitSteps {
  readonly #host: StepHost;
  readonly #onNaN: FitRules["onNaN"];
  /** Sums of the terms of the loss over the rows of the epoch so far. */
  terms: readonly number[] = [];

  private constructor(host: StepHost, onNaN: FitRules["onNaN"]) {
    this.#host = host;
    this.#onNaN = onNaN;
  }

  static start(
    { host, lossCounts }: SessionCore,
    { accumulate, sumsGradients, onNaN, proximal }: FitRules,
  ): MaybePromise<FitSteps> {
    const steps = new FitSteps(host, onNaN);
    const sums = (lossCounts.train.isSum ? layout.SUMS_LOSS : 0) | (sumsGradients ? layout.SUMS_GRADIENTS : 0);
    return withValue(steps.call("tw_fit_start", accumulate, ACTIONS.indexOf(onNaN), sums, proximal), () => steps);
  }

  get at(): Position {
    const view = this.#host.fit;
    const lossSum = view.getFloat64(4 * layout.FIT_LOSS_SUM, true);
    const rows = view.getFloat64(4 * layout.FIT_ROWS, true);
    return {
      next: view.getUint32(4 * layout.FIT_NEXT, true),
      fault: view.getUint32(4 * layout.FIT_FAULT, true),
      isBatch: view.getUint32(4 * layout.FIT_IS_BATCH, true),
      waiting: view.getUint32(4 * layout.FIT_WAITING, true),
      epoch: view.getUint32(4 * layout.FIT_EPOCH, true),
      step: view.getUint32(4 * layout.FIT_STEP, true),
      kept: view.getUint32(4 * layout.FIT_KEPT, true),
      optimizerSteps: view.getUint32(4 * layout.FIT_OPTIMIZER_STEPS, true),
      lossSum,
      rows,
      loss: rows === 0 ? NaN : lossSum / rows,
      terms: this.terms,
    };
  }

  /**
   * Call a function of `fit.c`; true if the optimizer step is due.
   *
   * @throws NumericsError if the loss, a gradient, a parameter or a moment is NaN or infinite
   */
  call<Name extends FitCall>(name: Name, ...args: layout.SessionCalls[Name]): MaybePromise<boolean> {
    return withValue(this.#host.tellFit(name, ...args), () => {
      const fault = this.#fault(args[0]);
      if (fault !== null) {
        throw fault;
      }
      return this.at.next === layout.NEXT_UPDATE;
    });
  }

  /** Run so many batches; the losses of those up to one that fails. */
  run(batches: StagedBatches, n: number): MaybePromise<RanBatches> {
    const { step, kept } = this.at;
    const { numbers, rows } = batches;
    return withValue(this.#host.runBatches(batches, n), ({ losses: all, error }) => {
      const done = this.at.step - step;
      const losses = all.filter((_, k) => k % numbers === 0);
      for (let k = 0; k < done; k++) {
        this.addTerms(all.subarray(k * numbers + 1, (k + 1) * numbers), rows, kept + k);
      }
      return { losses: losses.subarray(0, done), error: error ?? this.#fault(losses[done]) };
    });
  }

  /** Add the terms of a batch after `before` others of the epoch; a checkpoint of an older version has no sums. */
  addTerms(terms: ArrayLike<number>, rows: number, before: number): void {
    const sums = before > 0 ? this.terms : new Array<number>(terms.length).fill(0);
    this.terms = sums.map((sum, k) => sum + (terms[k] as number) * rows);
  }

  /** The error for NaN or infinity. @param loss - of the batch */
  #fault(loss: number | undefined): Error | null {
    const { next, fault, ...at } = this.at;
    if (next === layout.NEXT_FAIL && this.#onNaN === null) {
      return sessionError("NON_FINITE_LOSS", { value: loss, ...placeOf(at) });
    }
    if (next === layout.NEXT_UNDO) {
      return sessionError("NOT_A_NUMBER_IN_FIT", { what: (FAULTS as Readonly<Record<number, string>>)[fault] as string, ...placeOf(at) });
    }
    return null;
  }

  /**
   * Undo the batch, or go back to the last good state; true if the fit ends.
   *
   * @throws NumericsError after too many times; the error itself, if `onNaN` does not cover it
   */
  async undo(error: unknown): Promise<boolean> {
    if (this.#onNaN === null || !(error instanceof NumericsError)) {
      throw error;
    }
    const place = placeOf(this.at);
    await this.call("tw_fit_undo");
    const { next } = this.at;
    refuseIf(next === layout.NEXT_FAIL, "RESTORED_TOO_OFTEN", { most: layout.MOST_RESTORES, ...place, reason: error.message });
    return next === layout.NEXT_END;
  }

  /** End the fit. A session that it did not change is as before. */
  end(): MaybePromise<void> {
    return this.#host.endFit();
  }
}

/** The batch under way, or the last one. */
function placeOf({ step, epoch, isBatch }: Pick<Position, "step" | "epoch" | "isBatch">): { readonly step: number; readonly epoch: number } {
  return { step: step + isBatch, epoch: epoch + 1 };
}
