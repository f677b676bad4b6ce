/** The rows of each batch of an epoch; `epoch_batches` of trainweb/data/dataset.py is the same. */

import type { Remainder } from "../wire/fit.js";
import { sessionError } from "../wire/messages.js";

/** Count the batches of an epoch. */
export function countBatches(rows: number, size: number, remainder: Remainder): number {
  return remainder === "drop" ? Math.floor(rows / size) : Math.ceil(rows / size);
}

/** The error for a stream without rows in an epoch, which counts from 0. */
export function emptyData(epoch: number, source = "data"): Error {
  return sessionError("ENDED_DATASET", { source, epoch: epoch + 1 });
}

/**
 * The rows of each batch; an epoch has at least one batch.
 *
 * @param order - rows in the order of the epoch
 */
export function* epochBatches(order: Uint32Array, size: number, remainder: Remainder): Generator<Uint32Array> {
  const rows = order.length;
  const count = countBatches(rows, size, remainder);
  if (count === 0) {
    throw sessionError("BATCH_BEYOND_DATA", { size, rows });
  }
  for (let k = 0; k < count; k++) {
    yield batchRows(order, k, size, remainder);
  }
}

/** The rows of the batch of a number. */
export function batchRows(order: Uint32Array, k: number, size: number, remainder: Remainder): Uint32Array {
  const batch = order.subarray(k * size, (k + 1) * size);
  if (remainder !== "pad" || batch.length === size) {
    return batch;
  }
  const wrapped = [...batch, ...order];
  return Uint32Array.from({ length: size }, (_, i) => wrapped[i % wrapped.length] as number);
}

/** So many rows in their order. */
export function inOrder(rows: number): Uint32Array {
  return Uint32Array.from({ length: rows }, (_, k) => k);
}
