/**
 * Sums that a plan makes for metrics, and formulas that compute values from the sums: `Described` of
 * trainweb/metrics.py.
 */

import type { Formula } from "../../wire/formulas.js";
import { wrong, type Reader } from "./reader.js";

/** A metric of a plan. */
export interface PlanMetric {
  readonly name: string;
  /** Outputs of the plan. */
  readonly sums: string;
  /** [number of targets that are not a class, the first of them, number of classes]; "" without such an output. */
  readonly faults: string;
  /** Names of the sums' rows in formulas; no names: the sums are a matrix, which is the value. */
  readonly rows: readonly string[];
  /** True: rows combine as in `ErrorSums`; false: all rows are added. */
  readonly isPooled: boolean;
  /** True: `sums` and `faults` are predictions and targets, which are kept one behind the other. */
  readonly isCollected: boolean;
  readonly formula: Formula;
}

export function readMetrics(reader: Reader, value: unknown, where: string): PlanMetric[] {
  return reader.list(value, where, (item, at) => {
    const fields = reader.object(item, at);
    return {
      name: reader.text(fields["name"], `${at}.name`),
      sums: reader.text(fields["sums"], `${at}.sums`),
      faults: reader.text(fields["faults"], `${at}.faults`),
      rows: reader.names(fields["rows"], `${at}.rows`),
      isPooled: reader.boolean(fields["isPooled"], `${at}.isPooled`),
      isCollected: reader.boolean(fields["isCollected"], `${at}.isCollected`),
      formula: readFormula(fields["formula"], `${at}.formula`),
    };
  });
}

function readFormula(value: unknown, where: string): Formula {
  if (typeof value === "number" || typeof value === "string") {
    return value;
  }
  if (!Array.isArray(value) || typeof value[0] !== "string") {
    throw wrong(where, "a formula", value);
  }
  return value.map((operand: unknown) => readFormula(operand, where));
}
