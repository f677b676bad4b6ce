/** The page's end of a worker: starts it, sends calls, notices when it dies. */

import { wrap, type Remote } from "comlink";

import { log } from "./env.js";
import { EngineError, fromWire } from "./errors.js";
import type { PythonInfo, Result, WorkerApi, WorkerInfo, WorkerSettings } from "./protocol.js";
import { startWorker } from "./start-worker.js";

const clients = new Map<string, WorkerClient>();

/** The worker for these settings: the one that runs, or a new one. */
export function connect(settings: WorkerSettings): WorkerClient {
  const key = JSON.stringify(settings);
  const known = clients.get(key);
  if (known !== undefined) {
    return known;
  }
  const client: WorkerClient = new WorkerClient(settings, () => {
    if (clients.get(key) === client) {
      clients.delete(key);
    }
  });
  clients.set(key, client);
  return client;
}

export class WorkerClient {
  readonly #worker: Worker;
  readonly #api: Remote<WorkerApi>;
  readonly #pending = new Set<(error: Error) => void>();
  readonly #watch = new AbortController();
  readonly #onEnd: () => void;
  readonly #watched: Promise<void>;
  #failure: string | null = null;
  #python: Promise<PythonInfo> | null = null;

  /** Settles when the kernels run. */
  readonly ready: Promise<WorkerInfo>;

  constructor(settings: WorkerSettings, onEnd: () => void) {
    if (typeof Worker === "undefined") {
      throw new EngineError("sessions need Worker, which is not here; create them in a browser.");
    }
    this.#onEnd = onEnd;
    this.#worker = startWorker("worker");
    this.#worker.addEventListener("error", (event) => {
      this.#fail(event.message || "its script did not load");
    });
    this.#worker.addEventListener("messageerror", () => this.#fail("a message was unreadable"));
    this.#api = wrap<WorkerApi>(this.#worker);
    this.#watched = this.#watchLock();
    this.ready = this.#start(settings);
    // Whoever creates a session awaits it; nobody else needs to.
    this.ready.catch(() => {});
  }

  /**
   * Send a call.
   *
   * @throws the error that the worker answers with; EngineError when the worker is or gets lost
   */
  request<T>(send: (api: Remote<WorkerApi>) => Promise<Result<T>>): Promise<T> {
    return this.#track(() => send(this.#api)).then((result) => this.#unwrap(result));
  }

  /** Start Python, too, if nobody has yet; settles when it and the kernels run. */
  startPython(): Promise<PythonInfo> {
    if (this.#python === null) {
      this.#python = this.#startPython();
      this.#python.catch(() => {});
    }
    return this.#python;
  }

  async #start(settings: WorkerSettings): Promise<WorkerInfo> {
    try {
      await this.#watched;
      const info = await this.request((api) => api.start(settings));
      log("info", `${info.build}, ${info.threads} threads`);
      return info;
    } catch (error) {
      // A worker that could not start is of no use; the next session tries anew.
      this.#fail(error instanceof Error ? error.message : String(error));
      throw error;
    }
  }

  async #startPython(): Promise<PythonInfo> {
    try {
      // Behind `start`, which is sent when the worker is being watched.
      await this.#watched;
      const info = await this.request((api) => api.startPython());
      log("info", `Python of Pyodide ${info.python}`);
      return info;
    } catch (error) {
      // Sessions that need no Python go on; the next one that does gets another worker.
      this.#onEnd();
      throw error;
    }
  }

  /**
   * Workers end without a word (a crash, `terminate`). One that lives holds a lock; when the page gets
   * it, the worker is dead.
   */
  async #watchLock(): Promise<void> {
    const locks = globalThis.navigator?.locks;
    if (locks === undefined) {
      return;
    }
    const name = `trainweb-worker-${Math.random().toString(36).slice(2)}`;
    if (!(await this.#track(() => this.#api.holdLock(name)))) {
      return;
    }
    locks
      .request(name, { signal: this.#watch.signal }, () => this.#fail("it ended"))
      .catch(() => {});
  }

  /** A promise that is rejected when the worker is lost. */
  #track<T>(send: () => Promise<T>): Promise<T> {
    if (this.#failure !== null) {
      return Promise.reject(this.#lost(this.#failure));
    }
    return new Promise((resolve, reject) => {
      this.#pending.add(reject);
      send()
        .then(resolve, reject)
        .finally(() => this.#pending.delete(reject));
    });
  }

  #unwrap<T>(result: Result<T>): T {
    if ("ok" in result) {
      return result.ok;
    }
    const error = fromWire(result.error);
    if (result.error["fatal"] === true) {
      this.#fail(error.message);
    }
    throw error;
  }

  #fail(reason: string): void {
    if (this.#failure !== null) {
      return;
    }
    this.#failure = reason;
    this.#onEnd();
    this.#watch.abort();
    this.#worker.terminate();
    for (const reject of this.#pending) {
      reject(this.#lost(reason));
    }
    this.#pending.clear();
  }

  #lost(reason: string): EngineError {
    return new EngineError(`the worker is lost: ${reason}. Sessions must be created again.`);
  }
}
