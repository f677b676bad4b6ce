/**
 * Files of bundles, kept for the next visit in slots of this origin's private file system. If the storage is absent,
 * full or failing, the file counts as absent; no error is raised.
 */

import {
  openFolder,
  readNewest,
  removeEntry,
  removeSlots,
  SLOTS,
  slotName,
  writeAll,
  writeSlot,
  type WorkerFileHandle,
} from "../storage/slots.js";
import { log } from "../wire/log.js";
import { concatenate, free, type GivenData } from "../wire/pieces.js";
import { hexOf, sha256, sha256OfFile } from "../wire/sha256.js";

const FOLDERS = ["trainweb", "bundles"];

/** Bytes of a file that are read at once. */
const CHUNK_BYTES = 2 ** 24;

/** Most files that are kept; the oldest ones are removed. */
const MAX_FILES = 16;

/** Age from which on a large file without an owner is taken for abandoned. */
const ORPHAN_MS = 3_600_000;

/** Suffix of the large file that belongs to a file. */
const LARGE = ".large";

/** The file, or null if no complete one exists. */
export async function readFile(name: string): Promise<Uint8Array<ArrayBuffer> | null> {
  try {
    return await readNewest(await openFolder(FOLDERS), name);
  } catch (error) {
    log("info", `no stored ${name}: ${String(error)}`);
    return null;
  }
}

/**
 * Write a file.
 *
 * @returns true if it is stored; if not, the previous one is still there
 */
export async function writeFile(name: string, bytes: Uint8Array): Promise<boolean> {
  const write = async (): Promise<boolean> => {
    try {
      const folder = await openFolder(FOLDERS);
      await writeSlot(folder, name, bytes);
      await removeOldest(folder);
      return true;
    } catch (error) {
      log("info", `${name} is not stored: ${String(error)}`);
      return false;
    }
  };
  const locks = globalThis.navigator?.locks;
  if (locks === undefined) {
    return write();
  }
  // Another page that writes the same file writes the same contents.
  return locks.request(`trainweb-store-${name}`, { ifAvailable: true }, (lock) =>
    lock === null ? false : write(),
  );
}

/** Remove a file, if it is there. */
export async function removeFile(name: string): Promise<void> {
  try {
    const folder = await openFolder(FOLDERS);
    await Promise.all([removeSlots(folder, name), removeEntry(folder, name + LARGE)]);
  } catch (error) {
    log("info", `${name} is not removed: ${String(error)}`);
  }
}

/** SHA-256 of each chunk of a file, as hexadecimal digits. */
export type Chunks = readonly string[];

/** A run of bytes. */
interface Run {
  readonly nbytes: number;
}

/**
 * Write the large file that belongs to a file, one run of bytes after the other, without having it in memory. It
 * counts for who has its hashes.
 *
 * @param read - fills the target with bytes of a run from an offset on
 * @returns hashes of its chunks; null: it is not stored
 */
export async function writeChunks<R extends Run>(
  name: string,
  runs: readonly R[],
  read: (run: R, offset: number, target: Uint8Array) => void,
): Promise<Chunks | null> {
  const file = name + LARGE;
  try {
    const folder = await openFolder(FOLDERS);
    const handle = (await folder.getFileHandle(file, { create: true })) as WorkerFileHandle;
    const access = await handle.createSyncAccessHandle();
    try {
      access.truncate(0);
      const hashes: string[] = [];
      const buffer = new Uint8Array(CHUNK_BYTES);
      for (const { run, offset, at, nbytes } of chunksOf(runs)) {
        const chunk = buffer.subarray(0, nbytes);
        read(run, offset, chunk);
        writeAll(access, chunk, at);
        hashes.push(hexOf(await sha256(chunk)));
      }
      access.flush();
      return hashes;
    } catch (error) {
      access.truncate(0);
      throw error;
    } finally {
      access.close();
    }
  } catch (error) {
    log("info", `${file} is not stored: ${String(error)}`);
    return null;
  }
}

/**
 * Read the chunks that `writeChunks` wrote.
 *
 * @param write - takes bytes of a run from an offset on
 * @throws Error when the file does not exist, or has other bytes
 */
export async function readChunks<R extends Run>(
  name: string,
  runs: readonly R[],
  hashes: Chunks,
  write: (run: R, offset: number, data: Uint8Array) => void,
): Promise<void> {
  const folder = await openFolder(FOLDERS);
  const file = await (await folder.getFileHandle(name + LARGE)).getFile();
  const chunks = [...chunksOf(runs)];
  const total = runs.reduce((sum, { nbytes }) => sum + nbytes, 0);
  if (file.size !== total || chunks.length !== hashes.length) {
    throw new Error(`the stored ${name}${LARGE} has ${file.size} bytes instead of ${total}`);
  }
  for (const [index, { run, offset, at, nbytes }] of chunks.entries()) {
    const data = new Uint8Array(await file.slice(at, at + nbytes).arrayBuffer());
    if (hexOf(await sha256(data)) !== hashes[index]) {
      throw new Error(`the stored ${name}${LARGE} is damaged at byte ${at} or after it`);
    }
    write(run, offset, data);
    free(data);
  }
}

/** The chunks of runs that lie one after the other; none reaches over the end of a run. */
function* chunksOf<R extends Run>(
  runs: readonly R[],
): Generator<{ readonly run: R; readonly offset: number; readonly at: number; readonly nbytes: number }> {
  let start = 0;
  for (const run of runs) {
    for (let offset = 0; offset < run.nbytes; offset += CHUNK_BYTES) {
      yield { run, offset, at: start + offset, nbytes: Math.min(CHUNK_BYTES, run.nbytes - offset) };
    }
    start += run.nbytes;
  }
}

/**
 * SHA-256 as hexadecimal digits, of parts that cannot be mistaken for each other; null where the browser has none.
 *
 * @param known - hashes of parts
 */
export async function hashOf(
  parts: readonly (string | GivenData | null)[],
  known: ReadonlyMap<GivenData | null, Uint8Array | null>,
): Promise<string | null> {
  if (globalThis.crypto?.subtle === undefined) {
    return null;
  }
  const hashes = await Promise.all(
    parts.map((part) => {
      const file = typeof part === "string" ? new TextEncoder().encode(part) : part;
      return file === null ? new Uint8Array(32) : known.get(file) ?? sha256OfFile(file);
    }),
  );
  return hexOf(await sha256(concatenate(hashes)));
}

async function removeOldest(folder: FileSystemDirectoryHandle): Promise<void> {
  const entries: { readonly name: string; readonly written: number }[] = [];
  for await (const [name, handle] of folder.entries()) {
    if (handle instanceof FileSystemFileHandle) {
      entries.push({ name, written: (await handle.getFile()).lastModified });
    }
  }
  const files = entries.filter(({ name }) => !name.endsWith(LARGE)).sort((a, b) => b.written - a.written);
  const kept = new Set(files.slice(0, MAX_FILES).map(({ name }) => name));
  const abandoned = entries.filter(({ name, written }) => {
    if (!name.endsWith(LARGE)) {
      return !kept.has(name);
    }
    const owner = name.slice(0, -LARGE.length);
    // Its owner is written after it.
    return !SLOTS.some((slot) => kept.has(slotName(owner, slot))) && written < Date.now() - ORPHAN_MS;
  });
  await Promise.all(abandoned.map(({ name }) => removeEntry(folder, name)));
}
