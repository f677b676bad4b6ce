/** The page's side of the lane. */

import { ANSWERED, ASKED, CALL, look, OVERDUE, READY, SENT, STATE, STEP, TURN_MS } from "../wire/lane.js";
import type { PlacedTensor, Reply, RunAnswer } from "../wire/protocol.js";

/** Steps that are known at most. */
const MOST_STEPS = 64;

/** A step that the worker ran before, with the calls before it. */
export interface LaneStep {
  readonly number: number;
  /** Its latest answer by message, without values. */
  answer: (Omit<RunAnswer, "results"> & { readonly results: readonly Omit<PlacedTensor, "data">[] }) | null;
}

/** Learn from an answer by message. */
export function learn(step: LaneStep, { results, ...rest }: RunAnswer): void {
  step.answer = { ...rest, results: results.map(({ data: _, ...place }) => place) };
}

export class PageLane {
  readonly #words: Int32Array;
  readonly #memory: WebAssembly.Memory;
  readonly #steps = new Map<string, LaneStep>();
  /** The call that was asked for and not taken. */
  #open: { readonly step: LaneStep; readonly id: number } | null = null;

  constructor(words: Int32Array, memory: WebAssembly.Memory) {
    this.#words = words;
    this.#memory = memory;
  }

  /** The step of a key; calls of a key are the same. */
  step(key: string): LaneStep {
    const known = this.#steps.get(key);
    if (known !== undefined) {
      return known;
    }
    if (this.#steps.size === MOST_STEPS) {
      this.#steps.clear();
    }
    const step = { number: this.#steps.size, answer: null };
    this.#steps.set(key, step);
    return step;
  }

  /** Say that so many messages were sent. */
  count(sent: number): void {
    Atomics.store(this.#words, SENT, sent);
  }

  /** Ask for a step while no message waits for its answer; false: the worker does not look. */
  ask(step: LaneStep, id: number): boolean {
    if (step.answer === null || Atomics.load(this.#words, STATE) !== READY) {
      return false;
    }
    Atomics.store(this.#words, STEP, step.number);
    Atomics.store(this.#words, CALL, id);
    this.#open = { step, id };
    return this.#change(READY, ASKED);
  }

  /** Look for the answer to the call that was asked for last; null: it comes as a message, or has come. */
  take(): Reply | null {
    const open = this.#open;
    this.#open = null;
    if (open?.step.answer == null) {
      return null;
    }
    const { results, ...rest } = open.step.answer;
    look(() => Atomics.load(this.#words, STATE) !== ASKED, TURN_MS);
    const { buffer } = this.#memory;
    // A worker that grew the memory may be ahead of this page.
    const isHere = results.every(({ ptr, nbytes }) => ptr + nbytes <= buffer.byteLength);
    if (this.#change(ASKED, OVERDUE) || !isHere || Atomics.load(this.#words, STATE) !== ANSWERED) {
      return null;
    }
    const copies = results.map((place) => {
      const data = new Uint8Array(place.nbytes);
      data.set(new Uint8Array(buffer, place.ptr, place.nbytes));
      return { ...place, dims: [...place.dims], data };
    });
    // Unless the worker took them back meanwhile.
    return this.#change(ANSWERED, READY) ? { id: open.id, result: { ok: { ...rest, results: copies } } } : null;
  }

  #change(from: number, to: number): boolean {
    return Atomics.compareExchange(this.#words, STATE, from, to) === from;
  }
}
