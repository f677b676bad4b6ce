/** The worker: the kernels, all sessions of a page, and Python once a call needs it. */

import { imageValues } from "../data/images.js";
import { Engine } from "../engine/engine.js";
import { STATE } from "../engine/layout.js";
import { bootPython } from "../python/boot.js";
import { Bridge } from "../python/bridge.js";
import { streamBlob } from "../python/python-files.js";
import type { PulseTask } from "../engine/pool.js";
import { toWire } from "../wire/errors.js";
import { readCheckpoint, withCheckpoint, writeCheckpoint } from "../storage/checkpoints.js";
import { startWorker } from "../wire/start-worker.js";
import { importModule, messageOf } from "../wire/fetch-file.js";
import { followFiles } from "../wire/progress.js";
import { log, setLogLevel } from "../wire/log.js";
import { raise, refuseIf, sessionError } from "../wire/messages.js";
import type {
  DeviceNote,
  ShaderNote,
  FileData,
  InferenceAbout,
  KnownHashes,
  Listening,
  MaybePromise,
  Method,
  Note,
  Origin,
  Reply,
  Request,
  Result,
  RunAnswer,
  SessionDevice,
  SessionInfo,
  Feed,
  WorkerApi,
  WorkerSettings,
} from "../wire/protocol.js";
import { parseBundle, parseInference, splitBundle, type Bundle, type RawBundle, type SegmentStart } from "./bundle/bundle.js";
import { BundleCache, cacheName, checkFiles, DamagedFile, filesOf, type Files } from "./cache.js";
import { ofModel, StateCore } from "./file-calls.js";
import { Evaluations } from "./evaluation.js";
import { Decoder } from "./decoder.js";
import { predictBatch, unreadInputs } from "./predict.js";
import { runTrainSteps } from "./fit/batches.js";
import { WorkerFit } from "./fit/loop.js";
import { InferenceCore } from "./inference-core.js";
import { WorkerLane } from "./lane.js";
import { withValue, type GpuScript, type HostOpener, type SessionGpu, type WorkerTools } from "./host.js";
import { LazyModels, originOf, PythonModels, type FilledSegments } from "./python-models.js";
import type { Run } from "./runner.js";
import { SessionCore, type CoreOptions } from "./session-core.js";
import { stepKind } from "./step-kind.js";
import { writeSafetensors } from "./safetensors.js";
import { checkState, STATE_KEPT } from "./session-contents.js";
import { openSnapshot, sharedPart } from "./snapshot.js";
import { readFile } from "./cached-files.js";
import { WASM } from "../wire/constants.js";
import { WasmHost, type Kernels } from "./wasm/wasm-host.js";

/** A session or checkpoint state, and the calls that wait for their turn. */
interface Turns<Core = SessionCore> {
  readonly core: Core;
  /** The cache of its bundle, if there is one. */
  readonly cache: BundleCache | null;
  readonly evaluations: Evaluations;
  readonly decoder: Decoder;
  fit: WorkerFit | null;
  /** The device of steps, as the page knows it. */
  device: SessionDevice | undefined;
  /** Calls that wait: one for Python, the others behind it. */
  waiting: number;
  /** Settles when the last of them is done. */
  turn: Promise<unknown>;
}

type AnyCore = SessionCore | InferenceCore | StateCore;

/** The worker compiles ahead after this silence, so that a page that steps at once does not wait, */
const AHEAD_QUIET_MS = 20;
/** and no later than this: a page that was never quiet asks for the plans that it needs. */
const AHEAD_PATIENCE_MS = 5_000;

class SessionWorker {
  #settings: WorkerSettings | null = null;
  #engine: Promise<Engine> | null = null;
  #kernels: Engine | null = null;
  #description: Kernels | null = null;
  #python: Promise<Bridge> | null = null;
  #nextHandle = 1;
  #lastUse = 0;
  readonly #written = new Set<Promise<void>>();
  /** The GPU that is opened for the next session, by the option. */
  readonly #early = new Map<string, Promise<SessionGpu>>();
  readonly #sessions = new Map<number, Turns<AnyCore>>();
  /** Controllers of the last steps that may be stopped, by session. */
  readonly #stops = new Map<number, AbortController>();

  readonly calls: WorkerApi = {
    holdLock: async (name) => {
      const locks = globalThis.navigator?.locks;
      if (locks === undefined) {
        return false;
      }
      return new Promise((resolve) => {
        // Held until this worker ends, however it ends.
        const held = locks.request(name, () => new Promise<never>(() => resolve(true)));
        held.catch(() => resolve(false));
      });
    },

    pulse: (port, script) =>
      new Promise((resolve) => {
        // The thread ends with this worker, and goes on while this worker computes.
        const worker = startWorker(script);
        worker.addEventListener("message", () => resolve(true), { once: true });
        worker.addEventListener("error", () => resolve(false), { once: true });
        worker.postMessage({ pulse: port } satisfies PulseTask, [port]);
      }),

    finish: async () => {
      await Promise.all(this.#written);
      return null;
    },

    start: async (settings, logLevel) => {
      setLogLevel(logLevel);
      const { files, threads, reproducible, stallMs } = settings;
      this.#settings = settings;
      if (!settings.hasKernels) {
        return { build: "no kernels", threads: 0, memory: null, wakeWord: 0, lane: null, kernelsFault: null };
      }
      let fault: string | null = null;
      const options = { poolWorker: files.poolWorker, threads, reproducible, stallMs };
      this.#engine = Engine.create({ ...options, wasm: (build) => files[build] }).catch((error: unknown) => {
        // Pages of onnxruntime-web name the folder of its files, not of ours.
        const { ownKernels } = files;
        if (ownKernels === null) {
          throw error;
        }
        fault = messageOf(error);
        return Engine.create({ ...options, wasm: (build) => ownKernels[build] });
      });
      const engine = await this.#engine;
      this.#kernels = engine;
      const { build, threads: count, sharedMemory: memory, wakeWord } = engine;
      const words = memory === null ? null : (lane?.words ?? null);
      return { build, threads: count, memory, wakeWord, lane: words, kernelsFault: fault };
    },

    openDevice: (optionsJson) => {
      const { device, onlyOnWasm } = coreOptions(optionsJson);
      if (device !== WASM && onlyOnWasm === undefined && !this.#early.has(device)) {
        const gpu = this.#openGpu(device);
        // The session that takes it has the error.
        gpu.catch(() => {});
        this.#early.set(device, gpu);
      }
      return null;
    },

    startPython: async () => (await this.#bootPython()).version,

    createSession: (origin, optionsJson, cached) => this.#create(origin, optionsJson, cached),

    createFromBundle: async (file, optionsJson) => {
      const open = await this.#opener(coreOptions(optionsJson));
      const bundle = this.#parse(await splitBundle(file as Uint8Array<ArrayBuffer> | Blob));
      const info = this.#add(open, bundle, optionsJson, null, null, null);
      await this.#filled(info, ({ host }) => fillFromFile(bundle.segments, host));
      return info;
    },

    step: (handle, kind, feeds, fetches, mayStop, averaged) => {
      const stop = this.#stopFor(handle, mayStop);
      return this.#perform(handle, ({ core }) =>
        core.withAverages(averaged, () =>
          withValue(core.step(stepKind(kind), feeds, fetches, stop), (run) => runAnswer(run, feeds)),
        ),
      );
    },

    stop: (handle) => {
      this.#stops.get(handle)?.abort();
      return null;
    },

    trainSteps: (handle, task, loss) =>
      this.#perform(handle, async ({ core }) => ({
        losses: await runTrainSteps(core, task, loss),
        buffers: (task.stacked ?? []).map(({ data }) => data.buffer as ArrayBuffer),
      })),

    startFit: (handle, spec, port) =>
      this.#perform(handle, async (session) => {
        const fit = await WorkerFit.open(session.core, spec, port);
        const start = await fit.start();
        session.fit = fit;
        return start;
      }),

    runFit: async (handle) => {
      const session = this.#find(handle);
      try {
        await session.fit?.run(async (action) => this.#perform(handle, async () => action()));
        return null;
      } finally {
        session.fit = null;
      }
    },

    evaluate: (handle, number, spec, batch, averaged) =>
      this.#perform(handle, ({ core, evaluations }) =>
        core.withAverages(averaged, () => evaluations.run(core, number, spec, batch)),
      ),

    unread: (handle, outputs) => this.#perform(handle, ({ core }) => unreadInputs(core, outputs)),

    predict: (handle, outputs, batch, whole, averaged) =>
      this.#perform(handle, ({ core }) =>
        core.withAverages(averaged, () => predictBatch(core, outputs, batch, whole)),
      ),

    nextToken: (handle, task) => this.#perform(handle, ({ core, decoder }) => decoder.next(core, task)),

    saveSession: (handle, where, name) =>
      this.#perform(handle, ({ core }) =>
        withValue(core.snapshot(), async (snapshot) => {
          const file = writeSafetensors(snapshot);
          await withCheckpoint(where, name, () => writeCheckpoint(where, name, file));
          return null;
        }),
      ),

    lendState: (handle) => this.#perform(handle, ({ core }) => withValue(core.snapshot(), sharedPart)),

    takeState: (handle, shared) =>
      this.#perform(handle, ({ core }) => withValue(core.restore(core.read(shared)), () => null)),

    loadSession: (handle, where, name) =>
      this.#perform(handle, async ({ core }) => {
        const file = (await readCheckpoint(where, name)) ?? raise("NO_CHECKPOINT", { name, folder: where.folder });
        await core.restore(core.read(openSnapshot(file)));
        return null;
      }),

    profile: (handle, kind, feeds, runs) => this.#perform(handle, ({ core }) => core.profile(kind, feeds, runs)),

    call: (handle, { name, args }) =>
      this.#perform(handle, ({ core }) => core.call(name, args)),

    release: (handle) => {
      if (!this.#sessions.has(handle)) {
        return null;
      }
      return this.#perform(handle, ({ core, cache, fit }) => {
        this.#sessions.delete(handle);
        this.#stops.delete(handle);
        cache?.finish();
        this.#keepWriting(cache);
        return withValue(fit?.drop(), () => {
          core.release();
          return null;
        });
      });
    },

    ofModel: async (call, args, form) => ofModel(await this.#bootPython(), call, args, form),

    createInference: async (args, optionsJson) => {
      const bridge = await this.#bootPython();
      const { models, raw } = PythonModels.open(bridge, "create_inference", args);
      const kernels = this.#describeKernels();
      const bundle = parseInference(raw, kernels.fingerprint);
      const core = new InferenceCore(this.#openHost, kernels.fingerprint, bundle, coreOptions(optionsJson), models);
      try {
        await models.fill(core.host);
      } catch (error) {
        core.release();
        throw error;
      }
      return { ...core.info, handle: this.#keep(core), about: (raw.header as { readonly about: InferenceAbout }).about };
    },

    openState: async (file) => this.#keep(new StateCore(await this.#bootPython(), file)),

    readImage: async (image, options) => ({ data: await imageValues(image, options) }),

    memory: () => ({ inUse: this.#running.bytesInUse, total: this.#running.memoryBytes }),
  };

  /** The signal that `stop` aborts from now on. At most one step of a session that may be stopped is under way. */
  #stopFor(handle: number, mayStop: boolean): AbortSignal | null {
    if (!mayStop) {
      return null;
    }
    const controller = new AbortController();
    this.#stops.set(handle, controller);
    return controller.signal;
  }

  /** Remember the writes of a released session. */
  #keepWriting(cache: BundleCache | null): void {
    if (cache !== null) {
      const { written } = cache;
      this.#written.add(written);
      void written.finally(() => this.#written.delete(written));
    }
  }

  /** The page makes calls that need it once the worker has started. */
  get #running(): Engine {
    return this.#kernels as Engine;
  }

  readonly #openHost: HostOpener = (start, options) => this.#wasmHost("the option device")(start, options);

  #wasmHost(why: string): HostOpener {
    return (start, options) => new WasmHost(this.#running, this.#describeKernels(), start, options, why);
  }

  /** Opens the host of sessions with these options. @throws DeviceError when steps must run on a GPU, and there is none */
  async #opener({ device, onlyOnWasm }: DeviceOptions): Promise<HostOpener> {
    if (device === WASM) {
      return this.#openHost;
    }
    const isAuto = device === "auto";
    const instead = (error: unknown): HostOpener => {
      if (!isAuto || (error as Error).name !== "DeviceError") {
        throw error;
      }
      const { message } = error as Error;
      log("info", `sessions train on the CPU: ${message}`);
      return this.#wasmHost(message);
    };
    if (onlyOnWasm !== undefined) {
      return this.#wasmHost(`the option ${onlyOnWasm}`);
    }
    try {
      const early = this.#early.get(device);
      this.#early.delete(device);
      const gpu = await (early ?? this.#openGpu(device));
      return (start, options) => {
        try {
          gpu.check(start.segments);
        } catch (error) {
          return instead(error)(start, options);
        }
        return gpu.over(this.#openHost({ ...start, elsewhere: gpu.segments }, options));
      };
    } catch (error) {
      return instead(error);
    }
  }

  async #openGpu(device: string): Promise<SessionGpu> {
    const { files, stallMs } = this.#settings as WorkerSettings;
    const { openGpu } = await importModule<GpuScript>(files.webgpu, "openGpu", stallMs);
    const tools = { sessionError, log, tellShaders: this.#tellShaders };
    return openGpu(globalThis.navigator?.gpu, tools, device === "auto");
  }

  #describeKernels(): Kernels {
    this.#description ??= JSON.parse(this.#running.description()) as Kernels;
    return this.#description;
  }

  /** Python, started at the first call; after a failure the next call tries again. */
  #bootPython(): Promise<Bridge> {
    const [settings, engine] = [this.#settings as WorkerSettings, this.#engine as Promise<Engine>];
    this.#python ??= (async () => {
      try {
        const python = bootPython(settings.files, settings.snapshot, settings.stallMs);
        // Awaited below. A failure of the engine must not leave it unhandled.
        python.catch(() => {});
        const kernels = await engine;
        return new Bridge(await python, kernels);
      } catch (error) {
        this.#python = null;
        // The page must learn first that kernels do not start.
        await engine.catch(() => {});
        // A module that failed to load cannot be loaded again in this worker.
        const isIdle = this.#sessions.size === 0;
        throw Object.assign(error as Error, { fatal: isIdle });
      }
    })();
    return this.#python;
  }

  async #create(origin: Origin, optionsJson: string, cached: KnownHashes | null): Promise<SessionInfo | null> {
    // A page without a GPU need not wait for Python.
    const open = await this.#opener(coreOptions(optionsJson));
    const files = filesOf(origin, cached ?? []);
    const name = cached === null ? null : await cacheName(this.#describeKernels().fingerprint, origin, files);
    try {
      const info = name === null ? null : await this.#fromCache(open, name, origin, optionsJson, files);
      if (info !== null) {
        return info;
      }
      await checkFiles(files);
    } catch (error) {
      if (error instanceof DamagedFile) {
        return null;
      }
      throw error;
    }
    const bridge = await this.#bootPython();
    const { models, raw } = PythonModels.open(bridge, origin.call, origin.args);
    const cache = name === null ? null : new BundleCache(name, () => this.#lastUse);
    const info = this.#add(open, this.#parse(raw), optionsJson, { ...origin, args: [] }, models, cache);
    await this.#filled(info, async (core) => {
      const start = await models.fill(core.host);
      await cache?.setStart(raw, start);
    });
    void this.#compileAhead(info.handle);
    return info;
  }

  /** Make a session of its stored bundle; null: no usable bundle is stored. */
  async #fromCache(
    open: HostOpener,
    name: string,
    origin: Origin,
    optionsJson: string,
    files: Files,
  ): Promise<SessionInfo | null> {
    const stored = await readFile(name);
    if (stored === null) {
      return null;
    }
    try {
      const cache = new BundleCache(name, () => this.#lastUse);
      const bundle = await splitBundle(stored);
      const info = this.#add(open, this.#parse(bundle, files.length), optionsJson, origin, null, cache);
      await this.#filled(info, (core) => cache.fill(bundle, core.host, files));
      return info;
    } catch (error) {
      if (error instanceof DamagedFile) {
        throw error;
      }
      // For example, the format has another version. The bundle is written again.
      return null;
    }
  }

  /** Compile what the first steps of a new session will run, while nobody asks for anything. */
  async #compileAhead(handle: number): Promise<void> {
    const end = performance.now() + AHEAD_PATIENCE_MS;
    while (performance.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, AHEAD_QUIET_MS));
      const session = this.#sessions.get(handle) as Turns | undefined;
      if (session === undefined) {
        return;
      }
      if (session.waiting > 0 || performance.now() - this.#lastUse < AHEAD_QUIET_MS) {
        continue;
      }
      try {
        if (!session.core.compileAhead()) {
          return;
        }
      } catch {
        // The step that needs the plan reports the error.
        return;
      }
    }
  }

  /** Fill a new session with its start. After a failure the session is released. */
  async #filled({ handle }: SessionInfo, fill: (core: SessionCore) => Promise<void>): Promise<void> {
    const session = this.#find(handle);
    const { core } = session;
    try {
      await core.host.fill(() => fill(core));
      this.#tellDevice(handle, session);
      checkState(core.host.range(STATE, 0, STATE_KEPT));
    } catch (error) {
      this.#sessions.delete(handle);
      core.release();
      throw error;
    }
  }

  /**
   * Make a session.
   *
   * @param origin - how Python opens its models; null: from the models of the bundle
   * @param models - if they are open already
   */
  #add(
    open: HostOpener,
    bundle: Bundle,
    optionsJson: string,
    origin: Origin | null,
    models: PythonModels | null,
    cache: BundleCache | null,
  ): SessionInfo {
    const lazy = new LazyModels(() => this.#bootPython(), origin ?? originOf(bundle, optionsJson), models);
    const onPlan = cache === null ? () => {} : cache.add.bind(cache);
    const options = { ...coreOptions(optionsJson), onRefused: () => cache?.discard() };
    const core = new SessionCore(open, this.#describeKernels().fingerprint, bundle, options, lazy, onPlan);
    return { ...core.info, handle: this.#keep(core, cache, core.host.device) };
  }

  /** Keep a core for later calls; returns its handle. */
  #keep(core: AnyCore, cache: BundleCache | null = null, device?: SessionDevice): number {
    const handle = this.#nextHandle++;
    const parts = { evaluations: new Evaluations(), decoder: new Decoder(), fit: null };
    this.#sessions.set(handle, { core, cache, ...parts, device, waiting: 0, turn: Promise.resolve() });
    return handle;
  }

  /** The page only makes calls that the kind of session has. */
  #find(handle: number): Turns {
    const session = this.#sessions.get(handle);
    refuseIf(session === undefined, "RELEASED");
    return session as Turns;
  }

  #parse(raw: RawBundle<Uint8Array | Blob>, files = 0): Bundle {
    return parseBundle(raw, this.#describeKernels().fingerprint, files);
  }

  readonly #tellShaders: WorkerTools["tellShaders"] = (host, compiled, total) => {
    const [handle] = [...this.#sessions].find(([, { core }]) => "host" in core && core.host === host) ?? [];
    if (handle !== undefined) {
      postMessage({ handle, shaders: [compiled, total] } satisfies ShaderNote);
    }
  };

  /** Tell the page where the steps of a session run, if that has changed. */
  #tellDevice(handle: number, session: Turns): void {
    const { device } = session;
    if (device !== undefined && device !== session.core.host.device) {
      session.device = session.core.host.device;
      postMessage({ handle, device: session.device } satisfies DeviceNote);
    }
  }

  /** Do something with a session: at once, or in turn where an earlier call waits for Python. */
  #perform<T>(handle: number, action: (session: Turns) => MaybePromise<T>): MaybePromise<T> {
    this.#lastUse = performance.now();
    const session = this.#find(handle);
    const result = session.waiting === 0 ? action(session) : session.turn.then(() => action(session));
    if (!(result instanceof Promise)) {
      return result;
    }
    session.waiting++;
    const done = result.finally(() => {
      session.waiting--;
      this.#tellDevice(handle, session);
    });
    session.turn = done.catch(() => {});
    return done;
  }
}

/** Fill the segments of a session from its bundle. */
async function fillFromFile(
  starts: readonly SegmentStart[],
  segments: Pick<FilledSegments, "range">,
): Promise<void> {
  for (const [segment, { bytes, data }] of starts.entries()) {
    if (data instanceof Uint8Array) {
      segments.range(segment, 0, bytes).set(data);
    } else if (data !== null) {
      const part = data.blob.slice(data.start, data.start + bytes);
      await streamBlob(part, (start, part) => segments.range(segment, start, part.length).set(part));
    }
  }
}

/** The requested device of steps. */
interface DeviceOptions {
  readonly device: string;
  /** An option that a GPU does not have. */
  readonly onlyOnWasm: string | undefined;
}

interface PythonOptions {
  readonly device?: string;
  readonly reproducible?: boolean;
  readonly memory_budget?: number;
  readonly max_plans?: number;
  readonly limits?: { readonly arena_bytes?: number };
  readonly debug?: { readonly check_numerics?: boolean };
}

/** Plans of steps that a session keeps: for eight sizes of batch, each to overwrite and to add. */
const DEFAULT_MAX_PLANS = 16;

function coreOptions(optionsJson: string): CoreOptions & DeviceOptions {
  const options = JSON.parse(optionsJson) as PythonOptions;
  const { reproducible, memory_budget: memoryBudget, debug } = options;
  const [onlyOnWasm] = Object.entries({ reproducible, memoryBudget, "debug.checkNumerics": debug?.check_numerics }).find(
    ([, value]) => value !== undefined && value !== false,
  ) ?? [undefined];
  return {
    device: options.device ?? WASM,
    onlyOnWasm,
    arenaLimit: options.limits?.arena_bytes ?? Infinity,
    memoryBudget: options.memory_budget ?? Infinity,
    maxPlans: options.max_plans ?? DEFAULT_MAX_PLANS,
    checkNumerics: options.debug?.check_numerics ?? false,
    onRefused: () => {},
  };
}

function runAnswer(run: Run, feeds: readonly Feed[]): RunAnswer {
  const buffers = feeds.flatMap(({ data }) => (data instanceof Uint8Array ? [data.buffer as ArrayBuffer] : []));
  return { ...run, buffers: [...new Set(buffers)] };
}

/** Buffers that are transferred with an answer instead of being copied. */
function buffersOf(answer: Partial<RunAnswer & { readonly data: FileData | Float32Array }>): ArrayBuffer[] {
  const { results = [], buffers = [], data } = answer;
  const tensors = data instanceof Uint8Array || data instanceof Float32Array ? [...results, { data }] : results;
  return [...tensors.map((tensor) => tensor.data.buffer as ArrayBuffer), ...buffers];
}

function reply(id: number, result: Result<unknown>): void {
  if (id === 0) {
    return;
  }
  const message: Reply = { id, result };
  postMessage(message, { transfer: "ok" in result && result.ok instanceof Object ? buffersOf(result.ok) : [] });
}

/**
 * Answer a request: at once, unless its call takes time.
 *
 * @param keep - gets an immediate answer; true: send no message
 * @returns an immediate answer
 */
function answer({ id, method, args }: Request, keep: (ok: unknown) => boolean = () => false): unknown {
  const fail = (error: unknown): void => reply(id, { error: toWire(error) });
  try {
    const value = calls[method](...args);
    if (value instanceof Promise) {
      void value.then((ok: unknown) => reply(id, { ok }), fail);
      return undefined;
    }
    if (!keep(value)) {
      reply(id, { ok: value });
    }
    return value;
  } catch (error) {
    fail(error);
    return undefined;
  }
}

const lane = typeof SharedArrayBuffer === "undefined" ? null : new WorkerLane(answer, (id, ok) => reply(id, { ok }));

const calls = new SessionWorker().calls as unknown as Readonly<Record<Method, (...args: readonly unknown[]) => unknown>>;

followFiles((progress) => postMessage({ progress } satisfies Note));

const hear = (requests: readonly Request[]): void => (lane === null ? requests.forEach((one) => answer(one)) : lane.hear(requests));
addEventListener("message", ({ data }: MessageEvent<readonly Request[]>) => hear(data));

// Last, so that the page notices a script that was cut off.
postMessage({ listens: "the worker of trainweb" } satisfies Listening);
