/** Rows and batches: the forms of a row, and the conversion of rows to a batch. */

import { Tensor } from "onnxruntime-common";

import { isObject, isRecord } from "../wire/kinds.js";
import { raise, refuseIf, sessionError } from "../wire/messages.js";
import { describe, isTensor, refuseSettingIf, unwrapped } from "./checks.js";
import { RandomStream } from "./random.js";
import type { Remainder } from "../wire/fit.js";

/** Numbers, bigints, booleans, texts or dates, or arrays of these, all of the same length. Among numbers, booleans and dates null is NaN. */
export type Numbers = readonly (number | bigint | boolean | string | Date | null | Numbers)[];

/** A tensor of transformers.js. */
export interface WrappedTensor {
  /** The tensor of ONNX Runtime within it. */
  readonly ort_tensor: unknown;
}

/**
 * A value of a row: a tensor, typed array or nested array without the axis of the batch, a number (float32), bigint (int64),
 * boolean, date (days since 1970-01-01, float64), or a text for the steps of tables.
 */
export type RowValue = Tensor | WrappedTensor | ArrayBufferView | Numbers | number | bigint | boolean | string | Date;

/** A value for each input, by name. */
export type Row<Value = RowValue> = { readonly [name: string]: Value };

/** A tensor for each input, whose first axis counts rows. */
export type Batch = Row<Tensor>;

type Data = Exclude<Tensor["data"], string[]>;

/** A row with its number in the data. */
type Numbered = readonly [number, Row];

/** The numbers of the rows in the data, by batches of rows that are not in order. */
const NUMBERS = new WeakMap<object, readonly number[]>();

/** The numbers of the rows of a batch; null where they are in order. */
export function numbersOf(batch: object, rows?: number): readonly number[] | null {
  const numbers = NUMBERS.get(batch) ?? null;
  return rows === undefined || numbers?.length === rows ? numbers : null;
}

/** The result of a step on a batch; its rows keep their numbers. */
export function numberedAs<T>(source: object, made: T): T {
  const numbers = numbersOf(source);
  if (numbers !== null && isObject(made)) {
    NUMBERS.set(made, numbers);
  }
  return made;
}

/** Rows as a batch; errors name them by their numbers. */
function stack(rows: readonly Numbered[]): Batch {
  const tensors = rows.map(([position, row]) => {
    refuseIf(typeof row === "string", "TEXT_VALUES", { what: `Row ${position} of the data` });
    refuseIf(!isObject(row) || isTensor(row) || ArrayBuffer.isView(row), "NOT_A_ROW", { position, actual: describe(row) });
    return Object.fromEntries(Object.entries(row).map(([name, value]) => [name, liveTensor(name, value, position)]));
  });
  const [first = {}] = tensors;
  const positions = rows.map(([position]) => position);
  tensors.forEach((row, k) => checkNames(positions[k] as number, row, first));
  return Object.fromEntries(Object.keys(first).map((name) => [name, stackValues(name, tensors.map((row) => row[name] as Tensor), positions)]));
}

/** Rows as a batch that keeps their numbers. */
function numberedStack(rows: readonly Numbered[]): Batch {
  const batch = stack(rows);
  NUMBERS.set(batch, rows.map(([position]) => position));
  return batch;
}

/** @throws FeedError for a row of other names than the first */
export function checkNames(position: number, row: Row, first: Row): void {
  const [names, expected] = [Object.keys(row), Object.keys(first)];
  if (names.length !== expected.length || !expected.every((name) => Object.hasOwn(row, name))) {
    throw sessionError("ROW_NAMES", { position, names: names.join(", "), expected: expected.join(", ") });
  }
}

/** The value of a row as a tensor that has its data. */
export function liveTensor(name: string, value: unknown, position: number): Tensor {
  const tensor = asTensor(name, value);
  refuseIf(tensor.location === "none", "DISPOSED_VALUE", { position, name });
  return tensor;
}

function stackValues(name: string, values: readonly Tensor[], positions: readonly number[]): Tensor {
  const first = values[0] as Tensor;
  values.forEach((value, k) => {
    if (typeOf(value) !== typeOf(first)) {
      refuseTexts(name, value);
      throw sessionError("ROW_TYPE", { position: positions[k], name, actual: typeOf(value), expected: typeOf(first) });
    }
  });
  if (first.type === "string") {
    return new Tensor("string", values.flatMap(({ data }) => data as string[]), [values.length, ...first.dims]);
  }
  const sizes = (first.data as Data).length;
  const Made = first.data.constructor as new (length: number) => Data;
  const data = new Made(sizes * values.length);
  values.forEach((value, k) => (data as Float32Array).set(value.data as Float32Array, k * sizes));
  // The overloads of Tensor go by type; dtype and array agree by construction.
  return new Tensor(first.type as "float32", data as Float32Array, [values.length, ...first.dims]);
}

/** @throws FeedError for texts, which no model takes */
export function refuseTexts(name: string, { type }: Tensor): void {
  refuseIf(type === "string", "TEXT_VALUES", { what: `'${name}'` });
}

function typeOf({ type, dims }: Tensor): string {
  return `${type}[${dims.join(", ")}]`;
}

/** The value of a row as a tensor. */
export function asTensor(name: string, given: unknown): Tensor {
  const value = unwrapped(given);
  if (isTensor(value)) {
    return value;
  }
  const type = TYPES[typeof value];
  if (type !== undefined) {
    return new Tensor(type as "float32", [value as number], []);
  }
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
    return new Tensor(value as Float32Array);
  }
  if (Array.isArray(value) || value instanceof Date) {
    return nestedTensor(name, value as Numbers | Date);
  }
  refuseIf(isRecord(value) && !["Object", "Dataset"].includes(describe(value)), "NO_TENSOR", { name, actual: describe(value) });
  refuseIf(isRecord(value), "SEVERAL_SETS", { name });
  throw sessionError("NOT_A_COLUMN", { name, actual: describe(value) });
}

/** Types of tensors by the kinds of values, alone or in nested arrays. */
const TYPES: Readonly<Record<string, string>> = { number: "float32", bigint: "int64", boolean: "bool", string: "string", Date: "float64" };
const kindOf = (value: unknown): string => (value instanceof Date ? "Date" : typeof value);

/** A tensor of nested arrays, by the kind of their first element that is not null: float32 of numbers, int64 of bigints, texts of strings. */
function nestedTensor(name: string, value: Numbers | Date): Tensor {
  const dims: number[] = [];
  for (let one: unknown = value; Array.isArray(one); one = one[0]) {
    dims.push(one.length);
  }
  const flat: unknown[] = [];
  const collect = (one: unknown, axis: number): void => {
    if (axis === dims.length) {
      if (Number.isInteger(one) && Math.fround(one as number) !== one) {
        throw sessionError("INEXACT_NUMBER", { name, value: one });
      }
      flat.push(one);
      return;
    }
    if (!Array.isArray(one) || one.length !== dims[axis]) {
      const length = Array.isArray(one) ? `an array of ${one.length}` : describe(one);
      throw sessionError("RAGGED_COLUMN", { name, reason: `${length} stands where others have ${dims[axis]} elements` });
    }
    one.forEach((part: unknown) => collect(part, axis + 1));
  };
  collect(value, 0);
  const sample = flat.find((one) => Object.hasOwn(TYPES, kindOf(one))) ?? 0;
  const kind = kindOf(sample);
  const mayLack = kind !== "bigint" && kind !== "string";
  const wrong = flat.findIndex((one) => (one === null ? !mayLack : kindOf(one) !== kind));
  if (wrong >= 0) {
    const row = Math.floor((wrong * (dims[0] ?? 1)) / flat.length);
    throw sessionError("NOT_NUMBERS", { name, row, actual: describe(flat[wrong]), expected: describe(sample) });
  }
  const isMade = kind === "Date" || (mayLack && flat.includes(null));
  const data = isMade ? flat.map((one) => (one === null ? NaN : Number(one) / (kind === "Date" ? 86_400_000 : 1))) : flat;
  // The overloads of Tensor go by type; dtype and values agree by construction.
  return new Tensor((isMade && kind === "boolean" ? "float32" : TYPES[kind]) as "float32", data as number[], dims);
}

/** Rows as batches. @param order - the numbers of rows that are not in order */
export async function* batched(rows: AsyncIterable<Row>, size: number, remainder: Remainder, order: Uint32Array | null = null): AsyncGenerator<Batch> {
  const make = order === null ? stack : numberedStack;
  const start: Numbered[] = [];
  let pending: Numbered[] = [];
  let number = 0;
  for await (const row of rows) {
    const numbered = [order?.[number] ?? number, row] as const;
    number++;
    if (remainder === "pad" && start.length < size) {
      start.push(numbered);
    }
    pending.push(numbered);
    if (pending.length === size) {
      yield make(pending);
      pending = [];
    }
  }
  if (pending.length === 0 || remainder === "drop") {
    return;
  }
  while (remainder === "pad" && pending.length < size) {
    pending = [...pending, ...start].slice(0, size);
  }
  yield make(pending);
}

/** Rows drawn from a buffer that is filled up in order. */
export async function* drawn<T>(rows: AsyncIterable<T>, buffer: number, seed: number, stream: number): AsyncGenerator<T> {
  const random = new RandomStream(seed, stream);
  const bufferedRows: T[] = [];
  for await (const row of rows) {
    if (bufferedRows.length < buffer) {
      bufferedRows.push(row);
      continue;
    }
    const k = random.below(buffer);
    yield bufferedRows[k] as T;
    bufferedRows[k] = row;
  }
  while (bufferedRows.length > 0) {
    const k = random.below(bufferedRows.length);
    const last = bufferedRows.pop() as T;
    if (k === bufferedRows.length) {
      yield last;
    } else {
      yield bufferedRows[k] as T;
      bufferedRows[k] = last;
    }
  }
}

/** Batches by the least of the bounds that holds their rows, padded to it with the numbers of `fills`. */
export async function* bucketed(
  rows: AsyncIterable<Row>,
  length: (row: Row) => number,
  bounds: readonly number[],
  size: number,
  fills: Fills | null,
): AsyncGenerator<Batch> {
  const buckets = new Map<number, Numbered[]>(bounds.map((bound) => [bound, []]));
  let number = 0;
  for await (const row of rows) {
    const n = length(row);
    const bound = bounds.find((one) => n <= one) ?? raise("BEYOND_BUCKETS", { position: number, length: n, most: bounds.at(-1) ?? 0 });
    const pending = buckets.get(bound) as Numbered[];
    const values = new Map(Object.entries(row).map(([name, value]) => [name, liveTensor(name, value, number)]));
    for (const [name, fill] of fills ?? [...values.keys()].map((one) => [one, 0] as const)) {
      const tensor = values.get(name);
      if (tensor?.dims[0] === n) {
        values.set(name, padded(name, tensor, bound, fill));
      } else if (fills !== null) {
        const shape = tensor === undefined ? "missing" : typeOf(tensor);
        throw sessionError("NOT_PADDED", { name, length: n, actual: shape });
      }
    }
    pending.push([number++, Object.fromEntries(values)]);
    if (pending.length === size) {
      buckets.set(bound, []);
      yield numberedStack(pending);
    }
  }
  for (const pending of buckets.values()) {
    if (pending.length > 0) {
      yield numberedStack(pending);
    }
  }
}

/** The numbers that inputs are padded with. */
export type Fills = ReadonlyMap<string, number>;

/** A tensor that is so long along its first axis, with a number behind. */
function padded(name: string, tensor: Tensor, length: number, fill: number): Tensor {
  const rest = tensor.dims.slice(1);
  const size = rest.reduce((product, dim) => product * dim, length);
  if (tensor.type === "string") {
    return new Tensor("string", Array.from({ length: size }, (_, k) => (tensor.data as string[])[k] ?? ""), [length, ...rest]);
  }
  const Data = tensor.data.constructor as new (length: number) => Float32Array;
  const data = new Data(size);
  if (fill !== 0) {
    data.fill((tensor.type.endsWith("int64") ? BigInt(Math.trunc(fill)) : fill) as number);
    // Without Float16Array, float16 is bits.
    const isRight = tensor.type.startsWith("float") ? Data.name !== "Uint16Array" : data.every((one) => Number(one) === fill);
    refuseSettingIf(!isRight, `padded['${name}']`, fill, `${tensor.type}, as the row has`);
  }
  data.set(tensor.data as Float32Array);
  return new Tensor(tensor.type as "float32", data, [length, ...rest]);
}
