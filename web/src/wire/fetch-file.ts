/**
 * Fetch the package's own files. A file that does not arrive, stalls or has other contents raises an error that says
 * so.
 */

import { EngineError } from "./errors.js";
import { concatenate } from "./pieces.js";
import { otherPlatform } from "./platform.js";
import { tellProgress } from "./progress.js";

/** The expected kind of a file. */
export interface FileKind {
  readonly what: string;
  /** Bytes that it may start with; none: it is a script, known by its type. */
  readonly starts: readonly (readonly number[])[];
}

const GZIP = [0x1f, 0x8b];
const WASM_TYPE = "application/wasm";
const SCRIPT_TYPE = /javascript|ecmascript/;

export const WEBASSEMBLY: FileKind = { what: "WebAssembly", starts: [[0, 0x61, 0x73, 0x6d], GZIP] };
export const SNAPSHOT: FileKind = { what: "a memory snapshot", starts: [[0], GZIP] };
export const ARCHIVE: FileKind = { what: "a zip archive", starts: [[0x50, 0x4b, 3, 4]] };
export const SCRIPT: FileKind = { what: "a JavaScript module", starts: [] };

/** The record that ends a zip archive, and how far from the end it may start: its comment has 16 bits of length. */
const ARCHIVE_END = [0x50, 0x4b, 5, 6];
const ARCHIVE_END_REACH = 22 + 0xffff;

const SHOWN_BYTES = 16;

/** Bytes between two reports of a download's progress. */
const TOLD_BYTES = 2 ** 17;

/** Part of the stall limit after which a script that has not started is fetched and checked. */
const PATIENCE = 0.25;

/** Something is wrong with a file. */
export class FileError extends EngineError {
  constructor(
    readonly url: string,
    message: string,
  ) {
    super(message);
  }
}

/** A file as it comes. */
export interface OpenFile {
  /** The server's description of the file, for errors. */
  readonly description: string;
  /** Fails with a FileError where it breaks off or stalls. */
  readonly stream: ReadableStream<Uint8Array<ArrayBuffer>>;
  /** The browser's own reply once more, where it was asked for and is WebAssembly by its type; to be used or cancelled. */
  readonly reply: Response | null;
}

/**
 * Ask for a file, up to its first bytes.
 *
 * @param stallMs - limit of a silence of the server, in milliseconds
 * @param keepsReply - true: return the reply, too. Browsers keep the code that they compile from a reply for the next
 *   visit
 * @throws FileError when it cannot be fetched, or is no such file
 */
export async function openFile(
  url: string,
  kind: FileKind,
  stallMs: number,
  init: RequestInit = {},
  keepsReply = false,
): Promise<OpenFile> {
  const abort = new AbortController();
  let received = 0;
  let reported = 0;
  let isAnswered = false;
  const step = async <T>(promise: Promise<T>): Promise<T> => {
    try {
      return await inTime(promise, stallMs);
    } catch (error) {
      abort.abort();
      throw error instanceof StallError
        ? new FileError(url, `${url} stalls: nothing came for ${stallMs / 1e3} s after ${received} bytes.`)
        : new FileError(url, isAnswered
          ? `${url} broke off after ${received} bytes: ${messageOf(error)}`
          : `${url} could not be fetched: ${messageOf(error)}`);
    }
  };
  const settings = { ...init, signal: abort.signal };
  tellProgress(url, 0, false);
  const response = await step(otherPlatform()?.fetch(url, settings) ?? fetch(url, settings));
  isAnswered = true;
  if (!response.ok) {
    abort.abort();
    throw new FileError(url, `${url} answered with HTTP status ${response.status}; expected ${kind.what}.`);
  }
  const reply = keepsReply && response.headers.get("content-type") === WASM_TYPE ? response.clone() : null;
  const reader = response.body?.getReader();
  const next = async (): Promise<Uint8Array<ArrayBuffer> | null> => {
    const result = reader === undefined ? { done: true, value: undefined } : await step(reader.read());
    received += result.value?.length ?? 0;
    if (result.done || received - reported >= TOLD_BYTES) {
      reported = received;
      tellProgress(url, received, result.done);
    }
    return result.value ?? null;
  };
  const wanted = Math.max(1, ...kind.starts.map(({ length }) => length));
  const head: Uint8Array<ArrayBuffer>[] = [];
  for (let chunk = await next(); chunk !== null; chunk = await next()) {
    head.push(chunk);
    if (received >= wanted) {
      break;
    }
  }
  const start = concatenate(head);
  const description = `HTTP status ${response.status}, type ${response.headers.get("content-type") ?? "none"}`;
  if (!isKind(kind, start, response)) {
    abort.abort();
    const fault = start.length === 0 ? "it is empty" : `it starts with ${shown(start)}`;
    throw new FileError(url, `${url} is not what it should be: expected ${kind.what}, but ${fault} (${description}).`);
  }
  const stream = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start: (controller) => controller.enqueue(start),
    async pull(controller) {
      const chunk = await next();
      if (chunk === null) {
        controller.close();
      } else {
        controller.enqueue(chunk);
      }
    },
    cancel: () => abort.abort(),
  });
  return { description, stream, reply };
}

/** The whole of a file. @throws FileError as `openFile`, or where it breaks off, or is an archive without an end */
export async function fetchFile(url: string, kind: FileKind, stallMs: number, init?: RequestInit): Promise<Uint8Array<ArrayBuffer>> {
  const { description, stream } = await openFile(url, kind, stallMs, init);
  const bytes = await readWhole(stream);
  if (kind === ARCHIVE && !hasArchiveEnd(bytes)) {
    throw new FileError(url, `${url} is cut off: its ${bytes.length} bytes are no whole zip archive (${description}).`);
  }
  return bytes;
}

/**
 * The text that identifies a script of ours and shows that it is complete: the first part of a script may be valid,
 * too.
 */
export interface ScriptEnd {
  /** Name of the script, for errors. */
  readonly what: string;
  /** Text that stands only at its end. */
  readonly text: string;
  /** Bytes that it has as it is built. */
  readonly nbytes: number;
}

/**
 * Check a script that does not start; settles without an error if its server sends a script.
 *
 * @param end - the text that it must contain
 * @throws FileError
 */
export async function checkScript(url: string, stallMs: number, end?: ScriptEnd): Promise<void> {
  // Past the cache: a script that is stuck there would hold this up, too.
  const bytes = await fetchFile(url, SCRIPT, stallMs, { cache: "no-store" });
  if (end !== undefined && !new TextDecoder().decode(bytes).includes(end.text)) {
    const fault = `${bytes.length} bytes without its end: another script, or a part of it`;
    throw new FileError(url, `${url} is not what it should be: expected ${end.what} of ${end.nbytes} bytes, but found ${fault}.`);
  }
}

/**
 * Import a module, which the browser itself sets no limit.
 *
 * @param name - of a function that it exports
 * @throws FileError when it does not load, stalls, or is another module
 */
export async function importModule<T>(url: string, name: keyof T & string, stallMs: number): Promise<T> {
  tellProgress(url, 0, false);
  const module = await loadModule<T>(url, stallMs);
  tellProgress(url, 0, true);
  if (typeof module[name] !== "function") {
    // An empty file is a module, too.
    await checkScript(url, stallMs);
    throw new FileError(url, `${url} is another module than it should be: it does not export ${name}.`);
  }
  return module;
}

async function loadModule<T>(url: string, stallMs: number): Promise<T> {
  const module = import(url) as Promise<T>;
  const patience = PATIENCE * stallMs;
  try {
    return await inTime(module, patience);
  } catch (error) {
    await checkScript(url, stallMs - patience);
    if (!(error instanceof StallError)) {
      throw new FileError(url, `${url} does not load as ${SCRIPT.what}: ${messageOf(error)}`);
    }
  }
  try {
    return await inTime(module, stallMs);
  } catch (error) {
    const reason = error instanceof StallError ? `it did not run within ${stallMs / 1e3} s` : messageOf(error);
    throw new FileError(url, `${url} does not load as ${SCRIPT.what}: ${reason}`);
  }
}

/** Not by way of a Response, which replaces the error of a broken stream by another one. */
async function readWhole(stream: ReadableStream<Uint8Array<ArrayBuffer>>): Promise<Uint8Array<ArrayBuffer>> {
  const reader = stream.getReader();
  const chunks: Uint8Array[] = [];
  for (let result = await reader.read(); !result.done; result = await reader.read()) {
    chunks.push(result.value);
  }
  return concatenate(chunks);
}

/** Nothing came in time. */
export class StallError extends Error {}

/** @throws StallError when a promise does not settle in time */
export function inTime<T>(promise: Promise<T>, limitMs: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new StallError(`nothing within ${limitMs} ms`)), limitMs);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

function isKind({ starts }: FileKind, start: Uint8Array, response: Response): boolean {
  if (starts.length === 0) {
    return start.length > 0 && SCRIPT_TYPE.test(response.headers.get("content-type") ?? "");
  }
  return starts.some((bytes) => bytes.every((byte, k) => start[k] === byte));
}

function hasArchiveEnd(bytes: Uint8Array): boolean {
  for (let at = bytes.length - 22; at >= Math.max(0, bytes.length - ARCHIVE_END_REACH); at--) {
    if (ARCHIVE_END.every((byte, k) => bytes[at + k] === byte)) {
      return true;
    }
  }
  return false;
}

/** The first bytes, as text where they are some. */
function shown(bytes: Uint8Array): string {
  const head = Array.from(bytes.subarray(0, SHOWN_BYTES));
  if (head.every((byte) => byte === 10 || byte === 13 || (byte >= 32 && byte < 127))) {
    return JSON.stringify(String.fromCharCode(...head));
  }
  return `the bytes ${head.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}`;
}

/** The message of an error; some of Emscripten's are no Error. */
export function messageOf(error: unknown): string {
  const { message } = (error ?? {}) as { readonly message?: unknown };
  return typeof message === "string" && message !== "" ? message : String(error);
}
