/**
 * Files that sessions are made of. Python reads them by ranges and does not read the data of large tensors. Data that a
 * session starts from goes right into the kernels' memory. A Blob takes none of this worker's memory.
 */

import {
  byteReader, concatenate, free, isPieces, partsOf, PIECE_BYTES, sizeOf, type BlobRange, type GivenData, type HeldBytes,
} from "../wire/pieces.js";
import type { FileData } from "../wire/values.js";

/** Bytes from which on a file that is kept is kept as a Blob, */
const LARGE_FILE = 2 ** 25;
/** and up to which: browsers have some room for all their Blobs, and need a part of it to read one. */
const MOST_OF_A_BLOB = 3 * 2 ** 27;

/** Bytes that are read of a Blob at once. */
const CHUNK_BYTES = 2 ** 22;

/** Rows and columns of the tiles in which matrices are compared: two of them fit into a cache. */
const TILE = 64;

/** Python's view of a file. */
export interface GivenFile {
  readonly index: number;
  readonly nbytes: number;
}

/** Members that only workers have, and that TypeScript declares apart from the rest of a page's interface. */
declare const FileReaderSync: new () => { readAsArrayBuffer(blob: Blob): ArrayBuffer };

/** The bytes of a Blob, at once. */
export function readBlob(blob: Blob): Uint8Array<ArrayBuffer> {
  return new Uint8Array(new FileReaderSync().readAsArrayBuffer(blob));
}

/**
 * Go through bytes of a Blob at once. Each chunk is freed as soon as it was taken: what a worker that computes leaves to
 * the garbage collector stays for long, and would be as much as the file.
 */
function readChunks({ blob, start, nbytes }: BlobRange, write: (at: number, data: Uint8Array) => void): void {
  for (let at = 0; at < nbytes; at += CHUNK_BYTES) {
    const data = readBlob(blob.slice(start + at, start + Math.min(at + CHUNK_BYTES, nbytes)));
    write(at, data);
    free(data);
  }
}

function allOf(blob: Blob): BlobRange {
  return { blob, start: 0, nbytes: blob.size };
}

/** Fill a target with all of some bytes. */
export function copyInto(target: Uint8Array, data: Blob | HeldBytes): void {
  if (data instanceof Uint8Array) {
    target.set(data);
    return;
  }
  readChunks(data instanceof Blob ? allOf(data) : data, (at, chunk) => target.set(chunk, at));
}

export class GivenFiles {
  readonly #files = new Map<number, { readonly data: GivenData; readonly nbytes: number }>();
  #next = 1;

  add(data: GivenData): GivenFile {
    const index = this.#next++;
    const nbytes = sizeOf(data);
    this.#files.set(index, { data, nbytes });
    return { index, nbytes };
  }

  drop(index: number): void {
    this.#files.delete(index);
  }

  /** Free the pieces of a file that end before an offset: nobody reads them again. */
  leave(index: number, offset: number): void {
    const { data } = this.#find(index);
    if (isPieces(data)) {
      data.slice(0, Math.floor(offset / PIECE_BYTES)).filter(({ length }) => length > 0).forEach(free);
    }
  }

  /** Keep a file for long: outside of this worker's memory, if it is large and there is a browser that has room. */
  async settle(index: number): Promise<void> {
    const { data, nbytes } = this.#find(index);
    const isMovable = nbytes >= LARGE_FILE && nbytes <= MOST_OF_A_BLOB && typeof FileReaderSync !== "undefined";
    if (data instanceof Blob || !isMovable) {
      return;
    }
    const blob = new Blob(chunksOf(nbytes, (start, target) => this.copy(index, start, target)));
    try {
      await blob.slice(-1).arrayBuffer();
    } catch {
      return;
    }
    if (this.#files.has(index)) {
      this.#files.set(index, { data: blob, nbytes });
      if (isPieces(data)) {
        data.forEach(free);
      }
    }
  }

  /** Bytes of a file, perhaps in place. */
  read(index: number, offset: number, nbytes: number): Uint8Array {
    const parts = this.#parts(index, offset, nbytes).map((part) => (part instanceof Blob ? readBlob(part) : part));
    return parts.length === 1 ? (parts[0] as Uint8Array) : concatenate(parts);
  }

  #find(index: number): { readonly data: GivenData; readonly nbytes: number } {
    return this.#files.get(index) ?? { data: new Uint8Array(), nbytes: 0 };
  }

  #parts(index: number, offset: number, nbytes: number): FileData[] {
    const { data, nbytes: size } = this.#find(index);
    if (!(this.#files.has(index) && offset >= 0 && nbytes >= 0 && offset + nbytes <= size)) {
      throw new RangeError(`bytes [${offset}, ${offset + nbytes}) lie outside file ${index} of ${size} bytes`);
    }
    return [...partsOf(data, offset, nbytes)];
  }

  /** Fill a target with bytes of a file. */
  copy(index: number, offset: number, target: Uint8Array): void {
    let at = 0;
    for (const part of this.#parts(index, offset, target.length)) {
      copyInto(target.subarray(at), part);
      at += sizeOf(part);
    }
  }

  /**
   * Go through bytes of a file.
   *
   * @param write - takes them from a start on; valid while it runs. It may free them
   */
  async stream(
    index: number,
    offset: number,
    nbytes: number,
    write: (start: number, data: Uint8Array) => void,
  ): Promise<void> {
    let at = 0;
    for (const part of this.#parts(index, offset, nbytes)) {
      const start = at;
      at += sizeOf(part); // `write` may free it
      if (part instanceof Blob) {
        await streamBlob(part, part.size, (from, data) => write(start + from, data));
      } else {
        write(start, part);
      }
    }
  }

  /**
   * Compare elements of `size` bytes: true if [rows, width] of one file are the transpose of [width, rows] of another.
   */
  isTranspose(
    a: number, aOffset: number, b: number, bOffset: number, rows: number, width: number, size: number,
  ): boolean {
    const left = this.#elements(a, aOffset, rows * width, size);
    const right = this.#elements(b, bOffset, rows * width, size);
    for (let top = 0; top < rows; top += TILE) {
      for (let side = 0; side < width; side += TILE) {
        for (let i = top; i < Math.min(rows, top + TILE); i++) {
          for (let j = side; j < Math.min(width, side + TILE); j++) {
            if (left[i * width + j] !== right[j * rows + i]) {
              return false;
            }
          }
        }
      }
    }
    return true;
  }

  #elements(index: number, offset: number, count: number, size: number): Uint16Array | Uint32Array | BigUint64Array {
    const bytes = this.read(index, offset, size * count);
    const { buffer, byteOffset } = bytes.byteOffset % size === 0 ? bytes : bytes.slice();
    if (size === 2) {
      return new Uint16Array(buffer, byteOffset, count);
    }
    return size === 4 ? new Uint32Array(buffer, byteOffset, count) : new BigUint64Array(buffer, byteOffset, count);
  }
}

/**
 * Go through the bytes of a Blob.
 *
 * @param nbytes - its size
 * @param write - takes them from a start on; valid while it runs
 */
export async function streamBlob(
  blob: Blob,
  nbytes: number,
  write: (start: number, data: Uint8Array) => void,
): Promise<void> {
  const reader = byteReader(() => blob.stream());
  if (reader === null) {
    readChunks(allOf(blob), write);
    return;
  }
  // Into one buffer: others would be garbage for long, as much as all of the file.
  let buffer = new ArrayBuffer(CHUNK_BYTES);
  for (let start = 0; start < nbytes; ) {
    const { value } = await reader.read(new Uint8Array(buffer));
    if (value === undefined || value.length === 0) {
      throw new RangeError(`a file ends at byte ${start} instead of ${nbytes}`);
    }
    write(start, value);
    start += value.length;
    buffer = value.buffer;
  }
}

/** Blobs of bytes that need not be in this worker's memory all at once. */
export function chunksOf(
  nbytes: number,
  read: (start: number, target: Uint8Array) => void,
  most: number = CHUNK_BYTES,
): Blob[] {
  const chunks: Blob[] = [];
  // A Blob copies its parts, and does not take shared memory.
  const chunk = new Uint8Array(Math.min(most, nbytes));
  for (let start = 0; start < nbytes; start += chunk.length) {
    const target = chunk.subarray(0, Math.min(chunk.length, nbytes - start));
    read(start, target);
    chunks.push(new Blob([target]));
  }
  return chunks;
}
