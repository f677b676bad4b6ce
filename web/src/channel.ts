/** What a session keeps of its worker: an order of calls, and an end. */

import type { Remote } from "comlink";

import type { WorkerClient } from "./client.js";
import { ReleasedError } from "./errors.js";
import type { Result, WorkerApi } from "./protocol.js";

type Send<T> = (api: Remote<WorkerApi>) => Promise<Result<T>>;

/** Frees sessions that were dropped without `release`. */
const abandoned = new FinalizationRegistry<() => void>((release) => release());

export class Channel {
  readonly #client: WorkerClient;
  readonly #release: Send<null>;
  readonly #what: string;
  #released: Promise<void> | null = null;
  #queue: Promise<unknown> = Promise.resolve();
  #queued = 0;

  /**
   * @param owner - the session; when it is garbage its worker's side is freed
   * @param what - how errors call it
   */
  constructor(owner: object, what: string, client: WorkerClient, release: Send<null>) {
    this.#client = client;
    this.#release = release;
    this.#what = what;
    const free = (): void => {
      client.request(release).catch(() => {});
    };
    abandoned.register(owner, free, this);
  }

  /** @throws ReleasedError after `release` */
  check(): void {
    if (this.#released !== null) {
      throw new ReleasedError(`this ${this.#what} was released; create a new one.`);
    }
  }

  /**
   * Send a call after all earlier ones; they need not have come back.
   *
   * @param prepared - what must be known before the call can be sent
   */
  post<P, T>(prepared: P | Promise<P>, send: (prepared: P) => Send<T>): Promise<T> {
    if (this.#queued === 0 && !(prepared instanceof Promise)) {
      return this.#client.request(send(prepared));
    }
    const turn = this.#queue;
    const sent = (async () => {
      this.#queued++;
      try {
        await turn;
        const ready = await prepared;
        // In an object, so that the turn ends when the call is sent.
        return { reply: this.#client.request(send(ready)) };
      } finally {
        this.#queued--;
      }
    })();
    this.#queue = sent.catch(() => {});
    return sent.then(({ reply }) => reply);
  }

  /** End the session after the calls already made. Harmless when repeated, or when the worker is gone. */
  release(): Promise<void> {
    if (this.#released === null) {
      abandoned.unregister(this);
      this.#released = this.post(null, () => this.#release).then(
        () => {},
        () => {},
      );
    }
    return this.#released;
  }
}
