/** The contents of a `CheckpointState`, which sessions on it share: a worker or one of the sessions holds them. */

import type { SharedState } from "../wire/protocol.js";
import type { SessionCalls, StateCallNames } from "../wire/session-calls.js";
import { refuseIf } from "../wire/messages.js";
import { Channel } from "./channel.js";
import { callOf, withWorker } from "./client.js";
import type { Downloaded } from "./download.js";
import type { ResolvedOptions } from "./options.js";
import type { StateCaller } from "./session-methods.js";

/** A session that uses a state. */
export interface StateUser {
  /** Copy the parts that sessions on one state share. */
  lendState(): Promise<SharedState>;
  /** Continue with the state of another session; later calls come after. */
  takeState(shared: Promise<SharedState>): Promise<void>;
  /** Run one of the calls that states have, too. */
  callForState<Name extends StateCallNames>(name: Name, args: SessionCalls[Name]["args"]): Promise<unknown>;
}

/** The holder of the contents: only this page, a worker, or the session that was called last. */
type Holder = { readonly file: Blob } | { readonly channel: Channel } | "session";

async function free(holder: Holder): Promise<void> {
  if (holder !== "session" && "channel" in holder) {
    await holder.channel.release();
  }
}

export class SharedContents implements StateCaller {
  readonly #options: ResolvedOptions;
  #holder: Promise<Holder>;
  /** The session that was called last, which has the contents, and all that share them. */
  #current: StateUser | null = null;
  readonly #users = new Set<WeakRef<StateUser>>();
  #isReleased = false;

  private constructor(file: Downloaded, options: ResolvedOptions) {
    // The signal belongs to the first call, not to later ones that open the file anew.
    this.#options = { ...options, signal: undefined };
    this.#holder = this.#open(file, options);
  }

  /** Read a checkpoint in a worker. */
  static async open(file: Downloaded, options: ResolvedOptions): Promise<SharedContents> {
    const contents = new SharedContents(file, options);
    await contents.#holder;
    return contents;
  }

  #open(file: Downloaded, options: ResolvedOptions): Promise<Holder> {
    return withWorker(options, async (client) => {
      const python = client.startPython();
      await client.ready;
      await python;
      options.progress.compiles();
      const channel = new Channel(client, await client.request(callOf("openState", [file])));
      channel.endWith(this);
      return { channel };
    });
  }

  async call<Name extends StateCallNames>(
    name: Name,
    ...args: SessionCalls[Name]["args"]
  ): Promise<SessionCalls[Name]["result"]> {
    const holder = await this.#present();
    const answer = "channel" in holder
      ? holder.channel.post(null, () => holder.channel.callOf(name, args))
      : holder.callForState(name, args);
    return answer as Promise<SessionCalls[Name]["result"]>;
  }

  /** Free the memory of the worker; sessions go on. */
  async release(): Promise<void> {
    this.#isReleased = true;
    await free(await this.#holder);
  }

  /** The file that a session starts from. */
  async lend(): Promise<Blob> {
    return (await this.call("saveCheckpoint", true, "blob")).data as Blob;
  }

  /** From now on a session shares the contents. */
  async use(user: StateUser): Promise<void> {
    const holder = await this.#holder;
    this.#users.add(new WeakRef(user));
    if (this.#current !== null) {
      return;
    }
    this.#current = user;
    this.#holder = Promise.resolve("session");
    await free(holder);
  }

  /** Move the contents to a session that is called, if another has them; null if it has them itself. */
  moveTo(user: StateUser): Promise<void> | null {
    const from = this.#current;
    if (from === null || from === user) {
      return null;
    }
    this.#current = user;
    const moved = user.takeState(from.lendState());
    moved.catch(() => {
      if (this.#current === user) {
        this.#current = from;
      }
    });
    return moved;
  }

  /**
   * The session ends after this call: another that shares the contents has them then, or else this page.
   *
   * @param save - asks the session for its checkpoint
   */
  takeBack(user: StateUser, save: () => Promise<Blob>): void {
    for (const one of this.#users) {
      if (one.deref() === user || one.deref() === undefined) {
        this.#users.delete(one);
      }
    }
    if (this.#current !== user) {
      return;
    }
    const other = [...this.#users].map((one) => one.deref()).find((one) => one !== undefined);
    if (other !== undefined) {
      this.moveTo(other)?.catch(() => {});
      return;
    }
    const file = save();
    this.#current = null;
    this.#holder = file.then((blob) => ({ file: blob }));
    this.#holder.catch(() => {});
  }

  /** Find the present holder; the contents of a released session are read first. */
  async #present(): Promise<{ readonly channel: Channel } | StateUser> {
    refuseIf(this.#isReleased, "RELEASED");
    const before = this.#holder;
    const holder = await before;
    if (this.#current !== null) {
      return this.#current;
    }
    if (holder !== "session" && "channel" in holder) {
      return holder;
    }
    if (holder !== "session" && this.#holder === before) {
      this.#holder = this.#open(holder.file, this.#options);
    }
    return this.#present();
  }
}
