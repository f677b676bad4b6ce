/** The proximal term of FedProx: it holds the parameters near the start of a fit. */

import type { SessionCore } from "../session-core.js";

/** `mu / 2 * ||w - w0||^2` as its gradient, which is added to the gradient of the loss. */
export class ProximalTerm {
  readonly #core: SessionCore;
  readonly #mu: number;

  /** The trained parameters of the session now are w0. */
  constructor(core: SessionCore, mu: number) {
    this.#core = core;
    this.#mu = mu;
    core.host.memory.demand("tw_session_start");
  }

  /** Add `mu * (w - w0)` to the gradients: in float64, and rounded once. */
  add(): void {
    this.#core.host.memory.demand("tw_session_pull", this.#mu);
  }
}
