/** A folder of checkpoints on disk; `CheckpointStore` of trainweb/training/store.py reads and writes the same files. */

import { mkdir, open, readdir, readFile, rename, rm, stat, statfs } from "node:fs/promises";
import { join, resolve } from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";

import type { Disk } from "../storage/disk.js";
import { HEADER_BYTES, makeHeader, type SlotEntry } from "../storage/slots.js";

const SUFFIX = ".checkpoint";

export const DISK: Disk = {
  absolute: (folder) => resolve(folder),
  async read(folder, name) {
    const data = await readFile(pathToFileURL(join(folder, fileOf(name)))).catch((error: unknown) => missing(error));
    if (data === null) {
      return null;
    }
    const bytes = new Uint8Array(data.subarray(HEADER_BYTES));
    const header = await makeHeader(1, bytes);
    return data.length >= HEADER_BYTES && header.every((byte, k) => byte === data[k]) && bytes;
  },
  async write(folder, name, bytes) {
    await mkdir(folder, { recursive: true });
    await replaceFile(folder, fileOf(name), [await makeHeader(1, bytes), bytes]);
  },
  async remove(folder, name) {
    await rm(join(folder, fileOf(name)), { force: true });
  },
  async list(folder) {
    const files = (await readdir(folder).catch((error: unknown) => missing(error))) ?? [];
    const entries = files.filter((file) => file.endsWith(SUFFIX) && !file.startsWith("."));
    return Promise.all(entries.map((file) => entryOf(folder, file)));
  },
  async room(folder) {
    const { bsize, blocks, bfree } = await statfs(folder);
    return { usage: (blocks - bfree) * bsize, quota: blocks * bsize };
  },
};

/** Write a file beside the old one, and give it its name when it is on the disk. */
async function replaceFile(folder: string, file: string, parts: readonly Uint8Array[]): Promise<void> {
  const prefix = `.${file}.`;
  // Processes that were killed during a write left these.
  for (const other of await readdir(folder)) {
    if (other.startsWith(prefix) && other.endsWith(".tmp")) {
      await rm(join(folder, other), { force: true });
    }
  }
  const temporary = join(folder, `${prefix}${process.pid}.tmp`);
  try {
    const handle = await open(temporary, "w");
    try {
      for (const part of parts) {
        await handle.writeFile(part);
      }
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(temporary, join(folder, file));
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
  await syncFolder(folder);
}

/** The new name is on the disk, too; Windows does not open folders. */
async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, "r").catch(() => null);
  await handle?.sync().catch(() => null);
  await handle?.close();
}

async function entryOf(folder: string, file: string): Promise<SlotEntry> {
  const { size, mtimeMs } = await stat(join(folder, file));
  return {
    name: decodeURIComponent(file.slice(0, -SUFFIX.length)),
    nbytes: Math.max(size - HEADER_BYTES, 0),
    written: mtimeMs,
  };
}

/** The file of a checkpoint, as Python's `quote` codes the name: a space stays, and these five do not. */
function fileOf(name: string): string {
  const coded = encodeURIComponent(name)
    .replace(/[!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`)
    .replaceAll("%20", " ")
    .replace(/^\./, "%2E");
  return coded + SUFFIX;
}

/** Null for a file that does not exist. */
function missing(error: unknown): null {
  if ((error as { readonly code?: unknown }).code !== "ENOENT") {
    throw error;
  }
  return null;
}
