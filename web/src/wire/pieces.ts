/**
 * Large files in pieces of memory. Each piece can be freed as soon as nobody needs it. Blobs are no place for them.
 * Chromium starts with room for 500 MB, which all pages share. Reading a part of a Blob takes room, too.
 */

import type { FileData } from "./values.js";

/** Bytes of a piece; the last one may have fewer. */
export const PIECE_BYTES = 2 ** 24;

export type Pieces = readonly Uint8Array<ArrayBuffer>[];

/** Bytes of a Blob. Slices are made only to be read: Chromium takes room for the bytes of each slice. */
export interface BlobRange {
  readonly blob: Blob;
  readonly start: number;
  readonly nbytes: number;
}

/** Bytes in memory or in a Blob. */
export type HeldBytes = Uint8Array | BlobRange;

/** A file whose parts lie apart. Other files may have parts in common with it. */
export interface JoinedFile {
  readonly parts: readonly HeldBytes[];
}

/** A file that a session is made of. */
export type SourceData = FileData | Pieces | BlobRange | JoinedFile;

/** Hashes of a file's pieces. */
export interface FileHashes {
  readonly pieces: readonly Uint8Array<ArrayBuffer>[];
  /** False: they are the file's hashes when it was kept. */
  readonly areChecked: boolean;
}

export function isPieces(file: SourceData): file is Pieces {
  return Array.isArray(file);
}

export function sizeOf(file: SourceData): number {
  if (file instanceof Blob) {
    return file.size;
  }
  if (file instanceof Uint8Array) {
    return file.length;
  }
  if ("blob" in file) {
    return file.nbytes;
  }
  const parts: readonly HeldBytes[] = isPieces(file) ? file : file.parts;
  return parts.reduce((sum, part) => sum + sizeOf(part), 0);
}

/** Bytes of a file, in order: of each of its pieces the part that belongs to them. */
export function* partsOf(file: SourceData, offset: number, nbytes: number): Generator<FileData> {
  if (file instanceof Blob) {
    yield file.slice(offset, offset + nbytes);
    return;
  }
  if ("blob" in file) {
    const start = file.start + offset;
    yield file.blob.slice(start, start + nbytes);
    return;
  }
  if ("parts" in file) {
    let start = 0;
    for (const part of file.parts) {
      const end = start + sizeOf(part);
      const [first, last] = [Math.max(offset, start), Math.min(offset + nbytes, end)];
      if (first < last) {
        yield* partsOf(part, first - start, last - first);
      }
      start = end;
    }
    return;
  }
  if (!isPieces(file)) {
    yield file.subarray(offset, offset + nbytes);
    return;
  }
  for (let at = offset; at < offset + nbytes; ) {
    const start = at % PIECE_BYTES;
    const part = file[(at - start) / PIECE_BYTES]?.subarray(start, start + offset + nbytes - at);
    if (part === undefined || part.length === 0) {
      throw new RangeError(`byte ${at} of a file is not in memory any more`);
    }
    yield part;
    at += part.length;
  }
}

/** Read bytes of a file, perhaps in place. */
export async function bytesOf(file: SourceData, offset: number, nbytes: number): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  for (const part of partsOf(file, offset, nbytes)) {
    parts.push(part instanceof Blob ? new Uint8Array(await part.arrayBuffer()) : part);
  }
  return parts.length === 1 ? (parts[0] as Uint8Array) : concatenate(parts);
}

/** The part of a joined file with these bytes; null where they are no part. */
export function partAt(file: SourceData | undefined, offset: number, nbytes: number): HeldBytes | null {
  let start = 0;
  for (const part of file !== undefined && "parts" in file ? file.parts : []) {
    if (start === offset && sizeOf(part) === nbytes) {
      return part;
    }
    start += sizeOf(part);
  }
  return null;
}

/**
 * Free the memory of some bytes at once. `ArrayBuffer.transfer` would leave bytes that came with a message to the garbage
 * collector, because Chromium refers to them besides. A message that nobody takes frees them.
 */
export function free({ buffer }: Uint8Array<ArrayBuffer>): void {
  const { port1, port2 } = new MessageChannel();
  port1.postMessage(null, [buffer]);
  port1.close();
  port2.close();
}

/**
 * Pieces of a file that is still coming. They wait as messages, because V8 does not count the bytes of messages. Many
 * bytes start a collection of garbage. While one runs, Chromium keeps all that comes from the network: up to 70 MB.
 */
export class WaitingPieces {
  readonly #channel = new MessageChannel();

  add(piece: Uint8Array<ArrayBuffer>): void {
    this.#channel.port1.postMessage(piece, [piece.buffer]);
  }

  /** All pieces in order; no more can be added. */
  async take(): Promise<Pieces> {
    const { port1, port2 } = this.#channel;
    const pieces: Uint8Array<ArrayBuffer>[] = [];
    await new Promise<void>((resolve) => {
      port2.onmessage = ({ data }: MessageEvent<Uint8Array<ArrayBuffer> | null>) => {
        if (data === null) {
          resolve();
        } else {
          pieces.push(data);
        }
      };
      port1.postMessage(null);
    });
    port1.close();
    return pieces;
  }
}

/** A reader into buffers of one's own; null where the browser has none for such streams. */
export function byteReader(stream: () => ReadableStream<Uint8Array<ArrayBuffer>>): ReadableStreamBYOBReader | null {
  try {
    return stream().getReader({ mode: "byob" });
  } catch {
    return null;
  }
}

/** Parts behind each other. */
export function concatenate(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const result = new Uint8Array(parts.reduce((total, { length }) => total + length, 0));
  let at = 0;
  for (const part of parts) {
    result.set(part, at);
    at += part.length;
  }
  return result;
}

/**
 * True if two arrays have the same bytes. Plans have megabytes of constants, so no function is called for each byte.
 */
export function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  if (a === b || a.length !== b.length) {
    return a === b;
  }
  for (let k = 0; k < a.length; k++) {
    if (a[k] !== b[k]) {
      return false;
    }
  }
  return true;
}
