/** Checkpoints by name: in the private file system, or in IndexedDB where there is none. In the page and its workers. */

import { MAX_NAME } from "../wire/constants.js";
import type { CheckpointFolder } from "../wire/fit.js";
import { messageOf } from "../wire/fetch-file.js";
import { raise, refuseIf, sessionError } from "../wire/messages.js";
import { databaseFault, deleteEntry, listEntries, readEntry, writeEntry } from "./database.js";
import { hasSlot, listSlots, openFolder, readNewest, removeSlots, writeSlot, type SlotEntry } from "./slots.js";

const FOLDERS = ["trainweb", "checkpoints"];
/** Limit of the wait for a checkpoint that another tab has: a closed tab takes a moment to go. */
const PATIENCE_MS = 3_000;

/**
 * Find the storage for checkpoints.
 *
 * @param chosen - where they have to be kept; null: where there is room for them
 * @throws StorageError where there is none
 */
export async function findBackend(chosen: CheckpointFolder["backend"] | null): Promise<CheckpointFolder["backend"]> {
  const faults: string[] = [];
  for (const backend of chosen === null ? (["opfs", "indexedDB"] as const) : [chosen]) {
    const fault = await (backend === "opfs" ? openFolder(FOLDERS).then(() => null, messageOf) : databaseFault());
    if (fault === null) {
      return backend;
    }
    faults.push(fault);
  }
  const reason = faults[0] as string;
  throw chosen === null ? sessionError("NO_STORAGE", { reason }) : sessionError("NO_BACKEND", { backend: chosen, reason });
}

/** The contents; null where there is no such checkpoint. @throws CheckpointError when it is damaged */
export async function readCheckpoint(where: CheckpointFolder, name: string): Promise<Uint8Array<ArrayBuffer> | null> {
  const contents = where.backend === "indexedDB" ? await readEntry(where.folder, checked(name)) : await readFromSlots(where, name);
  return contents === false ? raise("CHECKPOINT_DAMAGED", { name, folder: where.folder }) : contents;
}

async function readFromSlots(where: CheckpointFolder, name: string): Promise<Uint8Array<ArrayBuffer> | null | false> {
  const folder = await openSlots(where);
  const contents = await readNewest(folder, coded(name));
  // An interrupted write leaves no header.
  return contents === null && (await hasSlot(folder, coded(name))) ? false : contents;
}

/** Write a checkpoint. @throws StorageError when there is no room; the one before is intact */
export async function writeCheckpoint(where: CheckpointFolder, name: string, bytes: Uint8Array): Promise<void> {
  try {
    if (where.backend === "indexedDB") {
      await writeEntry(where.folder, checked(name), bytes);
    } else {
      await writeSlot(await openSlots(where), coded(name), bytes);
    }
  } catch (error) {
    throw await explained(error, where, name, bytes.length);
  }
}

export async function removeCheckpoint(where: CheckpointFolder, name: string): Promise<void> {
  if (where.backend === "indexedDB") {
    await deleteEntry(where.folder, checked(name));
  } else {
    await removeSlots(await openSlots(where), coded(name));
  }
}

/** List the checkpoints, by name. */
export async function listCheckpoints(where: CheckpointFolder): Promise<SlotEntry[]> {
  const isDatabase = where.backend === "indexedDB";
  const entries = isDatabase ? await listEntries(where.folder) : await listSlots(await openSlots(where));
  // A name that `coded` does not produce belongs to a file from elsewhere.
  const ours = isDatabase ? entries : entries.filter(({ name }) => isCoded(name));
  const named = isDatabase ? ours : ours.map((entry) => ({ ...entry, name: decodeURIComponent(entry.name) }));
  return named.sort((a, b) => (a.name < b.name ? -1 : 1));
}

/**
 * Do something with exclusive use of a checkpoint, in this tab and all others.
 *
 * @throws StorageError when it is in use
 */
export async function withCheckpoint<T>(where: CheckpointFolder, name: string, action: () => Promise<T>): Promise<T> {
  const locks = globalThis.navigator?.locks;
  const lock = `trainweb-checkpoint-${where.backend}-${where.folder}/${checked(name)}`;
  if (locks === undefined) {
    return action();
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
    length = typeof name === "string" ? encodeURIComponent(name).length : 0;
  } catch {
    // Half of a pair of surrogates.
  }
  refuseIf(length < 1 || length > MAX_NAME, "BAD_CHECKPOINT_NAME", { most: MAX_NAME, actual: name });
  return name as string;
}

/** The error to throw for a failed write. */
async function explained(error: unknown, { folder }: CheckpointFolder, name: string, needed: number): Promise<unknown> {
  if (!(error instanceof DOMException) || error.name !== "QuotaExceededError") {
    return error;
  }
  const { usage = null, quota = null } = (await globalThis.navigator?.storage?.estimate?.()) ?? {};
  const reason = quota === null ? error.message : `${usage ?? 0} of ${quota} bytes are in use`;
  return Object.assign(sessionError("NO_ROOM", { name, needed, folder, reason }), { needed, usage, quota });
}
