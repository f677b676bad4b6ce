/** Settings of the page, as onnxruntime's `env`, but only trainweb's settings. */

import { env as common } from "onnxruntime-common";

import { MAX_THREADS } from "../engine/layout.js";
import { isObject } from "../wire/kinds.js";
import { getLogLevel, log, setLogLevel, type LogLevel } from "../wire/log.js";
import type { SnapshotChoice } from "../wire/protocol.js";
import { canShareMemory, otherPlatform } from "../wire/platform.js";
import { VERSION } from "../wire/version.js";
import type { ProgressListener } from "./progress.js";
import { Opaque } from "../wire/opaque.js";

const MAX_DEFAULT_THREADS = 4;

/** Flags of the kernels. */
export interface WasmFlags {
  /** Threads of the kernels. 0 or undefined: min(4, ceil(cores / 2)). Always 1 without cross-origin isolation. */
  numThreads?: number | undefined;
  /** Deprecated; trainweb always uses SIMD. */
  simd?: boolean | undefined;
  /** Milliseconds in which a worker must start. 0: `env.timeouts.start` counts. */
  initTimeout?: number | undefined;
  /** No effect: computation is always in a worker. */
  proxy?: boolean | undefined;
  /** No effect: `session.profile(feeds)` shows the time of each part. */
  trace?: boolean | undefined;
  /** A file of onnxruntime-web leads to a warning; trainweb uses its own kernels. */
  wasmBinary?: unknown;
  /**
   * URL prefix of the kernels*.wasm files, if they are not with the rest of the package. An object, which names files
   * of onnxruntime-web, or a prefix without kernels leads to a warning, and to the package's own kernels.
   */
  wasmPaths?:
    | string
    | {
        /** A file of onnxruntime-web. */
        readonly wasm?: unknown;
        /** A file of onnxruntime-web. */
        readonly mjs?: unknown;
      }
    | undefined;
}

/** Flags of Python in the page. */
export interface PyodideFlags {
  /** URL prefix of a Pyodide distribution; null: the Pyodide in this package. */
  indexURL: string | null;
  /**
   * Start Python from a memory snapshot: 2 MB more to fetch, but many times as fast to start. "auto" does so unless the
   * browser reports a slow or metered network. If the snapshot does not fit Pyodide's version, Python starts without
   * it.
   */
  snapshot: SnapshotChoice;
}

/** Settings of back ends that trainweb does not have. Setting them has no effect. */
export type InertFlags = Record<string, unknown>;

/** Flags of WebGPU. */
export interface WebGpuFlags extends InertFlags {
  /**
   * The module that has WebGPU in Node: `import.meta.resolve("webgpu")` of the npm package. Workers import it, and take
   * what its `create([])` returns as their `navigator.gpu`. Pages have WebGPU themselves.
   */
  gpu?: string | undefined;
}

/** Limits of time, in milliseconds. */
export interface Timeouts {
  /**
   * Limit until a worker reports that it runs. A script that cannot be fetched is found long before. Default 60 000.
   */
  start: number;
  /** Limit of a silence while a file of the package is fetched. Default 8 000. */
  stall: number;
  /** Time that a worker without sessions is kept for the next one. Default 30 000. */
  idle: number;
}

/** Called by `env.release()`. */
export const releasers = new Set<() => Promise<void>>();

/** Flags of the whole page. A running worker keeps the values that it was started with. */
export class Env extends Opaque {
  /** Flags of the kernels: threads, and the folder of their files. */
  readonly wasm: WasmFlags = { numThreads: 0, simd: true };

  /** Flags of Python. */
  readonly pyodide: PyodideFlags = {
    indexURL: null,
    snapshot: "auto",
  };

  /** No effect, because computation is on the CPU. Pages for onnxruntime-web may set its flags. */
  readonly webgl: InertFlags = {};

  /** The module that has WebGPU in Node. Other flags have no effect, as `webgl`. */
  readonly webgpu: WebGpuFlags = {};

  /** No effect: `logLevel` selects the messages on the console. */
  debug?: boolean;

  /** No effect, as `debug`. */
  trace?: boolean;

  /**
   * URL prefix of all files of the package, as `npx trainweb copy` writes them. Null: the place of this script, or of
   * the
   * bundler's copies, or `trainweb/` beside the bundle. `wasm.wasmPaths` and `pyodide.indexURL` take precedence.
   */
  baseURL: string | null = null;

  /** Called with the progress of loading, in bytes and percent, by every new session. Default null. */
  onProgress: ProgressListener | null = null;

  #seed: bigint | undefined;

  /** Time limits, in milliseconds. */
  readonly timeouts: Timeouts = { start: 60_000, stall: 8_000, idle: 30_000 };

  /** Versions of the loaded packages. */
  readonly versions: {
    /** Version of onnxruntime-common. */
    readonly common: string;
    /** Version of this package, under the name that onnxruntime-web uses. */
    readonly web: string;
    /** Version of this package. */
    readonly trainweb: string;
  } = Object.freeze({
    // Of the package that `Tensor` comes from.
    common: common.versions.common,
    web: VERSION,
    trainweb: VERSION,
  });

  /**
   * Seed of random operators (Dropout) for later sessions; only its lowest 64 bits count. undefined means 0, so that
   * you
   * can repeat a training. `session.seed` returns it.
   */
  get seed(): bigint | undefined {
    return this.#seed;
  }

  /** @throws TypeError when it is not an integer */
  set seed(value: number | bigint | undefined) {
    if (value !== undefined && typeof value !== "bigint" && !Number.isSafeInteger(value)) {
      throw new TypeError(`env.seed must be an integer, got ${String(value)}.`);
    }
    this.#seed = value === undefined ? undefined : BigInt(value);
  }

  /**
   * End all workers without a session, with their threads and memory. Otherwise they end after `timeouts.idle` without
   * a session.
   */
  async release(): Promise<void> {
    await Promise.all([...releasers].map((release) => release()));
  }

  /**
   * The lowest level for the console: "verbose", "info", "warning", "error" or "fatal". Default "warning".
   */
  get logLevel(): LogLevel {
    return getLogLevel();
  }

  /** @throws Error for a level that does not exist */
  set logLevel(value: LogLevel | undefined) {
    if (value !== undefined) {
      setLogLevel(value);
    }
  }
}

/** Flags of this page. A running worker keeps its values: set them before the first session. */
export const env = new Env();

let hasWarned = false;

/** Limit until a worker reports that it runs, in milliseconds. */
export function startTimeout(): number {
  const { initTimeout = 0 } = env.wasm;
  return initTimeout > 0 ? initTimeout : env.timeouts.start;
}

/** The prefix of the kernels, if one is set. Warns once of a value meant for another package. */
export function kernelsPrefix(): string | undefined {
  const { wasmBinary, wasmPaths } = env.wasm;
  if (wasmBinary !== undefined) {
    warnOfKernels("wasmBinary is a file of onnxruntime-web", "env.wasm.wasmBinary");
  }
  if (!isObject(wasmPaths)) {
    return wasmPaths;
  }
  warnOfKernels("it names files of onnxruntime-web");
  return undefined;
}

/** Say that `env.wasm.wasmPaths` was left out of account; once. */
export function warnOfKernels(fault: string, flag = "env.wasm.wasmPaths"): void {
  if (!hasWarned) {
    hasWarned = true;
    log(
      "warning",
      `${flag} has no kernels of trainweb (${fault.replace(/\.$/, "")}), which takes its own. Delete the ` +
        "assignment, or set env.baseURL to the folder of trainweb's files.",
    );
  }
}

/** The module that has WebGPU; null: that of the platform counts. */
export function gpuModule(): string | null {
  const { gpu } = env.webgpu;
  if (gpu !== undefined && (typeof gpu !== "string" || otherPlatform() === null)) {
    const fault = typeof gpu === "string" ? "is for Node: a page has navigator.gpu" : `must be the URL of a module, got ${typeof gpu}`;
    throw new TypeError(`env.webgpu.gpu ${fault}.`);
  }
  return gpu ?? null;
}

/** The number of threads of a session, for a requested number (0, undefined: the default). */
export function resolveThreads(requested: number | undefined): number {
  const wanted = isPositiveInteger(requested) ? requested : env.wasm.numThreads;
  if (isPositiveInteger(wanted) && wanted > MAX_THREADS) {
    const name = wanted === requested ? "threads" : "env.wasm.numThreads";
    throw new TypeError(`'${name}' must be at most ${MAX_THREADS}, got ${wanted}.`);
  }
  if (!canShareMemory()) {
    if (isPositiveInteger(wanted) && wanted > 1) {
      log(
        "warning",
        `env.wasm.numThreads is set to ${wanted}, but this will not work unless you enable ` +
          "crossOriginIsolated mode. Running with 1 thread.",
      );
    }
    return 1;
  }
  if (isPositiveInteger(wanted)) {
    return wanted;
  }
  const cores = globalThis.navigator?.hardwareConcurrency ?? 1;
  return Math.min(MAX_DEFAULT_THREADS, Math.ceil(cores / 2));
}

function isPositiveInteger(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value > 0;
}
