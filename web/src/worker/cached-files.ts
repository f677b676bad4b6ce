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
import { concatenate, PIECE_BYTES, sizeOf, type FileHashes, type SourceData } from "../wire/pieces.js";
import { bytesOfHex, hasHashes, hexOf, sha256, sha256OfFile, sha256OfPieces } from "../wire/sha256.js";

const FOLDERS = ["trainweb", "bundles"];

/** Bytes of a file that are written at once. */
const CHUNK_BYTES = PIECE_BYTES;

/** Most files that are kept; the oldest ones are removed. */
const MAX_FILES = 16;

/** Age at which a large file without an owner counts as abandoned. */
const ORPHAN_MS = 3_600_000;

/** Suffix of the large file that belongs to a file. */
const LARGE = ".large";

/** Do something in the folder; null where that fails, which is logged with the fault. */
async function attempt<T>(fault: string, action: (folder: FileSystemDirectoryHandle) => Promise<T>): Promise<T | null> {
  try {
    return await action(await openFolder(FOLDERS));
  } catch (error) {
    log("info", `${fault}: ${String(error)}`);
    return null;
  }
}

/** The file, or null if no complete one exists. */
export function readFile(name: string): Promise<Uint8Array<ArrayBuffer> | null> {
  return attempt(`no stored ${name}`, (folder) => readNewest(folder, name));
}

/** Write a file. If that fails, the previous one is still there. */
export async function writeFile(name: string, bytes: Uint8Array): Promise<void> {
  const write = (): Promise<void | null> =>
    attempt(`${name} is not stored`, async (folder) => {
      await writeSlot(folder, name, bytes);
      await removeOldest(folder);
    });
  // Another page that writes the same file writes the same contents.
  const { locks } = globalThis.navigator ?? {};
  await (locks?.request(`trainweb-cache-${name}`, { ifAvailable: true }, (lock) => lock && write()) ?? write());
}

/** Remove a file, if it is there. */
export async function removeFile(name: string): Promise<void> {
  await attempt(`${name} is not removed`, (folder) =>
    Promise.all([removeSlots(folder, name), removeEntry(folder, name + LARGE)]),
  );
}

/** SHA-256 of each chunk of a file, as hexadecimal digits. */
export type Chunks = readonly string[];

/**
 * Write the large file that belongs to a file, chunk by chunk. It is valid for a reader with the right hashes.
 *
 * @param read - fills the target with bytes from an offset on
 * @returns hashes of its chunks; null: it is not stored
 */
export function writeChunks(
  name: string,
  nbytes: number,
  read: (offset: number, target: Uint8Array) => void,
): Promise<Chunks | null> {
  const file = name + LARGE;
  return attempt(`${file} is not stored`, async (folder) => {
    const handle = (await folder.getFileHandle(file, { create: true })) as WorkerFileHandle;
    const access = await handle.createSyncAccessHandle();
    try {
      access.truncate(0);
      const hashes: string[] = [];
      const buffer = new Uint8Array(CHUNK_BYTES);
      for (let at = 0; at < nbytes; at += CHUNK_BYTES) {
        const chunk = buffer.subarray(0, nbytes - at);
        read(at, chunk);
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
  });
}

/**
 * Read what `writeChunks` wrote.
 *
 * @param write - takes bytes from an offset on
 * @throws Error when the file does not exist, or has other bytes
 */
export async function readChunks(
  name: string,
  nbytes: number,
  hashes: Chunks,
  write: (offset: number, data: Uint8Array) => void,
): Promise<void> {
  const folder = await openFolder(FOLDERS);
  const file = await (await folder.getFileHandle(name + LARGE)).getFile();
  if (file.size !== nbytes || !(await hasHashes(file, hashes.map(bytesOfHex), write))) {
    throw new Error(`the stored ${name}${LARGE} is damaged`);
  }
}

/**
 * SHA-256 of the hashes of parts, as hexadecimal digits; null if the browser has no SHA-256.
 *
 * @param known - of parts
 */
export async function hashOf(
  parts: readonly (string | SourceData | null)[],
  known: ReadonlyMap<SourceData | null, FileHashes | null>,
): Promise<string | null> {
  if (globalThis.crypto?.subtle === undefined) {
    return null;
  }
  const hashes = await Promise.all(
    parts.map((part) => {
      const file = typeof part === "string" ? new TextEncoder().encode(part) : part;
      const hashes = known.get(file)?.pieces;
      const hash = (data: SourceData): Promise<Uint8Array> =>
        hashes === undefined ? sha256OfFile(data) : sha256OfPieces(hashes, sizeOf(data));
      return file === null ? new Uint8Array(32) : hash(file);
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
    // The owner is written after its large file.
    return !SLOTS.some((slot) => kept.has(slotName(owner, slot))) && written < Date.now() - ORPHAN_MS;
  });
  await Promise.all(abandoned.map(({ name }) => removeEntry(folder, name)));
}
