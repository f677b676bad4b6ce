/** Metrics that are functions of the page; `trainweb/fit/evaluation.py` is the same in Python. */

import type { Tensor } from "onnxruntime-common";

import { describe, refuseSettingIf } from "../data/checks.js";
import { inUnits } from "../data/table.js";
import { isObject } from "../wire/kinds.js";
import type { Evaluated, EvalValues, WireEvaluation } from "../wire/fit.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import type { MetricSettings, MetricType } from "./settings/fit.js";
import { joined, unpackTensor } from "./tensors.js";

/** A metric of your own: a number of the predictions and targets of all rows. */
export type MetricFunction = (predictions: Tensor, targets: Tensor) => number;

/** Functions by the names of their metrics. */
export type MetricFunctions = Readonly<Record<string, MetricFunction>>;

/** A metric by its name, or with its settings. */
export type Metric = MetricType | MetricSettings;

/** Metrics of outputs that the loss compares with labels. */
export type MetricsByOutput = Readonly<Record<string, Metric | readonly Metric[]>>;

/** A name, settings with `type`, functions by their names, or metrics by outputs; or a list of them. */
export type Metrics =
  | Metric
  | MetricFunctions
  | MetricsByOutput
  | readonly (Metric | MetricFunctions | MetricsByOutput)[];

/** Names of the metrics among `M` whose values are numbers. */
type NumberNames<M> = M extends string ? Exclude<M, "confusionMatrix">
  : M extends readonly (infer Item)[] ? NumberNames<Item>
  : M extends { readonly type: infer Type } ? ("average" extends keyof M ? (M extends { average: "macro" | "micro" | "weighted" } ? Type : never) : NumberNames<Type>)
  : M extends MetricFunctions ? keyof M
  : { [Output in keyof M]: `${Output & string}_${NumberNames<M[Output]> & string}` }[keyof M];

/** Loss and metrics, by name; those that the call names are numbers. */
export type ValuesOf<M> = EvalValues & { readonly [Name in MetricType extends M ? never : NumberNames<M> & string]: number };

/** True for an object of functions by their names. */
export function hasFunctions(metric: unknown): metric is MetricFunctions {
  const values = isObject(metric) ? Object.values(metric) : [];
  return values.length > 0 && values.every((value) => typeof value === "function");
}

/** True for metrics by outputs. */
function areByOutput(metrics: unknown): metrics is Readonly<Record<string, unknown>> {
  const values = typeof metrics === "object" && metrics !== null && !Array.isArray(metrics) ? Object.values(metrics) : [];
  const isSome = (some: unknown): boolean => typeof some === "string" || (typeof some === "object" && some !== null);
  return values.length > 0 && !("type" in (metrics as object)) && values.every(isSome);
}

/** A metric with its output; null: the output that the loss compares. */
export type OutputMetric = readonly [output: string | null, metric: unknown];

/** @throws ModelError for what is no list of metrics */
export function metricsOf(metrics: unknown): OutputMetric[] {
  if (areByOutput(metrics)) {
    return Object.entries(metrics).flatMap(([output, some]) => metricsOf(some).map(([, metric]): OutputMetric => [output, metric]));
  }
  if (Array.isArray(metrics)) {
    return metrics.flatMap((metric: unknown) => (areByOutput(metric) ? metricsOf(metric) : [[null, metric] as const]));
  }
  refuseSettingIf(typeof metrics !== "string" && (typeof metrics !== "object" || metrics === null), "metrics", metrics, "a list of metrics");
  return [[null, metrics]];
}

/** The values of an evaluation, with the values of functions. */
export function withFunctions(
  { values, rows }: Evaluated,
  { collects, unit }: WireEvaluation,
  functions: ReadonlyMap<string, MetricFunction>,
): EvalValues {
  if (collects === null) {
    return values;
  }
  const [predicted, target] = ([0, 1] as const).map((k) =>
    inUnits(collects[k], unpackTensor(joined(collects[k], rows.map((parts) => parts[k]))), unit)) as [Tensor, Tensor];
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
