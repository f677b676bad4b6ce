/** Events of a fit, and how they come to who listens. */

import type { EpochRecord, EvalValues, ProgressRecord } from "../../wire/records.js";

/** An event within an epoch, after a step; at most one a frame. */
export interface ProgressEvent extends ProgressRecord {
  /** Tells this event from the others. */
  readonly type: "progress";
}

/** An epoch; one that a stop ended has no values of validation data. */
export interface EpochEvent<Values extends EvalValues = EvalValues> extends EpochRecord {
  /** Tells this event from the others. */
  readonly type: "epoch";
  readonly validation: Values | null;
  readonly training: Values | null;
}

/** An event of a fit. */
export type FitEvent<Values extends EvalValues = EvalValues> = ProgressEvent | EpochEvent<Values>;

/** The course of a fit. */
export interface History<Values extends EvalValues = EvalValues> {
  /** One event for each epoch, also for one that a stop ended. */
  readonly epochs: readonly EpochEvent<Values>[];
  /** Loss of each batch, in order; NaN for batches that `onNaN` undid. */
  readonly losses: readonly number[];
  /** Updates of the parameters: batches divided by `accumulate`. */
  readonly optimizerSteps: number;
  /** The best epoch by early stopping; null without it. */
  readonly bestEpoch: number | null;
  /** "done" after all epochs; otherwise `stop()`, early stopping or `onNaN: "stop"` ended it. */
  readonly ended: "done" | "stopped" | "early" | "nan";
}

/** The controls of a callback over its fit. */
export interface FitControl {
  /** The course so far. */
  readonly history: History;
  /** Pause the worker after the current step. */
  pause(): void;
  /** Continue after `pause`. */
  resume(): void;
  /** End after the current step; the history contains the finished part. */
  stop(): void;
  /** End after the current step, and fail with this reason; the session keeps its progress. */
  abort(reason?: unknown): void;
}

/** Passes on at most one value a frame, the last one; at once if nothing is drawn. */
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

  /** Deliver the held value. */
  flush(): void {
    const latest = this.#held;
    this.#held = null;
    if (latest !== null && !this.#isClosed) {
      this.#deliver(latest.value);
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
