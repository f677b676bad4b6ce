/** Errors of trainweb, with the same names as in the Python package (`trainweb.errors`), and their form on the wire. */

import { TrainwebError } from "./base-error.js";
import * as classes from "./error-classes.js";

export { shortened, TrainwebError, type TensorRange } from "./base-error.js";
export * from "./error-classes.js";

/** An error as it crosses the wire between Python, the worker and the page. */
export interface WireError {
  readonly name: string;
  readonly message: string;
  readonly stack?: string;
  readonly [field: string]: unknown;
}

const CLASSES = { ...classes, TrainwebError };
// Minifiers change the names of classes.
for (const [value, Class] of Object.entries(CLASSES)) {
  Object.defineProperty(Class.prototype, "name", { value, writable: true, configurable: true });
}

const KNOWN: ReadonlyMap<string, new (message?: string) => Error> = new Map(
  Object.entries({
    ...CLASSES,
    // Errors of Python's own argument checks, and their classes in a page.
    TypeError,
    RangeError,
    ValueError: RangeError,
    KeyError: RangeError,
    UnknownNameError: RangeError,
    InvalidValueError: RangeError,
    IndexError: RangeError,
  }),
);

const RESERVED = new Set(["name", "message", "stack", "cause"]);

/** Throw an error of a class if something is wrong. */
export function throwIf(isWrong: boolean, Kind: new (message: string) => Error, message: string): void {
  if (isWrong) {
    throw new Kind(message);
  }
}

/** Turn an error into plain data that `postMessage` can carry, own fields included. */
export function toWire(error: unknown): WireError {
  if (!(error instanceof Error)) {
    return { name: "EngineError", message: String(error) };
  }
  const fields: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(error)) {
    if (!RESERVED.has(key) && isPlain(value)) {
      fields[key] = value;
    }
  }
  const wire = { ...fields, name: error.name, message: error.message };
  return error.stack === undefined ? wire : { ...wire, stack: error.stack };
}

/** Rebuild an error with its class and fields; an unknown class becomes a TrainwebError. */
export function fromWire(wire: WireError): Error {
  const Class = KNOWN.get(wire.name) ?? TrainwebError;
  const error = new Class(wire.message);
  for (const [key, value] of Object.entries(wire)) {
    if (!RESERVED.has(key)) {
      Object.defineProperty(error, key, { value, enumerable: true, configurable: true });
    }
  }
  if (wire.stack !== undefined) {
    error.cause = wire.stack;
  }
  return error;
}

/** True if `value` survives JSON, as fields of our errors must. */
function isPlain(value: unknown): boolean {
  if (value === null || ["string", "number", "boolean"].includes(typeof value)) {
    return true;
  }
  const isObject = typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype;
  return (Array.isArray(value) && value.every(isPlain)) || (isObject && Object.values(value as object).every(isPlain));
}
