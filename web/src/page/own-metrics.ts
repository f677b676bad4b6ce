/** Metrics that are functions of the page; `trainweb/fit/evaluation.py` is the same in Python. */

import type { Tensor } from "onnxruntime-common";

import { describe } from "../data/given.js";
import { isObject } from "../wire/kinds.js";
import type { Evaluated, EvalValues, WireEvaluation } from "../wire/fit.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import type { MetricSettings, MetricType } from "./settings/fit.js";
import { joined, unpackTensor } from "./tensors.js";

/** A metric of your own: a number of the predictions and targets of all rows. */
export type MetricFunction = (predictions: Tensor, targets: Tensor) => number;

/** Functions by the names of their metrics. */
export type MetricFunctions = Readonly<Record<string, MetricFunction>>;

/** A name, settings with `type`, or functions by their names; or a list of them. */
export type Metrics =
  | MetricType
  | MetricSettings
  | MetricFunctions
  | readonly (MetricType | MetricSettings | MetricFunctions)[];

/** True for an object of functions by their names. */
export function hasFunctions(metric: unknown): metric is MetricFunctions {
  const values = isObject(metric) ? Object.values(metric) : [];
  return values.length > 0 && values.every((value) => typeof value === "function");
}

/** The values of an evaluation, with the values of functions. */
export function withFunctions(
  { values, rows }: Evaluated,
  { predictions, targets }: WireEvaluation,
  functions: ReadonlyMap<string, MetricFunction>,
): EvalValues {
  if (functions.size === 0) {
    return values;
  }
  const predicted = unpackTensor(joined(predictions as string, rows.map(([part]) => part)));
  const target = unpackTensor(joined(targets as string, rows.map(([, part]) => part)));
  const computed = [...functions].map(([name, call]): [string, number] => [name, ownValue(name, call, predicted, target)]);
  return { ...values, ...Object.fromEntries(computed) };
}

/** @throws ModelError when the function fails, or returns something else than a number */
function ownValue(name: string, call: MetricFunction, predictions: Tensor, targets: Tensor): number {
  let value: unknown;
  try {
    value = call(predictions, targets);
  } catch (error) {
    const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    throw Object.assign(sessionError("METRIC_FAILED", { name, error: text }), { cause: error });
  }
  if (typeof value !== "number") {
    throw sessionError("METRIC_VALUE", { name, found: `a value of type ${describe(value).replace(/^an? /, "")}` });
  }
  refuseIf(Number.isNaN(value), "METRIC_VALUE", { name, found: "NaN" });
  return value;
}
