/** Joins the sums that plans make for metrics; trainweb/metrics.py defines the metrics, and its `Totals` is the same. */

import { EngineError, throwIf } from "../../wire/errors.js";
import type { CollectedRows, EvalValues, MetricValue, WireEvaluation, WireMetric } from "../../wire/fit.js";
import { evaluated, numberOf, type Formula } from "../../wire/formulas.js";
import { refuseIf, sessionError } from "../../wire/messages.js";
import type { NamedTensor } from "../../wire/protocol.js";
import type { PlanMetric } from "../bundle/metrics.js";
import { Curves, meanOf } from "../curves.js";
import { firstRows } from "../feeds.js";
import { EVAL, stepKind, type StepKind } from "../step-kind.js";

/** The name by which a plan collects predictions and targets for functions: `Rows` of trainweb/metrics.py. */
const ROWS = "rows";

/** A row of sums. */
type Row = readonly number[];

/** The kind of a plan that sums up metrics. */
export function metricsKind({ metrics, collects }: Pick<WireEvaluation, "metrics" | "collects">): StepKind {
  const summed = metrics
    .filter(({ formula }) => formula === null)
    .map(({ key, type, settings, predictions, targets }) => [key, type, settings, predictions, targets]);
  const entries = [...summed, ...(collects === null ? [] : [[ROWS, ROWS, [], ...collects]])];
  return entries.length === 0 ? EVAL : stepKind("eval", entries.sort(([a], [b]) => (String(a) < String(b) ? -1 : 1)));
}

/** The first of some kinds that sums up all metrics of `wanted`; else `wanted`. */
export function coveringKind(kinds: Iterable<StepKind>, wanted: StepKind): StepKind {
  const parts = ({ request }: StepKind): string[] =>
    Array.isArray(request) ? request.map((metric) => JSON.stringify(metric)) : [];
  const needed = parts(wanted);
  return [...kinds].find((kind) => {
    const offered = parts(kind);
    return kind.base === wanted.base && needed.every((metric) => offered.includes(metric));
  }) ?? wanted;
}

/** Sums of all batches. */
export class Totals {
  readonly #metrics: readonly PlanMetric[];
  readonly #sums = new Map<string, Row[]>();
  readonly #curves = new Map<string, Curves>();
  /** Predictions and targets of each batch, for functions. */
  readonly rows: CollectedRows[] = [];

  constructor(metrics: readonly PlanMetric[]) {
    this.#metrics = metrics;
  }

  /** Names of the outputs to fetch from a plan. */
  get fetches(): string[] {
    return this.#metrics.flatMap(({ sums, faults }) => (faults === "" ? [sums] : [sums, faults]));
  }

  /**
   * @param times - how often each row is in the batch, the first time before all others
   * @throws SessionError for a target that is not a class
   */
  add(results: readonly NamedTensor[], times = 1): void {
    const firstOf = (output: string): NamedTensor => {
      const result = resultOf(results, output);
      return times === 1 ? result : firstRows(result, (result.dims[0] ?? 1) / times);
    };
    for (const { name, sums, faults, rows: names, isPooled, isCollected } of this.#metrics) {
      if (name === ROWS) {
        this.rows.push([firstOf(sums), firstOf(faults)]);
        continue;
      }
      if (isCollected) {
        const curves = this.#curves.get(name) ?? new Curves(name, names.includes("weights"));
        curves.add(firstOf(sums), firstOf(faults));
        this.#curves.set(name, curves);
        continue;
      }
      if (faults !== "") {
        const [count = 0, value = 0, classes = 0] = rowsOf(results, faults)[0] as Row;
        if (count > 0) {
          throw Object.assign(sessionError("METRIC_CLASS", { name, value, count: classes }), { value });
        }
      }
      const before = this.#sums.get(name);
      // Shifts and means do not grow with the rows.
      const rows = rowsOf(results, sums).map((row, k) => (isPooled && (k === 1 || k === 2) ? row : row.map((x) => x / times)));
      this.#sums.set(name, before === undefined ? rows : isPooled ? pooled(before, rows) : added(before, rows));
    }
  }

  /** @param mean - the mean loss of the rows: the loss, if it has no terms */
  values(metrics: readonly WireMetric[], mean: number): EvalValues {
    const terms = metrics.filter(({ type }) => type === "term");
    const loss = terms.length === 0 ? mean : terms.reduce((sum, { key }) => sum + this.#partOf(key), 0);
    return { loss, ...Object.fromEntries(metrics.map((metric) => [metric.key, this.#value(metric, loss)])) };
  }

  /** The part of a term in the loss: `WEIGHTED` of trainweb/metrics.py. */
  #partOf(term: string): number {
    const [total, all, weighted] = (this.#sums.get(term) ?? []).map(([sum]) => sum as number) as [number, number, number];
    return (weighted / all) * (total / all);
  }

  #value({ key, type, formula, predictions, targets, scale }: WireMetric, loss: number): MetricValue {
    if (formula !== null) {
      const [total, all] = (this.#sums.get(predictions) ?? [[loss], [1]]).map(([sum]) => sum as number) as [number, number];
      return numberOf(formula, { loss: total / all });
    }
    const metric = this.#metrics.find(({ name }) => name === key);
    const curves = this.#curves.get(key);
    if (metric !== undefined && curves !== undefined) {
      return (metric.formula as readonly unknown[]).at(-1) === "none" ? curves.areas() : meanOf(curves.areas());
    }
    const sums = this.#sums.get(key);
    if (metric === undefined || sums === undefined) {
      throw new EngineError(`the plan does not sum up ${key}.`);
    }
    if (metric.rows.length === 0) {
      return sums;
    }
    const width = sums[0]?.length;
    const hasUnits = (type === "column_mae" || type === "rmse") && scale.length > 1;
    refuseIf(hasUnits && width !== scale.length, "TABLE_WIDTH", { name: targets, actual: width, expected: scale.length });
    const names = { ...Object.fromEntries(metric.rows.map((row, k): [string, Row] => [row, sums[k] ?? []])), loss, scale };
    const { formula: planFormula } = metric;
    if (typeof planFormula === "object" && planFormula[0] === "each") {
      const row = evaluated(planFormula[1] as Formula, names);
      return typeof row === "number" ? [row] : row;
    }
    return numberOf(planFormula, names);
  }
}

/** A result that was fetched. */
function resultOf(results: readonly NamedTensor[], name: string): NamedTensor {
  return results.find((result) => result.name === name) as NamedTensor;
}

/** The float64s of a result of one or two axes. */
function rowsOf(results: readonly NamedTensor[], name: string): Row[] {
  const { dtype, dims, data } = resultOf(results, name);
  throwIf(dtype !== "float64", EngineError, `the plan gives no sums '${name}'.`);
  const [rows, columns] = dims.length === 2 ? (dims as [number, number]) : [1, data.length / 8];
  const values = new Float64Array(data.slice().buffer);
  return Array.from({ length: rows }, (_, row) => [...values.subarray(row * columns, (row + 1) * columns)]);
}

function added(a: readonly Row[], b: readonly Row[]): Row[] {
  return a.map((row, k) => row.map((x, i) => x + (b[k]?.[i] as number)));
}

/**
 * Join the rows, means and squared deviations of two parts; the rows after these are added. Means are differences from
 * a target. Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances.
 */
function pooled(a: readonly Row[], b: readonly Row[]): Row[] {
  if (a[0]?.[0] === 0) {
    return [...b];
  }
  const joined = added(a, b);
  const [rows, shift, mean, squares] = joined.map((row) => [...row]) as [number[], number[], number[], number[]];
  rows.forEach((count, c) => {
    const at = (sums: readonly Row[], row: number): number => sums[row]?.[c] as number;
    const apart = at(b, 1) - at(a, 1) + (at(b, 2) - at(a, 2));
    const share = at(b, 0) / count;
    shift[c] = at(a, 1);
    mean[c] = at(a, 2) + apart * share;
    squares[c] = at(a, 3) + at(b, 3) + apart * apart * at(a, 0) * share;
  });
  return [rows, shift, mean, squares, ...joined.slice(4)];
}
