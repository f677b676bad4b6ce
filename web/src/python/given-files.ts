/**
 * Files that sessions are made of. Python reads them by ranges and does not read the data of large tensors. Data that a
 * session starts from goes right into the kernels' memory. A Blob takes none of this worker's memory.
 */

/** Bytes from which on a file that is kept is kept as a Blob. */
const LARGE_FILE = 2 ** 25;

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

export class GivenFiles {
  readonly #files = new Map<number, Uint8Array | Blob>();
  #next = 1;

  add(data: Uint8Array | Blob): GivenFile {
    const index = this.#next++;
    this.#files.set(index, data);
    return { index, nbytes: data instanceof Blob ? data.size : data.length };
  }

  drop(index: number): void {
    this.#files.delete(index);
  }

  /** Keep a file for long: outside of this worker's memory, if it is large and there is a browser that has room. */
  async settle(index: number): Promise<void> {
    const data = this.#files.get(index);
    if (!(data instanceof Uint8Array) || data.length < LARGE_FILE || typeof FileReaderSync === "undefined") {
      return;
    }
    const blob = new Blob(chunksOf(data.length, (start, target) => copyOut(data, start, target)));
    try {
      await blob.slice(-1).arrayBuffer();
    } catch {
      return;
    }
    if (this.#files.has(index)) {
      this.#files.set(index, blob);
    }
  }

  /** Bytes of a file, perhaps in place. */
  read(index: number, offset: number, nbytes: number): Uint8Array {
    const data = this.#files.get(index);
    const size = data === undefined ? 0 : data instanceof Blob ? data.size : data.length;
    if (data === undefined || !(offset >= 0 && nbytes >= 0 && offset + nbytes <= size)) {
      throw new RangeError(`bytes [${offset}, ${offset + nbytes}) lie outside file ${index} of ${size} bytes`);
    }
    return data instanceof Blob
      ? readBlob(data.slice(offset, offset + nbytes))
      : data.subarray(offset, offset + nbytes);
  }

  /** Fill a target with bytes of a file. */
  copy(index: number, offset: number, target: Uint8Array): void {
    for (let start = 0; start < target.length; start += CHUNK_BYTES) {
      const nbytes = Math.min(CHUNK_BYTES, target.length - start);
      target.set(this.read(index, offset + start, nbytes), start);
    }
  }

  /**
   * Go through bytes of a file.
   *
   * @param write - takes them from a start on; valid while it runs
   */
  async stream(
    index: number,
    offset: number,
    nbytes: number,
    write: (start: number, data: Uint8Array) => void,
  ): Promise<void> {
    const data = this.#files.get(index);
    if (data instanceof Blob) {
      await streamBlob(data.slice(offset, offset + nbytes), nbytes, write);
    } else {
      write(0, this.read(index, offset, nbytes));
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
  const reader = byteReader(blob);
  if (reader === null) {
    for (let start = 0; start < nbytes; start += CHUNK_BYTES) {
      write(start, readBlob(blob.slice(start, Math.min(start + CHUNK_BYTES, nbytes))));
    }
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

/** A reader into buffers of one's own; null in browsers whose Blobs have none. */
function byteReader(blob: Blob): ReadableStreamBYOBReader | null {
  try {
    return blob.stream().getReader({ mode: "byob" });
  } catch {
    return null;
  }
}

function copyOut(data: Uint8Array, start: number, target: Uint8Array): void {
  target.set(data.subarray(start, start + target.length));
}

/** Blobs of bytes that need not be in this worker's memory all at once. */
export function chunksOf(nbytes: number, read: (start: number, target: Uint8Array) => void): Blob[] {
  const chunks: Blob[] = [];
  // A Blob copies its parts, and does not take shared memory.
  const chunk = new Uint8Array(Math.min(CHUNK_BYTES, nbytes));
  for (let start = 0; start < nbytes; start += chunk.length) {
    const target = chunk.subarray(0, Math.min(chunk.length, nbytes - start));
    read(start, target);
    chunks.push(new Blob([target]));
  }
  return chunks;
}
