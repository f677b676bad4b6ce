/** Starting Python: Pyodide, and the packages that trainweb needs to load and step. */

import { EngineError, throwIf } from "../wire/errors.js";
import {
  ARCHIVE,
  fetchFile,
  FileError,
  importModule,
  messageOf,
  openFile,
  SNAPSHOT,
  WEBASSEMBLY,
} from "../wire/fetch-file.js";
import type { PackageFiles } from "../wire/files.js";
import type { SnapshotChoice } from "../wire/protocol.js";
import { PYODIDE_ABI, PYODIDE_VERSION } from "../wire/version.js";
import { isPacked, unpack } from "../wire/packed.js";

/** The part of Pyodide's interface that is used here. */
export interface Pyodide {
  readonly version: string;
  readonly FS: FileSystem;
  /** Emscripten's module object, with its memory. */
  readonly _module: object;
  toPy(value: unknown): PyProxy;
  unpackArchive(buffer: ArrayBuffer, format: string, options?: { readonly extractDir: string }): void;
  pyimport(name: string): PyProxy;
  runPython(code: string): unknown;
}

/** A Python object seen from JavaScript. */
export interface PyProxy {
  readonly [name: string]: unknown;
  toJs(): unknown;
  destroy(): void;
}

interface FileSystem {
  unlink(path: string): void;
  writeFile(path: string, data: Uint8Array): void;
  createLazyFile(parent: string, name: string, url: string, canRead: boolean, canWrite: boolean): unknown;
}

type ReceiveInstance = (instance: WebAssembly.Instance, module: WebAssembly.Module) => void;

/** The settings from Pyodide's loader to its script that are changed here. */
interface ModuleSettings {
  instantiateWasm(imports: WebAssembly.Imports, receive: ReceiveInstance): unknown;
}

/** The members of Emscripten's module that are changed here. */
interface PyodideModuleObject {
  readonly HEAP8: Int8Array<ArrayBuffer>;
}

type CreateModule = (settings: ModuleSettings) => Promise<PyodideModuleObject>;

interface PyodideScript {
  readonly default: CreateModule;
}

interface PyodideOptions {
  readonly indexURL: string;
  readonly stdLibURL?: string;
  readonly lockFileContents?: object;
  readonly createPyodideModule?: CreateModule;
  readonly _loadSnapshot?: Promise<Uint8Array>;
}

interface PyodideModule {
  readonly version: string;
  loadPyodide(options: PyodideOptions): Promise<Pyodide>;
}

/** An index of packages with none in it: nothing else is ever loaded. */
export const EMPTY_INDEX = {
  info: { arch: "wasm32", platform: "emscripten", version: PYODIDE_VERSION, abi_version: PYODIDE_ABI },
  packages: {},
};

/** The file in which Pyodide keeps the standard library. */
const LIBRARY = { folder: "/lib", name: "python314.zip" };

/** Bytes of the memory from its start in which a snapshot has differences to the constants of the WebAssembly only. */
const CONSTANT_BYTES = 2 ** 22;

/** Room for an unpacked snapshot; pages without contents take no memory. */
const UNPACKED_BYTES = 2 ** 26;

/** Word of a snapshot that says at which byte the memory starts. */
const MEMORY_WORD = 1;

/**
 * Limit of Python's memory. Pyodide's glue reads addresses of 2 GiB and more as negative numbers, and returns wrong
 * bytes and texts from there.
 */
export const HEAP_LIMIT = 2 ** 31 - 2 ** 16;

/** Part of the limit that large allocations cannot use: Python must have room to report a failed one, and to go on. */
const RESERVE = 2 ** 27;

/** Emscripten adds up to 96 MiB to a request: growth by no more may serve a small object. */
const SMALL_GROWTH = 100 * 2 ** 20;

const PAGE_BYTES = 2 ** 16;

/** A snapshot holds one state of the generator for everybody. */
const RESEED = `
import sys
if "random" in sys.modules:
    sys.modules["random"].seed()
`;

/**
 * Start Python with the packages. No numpy and no resolver: nothing else is fetched.
 *
 * @throws EngineError when Pyodide or a package cannot be had
 */
export async function bootPython(files: PackageFiles, choice: SnapshotChoice, stallMs: number): Promise<Pyodide> {
  const loader = importModule<PyodideModule>(files.loader, "loadPyodide", stallMs);
  // Taken up below; a failure of something else must not leave it unhandled.
  loader.catch(() => {});
  try {
    if (!files.isOurPyodide && (await loader).version !== PYODIDE_VERSION) {
      return await bootOther(await loader, files, stallMs);
    }
    if (wantsSnapshot(choice)) {
      try {
        return await bootFromSnapshot(loader, files, stallMs);
      } catch (error) {
        // A file that the plain start needs, too, would fail it as well.
        if (error instanceof FileError && error.url !== files.snapshot) {
          throw error;
        }
        console.info(`trainweb: plain start of Python, the snapshot failed: ${messageOf(error)}`);
      }
    }
    return await bootPlain(loader, files, stallMs);
  } catch (error) {
    if (error instanceof FileError && !files.isOurPyodide && error.url.startsWith(new URL(".", files.loader).href)) {
      throw new FileError(error.url, `${error.message} Its folder is set by env.pyodide.indexURL.`);
    }
    if (error instanceof EngineError) {
      throw error;
    }
    throw new EngineError(
      `Pyodide does not start from ${files.loader} (env.pyodide.indexURL) with ${files.library}, or one of the two ` +
        `is damaged: ${messageOf(error)}`,
    );
  }
}

/** Another version of Pyodide takes its own files by itself. */
async function bootOther(module: PyodideModule, files: PackageFiles, stallMs: number): Promise<Pyodide> {
  const start = module.loadPyodide({ indexURL: new URL(".", files.loader).href });
  const [pyodide, packages] = await Promise.all([start, fetchFile(files.packages, ARCHIVE, stallMs)]);
  limitHeap(pyodide);
  unpackPackages(pyodide, files, packages);
  return pyodide;
}

async function bootPlain(loader: Promise<PyodideModule>, files: PackageFiles, stallMs: number): Promise<Pyodide> {
  const packages = fetchFile(files.packages, ARCHIVE, stallMs);
  const library = fetchFile(files.library, ARCHIVE, stallMs).then((bytes) => new Response(bytes));
  // A file that does not come ends the start at once, though it is needed late.
  const [pyodide, archive] = await Promise.all([load(loader, files, library, null, stallMs), packages, library]);
  unpackPackages(pyodide, files, archive);
  return pyodide;
}

/** All that training imports is in the snapshot; the library is fetched when something else is imported. */
async function bootFromSnapshot(
  loader: Promise<PyodideModule>,
  files: PackageFiles,
  stallMs: number,
): Promise<Pyodide> {
  const snapshot = fetchSnapshot(files.snapshot, stallMs);
  const pyodide = await load(loader, files, Promise.resolve(new Response()), snapshot, stallMs);
  discard(await snapshot);
  pyodide.FS.unlink(`${LIBRARY.folder}/${LIBRARY.name}`);
  if (typeof XMLHttpRequest === "undefined") {
    // In Node nothing is fetched while Python runs.
    pyodide.FS.writeFile(`${LIBRARY.folder}/${LIBRARY.name}`, await fetchFile(files.library, ARCHIVE, stallMs));
  } else {
    pyodide.FS.createLazyFile(LIBRARY.folder, LIBRARY.name, files.library, true, false);
  }
  pyodide.runPython(RESEED);
  return pyodide;
}

/** All of a stream, in a buffer that only scripts refer to: `discard` frees no other at once. */
async function readAll(stream: ReadableStream<Uint8Array>): Promise<Uint8Array<ArrayBuffer>> {
  let bytes = new Uint8Array(UNPACKED_BYTES);
  let length = 0;
  const reader = stream.getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    if (length + read.value.length > bytes.length) {
      const larger = new Uint8Array(2 * bytes.length + read.value.length);
      larger.set(bytes);
      bytes = larger;
    }
    bytes.set(read.value, length);
    length += read.value.length;
  }
  return bytes.subarray(0, length);
}

/** Free memory that Pyodide keeps a reference to for good; where the browser cannot, it stays. */
function discard({ buffer }: Uint8Array<ArrayBuffer>): void {
  (buffer as { transfer?(length: number): ArrayBuffer }).transfer?.(0);
}

/**
 * Start Pyodide on files that are asked for all at once and unpacked here. Its own loader takes them as they are
 * in a distribution, and would wait for ever for WebAssembly that breaks off.
 */
async function load(
  loader: Promise<PyodideModule>,
  files: PackageFiles,
  library: Promise<Response>,
  snapshot: Promise<Uint8Array<ArrayBuffer>> | null,
  stallMs: number,
): Promise<Pyodide> {
  const script = importModule<PyodideScript>(files.script, "default", stallMs);
  const wasm = fetchWasm(files.wasm, stallMs);
  const response = wasm.then((fetched) => fetched.response);
  // Each is taken up below, in turn; until then a failure must not count as unhandled.
  for (const promise of [script, response, library, snapshot]) {
    promise?.catch(() => {});
  }
  const indexURL = new URL(".", files.loader).href;
  const stdLibURL = files.library;
  const options: PyodideOptions = {
    indexURL,
    stdLibURL,
    lockFileContents: EMPTY_INDEX,
    async createPyodideModule(settings) {
      const { arrived } = await wasm;
      await library;
      if (snapshot !== null) {
        addConstants(await snapshot, settings);
      }
      const create = (await script).default;
      const created = create(settings).catch(async (error: unknown) => {
        await arrived; // What is wrong with the file says more.
        throw error;
      });
      const module = await Promise.race([created, arrived.then(() => new Promise<never>(() => {}))]);
      if (snapshot !== null) {
        leaveZeros(module);
      }
      return module;
    },
  };
  const replies = new Map([
    [`${indexURL}pyodide.asm.wasm`, response],
    [stdLibURL, library],
  ]);
  const { loadPyodide } = await loader;
  const pyodide = await answering(replies, () =>
    loadPyodide(snapshot === null ? options : { ...options, _loadSnapshot: snapshot }),
  );
  limitHeap(pyodide);
  return pyodide;
}

/** Let Python run out of memory, which it survives, where the glue would go wrong. */
export function limitHeap({ version, _module }: Pyodide): void {
  const memory = Object.values(_module).find((value) => value instanceof WebAssembly.Memory);
  if (memory === undefined) {
    throw new EngineError(`the memory of Pyodide ${version} cannot be limited; use version ${PYODIDE_VERSION}.`);
  }
  const grow = memory.grow.bind(memory);
  memory.grow = (pages) => {
    const nbytes = pages * PAGE_BYTES;
    const limit = nbytes > SMALL_GROWTH ? HEAP_LIMIT - RESERVE : HEAP_LIMIT;
    throwIf(memory.buffer.byteLength + nbytes > limit, RangeError, `Python's memory may have ${limit} bytes at most`);
    return grow(pages);
  };
}

/** Let requests for some URLs have these replies while something runs. */
async function answering<T>(
  replies: ReadonlyMap<string, Promise<Response>>,
  action: () => Promise<T>,
): Promise<T> {
  const { fetch } = globalThis;
  globalThis.fetch = (input, init) => {
    const url = input instanceof Request ? input.url : String(input);
    return replies.get(url) ?? fetch(input, init);
  };
  try {
    return await action();
  } finally {
    globalThis.fetch = fetch;
  }
}

/** A snapshot has only differences to the constants that instantiation puts into the memory, which may be smaller. */
function addConstants(snapshot: Uint8Array<ArrayBuffer>, settings: ModuleSettings): void {
  const [start = 0] = new Uint32Array(snapshot.buffer, 4 * MEMORY_WORD, 1);
  const words = new Uint32Array(snapshot.buffer, start, CONSTANT_BYTES / 4);
  const instantiate = settings.instantiateWasm;
  settings.instantiateWasm = (imports, receive) =>
    instantiate(imports, (instance, module) => {
      const memory = instance.exports["memory"] as WebAssembly.Memory;
      memory.grow(Math.max(0, Math.ceil((snapshot.length - start - memory.buffer.byteLength) / PAGE_BYTES)));
      const constants = new Uint32Array(memory.buffer, 0, words.length);
      for (let k = 0; k < words.length; k++) {
        words[k] = (words[k] as number) ^ (constants[k] as number);
      }
      receive(instance, module);
    });
}

/** Bytes that take memory together once one of them is written. */
const SYSTEM_PAGE_WORDS = 4096 / 4;

/**
 * Leave out pages of zeros when the snapshot is copied, which is the next call of `set`. The memory is new, and pages
 * that nobody writes take no room. They are two fifths of the snapshot, most of them the stack.
 */
function leaveZeros({ HEAP8 }: PyodideModuleObject): void {
  HEAP8.set = (source: Uint8Array<ArrayBuffer>): void => {
    delete (HEAP8 as Partial<Int8Array>).set;
    const from = new Uint32Array(source.buffer, source.byteOffset, source.length / 4);
    const to = new Uint32Array(HEAP8.buffer, 0, from.length);
    for (let start = 0; start < from.length; start += SYSTEM_PAGE_WORDS) {
      const page = from.subarray(start, start + SYSTEM_PAGE_WORDS);
      if (!isZero(page) || !isZero(to.subarray(start, start + page.length))) {
        to.set(page, start);
      }
    }
  };
}

/** True if words are all 0. */
export function isZero(words: Uint32Array): boolean {
  for (let k = 0; k < words.length; k++) {
    if (words[k] !== 0) {
      return false;
    }
  }
  return true;
}

interface FetchedWasm {
  readonly response: Response;
  /** Settles when all of it is there. */
  readonly arrived: Promise<void>;
}

async function fetchWasm(url: string, stallMs: number): Promise<FetchedWasm> {
  const { stream, reply } = await openFile(url, WEBASSEMBLY, stallMs, {}, true);
  const { body, packed } = await look(stream);
  if (reply !== null && !packed) {
    // The browser's cache has the machine code compiled from it at the next visit.
    const arrived = body.pipeTo(new WritableStream());
    arrived.catch(() => {});
    return { response: reply, arrived };
  }
  reply?.body?.cancel().catch(() => {});
  // Bytes are unpacked as they arrive, though Pyodide reads them late.
  const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>({}, {}, { highWaterMark: Infinity });
  const arrived = (packed ? unpack(body) : body).pipeTo(writable).catch((error: unknown) => {
    throw error instanceof FileError ? error : new FileError(url, `${url} cannot be unpacked: ${messageOf(error)}`);
  });
  arrived.catch(() => {});
  const response = new Response(readable, { headers: { "Content-Type": "application/wasm" } });
  return { response, arrived };
}

async function fetchSnapshot(url: string, stallMs: number): Promise<Uint8Array<ArrayBuffer>> {
  try {
    const { body, packed } = await look((await openFile(url, SNAPSHOT, stallMs)).stream);
    return await readAll(packed ? unpack(body) : body);
  } catch (error) {
    throw error instanceof FileError ? error : new FileError(url, `${url} cannot be unpacked: ${messageOf(error)}`);
  }
}

function unpackPackages(pyodide: Pyodide, { packages }: PackageFiles, bytes: Uint8Array<ArrayBuffer>): void {
  try {
    pyodide.unpackArchive(bytes.buffer, "zip");
  } catch (error) {
    throw new FileError(packages, `${packages} cannot be unpacked, it is damaged: ${messageOf(error)}`);
  }
}

/** Look at the first bytes of a stream. Returns the whole stream, and `packed`: true if it must be unpacked. */
async function look(
  stream: ReadableStream<Uint8Array<ArrayBuffer>>,
): Promise<{ readonly body: ReadableStream<Uint8Array<ArrayBuffer>>; readonly packed: boolean }> {
  const [head, body] = stream.tee();
  const reader = head.getReader();
  const { value } = await reader.read();
  reader.cancel().catch(() => {});
  return { body, packed: isPacked(value ?? new Uint8Array()) };
}

interface NetworkInformation {
  readonly saveData?: boolean;
  readonly effectiveType?: string;
}

/** The snapshot is several MB, which pay off unless the network is slower than the start of Python. */
function wantsSnapshot(choice: SnapshotChoice): boolean {
  if (choice !== "auto") {
    return choice;
  }
  const { connection } = globalThis.navigator as { readonly connection?: NetworkInformation };
  return connection?.saveData !== true && (connection?.effectiveType ?? "4g") === "4g";
}
