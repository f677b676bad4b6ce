/** The worker: Python, the kernels, and all sessions of a page. */

import { expose, transfer } from "comlink";

import { kernelUrl } from "./assets.js";
import { bootPython } from "./boot.js";
import { Bridge } from "./bridge.js";
import {
  CompiledSession,
  PlanRunner,
  type LoadedPlan,
  type PlanSource,
} from "./compiled-session.js";
import { Engine } from "./engine.js";
import { EngineError, ReleasedError, toWire } from "./errors.js";
import type {
  ArtifactBytes,
  CallAnswer,
  Fetch,
  InferenceInfo,
  NamedTensor,
  Result,
  SessionInfo,
  StepKind,
  WorkerApi,
  WorkerInfo,
  WorkerSettings,
} from "./protocol.js";

/** Calls after which addresses of plans may be void. */
const INVALIDATING: ReadonlySet<string> = new Set(["load_parameters_buffer"]);

class SessionWorker implements WorkerApi {
  #engine: Engine | null = null;
  #bridge: Bridge | null = null;
  readonly #sessions = new Map<number, CompiledSession>();
  readonly #inference = new Map<number, PlanRunner>();

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
    const { indexURL, snapshot, wasmPrefix, threads, reproducible } = settings;
    try {
      const python = bootPython(indexURL, snapshot);
      // Taken up below; a failure of the engine's must not leave it unhandled.
      python.catch(() => {});
      const engine = await Engine.create({
        wasm: (build) => kernelUrl(build, wasmPrefix),
        threads,
        reproducible,
      });
      const pyodide = await python;
      this.#engine = engine;
      this.#bridge = new Bridge(pyodide, engine);
      return {
        ok: { build: engine.build, threads: engine.threads, python: pyodide.version },
      };
    } catch (error) {
      return { error: toWire(error) };
    }
  }

  createTraining(artifacts: ArtifactBytes, optionsJson: string): Result<SessionInfo> {
    const { trainModel, checkpoint, evalModel, optimizerModel } = artifacts;
    return attempt(() =>
      this.#addSession("create", trainModel, checkpoint, evalModel, optimizerModel, optionsJson),
    );
  }

  createFromModel(
    model: Uint8Array,
    configJson: string,
    optionsJson: string,
  ): Result<SessionInfo> {
    return attempt(() => this.#addSession("create_from_model", model, configJson, optionsJson));
  }

  step(
    handle: number,
    kind: StepKind,
    feeds: readonly NamedTensor[],
    fetches: readonly Fetch[],
  ): Result<NamedTensor[]> {
    return withBuffers(attempt(() => this.#session(handle).step(kind, feeds, fetches)));
  }

  lazyResetGrad(handle: number): Result<null> {
    return attempt(() => {
      this.#session(handle).lazyResetGrad();
      return null;
    });
  }

  getLearningRate(handle: number): Result<number> {
    return attempt(() => this.#session(handle).learningRate);
  }

  setLearningRate(handle: number, rate: number): Result<null> {
    return attempt(() => {
      this.#session(handle).learningRate = rate;
      return null;
    });
  }

  call(
    handle: number,
    method: string,
    args: string,
    data: Uint8Array | null,
  ): Result<CallAnswer> {
    const result = attempt<CallAnswer>(() => {
      const session = this.#session(handle);
      try {
        return this.#python.call("call", handle, method, args, data);
      } finally {
        if (INVALIDATING.has(method)) {
          session.clearPlans();
        }
      }
    });
    const bytes = "ok" in result ? result.ok.data : null;
    return bytes === null ? result : transfer(result, [bytes.buffer as ArrayBuffer]);
  }

  release(handle: number): Result<null> {
    return attempt(() => {
      if (this.#sessions.delete(handle)) {
        this.#python.call("release", handle);
      }
      return null;
    });
  }

  createInference(model: Uint8Array, optionsJson: string): Result<InferenceInfo> {
    return attempt(() => {
      const info = this.#python.call("inference_create", model, optionsJson).value as InferenceInfo;
      const { handle } = info;
      this.#inference.set(handle, new PlanRunner(this.#kernels, this.#planSource(handle)));
      return info;
    });
  }

  runInference(
    handle: number,
    feeds: readonly NamedTensor[],
    fetches: readonly Fetch[],
  ): Result<NamedTensor[]> {
    const run = (): NamedTensor[] => {
      const runner = this.#inference.get(handle);
      if (runner === undefined) {
        throw new ReleasedError("the inference session was released.");
      }
      return runner.run("inference", 0, feeds, fetches);
    };
    return withBuffers(attempt(run));
  }

  releaseInference(handle: number): Result<null> {
    return attempt(() => {
      if (this.#inference.delete(handle)) {
        this.#python.call("release", handle);
      }
      return null;
    });
  }

  memory(): Result<{ readonly inUse: number; readonly total: number }> {
    return attempt(() => {
      return { inUse: this.#kernels.bytesInUse, total: this.#kernels.memoryBytes };
    });
  }

  get #kernels(): Engine {
    if (this.#engine === null) {
      throw new EngineError("the worker has not started.");
    }
    return this.#engine;
  }

  get #python(): Bridge {
    if (this.#bridge === null) {
      throw new EngineError("the worker has not started.");
    }
    return this.#bridge;
  }

  #session(handle: number): CompiledSession {
    const session = this.#sessions.get(handle);
    if (session === undefined) {
      throw new ReleasedError("the session was released.");
    }
    return session;
  }

  #addSession(name: string, ...args: readonly (Uint8Array | string | null)[]): SessionInfo {
    const info = this.#python.call(name, ...args).value as SessionInfo;
    const { handle, statePtr } = info;
    const source = this.#planSource(handle);
    this.#sessions.set(handle, new CompiledSession(this.#kernels, source, statePtr));
    return info;
  }

  #planSource(handle: number): PlanSource {
    return {
      plan: (kind, signature) =>
        this.#python.call("plan", handle, kind, JSON.stringify(signature)).value as LoadedPlan,
      explain: (ptr, status) => {
        try {
          this.#python.call("explain", handle, ptr, status);
        } catch (error) {
          return error as Error;
        }
        return new EngineError(`the plan failed with status ${status}.`);
      },
    };
  }
}

function attempt<T>(action: () => T): Result<T> {
  try {
    return { ok: action() };
  } catch (error) {
    return { error: toWire(error) };
  }
}

/** Hand the results' buffers over instead of copying them. */
function withBuffers(result: Result<NamedTensor[]>): Result<NamedTensor[]> {
  if ("error" in result) {
    return result;
  }
  return transfer(
    result,
    result.ok.map(({ data }) => data.buffer as ArrayBuffer),
  );
}

expose(new SessionWorker());
