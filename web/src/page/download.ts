/** Fetch the user's files. Limits keep a server that sends nothing, or never ends, from holding a page up. */

import { CheckpointError, FeedError, LimitError, ModelError, throwIf } from "../wire/errors.js";
import { inTime, messageOf, StallError } from "../wire/fetch-file.js";
import { otherPlatform } from "../wire/platform.js";
import { byteReader, concatenate, free, isPieces, PIECE_BYTES, WaitingPieces, type Pieces } from "../wire/pieces.js";
import { findKept, keepFile } from "./file-cache.js";
import type { LoadTracker } from "./progress.js";

/** Bytes from which on a file is not in one buffer. */
export const LARGE_FILE = 2 ** 25;

/** A file that came; a large one in pieces, or as a Blob that was kept. */
export type Downloaded = Uint8Array<ArrayBuffer> | Blob | Pieces;

/** Name of an image in errors. */
export const IMAGE = "image";

/** The surroundings of a download: its progress, limits and signal. */
export interface DownloadOptions {
  readonly progress: LoadTracker;
  /** Limit of a silence, in milliseconds. */
  readonly stallMs: number;
  /** Bytes that may come, and the option that says so. */
  readonly limit: { readonly name: string; readonly nbytes: number };
  readonly signal: AbortSignal | undefined;
  readonly cache: Keeping;
}

/** True if a large file is kept for the next visit; "unchecked": the worker checks the kept file. */
export type Keeping = boolean | "unchecked";

/** True if workers can read Blobs while they compute: only in browsers. In WebKit not in a frame without an origin. */
export function keepsBlobs(): boolean {
  return otherPlatform() === null && globalThis.origin !== "null";
}

/**
 * Fetch a file.
 *
 * @param what - how errors call it, e.g. "trainModel"
 * @throws ModelError (of a checkpoint CheckpointError, of an image FeedError) when it cannot be fetched, breaks off or
 *   stalls; LimitError when it is too large; the reason of `signal`
 */
export async function download(what: string, source: string | URL, options: DownloadOptions): Promise<Downloaded> {
  const { signal, stallMs, progress, limit } = options;
  signal?.throwIfAborted();
  // Elsewhere there is no such file system, and a file on a disk needs none.
  const cache = otherPlatform() === null && options.cache;
  const end = new AbortController();
  let [url, received, isAnswered] = [String(source), 0, false];
  let leave = (): void => {};
  // Files of Node know no signal.
  const left = new Promise<never>((_, reject) => {
    leave = () => reject(signal?.reason as Error);
  });
  left.catch(() => {});
  signal?.addEventListener("abort", leave);
  const step = <T>(work: Promise<T>): Promise<T> =>
    Promise.race([inTime(work, stallMs), left]).catch((error: unknown) => {
      signal?.throwIfAborted();
      const fault = error instanceof StallError
        ? `stalls: nothing came for ${stallMs / 1e3} s after ${received} bytes (env.timeouts.stall)`
        : `${isAnswered ? "broke off" : "could not be fetched"}: ${messageOf(error)}`;
      throw loadError(what, `${url} ${fault}`, error);
    });
  const check = (nbytes: number): void => {
    throwIf(nbytes > limit.nbytes, LimitError, `${what}: ${url} has more than ${limit.nbytes} bytes, the limit (${limit.name}).`);
  };
  try {
    const settings = { signal: end.signal };
    const response = await step(otherPlatform()?.fetch(source, settings) ?? fetch(source, settings));
    [url, isAnswered] = [response.url || url, true];
    if (!response.ok) {
      throw loadError(what, `${url} answered with HTTP status ${`${response.status} ${response.statusText}`.trim()}`);
    }
    const length = Number(response.headers.get("Content-Length"));
    check(length);
    progress.model(url, 0, length);
    // The storage may work for long, which is no silence of the server.
    const cached = cache ? await Promise.race([findKept(url, response, cache !== "unchecked"), left]) : null;
    if (cached !== null) {
      check(cached.size);
      progress.model(url, cached.size, cached.size);
      return cached;
    }
    const file = new Received();
    for await (const nbytes of response.body === null ? [] : file.from(response.body, step)) {
      received += nbytes;
      check(received);
      progress.model(url, received, Math.max(length, received));
    }
    progress.model(url, received, received);
    const contents = await file.file();
    await (cache && isPieces(contents) ? Promise.race([keepFile(url, response, contents), left]) : null);
    return contents;
  } finally {
    // Of an answer that is not wanted, nothing more shall come.
    end.abort();
    signal?.removeEventListener("abort", leave);
  }
}

/** Waits for something of a server. */
type Step = <T>(work: Promise<T>) => Promise<T>;

/** A file as it comes. It is read into one buffer: chunks of their own would wait for the garbage collector. */
class Received {
  readonly #pieces = new WaitingPieces();
  #room = new Uint8Array(PIECE_BYTES);
  #filled = 0;

  /** Read it, and yield the number of bytes whenever some came. */
  async *from(body: ReadableStream<Uint8Array<ArrayBuffer>>, step: Step): AsyncGenerator<number> {
    const reader = byteReader(() => body);
    if (reader === null) {
      yield* this.#fromChunks(body.getReader(), step);
      return;
    }
    for (;;) {
      const { value, done } = await step(reader.read(this.#room.subarray(this.#filled)));
      // The buffer comes back in `value`, at the end as well.
      this.#room = new Uint8Array(value?.buffer ?? new ArrayBuffer(0));
      if (done) {
        return;
      }
      this.#filled += value.length;
      this.#leaveFull();
      yield value.length;
    }
  }

  async *#fromChunks(reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>, step: Step): AsyncGenerator<number> {
    for (let next = await step(reader.read()); !next.done; next = await step(reader.read())) {
      const { value } = next;
      for (let at = 0; at < value.length; ) {
        const part = value.subarray(at, at + PIECE_BYTES - this.#filled);
        this.#room.set(part, this.#filled);
        this.#filled += part.length;
        at += part.length;
        this.#leaveFull();
      }
      yield value.length;
    }
  }

  #leaveFull(): void {
    if (this.#filled === PIECE_BYTES) {
      this.#pieces.add(this.#room);
      this.#room = new Uint8Array(PIECE_BYTES);
      this.#filled = 0;
    }
  }

  async file(): Promise<Uint8Array<ArrayBuffer> | Pieces> {
    const pieces = [...(await this.#pieces.take()), this.#room.slice(0, this.#filled)];
    free(this.#room);
    return pieces.length > LARGE_FILE / PIECE_BYTES ? pieces : concatenate(pieces);
  }
}

/** A file in one, in memory or where the browser has room for it. */
export async function whole(file: Downloaded): Promise<Uint8Array<ArrayBuffer> | Blob> {
  if (!isPieces(file)) {
    return file;
  }
  try {
    return keepsBlobs() ? await readable(new Blob([...file])) : concatenate(file);
  } catch {
    return concatenate(file);
  }
}

/** A Blob, once it is certain that it can be read: its file may be gone, or the browser had no room for it. */
export async function readable(blob: Blob): Promise<Blob> {
  await blob.slice(-1).arrayBuffer();
  return blob;
}

export function loadError(what: string, message: string, cause?: unknown): Error {
  const Class = what === IMAGE ? FeedError : what === "checkpointState" ? CheckpointError : ModelError;
  const error = new Class(`${what}: ${message}.`);
  error.cause = cause;
  return error;
}
