/** `onNaN`: the way a fit goes on after a step that made NaN or infinity; trainweb/fit/on_nan.py is the same in Python. */

import { COPY_BATCH, COPY_GOOD, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS } from "../../engine/layout.js";
import type { OnNaN } from "../../wire/fit.js";
import { sessionError } from "../../wire/messages.js";
import type { PlanMemory } from "../plan-memory.js";
import type { SessionCore } from "../session-core.js";

/** Most restores of the last good state: after three, the same fault would come again. */
const MOST_RESTORES = 3;
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
  #restores = 0;
  #hasEnded = false;

  constructor(core: SessionCore, action: OnNaN) {
    this.#core = core;
    this.action = action;
    this.#memory.demand("tw_session_usual");
  }

  /** True if the fit is to end. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Take note of a state that may be gone back to. */
  keepGood(): void {
    if (this.action === "restore") {
      this.#core.setLazyReset(true);
      this.#memory.save(COPY_GOOD);
    }
  }

  /** A batch begins. */
  begin(): void {
    this.#memory.save(COPY_BATCH);
  }

  /** @throws NumericsError if the loss, a gradient, a parameter or a moment is NaN or infinite */
  check(loss: number, step: number, epoch: number): void {
    const worse = this.#memory.call("tw_session_worse");
    if (worse !== 0 || !Number.isFinite(loss)) {
      const what = Number.isFinite(loss) ? (WHAT[worse] as string) : "The loss";
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
    if (this.action !== "restore") {
      this.#memory.putBack(COPY_BATCH);
      return;
    }
    this.#memory.demand("tw_session_go_back", COPY_GOOD);
    if (++this.#restores > MOST_RESTORES) {
      throw sessionError("RESTORED_TOO_OFTEN", { most: MOST_RESTORES, step, epoch, reason: reason.message });
    }
  }

  /** The fit ends: give back the memory of the copies. */
  end(): void {
    this.#memory.forget(COPY_BATCH);
    this.#memory.forget(COPY_GOOD);
  }

  get #memory(): PlanMemory {
    return this.#core.host.memory;
  }
}
