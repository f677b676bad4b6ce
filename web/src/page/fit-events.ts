/** Events of a fit, and how they come to who listens. */

import type { EpochRecord } from "../wire/fit.js";

/** Within an epoch, after a step; at most one a frame. */
export interface ProgressEvent {
  /** What tells it from the other events. */
  readonly type: "progress";
  /** From 1. */
  readonly epoch: number;
  /** Batches of the epoch that are done. */
  readonly step: number;
  /** How many it has; null for a stream. */
  readonly steps: number | null;
  /** Mean over the rows of the epoch so far. */
  readonly loss: number;
}

/** An epoch that is done. */
export interface EpochEvent extends EpochRecord {
  /** What tells it from the other events. */
  readonly type: "epoch";
}

/** What a fit tells while it goes on. */
export type FitEvent = ProgressEvent | EpochEvent;

/** What a fit has done. */
export interface History {
  /** One for each that is done. */
  readonly epochs: readonly EpochEvent[];
  /** Of each batch, in their order; NaN of those that `onNaN` undid. */
  readonly losses: readonly number[];
  /** Updates of the parameters: batches divided by `accumulate`. */
  readonly optimizerSteps: number;
  /** The best by early stopping. */
  readonly bestEpoch: number | null;
  /** Whether all epochs were done, or `stop()`, early stopping or `onNaN: "stop"` ended it. */
  readonly ended: "done" | "stopped" | "early" | "nan";
}

/** What a callback may do with the fit that calls it. */
export interface FitControl {
  /** What was done so far. */
  readonly history: History;
  /** Let the worker rest after the step that it is at. */
  pause(): void;
  /** Let it go on after `pause`. */
  resume(): void;
  /** End after the step that is under way; the history is that of what was done. */
  stop(): void;
  /** End after the step that is under way, and fail with this reason; what was trained stays. */
  abort(reason?: unknown): void;
}

/** Lets through at most one value a frame, the last; at once where nothing is drawn. */
export class FrameGate<T> {
  readonly #deliver: (value: T) => void;
  #held: { readonly value: T } | null = null;
  #isClosed = false;

  constructor(deliver: (value: T) => void) {
    this.#deliver = deliver;
  }

  push(value: T): void {
    const isWaiting = this.#held !== null;
    this.#held = { value };
    if (isWaiting) {
      return;
    }
    // Frames of a page that is hidden do not come; a worker may have none.
    if (typeof requestAnimationFrame === "function" && globalThis.document?.visibilityState !== "hidden") {
      requestAnimationFrame(() => this.flush());
    } else {
      this.flush();
    }
  }

  /** Deliver what is held. */
  flush(): void {
    const held = this.#held;
    this.#held = null;
    if (held !== null && !this.#isClosed) {
      this.#deliver(held.value);
    }
  }

  close(): void {
    this.#isClosed = true;
  }
}

/** Iterators over events. Of several events of a kind that may be missed, and that nobody has fetched yet, the last is kept. */
export class Listeners<T extends { readonly type: string }> {
  readonly #queues = new Set<Queue<T>>();
  #end: { readonly error: unknown } | null = null;

  push(event: T): void {
    this.#queues.forEach((queue) => queue.push(event));
  }

  /** No more events come. @param error - null: all is well */
  end(error: unknown): void {
    this.#end = { error };
    this.#queues.forEach((queue) => queue.end(error));
    this.#queues.clear();
  }

  /** @param onLeave - called when an iterator is left before the end */
  listen(onLeave: () => void): AsyncIterator<T> {
    const queue = new Queue<T>(() => {
      if (this.#queues.delete(queue)) {
        onLeave();
      }
    });
    if (this.#end === null) {
      this.#queues.add(queue);
    } else {
      queue.end(this.#end.error);
    }
    return queue;
  }
}

const MISSABLE = "progress";

class Queue<T extends { readonly type: string }> implements AsyncIterator<T> {
  readonly #onLeave: () => void;
  #events: T[] = [];
  #end: { readonly error: unknown } | null = null;
  #wake: (() => void) | null = null;

  constructor(onLeave: () => void) {
    this.#onLeave = onLeave;
  }

  push(event: T): void {
    if (this.#events.at(-1)?.type === MISSABLE) {
      this.#events.pop();
    }
    this.#events.push(event);
    this.#wake?.();
  }

  end(error: unknown): void {
    this.#end = { error };
    this.#wake?.();
  }

  async next(): Promise<IteratorResult<T>> {
    while (this.#events.length === 0 && this.#end === null) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const event = this.#events.shift();
    if (event !== undefined) {
      return { done: false, value: event };
    }
    const { error } = this.#end as { readonly error: unknown };
    this.#end = { error: null };
    if (error !== null) {
      throw error;
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<T>> {
    this.end(null);
    this.#events = [];
    this.#onLeave();
    return { done: true, value: undefined };
  }
}
