/**
 * `Dataset`: rows of named tensors, and the steps that prepare them for training.
 * A dataset of tensors stays one as long as no function of the user's runs on its rows. `fit` sends its tensors to the
 * worker once, which shuffles and batches them itself. Other datasets are streams of rows, or, after `batch`, of
 * batches. They are made in the page, because functions cannot be sent.
 */

import { Tensor } from "onnxruntime-common";

import { SPLIT_STREAM } from "../wire/constants.js";
import { areTexts, isObject, isRecord } from "../wire/kinds.js";
import { raise, refuseIf, sessionError } from "../wire/messages.js";
import { readColumns, type CsvColumns, type CsvOptions, type CsvSource } from "./csv.js";
import { checkInteger, describe, isTensor, nameOf, refuseSettingIf } from "./checks.js";
import { checkOptions } from "./nearest.js";
import type { Remainder } from "../wire/fit.js";
import { Opaque } from "../wire/opaque.js";
import { permutation, seedWith, type Draw } from "./random.js";
import { asTensor, batched, bucketed, checkNames, drawn, liveTensor, numberedAs, type Batch, type Numbers, type Row, type WrappedTensor } from "./rows.js";
import { labelsOf, lastOfEach } from "./split.js";
import { applySteps, areSteps, checkSteps, fittedStep, inputOf, type CategoryStep, type Fitted, type PreprocessingStep } from "./table.js";
import {
  batchesOf,
  cutter,
  joinedPairs,
  type Preference,
  preferenceColumns,
  type PreferenceOptions,
  textColumns,
  type TextItem,
  type TextOptions,
  textSettings,
  type TextTokenizer,
  type WithFurther,
} from "./text.js";

/** Tensors by input name whose first axis counts rows; nested arrays of numbers, and typed arrays with a value a row. */
export type Columns = { readonly [name: string]: Tensor | WrappedTensor | ArrayBufferView | Numbers };

/** One after the other. */
export type Rows<T> = Iterable<T> | AsyncIterable<T> | ReadableStream<T>;

/** Forms of data; an array of tensors has one for each input. An iterator that runs only once lasts for one epoch: pass the function that creates it. */
export type DataSource<Item extends object = object> = Dataset<Item> | Columns | ReadonlyMap<string, Tensor> | readonly (Tensor | ArrayBufferView)[] | Rows<Item> | (() => Rows<Item>);

const DEFAULT_BUFFER = 1024;

/** Rows or batches to train on, and the steps that prepare them. Every method returns another dataset. `Item` is the type of a row or batch. */
export class Dataset<Item extends object = Row> extends Opaque implements AsyncIterable<Item> {
  readonly #columns: ReadonlyMap<string, Tensor> | null;
  readonly #rows: RowsOf;
  #iterations = 0;
  readonly #stream: Stream;
  /** The rows, if they are an array. */
  readonly #listed: readonly unknown[] | null;

  /** @throws FeedError when there are no rows, or tensors have different numbers of rows */
  constructor(source: Exclude<DataSource<Item>, Dataset<Item>>) {
    super();
    const [columns, rows] = open(source);
    this.#columns = columns;
    this.#rows = rows;
    this.#listed = Array.isArray(source) ? source : null;
    this.#stream = streams.get(source) ?? { ...GIVEN, generator: isReadOnce(source) ? source : null };
  }

  /** `source` itself if it is a dataset, else one made of it. */
  static of<Item extends object = Row>(source: DataSource<Item>): Dataset<Item> {
    return source instanceof Dataset ? source : new Dataset(source);
  }

  /** A dataset of a CSV file: `readCsv`. */
  static async fromCsv(source: CsvSource, columns: CsvColumns, options: CsvOptions = {}): Promise<Dataset<Row<Tensor>>> {
    return new Dataset(await readColumns(source, columns, options));
  }

  /**
   * Rows of `length` token ids for a language model, with the next token of each as its label. Tokens that are not
   * learned have the label -100: give the loss `ignoreIndex: -100`.
   *
   * @param texts - texts, prompts and completions to join, or chats; the prompt of a chat is all before the last
   *   answer
   * @throws FeedError when there is no text, or one is empty, too long for a row or too short to learn from; ModelError
   *   when a setting is wrong, or the tokenizer has no `encode` or no end token
   */
  static fromText(texts: Iterable<TextItem>, tokenizer: TextTokenizer, options: TextOptions): Dataset<Row<Tensor>> {
    const { lengths, batchSize, seed, columns } = textSettings(options);
    const rowsOfTexts = new Dataset<Row<Tensor>>(textColumns(texts, tokenizer, columns));
    if (batchSize === null) {
      return rowsOfTexts;
    }
    const buffer = rowsOfTexts.columns?.get("labels")?.dims[0] as number;
    const rows = rowsOfTexts.shuffle({ buffer, seed }).map(cutter(lengths));
    const batches = rows.bucket(({ labels }) => labels?.dims[0] as number, lengths, batchSize, { padded: {} });
    return batches.#piped((items) => items, { count: batchesOf(rowsOfTexts.columns?.get("labels") as Tensor, lengths, batchSize) });
  }

  /**
   * Batches of preferred texts for a session with `DPOLoss`: chosen and rejected texts alternate in their rows. Each
   * iteration has a new order. The log-probabilities of the reference are computed once, here.
   *
   * @throws FeedError when a pair is malformed, or a text does not fit into a row; ModelError when the session has no
   *   `DPOLoss`, or an option is wrong
   */
  static async fromPreferences(
    pairs: Iterable<WithFurther<Preference>>,
    tokenizer: TextTokenizer,
    options: PreferenceOptions,
  ): Promise<Dataset<Batch>> {
    const known = { length: true, endToken: true, reference: true, batchSize: true, seed: true } as const;
    const { batchSize = 4, seed = 0, ...others } = checkOptions("fromPreferences", options, known);
    const columns = await preferenceColumns(pairs, tokenizer, others);
    const buffer = (columns["labels"] as Tensor).dims[0] as number;
    const batches = new Dataset(columns).shuffle({ buffer, seed }).batch(batchSize).map(joinedPairs);
    return batches.#piped((items) => items, { count: Math.ceil(buffer / batchSize) });
  }

  /** Fitted steps of tables so far, such as `standardize` and `oneHot`: JSON, for `preprocess`. */
  get preprocessing(): readonly PreprocessingStep[] {
    return this.#stream.preprocessing;
  }

  /** The tensors, unless the rows are a stream. */
  get columns(): ReadonlyMap<string, Tensor> | null {
    return this.#columns;
  }

  /** True if the dataset iterates over batches. */
  get isBatched(): boolean {
    return this.#stream.isBatched;
  }

  /** @internal The rows or batches, if they are an array. */
  get listed(): readonly unknown[] | null {
    return this.#listed;
  }

  /** @internal True if the order of the rows is drawn. */
  get isDrawn(): boolean {
    return this.#stream.isDrawn;
  }

  /** @internal The generator object, iterator or ReadableStream that the rows come from, which can be read only once. */
  get generator(): object | null {
    return this.#stream.generator;
  }

  /** @internal True for an input that buckets pad with 0 because they are told no other number. */
  pads(name: string): boolean {
    return this.#stream.zeros?.includes(name) ?? true;
  }

  /** @internal Batches of each iteration, if they are known. */
  get count(): number | null {
    return this.#stream.count;
  }

  /** True if earlier rows may have filled up the last batch. */
  get isPadded(): boolean {
    return this.#stream.isPadded;
  }

  /** The number of rows, and the types of the inputs, as text. */
  override toString(): string {
    if (this.#columns === null) {
      return `<Dataset: ${this.#listed === null ? "stream" : "list"} of ${this.#stream.isBatched ? "batches" : "rows"}>`;
    }
    const inputs = [...this.#columns].map(([name, { type, dims }]) => `${name} ${type}[${dims.slice(1).join(", ")}]`);
    return `<Dataset: ${(this.size as number).toLocaleString("en")} rows of ${inputs.join(", ")}>`;
  }

  /** @internal The tensors, or the known tensors beside images. */
  get known(): ReadonlyMap<string, Tensor> | null {
    return this.#columns ?? this.#stream.parts?.known ?? null;
  }

  /** Number of rows; null for a stream. */
  get size(): number | null {
    return this.known?.values().next().value?.dims[0] ?? this.#listed?.length ?? null;
  }

  /** The rows, or the batches of a dataset that makes them, in their order. */
  [Symbol.asyncIterator](): AsyncIterator<Item> {
    return this.read({ epoch: this.#iterations++, seed: 0, shuffles: true })[Symbol.asyncIterator]() as AsyncIterator<Item>;
  }

  /** @internal The rows or batches as they are drawn; null: in order, without changes. */
  read(draw: Draw | null): AsyncIterable<Row | Batch> {
    return this.#rows(draw);
  }

  /** @internal Batches that a function makes from the rows or batches. */
  through(make: (items: AsyncIterable<Row | Batch>, draw: Draw | null) => AsyncIterable<Batch>, isPadded: boolean): Dataset<Batch> {
    return this.#piped(make, { isBatched: true, isPadded, parts: this.#stream.parts });
  }

  /** Replace each row (or batch) by the result of a function, which may be asynchronous. */
  map<In extends object = Item, Out extends object = Row>(make: (row: In) => Out | Promise<Out>): Dataset<Out> {
    const call = make as unknown as (row: object) => Row | Promise<Row>;
    return this.#piped(async function* (rows) {
      for await (const row of rows) {
        yield numberedAs(row, await call(row));
      }
    });
  }

  /** The rows (or batches) for which a function is true. */
  filter<In extends object = Item>(keep: (row: In) => boolean | Promise<boolean>): Dataset<Item> {
    const call = keep as (row: object) => boolean | Promise<boolean>;
    return this.#piped(async function* (rows) {
      for await (const row of rows) {
        if (await call(row)) {
          yield row;
        }
      }
    });
  }

  /**
   * Draw rows from a buffer that is filled in order; each iteration and each epoch of a fit has a new order. Evaluations
   * and predictions have the rows in order.
   *
   * @param options - `buffer`: number of rows in the buffer, 1024; `seed`: 0, to which the seed of a fit is added
   */
  shuffle(options: { readonly buffer?: number; readonly seed?: number } = {}): Dataset<Item> {
    const { buffer = DEFAULT_BUFFER, seed = 0 } = checkOptions("shuffle", options, { buffer: true, seed: true });
    checkInteger("buffer", buffer, 1);
    checkSeed(seed);
    return this.#piped((rows, draw) => (!draw?.shuffles ? rows : drawn(rows, buffer, seedWith(draw, seed), draw.epoch)), { isDrawn: true });
  }

  /** Stack rows into batches. */
  batch(size: number, options: { readonly remainder?: Remainder } = {}): Dataset<Batch> {
    const { remainder = "keep" } = checkOptions("batch", options, { remainder: true });
    checkInteger("size", size, 1);
    refuseSettingIf(!["keep", "drop", "pad"].includes(remainder), "remainder", remainder, "keep, drop or pad");
    refuseIf(this.#stream.isBatched, "BATCHED_TWICE");
    const form = { isBatched: true, isPadded: remainder === "pad" };
    return this.#piped((rows) => batched(rows as AsyncIterable<Row>, size, remainder), form);
  }

  /**
   * Make batches of rows of similar lengths, so that little is padded and few shapes are compiled.
   *
   * @param length - the length of a row
   * @param bounds - lengths to which rows are padded along their first axis; longer rows are an error
   * @param size - rows of a batch; the remaining rows make smaller batches
   * @param options - `padded`: the inputs to pad with zeros, or with a number for each: `{ ids: 0, labels: -100 }`.
   *   Default: all inputs whose first axis is as long as the row. Name them if another input may have this size by chance
   */
  bucket<In extends object = Item>(
    length: (row: In) => number,
    bounds: readonly number[],
    size: number,
    options: { readonly padded?: readonly string[] | Readonly<Record<string, number | bigint>> } = {},
  ): Dataset<Batch> {
    const { padded = null } = checkOptions("bucket", options, { padded: true });
    const isFilled = isRecord(padded);
    refuseSettingIf(padded !== null && !isFilled && !areTexts(padded), "padded", padded, "an array of names, or an object of numbers");
    const given = isFilled ? Object.entries(padded) : padded?.map((name) => [name, 0] as const);
    given?.forEach(([name, fill]) => refuseSettingIf(!(typeof fill === "bigint" || Number.isFinite(fill)), `padded['${name}']`, fill, "a number"));
    const fills = given === undefined ? null : new Map(given.map(([name, fill]) => [name, Number(fill)]));
    checkInteger("size", size, 1);
    refuseSettingIf(!Array.isArray(bounds), "bounds", bounds, "an array of lengths");
    bounds.forEach((bound, k) => checkInteger(`bounds[${k}]`, bound, 0));
    refuseIf(this.#stream.isBatched, "BATCHED_TWICE");
    const sorted = [...bounds].sort((a, b) => a - b);
    const zeros = isFilled ? [] : padded;
    return this.#piped((rows) => bucketed(rows as AsyncIterable<Row>, length as (row: object) => number, sorted, size, fills), { isBatched: true, zeros });
  }

  /**
   * Split tensors, images or an array of rows. The second dataset has this share of the rows: the last ones, or rows drawn by `seed`.
   * Images of the second dataset are in order and without the changes of `augment`.
   *
   * @param options - `stratify`: the input that holds the classes; each class gives its share
   * @throws FeedError when a part would have no rows, the rows are a stream, or `stratify` has no whole number for each row
   */
  split(share: number, options: { readonly seed?: number; readonly stratify?: string } = {}): [Dataset<Item>, Dataset<Item>] {
    const { seed, stratify } = checkOptions("split", options, { seed: true, stratify: true });
    refuseSettingIf(!(typeof share === "number" && share > 0 && share < 1), "share", share, "a number greater than 0 and less than 1");
    refuseSettingIf(!["string", "undefined"].includes(typeof stratify), "stratify", stratify, "the name of an input");
    const rows = this.size || raise("STREAM_SPLIT");
    if (seed !== undefined) {
      checkSeed(seed);
    }
    const order = seed === undefined ? Uint32Array.from({ length: rows }, (_, row) => row) : permutation(rows, seed, SPLIT_STREAM);
    const isSecond = stratify === undefined ? null : lastOfEach(this.#classes(stratify, order), share);
    const first = isSecond === null ? rows - Math.floor(rows * share) : isSecond.filter((is) => !is).length;
    refuseIf(first === 0 || first === rows, "EMPTY_SPLIT", { rows, share });
    if (isSecond === null && seed === undefined && this.#columns !== null) {
      return [this.#slice(0, first), this.#slice(first, rows)];
    }
    const isOfSecond = (k: number): boolean => isSecond?.[k] ?? k >= first;
    return [this.#part(order.filter((_, k) => !isOfSecond(k)), false), this.#part(order.filter((_, k) => isOfSecond(k)), true)];
  }

  /** @internal The values of an input, where tensors have them, or each row of an array has one. */
  column(name: string): Tensor | undefined {
    const values = (this.#listed ?? []).map((row) => (row as Partial<Row>)?.[name]);
    const areNumbers = values.length > 0 && values.every((value) => ["number", "bigint"].includes(typeof value));
    return areNumbers ? asTensor(name, values) : this.known?.get(name);
  }

  /** The class of each row, in an order. */
  #classes(name: string, order: Uint32Array): number[] {
    const labels = labelsOf(this.column(name)) ?? raise("NO_CLASSES", { name });
    return Array.from(order, (row) => labels[row] as number);
  }

  /**
   * The dataset with these rows, of tensors or images, in this order.
   *
   * @throws FeedError when the rows are a stream, or have no such number
   */
  rows(indices: readonly number[] | Uint32Array): Dataset<Item> {
    const size = this.size || raise("STREAM_SPLIT");
    const wrong = Array.from(indices).findIndex((row) => !Number.isSafeInteger(row) || row < 0 || row >= size);
    refuseSettingIf(wrong >= 0, "indices", indices[wrong], `an integer >= 0 and < ${size}`);
    return this.#part(Uint32Array.from(indices), false);
  }

  #part(indices: Uint32Array, isHeldOut: boolean): Dataset<Item> {
    if (this.#listed !== null) {
      return new Dataset(Array.from(indices, (k) => this.#listed?.[k] as Item));
    }
    return (this.#stream.parts?.pick(indices, isHeldOut) as Dataset<Item> | undefined) ?? this.#pick(indices);
  }

  /** The first rows (or batches). */
  take(count: number): Dataset<Item> {
    checkInteger("count", count, 1);
    if (this.#columns !== null) {
      return this.#slice(0, Math.min(count, this.size as number));
    }
    return this.#piped(async function* (rows) {
      let number = 0;
      for await (const row of rows) {
        yield row;
        if (++number === count) {
          return;
        }
      }
    });
  }

  /**
   * Replace each NaN by the mean of the numbers in its column. Integers stay; rows that `preprocess` gets later may have NaN.
   *
   * @throws FeedError as `standardize`, or when a column has no number
   */
  fillMean(...names: string[]): Dataset<Row<Tensor>> {
    return this.#fitted("fill_mean", names);
  }

  /**
   * Replace each NaN by the median of the numbers in its column.
   *
   * @throws FeedError as `fillMean`
   */
  fillMedian(...names: string[]): Dataset<Row<Tensor>> {
    return this.#fitted("fill_median", names);
  }

  /**
   * Bring each column of inputs of numbers to mean 0 and deviation 1, as `StandardScaler` of scikit-learn does. float64
   * stays float64; other types become float32. A column is one place of a row: rows of the shape [48, 2] have 96.
   *
   * @throws FeedError when the rows are a stream, there is no such input, or it has another type
   */
  standardize(...names: string[]): Dataset<Row<Tensor>> {
    return this.#fitted("standardize", names);
  }

  /**
   * Replace each column of inputs of text or whole numbers by float32 columns, one for each of its categories in ascending
   * order.
   *
   * @param names - inputs, and perhaps an option behind them: with `unknown: "zeros"` a category that only later rows have
   *   gives zeros; by default it is an error
   * @throws FeedError as `standardize`
   */
  oneHot(...names: (string | { readonly unknown?: "error" | "zeros" })[]): Dataset<Row<Tensor>> {
    const last = names.at(-1);
    const options = typeof last === "object" ? checkOptions("oneHot", last, { unknown: true }) : {};
    const { unknown = "error" } = options;
    refuseSettingIf(!["error", "zeros"].includes(unknown), "unknown", unknown, '"error" or "zeros"');
    const inputs = names.filter((name) => name !== options) as string[];
    return this.#fitted("one_hot", inputs, unknown === "zeros" ? { unknown } : {});
  }

  /**
   * Replace text by the index of each value among the column's categories, in ascending order: int64 labels.
   *
   * @throws FeedError as `standardize`
   */
  categories(...names: string[]): Dataset<Row<Tensor>> {
    return this.#fitted("categories", names);
  }

  /**
   * Join inputs into one, which has their columns side by side. Numbers of several types become float32.
   *
   * @param name - the new input
   * @param parts - inputs that it replaces
   * @throws FeedError when the rows are a stream, there is no such input, or some are text
   */
  concat(name: string, parts: readonly string[]): Dataset<Row<Tensor>> {
    const columns = this.#table();
    const types = new Set(Array.from(parts, (part) => inputOf(part, columns).type));
    const dtype = types.size === 1 ? ([...types][0] ?? "") : "float32";
    return this.#applied([{ type: "concat", input: name, dtype, parts }]);
  }

  /**
   * Apply the steps that were fitted on other rows. Numbers get the type of those rows. Steps of inputs that are not there change nothing, and the first
   * steps
   * are left out if these rows have had them.
   *
   * @param steps - `preprocessing` of the dataset of these rows
   * @throws FeedError when the rows are a stream; when an input has another width or category than the fitted rows, or
   *   text for numbers; ModelError when `steps` are no such steps
   */
  preprocess(steps: readonly PreprocessingStep[]): Dataset<Row<Tensor>> {
    const checkedSteps = checkSteps(steps);
    const done = this.preprocessing;
    return this.#applied(areSteps(checkedSteps.slice(0, done.length), done) ? checkedSteps.slice(done.length) : checkedSteps);
  }

  /** The tensors, or those of an array of rows. */
  #table(): ReadonlyMap<string, Tensor> {
    if (this.#columns !== null) {
      return this.#columns;
    }
    const rows = (this.#listed ?? []) as readonly Row[];
    const [first = raise("TABLE_STREAM")] = rows;
    refuseIf(!rows.every((row) => isRecord(row) && !isTensor(row)), "TABLE_STREAM");
    rows.forEach((row, position) => checkNames(position, row, first));
    return checkColumns(Object.fromEntries(Object.keys(first).map((name) => [name, rows.map((row) => row[name] as number)])));
  }

  #applied(steps: readonly PreprocessingStep[]): Dataset<Row<Tensor>> {
    const checkedSteps = checkSteps(steps);
    return this.after(checkedSteps, applySteps(checkedSteps, this.#table()));
  }

  #fitted(type: Fitted, names: readonly string[], more: Pick<CategoryStep, "unknown"> = {}): Dataset<Row<Tensor>> {
    const columns = this.#table();
    if (names.length === 0) {
      throw new TypeError(`'${type}' needs the names of inputs; there are ${[...columns.keys()].join(", ")}.`);
    }
    return this.#applied(names.flat().map((name) => ({ ...fittedStep(type, name, columns), ...more })));
  }

  /** @internal A dataset of tensors that has had more steps. */
  after<Out extends object = Row<Tensor>>(steps: readonly PreprocessingStep[], columns: Columns): Dataset<Out> {
    streams.set(columns, { ...GIVEN, preprocessing: [...this.preprocessing, ...steps] });
    return new Dataset(columns);
  }

  /** Keep the rows or batches in memory once the first iteration has reached its end. */
  cache(): Dataset<Item> {
    const memories = new Map<boolean | undefined, (Row | Batch)[]>();
    const { isDrawn } = this.#stream;
    const make = async function* (rows: AsyncIterable<Row | Batch>, draw: Draw | null): AsyncGenerator<Row | Batch> {
      const key = isDrawn ? draw?.shuffles : undefined;
      const memory = memories.get(key);
      if (memory !== undefined) {
        yield* memory;
        return;
      }
      const items: (Row | Batch)[] = [];
      for await (const row of rows) {
        items.push(row);
        yield row;
      }
      memories.set(key, items);
    };
    return this.#piped(make, { generator: null });
  }

  /** Make this many rows (or batches) ahead. `fit` makes one batch ahead on its own. */
  prefetch(count = 1): Dataset<Item> {
    checkInteger("count", count, 1);
    return this.#piped(async function* (rows) {
      const iterator = rows[Symbol.asyncIterator]();
      const ahead: Promise<IteratorResult<Row | Batch>>[] = [];
      try {
        for (;;) {
          while (ahead.length <= count) {
            const next = iterator.next();
            next.catch(() => {});
            ahead.push(next);
          }
          const { done, value } = await (ahead.shift() as Promise<IteratorResult<Row | Batch>>);
          if (done === true) {
            return;
          }
          yield value as Row | Batch;
        }
      } finally {
        await iterator.return?.();
      }
    });
  }

  #piped<Out extends object>(make: Step, changes: Partial<Stream> = {}): Dataset<Out> {
    return streamOf((draw) => piped(this, draw, make), { ...this.#stream, parts: null, count: null, ...changes });
  }

  #slice(start: number, end: number): Dataset<Item> {
    return this.#columnwise((data, size) => {
      const bounds = [start * size, end * size] as const;
      return Array.isArray(data) ? data.slice(...bounds) : (data as Float32Array).subarray(...bounds);
    }, end - start);
  }

  #pick(order: Uint32Array): Dataset<Item> {
    return this.#columnwise((data, size) => {
      if (Array.isArray(data)) {
        return Array.from(order).flatMap((row) => data.slice(row * size, (row + 1) * size));
      }
      const Data = data.constructor as new (length: number) => Float32Array;
      const picked = new Data(order.length * size);
      order.forEach((row, k) => picked.set((data as Float32Array).subarray(row * size, (row + 1) * size), k * size));
      return picked;
    }, order.length);
  }

  #columnwise(pick: (data: Tensor["data"], rowSize: number) => Float32Array | string[], rows: number): Dataset<Item> {
    const picked: Record<string, Tensor> = {};
    for (const [name, value] of this.#columns ?? []) {
      const { type, dims, data } = liveTensor(name, value, 0);
      const rest = dims.slice(1);
      const size = rest.reduce((product, dim) => product * dim, 1);
      picked[name] = new Tensor(type as "float32", pick(data, size) as Float32Array, [rows, ...rest]);
    }
    return this.after([], picked);
  }
}

/**
 * Read a CSV file as a dataset. The first line has the names of the columns.
 *
 * @param source - the text, or a file; or, in Node, Deno and Bun, a path or URL; pages read no path or URL
 * @param columns - the column of each input (one value a row), or several columns for a vector
 * @throws FeedError for a missing or repeated column; or for a value that is missing, too large or not of its type,
 *   named by line and column. ModelError for an invalid delimiter
 */
export async function readCsv(source: CsvSource, columns: CsvColumns, options: CsvOptions = {}): Promise<Dataset<Row<Tensor>>> {
  return Dataset.fromCsv(source, columns, options);
}

/**
 * Properties of data that datasets make: batches or rows, filled up or not, in an order that is drawn.
 */
const streams = new WeakMap<object, Stream>();

interface Stream {
  readonly isBatched: boolean;
  readonly isPadded: boolean;
  readonly isDrawn: boolean;
  readonly preprocessing: readonly PreprocessingStep[];
  readonly generator: object | null;
  readonly parts: Parts | null;
  /** The inputs that buckets pad with 0 unless they are told another number; null: all. */
  readonly zeros: readonly string[] | null;
  /** Batches of each iteration, if they are known. */
  readonly count: number | null;
}

type RowsOf = (draw: Draw | null) => AsyncIterable<Row | Batch>;
/** Makes rows or batches of others. */
type Step = (rows: AsyncIterable<Row | Batch>, draw: Draw | null) => AsyncIterable<Row | Batch>;

/** Facts of data that no function has changed. */
const GIVEN: Stream = { isBatched: false, isPadded: false, isDrawn: false, preprocessing: [], generator: null, parts: null, zeros: [], count: null };

/** Of images: the tensors beside them, and the dataset of some; those held out keep their order and are unchanged. */
interface Parts {
  readonly known: ReadonlyMap<string, Tensor>;
  readonly pick: (indices: Uint32Array, isHeldOut: boolean) => Dataset<Row<Tensor>>;
}

/** Generator objects and ReadableStreams that datasets have read; to leave one closes it. */
const spent = new WeakSet<object>();

/** True if a dataset has read a generator object or ReadableStream. */
export function isSpent(source: object): boolean {
  return spent.has(source);
}

function isReadOnce(source: unknown): source is object {
  return isObject(source) && (isReadable(source) || /Generator|Iterator/u.test(nameOf(source)));
}

function open(source: unknown): [ReadonlyMap<string, Tensor> | null, RowsOf] {
  if (typeof source === "function") {
    // A user's function gets no argument.
    return [null, streams.has(source) ? (source as RowsOf) : () => iterate((source as () => unknown)())];
  }
  if (source instanceof Map) {
    return open(Object.fromEntries(source));
  }
  if (!isObject(source) || isTensor(source) || ArrayBuffer.isView(source)) {
    throw sessionError("NOT_A_DATASET", { actual: describe(source) });
  }
  if (Symbol.iterator in source || Symbol.asyncIterator in source || isReadable(source)) {
    return [null, () => iterate(source)];
  }
  const columns = checkColumns(source as Columns);
  return [columns, () => rowsOf(columns)];
}

function isReadable(source: object): source is ReadableStream<Row> {
  return typeof (source as Partial<ReadableStream>).getReader === "function";
}

/** The rows of a source; to leave them closes it at once, also while it is waited for. */
function iterate(source: unknown): AsyncIterable<Row | Batch> {
  return { [Symbol.asyncIterator]: () => iteratorOf(source) };
}

function iteratorOf(source: unknown): AsyncIterator<Row | Batch> {
  const iterator = opened(source);
  if (isReadOnce(source)) {
    spent.add(source);
  }
  let isOpen = true;
  let last: Promise<unknown> = Promise.resolve();
  const step = async (): Promise<IteratorResult<Row | Batch>> => {
    const { done, value } = isOpen ? await iterator.next() : LEFT;
    isOpen &&= done !== true;
    return isOpen ? { done: false, value: await value } : LEFT;
  };
  return {
    // One after the other, also where `prefetch` asks for several at once.
    next() {
      const next = last.then(step);
      last = next.catch(() => {
        isOpen = false;
      });
      return next;
    },
    async return() {
      if (isOpen) {
        isOpen = false;
        await iterator.return?.();
      }
      return LEFT;
    },
  };
}

function opened(source: unknown): Iterator<Row> | AsyncIterator<Row> {
  if (isObject(source)) {
    if (isReadable(source)) {
      return readerOf(source);
    }
    if (Symbol.asyncIterator in source) {
      return (source as AsyncIterable<Row>)[Symbol.asyncIterator]();
    }
    if (Symbol.iterator in source) {
      return (source as Iterable<Row>)[Symbol.iterator]();
    }
  }
  throw sessionError("NOT_A_DATASET", { actual: describe(source) });
}

/** Not every browser iterates over streams, and no browser cancels a stream that is waited for. */
function readerOf(source: ReadableStream<Row>): AsyncIterator<Row> {
  const reader = source.getReader();
  return {
    async next() {
      const result = await reader.read();
      if (result.done) {
        reader.releaseLock();
      }
      return result as IteratorResult<Row>;
    },
    return() {
      const cancelled = reader.cancel();
      reader.releaseLock();
      return cancelled.then(() => LEFT);
    },
  };
}

/** Rows that `make` produces from a dataset. Leaving them leaves the dataset at once, also during a wait. */
function piped(rows: Dataset<object>, draw: Draw | null, make: Step): AsyncIterable<Row | Batch> {
  return {
    [Symbol.asyncIterator]() {
      let source: AsyncIterator<Row | Batch> | null = null;
      const tapped = { [Symbol.asyncIterator]: () => (source = rows.read(draw)[Symbol.asyncIterator]()) };
      const output = make(tapped, draw)[Symbol.asyncIterator]();
      return {
        next: () => output.next(),
        // A waiting generator notices its end only when it continues.
        return: () => Promise.all([output.return?.(), source?.return?.()]).then(() => LEFT),
      };
    },
  };
}

const LEFT = { done: true, value: undefined } as const;

function checkColumns(source: Columns): ReadonlyMap<string, Tensor> {
  const columns = new Map<string, Tensor>();
  for (const [name, value] of Object.entries(source)) {
    const tensor = asTensor(name, value);
    refuseIf(tensor.dims.length === 0, "NOT_A_COLUMN", { name, actual: tensor.type === "string" ? "one text" : "one number" });
    columns.set(name, tensor);
  }
  const [first = raise("NO_COLUMNS")] = columns;
  const [firstName, { dims: [expected] }] = first;
  for (const [name, { dims: [rows] }] of columns) {
    refuseIf(rows !== expected, "COLUMN_ROWS", { name, rows, first: firstName, expected });
  }
  refuseIf(expected === 0, "EMPTY_DATASET");
  return columns;
}

async function* rowsOf(columns: ReadonlyMap<string, Tensor>): AsyncGenerator<Row> {
  const [first] = columns.values();
  for (let row = 0; row < ((first as Tensor).dims[0] as number); row++) {
    yield rowAt(columns, row);
  }
}

/** A row of columns, copied. */
export function rowAt(columns: ReadonlyMap<string, Tensor>, row: number): Row {
  return Object.fromEntries(
    [...columns].map(([name, value]) => {
      const { type, dims, data } = liveTensor(name, value, row);
      const rest = dims.slice(1);
      const size = rest.reduce((product, dim) => product * dim, 1);
      const part = (data as Float32Array).slice(row * size, (row + 1) * size);
      return [name, new Tensor(type as "float32", part, rest)];
    }),
  );
}

/** A stream of rows whose values are drawn, and perhaps their order. */
export function drawnDataset(rows: RowsOf, stream: Pick<Stream, "isDrawn" | "parts" | "preprocessing">): Dataset<Row<Tensor>> {
  return streamOf(rows, { ...GIVEN, ...stream });
}

function streamOf<Item extends object>(rows: RowsOf, stream: Stream): Dataset<Item> {
  streams.set(rows, stream);
  return new Dataset(rows as () => Rows<object> as () => Rows<Item>);
}

/** @throws ModelError for an invalid seed */
export function checkSeed(seed: unknown): void {
  checkInteger("seed", seed, 0, Number.MAX_SAFE_INTEGER);
}
