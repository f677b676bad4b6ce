/**
 * The kernel engine: a memory, the kernels on it, and generated code beside them. Everything above
 * speaks to kernels through `alloc`, `free`, `write`, `read`, `loadCode`, `run` and `call`, and nothing else.
 *
 * @module trainweb/engine
 */

import { checkOptions } from "../data/nearest.js";
import { isPacked, unpack } from "../wire/packed.js";
import { EngineError, throwIf } from "../wire/errors.js";
import { fetchFile, messageOf, WEBASSEMBLY } from "../wire/fetch-file.js";
import type { KernelBuild } from "../wire/files.js";
import { log } from "../wire/log.js";
import { Opaque } from "../wire/opaque.js";
import { sameBytes } from "../wire/pieces.js";
import { pickBuild } from "./features.js";
import {
  fillTable,
  instantiateCode,
  instantiateKernels,
  type KernelExports,
} from "./kernels.js";
import { RANGE_INFINITE, RANGE_LEAST, RANGE_MOST, RANGE_NAN, RANGE_SQUARES, RANGE_WORDS, TW_NO_MEMORY, TW_TRAPPED, type SessionCalls } from "./layout.js";
import { Pool } from "./pool.js";
import { MAX_PAGES, withSharedMemory } from "./wasm-module.js";

/** True if the built script is this module's own. Other scripts pass the address of the workers. */
declare const TRAINWEB_NAMES_ASSETS: boolean;

/** Advice at the end of the memory. */
const LESS = "Take a smaller batchSize (accumulate in fit), set the option memoryBudget, or freeze layers.";

/** Pages reserved for memory, from generous to modest: not every device has 4 GiB of addresses. */
const MOST_PAGES = [MAX_PAGES, MAX_PAGES / 2, MAX_PAGES / 4, MAX_PAGES / 8];

const INITIAL_PAGES = 64;

/** The cause of an error after which the build without shared memory may run. */
const NO_SHARED_MEMORY = "no shared memory";

const STALL_MS = 8_000;

/** The result of `runSlice` for a run that is not finished. */
export const MORE = -1;

/** Bytes on the other side of a foreign-function interface, as Pyodide hands them over. */
export interface ForeignBuffer {
  /** The bytes in the memory of JavaScript; `release` gives them back. */
  getBuffer(type: string): {
    /** The bytes. */
    readonly data: Uint8Array;
    /** Give them back. */
    release(): void;
  };
}

/** The least and the largest finite one of some numbers, and how many are not finite. */
export interface NumberRange {
  /** Infinite where no number is finite. */
  readonly least: number;
  /** The largest. */
  readonly most: number;
  /** Number of NaN. */
  readonly nan: number;
  /** Number of infinities. */
  readonly infinite: number;
  /** The sum of the squares of all. */
  readonly squares: number;
}

/** Options of a new engine. */
export interface EngineOptions {
  /** The bytes of a kernel build, or a function or folder that gives the URL of a build. */
  readonly wasm: ArrayBuffer | Uint8Array | URL | ((build: KernelBuild) => URL | string);
  /** Threads to compute with; more than one needs a cross-origin isolated worker. Default 1. */
  readonly threads?: number;
  /** URL of pool-worker.js, which the threads run. Default: beside this script. */
  readonly poolWorker?: URL | string;
  /** Keep to the build whose results are the same bytes everywhere. */
  readonly reproducible?: boolean;
  /** Limit of a silence while a build is fetched, in milliseconds; default 8 000. */
  readonly stallMs?: number;
}

const OPTIONS = { wasm: true, threads: true, poolWorker: true, reproducible: true, stallMs: true } as const;

/** Consecutive slots of the function table. */
interface TableSlots {
  readonly slot: number;
  readonly count: number;
}

/** Generated code in the table, and how many users have it. */
interface LoadedCode extends TableSlots {
  readonly bytes: Uint8Array;
  uses: number;
}

/** Kernels in a memory of their own. Addresses are offsets in it, in bytes. */
export class Engine extends Opaque {
  readonly #memory: WebAssembly.Memory;
  readonly #kernels: KernelExports;
  readonly #shared: boolean;
  #loaded: LoadedCode[] = [];
  /** Runs of table slots that unloaded code left, in the order of their slots. */
  #vacant: TableSlots[] = [];
  #pool: Pool | null = null;
  #bytes: Uint8Array;
  #lost: string | null = null;

  /** Name of the build that runs, e.g. "kernels.relaxed"; "" if it is unknown. */
  readonly build: string;

  private constructor(module: WebAssembly.Module, memory: WebAssembly.Memory, build: string) {
    super();
    this.#memory = memory;
    this.#shared = isShared(memory);
    this.#kernels = instantiateKernels(module, memory);
    this.#bytes = new Uint8Array(memory.buffer);
    this.build = build;
  }

  /**
   * Load the kernels and start their threads.
   *
   * @param options - with a function or URL for `wasm`, the fastest build that runs here is fetched;
   *   a URL is the folder of the package's packed builds (`kernels.wasm.gz`)
   * @throws EngineError when a build cannot be fetched or does not compile; TypeError for an unknown option
   */
  static async create(options: EngineOptions): Promise<Engine> {
    checkOptions("Engine.create", options, OPTIONS);
    try {
      // A window may not block.
      return await Engine.#start(options, typeof globalThis.window === "undefined");
    } catch (error) {
      // Phones may refuse shared memory to a page that could have it.
      if (!(error instanceof EngineError && error.cause === NO_SHARED_MEMORY)) {
        throw error;
      }
      log("warning", `${error.message} One thread computes, in memory of its own.`);
      return Engine.#start(options, false);
    }
  }

  static async #start(options: EngineOptions, canShare: boolean): Promise<Engine> {
    const threads = canShare ? (options.threads ?? 1) : 1;
    const { bytes, build, source } = await fetchKernels(options, canShare);
    const module = await compile(bytes, source);
    const engine = instantiate(module, build, source, (memory) => new Engine(module, memory, build));
    const memory = engine.#memory;
    if (threads > 1 && isShared(memory)) {
      const script = new URL(options.poolWorker ?? ownPoolWorker(), globalThis.location?.href).href;
      engine.#pool = await Pool.start(module, memory, engine.#kernels, threads, script);
    }
    return engine;
  }

  /** Make an engine of one thread at once, from the bytes of a build without threads. */
  static createSync(wasm: ArrayBuffer | Uint8Array | ForeignBuffer, build = ""): Engine {
    const bytes = copyOf(wasm);
    return new Engine(new WebAssembly.Module(bytes), createMemory(false), build);
  }

  /** Name of the fastest build without threads that runs here, for `createSync`. */
  static pickBuild(reproducible = false): KernelBuild {
    return pickBuild(false, reproducible);
  }

  /** Threads that compute. */
  get threads(): number {
    return this.#pool === null ? 1 : this.#pool.size;
  }

  /** Size of the kernels' memory. It never shrinks. */
  get memoryBytes(): number {
    return this.#memory.buffer.byteLength;
  }

  /** Bytes of all live allocations. */
  get bytesInUse(): number {
    return this.#kernels.tw_bytes_in_use() >>> 0;
  }

  /** The memory, where other threads can have it too. */
  get sharedMemory(): WebAssembly.Memory | null {
    return this.#shared ? this.#memory : null;
  }

  /** Address of the word whose notification wakes the threads; 0 without any. */
  get wakeWord(): number {
    return this.#pool === null ? 0 : this.#kernels.tw_wake_word() >>> 0;
  }

  /** The reason why the engine cannot be used any more (a trap), or null. */
  get lost(): string | null {
    return this.#lost;
  }

  /** The whole memory. Valid until the next call that may allocate. */
  get u8(): Uint8Array {
    // Growing the memory makes a new buffer; a shared one may also be grown by another thread.
    if (this.#bytes.buffer !== this.#memory.buffer) {
      this.#bytes = new Uint8Array(this.#memory.buffer);
    }
    return this.#bytes;
  }

  /** The memory as words, as large as it is now. */
  get u32(): Uint32Array {
    return new Uint32Array(this.#memory.buffer);
  }

  /** The memory as float32, as large as it is now. */
  get f32(): Float32Array {
    return new Float32Array(this.#memory.buffer);
  }

  /** Allocate memory, 64-byte aligned: zeros, which take no room before they are written to, or undefined contents. */
  alloc(nbytes: number, zeroed = false): number {
    this.#check();
    const fits = Number.isSafeInteger(nbytes) && nbytes >= 0 && nbytes < 2 ** 32;
    const { tw_alloc: plain, tw_alloc_zeroed: cleared } = this.#kernels;
    const ptr = fits ? (zeroed ? cleared : plain)(nbytes) >>> 0 : 0;
    if (ptr === 0) {
      throw this.noMemory(nbytes);
    }
    return ptr;
  }

  /** The error for so many bytes more. */
  noMemory(nbytes: number): EngineError {
    const mib = Math.ceil(nbytes / 2 ** 20);
    return new EngineError(`out of memory: ${mib} MiB more do not fit beside the ${this.bytesInUse >>> 20} MiB in use. ${LESS}`);
  }

  /** A session of the kernels, by its address. */
  openSession(): number {
    this.#check();
    const session = this.#kernels.tw_session_open() >>> 0;
    if (session === 0) {
      throw this.noMemory(this.#kernels.tw_missing() >>> 0);
    }
    return session;
  }

  /** Call a function of `wasm_kernels/session/`; what it returns, as an unsigned number. */
  call<Name extends keyof SessionCalls>(name: Name, session: number, ...args: SessionCalls[Name]): number {
    return this.#kernels[name](session, ...args) >>> 0;
  }

  /**
   * Call a function of `wasm_kernels/session/` that returns a status.
   *
   * @throws EngineError when it fails: there is no memory, or an argument is wrong
   */
  demand<Name extends keyof SessionCalls>(name: Name, session: number, ...args: SessionCalls[Name]): void {
    const status = this.call(name, session, ...args);
    if (status !== 0) {
      throw this.failure(`${name}(${[session, ...args].join(", ")})`, status);
    }
  }

  /** The error for a call that failed. */
  failure(call: string, status: number): EngineError {
    return status === TW_NO_MEMORY
      ? this.noMemory(this.#kernels.tw_missing() >>> 0)
      : new EngineError(`${call} failed with status ${status}.`);
  }

  /**
   * The range of float32 values.
   *
   * @throws EngineError when they do not lie in an allocated block
   */
  range(ptr: number, count: number): NumberRange {
    const at = this.#kernels.tw_range(ptr, count) >>> 0;
    throwIf(at === 0, EngineError, `${count} numbers from ${ptr} on do not lie in an allocated block.`);
    const words = new DataView(this.#memory.buffer, at, 4 * RANGE_WORDS);
    return {
      least: words.getFloat32(4 * RANGE_LEAST, true),
      most: words.getFloat32(4 * RANGE_MOST, true),
      nan: words.getUint32(4 * RANGE_NAN, true),
      infinite: words.getUint32(4 * RANGE_INFINITE, true),
      squares: words.getFloat64(4 * RANGE_SQUARES, true),
    };
  }

  /** Free the result of `alloc`. */
  free(ptr: number): void {
    throwIf(this.#lost === null && this.#kernels.tw_free(ptr) !== 0, EngineError, `free(${ptr}): not an allocated block.`);
  }

  /** Copy bytes into the memory. */
  write(ptr: number, data: ArrayBuffer | ArrayBufferView): void {
    this.#check();
    const bytes = bytesOf(data);
    this.view(ptr, bytes.length).set(bytes);
  }

  /** A copy of bytes of the memory. */
  read(ptr: number, nbytes: number): Uint8Array<ArrayBuffer> {
    const copy = new Uint8Array(nbytes);
    copy.set(this.view(ptr, nbytes));
    return copy;
  }

  /** Bytes of the memory in place. Valid until the next call that may allocate. */
  view(ptr: number, nbytes: number): Uint8Array {
    const memory = this.u8;
    if (!(ptr >= 0 && nbytes >= 0 && ptr + nbytes <= memory.length)) {
      throw new EngineError(
        `bytes [${ptr}, ${ptr + nbytes}) lie outside the memory of ${memory.length} bytes.`,
      );
    }
    return memory.subarray(ptr, ptr + nbytes);
  }

  /**
   * Load a module of generated functions f0, f1, ... into the function table; the same module again is
   * found, not loaded, until it was unloaded as often. It imports `env.memory` with a maximum.
   *
   * @returns the table slot of f0
   */
  loadCode(code: ArrayBuffer | Uint8Array | ForeignBuffer): number {
    this.#check();
    const original = copyOf(code);
    const known = this.#loaded.find(({ bytes }) => sameBytes(bytes, original));
    if (known !== undefined) {
      known.uses++;
      return known.slot;
    }
    const bytes = this.#shared ? withSharedMemory(original) : original;
    let run: TableSlots;
    try {
      run = this.#install(bytes);
    } catch (error) {
      if (error instanceof EngineError) {
        throw error;
      }
      throw new EngineError(`generated code does not load: ${messageOf(error)}`);
    }
    this.#loaded.push({ ...run, bytes: original, uses: 1 });
    return run.slot;
  }

  /** Release the result of `loadCode`. After its last use, its slots go to other functions. */
  unloadCode(slot: number): void {
    const code = this.#loaded.find((one) => one.slot === slot);
    if (code === undefined) {
      throw new EngineError(`no generated code starts at slot ${slot}.`);
    }
    code.uses--;
    if (code.uses === 0 && this.#lost === null) {
      this.#loaded = this.#loaded.filter((one) => one !== code);
      this.#kernels.tw_unregister_code(slot);
      this.#vacate(code);
    }
  }

  /** Have runs of a placed plan add the milliseconds of each instruction to float64s at `times`; 0: no more. */
  profile(plan: number, times: number): void {
    throwIf(this.#kernels.tw_profile(plan, times) !== 0, EngineError, `no plan was placed at ${plan}.`);
  }

  /**
   * Run the plan placed at an address.
   *
   * @returns its status, 0 for success; the plan's header says more
   * @throws EngineError when the kernels trap; the engine is lost then
   */
  run(plan: number): number {
    return this.#guarded(() => this.#kernels.tw_run(plan));
  }

  /**
   * Run as `run` does, but only to the first boundary of instructions after some milliseconds.
   *
   * @param anew - true: run from the first instruction on; false: from the end of the previous slice
   * @returns a status, or `MORE`: another call must continue the run
   */
  runSlice(plan: number, anew: boolean, milliseconds: number): number {
    return this.#guarded(() => this.#kernels.tw_run_slice(plan, anew ? 1 : 0, milliseconds));
  }

  /**
   * Run batches of a fit that lie in a block (`layout batches` of kernels.def), up to one that fails, as `run` does.
   */
  runBatches(session: number, block: number, count: number): number {
    return this.#guarded(() => this.#kernels.tw_fit_run(session, block, count));
  }

  /** The segments that runs of a placed plan write, one bit each; 0 where it cannot run. */
  written(plan: number): number {
    this.#check();
    return this.#kernels.tw_written(plan) >>> 0;
  }

  #guarded(run: () => number): number {
    this.#check();
    let status: number;
    try {
      status = run();
    } catch (error) {
      return this.giveUp(`the kernels trapped: ${messageOf(error)}`);
    }
    if (status === TW_TRAPPED) {
      return this.giveUp("a thread of the kernels trapped");
    }
    return status;
  }

  /**
   * Stop using the engine, because its memory is in disorder.
   *
   * @throws EngineError with this reason, as do all later calls except reads
   */
  giveUp(reason: string): never {
    this.#lost = reason;
    this.#pool?.stop();
    throw lostError(reason);
  }

  /** JSON description of the kernels: opcodes, arguments, statuses. */
  description(): string {
    const ptr = this.#kernels.tw_description() >>> 0;
    return new TextDecoder().decode(this.read(ptr, this.#kernels.tw_description_size()));
  }

  /** End the threads. The engine cannot be used afterwards. */
  close(): void {
    this.#pool?.stop();
    this.#pool = null;
    this.#lost ??= "it was closed";
  }

  #install(bytes: Uint8Array<ArrayBuffer>): TableSlots {
    const functions = instantiateCode(bytes, this.#memory, this.#kernels);
    const slot = this.#takeSlots(functions.length);
    fillTable(this.#kernels.__indirect_function_table, slot, functions);
    const run = { slot, count: functions.length };
    let ptr = 0;
    try {
      ptr = this.alloc(bytes.length);
      this.write(ptr, bytes);
      this.#register(ptr, bytes.length, run);
    } catch (error) {
      this.#vacate(run);
      throw error;
    } finally {
      this.free(ptr);
    }
    return run;
  }

  #register(ptr: number, nbytes: number, { slot, count }: TableSlots): void {
    const status = this.#kernels.tw_register_code(ptr, nbytes, slot, count);
    if (status === TW_TRAPPED) {
      this.giveUp("a thread of the kernels could not load generated code");
    }
    throwIf(status !== 0, EngineError, `generated code was refused with status ${status}.`);
  }

  /** Take functions out of the table; their slots may be used again. */
  #vacate(run: TableSlots): void {
    const table = this.#kernels.__indirect_function_table;
    for (let k = 0; k < run.count; k++) {
      table.set(run.slot + k, null);
    }
    this.#vacant = withRun(this.#vacant, run);
  }

  /** The smallest vacant run of slots that is large enough, or the end of the table. */
  #takeSlots(count: number): number {
    const fitting = this.#vacant.filter((run) => run.count >= count);
    const run = fitting.sort((a, b) => a.count - b.count)[0];
    if (run === undefined) {
      return this.#kernels.__indirect_function_table.length;
    }
    const rest = { slot: run.slot + count, count: run.count - count };
    this.#vacant = this.#vacant.flatMap((one) => (one !== run ? [one] : rest.count > 0 ? [rest] : []));
    return run.slot;
  }

  #check(): void {
    if (this.#lost !== null) {
      throw lostError(this.#lost);
    }
  }
}

/** An error after which the worker is of no use: `fatal` tells the page to start another. */
function lostError(reason: string): EngineError {
  const error = new EngineError(
    `the engine is lost: ${reason}. Sessions must be created again; what they had learned can still be read: ` +
      "saveCheckpoint and getContiguousParameters work.",
  );
  return Object.assign(error, { fatal: true });
}

function ownPoolWorker(): URL | string {
  if (TRAINWEB_NAMES_ASSETS) {
    return new URL("./pool-worker.js", import.meta.url);
  }
  throw new EngineError("threads need the option poolWorker: the URL of pool-worker.js.");
}

function isShared(memory: WebAssembly.Memory): boolean {
  return !(memory.buffer instanceof ArrayBuffer);
}

/** A memory for a build of the kernels. */
function createMemory(shared: boolean): WebAssembly.Memory {
  let failure: unknown;
  // Own memory that can grow to 256 MiB is better than none.
  for (const maximum of shared ? MOST_PAGES : [...MOST_PAGES, MAX_PAGES / 16]) {
    try {
      return new WebAssembly.Memory({ initial: INITIAL_PAGES, maximum, shared });
    } catch (error) {
      failure = error;
    }
  }
  const text = `The browser gives no ${shared ? "shared " : ""}memory to the kernels: ${messageOf(failure)}.`;
  throw new EngineError(text, shared ? { cause: NO_SHARED_MEMORY } : { cause: failure });
}

interface FetchedKernels {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly build: string;
  /** The origin of the bytes, for errors. */
  readonly source: string;
}

/** @param canShare - true if a build with shared memory will do */
async function fetchKernels(options: EngineOptions, canShare: boolean): Promise<FetchedKernels> {
  const { wasm } = options;
  if (wasm instanceof ArrayBuffer || wasm instanceof Uint8Array) {
    return { bytes: copyOf(wasm), build: "", source: "the WebAssembly given" };
  }
  const build = pickBuild(canShare, options.reproducible ?? false);
  const url = wasm instanceof URL ? new URL(`${build}.wasm.gz`, wasm) : wasm(build);
  const stallMs = options.stallMs ?? STALL_MS;
  const bytes = await fetchFile(String(url), WEBASSEMBLY, stallMs);
  if (!isPacked(bytes)) {
    return { bytes, build, source: String(url) };
  }
  try {
    // Not of a Blob: WebKit lets the worker of a sandboxed frame read none.
    const packed = new Response(bytes).body as ReadableStream<Uint8Array<ArrayBuffer>>;
    const unpacked = new Response(unpack(packed));
    return { bytes: new Uint8Array(await unpacked.arrayBuffer()), build, source: String(url) };
  } catch (error) {
    throw new EngineError(`${url} cannot be unpacked: ${messageOf(error)}`);
  }
}

async function compile(
  bytes: Uint8Array<ArrayBuffer>,
  source: string,
): Promise<WebAssembly.Module> {
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    const reason = messageOf(error);
    // Browsers name 'unsafe-eval', which allows more than WebAssembly.
    throw new EngineError(
      /content security|CSP/i.test(reason)
        ? `The page's content security policy lacks script-src 'wasm-unsafe-eval', which ${source} needs.`
        : `${source} does not compile here, or is damaged: ${reason}`,
    );
  }
}

/** Add a run of slots, and join runs that touch. */
function withRun(runs: readonly TableSlots[], { slot, count }: TableSlots): TableSlots[] {
  const sorted = [...runs, { slot, count }].sort((a, b) => a.slot - b.slot);
  return sorted.reduce<TableSlots[]>((merged, run) => {
    const last = merged.at(-1);
    if (last === undefined || last.slot + last.count !== run.slot) {
      return [...merged, run];
    }
    return [...merged.slice(0, -1), { slot: last.slot, count: last.count + run.count }];
  }, []);
}

function isForeign(data: object): data is ForeignBuffer {
  return "getBuffer" in data && typeof data.getBuffer === "function";
}

function bytesOf(data: ArrayBuffer | ArrayBufferView): Uint8Array {
  return ArrayBuffer.isView(data)
    ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    : new Uint8Array(data);
}

function copyOf(data: ArrayBuffer | ArrayBufferView | ForeignBuffer): Uint8Array<ArrayBuffer> {
  if (!isForeign(data)) {
    return new Uint8Array(bytesOf(data));
  }
  const buffer = data.getBuffer("u8");
  try {
    return new Uint8Array(buffer.data);
  } finally {
    buffer.release();
  }
}

/** @throws EngineError where WebAssembly is not that of kernels */
function instantiate(
  module: WebAssembly.Module,
  build: string,
  source: string,
  make: (memory: WebAssembly.Memory) => Engine,
): Engine {
  const exports = WebAssembly.Module.exports(module);
  const isThreaded = build.endsWith(".threads");
  let reason: unknown = "tw_run is not among them";
  // Bytes from the caller have no name: the kind of memory that they import shows when they are linked.
  for (const shared of exports.some(({ name }) => name === "tw_run") ? [isThreaded, !isThreaded] : []) {
    try {
      return make(createMemory(shared));
    } catch (error) {
      if (error instanceof EngineError) {
        throw error;
      }
      reason = error;
    }
  }
  throw new EngineError(`${source} holds no kernels of trainweb, but ${exports.length} other exports: ${messageOf(reason)}`);
}
