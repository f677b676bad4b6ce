/**
 * Metrics of the eval model's results, over all rows of the validation data; trainweb/fit/metrics.py is the same and says
 * what each is. They are computed of the outputs, batch by batch, as counts and sums in float64.
 */

import { EngineError } from "../wire/errors.js";
import type { MetricValue, WireMetric } from "../wire/fit.js";
import { sessionError } from "../wire/messages.js";
import type { WireTensor } from "../wire/protocol.js";

/** A tensor as numbers. */
interface Numbers {
  readonly dims: readonly number[];
  readonly values: ArrayLike<number>;
}

export interface Metric {
  readonly name: string;
  /** Whether it looks at predictions and targets, not at the loss alone. */
  readonly readsOutputs: boolean;
  update(predicted: Numbers, target: Numbers): void;
  result(loss: number): MetricValue;
}

/** Scores [places, classes], and the classes of the places. */
interface Classified {
  readonly scores: ArrayLike<number>;
  readonly classes: number;
  readonly targets: readonly number[];
}

/** The elements of a tensor as numbers. */
export function numbersOf({ dtype, dims, data }: WireTensor): Numbers {
  const { buffer, byteOffset, byteLength } = data;
  switch (dtype) {
    case "float32":
      return { dims, values: new Float32Array(buffer, byteOffset, byteLength / 4) };
    case "float64":
      return { dims, values: new Float64Array(buffer, byteOffset, byteLength / 8) };
    case "int32":
      return { dims, values: new Int32Array(buffer, byteOffset, byteLength / 4) };
    case "int64":
      return { dims, values: Float64Array.from(new BigInt64Array(buffer, byteOffset, byteLength / 8), Number) };
    case "uint8":
    case "bool":
      return { dims, values: data };
    case "int8":
      return { dims, values: new Int8Array(buffer, byteOffset, byteLength) };
    default:
      throw new EngineError(`no metric takes ${dtype}.`);
  }
}

function sizeOf(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}

/** The axis of classes is the last, or the second; as many predictions as targets are of two classes. */
function byClass(name: string, predicted: Numbers, target: Numbers): Classified {
  const { dims, values } = predicted;
  const wanted = target.dims.join();
  const integers = (): number[] => Array.from(target.values, (value) => Math.trunc(value));
  if (sizeOf(dims) === sizeOf(target.dims)) {
    const scores = new Float64Array(2 * values.length);
    for (let k = 0; k < values.length; k++) {
      scores[2 * k + 1] = values[k] as number;
    }
    return { scores, classes: 2, targets: Array.from(target.values, (value) => Number(value > 0.5)) };
  }
  if (dims.length > 1 && wanted === dims.slice(0, -1).join()) {
    return { scores: values, classes: dims.at(-1) as number, targets: integers() };
  }
  if (dims.length > 1 && wanted === [dims[0], ...dims.slice(2)].join()) {
    return { scores: secondAxisLast(dims, values), classes: dims[1] as number, targets: integers() };
  }
  throw sessionError("METRIC_SHAPES", { name, predicted: dims, target: target.dims });
}

function secondAxisLast(dims: readonly number[], values: ArrayLike<number>): Float64Array {
  const [outer = 0, classes = 0, ...rest] = dims;
  const inner = sizeOf(rest);
  const moved = new Float64Array(values.length);
  for (let o = 0; o < outer; o++) {
    for (let c = 0; c < classes; c++) {
      for (let i = 0; i < inner; i++) {
        moved[(o * inner + i) * classes + c] = values[(o * classes + c) * inner + i] as number;
      }
    }
  }
  return moved;
}

abstract class ClassMetric implements Metric {
  readonly readsOutputs = true;
  readonly #ignored: unknown;

  constructor(
    readonly name: string,
    { ignore_index: ignored = null }: Readonly<Record<string, unknown>>,
  ) {
    this.#ignored = ignored;
  }

  update(predicted: Numbers, target: Numbers): void {
    const { scores, classes, targets } = byClass(this.name, predicted, target);
    targets.forEach((value, place) => {
      if (value === this.#ignored) {
        return;
      }
      if (!(value >= 0 && value < classes)) {
        throw sessionError("METRIC_CLASS", { name: this.name, value, count: classes });
      }
      this.count(scores, place * classes, classes, value);
    });
  }

  /** Count a place, whose scores start at `at`. */
  protected abstract count(scores: ArrayLike<number>, at: number, classes: number, target: number): void;
  abstract result(loss: number): MetricValue;
}

type IsRight = (scores: ArrayLike<number>, at: number, classes: number, target: number) => boolean;

class Share extends ClassMetric {
  readonly #isRight: IsRight;
  #right = 0;
  #all = 0;

  constructor(name: string, settings: Readonly<Record<string, unknown>>, isRight: IsRight) {
    super(name, settings);
    this.#isRight = isRight;
  }

  protected count(scores: ArrayLike<number>, at: number, classes: number, target: number): void {
    this.#right += Number(this.#isRight(scores, at, classes, target));
    this.#all++;
  }

  result(): number {
    return this.#right / this.#all;
  }
}

/** The first of the highest scores. */
function highest(scores: ArrayLike<number>, at: number, classes: number): number {
  let best = 0;
  for (let c = 1; c < classes; c++) {
    if ((scores[at + c] as number) > (scores[at + best] as number)) {
      best = c;
    }
  }
  return best;
}

function higherThan(scores: ArrayLike<number>, at: number, classes: number, target: number): number {
  let higher = 0;
  for (let c = 0; c < classes; c++) {
    higher += Number((scores[at + c] as number) > (scores[at + target] as number));
  }
  return higher;
}

/** Of a class: rightly predicted, targets, predictions. */
type ClassCounts = readonly [right: number, targets: number, predictions: number];

type Conclude = (matrix: readonly (readonly number[])[], parts: readonly ClassCounts[]) => MetricValue;

/** What follows from the confusion matrix: rows are targets, columns predictions. */
class Confused extends ClassMetric {
  readonly #conclude: Conclude;
  #matrix: number[][] = [];

  constructor(name: string, settings: Readonly<Record<string, unknown>>, conclude: Conclude) {
    super(name, settings);
    this.#conclude = conclude;
  }

  protected count(scores: ArrayLike<number>, at: number, classes: number, target: number): void {
    if (this.#matrix.length === 0) {
      this.#matrix = Array.from({ length: classes }, () => new Array<number>(classes).fill(0));
    }
    const row = this.#matrix[target] as number[];
    const column = highest(scores, at, classes);
    row[column] = (row[column] as number) + 1;
  }

  result(): MetricValue {
    const matrix = this.#matrix;
    const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);
    const parts = matrix.map((row, c): ClassCounts => [row[c] as number, sum(row), sum(matrix.map((one) => one[c] as number))]);
    return this.#conclude(matrix, parts);
  }
}

function f1(parts: readonly ClassCounts[], average: unknown): number {
  const add = (pick: (counts: ClassCounts) => number): number => parts.reduce((total, counts) => total + pick(counts), 0);
  if (average === "micro") {
    return (2 * add(([right]) => right)) / add(([, targets, predictions]) => targets + predictions);
  }
  const weightOf = ([, targets, predictions]: ClassCounts): number =>
    average === "weighted" ? targets : Number(targets + predictions > 0);
  const score = ([right, targets, predictions]: ClassCounts): number =>
    targets + predictions > 0 ? (2 * right) / (targets + predictions) : 0;
  return add((counts) => weightOf(counts) * score(counts)) / add(weightOf);
}

function meanIoU(parts: readonly ClassCounts[]): number {
  const present = parts.filter(([, targets, predictions]) => targets + predictions > 0);
  return present.reduce((total, [r, t, p]) => total + r / (t + p - r), 0) / present.length;
}

abstract class NumberMetric implements Metric {
  readonly readsOutputs = true;

  constructor(readonly name: string) {}

  update(predicted: Numbers, target: Numbers): void {
    if (sizeOf(predicted.dims) !== sizeOf(target.dims)) {
      throw sessionError("METRIC_SHAPES", { name: this.name, predicted: predicted.dims, target: target.dims });
    }
    this.compare(predicted.values, target.values, sizeOf(target.dims.slice(1)));
  }

  protected abstract compare(predicted: ArrayLike<number>, target: ArrayLike<number>, columns: number): void;
  abstract result(loss: number): number;
}

class MeanAbsoluteError extends NumberMetric {
  #total = 0;
  #all = 0;

  protected compare(predicted: ArrayLike<number>, target: ArrayLike<number>): void {
    for (let k = 0; k < target.length; k++) {
      this.#total += Math.abs((predicted[k] as number) - (target[k] as number));
    }
    this.#all += target.length;
  }

  result(): number {
    return this.#total / this.#all;
  }
}

interface ColumnSums {
  readonly shift: number;
  sum: number;
  squares: number;
  errors: number;
}

class R2 extends NumberMetric {
  #rows = 0;
  #columns: ColumnSums[] = [];

  protected compare(predicted: ArrayLike<number>, target: ArrayLike<number>, columns: number): void {
    if (this.#rows === 0) {
      // Around the mean: sums of squares of large numbers would lose the digits of their difference.
      this.#columns = Array.from({ length: columns }, (_, c) => {
        return { shift: target[c] as number, sum: 0, squares: 0, errors: 0 };
      });
    }
    for (let k = 0; k < target.length; k++) {
      const column = this.#columns[k % columns] as ColumnSums;
      const around = (target[k] as number) - column.shift;
      column.sum += around;
      column.squares += around ** 2;
      column.errors += ((predicted[k] as number) - (target[k] as number)) ** 2;
    }
    this.#rows += target.length / columns;
  }

  result(): number {
    const scores = this.#columns.map(({ sum, squares, errors }) => {
      const spread = squares - sum ** 2 / this.#rows;
      return spread > 0 ? 1 - errors / spread : Number(errors === 0);
    });
    return scores.reduce((a, b) => a + b, 0) / scores.length;
  }
}

const METRICS: Readonly<Record<string, (settings: WireMetric) => Metric>> = {
  accuracy: (s) => new Share(s.type, s, (scores, at, classes, target) => highest(scores, at, classes) === target),
  topK: (s) => {
    const k = (s["k"] as number | undefined) ?? 5;
    return new Share(s.type, s, (scores, at, classes, target) => higherThan(scores, at, classes, target) < k);
  },
  f1: (s) => new Confused(s.type, s, (_, parts) => f1(parts, s["average"])),
  confusionMatrix: (s) => new Confused(s.type, s, (matrix) => matrix),
  mIoU: (s) => new Confused(s.type, s, (_, parts) => meanIoU(parts)),
  mae: ({ type }) => new MeanAbsoluteError(type),
  r2: ({ type }) => new R2(type),
  perplexity: ({ type }) => ({
    name: type,
    readsOutputs: false,
    update: () => {},
    result: (loss) => Math.exp(loss),
  }),
};

/** A metric of settings that the page has checked. */
export function makeMetric(settings: WireMetric): Metric {
  const make = METRICS[settings.type];
  if (make === undefined) {
    throw new EngineError(`there is no metric ${settings.type}.`);
  }
  return make(settings);
}
