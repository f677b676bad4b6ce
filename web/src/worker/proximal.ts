/**
 * The proximal term of FedProx: it holds the parameters near the start of a fit; trainweb/fit/proximal.py is the same.
 */

import { GRADIENTS, PARAMETERS } from "../engine/layout.js";
import type { SessionCore } from "./session-core.js";

/** `mu / 2 * ||w - w0||^2` as its gradient, which is added to the gradient of the loss. */
export class ProximalTerm {
  readonly #core: SessionCore;
  readonly #mu: number;
  /** The trained parameters at the start, one after the other. */
  readonly #start: Float32Array;

  /** The trained parameters of the session now are w0. */
  constructor(core: SessionCore, mu: number) {
    this.#core = core;
    this.#mu = mu;
    const parameters = this.#numbers(PARAMETERS);
    const runs = core.trainedRuns.map(({ start, end }) => parameters.slice(start / 4, end / 4));
    this.#start = new Float32Array(runs.reduce((sum, { length }) => sum + length, 0));
    let at = 0;
    for (const run of runs) {
      this.#start.set(run, at);
      at += run.length;
    }
  }

  /** Add `mu * (w - w0)` to the gradients: in float64, and rounded once. */
  add(): void {
    const [parameters, gradients] = [this.#numbers(PARAMETERS), this.#numbers(GRADIENTS)];
    let at = 0;
    for (const { start, end } of this.#core.trainedRuns) {
      for (let i = start / 4; i < end / 4; i++, at++) {
        const way = (parameters[i] as number) - (this.#start[at] as number);
        gradients[at] = (gradients[at] as number) + this.#mu * way;
      }
    }
  }

  /** A view of the session's memory, which moves as it grows. */
  #numbers(segment: number): Float32Array {
    const { buffer, byteOffset, byteLength } = this.#core.host.memory.view(segment);
    return new Float32Array(buffer, byteOffset, byteLength / 4);
  }
}
