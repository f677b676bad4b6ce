/** The safetensors format: 8 bytes of length, a JSON header, then the tensors without gaps. `model/safetensors.py` is the same. */

import { TENSOR_LIMIT } from "../wire/constants.js";
import { areTexts, isRecord } from "../wire/kinds.js";
import { CheckpointError, throwIf } from "../wire/errors.js";
import { concatenate } from "../wire/pieces.js";
import type { NamedTensor, TensorType, WireDtype } from "../wire/values.js";
import { ITEM_SIZE, sizeOf } from "./bundle/reader.js";

const DTYPES: Readonly<Record<string, WireDtype>> = {
  F64: "float64", F32: "float32", F16: "float16", BF16: "bfloat16", I64: "int64", I32: "int32", I16: "int16", I8: "int8",
  U64: "uint64", U32: "uint32", U16: "uint16", U8: "uint8", BOOL: "bool",
};
const CODES = new Map(Object.entries(DTYPES).map(([code, dtype]) => [dtype, code]));
const ALIGNMENT = 8;

export type Metadata = Readonly<Record<string, string>>;

export interface TensorFile {
  readonly metadata: Metadata;
  readonly tensors: ReadonlyMap<string, NamedTensor>;
}

/** A file of these tensors, widest elements first and then by name, as the library orders them. */
export function writeSafetensors({ tensors, metadata }: TensorFile): Uint8Array<ArrayBuffer> {
  const ordered = [...tensors.values()].sort(
    (a, b) => ITEM_SIZE[b.dtype] - ITEM_SIZE[a.dtype] || (a.name < b.name ? -1 : 1),
  );
  const header: [string, unknown][] = Object.keys(metadata).length > 0 ? [["__metadata__", metadata]] : [];
  let nbytes = 0;
  for (const { name, dtype, dims, data } of ordered) {
    header.push([name, { dtype: CODES.get(dtype), shape: dims, data_offsets: [nbytes, nbytes + data.length] }]);
    nbytes += data.length;
  }
  // Written out, for an object would put names that are numbers first.
  const body = header.map(([name, entry]) => `${JSON.stringify(name)}:${JSON.stringify(entry)}`).join(",");
  const text = new TextEncoder().encode(`{${body}}`);
  const length = text.length + ((ALIGNMENT - (text.length % ALIGNMENT)) % ALIGNMENT);
  const head = new Uint8Array(ALIGNMENT + length);
  new DataView(head.buffer).setBigUint64(0, BigInt(length), true);
  head.fill(0x20, ALIGNMENT).set(text, ALIGNMENT);
  return concatenate([head, ...ordered.map(({ data }) => data)]);
}

interface TensorEntry extends TensorType {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

/**
 * @throws CheckpointError for another file, or one that is cut off or inconsistent: every byte belongs to one tensor
 */
export function readSafetensors(file: Uint8Array): TensorFile {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = file.length < ALIGNMENT ? Infinity : Number(view.getBigUint64(0, true));
  throwIf(ALIGNMENT + length > file.length, CheckpointError, `The safetensors file has ${file.length} bytes, which is less than its header.`);
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder().decode(file.subarray(ALIGNMENT, ALIGNMENT + length)));
  } catch (error) {
    throw new CheckpointError(`The header of the safetensors file is not JSON: ${String(error)}`);
  }
  throwIf(!isRecord(header), CheckpointError, "The header of the safetensors file is not an object.");
  const { __metadata__: metadata = {}, ...entries } = header as Readonly<Record<string, unknown>>;
  const isLong = Object.keys(entries).length > TENSOR_LIMIT;
  throwIf(isLong, CheckpointError, `The safetensors file has more than ${TENSOR_LIMIT} tensors, the limit. Split the file.`);
  if (!isMetadata(metadata)) {
    throw new CheckpointError("The metadata of the safetensors file are no texts.");
  }
  const body = file.subarray(ALIGNMENT + length);
  const places = Object.entries(entries).map(([name, entry]) => placeOf(name, entry));
  let at = 0;
  for (const { name, start, end } of [...places].sort((a, b) => a.start - b.start || a.end - b.end)) {
    throwIf(start !== at, CheckpointError, `Tensor '${name}' of the safetensors file starts at ${start}, not at ${at}.`);
    at = end;
  }
  throwIf(at !== body.length, CheckpointError, `The tensors of the safetensors file end at ${at}; it has ${body.length} bytes of them.`);
  const tensors = new Map(
    places.map(({ name, dtype, dims, start, end }) => [name, { name, dtype, dims, data: body.subarray(start, end) }]),
  );
  return { metadata, tensors };
}

function placeOf(name: string, entry: unknown): TensorEntry {
  const { dtype: code, shape, data_offsets: offsets } = (entry ?? {}) as Readonly<Record<string, unknown>>;
  const dtype = typeof code === "string" && Object.hasOwn(DTYPES, code) ? DTYPES[code] : undefined;
  if (dtype === undefined || !areNaturals(shape) || !areNaturals(offsets) || offsets.length !== 2) {
    throw new CheckpointError(`The safetensors header of '${name}' is not what it should be.`);
  }
  const [start = 0, end = 0] = offsets;
  const needed = sizeOf(shape) * ITEM_SIZE[dtype];
  throwIf(end - start !== needed, CheckpointError, `Tensor '${name}' of the safetensors file needs ${needed} bytes, and has ${end - start}.`);
  return { name, dtype, dims: shape, start, end };
}

function isMetadata(value: unknown): value is Metadata {
  return isRecord(value) && areTexts(Object.values(value));
}

function areNaturals(values: unknown): values is readonly number[] {
  return Array.isArray(values) && values.every((value) => Number.isSafeInteger(value) && (value as number) >= 0);
}
