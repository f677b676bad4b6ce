/** What callers give: whether it is a tensor, what it is in words, and the error for a setting that is wrong. */

import { Tensor } from "onnxruntime-common";

import { sessionError } from "../wire/messages.js";

/**
 * Whether `value` is a tensor. By its members, not its class: onnxruntime-web carries a copy of
 * onnxruntime-common of its own, and its tensors are welcome here.
 */
export function isTensor(value: unknown): value is Tensor {
  if (value instanceof Tensor) {
    return true;
  }
  if (typeof value !== "object" || value === null) {
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

export function badSetting(name: string, value: unknown, expected: string): Error {
  return sessionError("BAD_SETTING", { name, value, expected });
}
