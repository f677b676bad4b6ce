/** Checkpoints as files of a folder on disk, for Node, Deno and Bun. Pages never load the files' code (node/disk.ts). */

import type { SlotEntry } from "./slots.js";

export interface Disk {
  /** The path of a folder, from the folder of the process. */
  absolute(folder: string): string;
  /** The contents; null: there is no such file; false: it is damaged. */
  read(folder: string, name: string): Promise<Uint8Array<ArrayBuffer> | null | false>;
  /** @throws the errors of the disk; the file before is intact */
  write(folder: string, name: string, bytes: Uint8Array): Promise<void>;
  remove(folder: string, name: string): Promise<void>;
  list(folder: string): Promise<SlotEntry[]>;
  /** Bytes of the folder's disk. */
  room(folder: string): Promise<{ readonly usage: number; readonly quota: number }>;
}

/** A name of the global scope: the worker's script and the script that starts its thread are two modules. */
const KEY = Symbol.for("trainweb.disk");
const scope = globalThis as unknown as Record<symbol, Disk | undefined>;

export function setDisk(disk: Disk): void {
  scope[KEY] = disk;
}

/** The disk; null in browsers. */
export function findDisk(): Disk | null {
  return scope[KEY] ?? null;
}
