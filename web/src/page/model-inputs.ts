/** Data as a model takes it: by the names, types and dims of its inputs; `trainweb/data/for_model.py` is the same in Python. */

import { Tensor } from "onnxruntime-common";

import { Dataset, type DataSource } from "../data/dataset.js";
import { fixedRows } from "../data/epoch.js";
import { badSetting, describe, isTensor } from "../data/checks.js";
import { permutation, type Draw } from "../data/random.js";
import { asTensor as asValue, batched, numberedAs, refuseTexts, type Batch, type Row } from "../data/rows.js";
import { unitsOf } from "../data/table.js";
import type { Remainder, Units } from "../wire/fit.js";
import { byInputs, inputName } from "../wire/feed-names.js";
import { isObject } from "../wire/kinds.js";
import { log } from "../wire/log.js";
import { refuseIf, sessionError, type MessageName, type MessageValues } from "../wire/messages.js";
import type { InputDeclaration, SessionInfo } from "../wire/protocol.js";
import { DEFAULT_BATCH } from "./settings/fit.js";
import { arrayOf, asFloats, asTensor, isOnCpu, unpackTensor, type NumericArray } from "./tensors.js";

/** Settings that turn the items of a stream into batches. */
export interface BatchOptions {
  /** Rows of a batch; null: the default. */
  readonly batchSize: number | null;
  readonly remainder: Remainder;
  /** True: the items are batches; null: the shape of the first tells. */
  readonly batched: boolean | null;
  /** True: the size is for rows only, and batches come as they are. */
  readonly ignoresSize?: boolean;
  /** True: leave out batches that are smaller than the file's, with a notice. */
  readonly drops?: boolean;
  /** Sees the first batch of each iteration. */
  readonly look?: (fed: Batch) => void;
}

type Named = Readonly<Record<string, unknown>>;

/** Warnings so far, by sessions. */
const TOLD = new WeakMap<object, Set<string>>();

/** Types whose values are converted to each other, as booleans are to them; to integers only where nothing is lost. */
const CONVERTED: readonly string[] = [
  "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
];

/** The inputs of a model, to which data is fitted. */
export class ModelInputs {
  readonly #declared: readonly InputDeclaration[];
  /** Inputs that data may lack and that are left out, such as labels of predictions. */
  readonly unread: readonly string[];
  readonly #weights: readonly string[];

  /** Rows of a batch, where the file fixes them. */
  readonly rows: number | null;
  readonly #notices: Set<string>;

  constructor(info: Pick<SessionInfo, "inputs" | "sampleWeights">, step: "train" | "eval", unread: readonly string[] = []) {
    this.#declared = info.inputs[step];
    this.unread = unread;
    this.#weights = info.sampleWeights;
    this.rows = fixedRows(this.#declared);
    TOLD.set(info, (this.#notices = TOLD.get(info) ?? new Set()));
  }

  /** Warn, once in a session. */
  warn<Name extends MessageName>(name: Name, values: MessageValues<Name>): void {
    const { message } = sessionError(name, values);
    if (!this.#notices.has(message)) {
      this.#notices.add(message);
      log("warning", message);
    }
  }

  /** The rows of a batch, of which `given` are asked for. @throws ModelError when the file fixes another number */
  size(batchSize: number | null): number {
    if (this.rows !== null && batchSize !== null && batchSize !== this.rows) {
      throw badSetting("batchSize", batchSize, `${this.rows}, which the first axis of the input '${this.#declared[0]?.name}' fixes in the file: leave it out ('accumulate' of fit makes larger steps), or export the model with dynamic_shapes`);
    }
    return batchSize ?? this.rows ?? DEFAULT_BATCH;
  }

  /**
   * `input` as a dataset. An array of tensors has one for each input, in their order. One tensor is the first input, and
   * so is an array of numbers with its rank.
   *
   * @throws FeedError when it is no data, or a tensor has dims or values that its input does not take
   */
  dataset(input: unknown): Dataset {
    const isValue = (one: unknown): boolean => isTensor(one) || ArrayBuffer.isView(one);
    const isArray = Array.isArray(input) && isNumeric(input) && rankOf(input) === this.#declared[0]?.dims?.length;
    const source = isValue(input) || isArray ? [input] : input;
    const isTuple = isArray || (Array.isArray(source) && source.some(isValue) && source.every((one) => isValue(one) || Array.isArray(one)));
    const items = isTuple ? this.#named(source, "The data") : source;
    const named = isColumns(items) ? this.#read(items) : items;
    const data = Dataset.of((isColumns(named) ? this.#fitAll(named, "the data", true) : named) as DataSource<Row>);
    if (data.columns !== null) {
      this.#checkRowsFirst();
    }
    if (data.columns === null || isColumns(named)) {
      return data;
    }
    const fitted = this.#fitAll(this.#read(Object.fromEntries(data.columns)), "the data");
    return [...data.columns].some(([name, tensor]) => fitted[name] !== tensor) ? data.after([], fitted) : data;
  }

  /** The units of the inputs that steps of the data standardized. */
  units(data: Dataset): Units {
    const names = this.#declared.map(({ name }) => name);
    return new Map([...unitsOf(data.preprocessing)].map(([name, unit]) => [inputName(name, names), unit]));
  }

  /** A stream as batches that the model takes. */
  batches(data: Dataset, options: BatchOptions): Dataset {
    const isPadded = data.isPadded || (options.remainder === "pad" && !data.isBatched);
    const isList = this.listsRows(data, options.batched);
    const isBatched = data.isBatched || (isList ? false : options.batched);
    const make = (items: AsyncIterable<object>, draw: Draw | null): AsyncIterable<Batch> => {
      const order = isList && draw?.shuffles ? permutation(data.size as number, draw.seed, draw.epoch) : null;
      return this.#batches(order === null ? items : data.rows(order), isBatched, options, order);
    };
    return data.through(make, isPadded);
  }

  /** True for an array of rows, whose order `fit` draws; false for one of batches, and for other data. */
  listsRows({ listed }: Dataset, isBatched: boolean | null): boolean {
    return listed !== null && listed.length > 0 && !(isBatched ?? this.#isBatch(listed[0]));
  }

  async *#batches(
    items: AsyncIterable<object>,
    isBatched: boolean | null,
    { batchSize, remainder, ignoresSize = false, drops = false, look }: BatchOptions,
    order: Uint32Array | null,
  ): AsyncGenerator<Batch> {
    const size = this.size(batchSize);
    const iterator = items[Symbol.asyncIterator]();
    const first = await iterator.next();
    if (first.done === true) {
      return;
    }
    const isWhole = isBatched ?? this.#isBatch(first.value);
    refuseIf(isWhole && batchSize !== null && !ignoresSize, "BATCH_OF_BATCHES", { name: "batchSize" });
    if (!isWhole) {
      this.#checkRowsFirst();
    }
    const named = (item: unknown, k: number): unknown => {
      const row = this.#named(item, `Item ${k} of the data`);
      return isObject(row) && !isTensor(row) ? numberedAs(item as object, this.#read(row as Named)) : row;
    };
    const rows = async function* (): AsyncGenerator<unknown> {
      for (let [k, next] = [0, first as IteratorResult<object>]; next.done !== true; next = await iterator.next()) {
        yield named(next.value, order?.[k] ?? k);
        k++;
      }
    };
    let number = 0;
    for await (const entry of isWhole ? rows() : batched(rows() as AsyncIterable<Row>, size, remainder, order)) {
      const batch = numberedAs(entry as object, this.batch(entry, number++));
      if (number === 1) {
        look?.(batch);
      }
      const count = Math.min(...Object.values(batch).flatMap(({ dims }) => dims.slice(0, 1)));
      if (!drops || this.rows === null || count >= this.rows) {
        yield batch;
      } else {
        this.warn("DROPPED_ROWS", { count, rows: this.rows });
      }
    }
  }

  /**
   * Warn of labels that padding changes; they are the last input but weights.
   *
   * @throws FeedError for arrays without an input that is read
   */
  require(data: Dataset, source: string): void {
    const { columns } = data;
    const missing = this.#declared.filter(({ name }) => columns !== null && !columns.has(name) && !this.unread.includes(name));
    if (missing[0] !== undefined) {
      const [names, inputs] = [[...(columns?.keys() ?? [])], this.#declared.map(({ name }) => name)];
      const others = names.filter((name) => !inputs.includes(name));
      const values = { source, name: missing[0].name, names: names.join(", "), inputs: inputs.join(", ") };
      refuseIf(others.length === 1 && missing.length === 1 && source === "data", "OTHER_NAME", { ...values, other: others[0] });
      throw sessionError(others.length > 0 ? "NOT_PREPARED" : "NO_INPUT", values);
    }
    const { name = "", dtype, dims } = this.#declared.filter((one) => !this.#weights.includes(one.name)).at(-1) ?? {};
    const isSequence = dtype === "int64" && (dims?.length ?? 0) > 1 && typeof dims?.[1] !== "number";
    if (isSequence && !this.unread.includes(name) && data.pads(name)) {
      this.warn("PADDED_CLASSES", { name });
    }
  }

  /** @throws FeedError for an input that counts time by its first axis, and the rows of the labels by another */
  #checkRowsFirst(): void {
    const labels = this.#declared.at(-1);
    const symbol = labels?.dims?.[0];
    const other = this.#declared.find(({ dims }) => typeof symbol === "string" && dims?.[0] !== symbol && dims?.includes(symbol));
    refuseIf(other !== undefined, "TIME_FIRST", { name: other?.name, shape: other?.dims, other: labels?.name, symbol });
  }

  /** A whole batch, converted. @throws FeedError when it is none, or not one that the model takes */
  batch(item: unknown, number = 0): Batch {
    const named = this.#named(item, `Batch ${number} of the data`);
    const isBatch = isObject(named) && !isTensor(named) && !ArrayBuffer.isView(named);
    refuseIf(!isBatch, "NOT_A_BATCH", { position: number, actual: describe(item) });
    return this.#fitAll(named as Named, `batch ${number} of the data`, true) as Batch;
  }

  /**
   * Columns by the names of inputs that are read, without further ones, of which a notice tells. Return all columns,
   * for the error, if one is missing.
   */
  #read(source: Named): Named {
    const names = this.#declared.map(({ name }) => name);
    const needed = names.filter((name) => !this.unread.includes(name));
    const isRenamed = Object.keys(source).some((name) => inputName(name, names) !== name);
    const columns = isRenamed ? byInputs(source, names) : source;
    const further = Object.keys(columns).filter((name) => !names.includes(name));
    if (needed.length === 0 || !needed.every((name) => Object.hasOwn(columns, name))) {
      return columns;
    }
    if (further.length > 0) {
      this.warn("FURTHER_COLUMNS", { source: "data", names: further.join(", ") });
    }
    return Object.fromEntries(needed.map((name) => [name, columns[name]]));
  }

  #fitAll(columns: Named, where: string, hasArrays = false): Record<string, Tensor> {
    return Object.fromEntries(
      Object.entries(columns).map(([name, value]) => {
        const declared = this.#declared.find((one) => one.name === name);
        const isArray = hasArrays && ArrayBuffer.isView(value) && (declared?.dims?.length ?? 0) > 1;
        const tensor = isArray ? asTensor(declared as InputDeclaration, value) : asValue(name, value);
        return [name, declared === undefined ? tensor : fitted(declared, tensor, where, this.#weights.includes(name))];
      }),
    );
  }

  /** An array of values by the names of the inputs; other items as they are. */
  #named(item: unknown, where: string): unknown {
    if (!Array.isArray(item)) {
      return item;
    }
    const names = this.#declared.map(({ name }) => name);
    if (item.length > names.length) {
      throw sessionError("TOO_MANY_VALUES", { where, count: item.length, inputs: names.length, names: names.join(", ") });
    }
    return Object.fromEntries(item.map((value: unknown, k) => [names[k], value]));
  }

  #isBatch(item: unknown): boolean {
    const named = this.#named(item, "Item 0 of the data");
    if (!isObject(named)) {
      return false;
    }
    const known = Object.entries(named).flatMap(([name, value]) => {
      const declared = this.#declared.find((one) => one.name === name && !this.unread.includes(name));
      return declared === undefined ? [] : [[rankOf(value), declared.dims ?? []] as const];
    });
    const isWhole = ([rank, dims]: (typeof known)[number]): boolean => rank === dims.length && rank > 0;
    return known.some(isWhole) && known.every(([rank, dims]) => isWhole([rank, dims]) || (rank === 1 && isColumn(dims)));
  }
}

function isColumns(source: unknown): source is Named {
  return (
    isObject(source) &&
    !(source instanceof Dataset) &&
    !isTensor(source) &&
    !ArrayBuffer.isView(source) &&
    !(Symbol.iterator in source || Symbol.asyncIterator in source || "getReader" in source)
  );
}

function rankOf(value: unknown): number {
  if (isTensor(value)) {
    return value.dims.length;
  }
  if (ArrayBuffer.isView(value)) {
    return 1;
  }
  return Array.isArray(value) ? 1 + rankOf(value[0]) : 0;
}

/** True for numbers in arrays. */
function isNumeric(value: unknown): boolean {
  return Array.isArray(value) ? isNumeric(value[0]) : typeof value === "number" || typeof value === "bigint";
}

function isColumn(dims: InputDeclaration["dims"]): boolean {
  return dims?.length === 2 && dims[1] === 1;
}

/** Values of an input for several rows, in its type. */
function fitted({ name, dtype, dims }: InputDeclaration, values: Tensor, where: string, isWeight: boolean): Tensor {
  refuseTexts(name, values);
  // One value a row may stand for a vector of one, and the reverse.
  const isVector = dims?.length === 1 && values.dims.length === 2 && values.dims[1] === 1;
  const column = values.dims.length === 1 && isColumn(dims) ? values.reshape([...values.dims, 1]) : values;
  const tensor = isVector ? values.reshape(values.dims.slice(0, 1)) : column;
  if (dims !== null && dims.length > 0 && !fits(tensor.dims, dims)) {
    const isRow = fits([1, ...tensor.dims], dims) && dims.some((dim, k) => k > 0 && typeof dim === "number");
    refuseIf(isRow, "ONE_ROW", { name, actual: tensor.dims, where, batch: [1, ...tensor.dims] });
    const areShares = tensor.type.startsWith("float") || isOneHot(tensor);
    const areScores = dtype === "int64" && tensor.dims.length === dims.length + 1 && areShares;
    const shapes = { actual: tensor.dims, batch: shown(dims), row: shown(dims.slice(1)) };
    const apart = tensor.dims.length - dims.length;
    refuseIf(isWeight && apart !== 0, "WEIGHT_SHAPE", { name, where, of: apart > 0 ? "labels" : "rows", ...shapes });
    const fault = apart === 0 ? "DATA_SIZE" : "DATA_SHAPE";
    throw sessionError(areScores ? "SHAPE_OF_SCORES" : fault, { name, where, ...shapes });
  }
  const areBits = tensor.type === "uint16" && dtype === "bfloat16";
  if (tensor.type === dtype || areBits || !CONVERTED.includes(dtype) || ![...CONVERTED, "bool"].includes(tensor.type) || !isOnCpu(tensor)) {
    return tensor;
  }
  const numbers = tensor.data as NumericArray;
  const source = tensor.type === "float16" ? new Float32Array(asFloats(numbers, "float16", "float32").buffer) : numbers;
  const half = dtype === "float16" || dtype === "bfloat16" ? dtype : null;
  const data = arrayOf(half === null ? dtype : "float32", source.length);
  for (let k = 0; k < source.length; k++) {
    const value = source[k] as number | bigint;
    if (typeof data[k] === "bigint") {
      data[k] = typeof value === "bigint" || Number.isInteger(value) ? BigInt(value) : 0n;
    } else {
      data[k] = Number(value);
    }
    if (!dtype.includes("float") && (data[k] as number | bigint) != value) {
      throw sessionError("LOST_VALUE", { name, value, where, dtype });
    }
  }
  return half === null
    ? new Tensor(dtype as "float32", data as Float32Array, tensor.dims)
    : unpackTensor({ dtype: half, dims: tensor.dims, data: asFloats(data, "float32", half) });
}

function fits(dims: readonly number[], declared: readonly (number | string | null)[]): boolean {
  return dims.length === declared.length && declared.every((dim, k) => k === 0 || typeof dim !== "number" || dim === dims[k]);
}

function isOneHot(tensor: Tensor): boolean {
  const values = isOnCpu(tensor) ? Array.from(tensor.data, Number) : [];
  const ones = values.filter((one) => one === 1).length;
  return ones * (tensor.dims.at(-1) ?? 0) === values.length && values.every((one) => one === 0 || one === 1);
}

function shown(dims: readonly (number | string | null)[]): string {
  return dims.length === 0 ? "one number" : `[${dims.map((dim) => dim ?? "?").join(", ")}]`;
}
