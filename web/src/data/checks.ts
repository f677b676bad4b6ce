/** Checks of callers' values: recognise a tensor, describe a value in words, and make the error for a wrong setting. */

import { Tensor } from "onnxruntime-common";

import { isObject } from "../wire/kinds.js";
import { refuseIf, sessionError } from "../wire/messages.js";

/**
 * True if `value` is a tensor, judged by its members, not its class. onnxruntime-web carries another copy of
 * onnxruntime-common, and its tensors are welcome here.
 */
export function isTensor(value: unknown): value is Tensor {
  if (value instanceof Tensor) {
    return true;
  }
  if (!isObject(value)) {
    return false;
  }
  const tensor = value as Partial<Tensor>;
  return (
    typeof tensor.type === "string" &&
    Array.isArray(tensor.dims) &&
    typeof tensor.location === "string" &&
    typeof tensor.getData === "function"
  );
}

/** The tensor of ONNX Runtime within one of transformers.js; other values as they are. */
export function unwrapped(value: unknown): unknown {
  return isObject(value) && "ort_tensor" in value ? value.ort_tensor : value;
}

/** True for bytes, also of another realm, as a frame or the window of jsdom is. */
export function isBytes(value: unknown): value is Uint8Array {
  return nameOf(value) === "Uint8Array";
}

/** True for a buffer, also of another realm. */
export function isBuffer(value: unknown): value is ArrayBuffer {
  return ["ArrayBuffer", "SharedArrayBuffer"].includes(nameOf(value));
}

/** True for a text or a URL, also of another realm. */
export function isAddress(value: unknown): value is string | URL {
  return typeof value === "string" || typeof (value as URL | null | undefined)?.href === "string";
}

/** The name of the class of a built-in object, also of another realm. */
export function nameOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice("[object ".length, -1);
}

/** Data without the proxies around arrays and objects that frameworks keep their state in: no worker receives those. */
export function plain(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(plain);
  }
  const isData = nameOf(value) === "Object" && [Object.prototype, null].includes(Object.getPrototypeOf(value));
  return isData ? Object.fromEntries(Object.entries(value as object).map(([name, one]) => [name, plain(one)])) : value;
}

/** A few words on a value of the wrong kind. */
export function describe(value: unknown): string {
  if (value === null || value === undefined) {
    return String(value);
  }
  if (typeof value === "object") {
    return value.constructor?.name ?? "an object";
  }
  return `a ${typeof value}`;
}

/** @throws TypeError that says what an argument must be, unless it is right */
export function mustBe(isRight: boolean, name: string, expected: string, value: unknown): asserts isRight {
  if (!isRight) {
    throw new TypeError(`'${name}' must be ${expected}, got ${describe(value)}.`);
  }
}

export function badSetting(name: string, value: unknown, expected: string): Error {
  return sessionError("BAD_SETTING", { name, value, expected });
}

/** Throw that error if a setting is wrong. */
export function refuseSettingIf(isWrong: boolean, name: string, value: unknown, expected: string): void {
  refuseIf(isWrong, "BAD_SETTING", { name, value, expected });
}

/** @throws ModelError unless a setting is an integer from `least` to `most` */
export function checkInteger(name: string, value: unknown, least: number, most?: number): void {
  const isRight = Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= (most ?? Infinity);
  refuseSettingIf(!isRight, name, value, `an integer >= ${least}${most === undefined ? "" : ` and <= ${most}`}`);
}
