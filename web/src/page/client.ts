/** The page's end of a worker: starts it, sends calls, notices when it dies. */

import { isObject } from "../wire/kinds.js";
import { EngineError, fromWire } from "../wire/errors.js";
import { checkScript, messageOf, SCRIPT, type ScriptEnd } from "../wire/fetch-file.js";
import { getLogLevel, log } from "../wire/log.js";
import type { PackageFiles } from "../wire/files.js";
import type { FileProgress } from "../wire/progress.js";
import type {
  Answer,
  Call,
  DeviceNote,
  ShaderNote,
  Listening,
  Method,
  Note,
  Reply,
  Request,
  Result,
  RunAnswer,
  SessionDevice,
  WorkerInfo,
  WorkerSettings,
} from "../wire/protocol.js";
import { keepInBackground, keepInForeground, otherPlatform } from "../wire/platform.js";
import { startWorker } from "../wire/start-worker.js";
import { knownFiles, missingHelp, refusedHelp } from "./assets.js";
import { env, releasers, warnOfKernels, startTimeout } from "./env.js";
import { learn, PageLane, type LaneStep } from "./lane.js";
import type { ResolvedOptions } from "./options.js";
import type { KnownFile, LoadTracker } from "./progress.js";

/** Time until the script of a silent worker is checked, in parts of the limit for files that send nothing. */
const PATIENCE = 0.25;

/** Parts of the limit for a start. Each is waited for by itself, so that a page that is blocked meanwhile loses only one. */
const START_PARTS = 20;

/** Interval of a page without locks between two looks for a worker's messages, and the most looks in vain. */
const LOOK_MS = 300;
const MISSED_PULSES = 5;

const clients = new Map<string, WorkerClient>();

releasers.add(async () => {
  await Promise.all([...clients.values()].map((client) => client.endIfIdle()));
});

/** Options of a session that `withWorker` needs. */
type WorkerOptions = Pick<ResolvedOptions, "settings" | "progress"> & Partial<Pick<ResolvedOptions, "signal" | "device" | "json">>;

/** Sessions have this method, built files do not. */
interface Releasable {
  release?(): Promise<void>;
}

/**
 * Open a session in the worker for these settings: a running worker, or a new one.
 *
 * @param open - makes the session, which keeps the worker until `WorkerClient.leave`
 * @throws the reason of the signal when it is aborted first; a session that opens nevertheless is released
 */
export async function withWorker<T>(
  { settings, progress, signal, device = "wasm", json = "" }: WorkerOptions,
  open: (client: WorkerClient) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted();
  const client = connect(settings);
  client.enter();
  client.follow(progress);
  if (device !== "wasm") {
    client.request(callOf("openDevice", [json])).catch(() => {});
  }
  let isGivenUp = false;
  let giveUp = (): void => {};
  const givenUp = new Promise<never>((_, reject) => {
    giveUp = (): void => {
      isGivenUp = true;
      client.giveUp();
      reject(signal?.reason as Error);
    };
  });
  signal?.addEventListener("abort", giveUp);
  const opening = open(client).finally(() => signal?.removeEventListener("abort", giveUp));
  opening.then(
    (opened) => {
      if (isGivenUp) {
        client.settle();
        void (opened as Releasable | undefined)?.release?.();
      }
    },
    () => {
      if (isGivenUp) {
        client.settle();
      }
      client.leave();
    },
  );
  try {
    return await Promise.race([opening, givenUp]);
  } finally {
    client.unfollow(progress);
  }
}

function connect(settings: WorkerSettings): WorkerClient {
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

/** A call of the worker; its `buffers` are lost to the page when it is sent: by default all bytes of its arguments. */
export function callOf<M extends Method>(
  method: M,
  args: Call<M>["args"],
  buffers: Call<M>["buffers"] = buffersIn(args),
  key?: string,
): Call<M> {
  return { method, args, buffers, key };
}

/** The buffers of all bytes in arrays and plain objects. */
export function buffersIn(value: unknown): ArrayBuffer[] {
  const buffers = new Set<ArrayBuffer>();
  const visit = (one: unknown): void => {
    if (one instanceof Uint8Array) {
      buffers.add(one.buffer as ArrayBuffer);
    } else if (Array.isArray(one)) {
      one.forEach(visit);
    } else if (isObject(one) && Object.getPrototypeOf(one) === Object.prototype) {
      Object.values(one).forEach(visit);
    }
  };
  visit(value);
  return [...buffers];
}

/** A call that waits for its reply. */
interface Waiting {
  resolve(result: Result<unknown>): void;
  reject(error: Error): void;
  /** The step that asks for it in the lane the next time. */
  readonly step: LaneStep | null;
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
  #lane: PageLane | null = null;
  /** Number of messages that were posted. */
  #sent = 0;
  #hasStarted = false;
  /** True once the worker has said that it takes calls. */
  #isHeard = false;
  /** Called when its end will be noticed, or cannot be. */
  #isWatched: () => void = () => {};
  #python: Promise<string> | null = null;
  /** Number of sessions, including sessions in the making. */
  #sessions = 0;
  /** Number of these that nobody waits for. */
  #givenUp = 0;
  #idle: ReturnType<typeof setTimeout> | undefined;
  readonly #files: PackageFiles;
  readonly #known: ReadonlyMap<string, KnownFile>;
  /** Files that are on their way. */
  readonly #arriving = new Map<string, FileProgress>();
  readonly #trackers = new Set<LoadTracker>();
  /** The reason why this worker makes no new session, though existing sessions go on. */
  #retired: string | null = null;

  /** Devices of sessions that have changed since the sessions were made. */
  readonly devices = new Map<number, SessionDevice>();
  /** Listeners of shaders, by the handle of a session. */
  readonly compiling = new Map<number, LoadTracker>();
  /** Settles when the kernels run. */
  readonly ready: Promise<WorkerInfo>;

  constructor(settings: WorkerSettings, onEnd: () => void) {
    if (typeof Worker === "undefined" && otherPlatform() === null) {
      throw new EngineError("sessions need Worker, which shared and service workers do not have: create them in a page, or import trainweb in Node by its name.");
    }
    this.#onEnd = onEnd;
    this.#files = settings.files;
    this.#known = knownFiles(settings.files);
    this.#note({ url: settings.files.worker, loaded: 0, isDone: false });
    this.#worker = startWorker(settings.files.worker, settings.gpu);
    keepInBackground(this.#worker);
    this.#worker.addEventListener("error", (event) => {
      if (event.message) {
        const { worker } = settings.files;
        this.#fail(this.#hasStarted ? event.message : `${worker} does not run as ${SCRIPT.what}: ${event.message} (env.baseURL)`);
      } else {
        void this.#lookInto(settings, true);
      }
    });
    this.#worker.addEventListener("messageerror", () => this.#fail("a message was unreadable"));
    this.#worker.addEventListener("message", ({ data }: MessageEvent<Reply | Note | DeviceNote | ShaderNote | Listening>) => {
      if ("listens" in data) {
        this.#isHeard = true;
      } else if ("progress" in data) {
        this.#note(data.progress);
      } else if ("device" in data) {
        this.devices.set(data.handle, data.device);
      } else if ("shaders" in data) {
        this.compiling.get(data.handle)?.shaders(...data.shaders);
      } else {
        const step = this.#waiting.get(data.id)?.step;
        if (step && "ok" in data.result) {
          learn(step, data.result.ok as RunAnswer);
        }
        this.#receive(data);
      }
    });
    const watched = new Promise<void>((resolve) => {
      this.#isWatched = resolve;
    });
    void this.#watch(settings);
    this.ready = this.#start(settings, watched);
    // The creator of a session awaits it; nobody else needs to.
    this.ready.catch(() => {});
  }

  /** The kernels' memory, once they run and if it is shared with this page. */
  get memory(): WebAssembly.Memory | null {
    return this.#memory;
  }

  /** Report the progress of files, including the ones on their way. */
  follow(tracker: LoadTracker): void {
    if (tracker.isWanted) {
      this.#trackers.add(tracker);
      this.#arriving.forEach((progress) => this.#tell(tracker, progress));
    }
  }

  unfollow(tracker: LoadTracker): void {
    this.#trackers.delete(tracker);
  }

  #note(progress: FileProgress): void {
    if (progress.isDone) {
      this.#arriving.delete(progress.url);
    } else {
      this.#arriving.set(progress.url, progress);
    }
    this.#trackers.forEach((tracker) => this.#tell(tracker, progress));
  }

  #tell(tracker: LoadTracker, progress: FileProgress): void {
    const known = this.#known.get(progress.url);
    if (known !== undefined) {
      tracker.file(known, progress);
    }
  }

  /** A session is made here; the worker is kept until it leaves. */
  enter(): void {
    this.#sessions++;
    clearTimeout(this.#idle);
  }

  /** A session has gone. */
  leave(): void {
    this.#sessions--;
    if (this.#sessions > 0 || this.#failure !== null) {
      return;
    }
    if (this.#retired !== null) {
      this.#fail(this.#retired);
      return;
    }
    this.#idle = setTimeout(() => void this.endIfIdle(), env.timeouts.idle);
    keepInBackground(this.#idle);
  }

  /** Give up a session in the making. If the worker has no other one, end it in the middle of its work. */
  giveUp(): void {
    this.#givenUp++;
    if (this.#givenUp === this.#sessions) {
      this.#fail("all its sessions were aborted");
    }
  }

  /** A session that was given up is there, or failed. */
  settle(): void {
    this.#givenUp--;
  }

  /** End a worker without sessions, once it has finished storing. */
  async endIfIdle(): Promise<void> {
    if (this.#sessions === 0 && this.#failure === null) {
      this.#onEnd();
      // A worker that is lost meanwhile stores nothing more.
      await this.request(callOf("finish", [])).catch(() => {});
      this.#fail("it had no sessions");
    }
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
   * @param before - calls that run before it, and whose answers are not needed
   * @throws the error that the worker answers with; EngineError when the worker is or gets lost
   */
  request<M extends Method>(call: Call<M>, before: readonly Call[] = []): Promise<Answer<M>> {
    if (this.#failure !== null) {
      return Promise.reject(this.#lost(this.#failure));
    }
    const id = ++this.#lastId;
    const step = call.key === undefined ? null : (this.#lane?.step(`${before.length} ${call.key}`) ?? null);
    this.#take();
    // Answers come in the order of calls: in the lane only while no message is to come.
    const isAsked = step !== null && this.#waiting.size === 0 && this.#lane?.ask(step, id) === true;
    const answer = new Promise<Result<unknown>>((resolve, reject) => {
      if (!isAsked) {
        this.#post(id, call, before, step);
      }
      keepInForeground(this.#worker);
      this.#waiting.set(id, { resolve, reject, step });
    });
    // Nobody waits for an optimizer step: the next call takes its answer, or the worker sends it.
    if (isAsked && call.args[1] !== "optimizer") {
      this.#take();
    }
    return answer.then((result) => this.#unwrap(result as Result<Answer<M>>));
  }

  #post(id: number, { method, args, buffers }: Call, before: readonly Call[], step: LaneStep | null): void {
    const requests: Request[] = before.map((one) => ({ id: 0, method: one.method, args: one.args }));
    requests.push({ id, method, args, ...(step && { step: step.number }) });
    this.#worker.postMessage(requests, [...buffers]);
    this.#sent++;
    this.#lane?.count(this.#sent);
  }

  #take(): void {
    const reply = this.#lane?.take() ?? null;
    if (reply !== null) {
      this.#receive(reply);
    }
  }

  /** Start Python, too, if it has not started yet; settles when Python and the kernels run. */
  startPython(): Promise<string> {
    if (this.#python === null) {
      this.#python = this.#startPython();
      this.#python.catch(() => {});
    }
    return this.#python;
  }

  async #start(settings: WorkerSettings, watched: Promise<void>): Promise<WorkerInfo> {
    try {
      const info = await this.request(callOf("start", [settings, getLogLevel()]));
      await watched;
      this.#hasStarted = true;
      this.#note({ url: settings.files.worker, loaded: 0, isDone: true });
      this.#memory = info.memory;
      if (info.lane !== null && info.memory !== null) {
        this.#lane = new PageLane(info.lane, info.memory);
        this.#lane.count(this.#sent);
      }
      this.#wakeWord = info.wakeWord;
      if (info.kernelsFault !== null) {
        warnOfKernels(info.kernelsFault);
      }
      log("info", `${info.build}, ${info.threads} threads`);
      return info;
    } catch (error) {
      // A worker that could not start is of no use; the next session tries again.
      this.#fail(error instanceof Error ? error.message : String(error));
      throw error;
    }
  }

  async #startPython(): Promise<string> {
    const { loader, script, wasm, snapshot, isOurPyodide } = this.#files;
    if (isOurPyodide) {
      // They are counted from the start, or a model that comes before them would be nearly all there is to load.
      for (const url of [loader, script, wasm, snapshot]) {
        this.#note({ url, loaded: 0, isDone: false });
      }
    }
    try {
      const version = await this.request(callOf("startPython", []));
      log("info", `Python of Pyodide ${version}`);
      return version;
    } catch (error) {
      // Sessions without Python go on; the next session that needs it gets another worker.
      this.#onEnd();
      throw error;
    }
  }

  /**
   * Workers end without a word (a crash, `terminate`). One that lives holds a lock; when the page gets
   * it, the worker is dead. Until it holds it, it has to do so in time.
   */
  async #watch(settings: WorkerSettings): Promise<void> {
    const name = `trainweb-worker-${Math.random().toString(36).slice(2)}`;
    const start = startTimeout();
    let left = START_PARTS;
    const timer = setInterval(() => {
      left--;
      if (left === 0) {
        this.#fail(`it did not start within ${start / 1e3} s`);
      }
    }, start / START_PARTS);
    const doubt = setTimeout(() => void this.#lookInto(settings, false), PATIENCE * settings.stallMs);
    try {
      const isHeld = await this.request(callOf("holdLock", [name]));
      clearTimeout(doubt);
      // A thread of Node reports its end.
      const needsPulse = !isHeld && otherPlatform() === null;
      if (needsPulse) {
        await this.#watchPulse(settings);
      }
      clearInterval(timer);
      this.#isWatched();
      if (isHeld && otherPlatform() === null) {
        const { signal } = this.#watching;
        await navigator.locks.request(name, { signal }, () => this.#fail("it ended"));
      }
    } catch {
      // The worker is lost in another way, which stopped the watch.
      clearInterval(timer);
      clearTimeout(doubt);
      this.#isWatched();
    }
  }

  /**
   * Watch a worker where there are no locks (http). A worker of the worker sends messages, and ends with it. After
   * several looks without a message, the worker counts as dead. A page that slept looks once, and has the messages
   * then. No session is used before the watch begins: a call to a worker that ended unwatched would wait for ever.
   */
  async #watchPulse({ files, stallMs }: WorkerSettings): Promise<void> {
    const script = files.poolWorker;
    const { port1, port2 } = new MessageChannel();
    const started = this.request(callOf("pulse", [port2, script], [port2]));
    const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), (1 - PATIENCE) * stallMs));
    const runs = await Promise.race([started, late]);
    if (runs !== true) {
      const what = await checkScript(script, PATIENCE * stallMs).then(() => `${script} does not run.`, messageOf);
      log("warning", `${what} Should the worker end in the middle of a call, nobody will notice.`);
    }
    if (runs === null) {
      // A stalled script may run after all.
      void started.then((comes) => comes && this.#countPulses(port1)).catch(() => undefined);
    } else if (runs) {
      this.#countPulses(port1);
    }
  }

  #countPulses(port: MessagePort): void {
    let missed = 0;
    port.onmessage = () => {
      missed = 0;
    };
    const looking = setInterval(() => {
      missed += 1;
      if (missed > MISSED_PULSES) {
        this.#fail("it ended");
      }
    }, LOOK_MS);
    this.#watching.signal.addEventListener("abort", () => {
      clearInterval(looking);
      port.close();
    });
  }

  /**
   * Check the server's answer for the script of a silent worker: it may not be a script at all.
   *
   * @param isOver - true if the worker is known not to start
   */
  async #lookInto({ files, stallMs }: WorkerSettings, isOver: boolean): Promise<void> {
    try {
      await checkScript(files.worker, (1 - PATIENCE) * stallMs, this.#scriptEnd(files.worker));
      if (isOver) {
        this.#fail(`${files.worker} is there, but did not start. ${refusedHelp(files.worker)}`);
      }
    } catch (error) {
      // It may have come while this was looked into.
      if (isOver || !this.#isHeard) {
        this.#fail(`${messageOf(error)} ${missingHelp(files.worker)}`);
      }
    }
  }

  /** The text that identifies the worker's script, if the worker stays silent. */
  #scriptEnd(worker: string): ScriptEnd {
    const text: Listening["listens"] = "the worker of trainweb";
    return { what: text, text, nbytes: this.#known.get(worker)?.nbytes ?? 0 };
  }

  #receive({ id, result }: Reply): void {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (this.#waiting.size === 0) {
      keepInBackground(this.#worker);
    }
    waiting?.resolve(result);
  }

  #unwrap<T>(result: Result<T>): T {
    if ("ok" in result) {
      return result.ok;
    }
    const error = fromWire(result.error);
    if (result.error["fatal"] === true) {
      this.#retire(error.message);
    }
    throw error;
  }

  /**
   * Make no new session here. Trained parameters of the others can still be read; the worker ends with the last of
   * them.
   */
  #retire(reason: string): void {
    this.#retired ??= reason;
    this.#onEnd();
    if (this.#sessions === 0) {
      this.#fail(reason);
    }
  }

  #fail(reason: string): void {
    if (this.#failure !== null) {
      return;
    }
    this.#failure = reason;
    this.#onEnd();
    this.#watching.abort();
    clearTimeout(this.#idle);
    this.#worker.terminate();
    this.#memory = this.#lane = null;
    for (const { reject } of this.#waiting.values()) {
      reject(this.#lost(reason));
    }
    this.#waiting.clear();
  }

  #lost(reason: string): EngineError {
    const end = reason.endsWith(".") ? "" : ".";
    return new EngineError(`the worker is lost: ${reason}${end} Sessions must be created again.`);
  }
}
