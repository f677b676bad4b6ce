/** Check that feeds fit a model; training/models.py checks the same in the same order. */

import { checkFeedNames } from "../wire/feed-names.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import { hexOf } from "../wire/sha256.js";
import type { Feed, NamedTensor, TensorType, WireDtype } from "../wire/protocol.js";
import { type Declaration, type FeedType } from "./bundle/bundle.js";
import { sizeOf } from "./bundle/reader.js";

/** JavaScript that converts an array of numbers to a type. */
const CONVERSIONS: Readonly<Record<string, string>> = {
  bfloat16: "Uint16Array.from(new Uint32Array(Float32Array.from(values).buffer), (bits) => bits >>> 16)",
  int64: "BigInt64Array.from(values, BigInt)",
  uint64: "BigUint64Array.from(values, BigInt)",
  bool: "Uint8Array.from(values)",
};

/** Types of feeds, with the values of shape-determining feeds up to their limits. */
export function signatureOf(inputs: readonly Declaration[], feeds: readonly Feed[], bytesOf: BytesOf): FeedType[] {
  return feeds.map((feed) => {
    const { name, dims } = feed;
    const declared = inputs.find((input) => input.name === name);
    const dtype = declared?.dtype === "bfloat16" ? ofBits(feed.dtype) : feed.dtype;
    const limit = declared?.decides ?? 0;
    const value = limit > 0 && sizeOf(dims) <= limit ? hexOf(bytesOf(feed)) : null;
    return { name, dtype, dims, value };
  });
}

/** Copy rows of a tensor of `rows` rows, in this order. A feed in kernel memory stays as it is. */
export function takeRows<T extends Feed>(tensor: T, rows: number, order: Uint32Array | readonly number[]): T {
  const { data, dims } = tensor;
  if (!(data instanceof Uint8Array)) {
    return tensor;
  }
  const size = data.length / rows;
  const copy = new Uint8Array(size * order.length);
  order.forEach((row, k) => copy.set(data.subarray(size * row, size * (row + 1)), size * k));
  return { ...tensor, dims: [order.length, ...dims.slice(1)], data: copy };
}

/** Copy the first rows of a tensor. */
export function firstRows(tensor: NamedTensor, count: number): NamedTensor {
  const { dims: [rows = 1, ...dims], data } = tensor;
  return { ...tensor, dims: [count, ...dims], data: data.slice(0, (data.length / rows) * count) };
}

/** Shapes of feeds by their names. */
export type Shapes = Readonly<Record<string, readonly number[]>>;

/**
 * Types of feeds of these shapes, without values.
 *
 * @param isStrict - true: keep feeds that the model does not take
 * @throws FeedError for an invalid shape
 */
export function typesOf(inputs: readonly Declaration[], shapes: Shapes, isStrict: boolean): readonly FeedType[] {
  return Object.entries(shapes).flatMap(([name, dims]: readonly [string, unknown]) => {
    refuseIf(!Array.isArray(dims) || !dims.every((size) => Number.isSafeInteger(size) && size >= 0), "NOT_A_SHAPE", { name, actual: dims });
    const declared = inputs.find((input) => input.name === name);
    if (declared === undefined && !isStrict) {
      return [];
    }
    return [{ name, dtype: declared?.dtype ?? "float32", dims: dims as readonly number[], value: null }];
  });
}

/** @throws SessionError where a plan depends on the value of a feed, too */
export function checkValuesDecideNothing(inputs: readonly Declaration[], types: readonly FeedType[]): void {
  for (const { name, decides } of inputs) {
    const type = types.find((one) => one.name === name);
    refuseIf(decides > 0 && type !== undefined && sizeOf(type.dims) <= decides, "DECIDING_SHAPE", { name });
  }
}

/** Types of the feeds of every step, in the order of the inputs; null if sizes or values depend on the feeds. */
export function fixedTypes(inputs: readonly Declaration[]): readonly FeedType[] | null {
  const types: FeedType[] = [];
  for (const { name, dtype, dims, decides } of inputs) {
    const sizes = dims?.filter((dim): dim is number => typeof dim === "number");
    if (decides > 0 || sizes === undefined || sizes.length !== dims?.length) {
      return null;
    }
    types.push({ name, dtype, dims: sizes, value: null });
  }
  return types;
}

/** Tensors have no bfloat16. Its bits come and go as uint16. */
export function ofBits(dtype: WireDtype): WireDtype {
  return dtype === "uint16" ? "bfloat16" : dtype;
}

type BytesOf = (feed: Feed) => Uint8Array;

type Symbols = Map<string, { readonly size: number; readonly name: string }>;

/** @throws FeedError for the first fault, in the order of the model's inputs */
export function checkFeeds(
  inputs: readonly Declaration[],
  feeds: readonly FeedType[],
  allowEmpty: boolean,
): void {
  checkFeedNames(
    inputs.map(({ name }) => name),
    feeds.map(({ name }) => name),
  );
  const symbols: Symbols = new Map();
  inputs.forEach((declared) => {
    const feed = feeds.find(({ name }) => name === declared.name) as FeedType;
    checkFeed(declared, feed, symbols);
    refuseIf(!allowEmpty && sizeOf(feed.dims) === 0, "EMPTY_BATCH", { name: feed.name, shape: feed.dims });
  });
}

function checkFeed({ name, dtype, dims }: Declaration, feed: TensorType, symbols: Symbols): void {
  if (feed.dtype !== dtype) {
    const array = `${dtype[0]?.toUpperCase()}${dtype.slice(1)}Array`;
    const conversion = CONVERSIONS[dtype] ?? `${array}.from(values)`;
    throw sessionError("FEED_DTYPE", { name, actual: feed.dtype, expected: dtype, conversion });
  }
  if (dims === null) {
    return;
  }
  if (feed.dims.length !== dims.length) {
    const [actual, expected] = [feed.dims.length, dims.length];
    throw sessionError("FEED_RANK", { name, actual, expected, shape: feed.dims, declared: dims });
  }
  dims.forEach((dim, index) => {
    const size = feed.dims[index] as number;
    refuseIf(typeof dim === "number" && size !== dim, "FEED_DIM", { name, index, actual: size, expected: dim });
    if (typeof dim !== "string") {
      return;
    }
    const known = symbols.get(dim) ?? { size, name };
    symbols.set(dim, known);
    refuseIf(known.size !== size, "FEED_SYMBOL", { symbol: dim, first: known.size, where: known.name, size, name });
  });
}
