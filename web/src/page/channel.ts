/** What a session keeps of its worker: an order of calls, and an end. */

import { sessionError } from "../wire/messages.js";
import type { Answer, Call, Method } from "../wire/protocol.js";
import { callOf, type WorkerClient } from "./client.js";

/** Frees sessions that were dropped without `release`. */
const abandoned = new FinalizationRegistry<() => void>((release) => release());

export class Channel {
  readonly #client: WorkerClient;
  readonly #release: Call<"release" | "releaseInference">;
  #released: Promise<void> | null = null;
  #queue: Promise<unknown> = Promise.resolve();
  #queued = 0;
  #held: Call[] = [];
  /** The answer to the call that was sent last, which comes after those to all before it. */
  #latest: Promise<unknown> = Promise.resolve();

  constructor(client: WorkerClient, method: "release" | "releaseInference", handle: number) {
    this.#client = client;
    this.#release = callOf(method, [handle]);
  }

  /** Free the worker's side when this session is garbage. */
  endWith(owner: object): void {
    const [client, release] = [this.#client, this.#release];
    const free = (): void => {
      const leave = (): void => client.leave();
      client.request(release).then(leave, leave);
    };
    abandoned.register(owner, free, this);
  }

  /** @throws ReleasedError after `release` */
  check(): void {
    if (this.#released !== null) {
      throw sessionError("RELEASED", {});
    }
  }

  /**
   * Send a call after all earlier ones; they need not have come back.
   *
   * @param prepared - what must be known before the call can be sent
   */
  post<P, M extends Method>(prepared: P | Promise<P>, make: (prepared: P) => Call<M>): Promise<Answer<M>> {
    if (this.#queued === 0 && !(prepared instanceof Promise)) {
      return this.#send(make(prepared));
    }
    // In an object, so that the turn ends when the call is sent.
    const sent = this.#inTurn(async () => ({ reply: this.#send(make(await prepared)) }));
    return sent.then(({ reply }) => reply);
  }

  /** `prepared` once all calls made so far are answered; rejects with the signal's reason when it is aborted first. */
  turn<P>(signal: AbortSignal, prepared: P | Promise<P>): Promise<P> {
    const turn = Promise.all([prepared, this.#idle(signal)]).then(([value]) => value);
    // Whoever awaits it may still wait for another call.
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

  /** A call whose answer nobody wants: it goes along with the next one. */
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
      this.#released = this.post(null, () => this.#release).then(leave, leave);
    }
    return this.#released;
  }

  #send<M extends Method>(call: Call<M>): Promise<Answer<M>> {
    const held = this.#held;
    this.#held = [];
    const answer = this.#client.request(call, held);
    this.#latest = answer;
    return answer;
  }

  #inTurn<T>(action: () => Promise<T>): Promise<T> {
    const turn = this.#queue;
    const done = (async () => {
      this.#queued++;
      try {
        await turn;
        return await action();
      } finally {
        this.#queued--;
      }
    })();
    this.#queue = done.catch(() => {});
    return done;
  }
}
