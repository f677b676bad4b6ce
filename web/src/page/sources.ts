/** Models and checkpoints: a URL, bytes or a Blob, as the worker takes them. */

import { CheckpointError, ModelError } from "../wire/errors.js";
import { findFault, type FileName, type Integrity } from "./integrity.js";
import { otherPlatform } from "../wire/platform.js";
import type { ExternalFile } from "../wire/protocol.js";
import type { LoadTracker } from "./progress.js";
import { describe } from "../data/given.js";
import { copyBytes } from "./tensors.js";

/** Where a model or checkpoint comes from. A string is a URL, relative to the page; in Node it may be a path. */
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

/** Bytes from which on a file stays with the browser, as a Blob: the worker reads of it what it needs. */
const LARGE_FILE = 2 ** 25;

/**
 * The bytes of a source, in a buffer of their own, or a Blob if it is large and not in memory yet. Bytes are copied
 * at the time of the call.
 *
 * @param what - how errors call it, e.g. "trainModel"
 * @throws ModelError, or CheckpointError for a checkpoint, when it cannot be fetched or has another hash
 */
export async function loadSource(
  what: FileName,
  source: Source,
  integrity: Integrity,
  progress: LoadTracker,
): Promise<Uint8Array<ArrayBuffer> | Blob> {
  const file = await readSource(what, source, progress);
  const hashes = integrity.of(what);
  if (hashes !== null) {
    const bytes = file instanceof Blob ? new Uint8Array(await file.arrayBuffer()) : file;
    const fault = await findFault(bytes, hashes);
    if (fault !== null) {
      throw loadError(what, fault);
    }
  }
  return file;
}

function readSource(
  what: string,
  source: Source,
  progress: LoadTracker,
): Promise<Uint8Array<ArrayBuffer> | Blob> {
  if (source instanceof Uint8Array) {
    return Promise.resolve(copyBytes(source));
  }
  if (typeof source === "string" || source instanceof URL) {
    return fetchFile(what, source, progress);
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

/** The files of external data, as the worker takes them. */
export function loadExternalData(
  files: readonly { readonly path: string; readonly data: Source }[],
  progress: LoadTracker,
): Promise<(ExternalFile & { readonly data: Uint8Array<ArrayBuffer> | Blob })[]> {
  return Promise.all(
    files.map(async ({ path, data }) => ({
      path,
      data: await readSource(`externalData of '${path}'`, data, progress),
    })),
  );
}

/** What goes over to the worker instead of being copied. */
export function buffersOf(...files: readonly (Uint8Array<ArrayBuffer> | Blob | null)[]): ArrayBuffer[] {
  return files.flatMap((file) => (file instanceof Uint8Array ? [file.buffer] : []));
}

async function fetchFile(
  what: string,
  url: string | URL,
  progress: LoadTracker,
): Promise<Uint8Array<ArrayBuffer> | Blob> {
  let response: Response;
  try {
    response = await (otherPlatform()?.fetch(url) ?? fetch(url));
  } catch (error) {
    throw loadError(what, `${url} could not be fetched: ${messageOf(error)}`, error);
  }
  if (!response.ok) {
    const status = `${response.status} ${response.statusText}`.trim();
    throw loadError(what, `${response.url || url} answered with HTTP status ${status}`);
  }
  try {
    const counted = progress.counted(response.url || String(url), response);
    if (keepsBlobs() && Number(response.headers.get("Content-Length")) >= LARGE_FILE) {
      return await readable(await counted.blob());
    }
    return new Uint8Array(await counted.arrayBuffer());
  } catch (error) {
    throw loadError(what, `${response.url || url} broke off: ${messageOf(error)}`, error);
  }
}

/** Whether workers can read Blobs while they compute: only those of browsers can. */
function keepsBlobs(): boolean {
  return otherPlatform() === null;
}

/** A Blob, once it is certain that it can be read: its file may be gone, or the browser had no room for it. */
async function readable(blob: Blob): Promise<Blob> {
  await blob.slice(-1).arrayBuffer();
  return blob;
}

async function readBlob(what: string, blob: Blob): Promise<Uint8Array<ArrayBuffer> | Blob> {
  try {
    if (keepsBlobs() && blob.size >= LARGE_FILE) {
      return await readable(blob);
    }
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
