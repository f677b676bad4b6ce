/** Files by name in IndexedDB, for browsers without a private file system: a transaction is the old file or the new one. */

import { messageOf } from "../wire/fetch-file.js";
import { sha256 } from "../wire/sha256.js";
import type { SlotEntry } from "./slots.js";

const DATABASE = "trainweb";
const STORE = "checkpoints";

/** A file; its key is the folder and the name. */
interface Entry {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly hash: Uint8Array<ArrayBuffer>;
  readonly written: number;
}

type Key = readonly [folder: string, name: string];

/** The contents; null: there is no such file; false: it is damaged. */
export async function readEntry(folder: string, name: string): Promise<Uint8Array<ArrayBuffer> | null | false> {
  const entry = await transact("readonly", (store) => store.get([folder, name]) as IDBRequest<Entry | undefined>);
  if (entry === undefined) {
    return null;
  }
  const hash = await sha256(entry.bytes);
  return hash.every((byte, k) => byte === entry.hash[k]) && entry.bytes;
}

/** @throws DOMException of the database; the file before is intact */
export async function writeEntry(folder: string, name: string, bytes: Uint8Array): Promise<void> {
  const entry = { bytes: bytes as Uint8Array<ArrayBuffer>, hash: await sha256(bytes), written: Date.now() };
  await transact("readwrite", (store) => store.put(entry satisfies Entry, [folder, name]));
}

export async function deleteEntry(folder: string, name: string): Promise<void> {
  await transact("readwrite", (store) => store.delete([folder, name]));
}

export async function listEntries(folder: string): Promise<SlotEntry[]> {
  const range = IDBKeyRange.bound([folder], [folder, []]);
  const keys = await transact("readonly", (store) => store.getAllKeys(range));
  const entries: SlotEntry[] = [];
  for (const key of keys as unknown as readonly Key[]) {
    const entry = await transact("readonly", (store) => store.get(key as unknown as IDBValidKey) as IDBRequest<Entry | undefined>);
    if (entry !== undefined) {
      entries.push({ name: key[1], nbytes: entry.bytes.length, written: entry.written });
    }
  }
  return entries;
}

/** Run a request in its own transaction; settles when the transaction is on the disk. */
async function transact<T>(mode: IDBTransactionMode, ask: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const database = await open();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode, { durability: "strict" });
      const request = ask(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject((transaction.error ?? request.error) as Error);
    });
  } finally {
    database.close();
  }
}

/** The reason why there is no database, as in a frame with `sandbox="allow-scripts"`; null: there is one. */
export async function databaseFault(): Promise<string | null> {
  if (globalThis.indexedDB === undefined) {
    return "it has no IndexedDB";
  }
  return open().then((database) => database.close() ?? null, messageOf);
}

async function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error as Error);
  });
}
