/** Training and validation data of a fit; `trainweb/fit/plan.py` is the same in Python. */

import type { Tensor } from "onnxruntime-common";

import type { Dataset, DataSource } from "../data/dataset.js";
import { log } from "../wire/log.js";
import { sessionError, refuseIf } from "../wire/messages.js";
import type { ModelInputs } from "./model-inputs.js";
import { isOnCpu } from "./tensors.js";

/** Largest number of classes that a warning names. */
const NAMED_CLASSES = 10;
const WHOLE: readonly string[] = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"];

/**
 * The training data and the validation data.
 *
 * @param name - the input that has the classes
 */
export function splitData(
  inputs: ModelInputs,
  name: string,
  data: unknown,
  validation: DataSource | null,
  { validationSplit: share, stratify }: { readonly validationSplit: number | null; readonly stratify: boolean },
): [Dataset, Dataset | null] {
  const train = inputs.dataset(data);
  if (share === null) {
    refuseIf(stratify, "STRATIFIED_NOTHING");
    return [train, validation === null ? null : inputs.dataset(validation)];
  }
  refuseIf(validation !== null, "TWO_VALIDATIONS");
  const labels = labelsOf(train.columns?.get(name));
  if (stratify) {
    if (labels === null) {
      throw sessionError("NO_CLASSES", { name });
    }
    return stratified(train, labels, share);
  }
  const parts = train.split(share);
  if (labels !== null) {
    warnOfMissing(name, labels, parts[0].size as number);
  }
  return parts;
}

/** The classes of rows; null unless there is one integer a row. */
function labelsOf(column: Tensor | undefined): readonly number[] | null {
  if (column === undefined || !WHOLE.includes(column.type) || !isOnCpu(column)) {
    return null;
  }
  const labels = Array.from(column.data as Int32Array, Number);
  return labels.length === column.dims[0] ? labels : null;
}

/** Split so that the second has this share of the rows of each class, the last ones. */
function stratified(data: Dataset, labels: readonly number[], share: number): [Dataset, Dataset] {
  const rowsOf = new Map<number, number[]>();
  for (const [row, label] of labels.entries()) {
    const rows = rowsOf.get(label);
    if (rows === undefined) {
      rowsOf.set(label, [row]);
    } else {
      rows.push(row);
    }
  }
  const second = new Set<number>();
  for (const rows of rowsOf.values()) {
    rows.slice(rows.length - Math.floor(rows.length * share + 0.5)).forEach((row) => second.add(row));
  }
  if (second.size === 0 || second.size === labels.length) {
    throw sessionError("EMPTY_SPLIT", { rows: labels.length, share });
  }
  const numbers = labels.map((_, row) => row);
  return [data.rows(numbers.filter((row) => !second.has(row))), data.rows(numbers.filter((row) => second.has(row)))];
}

/** Warn of classes that only one of two parts has, if there are few classes. */
function warnOfMissing(name: string, labels: readonly number[], first: number): void {
  const classes = [...new Set(labels)].sort((a, b) => a - b);
  for (const [part, present] of [["training", labels.slice(0, first)], ["validation", labels.slice(first)]] as const) {
    const missing = classes.filter((label) => !present.includes(label));
    // Of many classes some are rare.
    if (missing.length > 0 && classes.length <= NAMED_CLASSES) {
      log("warning", sessionError("MISSING_CLASSES", { part, name, classes: missing.join(", ") }).message);
    }
  }
}
