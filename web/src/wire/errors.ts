/**
 * All errors of trainweb, with the same names as in the Python package (`trainweb.errors`).
 * A message says what is wrong, where (node, tensor, byte) and what was expected.
 */

import { DOCUMENTATION } from "./session-calls.js";

/** An error as it crosses the wire between Python, the worker and the page. */
export interface WireError {
  readonly name: string;
  readonly message: string;
  readonly stack?: string;
  readonly [field: string]: unknown;
}

/** Characters that a message keeps of its beginning and its end; as in trainweb/errors.py. */
const LONGEST = { head: 4000, tail: 500 };

/** Shorten a text that is longer than its limits: leave out its middle. Characters are code points, as in Python. */
export function shortened(text: string, { head, tail } = LONGEST): string {
  // Code units are as many or more.
  if (text.length <= head + tail) {
    return text;
  }
  let count = 0;
  for (const _ of text) {
    count++;
  }
  const leftOut = `... (${count} characters)`;
  if (count <= head + tail + leftOut.length) {
    return text;
  }
  const first = [...text.slice(0, 2 * head)].slice(0, head).join("");
  return first + leftOut + (tail > 0 ? ` ...${[...text.slice(-2 * tail)].slice(-tail).join("")}` : "");
}

/** Base class of all errors raised by trainweb. */
export class TrainwebError extends Error {
  /** @param message - a text; the middle of a very long one is left out */
  constructor(message = "", options?: ErrorOptions) {
    super(shortened(message), options);
  }

  /** The page of the documentation that explains this error and says what to do. */
  get documentation(): string {
    return `${DOCUMENTATION}#${this.name.toLowerCase()}`;
  }
}

/** A model is malformed: not ONNX, truncated, inconsistent shapes, a name that nothing defines. */
export class ModelError extends TrainwebError {}

/** The model is valid but uses something trainweb does not do. */
export class UnsupportedError extends TrainwebError {
  /** Operator type, e.g. "Einsum". */
  readonly op?: string | null;
  /** Operator domain; "" is ai.onnx. */
  readonly domain?: string | null;
  /** Version of the operator set that the model asks for. */
  readonly opset?: number | null;
  /** Name of the node that uses it. */
  readonly node?: string | null;
}

/** An operator on the path from the loss to a parameter has no gradient. */
export class GradientError extends TrainwebError {
  /** Operator type, e.g. "Einsum". */
  readonly op?: string | null;
  /** Name of the node. */
  readonly node?: string | null;
  /** Node names from the loss back to that node. */
  readonly path?: readonly string[];
}

/** A checkpoint is corrupt, of an unknown version, nominal, or does not fit the model. */
export class CheckpointError extends TrainwebError {}

/** A feed is missing, unknown, or has the wrong type, dims or values. */
export class FeedError extends TrainwebError {
  /** A label or index that is out of range. */
  readonly value?: number;
  /** Its position among the values of the batch, from 0. */
  readonly position?: number;
  /** The input that it was fed as, where `fit` finds it. */
  readonly input?: string;
  /** Its row in the data, or in the order in which a stream came, from 0. */
  readonly row?: number;
  /** The epoch of `fit`, from 1. */
  readonly epoch?: number;
  /** The batch of that epoch, from 1. */
  readonly batch?: number;
}

/** A parameter buffer has the wrong number of elements or bytes. */
export class BufferSizeError extends TrainwebError {}

/** The session lacks what a call needs (eval model, optimizer model, scheduler), or its state is in use. */
export class SessionError extends TrainwebError {}

/** The session was released. */
export class ReleasedError extends TrainwebError {}

/** The model or a request is larger than the configured limits. */
export class LimitError extends TrainwebError {}

/** A checkpoint could not be stored: there is no room, no storage, or another tab or process has it. */
export class StorageError extends TrainwebError {
  /** Bytes of the checkpoint. */
  readonly needed?: number | null;
  /** Bytes that the origin keeps, if the browser reports them. */
  readonly usage?: number | null;
  /** Bytes that it may keep, if the browser reports them. */
  readonly quota?: number | null;
}

/** The kernel engine or its worker failed: out of memory, a trap, a file that is missing. */
export class EngineError extends TrainwebError {}

/** The range of values in a tensor. */
export interface TensorRange {
  /** The tensor's. */
  readonly name: string;
  /** Its dims. */
  readonly shape: readonly number[];
  /** The least of its finite values; null: it has none. */
  readonly min: number | null;
  /** The greatest of its finite values; null: it has none. */
  readonly max: number | null;
  /** Number of NaN values. */
  readonly nan: number;
  /** Number of infinite values. */
  readonly infinite: number;
}

/** A step made a NaN or an infinity, in a session with `debug: { checkNumerics: true }`, which is as before it. */
export class NumericsError extends TrainwebError {
  /** The node that made the first, as other errors name it. */
  readonly node?: string;
  /** Its operator, e.g. "Log". */
  readonly op?: string;
  /** The result of it that has the NaN or infinity. */
  readonly tensor?: string;
  /** Optimizer steps that were completed before. */
  readonly step?: number;
  /** The range of values in that tensor. */
  readonly made?: TensorRange;
  /** The same of the node's inputs that are float tensors. */
  readonly inputs?: readonly TensorRange[];
  /** The epoch of `fit`, from 1. */
  readonly epoch?: number | null;
  /** The batch of that epoch, from 1. */
  readonly batch?: number | null;
}

const OWN = {
  TrainwebError,
  ModelError,
  UnsupportedError,
  GradientError,
  CheckpointError,
  FeedError,
  BufferSizeError,
  SessionError,
  ReleasedError,
  LimitError,
  StorageError,
  EngineError,
  NumericsError,
};
// Minifiers change the names of classes.
for (const [value, Class] of Object.entries(OWN)) {
  Object.defineProperty(Class.prototype, "name", { value, writable: true, configurable: true });
}

const CLASSES: ReadonlyMap<string, new (message?: string) => Error> = new Map(
  Object.entries({
    ...OWN,
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
  const Class = CLASSES.get(wire.name) ?? TrainwebError;
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
