/// <reference lib="esnext.disposable" preserve="true" />
/** `CheckpointState`: parameters, properties and optimizer state, independent of any session. */

import type { Tensor } from "onnxruntime-common";

import type { FileForm, PropertyKind, PropertyValue, SessionCall, SharedState, StateCallNames } from "../wire/protocol.js";
import type { SessionCalls } from "../wire/session-calls.js";
import { refuseIf } from "../wire/messages.js";
import { checkForm, checkKind, type FileOptions } from "./call-arguments.js";
import { checkFlag, typeAndShape, type ParameterTypeAndShape } from "./call-values.js";
import { Channel } from "./channel.js";
import { callOf, withWorker } from "./client.js";
import { resolveOptions, type ResolvedOptions, type SessionOptions } from "./options.js";
import { buffersOf, checkSource, loadSource, type Loaded, type Source } from "./sources.js";
import { describe, isTensor } from "../data/given.js";
import { checkOptions } from "../data/nearest.js";
import { copyBytes, packTensor, unpackTensor } from "./tensors.js";
import { Opaque } from "../wire/opaque.js";

/** Read a checkpoint in a worker, for as long as its owner lives. */
function openState(owner: object, file: Loaded, options: ResolvedOptions): Promise<Channel> {
  return withWorker(options, async (client) => {
    const python = client.startPython();
    await client.ready;
    await python;
    options.progress.compiles();
    const channel = new Channel(client, await client.request(callOf("openState", [file], buffersOf(file))));
    channel.endWith(owner);
    return channel;
  });
}

/** A session that uses a state. */
export interface StateUser {
  /** Copy the parts that sessions on one state share. */
  lendState(): Promise<SharedState>;
  /** Continue with the state of another session; later calls come after. */
  takeState(shared: Promise<SharedState>): Promise<void>;
  /** Run one of the calls that states have, too. */
  callForState(call: SessionCall, buffers: readonly ArrayBuffer[]): Promise<unknown>;
}

/** The holder of the contents: only this page, a worker, or the session that was called last. */
type Holder = { readonly file: Blob } | { readonly channel: Channel } | "session";

const KEY = Symbol("CheckpointState");

/**
 * A checkpoint that is not bound to a session. Given to `TrainingSession.create` as `checkpointState`, it shows the
 * session's current values, and keeps them when the session is released.
 *
 * Several sessions on one state share its parameters, moments, step count, learning rate, schedule and properties. A
 * call moves them to the memory of its session, so alternating between two sessions costs a copy each time.
 * Gradients, the reset flag and random numbers are each session's own.
 */
export class CheckpointState extends Opaque {
  readonly #options: ResolvedOptions;
  #holder: Promise<Holder>;
  /** The session that was called last, which has the contents, and all that share them. */
  #current: StateUser | null = null;
  readonly #users = new Set<WeakRef<StateUser>>();
  #isReleased = false;

  private constructor(key: symbol, options: ResolvedOptions) {
    super();
    if (key !== KEY) {
      throw new TypeError("use CheckpointState.load().");
    }
    this.#options = options;
    this.#holder = Promise.resolve({ file: new Blob() });
  }

  /**
   * Read a checkpoint, as trainweb or onnxruntime-training wrote it.
   *
   * @param source - a URL, bytes or a Blob
   * @throws CheckpointError when it is not a checkpoint, or cannot be fetched
   */
  static async load(source: Source, sessionOptions?: SessionOptions): Promise<CheckpointState> {
    checkSource("source", source);
    const options = resolveOptions(sessionOptions);
    options.integrity.expect(["checkpointState"]);
    const file = await loadSource("checkpointState", source, options);
    // The signal belongs to this call, not to later calls that open the state anew.
    const state = new CheckpointState(KEY, { ...options, signal: undefined });
    const channel = await openState(state, file, options);
    state.#holder = Promise.resolve({ channel });
    return state;
  }

  /** Names of all (trainable) parameters, in the order of the checkpoint, or of the session that uses it. */
  async parameterNames(options: { readonly trainableOnly?: boolean } = {}): Promise<readonly string[]> {
    const { trainableOnly = false } = checkOptions("parameterNames", options, { trainableOnly: true });
    checkFlag("trainableOnly", trainableOnly);
    return this.#call("parameterNames", [trainableOnly]);
  }

  /** @throws CheckpointError for a name that is not there */
  async getParameterTypeAndShape(name: string): Promise<ParameterTypeAndShape> {
    return typeAndShape(await this.#call("getParameterTypeAndShape", [name]));
  }

  /** A copy of one parameter. */
  async getParameter(name: string): Promise<Tensor> {
    return unpackTensor(await this.#call("getParameter", [name]));
  }

  /** Overwrite one parameter; type and dims must match. */
  async updateParameter(name: string, tensor: Tensor): Promise<void> {
    if (!isTensor(tensor)) {
      throw new TypeError(`'tensor' must be a Tensor, got ${describe(tensor)}.`);
    }
    const packed = await packTensor(name, tensor, copyBytes);
    await this.#call("updateParameter", [packed], [packed.data.buffer as ArrayBuffer]);
  }

  /** Keep a value in the checkpoint; as `TrainingSession.addProperty`. */
  async addProperty(name: string, value: PropertyValue, kind?: PropertyKind): Promise<void> {
    checkKind(value, kind);
    await this.#call("addProperty", [name, value, kind ?? null]);
  }

  /** A value that the checkpoint keeps; an integer that a number cannot hold is a bigint. */
  getProperty(name: string): Promise<PropertyValue> {
    return this.#call("getProperty", [name]);
  }

  /** The type that a value is kept as: 1 may be an integer or a float. */
  getPropertyKind(name: string): Promise<PropertyKind> {
    return this.#call("getPropertyKind", [name]);
  }

  /** Names of the values that the checkpoint keeps. */
  propertyNames(): Promise<readonly string[]> {
    return this.#call("propertyNames", []);
  }

  /** @throws CheckpointError for a name that is not there */
  async deleteProperty(name: string): Promise<void> {
    await this.#call("deleteProperty", [name]);
  }

  /**
   * The checkpoint as a file; as `TrainingSession.saveCheckpoint`.
   *
   * @throws CheckpointError when it has no values yet (nominal); LimitError when it would be larger than 2 GiB
   */
  save(options: { readonly includeOptimizerState?: boolean; readonly as: "blob" }): Promise<Blob>;
  save(options?: FileOptions<"bytes"> & { readonly includeOptimizerState?: boolean }): Promise<Uint8Array>;
  async save(
    options: FileOptions & { readonly includeOptimizerState?: boolean } = {},
  ): Promise<Uint8Array | Blob> {
    const known = { includeOptimizerState: true, as: true } as const;
    const { includeOptimizerState = false, as } = checkOptions("save", options, known);
    checkFlag("includeOptimizerState", includeOptimizerState);
    return this.#save(includeOptimizerState, checkForm(as));
  }

  /** Free the state's memory in the worker. A session that uses the state continues. You may repeat the call. */
  async release(): Promise<void> {
    this.#isReleased = true;
    const holder = await this.#holder;
    if (holder !== "session" && "channel" in holder) {
      await holder.channel.release();
    }
  }

  /** `release`, at the end of a block with `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  /** @internal The file that a session starts from. */
  async lend(): Promise<Blob> {
    return (await this.#save(true, "blob")) as Blob;
  }

  /** @internal From now on a session shares the contents. */
  async use(user: StateUser): Promise<void> {
    const holder = await this.#holder;
    this.#users.add(new WeakRef(user));
    if (this.#current !== null) {
      return;
    }
    this.#current = user;
    this.#holder = Promise.resolve("session");
    if (holder !== "session" && "channel" in holder) {
      await holder.channel.release();
    }
  }

  /** @internal Move the contents to a session that is called, if another has them; null if it has them itself. */
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
   * @internal The session ends after this call: another that shares the contents has them then, or else this page.
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

  async #save(includeOptimizerState: boolean, form: FileForm): Promise<Uint8Array | Blob> {
    return (await this.#call("saveCheckpoint", [includeOptimizerState, form])).data;
  }

  async #call<Name extends StateCallNames>(
    name: Name,
    args: SessionCalls[Name]["args"],
    buffers: readonly ArrayBuffer[] = [],
  ): Promise<SessionCalls[Name]["result"]> {
    const holder = await this.#present();
    const answer = "channel" in holder
      ? holder.channel.post(null, () => holder.channel.callOf(name, args, buffers))
      : holder.callForState({ name, args } as SessionCall, buffers);
    return answer as Promise<SessionCalls[Name]["result"]>;
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
    if (holder === "session") {
      return this.#present();
    }
    if (this.#holder === before) {
      this.#holder = openState(this, holder.file, this.#options).then((channel) => ({ channel }));
    }
    return this.#present();
  }
}
