/** Reads the header of a bundle without trust: each value has its expected type, or an error is thrown. */

import { copyInto } from "../../python/given-files.js";
import { ModelError } from "../../wire/errors.js";
import { sizeOf as sizeOfFile, type BlobRange, type GivenData, type HeldBytes, type JoinedFile } from "../../wire/pieces.js";
import type { WireDtype } from "../../wire/protocol.js";

/** Blobs start at multiples of it. */
export const ALIGNMENT = 64;
const MAX_BYTES = 2 ** 32 - 1;

export const ITEM_SIZE: Readonly<Record<WireDtype, number>> = {
  float32: 4, float64: 8, float16: 2, bfloat16: 2, int8: 1, uint8: 1, int16: 2, uint16: 2, int32: 4, uint32: 4,
  int64: 8, uint64: 8, bool: 1,
};

/** Offset and length among the blobs. */
export type ByteRange = readonly [number, number];

export type Fields = Readonly<Record<string, unknown>>;

/** Values of the header, each of the type it should have. */
export class Reader {
  readonly #blobs: Uint8Array | Blob;
  readonly #nbytes: number;
  readonly #kept = new Map<string, Uint8Array>();
  readonly #ranges = new Map<string, BlobRange>();
  readonly #start: number;
  #copied = 0;

  /**
   * @param start - of the blobs in a Blob
   * @param files - that the session has besides
   */
  constructor(blobs: Uint8Array | Blob, start = 0, readonly files: readonly GivenData[] = []) {
    this.#blobs = blobs;
    this.#start = start;
    this.#nbytes = blobs instanceof Blob ? blobs.size - start : blobs.length;
  }

  object(value: unknown, where: string): Fields {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw wrong(where, "an object", value);
    }
    return value as Fields;
  }

  list<T>(value: unknown, where: string, read: (item: unknown, where: string) => T): T[] {
    if (!Array.isArray(value)) {
      throw wrong(where, "a list", value);
    }
    return value.map((item, index) => read(item, `${where}[${index}]`));
  }

  integer(value: unknown, where: string, minimum = 0): number {
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < minimum || value > MAX_BYTES) {
      throw wrong(where, "a 32-bit number", value);
    }
    return value;
  }

  number(value: unknown, where: string): number {
    if (typeof value !== "number" || !(value >= 0)) {
      throw wrong(where, "a number >= 0", value);
    }
    return value;
  }

  boolean(value: unknown, where: string): boolean {
    if (typeof value !== "boolean") {
      throw wrong(where, "true or false", value);
    }
    return value;
  }

  text(value: unknown, where: string): string {
    if (typeof value !== "string") {
      throw wrong(where, "a string", value);
    }
    return value;
  }

  names(value: unknown, where: string): string[] {
    const names = this.list(value, where, (item, at) => this.text(item, at));
    if (new Set(names).size !== names.length) {
      throw malformed(`${where} has a name twice`);
    }
    return names;
  }

  dtype(value: unknown, where: string): WireDtype {
    const dtype = this.text(value, where);
    if (!Object.hasOwn(ITEM_SIZE, dtype)) {
      throw wrong(where, "a dtype", value);
    }
    return dtype as WireDtype;
  }

  dims(value: unknown, where: string): number[] {
    const dims = this.list(value, where, (item, at) => this.integer(item, at));
    if (!(sizeOf(dims) <= MAX_BYTES)) {
      throw wrong(where, "the dims of a tensor", value);
    }
    return dims;
  }

  /** A blob: a view, or a range of the file. */
  blob(value: unknown, where: string): HeldBytes {
    const [offset, length] = this.#place(value, where);
    const blobs = this.#blobs;
    return blobs instanceof Blob
      ? { blob: blobs, start: this.#start + offset, nbytes: length }
      : blobs.subarray(offset, offset + length);
  }

  #place(value: unknown, where: string): ByteRange {
    const [offset = -1, length = -1, ...rest] = this.list(value, where, (item, at) => this.integer(item, at));
    const fits = rest.length === 0 && length >= 0 && offset + length <= this.#nbytes;
    if (!fits || offset % ALIGNMENT !== 0) {
      throw malformed(`${where} is at [${offset}, ${offset + length}) of ${this.#nbytes} bytes`);
    }
    return [offset, length];
  }

  /** A copy of a blob, one for all who refer to it, so that the file itself need not stay in memory. */
  keep(value: unknown, where: string): Uint8Array {
    const [, nbytes] = this.#place(value, where);
    const key = String(value);
    const known = this.#kept.get(key);
    if (known !== undefined) {
      return known;
    }
    this.#copied += nbytes;
    if (this.#copied > this.#nbytes) {
      throw malformed(`its parts overlap, found at ${where}`);
    }
    const kept = new Uint8Array(nbytes);
    copyInto(kept, this.blob(value, where));
    this.#kept.set(key, kept);
    return kept;
  }

  /** The same of a large blob, which stays in the file where that is a Blob. */
  hold(value: unknown, where: string): HeldBytes {
    const found = this.blob(value, where);
    if (found instanceof Uint8Array) {
      return this.keep(value, where);
    }
    const key = String(value);
    const range = this.#ranges.get(key) ?? found;
    this.#ranges.set(key, range);
    return range;
  }

  /** A file that is made of blobs, or is one, as in version 3. */
  file(value: unknown, where: string): JoinedFile {
    const isOne = Array.isArray(value) && typeof value[0] === "number";
    const file = { parts: isOne ? [this.hold(value, where)] : this.list(value, where, this.hold.bind(this)) };
    const nbytes = sizeOfFile(file);
    if (nbytes > MAX_BYTES) {
      throw malformed(`${where} has ${nbytes} bytes`);
    }
    return file;
  }
}

export function partOf<File extends Uint8Array | Blob>(file: File, start: number, end: number): File {
  return (file instanceof Blob ? file.slice(start, end) : file.subarray(start, end)) as File;
}

/** Number of elements. */
export function sizeOf(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}

export function wrong(where: string, wanted: string, value: unknown): ModelError {
  const text = JSON.stringify(value)?.slice(0, 80) ?? "missing";
  return malformed(`${where} must be ${wanted}, got ${text}`);
}

export function malformed(what: string): ModelError {
  return new ModelError(`the bundle cannot be used: ${what}.`);
}
