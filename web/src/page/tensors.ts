/** Between onnxruntime-common's `Tensor` and the bytes that cross to the worker. */

import { Tensor } from "onnxruntime-common";

import { describe, isTensor, unwrapped } from "../data/checks.js";
import { BufferSizeError, FeedError, throwIf } from "../wire/errors.js";
import { convertFloats, FLOAT_BYTES } from "../wire/floats.js";
import { sessionError } from "../wire/messages.js";
import { concatenate } from "../wire/pieces.js";
import type { FloatType } from "../wire/values.js";
import type { Feed, Fetch, InputDeclaration, NamedTensor, PlacedBytes, WireDtype, WireTensor } from "../wire/protocol.js";

/** Data of a tensor. */
export type NumericArray =
  | Float32Array
  | Float64Array
  | Int8Array
  | Uint8Array
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array;

type NumericArrayConstructor = {
  new (buffer: ArrayBufferLike, byteOffset: number, length: number): NumericArray;
  readonly BYTES_PER_ELEMENT: number;
};

const ARRAYS: Readonly<Record<WireDtype, NumericArrayConstructor>> = {
  float32: Float32Array,
  float64: Float64Array,
  // Bit patterns: not every browser has Float16Array, and there is no array type for bfloat16.
  float16: Uint16Array,
  bfloat16: Uint16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};

/** An array of zeros for the data of a tensor. */
export function arrayOf(dtype: WireDtype, length: number): NumericArray {
  const Data = ARRAYS[dtype];
  return new Data(new ArrayBuffer(length * Data.BYTES_PER_ELEMENT), 0, length);
}

/** The array of float16 tensors in browsers that have it. */
const HalfArray = (globalThis as { readonly Float16Array?: NumericArrayConstructor }).Float16Array;

/** Types that share their arrays with another one, which such an array is taken for unless the model declares them. */
const SHARING: readonly string[] = ["float16", "bool"] satisfies WireDtype[];

/**
 * A typed array as a tensor, with the dims that the model declares of an input; other values stay as they are, for
 * `packTensor` to judge.
 *
 * @throws FeedError where dims and elements do not tell how large each dim is
 */
export function asTensor({ name, dtype, dims }: InputDeclaration, value: unknown): Tensor {
  if (!ArrayBuffer.isView(value)) {
    return unwrapped(value) as Tensor;
  }
  const isOf = (type: string): boolean => value instanceof ARRAYS[type as WireDtype];
  const type = isOf(dtype) ? dtype : Object.keys(ARRAYS).find((known) => !SHARING.includes(known) && isOf(known));
  if (type === undefined) {
    return value as unknown as Tensor;
  }
  const array = value as NumericArray;
  const shape = dims === null ? null : fillDims(dims, array.length);
  if (shape === null) {
    const declared = dims === null ? "which the model does not declare" : `[${dims.map((dim) => dim ?? "?").join(", ")}]`;
    throw new FeedError(
      `feed '${name}' must be a Tensor: the ${array.length} elements of ${describe(value)} do not tell its dims, ${declared}.`,
    );
  }
  // The overloads of Tensor go by type; type and array agree by construction.
  return new Tensor(type as "float32", array as Float32Array, shape);
}

/** Dims for so many elements: one at most follows from the others. Null where there are none. */
function fillDims(dims: readonly (number | string | null)[], elements: number): number[] | null {
  const known = dims.reduce<number>((product, dim) => (typeof dim === "number" ? product * dim : product), 1);
  const unknown = dims.filter((dim) => typeof dim !== "number").length;
  const size = unknown === 0 ? 1 : elements / known;
  return unknown > 1 || !Number.isInteger(size) || size * known !== elements
    ? null
    : dims.map((dim) => (typeof dim === "number" ? dim : size));
}

/** A tensor with its bytes, as they are or where they were put. */
type Packed<Bytes> = Omit<Feed, "data"> & { readonly data: Bytes };

/**
 * Takes the bytes of a tensor: `copyBytes`, `ownBytes`, the copy of `SpareBuffers`, or a writer into the kernels'
 * memory.
 */
export type TakeBytes<Bytes> = (view: ArrayBufferView) => Bytes;

/** The bytes of a tensor. A promise only for a tensor that is not on the CPU. */
export function packTensor<Bytes>(
  name: string,
  tensor: Tensor,
  take: TakeBytes<Bytes>,
): Packed<Bytes> | Promise<Packed<Bytes>> {
  if (!isTensor(tensor)) {
    throw new FeedError(`feed '${name}' must be a Tensor or a typed array, got ${describe(tensor)}.`);
  }
  const { type, dims, location } = tensor;
  if (location === "none") {
    throw new FeedError(`feed '${name}': the tensor is disposed.`);
  }
  if (isOnCpu(tensor)) {
    return packData(name, type, dims, tensor.data, take);
  }
  return tensor.getData().then((data) => packData(name, type, dims, data, take));
}

export function isOnCpu({ location }: Tensor): boolean {
  return location === "cpu" || location === "cpu-pinned";
}

function packData<Bytes>(
  name: string,
  type: string,
  dims: readonly number[],
  data: unknown,
  take: TakeBytes<Bytes>,
): Packed<Bytes> {
  if (!Object.hasOwn(ARRAYS, type)) {
    throw new FeedError(`feed '${name}' has type ${type}, which trainweb does not take.`);
  }
  if (!ArrayBuffer.isView(data)) {
    throw new FeedError(`feed '${name}': its data is ${describe(data)}, not a typed array.`);
  }
  const dtype = type as WireDtype;
  const elements = dims.reduce((product, dim) => product * dim, 1);
  if (data.byteLength !== elements * ARRAYS[dtype].BYTES_PER_ELEMENT) {
    // A buffer that was transferred elsewhere, or resized, after the tensor was made.
    throw new FeedError(
      `feed '${name}' of dims [${dims.join(", ")}] should hold ${elements} elements of ${dtype}, ` +
        `but its data has ${data.byteLength} bytes. Was its buffer transferred or resized?`,
    );
  }
  return { name, dtype, dims: [...dims], data: take(data) };
}

/** Bytes of a feed that travel, or where they lie. */
export type FeedBytes = Uint8Array<ArrayBuffer> | PlacedBytes;

/**
 * Take the data of the feeds now, in the order of the inputs, in any order of the caller. Returns a promise only if a
 * tensor is not on the CPU.
 */
export function packFeeds(
  inputNames: readonly string[],
  feeds: Readonly<Record<string, unknown>>,
  take: TakeBytes<FeedBytes>,
): readonly Feed[] | Promise<readonly Feed[]> {
  const packed = inputNames.map((name) => packTensor(name, feeds[name] as Tensor, take));
  return packed.some((part) => part instanceof Promise) ? Promise.all(packed) : (packed as readonly Feed[]);
}

/** The bytes of `view` where they lie. */
export function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** A copy of the bytes of `view`, in a separate buffer that is never shared. */
export function copyBytes(view: ArrayBufferView): Uint8Array<ArrayBuffer> {
  return new Uint8Array(bytesOf(view));
}

/** The bytes of `view` themselves where it covers a buffer that can be transferred, else a copy. */
export function ownBytes(view: ArrayBufferView): Uint8Array<ArrayBuffer> {
  const { buffer } = view;
  if (buffer instanceof ArrayBuffer && view.byteLength === buffer.byteLength) {
    return new Uint8Array(buffer);
  }
  return copyBytes(view);
}

/** Buffers that came back from the worker: to copy into fresh memory takes several times as long. */
export class SpareBuffers {
  #buffers: ArrayBuffer[] = [];

  /** Keep the buffers of a call, and drop the buffers of the call before. */
  keep(buffers: readonly ArrayBuffer[]): void {
    this.#buffers = [...buffers];
  }

  /** A buffer to overwrite, which is never shared. */
  take(nbytes: number): Uint8Array<ArrayBuffer> {
    const index = this.#buffers.findIndex(({ byteLength }) => byteLength === nbytes);
    const [spare] = index < 0 ? [] : this.#buffers.splice(index, 1);
    return new Uint8Array(spare ?? new ArrayBuffer(nbytes));
  }

  /** A copy of the bytes of `view`, in a separate buffer that is never shared. */
  readonly copy: TakeBytes<Uint8Array<ArrayBuffer>> = (view) => {
    const copy = this.take(view.byteLength);
    copy.set(bytesOf(view));
    return copy;
  };
}

export function unpackNamed(tensors: readonly NamedTensor[]): Readonly<Record<string, Tensor>> {
  return Object.fromEntries(tensors.map((tensor) => [tensor.name, unpackTensor(tensor)]));
}

/** Make a tensor of bytes that have no other owner. */
export function unpackTensor({ dtype, dims, data }: WireTensor): Tensor {
  const Data = dtype === "float16" ? (HalfArray ?? Uint16Array) : ARRAYS[dtype];
  const array = new Data(data.buffer, data.byteOffset, data.byteLength / Data.BYTES_PER_ELEMENT);
  // The overloads of Tensor go by type; dtype and array agree by construction. Tensors have no bfloat16: its bits are uint16.
  return new Tensor((dtype === "bfloat16" ? "uint16" : dtype) as "float32", array as Float32Array, dims);
}

/** The bytes of floats in another type; one of both is float32. */
export function asFloats(view: ArrayBufferView, from: FloatType, to: FloatType): Uint8Array<ArrayBuffer> {
  const target = new Uint8Array((view.byteLength / FLOAT_BYTES[from]) * FLOAT_BYTES[to]);
  convertFloats(bytesOf(view), from, target, to);
  return target;
}

/**
 * The tensor with its elements copied to an array of the caller's.
 *
 * @throws BufferSizeError for an array of another length
 */
export function copiedInto(out: Float32Array, { data, dims }: Tensor): Tensor {
  const { length } = data as Float32Array;
  throwIf(out.length !== length, BufferSizeError, `'out' has ${out.length} elements, the parameters have ${length}.`);
  out.set(data as Float32Array);
  return new Tensor("float32", out, dims);
}

/** Describe an output that goes into the caller's tensor, for the worker's checks before it runs. */
export function describeFetch(name: string, target: Tensor | null): Fetch {
  if (target === null) {
    return { name };
  }
  if (!isOnCpu(target)) {
    throw new FeedError(`fetch '${name}' must be a tensor on the CPU, not '${target.location}'.`);
  }
  return { name, dtype: target.type as WireDtype, dims: [...target.dims] };
}

/** Results by name, in the order of the fetches. */
export function unpackResults(
  results: readonly NamedTensor[],
  targets: ReadonlyMap<string, Tensor | null>,
): Record<string, Tensor> {
  // Also for an output that is called "__proto__".
  return Object.fromEntries(
    results.map((result) => {
      const target = targets.get(result.name) ?? null;
      if (target !== null) {
        bytesOf(target.data as NumericArray).set(result.data);
      }
      return [result.name, target ?? unpackTensor(result)];
    }),
  );
}

/**
 * The rows of all batches of an output.
 *
 * @param pads - put zeros behind the rows of shorter buckets
 * @throws SessionError for batches whose rows have other shapes
 */
export function joined(name: string, tensors: readonly NamedTensor[], pads = false): NamedTensor {
  const isOfOneRank = new Set(tensors.map(({ dims }) => dims.length)).size === 1;
  const most = tensors[0]?.dims.map((_, axis) => Math.max(...tensors.map(({ dims }) => dims[axis] as number))) ?? [];
  const itemBytes = Math.max(...tensors.map(({ dims, data }) => data.length / (productOf(dims) || 1)));
  const parts = pads && isOfOneRank ? tensors.map((tensor) => widened(tensor, most, itemBytes)) : tensors;
  const [one] = parts as readonly [NamedTensor, ...NamedTensor[]];
  if (parts.length === 1) {
    return one;
  }
  const row = String(one.dims.slice(1));
  if (parts.some(({ dims }) => String(dims.slice(1)) !== row)) {
    const shapes = [...new Set(parts.map(({ dims }) => `[${dims.join(", ")}]`))].sort().join(", ");
    throw sessionError("UNLIKE_OUTPUTS", { name, shapes });
  }
  const data = concatenate(parts.map((part) => part.data));
  const rows = parts.reduce((sum, { dims }) => sum + (dims[0] as number), 0);
  return { ...one, dims: [rows, ...one.dims.slice(1)], data };
}

/** A tensor with zeros behind its elements along each axis but the first, up to a shape. */
function widened(tensor: NamedTensor, shape: readonly number[], itemBytes: number): NamedTensor {
  const { dims } = tensor;
  let { data } = tensor;
  for (let [axis, inner] = [dims.length - 1, itemBytes]; axis > 0; axis--) {
    const [before, after] = [(dims[axis] as number) * inner, (shape[axis] as number) * inner];
    const wide = new Uint8Array(productOf(dims.slice(0, axis)) * after);
    for (let k = 0; k * after < wide.length; k++) {
      wide.set(data.subarray(k * before, (k + 1) * before), k * after);
    }
    [data, inner] = [wide, after];
  }
  return { ...tensor, dims: [dims[0] as number, ...shape.slice(1)], data };
}

export function productOf(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}
