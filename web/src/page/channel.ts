/** A session's calls to its worker, in order; calls after its release fail. */

import { plain } from "../data/checks.js";
import { SessionError } from "../wire/errors.js";
import { sessionError, refuseIf } from "../wire/messages.js";
import type { Answer, Call, Method, SessionCall } from "../wire/protocol.js";
import type { SessionCalls } from "../wire/session-calls.js";
import { callOf, type WorkerClient } from "./client.js";

/** Frees sessions that were dropped without `release`. */
const abandoned = new FinalizationRegistry<() => void>((release) => release());

export class Channel {
  readonly #client: WorkerClient;
  readonly #handle: number;
  readonly #hasOptimizer: boolean;
  #released: Promise<void> | null = null;
  #queue: Promise<unknown> = Promise.resolve();
  #queued = 0;
  #held: Call[] = [];
  #before: (() => Promise<unknown> | null) | null = null;
  /** The answer to the latest call, which comes after the answers to all earlier calls. */
  #latest: Promise<unknown> = Promise.resolve();

  constructor(client: WorkerClient, handle: number, hasOptimizer = false) {
    this.#client = client;
    this.#handle = handle;
    this.#hasOptimizer = hasOptimizer;
  }

  /** Free the worker's side when this session is garbage. */
  endWith(owner: object): void {
    const [client, handle] = [this.#client, this.#handle];
    const free = (): void => {
      const leave = (): void => client.leave();
      client.request(callOf("release", [handle])).then(leave, leave);
    };
    abandoned.register(owner, free, this);
  }

  /** Before each call, have something done that the call waits for, unless that is null. */
  precede(before: () => Promise<unknown> | null): void {
    this.#before = before;
  }

  /** @throws ReleasedError after `release` */
  check(): void {
    refuseIf(this.#released !== null, "RELEASED");
  }

  /** @throws ReleasedError after `release`; SessionError without an optimizer model */
  checkOptimizer(): void {
    this.check();
    refuseIf(!this.#hasOptimizer, "NO_OPTIMIZER_MODEL");
  }

  /** A call of the session's core before it is sent; bytes and the data of tensors are lost to the page. */
  callOf<Name extends keyof SessionCalls>(name: Name, args: SessionCalls[Name]["args"]): Call<"call"> {
    return callOf("call", [this.#handle, { name, args: args.map(plain) } as SessionCall]);
  }

  /** Send a call of the core that does not use the workspace or move it. */
  async call<Name extends keyof SessionCalls>(
    name: Name,
    ...args: SessionCalls[Name]["args"]
  ): Promise<SessionCalls[Name]["result"]> {
    this.check();
    return (await this.post(null, () => this.callOf(name, args))) as SessionCalls[Name]["result"];
  }

  /**
   * Send a call after all earlier ones, without waiting for their answers.
   *
   * @param prepared - a value that the call needs; it is sent once the value is there
   */
  post<P, M extends Method>(prepared: P | Promise<P>, make: (prepared: P) => Call<M>): Promise<Answer<M>> {
    const before = this.#before?.() ?? null;
    return this.send(before === null ? prepared : Promise.all([prepared, before]).then(([value]) => value), make);
  }

  /** As `post`, but nothing is done before. */
  send<P, M extends Method>(prepared: P | Promise<P>, make: (prepared: P) => Call<M>): Promise<Answer<M>> {
    if (this.#queued === 0 && !(prepared instanceof Promise)) {
      return this.#send(make(prepared));
    }
    // In an object, so that the turn ends when the call is sent.
    const sent = this.#inTurn(async () => ({ reply: this.#send(make(await prepared)) }));
    return sent.then(({ reply }) => reply);
  }

  /**
   * Send a step, which a signal may stop before it starts, or between two of its instructions.
   *
   * @param make - makes the call from the prepared value, and from a flag: true if the worker may stop the step
   * @throws the signal's reason when it stopped the step, which changed nothing then
   */
  async step<P, M extends Method>(
    signal: AbortSignal | undefined,
    prepared: P | Promise<P>,
    make: (prepared: P, mayStop: boolean) => Call<M>,
  ): Promise<Answer<M>> {
    if (signal === undefined) {
      return this.post(prepared, (value) => make(value, false));
    }
    const stop = (): void => void this.#client.request(callOf("stop", [this.#handle])).catch(() => {});
    try {
      return await this.post(this.#turn(signal, prepared), (value) => {
        signal.throwIfAborted();
        signal.addEventListener("abort", stop, { once: true });
        return make(value, true);
      });
    } catch (error) {
      throw signal.aborted && isStopped(error) ? signal.reason : error;
    } finally {
      signal.removeEventListener("abort", stop);
    }
  }

  /** `prepared` once all calls made so far are answered; rejects with the signal's reason when it is aborted first. */
  #turn<P>(signal: AbortSignal, prepared: P | Promise<P>): Promise<P> {
    const turn = Promise.all([prepared, this.#idle(signal)]).then(([value]) => value);
    // The caller that awaits it may still wait for another call.
    turn.catch(() => {});
    return turn;
  }

  async #idle(signal: AbortSignal): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      const abort = (): void => reject(signal.reason as Error);
      signal.addEventListener("abort", abort, { once: true });
      const settle = (): void => {
        signal.removeEventListener("abort", abort);
        resolve();
      };
      void this.#queue.then(() => this.#latest).then(settle, settle);
    });
    signal.throwIfAborted();
  }

  /** Keep a call whose answer is not needed, to be sent with the next one. */
  hold(call: Call): void {
    if (this.#queued === 0) {
      this.#held.push(call);
    } else {
      void this.#inTurn(async () => this.#held.push(call));
    }
  }

  /** End the session after the calls already made. Harmless when repeated, or when the worker is gone. */
  release(): Promise<void> {
    if (this.#released === null) {
      abandoned.unregister(this);
      const leave = (): void => this.#client.leave();
      this.#released = this.send(null, () => callOf("release", [this.#handle])).then(leave, leave);
    }
    return this.#released;
  }

  #send<M extends Method>(call: Call<M>): Promise<Answer<M>> {
    const before = this.#held;
    this.#held = [];
    const answer = this.#client.request(call, before);
    this.#latest = answer;
    return answer;
  }

  #inTurn<T>(action: () => Promise<T>): Promise<T> {
    this.#queued++;
    const done = this.#queue.then(action).finally(() => {
      this.#queued--;
    });
    this.#queue = done.catch(() => {});
    return done;
  }
}

/** True for the error of a worker that stopped a step as ordered. */
function isStopped(error: unknown): boolean {
  return error instanceof SessionError && error.message === sessionError("TERMINATED", {}).message;
}
