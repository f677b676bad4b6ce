/** Models and checkpoints: a URL, bytes or a Blob, as the worker takes them. */

import { isAddress, isBuffer, isBytes, mustBe } from "../data/checks.js";
import { messageOf } from "../wire/fetch-file.js";
import type { WorkerSettings } from "../wire/protocol.js";
import { download, keepsBlobs, LARGE_FILE, loadError, readable, whole, type Downloaded, type DownloadOptions, type Keeping } from "./download.js";
import { findFault, hashesOf, type FileName, type Integrity } from "./integrity.js";
import type { LoadTracker } from "./progress.js";
import { copyBytes } from "./tensors.js";

/** The source of a model or checkpoint. A string is a URL, relative to the page; in Node it may be a path. */
export type Source = string | URL | Uint8Array | ArrayBuffer | Blob;

/** Options that loading depends on. */
export interface LoadOptions {
  readonly settings: WorkerSettings;
  readonly progress: LoadTracker;
  readonly integrity: Integrity;
  /** Limits of fetched files; Python has other limits for the files that it reads. */
  readonly limits: { readonly fileBytes: number; readonly arenaBytes: number };
  readonly signal: AbortSignal | undefined;
  readonly cache: Keeping;
}

/** True for a value that `loadSource` can read. */
export function isSource(value: unknown): value is Source {
  const isBlob = typeof Blob !== "undefined" && value instanceof Blob;
  return isBlob || isAddress(value) || isBytes(value) || isBuffer(value);
}

/** @throws TypeError for a value that `loadSource` cannot read */
export function checkSource(name: string, value: unknown): asserts value is Source {
  mustBe(isSource(value), name, "a URL, Uint8Array, ArrayBuffer or Blob", value);
}

/**
 * Load the bytes of a source into new buffers. A large Blob stays as it is. Bytes are copied at the time of the call.
 *
 * @param what - name of the file in errors, e.g. "trainModel"
 * @throws as `download`; ModelError or CheckpointError when it has another hash
 */
export async function loadSource(what: FileName, source: Source, options: LoadOptions): Promise<Downloaded> {
  const file = await readSource(what, source, downloadOptions(options, "fileBytes"));
  const hashes = hashesOf(options.integrity, what);
  if (hashes !== null) {
    const one = await whole(file);
    const bytes = one instanceof Blob ? new Uint8Array(await one.arrayBuffer()) : one;
    const fault = await findFault(bytes, hashes);
    if (fault !== null) {
      throw loadError(what, fault);
    }
  }
  return file;
}

function downloadOptions(
  { settings, progress, limits, signal, cache }: Omit<LoadOptions, "integrity">,
  limit: keyof LoadOptions["limits"],
): DownloadOptions {
  return { stallMs: settings.stallMs, progress, signal, cache, limit: { name: `limits.${limit}`, nbytes: limits[limit] } };
}

function readSource(what: string, source: Source, options: DownloadOptions): Promise<Downloaded> {
  if (isBytes(source)) {
    return Promise.resolve(copyBytes(source));
  }
  if (isAddress(source)) {
    return download(what, String(source), options);
  }
  if (source instanceof Blob) {
    return readBlob(what, source);
  }
  checkSource(what, source);
  return Promise.resolve(copyBytes(new Uint8Array(source)));
}

/** A file of external data or of weights. */
export interface ExternalSource {
  /** Its name in errors. */
  readonly what: string;
  /** Its path in the model. */
  readonly path: string;
  readonly data: Source;
}

/** The files of external data, as the worker takes them. */
export function loadExternalData(
  files: readonly ExternalSource[],
  options: LoadOptions,
): Promise<{ readonly path: string; readonly data: Downloaded }[]> {
  return Promise.all(
    files.map(async ({ what, path, data }) => ({
      path,
      data: await readSource(what, data, downloadOptions(options, "arenaBytes")),
    })),
  );
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
