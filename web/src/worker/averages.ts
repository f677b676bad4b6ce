/** The action while averages and parameters have changed places. */

import type { MaybePromise } from "../wire/protocol.js";

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
