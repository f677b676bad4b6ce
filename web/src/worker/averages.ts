/** Averages of the trainable parameters: they lie at the end of the segment of the second moment. */

import { MOMENTUM1, PARAMETERS } from "../engine/layout.js";
import type { MaybePromise } from "../wire/protocol.js";

/** Bytes that are exchanged at once. */
const CHUNK = 2 ** 20;

/** Segments in kernel memory. */
interface Segments {
  view(segment: number): Uint8Array;
}

/**
 * Let parameters and averages change places.
 *
 * @param runs - where the trainable parameters lie
 */
export function exchangeAverages(memory: Segments, runs: readonly { readonly start: number; readonly end: number }[]): void {
  const parameters = memory.view(PARAMETERS);
  const moments = memory.view(MOMENTUM1);
  let at = runs.reduce((rest, { start, end }) => rest - (end - start), moments.length);
  for (const { start, end } of runs) {
    for (let from = start; from < end; from += CHUNK) {
      const to = Math.min(from + CHUNK, end);
      const kept = parameters.slice(from, to);
      parameters.set(moments.subarray(at, at + to - from), from);
      moments.set(kept, at);
      at += to - from;
    }
  }
}

/** Do something between two exchanges, the second of which comes however it ends. */
export function whileExchanged<T>(exchange: () => void, action: () => MaybePromise<T>): MaybePromise<T> {
  exchange();
  let done: MaybePromise<T>;
  try {
    done = action();
  } catch (error) {
    exchange();
    throw error;
  }
  if (done instanceof Promise) {
    return done.finally(exchange);
  }
  exchange();
  return done;
}
