/**
 * Files of this origin's private file system (OPFS), for a worker. A file is written into one of two slots
 * and counts from the moment its header is there, which comes last; a checksum covers all of it. Whatever
 * interrupts a write, a reader gets the old file or the new one. Storage that is not there, full or failing is
 * no error: the file is not there, then.
 */

import { inTime } from "../wire/fetch-file.js";
import { log } from "../wire/log.js";
import { sha256, sha256OfFile } from "../wire/sha256.js";
import type { FileData } from "../wire/values.js";

const FOLDERS = ["trainweb", "bundles"];

/** Bytes of a file that are read at once. */
const CHUNK_BYTES = 2 ** 24;

/** Files that are kept; of more, those written longest ago go. */
const MAX_FILES = 16;

const MAGIC = 0x53425754; // "TWBS"
const VERSION = 1;
/** Magic, version, sequence number, 0, length (u64), SHA-256 of the contents, SHA-256 of all this (first half). */
const HEADER_BYTES = 72;
const CONTENTS_HASH = 24;
const HEADER_HASH = 56;
const SLOTS = [0, 1] as const;

/** Storage that does not answer for so long counts as none. */
const ANSWER_MS = 5_000;
/** Age from which on a large file without an owner is taken for abandoned. */
const ORPHAN_MS = 3_600_000;

/** How the large file that belongs to a file is called after it. */
const LARGE = ".large";

/** What only workers have, and TypeScript declares apart from the rest of a page's interface. */
interface SyncAccessHandle {
  truncate(size: number): void;
  write(bytes: Uint8Array, options: { readonly at: number }): number;
  flush(): void;
  close(): void;
}

interface WorkerFileHandle extends FileSystemFileHandle {
  createSyncAccessHandle(): Promise<SyncAccessHandle>;
}

interface Stored {
  readonly slot: number;
  readonly sequence: number;
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** The file, or null where there is none that is whole. */
export async function readFile(name: string): Promise<Uint8Array<ArrayBuffer> | null> {
  try {
    return (await readNewest(await openFolder(), name))?.bytes ?? null;
  } catch (error) {
    log("info", `no stored ${name}: ${String(error)}`);
    return null;
  }
}

/**
 * Write a file.
 *
 * @returns whether it is stored; if not, the one before still is
 */
export async function writeFile(name: string, bytes: Uint8Array): Promise<boolean> {
  const write = async (): Promise<boolean> => {
    try {
      await writeSlot(await openFolder(), name, bytes);
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
    const folder = await openFolder();
    await Promise.all([...SLOTS.map((slot) => slotName(name, slot)), name + LARGE].map((file) => removeEntry(folder, file)));
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
    const folder = await openFolder();
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
 * Read what `writeChunks` wrote.
 *
 * @param write - takes bytes of a run from an offset on
 * @throws Error when it is not there, or other bytes
 */
export async function readChunks<R extends Run>(
  name: string,
  runs: readonly R[],
  hashes: Chunks,
  write: (run: R, offset: number, data: Uint8Array) => void,
): Promise<void> {
  const folder = await openFolder();
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

function hexOf(bytes: Uint8Array): string {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** SHA-256 as hexadecimal digits, of parts that cannot be mistaken for each other; null where the browser has none. */
export async function hashOf(parts: readonly (string | FileData | null)[]): Promise<string | null> {
  if (globalThis.crypto?.subtle === undefined) {
    return null;
  }
  const hashes = await Promise.all(
    parts.map((part) => {
      const file = typeof part === "string" ? new TextEncoder().encode(part) : part;
      return file === null ? new Uint8Array(32) : sha256OfFile(file);
    }),
  );
  return hexOf(await sha256(concatenate(hashes)));
}

async function openFolder(): Promise<FileSystemDirectoryHandle> {
  let folder = await inTime(navigator.storage.getDirectory(), ANSWER_MS);
  for (const name of FOLDERS) {
    folder = await folder.getDirectoryHandle(name, { create: true });
  }
  return folder;
}

async function readNewest(folder: FileSystemDirectoryHandle, name: string): Promise<Stored | null> {
  const stored = await Promise.all(SLOTS.map((slot) => readSlot(folder, name, slot)));
  const [first = null, second = null] = stored;
  if (first === null || second === null) {
    return first ?? second;
  }
  return first.sequence > second.sequence ? first : second;
}

async function readSlot(
  folder: FileSystemDirectoryHandle,
  name: string,
  slot: number,
): Promise<Stored | null> {
  let data: Uint8Array<ArrayBuffer>;
  try {
    const handle = await folder.getFileHandle(slotName(name, slot));
    data = new Uint8Array(await (await handle.getFile()).arrayBuffer());
  } catch {
    return null;
  }
  if (data.length < HEADER_BYTES) {
    return null;
  }
  const view = new DataView(data.buffer);
  const bytes = data.slice(HEADER_BYTES);
  const header = await makeHeader(view.getUint32(8, true), bytes);
  const isWhole = header.every((byte, index) => byte === data[index]);
  return isWhole ? { slot, sequence: view.getUint32(8, true), bytes } : null;
}

async function writeSlot(
  folder: FileSystemDirectoryHandle,
  name: string,
  bytes: Uint8Array,
): Promise<void> {
  const newest = await readNewest(folder, name);
  const slot = newest?.slot === 0 ? 1 : 0;
  const header = await makeHeader((newest?.sequence ?? 0) + 1, bytes);
  try {
    await writeWhole(folder, slotName(name, slot), header, bytes);
  } catch (error) {
    await removeEntry(folder, slotName(name, slot));
    throw error;
  }
  // It is of no use any more, and would take room.
  await removeEntry(folder, slotName(name, 1 - slot));
  await removeOldest(folder);
}

async function writeWhole(
  folder: FileSystemDirectoryHandle,
  file: string,
  header: Uint8Array<ArrayBuffer>,
  bytes: Uint8Array,
): Promise<void> {
  const handle = (await folder.getFileHandle(file, { create: true })) as WorkerFileHandle;
  const access = await handle.createSyncAccessHandle();
  try {
    access.truncate(0);
    writeAll(access, bytes, HEADER_BYTES);
    access.flush();
    writeAll(access, header, 0);
    access.flush();
  } finally {
    access.close();
  }
}

function writeAll(access: SyncAccessHandle, bytes: Uint8Array, at: number): void {
  const written = access.write(bytes, { at });
  if (written !== bytes.length) {
    throw new Error(`only ${written} of ${bytes.length} bytes could be written`);
  }
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

async function removeEntry(folder: FileSystemDirectoryHandle, name: string): Promise<void> {
  try {
    await folder.removeEntry(name);
  } catch {
    // Not there, or in use: nobody takes it for the file.
  }
}

async function makeHeader(sequence: number, bytes: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  const header = new Uint8Array(HEADER_BYTES);
  const view = new DataView(header.buffer);
  view.setUint32(0, MAGIC, true);
  view.setUint32(4, VERSION, true);
  view.setUint32(8, sequence, true);
  view.setBigUint64(16, BigInt(bytes.length), true);
  header.set(await sha256(bytes), CONTENTS_HASH);
  const hash = await sha256(header.slice(0, HEADER_HASH));
  header.set(hash.subarray(0, HEADER_BYTES - HEADER_HASH), HEADER_HASH);
  return header;
}

function concatenate(parts: readonly Uint8Array[]): Uint8Array {
  const result = new Uint8Array(parts.reduce((total, { length }) => total + length, 0));
  let at = 0;
  for (const part of parts) {
    result.set(part, at);
    at += part.length;
  }
  return result;
}

function slotName(name: string, slot: number): string {
  return `${name}.${slot}`;
}
