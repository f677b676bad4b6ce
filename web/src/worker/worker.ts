/** The worker: the kernels, all sessions of a page, and Python once somebody needs it. */

import { Engine } from "../engine/engine.js";
import { bootPython } from "../python/boot.js";
import { Bridge } from "../python/bridge.js";
import { EngineError, ReleasedError, SessionError, toWire } from "../wire/errors.js";
import type { WireProfile } from "../wire/profile.js";
import type {
  ArtifactBytes,
  CallAnswer,
  Feed,
  Fetch,
  InferenceInfo,
  MaybePromise,
  Method,
  PythonInfo,
  Reply,
  Request,
  Result,
  RunAnswer,
  SessionInfo,
  StepKind,
  WorkerApi,
  WorkerInfo,
  WorkerSettings,
} from "../wire/protocol.js";
import { BundleSession, NeedsPython, type Kernels } from "./bundle-session.js";
import { parseBundle } from "./bundle.js";
import { BundleCache, cacheName } from "./cache.js";
import { CompiledSession, PlanRunner, type Run } from "./compiled-session.js";
import { PythonPlans, PythonSession, type SessionHost } from "./host.js";
import { readFile } from "./store.js";

/** Calls after which addresses of plans may be void. */
const INVALIDATING: ReadonlySet<string> = new Set(["load_parameters_buffer"]);

/** What a session is made of, as the functions `create` and `create_from_model` of the bridge take it. */
type Sources = readonly (Uint8Array | string | null)[];

interface CacheEntry {
  /** Of the bundle. */
  readonly name: string;
  /** Model and configuration of a session made by `createFromModel`. */
  readonly model: Sources | null;
}

/** A training session. */
interface Session {
  readonly host: SessionHost;
  readonly compiled: CompiledSession;
  /** Options of the session as Python takes them. */
  readonly optionsJson: string;
  /** Where its bundle is kept, if it is. */
  readonly cache: CacheEntry | null;
  /** Calls that wait: one for Python, the others behind it. */
  waiting: number;
  /** Settles when the last of them is done. */
  turn: Promise<unknown>;
}

interface InferenceSession {
  readonly source: PythonPlans;
  readonly runner: PlanRunner;
}

class SessionWorker implements WorkerApi {
  #settings: WorkerSettings | null = null;
  #engine: Promise<Engine> | null = null;
  #kernels: Engine | null = null;
  #description: Kernels | null = null;
  #python: Promise<Bridge> | null = null;
  #nextHandle = 1;
  #lastUse = 0;
  readonly #sessions = new Map<number, Session>();
  readonly #inference = new Map<number, InferenceSession>();

  async holdLock(name: string): Promise<Result<boolean>> {
    const locks = globalThis.navigator?.locks;
    if (locks === undefined) {
      return { ok: false };
    }
    return new Promise((resolve) => {
      // Held until this worker ends, however it ends.
      const held = locks.request(name, () => new Promise<never>(() => resolve({ ok: true })));
      held.catch(() => resolve({ ok: false }));
    });
  }

  async start(settings: WorkerSettings): Promise<Result<WorkerInfo>> {
    const { files, threads, reproducible } = settings;
    this.#settings = settings;
    return attemptAsync(async () => {
      this.#engine = Engine.create({
        wasm: (build) => files.kernels[build],
        poolWorker: files.poolWorker,
        threads,
        reproducible,
      });
      const engine = await this.#engine;
      this.#kernels = engine;
      return { build: engine.build, threads: engine.threads, memory: engine.sharedMemory, wakeWord: engine.wakeWord };
    });
  }

  async startPython(): Promise<Result<PythonInfo>> {
    return attemptAsync(async () => ({ python: (await this.#bootPython()).version }));
  }

  createTraining(
    artifacts: ArtifactBytes,
    optionsJson: string,
    cache: boolean,
  ): Promise<Result<SessionInfo>> {
    const { trainModel, checkpoint, evalModel, optimizerModel } = artifacts;
    const sources = [trainModel, checkpoint, evalModel, optimizerModel];
    return attemptAsync(() => this.#create("create", sources, optionsJson, cache));
  }

  createFromModel(
    model: Uint8Array,
    configJson: string,
    optionsJson: string,
    cache: boolean,
  ): Promise<Result<SessionInfo>> {
    const sources = [model, configJson];
    return attemptAsync(() => this.#create("create_from_model", sources, optionsJson, cache));
  }

  createFromBundle(bytes: Uint8Array, optionsJson: string): Result<SessionInfo> {
    return attempt(() => this.#addBundle(bytes, optionsJson, null));
  }

  step(
    handle: number,
    kind: StepKind,
    feeds: readonly Feed[],
    fetches: readonly Fetch[],
  ): MaybePromise<Result<RunAnswer>> {
    return this.#perform(handle, ({ compiled }) => runAnswer(compiled.step(kind, feeds, fetches), feeds));
  }

  profile(
    handle: number,
    kind: "train" | "eval",
    feeds: readonly Feed[],
    runs: number,
  ): MaybePromise<Result<WireProfile>> {
    return this.#perform(handle, ({ compiled }) => compiled.profile(kind, feeds, runs));
  }

  lazyResetGrad(handle: number): MaybePromise<Result<null>> {
    return this.#perform(handle, ({ compiled }) => {
      compiled.lazyResetGrad();
      return null;
    });
  }

  getLearningRate(handle: number): MaybePromise<Result<number>> {
    return this.#perform(handle, ({ compiled }) => compiled.learningRate);
  }

  setLearningRate(handle: number, rate: number): MaybePromise<Result<null>> {
    return this.#perform(handle, ({ compiled }) => {
      compiled.learningRate = rate;
      return null;
    });
  }

  call(
    handle: number,
    method: string,
    args: string,
    data: Uint8Array | null,
  ): MaybePromise<Result<CallAnswer>> {
    const call = ({ host, compiled }: Session): CallAnswer => {
      try {
        return host.call(method, args, data);
      } finally {
        if (INVALIDATING.has(method)) {
          compiled.clearPlans();
        }
      }
    };
    return this.#perform(handle, call);
  }

  release(handle: number): MaybePromise<Result<null>> {
    if (!this.#sessions.has(handle)) {
      return { ok: null };
    }
    return this.#perform(handle, ({ host }) => {
      this.#sessions.delete(handle);
      host.release();
      return null;
    });
  }

  createInference(model: Uint8Array, optionsJson: string): Promise<Result<InferenceInfo>> {
    return attemptAsync(async () => {
      const bridge = await this.#bootPython();
      const info = bridge.call("inference_create", model, optionsJson).value as InferenceInfo;
      const source = new PythonPlans(bridge, info.handle);
      this.#inference.set(info.handle, { source, runner: new PlanRunner(this.#running, source) });
      return info;
    });
  }

  runInference(
    handle: number,
    feeds: readonly Feed[],
    fetches: readonly Fetch[],
  ): MaybePromise<Result<RunAnswer>> {
    return attempt(() => {
      const session = this.#inference.get(handle);
      if (session === undefined) {
        throw new ReleasedError("the inference session was released.");
      }
      return runAnswer(session.runner.run("inference", 0, feeds, fetches), feeds);
    });
  }

  releaseInference(handle: number): Result<null> {
    return attempt(() => {
      const session = this.#inference.get(handle);
      this.#inference.delete(handle);
      session?.source.release();
      return null;
    });
  }

  memory(): Result<{ readonly inUse: number; readonly total: number }> {
    return attempt(() => {
      return { inUse: this.#running.bytesInUse, total: this.#running.memoryBytes };
    });
  }

  get #running(): Engine {
    if (this.#kernels === null) {
      throw new EngineError("the worker has not started.");
    }
    return this.#kernels;
  }

  #describeKernels(): Kernels {
    this.#description ??= JSON.parse(this.#running.description()) as Kernels;
    return this.#description;
  }

  /** Python, started at the first call; after a failure the next call tries again. */
  #bootPython(): Promise<Bridge> {
    const { settings, engine } = { settings: this.#settings, engine: this.#engine };
    if (settings === null || engine === null) {
      return Promise.reject(new EngineError("the worker has not started."));
    }
    this.#python ??= (async () => {
      try {
        const python = bootPython(settings.files, settings.snapshot);
        // Taken up below; a failure of the engine's must not leave it unhandled.
        python.catch(() => {});
        const kernels = await engine;
        return new Bridge(await python, kernels);
      } catch (error) {
        this.#python = null;
        // The page hears of kernels that do not start before it hears of this.
        await engine.catch(() => {});
        // A module that failed to load stays so for the life of a worker: another one may try again.
        const isIdle = this.#sessions.size === 0 && this.#inference.size === 0;
        throw Object.assign(error as Error, { fatal: isIdle });
      }
    })();
    return this.#python;
  }

  async #create(
    call: "create" | "create_from_model",
    sources: Sources,
    optionsJson: string,
    isCached: boolean,
  ): Promise<SessionInfo> {
    const cache = isCached ? await this.#cacheEntry(call, sources, optionsJson) : null;
    const stored = cache === null ? null : await this.#openStored(cache, optionsJson);
    if (stored !== null) {
      return stored;
    }
    const bridge = await this.#bootPython();
    const info = bridge.call(call, ...sources, optionsJson).value as SessionInfo;
    const { handle, statePtr } = info;
    if (cache === null) {
      return this.#add(new PythonSession(bridge, handle, statePtr, null), optionsJson, null, info);
    }
    const writer = this.#remember(bridge, handle, sources, cache);
    return this.#add(new PythonSession(bridge, handle, statePtr, writer), optionsJson, cache, info);
  }

  /** Let Python keep what the session starts from; null where there is no room for it. */
  #remember(bridge: Bridge, handle: number, sources: Sources, { name, model }: CacheEntry): BundleCache | null {
    const [train = null, , evaluation = null, optimizer = null] = model === null ? sources : [];
    try {
      bridge.call("remember", handle, train, evaluation, optimizer);
    } catch {
      return null;
    }
    return new BundleCache(name, bridge, handle, null, () => this.#lastUse);
  }

  async #cacheEntry(call: string, sources: Sources, optionsJson: string): Promise<CacheEntry | null> {
    const { fingerprint } = this.#describeKernels();
    const name = await cacheName(fingerprint, [call, optionsJson, ...sources]);
    return name === null ? null : { name, model: call === "create" ? null : sources };
  }

  /** The session from the stored bundle; null where there is none that can be used. */
  async #openStored(cache: CacheEntry, optionsJson: string): Promise<SessionInfo | null> {
    const stored = await readFile(cache.name);
    if (stored === null) {
      return null;
    }
    try {
      return this.#addBundle(stored, optionsJson, cache);
    } catch {
      // Of another version of the format, say. It will be written anew.
      return null;
    }
  }

  #addBundle(bytes: Uint8Array, optionsJson: string, cache: CacheEntry | null): SessionInfo {
    const kernels = this.#describeKernels();
    const bundle = parseBundle(bytes, kernels.fingerprint);
    const host = new BundleSession(this.#running, kernels, bundle, {
      ...bytesAllowed(optionsJson),
      hasArtifacts: cache !== null && cache.model !== null,
    });
    return this.#add(host, optionsJson, cache, host.info);
  }

  #add(
    host: SessionHost,
    optionsJson: string,
    cache: CacheEntry | null,
    info: Omit<SessionInfo, "handle">,
  ): SessionInfo {
    const handle = this.#nextHandle++;
    const compiled = new CompiledSession(this.#running, host, host.statePtr);
    const turn = Promise.resolve();
    this.#sessions.set(handle, { host, compiled, optionsJson, cache, waiting: 0, turn });
    return { ...info, handle };
  }

  /**
   * Do something with a session: at once, or in turn where an earlier call waits for Python. What needs
   * Python is done again once it runs.
   */
  #perform<T>(handle: number, action: (session: Session) => T): MaybePromise<Result<T>> {
    this.#lastUse = performance.now();
    const session = this.#sessions.get(handle);
    if (session === undefined) {
      return { error: toWire(new ReleasedError("the session was released.")) };
    }
    if (session.waiting === 0) {
      try {
        return { ok: action(session) };
      } catch (error) {
        if (!(error instanceof NeedsPython)) {
          return { error: toWire(error) };
        }
      }
    }
    session.waiting++;
    const result = session.turn.then(() => this.#inTurn(session, action));
    session.turn = result;
    return result;
  }

  async #inTurn<T>(session: Session, action: (session: Session) => T): Promise<Result<T>> {
    const result = await attemptAsync(async () => {
      try {
        return action(session);
      } catch (error) {
        if (!(error instanceof NeedsPython) || !(session.host instanceof BundleSession)) {
          throw error;
        }
        await this.#adopt(session.host, session, error.what);
        return action(session);
      }
    });
    session.waiting--;
    return result;
  }

  /** Start Python and let it take over the memory of a session. */
  async #adopt(host: BundleSession, { optionsJson, cache }: Session, what: string): Promise<void> {
    const { models } = host;
    if (models === null) {
      throw new SessionError(
        `${what} is not among what the bundle was compiled for, and it carries no models to do it with.`,
      );
    }
    const bridge = await this.#bootPython();
    const { trainModel, checkpoint, evalModel, optimizerModel } = models;
    const memory = JSON.stringify(host.memory);
    const answer = bridge.call(
      "adopt", trainModel, checkpoint, evalModel, optimizerModel, memory, optionsJson,
    );
    const { handle, statePtr } = answer.value as SessionInfo;
    if (cache !== null && cache.model !== null) {
      bridge.call("adopt_model", handle, ...cache.model);
    }
    const writer =
      cache === null
        ? null
        : new BundleCache(cache.name, bridge, handle, host.signatures, () => this.#lastUse);
    host.handOver(new PythonSession(bridge, handle, statePtr, writer));
  }
}

interface PythonOptions {
  readonly memory_budget?: number;
  readonly limits?: { readonly arena_bytes?: number };
}

function bytesAllowed(optionsJson: string): { readonly arenaLimit: number; readonly memoryBudget: number } {
  const { memory_budget: memoryBudget, limits } = JSON.parse(optionsJson) as PythonOptions;
  return { arenaLimit: limits?.arena_bytes ?? Infinity, memoryBudget: memoryBudget ?? Infinity };
}

function attempt<T>(action: () => T): Result<T> {
  try {
    return { ok: action() };
  } catch (error) {
    return { error: toWire(error) };
  }
}

async function attemptAsync<T>(action: () => Promise<T>): Promise<Result<T>> {
  try {
    return { ok: await action() };
  } catch (error) {
    return { error: toWire(error) };
  }
}

function runAnswer(run: Run, feeds: readonly Feed[]): RunAnswer {
  const buffers = feeds.flatMap(({ data }) => (data instanceof Uint8Array ? [data.buffer as ArrayBuffer] : []));
  return { ...run, buffers: [...new Set(buffers)] };
}

/** What is handed over with an answer instead of being copied. */
function buffersOf(answer: Partial<RunAnswer & CallAnswer>): ArrayBuffer[] {
  const { results = [], buffers = [], data = null } = answer;
  const tensors = data === null ? results : [...results, { data }];
  return [...tensors.map((tensor) => tensor.data.buffer as ArrayBuffer), ...buffers];
}

type Methods = Readonly<Record<Method, (...args: readonly unknown[]) => MaybePromise<Result<unknown>>>>;

function reply(id: number, result: Result<unknown>): void {
  if (id === 0) {
    return;
  }
  const message: Reply = { id, result };
  postMessage(message, { transfer: "ok" in result && result.ok instanceof Object ? buffersOf(result.ok) : [] });
}

const worker = new SessionWorker() as unknown as Methods;

addEventListener("message", ({ data }: MessageEvent<readonly Request[]>) => {
  for (const { id, method, args } of data) {
    const result = worker[method](...args);
    if (result instanceof Promise) {
      void result.then((settled) => reply(id, settled));
    } else {
      reply(id, result);
    }
  }
});
