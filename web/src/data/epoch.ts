/** The rows of each batch of an epoch; `epoch_batches` of trainweb/data/dataset.py is the same. */

import type { Remainder } from "../wire/fit.js";
import { refuseIf } from "../wire/messages.js";
import type { InputDeclaration } from "../wire/protocol.js";

/** Count the batches of an epoch. */
export function countBatches(rows: number, size: number, remainder: Remainder): number {
  return remainder === "drop" ? Math.floor(rows / size) : Math.ceil(rows / size);
}

/** Rows of a batch, where the file fixes them: the first axis of every input. */
export function fixedRows(inputs: readonly InputDeclaration[]): number | null {
  const first = new Set(inputs.flatMap(({ dims }) => dims?.slice(0, 1) ?? []));
  const [rows] = first;
  return first.size === 1 && typeof rows === "number" ? rows : null;
}

/**
 * Split a batch into parts that fill a batch of the file, as the numbers of their rows. A part that is smaller is repeated,
 * so that the mean stays the same.
 */
export function* partsOf(rows: number, fixed: number | null): Generator<{ readonly order: number[]; readonly times: number }> {
  const size = fixed ?? rows;
  for (let start = 0; start < rows; ) {
    let count = Math.min(size, rows - start);
    while (size % count !== 0) {
      count--;
    }
    const from = start;
    yield { order: Array.from({ length: size }, (_, k) => from + (k % count)), times: size / count };
    start += count;
  }
}

/** @throws FeedError if a stream has no rows in an epoch, which counts from 0 */
export function refuseEmpty(isEmpty: boolean, epoch = 0, source = "data"): void {
  refuseIf(isEmpty, "ENDED_DATASET", { source, epoch: epoch + 1 });
}

/** The rows of each batch; an epoch has at least one batch. @param order - rows in the order of the epoch */
export function* epochBatches(order: Uint32Array, size: number, remainder: Remainder): Generator<Uint32Array> {
  const rows = order.length;
  const count = countBatches(rows, size, remainder);
  refuseIf(count === 0, "BATCH_BEYOND_DATA", { size, rows });
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
