/** The port of a fit: orders of the page, questions to it, and reports of the progress. */

import { SLICE_S } from "../../wire/constants.js";
import { FIT_ORDERS, FIT_TELL } from "../../wire/fit.js";
import type { FitAnswer, FitAsk, FitAsks, FitLosses, FitOrder, FitProgress, FitSpec } from "../../wire/fit.js";

/** Time between two looks at messages: each look takes time, too. */
const SLICE_MS = 1000 * SLICE_S;
/** The least time between two reports of the progress: a frame. */
const FRAME_MS = 16;

/** In Node, whose ports hand out all that they get on the way before those of others have a turn. */
const immediate = (globalThis as { readonly setImmediate?: (callback: () => void) => unknown }).setImmediate;

/** Messages of the page, and reports to it. */
export class Control {
  readonly #port: MessagePort;
  readonly #self = new MessageChannel();
  readonly #shared: FitSpec["order"];
  /** True if the page wants reports of the progress. Unread reports would take its time. */
  #tells: boolean;
  #heard: FitOrder = "resume";
  #hasEnded = false;
  #resumed: (() => void) | null = null;
  #listened = performance.now();
  #reported = 0;
  /** Questions so far, and those without an answer yet. */
  #asks = 0;
  readonly #asked = new Map<number, (answer: unknown) => void>();

  constructor(port: MessagePort, { order, tells }: Pick<FitSpec, "order" | "tells">) {
    this.#port = port;
    this.#shared = order;
    this.#tells = tells;
    port.onmessage = ({ data }: MessageEvent<FitOrder | FitAnswer | typeof FIT_TELL>) => {
      if (typeof data === "object") {
        this.#asked.get(data.id)?.(data.answer);
        this.#asked.delete(data.id);
      } else if (data === FIT_TELL) {
        this.#tells = true;
      } else {
        // A fit that ends does not begin again.
        this.#heard = this.isStopping && data !== "abort" ? this.#heard : data;
        this.#resumed?.();
      }
    };
  }

  /** Ask the page; null: the fit ends, or `FitAsks` says the meaning. */
  ask<Name extends keyof FitAsks>(ask: Name, about: FitAsks[Name]["about"]): Promise<FitAsks[Name]["answer"] | null> {
    const id = this.#asks++;
    if (this.#hasEnded) {
      return Promise.resolve(null);
    }
    return new Promise((resolve) => {
      this.#asked.set(id, resolve as (answer: unknown) => void);
      this.#port.postMessage({ id, ask, about } satisfies FitAsk<Name>);
    });
  }

  /** Tell the page of batches. */
  tell(losses: FitLosses): void {
    this.#port.postMessage(losses);
  }

  get #order(): FitOrder {
    if (this.#hasEnded) {
      return "abort";
    }
    return this.#shared === null ? this.#heard : (FIT_ORDERS[Atomics.load(this.#shared, 0)] as FitOrder);
  }

  get isStopping(): boolean {
    const order = this.#order;
    return order === "stop" || order === "abort";
  }

  get isAborted(): boolean {
    return this.#order === "abort";
  }

  /** True if it is time to listen: after `SLICE_MS`, or for an order that is there. */
  get isDue(): boolean {
    return this.#order !== "resume" || performance.now() - this.#listened > SLICE_MS;
  }

  /** Report the progress, if it is time, and receive messages; false: the fit is to end. */
  async listen(progress: FitProgress | null): Promise<boolean> {
    if (this.#tells && progress !== null && performance.now() - this.#reported > FRAME_MS) {
      this.#reported = performance.now();
      this.#port.postMessage(progress);
    }
    await this.#turn();
    await this.unpaused();
    this.#listened = performance.now();
    return !this.isStopping;
  }

  /** Wait for the end of a pause. */
  async unpaused(): Promise<void> {
    while (this.#order === "pause") {
      await new Promise<void>((resolve) => {
        this.#resumed = resolve;
      });
    }
  }

  /** Close the port. This ends pauses, questions and the fit. */
  end(): void {
    this.#hasEnded = true;
    this.#resumed?.();
    this.#asked.forEach((answer) => answer(null));
    this.#port.close();
    this.#self.port1.close();
  }

  /** A turn of the event loop, in which the worker receives waiting messages. */
  #turn(): Promise<void> {
    return new Promise((resolve) => {
      if (immediate !== undefined) {
        immediate(resolve);
        return;
      }
      this.#self.port1.onmessage = () => resolve();
      this.#self.port2.postMessage(null);
    });
  }
}
