/** The worker: the kernels, all sessions of a page, and Python once somebody needs it. */

import { expose, transfer } from "comlink";

import { kernelUrl } from "./assets.js";
import { bootPython } from "./boot.js";
import { Bridge } from "./bridge.js";
import { parseBundle } from "./bundle.js";
import { BundleSession, NeedsPython, type Kernels } from "./bundle-session.js";
import { CompiledSession, PlanRunner } from "./compiled-session.js";
import { Engine } from "./engine.js";
import { EngineError, ReleasedError, SessionError, toWire } from "./errors.js";
import { PythonPlans, PythonSession, type SessionHost } from "./host.js";
import type {
  ArtifactBytes,
  CallAnswer,
  Fetch,
  InferenceInfo,
  MaybePromise,
  NamedTensor,
  PythonInfo,
  Result,
  SessionInfo,
  StepKind,
  WorkerApi,
  WorkerInfo,
  WorkerSettings,
} from "./protocol.js";

/** Calls after which addresses of plans may be void. */
const INVALIDATING: ReadonlySet<string> = new Set(["load_parameters_buffer"]);

/** A training session. */
interface Session {
  readonly host: SessionHost;
  readonly compiled: CompiledSession;
  /** Options of the session as Python takes them. */
  readonly optionsJson: string;
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
  readonly #sessions = new Map<number, Session>();
  readonly #inference = new Map<number, InferenceSession>();

  async holdLock(name: string): Promise<boolean> {
    const locks = globalThis.navigator?.locks;
    if (locks === undefined) {
      return false;
    }
    return new Promise((resolve) => {
      // Held until this worker ends, however it ends.
      const held = locks.request(name, () => new Promise<never>(() => resolve(true)));
      held.catch(() => resolve(false));
    });
  }

  async start(settings: WorkerSettings): Promise<Result<WorkerInfo>> {
    const { wasmPrefix, threads, reproducible } = settings;
    this.#settings = settings;
    return attemptAsync(async () => {
      this.#engine = Engine.create({
        wasm: (build) => kernelUrl(build, wasmPrefix),
        threads,
        reproducible,
      });
      const engine = await this.#engine;
      this.#kernels = engine;
      return { build: engine.build, threads: engine.threads };
    });
  }

  async startPython(): Promise<Result<PythonInfo>> {
    const result = await attemptAsync(async () => ({ python: (await this.#bootPython()).version }));
    if ("ok" in result) {
      return result;
    }
    // The page hears of kernels that do not start before it hears of this.
    await this.#engine?.catch(() => {});
    // A module that failed to load stays so for the life of a worker: another one may try again.
    const isIdle = this.#sessions.size === 0 && this.#inference.size === 0;
    return { error: { ...result.error, fatal: isIdle } };
  }

  createTraining(artifacts: ArtifactBytes, optionsJson: string): Promise<Result<SessionInfo>> {
    const { trainModel, checkpoint, evalModel, optimizerModel } = artifacts;
    return attemptAsync(() =>
      this.#create("create", [trainModel, checkpoint, evalModel, optimizerModel], optionsJson),
    );
  }

  createFromModel(
    model: Uint8Array,
    configJson: string,
    optionsJson: string,
  ): Promise<Result<SessionInfo>> {
    return attemptAsync(() => this.#create("create_from_model", [model, configJson], optionsJson));
  }

  createFromBundle(bytes: Uint8Array, optionsJson: string): Result<SessionInfo> {
    return attempt(() => {
      const kernels = this.#describeKernels();
      const bundle = parseBundle(bytes, kernels.fingerprint);
      const host = new BundleSession(this.#running, kernels, bundle);
      return this.#add(host, optionsJson, host.info);
    });
  }

  step(
    handle: number,
    kind: StepKind,
    feeds: readonly NamedTensor[],
    fetches: readonly Fetch[],
  ): MaybePromise<Result<NamedTensor[]>> {
    return withBuffers(
      this.#perform(handle, ({ compiled }) => compiled.step(kind, feeds, fetches)),
      (results) => results.map(({ data }) => data),
    );
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
    return withBuffers(this.#perform(handle, call), (answer) =>
      answer.data === null ? [] : [answer.data],
    );
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
    feeds: readonly NamedTensor[],
    fetches: readonly Fetch[],
  ): MaybePromise<Result<NamedTensor[]>> {
    const run = (): NamedTensor[] => {
      const session = this.#inference.get(handle);
      if (session === undefined) {
        throw new ReleasedError("the inference session was released.");
      }
      return session.runner.run("inference", 0, feeds, fetches);
    };
    return withBuffers(attempt(run), (results) => results.map(({ data }) => data));
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
        const python = bootPython(settings.indexURL, settings.snapshot);
        // Taken up below; a failure of the engine's must not leave it unhandled.
        python.catch(() => {});
        const kernels = await engine;
        return new Bridge(await python, kernels);
      } catch (error) {
        this.#python = null;
        throw error;
      }
    })();
    return this.#python;
  }

  async #create(
    name: string,
    sources: readonly (Uint8Array | string | null)[],
    optionsJson: string,
  ): Promise<SessionInfo> {
    const bridge = await this.#bootPython();
    const info = bridge.call(name, ...sources, optionsJson).value as SessionInfo;
    return this.#add(new PythonSession(bridge, info.handle, info.statePtr), optionsJson, info);
  }

  #add(host: SessionHost, optionsJson: string, info: Omit<SessionInfo, "handle">): SessionInfo {
    const handle = this.#nextHandle++;
    const compiled = new CompiledSession(this.#running, host, host.statePtr);
    this.#sessions.set(handle, { host, compiled, optionsJson, waiting: 0, turn: Promise.resolve() });
    return { ...info, handle };
  }

  /**
   * Do something with a session: at once, or in turn where an earlier call waits for Python. What needs
   * Python is done again once it runs.
   */
  #perform<T>(handle: number, action: (session: Session) => T): MaybePromise<Result<T>> {
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
        await this.#adopt(session.host, session.optionsJson, error.what);
        return action(session);
      }
    });
    session.waiting--;
    return result;
  }

  /** Start Python and let it take over the memory of a session. */
  async #adopt(host: BundleSession, optionsJson: string, what: string): Promise<void> {
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
    host.handOver(new PythonSession(bridge, handle, statePtr));
  }
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

/** Hand the results' buffers over instead of copying them. */
function withBuffers<T extends object>(
  result: MaybePromise<Result<T>>,
  bytesOf: (value: T) => readonly Uint8Array[],
): MaybePromise<Result<T>> {
  if (result instanceof Promise) {
    return result.then((settled) => withBuffers(settled, bytesOf));
  }
  if ("error" in result) {
    return result;
  }
  return transfer(
    result,
    bytesOf(result.ok).map(({ buffer }) => buffer as ArrayBuffer),
  );
}

expose(new SessionWorker());
