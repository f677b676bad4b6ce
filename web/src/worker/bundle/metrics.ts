/**
 * Sums that a plan makes for metrics, and formulas that compute values from the sums: `Described` of
 * trainweb/metrics.py.
 */

import type { Formula } from "../../wire/formulas.js";
import { flag, names, record, text, wrong, type Form, type Of } from "./reader.js";

const FORMULA: Form<Formula> = (value, where, reader) => {
  if (typeof value === "number" || typeof value === "string") {
    return value;
  }
  if (!Array.isArray(value) || typeof value[0] !== "string") {
    throw wrong(where, "a formula", value);
  }
  return value.map((operand: unknown) => FORMULA(operand, where, reader));
};

export const METRIC = record({
  name: text,
  /** Outputs of the plan. */
  sums: text,
  /** [number of targets that are not a class, the first of them, number of classes]; "" without such an output. */
  faults: text,
  /** Names of the sums' rows in formulas; no names: the sums are a matrix, which is the value. */
  rows: names,
  /** True: rows combine as in `ErrorSums`; false: all rows are added. */
  isPooled: flag,
  /** True: `sums` and `faults` are predictions and targets, which are kept one behind the other. */
  isCollected: flag,
  formula: FORMULA,
});
export type PlanMetric = Of<typeof METRIC>;
