/** Session options: trainweb's own, and onnxruntime's, which are checked but have no effect. */

import { describe, mustBe } from "../data/checks.js";
import { brief, checkKnown, checkOptions } from "../data/nearest.js";
import { GIVEN } from "../wire/constants.js";
import { isObject } from "../wire/kinds.js";
import { throwIf, UnsupportedError } from "../wire/errors.js";
import { refuseIf } from "../wire/messages.js";
import type { SessionLimits } from "../wire/protocol.js";
import { LIMITS } from "../wire/records.js";
import { MAX_THREADS } from "../engine/layout.js";
import { locateFiles } from "./assets.js";
import { checkFlag } from "./call-values.js";
import { snakeCase } from "./check-settings.js";
import { env, gpuModule, kernelsPrefix, resolveThreads } from "./env.js";
import { entriesOf, warnWithoutEffect } from "./inert.js";
import { checkIntegrity, type FileName } from "./integrity.js";
import { LoadTracker, type ProgressListener } from "./progress.js";
import { isSource, type ExternalSource, type LoadOptions, type Source } from "./sources.js";
import type { RunOptions } from "./run-options.js";

/** Options of a session, from trainweb and from onnxruntime-web. */
export interface SessionOptions {
  /** Threads of the kernels; default `env.wasm.numThreads`. */
  readonly threads?: number;
  /**
   * The device of steps: "wasm" is the CPU; "webgpu" trains, evaluates and predicts on the GPU. "auto" takes
   * the GPU if there is one that is no software, and it can run the steps; `session.device` says why: docs/webgpu.md.
   * Default "wasm".
   */
  readonly device?: "wasm" | "webgpu" | "auto";
  /** Give the same bytes in every browser, on every machine and with any number of threads; somewhat slower. */
  readonly reproducible?: boolean;
  /**
   * Keep the compiled session in this origin's storage. The next session of the same files (and the same feeds) starts
   * from there, without Python. Fetched files of 32 MiB and more are kept, too, while their servers answer with
   * the same ETag and Last-Modified. `clearCache()` empties the storage. Default false.
   */
  readonly cache?: boolean;
  /**
   * Maximum bytes of a step's workspace: feeds, activations, their gradients, outputs and scratch of the kernels; not
   * parameters, accumulated gradients, moments and constants. If a step needs more, activations are recomputed in
   * the backward pass (gradient checkpointing). Results are the same to the last bit; `memory()` reports the cost. A
   * step that cannot fit fails with a LimitError that names the smallest possible budget.
   */
  readonly memoryBudget?: number;
  /**
   * Number of compiled steps to keep: one for each shape of the feeds, with and without accumulation, and for training
   * and evaluation. The least recently used go first. Default 16.
   */
  readonly maxPlans?: number;
  /**
   * Files with tensors of the model, by their path in the model; a string is path and URL. For `createFromModel` and
   * `InferenceSession.create`.
   */
  readonly externalData?: readonly ExternalData[];
  /**
   * Safetensors files with the data of the tensors that have none in the model, by their names: one, or an array of
   * shards. For `createFromModel` and `InferenceSession.create`.
   */
  readonly weights?: Source | readonly Source[];
  /**
   * Abort it to end the call, which then fails with the signal's reason. Downloads stop, and the session's memory is
   * freed. A worker without other sessions ends.
   */
  readonly signal?: AbortSignal;
  /** Called with the progress of loading, in bytes and percent, like `env.onProgress`. */
  readonly onProgress?: ProgressListener;
  /** Checks of training sessions: docs/debug.md. */
  readonly debug?: DebugOptions;
  /** Limits; a LimitError refuses anything larger. */
  readonly limits?: SessionLimits;

  /**
   * Hashes of the files, as in the attribute `integrity` of HTML: "sha256-" and Base64, or sha384 and sha512. Separate
   * several hashes by spaces. Give the hash of the only file (a bundle or model), or of each file by its name. Other
   * bytes are refused.
   */
  readonly integrity?: string | Readonly<Partial<Record<FileName, string>>>;

  /** Names of onnxruntime-web's providers. All computation runs on the CPU; a warning names other providers. */
  readonly executionProviders?: readonly (
    | string
    | {
        /** Name of the provider. */
        readonly name: string;
      }
  )[];
  /** Plans are always optimized. Levels other than "all" cause a warning. */
  readonly graphOptimizationLevel?: "disabled" | "basic" | "extended" | "layout" | "all";
  /** Execution is always "sequential"; threads work within an instruction. "parallel" causes a warning. */
  readonly executionMode?: "sequential" | "parallel";
  /** 0 (verbose) to 4 (fatal), for steps without another level; default: `env.logLevel`. */
  readonly logSeverityLevel?: 0 | 1 | 2 | 3 | 4;
  /** At least 0. All values have the same effect: there is one level of verbose lines. */
  readonly logVerbosityLevel?: number;
  /** An option of onnxruntime for Node; it sets `threads` unless you set that. */
  readonly intraOpNumThreads?: number;
  /** An option of onnxruntime for Node. Instructions run one after the other, so 2 and more cause a warning. */
  readonly interOpNumThreads?: number;
  /** There is always an arena, so false causes a warning. */
  readonly enableCpuMemArena?: boolean;
  /** Memory is always planned ahead, so false causes a warning. */
  readonly enableMemPattern?: boolean;
  /** Only false: use `session.profile(feeds)` instead. */
  readonly enableProfiling?: false;
  /** Prefix of the files of `enableProfiling`; no effect. */
  readonly profileFilePrefix?: string;
  /** Identifier in the log lines of onnxruntime; no effect. */
  readonly logId?: string;
  /** Sizes of symbolic dims of the inputs, by the name of the dim. Not for bundles, which are compiled for their sizes. */
  readonly freeDimensionOverrides?: Readonly<Record<string, number>>;
  /** Only "cpu": results are in memory. */
  readonly preferredOutputLocation?: "cpu" | "cpu-pinned" | Readonly<Record<string, string>>;
  /** Only false: graph capture is for WebGPU. */
  readonly enableGraphCapture?: boolean;
  /** Not supported: a plan is not an ONNX model. `session.explain(feeds)` shows it. */
  readonly optimizedModelFilePath?: undefined;
  /**
   * Configuration of onnxruntime. An entry without effect is accepted with a warning. An entry that would change
   * numbers is refused.
   */
  readonly extra?: Readonly<Record<string, unknown>>;
}

/** Checks while a session trains. */
export interface DebugOptions {
  /**
   * A step that makes NaN or infinity fails with a NumericsError that names the node. The session is then as before the
   * step. Steps take several times as long, and need memory for all their tensors. Default false.
   */
  readonly checkNumerics?: boolean;
}

/** A file with tensors of a model. */
export type ExternalData =
  | string
  | {
      /** Its path in the model. */
      readonly path: string;
      /** Its contents. */
      readonly data: Source;
    };

const NAMES: Readonly<Record<keyof SessionOptions, true>> = {
  threads: true, device: true, reproducible: true, cache: true, memoryBudget: true, maxPlans: true, externalData: true, weights: true,
  signal: true, onProgress: true, debug: true, limits: true, integrity: true, executionProviders: true, graphOptimizationLevel: true,
  executionMode: true, logSeverityLevel: true, logVerbosityLevel: true, intraOpNumThreads: true,
  interOpNumThreads: true, enableCpuMemArena: true, enableMemPattern: true, enableProfiling: true,
  profileFilePrefix: true, logId: true, freeDimensionOverrides: true, preferredOutputLocation: true,
  enableGraphCapture: true, optimizedModelFilePath: true, extra: true,
};

/** Providers that onnxruntime-web knows. All of them come down to our kernels. */
const PROVIDERS = ["wasm", "cpu", "webgpu", "webnn", "webgl"];
const OPTIMIZATION_LEVELS = ["disabled", "basic", "extended", "layout", "all"];
const EXECUTION_MODES = ["sequential", "parallel"];
const MAX_SEVERITY = 4;

/** Options after the checks, as the worker and Python want them. */
export interface ResolvedOptions extends LoadOptions {
  readonly cache: boolean;
  readonly hasBudget: boolean;
  /** Of steps that say nothing else; undefined: that of `env.logLevel`. */
  readonly severity: RunOptions["logSeverityLevel"];
  readonly checksNumerics: boolean;
  readonly device: string;
  /** True if sizes are given to symbolic dims. */
  readonly hasDims: boolean;
  /** External data, and weights behind them. */
  readonly externalData: readonly ExternalSource[];
  /** Keyword arguments of the Python session. */
  readonly json: string;
}

/**
 * Check the options and fill in the page's defaults.
 *
 * @param more - further names that the call takes in the same object
 */
export function resolveOptions(options?: unknown, more: readonly string[] = []): ResolvedOptions {
  throwIf(options !== undefined && !isObject(options), TypeError, "'options' must be an object.");
  const settings: SessionOptions = options ?? {};
  checkKnown("The session option", settings, [...Object.keys(NAMES), ...more]);
  checkPeerOptions(settings);
  checkOwnOptions(settings);
  const reproducible = settings.reproducible ?? false;
  return {
    settings: {
      files: locateFiles({
        baseURL: env.baseURL,
        indexURL: env.pyodide.indexURL,
        wasmPaths: kernelsPrefix(),
      }),
      snapshot: env.pyodide.snapshot,
      threads: resolveThreads(settings.threads ?? threadsOf(settings.intraOpNumThreads)),
      reproducible,
      hasKernels: true,
      stallMs: env.timeouts.stall,
      gpu: gpuModule(),
    },
    progress: new LoadTracker([env.onProgress, settings.onProgress]),
    cache: settings.cache ?? false,
    integrity: checkIntegrity(settings.integrity),
    limits: {
      fileBytes: settings.limits?.fileBytes ?? LIMITS.fileBytes,
      arenaBytes: settings.limits?.arenaBytes ?? LIMITS.arenaBytes,
    },
    signal: settings.signal,
    hasBudget: settings.memoryBudget !== undefined,
    severity: settings.logSeverityLevel,
    checksNumerics: settings.debug?.checkNumerics ?? false,
    hasDims: Object.keys(settings.freeDimensionOverrides ?? {}).length > 0,
    externalData: [...resolveExternalData(settings.externalData), ...resolveWeights(settings.weights)],
    device: settings.device ?? "wasm",
    json: JSON.stringify({
      device: settings.device === "wasm" ? undefined : settings.device,
      reproducible,
      memory_budget: settings.memoryBudget,
      max_plans: settings.maxPlans,
      debug: settings.debug === undefined ? undefined : toSnakeCase(settings.debug),
      free_dimension_overrides: settings.freeDimensionOverrides,
      limits: settings.limits === undefined ? undefined : toSnakeCase(settings.limits),
    }),
  };
}

/** The number of threads in onnxruntime's options; 0 leaves it to the session. */
function threadsOf(intraOp: number | undefined): number | undefined {
  return intraOp === 0 || intraOp === undefined ? undefined : Math.min(intraOp, MAX_THREADS);
}

function checkOwnOptions(options: SessionOptions): void {
  const { threads, reproducible, cache, memoryBudget, maxPlans, limits, onProgress } = options;
  checkCount("threads", threads, 0);
  checkCount("memoryBudget", memoryBudget, 1);
  checkCount("maxPlans", maxPlans, 1);
  for (const [name, value] of Object.entries({ reproducible, cache })) {
    checkFlag(name, value ?? false);
  }
  for (const [name, value] of Object.entries({ onProgress, "env.onProgress": env.onProgress ?? undefined })) {
    throwIf(value !== undefined && typeof value !== "function", TypeError, `'${name}' must be a function, got ${brief(value)}.`);
  }
  throwIf(options.signal !== undefined && !(options.signal instanceof AbortSignal), TypeError, "'signal' must be an AbortSignal.");
  checkDebug(options.debug);
  checkDevice(options);
  for (const [name, value] of Object.entries(checkOptions("limits", limits ?? {}, LIMITS))) {
    checkCount(`limits.${name}`, value, 1);
  }
}

const DEVICES: readonly unknown[] = ["wasm", "webgpu", "auto"];

function checkDevice({ device = "wasm", reproducible, memoryBudget, debug }: SessionOptions): void {
  throwIf(!DEVICES.includes(device), TypeError, `'device' must be "wasm", "webgpu" or "auto", got ${brief(device)}.`);
  const asked = { reproducible, memoryBudget: memoryBudget !== undefined, "debug.checkNumerics": debug?.checkNumerics };
  const [what] = Object.entries(asked).find(([, isOn]) => isOn === true) ?? [];
  refuseIf(device === "webgpu" && what !== undefined, "NOT_ON_GPU", { what });
}

function checkDebug(debug: unknown): void {
  if (debug === undefined) {
    return;
  }
  throwIf(!isObject(debug), TypeError, "'debug' must be an object with 'checkNumerics'.");
  checkKnown("The option of debug", debug as object, ["checkNumerics"]);
  const { checkNumerics } = debug as DebugOptions;
  checkFlag("debug.checkNumerics", checkNumerics ?? false);
}

function resolveExternalData(sources: readonly ExternalData[] = []): ResolvedOptions["externalData"] {
  throwIf(!Array.isArray(sources), TypeError, "'externalData' must be an array of { path, data } or URLs.");
  const files = (sources as readonly ExternalData[]).map((file) =>
    typeof file === "string" ? { path: file, data: file } : file,
  );
  for (const file of files) {
    const isFile = isObject(file) && typeof file.path === "string" && isSource(file.data);
    throwIf(!isFile, TypeError, "'externalData' must have a path and a URL, Uint8Array, ArrayBuffer or Blob for each file.");
    checkOptions("externalData", file, { path: true, data: true });
  }
  throwIf(new Set(files.map(({ path }) => path)).size !== files.length, TypeError, "'externalData' has a path twice.");
  return files.map(({ path, data }) => ({ what: `externalData of '${path}'`, path, data }));
}

function resolveWeights(sources: unknown): ResolvedOptions["externalData"] {
  const files: readonly unknown[] = sources === undefined ? [] : Array.isArray(sources) ? sources : [sources];
  return files.map((data, k) => {
    mustBe(isSource(data), "weights", "a URL, Uint8Array, ArrayBuffer or Blob, or an array of these", data);
    return { what: `weights ${k}`, path: `${GIVEN}${k}`, data };
  });
}

function checkCount(name: string, value: unknown, least: number): void {
  const isCount = Number.isSafeInteger(value) && (value as number) >= least;
  refuseIf(value !== undefined && !isCount, "NOT_A_COUNT", { name, least, value });
}

function providersOf(providers: unknown): string[] {
  mustBe(Array.isArray(providers), "executionProviders", "an array", providers);
  return (providers as readonly unknown[]).map((one) => {
    const name = isObject(one) ? (one as { readonly name?: unknown }).name : one;
    if (typeof name !== "string") {
      throw new TypeError(`'executionProviders' has ${describe(one)}, which is neither a name nor an object with one.`);
    }
    return name;
  });
}

/** The texts are the same as in onnxruntime-web. */
function checkPeerOptions(options: SessionOptions): void {
  const providers = providersOf(options.executionProviders ?? []);
  for (const name of providers) {
    throwIf(!PROVIDERS.includes(name), Error, `no available backend found. ERR: not supported execution provider: ${brief(name)}`);
  }
  const { graphOptimizationLevel, executionMode, logSeverityLevel, logVerbosityLevel } = options;
  const isLevel = graphOptimizationLevel === undefined || OPTIMIZATION_LEVELS.includes(graphOptimizationLevel);
  throwIf(!isLevel, Error, `unsupported graph optimization level: ${brief(graphOptimizationLevel)}`);
  throwIf(executionMode !== undefined && !EXECUTION_MODES.includes(executionMode), Error, `unsupported execution mode: ${brief(executionMode)}`);
  checkSeverity(logSeverityLevel, logVerbosityLevel);
  for (const name of ["enableCpuMemArena", "enableMemPattern"] as const) {
    checkFlag(name, options[name] ?? false);
  }
  checkCount("intraOpNumThreads", options.intraOpNumThreads, 0);
  checkCount("interOpNumThreads", options.interOpNumThreads, 0);
  const entries = entriesOf(options.extra);
  checkObeyed(options);
  warnWithoutEffect(options, providers, entries);
}

/** Options that would be accepted in vain. */
function checkObeyed(options: SessionOptions): void {
  const { enableProfiling, enableGraphCapture, preferredOutputLocation, freeDimensionOverrides } = options;
  const refuse = (isAsked: boolean, what: string, why: string): void =>
    throwIf(isAsked, UnsupportedError, `${what} is not supported: ${why}`);
  refuse(Boolean(enableProfiling), "enableProfiling", "session.profile(feeds) times every instruction of a step.");
  refuse(Boolean(enableGraphCapture), "enableGraphCapture", "it is for WebGPU; steps are compiled anyway.");
  const path = options.optimizedModelFilePath;
  refuse(path !== undefined, "optimizedModelFilePath", "a plan is not an ONNX model; session.explain(feeds) tells it.");
  const locations =
    typeof preferredOutputLocation === "object" ? Object.values(preferredOutputLocation) : [preferredOutputLocation];
  const elsewhere = locations.find((location) => ![undefined, "cpu", "cpu-pinned"].includes(location));
  refuse(elsewhere !== undefined, `preferredOutputLocation '${String(elsewhere)}'`, "results are in memory: 'cpu'.");
  for (const [name, size] of Object.entries(freeDimensionOverrides ?? {})) {
    checkCount(`freeDimensionOverrides.${name}`, size, 0);
  }
}

/** Check the common options of sessions and runs. */
export function checkSeverity(severity: unknown, verbosity: unknown): void {
  const isSeverity = Number.isInteger(severity) && (severity as number) >= 0 && (severity as number) <= MAX_SEVERITY;
  throwIf(severity !== undefined && !isSeverity, Error, `log serverity level is not valid: ${brief(severity)}`);
  const isVerbosity = Number.isInteger(verbosity) && (verbosity as number) >= 0;
  throwIf(verbosity !== undefined && !isVerbosity, Error, `log verbosity level is not valid: ${brief(verbosity)}`);
}

/** Own keys in the spelling of Python. */
function toSnakeCase(object: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [snakeCase(key), value as unknown]));
}
