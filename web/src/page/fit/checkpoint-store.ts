/** `CheckpointStore`: named checkpoints of sessions in the browser's own storage, in Node in a folder on disk. */

import {
  findFolder,
  listCheckpoints,
  readCheckpoint,
  removeCheckpoint,
  withCheckpoint,
  writeCheckpoint,
} from "../../storage/checkpoints.js";
import type { CheckpointFolder } from "../../wire/fit.js";
import { raise, refuseIf } from "../../wire/messages.js";
import { isBytes, mustBe, refuseSettingIf } from "../../data/checks.js";
import { checkOptions } from "../../data/nearest.js";
import { Opaque } from "../../wire/opaque.js";

/** An entry of `CheckpointStore.list`. */
export interface StoredCheckpoint {
  /** Its name in the store. */
  readonly name: string;
  /** Bytes of the checkpoint, without the store's header. */
  readonly nbytes: number;
  /** Time of writing. */
  readonly written: Date;
}

/** The browser's figures for this origin's storage, which checkpoints share with other data. */
export interface StorageQuota {
  /** Bytes that this origin uses. */
  readonly usage: number | null;
  /** Bytes that it may keep. */
  readonly quota: number | null;
  /** True: the browser keeps the data until the user removes it; false: it may go when the disk is full. */
  readonly isPersistent: boolean;
}

const BACKENDS: readonly string[] = ["opfs", "indexedDB", "disk"] satisfies readonly CheckpointFolder["backend"][];

/** A session, as the store knows it. */
export interface StoredSession {
  /** @internal */
  keepIn(where: CheckpointFolder, name: string): Promise<void>;
  /** @internal */
  goOnFrom(where: CheckpointFolder, name: string): Promise<void>;
}

/**
 * Named checkpoints, each with all that an exact resume needs. They are in the private file system of this origin, or
 * in IndexedDB where there is none. In Node, Deno and Bun they are files in a folder on disk, the same as Python's. A
 * crash during a write leaves the old checkpoint or the new one. Each has a checksum, and other tabs cannot use it
 * while a fit has it; other processes on a disk can. Pages and Python use the same format, so `read` and `write` move
 * training between them.
 */
export class CheckpointStore extends Opaque {
  readonly #folder: string | null;
  readonly #chosen: CheckpointFolder["backend"] | null;
  #where: Promise<CheckpointFolder> | null = null;

  /**
   * @param folder - of the origin's checkpoints, for several programs of one origin; default "default". In Node a path,
   *   which has no default; it is made when the first checkpoint is written
   * @param options - `backend`: "opfs", "indexedDB" or "disk"; default: the first that is there
   * @throws ModelError for a wrong argument; TypeError for an unknown option
   */
  constructor(folder: string | null = null, options: { readonly backend?: CheckpointFolder["backend"] | null } = {}) {
    super();
    const { backend = null } = checkOptions("CheckpointStore", options, { backend: true });
    refuseSettingIf(folder !== null && (typeof folder !== "string" || folder === ""), "folder", folder, "a text");
    refuseSettingIf(backend !== null && !BACKENDS.includes(backend), "backend", backend, "opfs, indexedDB or disk");
    this.#folder = folder;
    this.#chosen = backend;
  }

  /** @internal */
  where(): Promise<CheckpointFolder> {
    this.#where ??= findFolder(this.#folder, this.#chosen);
    return this.#where;
  }

  /**
   * Store the current state of a session: parameters, moments, rate, random numbers, accumulated gradients.
   *
   * @throws StorageError when there is no room, or a fit has the checkpoint; the previous checkpoint is then intact
   */
  async save(session: StoredSession, name: string): Promise<void> {
    await checkSession(session).keepIn(await this.where(), name);
  }

  /**
   * Make a session continue from a checkpoint.
   *
   * @throws StorageError when no checkpoint has this name. CheckpointError when it is damaged, or of a session with
   *   other parameters, optimizer, constants or scaling of adapters: nothing was changed
   */
  async load(session: StoredSession, name: string): Promise<void> {
    await checkSession(session).goOnFrom(await this.where(), name);
  }

  /** List the checkpoints, by name. */
  async list(): Promise<StoredCheckpoint[]> {
    const entries = await listCheckpoints(await this.where());
    return entries.map(({ name, nbytes, written }) => ({ name, nbytes, written: new Date(written) }));
  }

  /**
   * Remove a checkpoint, if there is one of this name.
   *
   * @throws StorageError when a fit has it
   */
  async delete(name: string): Promise<void> {
    const where = await this.where();
    await withCheckpoint(where, name, () => removeCheckpoint(where, name));
  }

  /**
   * Call a checkpoint by another name.
   *
   * @throws StorageError when there is none, the new name exists already, or a fit has one of them
   */
  async rename(name: string, to: string): Promise<void> {
    const where = await this.where();
    const { folder } = where;
    const move = async (): Promise<void> => {
      const contents = await this.#contents(name);
      refuseIf((await readCheckpoint(where, to)) !== null, "CHECKPOINT_EXISTS", { name: to, folder });
      await writeCheckpoint(where, to, contents);
      await removeCheckpoint(where, name);
    };
    await withCheckpoint(where, name, () => (to === name ? move() : withCheckpoint(where, to, move)));
  }

  /**
   * Read the contents of a checkpoint, for `write` of another store.
   *
   * @throws StorageError when no checkpoint has this name; CheckpointError when it is damaged
   */
  async read(name: string): Promise<Blob> {
    return new Blob([await this.#contents(name)]);
  }

  /**
   * Store contents that `read` of a store returned.
   *
   * @throws StorageError when there is no room, or a fit has the checkpoint. Other contents than a checkpoint are
   *   refused when they are loaded
   */
  async write(name: string, contents: Blob | Uint8Array): Promise<void> {
    const bytes = contents instanceof Blob ? new Uint8Array(await contents.arrayBuffer()) : contents;
    refuseSettingIf(!isBytes(bytes), "contents", contents, "a Blob or Uint8Array");
    const where = await this.where();
    await withCheckpoint(where, name, () => writeCheckpoint(where, name, bytes));
  }

  /** Bytes that this origin uses and may use, if the browser reports them. */
  async quota(): Promise<StorageQuota> {
    const storage = globalThis.navigator?.storage;
    const { usage = null, quota = null } = (await storage?.estimate?.()) ?? {};
    return { usage, quota, isPersistent: (await storage?.persisted?.()) ?? false };
  }

  /** Ask the browser to keep the data of this origin until the user removes it. Returns true if it does. */
  async persist(): Promise<boolean> {
    return (await globalThis.navigator?.storage?.persist?.()) ?? false;
  }

  async #contents(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const where = await this.where();
    return (await readCheckpoint(where, name)) ?? raise("NO_CHECKPOINT", { name, folder: where.folder });
  }
}

function checkSession(session: StoredSession): StoredSession {
  const isSession = typeof (session as Partial<StoredSession> | null)?.keepIn === "function";
  mustBe(isSession, "session", "a TrainingSession", session);
  return session;
}
