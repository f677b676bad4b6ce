/** Models and checkpoints: a URL, bytes or a Blob, read into bytes that can be transferred. */

import { CheckpointError, ModelError } from "../wire/errors.js";
import { findFault, type FileName, type Integrity } from "./integrity.js";
import { copyBytes, describe } from "./tensors.js";

/** Where a model or checkpoint comes from. A string is a URL, relative to the page. */
export type Source = string | URL | Uint8Array | ArrayBuffer | Blob;

/** Whether a value is something `loadSource` can read. */
export function isSource(value: unknown): value is Source {
  return (
    typeof value === "string" ||
    value instanceof URL ||
    value instanceof Uint8Array ||
    value instanceof ArrayBuffer ||
    (typeof SharedArrayBuffer !== "undefined" && value instanceof SharedArrayBuffer) ||
    (typeof Blob !== "undefined" && value instanceof Blob)
  );
}

/**
 * The bytes of a source, in a buffer of their own. Bytes are copied at the time of the call.
 *
 * @param what - how errors call it, e.g. "trainModel"
 * @throws ModelError, or CheckpointError for a checkpoint, when it cannot be fetched or has another hash
 */
export async function loadSource(
  what: FileName,
  source: Source,
  integrity: Integrity,
): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = await readSource(what, source);
  const fault = await findFault(bytes, integrity.of(what));
  if (fault !== null) {
    throw loadError(what, fault);
  }
  return bytes;
}

function readSource(what: string, source: Source): Promise<Uint8Array<ArrayBuffer>> {
  if (source instanceof Uint8Array) {
    return Promise.resolve(copyBytes(source));
  }
  if (typeof source === "string" || source instanceof URL) {
    return fetchBytes(what, source);
  }
  if (source instanceof Blob) {
    return readBlob(what, source);
  }
  if (isSource(source)) {
    return Promise.resolve(copyBytes(new Uint8Array(source)));
  }
  throw new TypeError(
    `'${what}' must be a URL, Uint8Array, ArrayBuffer or Blob, got ${describe(source)}.`,
  );
}

async function fetchBytes(what: string, url: string | URL): Promise<Uint8Array<ArrayBuffer>> {
  let response: Response;
  try {
    response = await fetch(url);
  } catch (error) {
    throw loadError(what, `${url} could not be fetched: ${messageOf(error)}`, error);
  }
  if (!response.ok) {
    const status = `${response.status} ${response.statusText}`.trim();
    throw loadError(what, `${response.url || url} answered with HTTP status ${status}`);
  }
  try {
    return new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    throw loadError(what, `${response.url || url} broke off: ${messageOf(error)}`, error);
  }
}

async function readBlob(what: string, blob: Blob): Promise<Uint8Array<ArrayBuffer>> {
  try {
    return new Uint8Array(await blob.arrayBuffer());
  } catch (error) {
    throw loadError(what, `the Blob could not be read: ${messageOf(error)}`, error);
  }
}

function loadError(what: string, message: string, cause?: unknown): Error {
  const Class = what === "checkpointState" ? CheckpointError : ModelError;
  const error = new Class(`${what}: ${message}.`);
  error.cause = cause;
  return error;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
