/** Reads the header of a bundle without trust: each value has the form that is described, or an error is thrown. */

import { copyInto } from "../../python/python-files.js";
import { isRecord } from "../../wire/kinds.js";
import { ModelError } from "../../wire/errors.js";
import { sizeOf as sizeOfFile, type BlobRange, type SourceData, type HeldBytes, type JoinedFile } from "../../wire/pieces.js";
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

/** A form of values: returns the value that has it. Errors name the value by its place in the header. */
export type Form<T> = (value: unknown, where: string, reader: Reader) => T;

/** The values of a form. */
export type Of<F> = F extends Form<infer T> ? T : never;

/** Values that pass a check. */
export function when<T>(wanted: string, isRight: (value: unknown) => boolean): Form<T> {
  return (value, where) => {
    if (!isRight(value)) {
      throw wrong(where, wanted, value);
    }
    return value as T;
  };
}

export const text = when<string>("a string", (value) => typeof value === "string");
export const flag = when<boolean>("true or false", (value) => typeof value === "boolean");
export const positive = when<number>("a number >= 0", (value) => typeof value === "number" && value >= 0);
export const integer = integerFrom(0);
export const dtype = when<WireDtype>("a dtype", (value) => typeof value === "string" && Object.hasOwn(ITEM_SIZE, value));
const object = when<Readonly<Record<string, unknown>>>("an object", isRecord);
const anything = when<readonly unknown[]>("a list", Array.isArray);

export function integerFrom(least: number): Form<number> {
  return when("a 32-bit number", (value) => Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= MAX_BYTES);
}

export function list<T>(form: Form<T>): Form<readonly T[]> {
  return (value, where, reader) => anything(value, where, reader).map((item, k) => form(item, `${where}[${k}]`, reader));
}

/** A list with one value of each form. */
export function tuple<Forms extends readonly Form<unknown>[]>(...forms: Forms): Form<{ readonly [K in keyof Forms]: Of<Forms[K]> }> {
  return (value, where, reader) => {
    const items = anything(value, where, reader);
    return forms.map((form, k) => form(items[k], `${where}[${k}]`, reader)) as { readonly [K in keyof Forms]: Of<Forms[K]> };
  };
}

/** An object with these fields; others are left out. */
export function record<Forms extends Readonly<Record<string, Form<unknown>>>>(
  forms: Forms,
): Form<{ readonly [Name in keyof Forms]: Of<Forms[Name]> }> {
  return (value, where, reader) => {
    const values = object(value, where || "the header", reader);
    const prefix = where && `${where}.`;
    const fields = Object.entries(forms).map(([name, form]) => [name, form(values[name], prefix + name, reader)]);
    return Object.fromEntries(fields) as { readonly [Name in keyof Forms]: Of<Forms[Name]> };
  };
}

/** A value of a form, or null. */
export function nullable<T>(form: Form<T>): Form<T | null> {
  return (value, where, reader) => (value === null ? null : form(value, where, reader));
}

/** A field that may be absent, and what stands for it then. */
export function optional<T, Other>(form: Form<T>, absent: Other): Form<T | Other> {
  return (value, where, reader) => (value === undefined ? absent : form(value, where, reader));
}

/** Texts without repetition. */
export const names: Form<readonly string[]> = (value, where, reader) => {
  const texts = list(text)(value, where, reader);
  checkUnlike(texts, where);
  return texts;
};

/** @throws ModelError for a text that is there twice */
export function checkUnlike(texts: readonly string[], where: string): void {
  damagedIf(new Set(texts).size !== texts.length, `${where} has a name twice`);
}

export const dims: Form<readonly number[]> = (value, where, reader) => {
  const sizes = list(integer)(value, where, reader);
  if (!(sizeOf(sizes) <= MAX_BYTES)) {
    throw wrong(where, "the dims of a tensor", value);
  }
  return sizes;
};

/** A view of a blob, or a range of the file. */
export const blob: Form<HeldBytes> = (value, where, reader) => reader.blob(value, where);
/** A copy of a blob. */
export const kept: Form<Uint8Array> = (value, where, reader) => reader.keep(value, where);
/** A file that is made of blobs, or is one, as in version 3. */
export const file: Form<JoinedFile> = (value, where, reader) => {
  const hold: Form<HeldBytes> = (part, at) => reader.hold(part, at);
  const isOne = Array.isArray(value) && typeof value[0] === "number";
  const joined = { parts: isOne ? [hold(value, where, reader)] : list(hold)(value, where, reader) };
  const nbytes = sizeOfFile(joined);
  damagedIf(nbytes > MAX_BYTES, `${where} has ${nbytes} bytes`);
  return joined;
};

/** The blobs that a header refers to. */
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
  constructor(blobs: Uint8Array | Blob, start = 0, readonly files: readonly SourceData[] = []) {
    this.#blobs = blobs;
    this.#start = start;
    this.#nbytes = blobs instanceof Blob ? blobs.size - start : blobs.length;
  }

  /** A view, or a range of the file. */
  blob(value: unknown, where: string): HeldBytes {
    const [offset, length] = this.#place(value, where);
    const blobs = this.#blobs;
    return blobs instanceof Blob
      ? { blob: blobs, start: this.#start + offset, nbytes: length }
      : blobs.subarray(offset, offset + length);
  }

  #place(value: unknown, where: string): ByteRange {
    const [offset = -1, length = -1, ...rest] = list(integer)(value, where, this);
    const fits = rest.length === 0 && length >= 0 && offset + length <= this.#nbytes;
    damagedIf(!fits || offset % ALIGNMENT !== 0, `${where} is at [${offset}, ${offset + length}) of ${this.#nbytes} bytes`);
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
    damagedIf(this.#copied > this.#nbytes, `its parts overlap, found at ${where}`);
    const copy = new Uint8Array(nbytes);
    copyInto(copy, this.blob(value, where));
    this.#kept.set(key, copy);
    return copy;
  }

  /** The same of a large blob, which stays in the file where that is a Blob. */
  hold(value: unknown, where: string): HeldBytes {
    const bytes = this.blob(value, where);
    if (bytes instanceof Uint8Array) {
      return this.keep(value, where);
    }
    const key = String(value);
    const range = this.#ranges.get(key) ?? bytes;
    this.#ranges.set(key, range);
    return range;
  }
}

/** Number of elements. */
export function sizeOf(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}

export function wrong(where: string, wanted: string, value: unknown): ModelError {
  const text = JSON.stringify(value)?.slice(0, 80) ?? "missing";
  return malformed(`${where} must be ${wanted}, got ${text}`);
}

export function damagedIf(isDamaged: boolean, what: string): void {
  if (isDamaged) {
    throw malformed(what);
  }
}

export function malformed(what: string): ModelError {
  return new ModelError(`the bundle cannot be used: ${what}.`);
}
