/**
 * Checkpoints by name: in the private file system, or in IndexedDB where there is none, in Node on disk. In the page and
 * its workers.
 */

import { MAX_NAME } from "../wire/constants.js";
import type { CheckpointFolder } from "../wire/fit.js";
import { messageOf } from "../wire/fetch-file.js";
import { raise, refuseIf, sessionError } from "../wire/messages.js";
import { databaseFault, deleteEntry, listEntries, readEntry, writeEntry } from "./database.js";
import { findDisk, type Disk } from "./disk.js";
import { hasSlot, listSlots, openFolder, readNewest, removeSlots, writeSlot, type SlotEntry } from "./slots.js";

const FOLDERS = ["trainweb", "checkpoints"];
/** Limit of the wait for a checkpoint that another tab has: a closed tab takes a moment to go. */
const PATIENCE_MS = 3_000;

/**
 * Find the storage for checkpoints.
 *
 * @param folder - in the storage, or a path; null: the usual one of a page
 * @param chosen - where they have to be kept; null: where there is room for them
 * @throws StorageError where there is none
 */
export async function findFolder(folder: string | null, chosen: CheckpointFolder["backend"] | null): Promise<CheckpointFolder> {
  const faults: string[] = [];
  const disk = findDisk();
  if (disk !== null && (chosen ?? "disk") === "disk") {
    return { folder: disk.absolute(folder ?? raise("NO_STORE_FOLDER")), backend: "disk" };
  }
  for (const backend of chosen === null ? (["opfs", "indexedDB"] as const) : [chosen]) {
    const fault = await faultOf(backend);
    if (fault === null) {
      return { folder: folder ?? "default", backend };
    }
    faults.push(fault);
  }
  const reason = faults[0] as string;
  throw chosen === null ? sessionError("NO_STORAGE", { reason }) : sessionError("NO_BACKEND", { backend: chosen, reason });
}

async function faultOf(backend: CheckpointFolder["backend"]): Promise<string | null> {
  if (backend === "disk") {
    return "pages have no disk";
  }
  return backend === "opfs" ? openFolder(FOLDERS).then(() => null, messageOf) : databaseFault();
}

/** The contents; null where there is no such checkpoint. @throws CheckpointError when it is damaged */
export async function readCheckpoint(where: CheckpointFolder, name: string): Promise<Uint8Array<ArrayBuffer> | null> {
  const files = filesOf(where);
  const contents = files === null ? await readFromSlots(where, name) : await files.read(where.folder, checked(name));
  return contents === false ? raise("CHECKPOINT_DAMAGED", { name, folder: where.folder }) : contents;
}

/** The storages that keep a file by its folder and name; null: the slots do. */
function filesOf({ backend }: CheckpointFolder): Omit<Disk, "absolute" | "room"> | null {
  return backend === "opfs" ? null : backend === "disk" ? findDisk() : DATABASE;
}

const DATABASE = { read: readEntry, write: writeEntry, remove: deleteEntry, list: listEntries };

async function readFromSlots(where: CheckpointFolder, name: string): Promise<Uint8Array<ArrayBuffer> | null | false> {
  const folder = await openSlots(where);
  const contents = await readNewest(folder, coded(name));
  // An interrupted write leaves no header.
  return contents === null && (await hasSlot(folder, coded(name))) ? false : contents;
}

/** Write a checkpoint. @throws StorageError when there is no room; the one before is intact */
export async function writeCheckpoint(where: CheckpointFolder, name: string, bytes: Uint8Array): Promise<void> {
  try {
    await (filesOf(where)?.write(where.folder, checked(name), bytes) ?? writeSlot(await openSlots(where), coded(name), bytes));
  } catch (error) {
    throw await explained(error, where, name, bytes.length);
  }
}

export async function removeCheckpoint(where: CheckpointFolder, name: string): Promise<void> {
  await (filesOf(where)?.remove(where.folder, checked(name)) ?? removeSlots(await openSlots(where), coded(name)));
}

/** List the checkpoints, by name. */
export async function listCheckpoints(where: CheckpointFolder): Promise<SlotEntry[]> {
  const entries = (await filesOf(where)?.list(where.folder)) ?? (await listOfSlots(where));
  return entries.sort((a, b) => (a.name < b.name ? -1 : 1));
}

async function listOfSlots(where: CheckpointFolder): Promise<SlotEntry[]> {
  const entries = await listSlots(await openSlots(where));
  // A name that `coded` does not produce belongs to a file from elsewhere.
  return entries.filter(({ name }) => isCoded(name)).map((entry) => ({ ...entry, name: decodeURIComponent(entry.name) }));
}

/** In use by this thread, where there are no locks: in Node. */
const held = new Set<string>();

/**
 * Do something with exclusive use of a checkpoint, in this tab and all others.
 *
 * @throws StorageError when it is in use
 */
export async function withCheckpoint<T>(where: CheckpointFolder, name: string, action: () => Promise<T>): Promise<T> {
  const locks = globalThis.navigator?.locks;
  const lock = `trainweb-checkpoint-${where.backend}-${where.folder}/${checked(name)}`;
  if (locks === undefined) {
    refuseIf(held.has(lock), "CHECKPOINT_IN_USE", { name });
    held.add(lock);
    return action().finally(() => held.delete(lock));
  }
  let isHeld = false;
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const result = locks.request(lock, { signal }, () => {
    isHeld = true;
    return action();
  });
  return result.catch((error: unknown) => {
    throw isHeld || !signal.aborted ? error : sessionError("CHECKPOINT_IN_USE", { name });
  }) as Promise<T>;
}

/** Keep a checkpoint from others until the function that this gives is called. */
export function holdCheckpoint(where: CheckpointFolder, name: string): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const lock = withCheckpoint(where, name, () => new Promise<void>((release) => resolve(release)));
    lock.catch(reject);
  });
}

function openSlots({ folder }: CheckpointFolder): Promise<FileSystemDirectoryHandle> {
  return openFolder([...FOLDERS, coded(folder)]);
}

/** A name as one of a file. */
function coded(name: string): string {
  return encodeURIComponent(checked(name)).replace(/^\./, "%2E");
}

function isCoded(name: string): boolean {
  try {
    return coded(decodeURIComponent(name)) === name;
  } catch {
    return false;
  }
}

/** @throws StorageError for an invalid name */
function checked(name: unknown): string {
  let length = 0;
  try {
    length = typeof name === "string" ? encodeURIComponent(name).replace(/[!'()*]/g, "%00").length : 0;
  } catch {
    // Half of a pair of surrogates.
  }
  refuseIf(length < 1 || length > MAX_NAME, "BAD_CHECKPOINT_NAME", { most: MAX_NAME, actual: name });
  return name as string;
}

/** Codes of errors of a disk or a quota that is full, and of a file that is too large for the file system. */
const FULL: readonly string[] = ["ENOSPC", "EDQUOT", "EFBIG"];

/** The error to throw for a failed write. */
async function explained(error: unknown, { folder, backend }: CheckpointFolder, name: string, needed: number): Promise<unknown> {
  const { name: kind, code, message } = error as DOMException & { readonly code: unknown };
  if (!(backend === "disk" ? FULL.includes(String(code)) : kind === "QuotaExceededError")) {
    return error;
  }
  const room = backend === "disk" ? findDisk()?.room(folder) : globalThis.navigator?.storage?.estimate?.();
  const { usage = null, quota = null } = (await room) ?? {};
  const reason = quota === null ? message : `${usage ?? 0} of ${quota} bytes are in use`;
  return Object.assign(sessionError("NO_ROOM", { name, needed, folder, reason }), { needed, usage, quota });
}
