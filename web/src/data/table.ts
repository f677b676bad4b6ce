/** Preprocessing of tables: steps that are fitted on rows, and applied to others; trainweb/data/table.py is the same in Python. */

import { Tensor } from "onnxruntime-common";

import type { Unit, Units } from "../wire/fit.js";
import { raise, refuseIf, show } from "../wire/messages.js";
import { badSetting, refuseSettingIf } from "./checks.js";
import { liveTensor } from "./rows.js";

/** Fields of every step. */
export interface TableStep {
  /** The input that it changes or makes. */
  readonly input: string;
  /** Type of the fitted rows; steps of older files have none. */
  readonly dtype?: string;
}

/** A step that was fitted by `fillMean` or `fillMedian`. */
export interface FillStep extends TableStep {
  /** The kind of step. */
  readonly type: "fill";
  /** The value of each column that takes the place of NaN. */
  readonly values: readonly number[];
}

/** A step that was fitted by `standardize`. */
export interface StandardizeStep extends TableStep {
  /** The kind of step. */
  readonly type: "standardize";
  /** Mean of each column. */
  readonly mean: readonly number[];
  /** Deviation of each column. */
  readonly std: readonly number[];
}

/** A step that was fitted by `oneHot` or `categories`. */
export interface CategoryStep extends TableStep {
  /** The kind of step, by its name in Python. */
  readonly type: "one_hot" | "categories";
  /** Categories of each column, in ascending order. */
  readonly categories: readonly (readonly (string | number)[])[];
  /** Of "one_hot": a category that is none of them gives zeros, not an error. */
  readonly unknown?: "zeros";
}

/** A step of `concat`. */
export interface ConcatStep extends TableStep {
  /** The kind of step. */
  readonly type: "concat";
  /** The inputs that it joins. */
  readonly parts: readonly string[];
}

/** A step of preprocessing: plain JSON, the same in Python. */
export type PreprocessingStep = FillStep | StandardizeStep | CategoryStep | ConcatStep;

type Tensors = ReadonlyMap<string, Tensor>;
/** Types of steps that are fitted. */
export type Fitted = "fill_mean" | "fill_median" | "standardize" | "one_hot" | "categories";
type Applied = Exclude<PreprocessingStep, ConcatStep>;

const FLOATS = ["float32", "float64"];
const INTEGERS = ["int64", "int32", "uint8"];
const NUMBERS = [...FLOATS, ...INTEGERS];
const TAKES: Readonly<Record<Applied["type"], readonly string[]>> = {
  fill: NUMBERS,
  standardize: NUMBERS,
  one_hot: ["string", ...INTEGERS],
  categories: ["string"],
};
const isListOf = (type: string) => (value: unknown) =>
  Array.isArray(value) && value.length > 0 && value.every((one) => (type === "array" ? Array.isArray(one) : typeof one === type));

/** Fields of each type of step besides `type`, `input` and `dtype`, and what they hold. */
const FIELDS: Readonly<Record<string, Readonly<Record<string, (value: unknown) => boolean>>>> = {
  fill: { values: isListOf("number") },
  standardize: { mean: isListOf("number"), std: isListOf("number") },
  one_hot: { categories: isListOf("array") },
  categories: { categories: isListOf("array") },
  concat: { parts: isListOf("string") },
};

/**
 * A step that is fitted on columns; of type "fill_mean" or "fill_median" it fills missing values.
 *
 * @throws FeedError when there is no such input, it has another type, or its mean, median or deviation is not finite
 */
export function fittedStep(type: Fitted, input: string, columns: Tensors): PreprocessingStep {
  const column = inputOf(input, columns);
  const tensor = type === "one_hot" && FLOATS.includes(column.type) ? wholeOf(input, column) : column;
  checkType(type === "fill_mean" || type === "fill_median" ? "fill" : type, input, tensor);
  const [rows, width] = flatDims(tensor);
  const dtype = tensor.type;
  if (type === "fill_mean" || type === "fill_median") {
    return { type: "fill", input, dtype, values: fillsOf(type, input, tensor) };
  }
  if (type !== "standardize") {
    const values = valuesOf(tensor);
    const categories = Array.from({ length: width }, (_, k) => {
      const distinct = new Set(Array.from({ length: rows }, (_, row) => values[row * width + k] as string | number));
      return [...distinct].sort(ascending);
    });
    return { type, input, dtype, categories };
  }
  const [mean, std] = moments(Float64Array.from(valuesOf(tensor), Number), rows, width);
  refuseIf(![...mean, ...std].every(Number.isFinite), "TABLE_MOMENTS", { name: input });
  return { type, input, dtype, mean: [...mean], std: [...std] };
}

/** The whole numbers of a column of floats. @throws FeedError for the first row with another number */
function wholeOf(name: string, tensor: Tensor): Tensor {
  const values = valuesOf(tensor) as readonly number[];
  const odd = values.findIndex((value) => !Number.isSafeInteger(value));
  refuseIf(odd >= 0, "TABLE_WHOLE", { row: Math.floor(odd / flatDims(tensor)[1]), value: values[odd], name });
  return new Tensor("int64", values.map(BigInt), tensor.dims);
}

/** Numbers by size, text by its code points as in Python (not by UTF-16). */
function ascending(a: string | number, b: string | number): number {
  if (typeof a === "number" || typeof b === "number") {
    return Number(a) - Number(b);
  }
  const [left, right] = [[...a], [...b]];
  const at = left.findIndex((one, k) => one !== right[k]);
  if (at < 0 || at >= right.length) {
    return left.length - right.length;
  }
  return (left[at] as string).codePointAt(0)! - (right[at] as string).codePointAt(0)!;
}

/** The mean or median of the numbers that each column has. */
function fillsOf(type: "fill_mean" | "fill_median", name: string, tensor: Tensor): number[] {
  const [, width] = flatDims(tensor);
  const values = valuesOf(tensor) as readonly number[];
  return Array.from({ length: width }, (_, column) => {
    const present = values.filter((value, i) => i % width === column && !Number.isNaN(value));
    refuseIf(present.length === 0, "TABLE_EMPTY", { name, column });
    const centre = type === "fill_mean" ? present.reduce((sum, value) => sum + value, 0) / present.length : medianOf(present);
    refuseIf(!Number.isFinite(centre), "TABLE_CENTRE", { name, column });
    return centre;
  });
}

function medianOf(values: readonly number[]): number {
  const sorted = Float64Array.from(values).sort();
  const [left, right] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]] as [number, number];
  return left === right ? left : (left + right) / 2;
}

/** Mean and population deviation of each column; a constant column's is 1 (the bound is scikit-learn's). */
function moments(values: Float64Array, rows: number, width: number): [Float64Array, Float64Array] {
  const mean = new Float64Array(width);
  values.forEach((value, i) => {
    mean[i % width]! += value;
  });
  mean.forEach((sum, k) => {
    mean[k] = sum / rows;
  });
  const std = new Float64Array(width);
  values.forEach((value, i) => {
    const apart = value - mean[i % width]!;
    std[i % width]! += apart * apart;
  });
  std.forEach((sum, k) => {
    const variance = sum / rows;
    const rounding = rows * Number.EPSILON * mean[k]!;
    const isConstant = Number.isFinite(variance) && variance <= rows * Number.EPSILON * variance + rounding * rounding;
    std[k] = isConstant ? 1 : Math.sqrt(variance);
  });
  return [mean, std];
}

/** Columns after steps. A step whose inputs are not there changes nothing: rows to predict on have no labels. */
export function applySteps(steps: readonly PreprocessingStep[], columns: Tensors): Record<string, Tensor> {
  const results = new Map(columns);
  for (const step of steps) {
    for (const name of step.type === "concat" ? step.parts : [step.input]) {
      if (results.has(name)) {
        results.set(name, asFitted(step.dtype, inputOf(name, results)));
      }
    }
    const tensor = results.get(step.input);
    if (step.type === "concat") {
      if (!step.parts.some((name) => results.has(name))) {
        continue;
      }
      refuseSettingIf(results.has(step.input) && !step.parts.includes(step.input), "name", step.input, "a name that no other input has");
      const joined = concat(step.parts, results);
      step.parts.forEach((name) => results.delete(name));
      results.set(step.input, joined);
    } else if (tensor !== undefined) {
      checkType(step.type, step.input, tensor, step.dtype);
      results.set(step.input, changed(step, tensor));
    }
  }
  return Object.fromEntries(results);
}

/** The units of standardized inputs; one that `concat` makes has units if all its parts do. */
export function unitsOf(steps: readonly PreprocessingStep[]): Units {
  const units = new Map<string, Unit>();
  for (const step of steps) {
    if (step.type === "standardize") {
      const before = units.get(step.input);
      const std = step.std.map((scale, k) => scale * (before?.std[k] ?? 1));
      const mean = step.mean.map((shift, k) => (before?.mean[k] ?? 0) + shift * (before?.std[k] ?? 1));
      units.set(step.input, { std, mean });
    } else if (step.type === "concat") {
      const parts = step.parts.flatMap((part) => units.get(part) ?? []);
      step.parts.forEach((part) => units.delete(part));
      if (parts.length === step.parts.length) {
        units.set(step.input, { std: parts.flatMap(({ std }) => std), mean: parts.flatMap(({ mean }) => mean) });
      }
    }
  }
  return units;
}

/** Standardized values in the units of their column. @throws FeedError for another type or width */
export function inUnits(name: string, tensor: Tensor, unit: Unit | undefined): Tensor {
  if (unit === undefined) {
    return tensor;
  }
  const { length } = unit.std;
  checkType("standardize", name, tensor);
  checkWidth(name, length === 1 ? 1 : flatDims(tensor)[1], length);
  const data = (tensor.data as Float32Array).map((value, i) => value * unit.std[i % length]! + unit.mean[i % length]!);
  return new Tensor(tensor.type as "float32", data, tensor.dims);
}

/** Numbers in the type of the fitted rows; integers and text stay, as a step takes them by their values. */
function asFitted(dtype: string | undefined, tensor: Tensor): Tensor {
  const isAnother = tensor.type !== dtype && NUMBERS.includes(tensor.type) && FLOATS.includes(dtype as string);
  return isAnother ? new Tensor(dtype as "float32", valuesOf(tensor) as number[], tensor.dims) : tensor;
}

function changed(step: Applied, tensor: Tensor): Tensor {
  switch (step.type) {
    case "fill":
      return fill(step, tensor);
    case "standardize":
      return standardize(step, tensor);
    default:
      return categorize(step, tensor);
  }
}

/** Steps that may come from a file. @throws ModelError when they are no steps */
export function checkSteps(steps: unknown): readonly PreprocessingStep[] {
  const list: readonly unknown[] = Array.isArray(steps) ? steps : [steps];
  for (const step of list) {
    const of = Object(step) as Readonly<Record<string, unknown>>;
    const fields = typeof of["type"] === "string" && Object.hasOwn(FIELDS, of["type"]) ? FIELDS[of["type"]] : undefined;
    const isOpen = of["type"] === "one_hot" && of["unknown"] === "zeros";
    if (
      fields === undefined ||
      Object.keys({ dtype: "", ...of }).length !== Object.keys(fields).length + (isOpen ? 4 : 3) ||
      ![of["input"], of["dtype"] ?? ""].every((one) => typeof one === "string") ||
      !Object.entries(fields).every(([field, check]) => check(of[field]))
    ) {
      throw badSetting("steps", step, "the 'preprocessing' of a dataset");
    }
  }
  return list as readonly PreprocessingStep[];
}

/** True if steps are the same, in any order of their fields. */
export function areSteps(actual: readonly PreprocessingStep[], expected: readonly PreprocessingStep[]): boolean {
  const text = (steps: readonly PreprocessingStep[]): string =>
    JSON.stringify(steps.map((step) => Object.entries(step).sort(([a], [b]) => (a < b ? -1 : 1))));
  return text(actual) === text(expected);
}

/** A column by its name, with true and false as 1 and 0. @throws FeedError when there is none */
export function inputOf(name: string, columns: Tensors): Tensor {
  const column = columns.get(name) ?? raise("TABLE_INPUT", { name, names: [...columns.keys()].join(", ") });
  const tensor = liveTensor(name, column, 0);
  return tensor.type === "bool" ? new Tensor("uint8", tensor.data as Uint8Array, tensor.dims) : tensor;
}

function checkType(step: Applied["type"], name: string, { type }: Tensor, fittedOn = ""): void {
  if (INTEGERS.includes(fittedOn) && NUMBERS.includes(type)) {
    return; // such as whole numbers in nested arrays
  }
  refuseIf(fittedOn === "string" && type !== "string", "TABLE_TEXT", { name, actual: type, step });
  refuseIf(!TAKES[step].includes(type), "TABLE_TYPE", { name, actual: type, step, expected: TAKES[step].join(", ") });
}

/** Rows, and values of each. */
function flatDims({ dims: [rows = 0, ...rest] }: Tensor): [number, number] {
  return [rows, rest.reduce((product, dim) => product * dim, 1)];
}

/** Values as text or numbers. */
function valuesOf({ data }: Tensor): readonly (string | number)[] {
  return Array.from(data as ArrayLike<string | number | bigint>, (value) => (typeof value === "bigint" ? Number(value) : value));
}

function checkWidth(name: string, width: number, expected: number): void {
  refuseIf(width !== expected, "TABLE_WIDTH", { name, actual: width, expected });
}

function fill({ input, values }: FillStep, tensor: Tensor): Tensor {
  const [, width] = flatDims(tensor);
  checkWidth(input, width, values.length);
  const data = (tensor.data as Float32Array).map((value, i) => (Number.isNaN(value) ? values[i % width]! : value));
  return new Tensor(tensor.type as "float32", data, tensor.dims);
}

function standardize({ input, dtype, mean, std }: StandardizeStep, tensor: Tensor): Tensor {
  const [, width] = flatDims(tensor);
  checkWidth(input, width, mean.length);
  const scaled = valuesOf(tensor).map((value, i) => (Number(value) - mean[i % width]!) / std[i % width]!);
  return (dtype ?? tensor.type) === "float64"
    ? new Tensor("float64", Float64Array.from(scaled), tensor.dims)
    : new Tensor("float32", Float32Array.from(scaled), tensor.dims);
}

function categorize({ type, input, categories, unknown }: CategoryStep, tensor: Tensor): Tensor {
  const [rows, width] = flatDims(tensor);
  checkWidth(input, width, categories.length);
  const known = categories.map((of) => new Map(of.map((value, place) => [value, place] as const)));
  const places = valuesOf(tensor).map((value, i) => {
    const [row, column] = [Math.floor(i / width), i % width];
    const place = known[column]!.get(value) ?? (unknown === "zeros" ? -1 : undefined);
    return place ?? raise("TABLE_CATEGORY", { row, name: input, value, names: categories[column]!.map(show).join(", ") });
  });
  if (type === "categories") {
    return new Tensor("int64", BigInt64Array.from(places, BigInt), tensor.dims);
  }
  const starts: number[] = [];
  let total = 0;
  for (const { size } of known) {
    starts.push(total);
    total += size;
  }
  const data = new Float32Array(rows * total);
  places.forEach((place, i) => {
    if (place >= 0) {
      data[Math.floor(i / width) * total + starts[i % width]! + place] = 1;
    }
  });
  return new Tensor("float32", data, [rows, total]);
}

function concat(names: readonly string[], columns: Tensors): Tensor {
  const parts = names.map((name) => inputOf(name, columns));
  const { type: expected, data: sample } = parts[0] as Tensor;
  parts.forEach(({ type: type }, k) => {
    refuseIf(type !== expected, "TABLE_CONCAT", { name: names[k], actual: type, first: names[0], expected });
  });
  const [rows] = flatDims(parts[0] as Tensor);
  const total = parts.reduce((sum, part) => sum + flatDims(part)[1], 0);
  const data = Array.isArray(sample)
    ? new Array<string>(rows * total)
    : new (sample.constructor as new (length: number) => Float32Array)(rows * total);
  let start = 0;
  for (const part of parts) {
    const [, width] = flatDims(part);
    (part.data as Float32Array).forEach((value, i) => {
      data[Math.floor(i / width) * total + start + (i % width)] = value;
    });
    start += width;
  }
  return new Tensor(expected as "float32", data as Float32Array, [rows, total]);
}
