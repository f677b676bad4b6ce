/** Fetch the user's files. Limits keep a server that sends nothing, or never ends, from holding a page up. */

import { CheckpointError, FeedError, LimitError, ModelError } from "../wire/errors.js";
import { messageOf } from "../wire/fetch-file.js";
import { otherPlatform } from "../wire/platform.js";
import { byteReader, concatenate, free, isPieces, PIECE_BYTES, type Pieces } from "../wire/pieces.js";
import { findKept, keepFile } from "./file-cache.js";
import type { LoadTracker } from "./progress.js";

/** Bytes from which on a file is not in one buffer. */
export const LARGE_FILE = 2 ** 25;

/** A file that came; a large one in pieces, or as a Blob that was kept. */
export type Downloaded = Uint8Array<ArrayBuffer> | Blob | Pieces;

/** How errors call an image. */
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

/** True if a large file is kept for the next visit; "unchecked": the worker checks what was kept. */
export type Keeping = boolean | "unchecked";

/** True if workers can read Blobs while they compute: only in browsers. */
export function keepsBlobs(): boolean {
  return otherPlatform() === null;
}

/**
 * Fetch a file.
 *
 * @param what - how errors call it, e.g. "trainModel"
 * @throws ModelError (of a checkpoint CheckpointError, of an image FeedError) when it cannot be fetched, breaks off or
 *   stalls; LimitError when it is too large; the reason of `signal`
 */
export async function download(
  what: string,
  url: string | URL,
  options: DownloadOptions,
): Promise<Downloaded> {
  const { signal } = options;
  signal?.throwIfAborted();
  const end = new AbortController();
  const leave = (): void => end.abort(signal?.reason);
  signal?.addEventListener("abort", leave);
  const run = new Download(what, url, options, end);
  try {
    return await run.result;
  } catch (error) {
    throw end.signal.aborted ? end.signal.reason : run.error(error);
  } finally {
    run.stop();
    // Of an answer that is not wanted, nothing more shall come.
    end.abort();
    signal?.removeEventListener("abort", leave);
  }
}

/** One file on its way. All that ends it early aborts `end`, whose reason is the error. */
class Download {
  readonly result: Promise<Downloaded>;
  readonly #what: string;
  readonly #options: DownloadOptions;
  readonly #end: AbortController;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #url: string;
  #received = 0;
  #isAnswered = false;

  constructor(what: string, url: string | URL, options: DownloadOptions, end: AbortController) {
    this.#what = what;
    this.#url = String(url);
    this.#options = options;
    this.#end = end;
    this.#wait();
    // Files of Node know no signal.
    const ended = new Promise<never>((_, reject) => {
      end.signal.addEventListener("abort", () => reject(end.signal.reason as Error));
    });
    this.result = Promise.race([this.#read(url), ended]);
  }

  /** An error that a fetch made. */
  error(cause: unknown): Error {
    if ([ModelError, CheckpointError, FeedError].some((Class) => cause instanceof Class)) {
      return cause as Error;
    }
    const fault = this.#isAnswered ? "broke off" : "could not be fetched";
    return loadError(this.#what, `${this.#url} ${fault}: ${messageOf(cause)}`, cause);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  async #read(url: string | URL): Promise<Downloaded> {
    const { progress } = this.#options;
    // Elsewhere there is no such file system, and a file on a disk needs none.
    const cache = otherPlatform() === null && this.#options.cache;
    const settings = { signal: this.#end.signal };
    const response = await (otherPlatform()?.fetch(url, settings) ?? fetch(url, settings));
    this.#isAnswered = true;
    this.#url = response.url || this.#url;
    if (!response.ok) {
      const status = `${response.status} ${response.statusText}`.trim();
      throw loadError(this.#what, `${this.#url} answered with HTTP status ${status}`);
    }
    const length = Number(response.headers.get("Content-Length"));
    this.#check(length);
    progress.model(this.#url, 0, length);
    const kept = cache ? await this.#keeping(findKept(this.#url, response, cache !== "unchecked")) : null;
    if (kept !== null) {
      this.stop();
      this.#check(kept.size);
      progress.model(this.#url, kept.size, kept.size);
      return kept;
    }
    const received = new Received();
    for await (const nbytes of response.body === null ? [] : received.from(response.body)) {
      this.#wait();
      this.#received += nbytes;
      this.#check(this.#received);
      progress.model(this.#url, this.#received, Math.max(length, this.#received));
    }
    this.stop();
    progress.model(this.#url, this.#received, this.#received);
    const file = received.file();
    if (cache && isPieces(file)) {
      await keepFile(this.#url, response, file);
    }
    return file;
  }

  /** Let the storage work, which is no silence of the server. */
  async #keeping<T>(work: Promise<T>): Promise<T> {
    this.stop();
    const result = await work;
    this.#wait();
    return result;
  }

  /** Begin to wait for the next bytes. */
  #wait(): void {
    const { stallMs } = this.#options;
    this.stop();
    this.#timer = setTimeout(() => {
      const fault = `nothing came for ${stallMs / 1e3} s after ${this.#received} bytes (env.timeouts.stall)`;
      this.#end.abort(loadError(this.#what, `${this.#url} stalls: ${fault}`));
    }, stallMs);
  }

  #check(nbytes: number): void {
    const { name, nbytes: most } = this.#options.limit;
    if (nbytes > most) {
      this.#end.abort(new LimitError(`${this.#what}: ${this.#url} has more than ${most} bytes, the limit (${name}).`));
      this.#end.signal.throwIfAborted();
    }
  }
}

/** A file as it comes. It is read into one buffer: chunks of their own would wait for the garbage collector. */
class Received {
  readonly #pieces: Uint8Array<ArrayBuffer>[] = [];
  #room = new Uint8Array(PIECE_BYTES);
  #filled = 0;

  /** Read it, and yield the number of bytes whenever some came. */
  async *from(body: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<number> {
    const reader = byteReader(() => body);
    if (reader === null) {
      yield* this.#fromChunks(body.getReader());
      return;
    }
    for (;;) {
      const { value, done } = await reader.read(this.#room.subarray(this.#filled));
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

  async *#fromChunks(reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>): AsyncGenerator<number> {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
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
      this.#pieces.push(this.#room);
      this.#room = new Uint8Array(PIECE_BYTES);
      this.#filled = 0;
    }
  }

  /** All of it. */
  file(): Uint8Array<ArrayBuffer> | Pieces {
    const pieces = [...this.#pieces, this.#room.slice(0, this.#filled)];
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

/** An error of a file. */
export function loadError(what: string, message: string, cause?: unknown): Error {
  const Class = what === IMAGE ? FeedError : what === "checkpointState" ? CheckpointError : ModelError;
  const error = new Class(`${what}: ${message}.`);
  error.cause = cause;
  return error;
}
