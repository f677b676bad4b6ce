/**
 * Files in a folder of this origin's private file system (OPFS). A file is written into one of two slots. The slot
 * counts once its header is there, which is written last. A checksum covers all of it. After any interruption of a
 * write, a reader gets the old file or the new one.
 */

import { inTime } from "../wire/fetch-file.js";
import { sha256 } from "../wire/sha256.js";

const MAGIC = 0x53425754; // "TWBS"
const VERSION = 1;
/** Magic, version, sequence number, 0, length (u64), SHA-256 of the contents, SHA-256 of all this (first half). */
export const HEADER_BYTES = 72;
const CONTENTS_HASH = 24;
const HEADER_HASH = 56;
export const SLOTS = [0, 1] as const;

/** Storage that does not answer for so long counts as none. */
const ANSWER_MS = 5_000;

/** Members that only workers have, and that TypeScript declares apart from the rest of a page's interface. */
export interface SyncAccessHandle {
  truncate(size: number): void;
  write(bytes: Uint8Array, options: { readonly at: number }): number;
  flush(): void;
  close(): void;
}

export interface WorkerFileHandle extends FileSystemFileHandle {
  createSyncAccessHandle(): Promise<SyncAccessHandle>;
}

/** The contents of a header. */
interface Head {
  readonly slot: number;
  /** 0: it is damaged. */
  readonly sequence: number;
  readonly file: File;
}

/** A file in a folder. */
export interface SlotEntry {
  readonly name: string;
  /** Of the contents. */
  readonly nbytes: number;
  /** Milliseconds since 1970. */
  readonly written: number;
}

/** A folder of the private file system, made where it is missing. */
export async function openFolder(path: readonly string[]): Promise<FileSystemDirectoryHandle> {
  const storage = globalThis.navigator?.storage;
  if (typeof storage?.getDirectory !== "function") {
    throw new Error("it has no private file system (OPFS)");
  }
  let folder = await inTime(storage.getDirectory(), ANSWER_MS);
  for (const name of path) {
    folder = await folder.getDirectoryHandle(name, { create: true });
  }
  return folder;
}

/** The contents of the newest slot that is whole; null: there is none. */
export async function readNewest(folder: FileSystemDirectoryHandle, name: string): Promise<Uint8Array<ArrayBuffer> | null> {
  for (const head of await headsOf(folder, name)) {
    const data = new Uint8Array(await head.file.arrayBuffer());
    const bytes = data.slice(HEADER_BYTES);
    const header = await makeHeader(head.sequence, bytes);
    if (header.every((byte, index) => byte === data[index])) {
      return bytes;
    }
  }
  return null;
}

/** True if a file was written to its end; it may be damaged since. */
export async function hasSlot(folder: FileSystemDirectoryHandle, name: string): Promise<boolean> {
  return (await headsOf(folder, name)).length > 0;
}

/** Write a file. @throws the errors of the storage; the previous file is then intact */
export async function writeSlot(folder: FileSystemDirectoryHandle, name: string, bytes: Uint8Array): Promise<void> {
  const [newest] = await headsOf(folder, name);
  const slot = newest?.slot === 0 ? 1 : 0;
  const header = await makeHeader((newest?.sequence ?? 0) + 1, bytes);
  try {
    await writeWhole(folder, slotName(name, slot), header, bytes);
  } catch (error) {
    await removeEntry(folder, slotName(name, slot));
    throw error;
  }
  // The other slot has no further use, and would take room.
  await removeEntry(folder, slotName(name, 1 - slot));
}

/** Remove both slots. */
export async function removeSlots(folder: FileSystemDirectoryHandle, name: string): Promise<void> {
  await Promise.all(SLOTS.map((slot) => removeEntry(folder, slotName(name, slot))));
}

/** The files of a folder that were written to their ends. */
export async function listSlots(folder: FileSystemDirectoryHandle): Promise<SlotEntry[]> {
  const names = new Set<string>();
  for await (const name of folder.keys()) {
    names.add(name.replace(/\.[01]$/, ""));
  }
  const entries = await Promise.all(
    [...names].map(async (name) => {
      const [head] = await headsOf(folder, name);
      return head && { name, nbytes: Math.max(head.file.size - HEADER_BYTES, 0), written: head.file.lastModified };
    }),
  );
  return entries.filter((entry) => entry !== undefined);
}

/** Slots that were written to their ends: the newest first, then those with damaged headers. */
async function headsOf(folder: FileSystemDirectoryHandle, name: string): Promise<Head[]> {
  const heads = await Promise.all(SLOTS.map((slot) => readHead(folder, name, slot)));
  return heads.filter((head) => head !== null).sort((a, b) => b.sequence - a.sequence);
}

/**
 * Read a slot's header; null: it does not exist, or a write was interrupted before the header's end, which comes last.
 */
async function readHead(folder: FileSystemDirectoryHandle, name: string, slot: number): Promise<Head | null> {
  try {
    const file = await (await folder.getFileHandle(slotName(name, slot))).getFile();
    const header = new Uint8Array(HEADER_BYTES);
    header.set(new Uint8Array(await file.slice(0, HEADER_BYTES).arrayBuffer()));
    // A file that is shorter than its header was cut off since: of an interrupted write that would be empty.
    if (header.subarray(file.size < HEADER_BYTES ? 0 : HEADER_HASH).every((byte) => byte === 0)) {
      return null;
    }
    const view = new DataView(header.buffer);
    const hash = await sha256(header.slice(0, HEADER_HASH));
    const isWhole =
      view.getUint32(0, true) === MAGIC &&
      view.getUint32(4, true) === VERSION &&
      view.getBigUint64(16, true) === BigInt(file.size - HEADER_BYTES) &&
      header.subarray(HEADER_HASH).every((byte, k) => byte === hash[k]);
    return { slot, sequence: isWhole ? view.getUint32(8, true) : 0, file };
  } catch {
    return null;
  }
}

async function writeWhole(
  folder: FileSystemDirectoryHandle,
  file: string,
  header: Uint8Array<ArrayBuffer>,
  bytes: Uint8Array,
): Promise<void> {
  const handle = await folder.getFileHandle(file, { create: true });
  if (!("createSyncAccessHandle" in handle)) {
    // In a page, where the new contents replace the file as a whole.
    const stream = await handle.createWritable();
    await stream.write(new Blob([header, bytes as Uint8Array<ArrayBuffer>]));
    await stream.close();
    return;
  }
  const access = await (handle as WorkerFileHandle).createSyncAccessHandle();
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

export function writeAll(access: SyncAccessHandle, bytes: Uint8Array, at: number): void {
  const written = access.write(bytes, { at });
  if (written !== bytes.length) {
    throw new DOMException(`only ${written} of ${bytes.length} bytes could be written`, "QuotaExceededError");
  }
}

export async function removeEntry(folder: FileSystemDirectoryHandle, name: string): Promise<void> {
  try {
    await folder.removeEntry(name);
  } catch {
    // Not there, or in use: no reader takes it for the file.
  }
}

export async function makeHeader(sequence: number, bytes: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
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

export function slotName(name: string, slot: number): string {
  return `${name}.${slot}`;
}
