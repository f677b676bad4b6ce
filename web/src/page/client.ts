/** The page's end of a worker: starts it, sends calls, notices when it dies. */

import { EngineError, fromWire } from "../wire/errors.js";
import { getLogLevel, log } from "../wire/log.js";
import type {
  Answer,
  Call,
  Method,
  PythonInfo,
  Reply,
  Request,
  Result,
  WorkerInfo,
  WorkerSettings,
} from "../wire/protocol.js";
import { startWorker } from "../wire/start-worker.js";

/**
 * A worker that says nothing for so long after its start is lost. Its script is less than 100 KB and the first thing that the
 * page asks for: on a network that needs longer for it, nothing else would arrive either.
 */
const START_TIMEOUT_MS = 60_000;

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

/** A call of the worker; its `buffers` are lost to the page when it is sent. */
export function callOf<M extends Method>(
  method: M,
  args: Call<M>["args"],
  buffers: readonly ArrayBuffer[] = [],
): Call<M> {
  return { method, args, buffers };
}

/** Who waits for a reply. */
interface Waiting {
  resolve(result: Result<unknown>): void;
  reject(error: Error): void;
}

export class WorkerClient {
  readonly #worker: Worker;
  readonly #waiting = new Map<number, Waiting>();
  readonly #watching = new AbortController();
  readonly #onEnd: () => void;
  #lastId = 0;
  #failure: string | null = null;
  #memory: WebAssembly.Memory | null = null;
  #wakeWord = 0;
  #python: Promise<PythonInfo> | null = null;

  /** Settles when the kernels run. */
  readonly ready: Promise<WorkerInfo>;

  constructor(settings: WorkerSettings, onEnd: () => void) {
    if (typeof Worker === "undefined") {
      throw new EngineError("sessions need Worker, which is not here; create them in a browser.");
    }
    this.#onEnd = onEnd;
    this.#worker = startWorker(settings.files.worker);
    this.#worker.addEventListener("error", (event) => {
      this.#fail(event.message || `${settings.files.worker} did not load (env.baseURL)`);
    });
    this.#worker.addEventListener("messageerror", () => this.#fail("a message was unreadable"));
    this.#worker.addEventListener("message", ({ data }: MessageEvent<Reply>) => this.#receive(data));
    void this.#watch();
    this.ready = this.#start(settings);
    // Whoever creates a session awaits it; nobody else needs to.
    this.ready.catch(() => {});
  }

  /** The kernels' memory, once they run and if it is shared with this page. */
  get memory(): WebAssembly.Memory | null {
    return this.#memory;
  }

  /** Let the kernels' threads wake while a call for them is on its way; without one they soon sleep again. */
  wakeThreads(): void {
    if (this.#memory !== null && this.#wakeWord !== 0) {
      Atomics.notify(new Int32Array(this.#memory.buffer, this.#wakeWord, 1), 0);
    }
  }

  /**
   * Send a call.
   *
   * @param before - calls that are run before it and whose answers nobody wants
   * @throws the error that the worker answers with; EngineError when the worker is or gets lost
   */
  request<M extends Method>(call: Call<M>, before: readonly Call[] = []): Promise<Answer<M>> {
    if (this.#failure !== null) {
      return Promise.reject(this.#lost(this.#failure));
    }
    const id = ++this.#lastId;
    const requests: Request[] = before.map(({ method, args }) => ({ id: 0, method, args }));
    requests.push({ id, method: call.method, args: call.args });
    return new Promise<Result<unknown>>((resolve, reject) => {
      this.#worker.postMessage(requests, [...call.buffers]);
      this.#waiting.set(id, { resolve, reject });
    }).then((result) => this.#unwrap(result as Result<Answer<M>>));
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
      const info = await this.request(callOf("start", [settings, getLogLevel()]));
      this.#memory = info.memory;
      this.#wakeWord = info.wakeWord;
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
      const info = await this.request(callOf("startPython", []));
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
   * it, the worker is dead. Until it holds it, it has to do so in time.
   */
  async #watch(): Promise<void> {
    const name = `trainweb-worker-${Math.random().toString(36).slice(2)}`;
    const timer = setTimeout(() => {
      this.#fail(`it did not start within ${START_TIMEOUT_MS / 1e3} s`);
    }, START_TIMEOUT_MS);
    try {
      const isHeld = await this.request(callOf("holdLock", [name]));
      clearTimeout(timer);
      if (isHeld) {
        const { signal } = this.#watching;
        await navigator.locks.request(name, { signal }, () => this.#fail("it ended"));
      }
    } catch {
      // The worker is lost in another way, which stopped the watch.
      clearTimeout(timer);
    }
  }

  #receive({ id, result }: Reply): void {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    waiting?.resolve(result);
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
    this.#watching.abort();
    this.#worker.terminate();
    for (const { reject } of this.#waiting.values()) {
      reject(this.#lost(reason));
    }
    this.#waiting.clear();
  }

  #lost(reason: string): EngineError {
    return new EngineError(`the worker is lost: ${reason}. Sessions must be created again.`);
  }
}
