/** Rows that a split takes of each class; `labels_of` and `last_of_each` of trainweb/data/dataset.py are the same. */

import type { Tensor } from "onnxruntime-common";

const NUMBERS: readonly string[] = ["float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"];

/** The classes of rows; null unless there is one whole number a row. */
export function labelsOf(column: Tensor | undefined): readonly number[] | null {
  if (column === undefined || !NUMBERS.includes(column.type) || !column.location.startsWith("cpu")) {
    return null;
  }
  const labels = Array.from(column.data as Int32Array, Number);
  return labels.length === column.dims[0] && labels.every(Number.isInteger) ? labels : null;
}

/** True for the last rows of each class, this share of them. */
export function lastOfEach(labels: readonly number[], share: number): boolean[] {
  const rowsOf = new Map<number, number[]>();
  for (const [row, label] of labels.entries()) {
    const rows = rowsOf.get(label);
    if (rows === undefined) {
      rowsOf.set(label, [row]);
    } else {
      rows.push(row);
    }
  }
  const isLast = labels.map(() => false);
  for (const rows of rowsOf.values()) {
    for (const row of rows.slice(rows.length - Math.floor(rows.length * share + 0.5))) {
      isLast[row] = true;
    }
  }
  return isLast;
}
