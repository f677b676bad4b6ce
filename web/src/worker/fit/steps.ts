/** The steps of a fit as the kernels count them (`wasm_kernels/session/fit.c`); `trainweb/fit/steps.py` is the same in Python. */

import {
  FIT_EPOCH,
  FIT_FAULT,
  FIT_KEPT,
  FIT_LOSS_SUM,
  FIT_NEXT,
  FIT_OPTIMIZER_STEPS,
  FIT_ROWS,
  FIT_STEP,
  FIT_WAITING,
  FIT_WORDS,
  GRADIENTS,
  MOMENTUM0,
  MOMENTUM1,
  MOST_RESTORES,
  NEXT_END,
  NEXT_FAIL,
  NEXT_UNDO,
  NEXT_UPDATE,
  PARAMETERS,
} from "../../engine/layout.js";
import { NumericsError } from "../../wire/errors.js";
import type { FitPosition, FitSpec } from "../../wire/fit.js";
import { sessionError } from "../../wire/messages.js";
import type { StepHost } from "./fast-steps.js";

/** The option `onNaN` in the order of the kernels' enumeration. */
const ACTIONS = [null, "stop", "skip", "restore"] as const;
/** Names of the loss and of segments in the error for NaN or infinity. */
const FAULTS: Readonly<Record<number, string>> = {
  0: "The loss",
  [PARAMETERS]: "A parameter",
  [GRADIENTS]: "A gradient",
  [MOMENTUM0]: "A moment of the optimizer",
  [MOMENTUM1]: "A moment of the optimizer",
};

/** The batches and updates of a fit, which the session's kernels count, check and undo. */
export class FitSteps {
  readonly #host: StepHost;
  readonly #onNaN: FitSpec["onNaN"];

  constructor(host: StepHost, { accumulate, onNaN, proximal }: FitSpec) {
    this.#host = host;
    this.#onNaN = onNaN;
    const { isSum } = host.lossCounts.train;
    host.memory.demand("tw_fit_start", accumulate, ACTIONS.indexOf(onNaN), Number(isSum), proximal);
  }

  /** Batches whose gradients no optimizer step has used yet. */
  get waiting(): number {
    return this.#word(FIT_WAITING);
  }

  /** Batches of the epoch that were not undone. */
  get kept(): number {
    return this.#word(FIT_KEPT);
  }

  /** True: NaN or infinity has ended the fit. */
  get hasEnded(): boolean {
    return this.#word(FIT_NEXT) === NEXT_END;
  }

  get position(): FitPosition {
    const view = this.#view;
    return {
      epoch: view.getUint32(4 * FIT_EPOCH, true),
      step: view.getUint32(4 * FIT_STEP, true),
      lossSum: view.getFloat64(4 * FIT_LOSS_SUM, true),
      rows: view.getFloat64(4 * FIT_ROWS, true),
      optimizerSteps: view.getUint32(4 * FIT_OPTIMIZER_STEPS, true),
    };
  }

  /** Mean loss of the epoch so far. */
  get loss(): number {
    const { lossSum, rows } = this.position;
    return rows === 0 ? 0 : lossSum / rows;
  }

  /** Go on from a checkpoint. */
  resume({ epoch, step, lossSum, rows, optimizerSteps }: FitPosition, kept: number): void {
    this.#host.memory.demand("tw_fit_resume", epoch, step, kept, optimizerSteps, lossSum, rows);
  }

  /** Be in an epoch, whose begin may be gone back to. */
  beginEpoch(epoch: number): void {
    this.#host.memory.demand("tw_fit_epoch", epoch);
  }

  /** Drop gradients that wait, and note a state that may be gone back to. */
  keep(): void {
    this.#host.memory.demand("tw_fit_keep");
  }

  /** A batch begins. */
  begin(): void {
    this.#host.memory.demand("tw_fit_batch");
  }

  /**
   * Note a train step and what its loss was divided by.
   *
   * @returns whether the optimizer step is due
   * @throws NumericsError if the loss, a gradient, a parameter or a moment is NaN or infinite; TrainwebError if the loss is,
   *   and no `onNaN` says what to do
   */
  trained(loss: number, weight: number): boolean {
    this.#host.memory.demand("tw_fit_trained", loss, weight);
    const { epoch, step } = this.position;
    if (this.#word(FIT_NEXT) === NEXT_FAIL) {
      throw sessionError("NON_FINITE_LOSS", { value: loss, step: step + 1, epoch: epoch + 1 });
    }
    this.#check(step + 1);
    return this.#word(FIT_NEXT) === NEXT_UPDATE;
  }

  /** Whether gradients are left over for an optimizer step, which begins then. */
  rest(): boolean {
    this.#host.memory.demand("tw_fit_rest");
    return this.#word(FIT_NEXT) === NEXT_UPDATE;
  }

  /** Note an optimizer step; throws as `trained`. */
  updated(step: number): void {
    this.#host.memory.demand("tw_fit_updated");
    this.#check(step);
  }

  #check(step: number): void {
    if (this.#word(FIT_NEXT) === NEXT_UNDO) {
      const what = FAULTS[this.#word(FIT_FAULT)] as string;
      throw sessionError("NOT_A_NUMBER_IN_FIT", { what, step, epoch: this.position.epoch + 1 });
    }
  }

  /**
   * Have the session as before the batch, or as it was when it was good last.
   *
   * @throws NumericsError after too many times; what `onNaN` does not say
   */
  undo(error: unknown): void {
    if (this.#onNaN === null || !(error instanceof NumericsError)) {
      throw error;
    }
    const { epoch, step } = this.position;
    this.#host.memory.demand("tw_fit_undo");
    if (this.#word(FIT_NEXT) === NEXT_FAIL) {
      const place = { step: step + 1, epoch: epoch + 1 };
      throw sessionError("RESTORED_TOO_OFTEN", { most: MOST_RESTORES, ...place, reason: error.message });
    }
  }

  /** The fit ends, once; a session that it did not change is as before. */
  end(): void {
    const { memory } = this.#host;
    if (memory.call("tw_fit_at") !== 0) {
      memory.demand("tw_fit_end");
    }
  }

  #word(field: number): number {
    return this.#view.getUint32(4 * field, true);
  }

  get #view(): DataView {
    const { engine, memory } = this.#host;
    return new DataView(engine.u8.buffer, memory.call("tw_fit_at"), 4 * FIT_WORDS);
  }
}
