/** `onNaN`: the way a fit goes on after a step that made NaN or infinity; trainweb/fit/on_nan.py is the same in Python. */

import { COPY_BATCH, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS } from "../engine/layout.js";
import type { OnNaN } from "../wire/fit.js";
import { sessionError } from "../wire/messages.js";
import type { TensorFile } from "./safetensors.js";
import type { SessionCore } from "./session-core.js";

/** Most restores of the last good state: after three, the same fault would come again. */
const MOST_RESTORES = 3;
const SEGMENTS = [PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1] as const;
const WHAT: Readonly<Record<number, string>> = {
  [PARAMETERS]: "A parameter",
  [GRADIENTS]: "A gradient",
  [MOMENTUM0]: "A moment of the optimizer",
  [MOMENTUM1]: "A moment of the optimizer",
};

/** Watches the batches of a fit, and undoes a batch that makes NaN or infinity. */
export class NanGuard {
  readonly action: OnNaN;
  readonly #core: SessionCore;
  /** Number of NaN or infinite elements at first: a mask of minus infinity, say, is so on purpose. */
  readonly #usual: Readonly<Record<number, number>>;
  #restores = 0;
  #good: TensorFile | null = null;
  #hasEnded = false;

  constructor(core: SessionCore, action: OnNaN) {
    this.#core = core;
    this.action = action;
    this.#usual = { ...this.#counts(), [GRADIENTS]: 0 };
  }

  /** True if the fit is to end. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Take note of a state that may be gone back to. */
  keepGood(): void {
    if (this.action === "restore") {
      this.#core.setLazyReset(true);
      this.#good = this.#core.snapshot();
    }
  }

  /** A batch begins. */
  begin(): void {
    this.#core.host.memory.save(COPY_BATCH);
  }

  /** @throws NumericsError if the loss, a gradient, a parameter or a moment is NaN or infinite */
  check(loss: number, step: number, epoch: number): void {
    const counts = this.#counts();
    const worse = SEGMENTS.find((segment) => (counts[segment] as number) > (this.#usual[segment] as number));
    if (worse !== undefined || !Number.isFinite(loss)) {
      const what = worse !== undefined && Number.isFinite(loss) ? (WHAT[worse] as string) : "The loss";
      throw sessionError("NOT_A_NUMBER_IN_FIT", { what, step, epoch });
    }
  }

  /**
   * Restore the session from before the batch, or from its last good state.
   *
   * @throws NumericsError after too many restores
   */
  undo(reason: Error, step: number, epoch: number): void {
    this.#hasEnded = this.action === "stop";
    if (this.#good === null) {
      this.#core.host.memory.putBack(COPY_BATCH);
      return;
    }
    this.#core.restore(this.#core.read(this.#good));
    if (++this.#restores > MOST_RESTORES) {
      throw sessionError("RESTORED_TOO_OFTEN", { most: MOST_RESTORES, step, epoch, reason: reason.message });
    }
  }

  /** Count the NaN and infinite elements of each segment. */
  #counts(): Readonly<Record<number, number>> {
    const { memory } = this.#core.host;
    return Object.fromEntries(SEGMENTS.map((segment) => [segment, memory.call("tw_session_not_finite", segment)]));
  }
}
