/**
 * Files that sessions are made of. Python reads them by ranges and does not read the data of large tensors. Data that a
 * session starts from goes right into the kernels' memory. A Blob takes none of this worker's memory.
 */

import {
  byteReader, concatenate, free, isPieces, partsOf, PIECE_BYTES, sizeOf, type BlobRange, type SourceData, type HeldBytes,
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
export interface PythonFile {
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
 * Go through bytes of a Blob at once. Each chunk is freed as soon as it was taken. The garbage collector of a worker
 * that computes would keep chunks for long, and they would take as much memory as the file.
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

/** Bytes of a file, from an offset on. */
interface Range {
  readonly offset: number;
  readonly nbytes: number;
  data: SourceData;
}

export class PythonFiles {
  /** Files by ranges; the last range is the whole file until that was left. */
  readonly #files = new Map<number, { readonly nbytes: number; readonly ranges: Range[] }>();
  #next = 1;

  add(data: SourceData): PythonFile {
    const index = this.#next++;
    const nbytes = sizeOf(data);
    this.#files.set(index, { nbytes, ranges: [{ offset: 0, nbytes, data }] });
    return { index, nbytes };
  }

  drop(index: number): void {
    this.#files.delete(index);
  }

  /** Keep some ranges of a file, so that all others can be left. False if that would take most of its memory again. */
  narrow(index: number, places: readonly (readonly [index: number, offset: number, nbytes: number])[]): boolean {
    const { nbytes, ranges } = this.#find(index);
    if (places.reduce((sum, [, , size]) => sum + size, 0) > nbytes / 2) {
      return false;
    }
    const copies = places.map(([, offset, size]): Range => ({ offset, nbytes: size, data: new Uint8Array(size) }));
    copies.forEach(({ offset, data }) => this.copy(index, offset, data as Uint8Array));
    ranges.unshift(...copies);
    return true;
  }

  /** Free the pieces of a narrow file that end before an offset: nobody reads them again. At the end all of it goes. */
  leave(index: number, offset: number): void {
    const { ranges } = this.#find(index);
    const data = ranges.at(-1)?.data ?? [];
    if (isPieces(data)) {
      data.slice(0, Math.floor(offset / PIECE_BYTES)).filter(({ length }) => length > 0).forEach(free);
    }
    if (offset === Infinity) {
      ranges.pop();
    }
  }

  /** Keep a file for long: outside of this worker's memory, if it is large and there is a browser that has room. */
  async settle(index: number): Promise<void> {
    for (const range of this.#find(index).ranges) {
      const { offset, nbytes, data } = range;
      const isMovable = nbytes >= LARGE_FILE && nbytes <= MOST_OF_A_BLOB && typeof FileReaderSync !== "undefined";
      if (data instanceof Blob || !isMovable) {
        continue;
      }
      const blob = new Blob(chunksOf(nbytes, (start, target) => this.copy(index, offset + start, target)));
      try {
        await blob.slice(-1).arrayBuffer();
      } catch {
        return;
      }
      range.data = blob;
      if (isPieces(data) && this.#files.has(index)) {
        data.forEach(free);
      }
    }
  }

  /** Bytes of a file, perhaps in place. */
  read(index: number, offset: number, nbytes: number): Uint8Array {
    const parts = this.#parts(index, offset, nbytes).map((part) => (part instanceof Blob ? readBlob(part) : part));
    return parts.length === 1 ? (parts[0] as Uint8Array) : concatenate(parts);
  }

  #find(index: number): { readonly nbytes: number; readonly ranges: Range[] } {
    return this.#files.get(index) ?? { nbytes: 0, ranges: [] };
  }

  #parts(index: number, offset: number, nbytes: number): FileData[] {
    const { nbytes: size, ranges } = this.#find(index);
    const end = offset + nbytes;
    const range = ranges.find((one) => nbytes >= 0 && offset >= one.offset && end <= one.offset + one.nbytes);
    if (range === undefined) {
      throw new RangeError(`bytes [${offset}, ${end}) lie outside file ${index} of ${size} bytes`);
    }
    return [...partsOf(range.data, offset - range.offset, nbytes)];
  }

  /** Fill a target with bytes of a file. */
  copy(index: number, offset: number, target: Uint8Array): void {
    let at = 0;
    for (const part of this.#parts(index, offset, target.length)) {
      copyInto(target.subarray(at), part);
      at += sizeOf(part);
    }
  }

  /** Go through bytes of a file. @param write - takes them from a start on; valid while it runs. It may free them */
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
        await streamBlob(part, (from, data) => write(start + from, data));
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

/** Go through the bytes of a Blob. @param write - takes them from a start on; valid while it runs */
export async function streamBlob(blob: Blob, write: (start: number, data: Uint8Array) => void): Promise<void> {
  const reader = byteReader(() => blob.stream());
  if (reader === null) {
    readChunks(allOf(blob), write);
    return;
  }
  // Into one buffer: others would be garbage for long, as much as all of the file.
  let buffer = new ArrayBuffer(CHUNK_BYTES);
  for (let start = 0; start < blob.size; ) {
    const { value } = await reader.read(new Uint8Array(buffer));
    if (value === undefined || value.length === 0) {
      throw new RangeError(`a file ends at byte ${start} instead of ${blob.size}`);
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
