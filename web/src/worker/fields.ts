/**
 * Checked fields of JSON that a checkpoint holds and anybody may have changed; `trainweb/checkpoint/fields.py` is the same.
 * Each function returns its value, or throws a CheckpointError with the name of the field and the values that are allowed.
 */

import { isRecord } from "../wire/kinds.js";
import { sessionError } from "../wire/messages.js";
import type { Metadata } from "./safetensors.js";

/** Numbers that JSON does not have, and their texts. */
export const TEXTS: ReadonlyMap<unknown, string> = new Map([[Infinity, "inf"], [-Infinity, "-inf"], [NaN, "nan"]]);
const NUMBERS: ReadonlyMap<unknown, number> = new Map([...TEXTS].map(([value, text]) => [text, value as number]));

type JsonObject = Readonly<Record<string, unknown>>;

/** Throw for a value that is not allowed. */
export function refuse(value: unknown, field: string, expected: string): never {
  throw sessionError("BAD_FIELD", { actual: describe(value), field, expected });
}

/** Describe a value in a few words, also a large one. */
function describe(value: unknown): string {
  if (typeof value === "number") {
    return Number.isSafeInteger(value) ? String(value) : "a number";
  }
  if (value === null || typeof value === "boolean") {
    return String(value);
  }
  return value === undefined ? "nothing" : typeof value === "string" ? "a text" : Array.isArray(value) ? "an array" : "an object";
}

export function parse(texts: Metadata, field: string): unknown {
  try {
    return JSON.parse(texts[field] ?? "");
  } catch {
    return refuse(texts[field], field, "JSON");
  }
}

export function mapping(value: unknown, field: string): JsonObject {
  return isRecord(value) ? value : refuse(value, field, "an object");
}

export function array(value: unknown, field: string): readonly unknown[] {
  return Array.isArray(value) ? value : refuse(value, field, "an array");
}

/** An integer from `least` to `most`. */
export function count(value: unknown, field: string, least = 0, most = Number.MAX_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || (value as number) < least || (value as number) > most) {
    refuse(value, field, least === most ? String(least) : `an integer from ${least} to ${most}`);
  }
  return value as number;
}

/** A finite number. */
export function number(value: unknown, field: string): number {
  return Number.isFinite(value) ? (value as number) : refuse(value, field, "a finite number");
}

/** A finite number that is not negative. */
export function rate(value: unknown, field: string): number {
  return number(value, field) >= 0 ? (value as number) : refuse(value, field, "a finite number of at least 0");
}

/** A number, which may be written as the text that stands for NaN or an infinity. */
export function anyNumber(value: unknown, field: string): number {
  return NUMBERS.get(value) ?? number(value, field);
}
