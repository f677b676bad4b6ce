/** Files of parts that Python lists: bytes that it sends, and ranges of files or segments. */

import { LimitError } from "../wire/errors.js";
import type { FileForm } from "../wire/protocol.js";
import { chunksOf } from "../python/python-files.js";
import { FLOAT_BYTES, readFloats } from "../wire/floats.js";
import type { Handout, Place } from "../python/handout.js";

/** Copies bytes of a place, from `start` on, into as many bytes as the target has. */
export type ReadPlace = (place: Place, start: number, target: Uint8Array) => void;

/** Extends `copy`: floats may be converted to another type, or transposed. */
export function converting(copy: ReadPlace): ReadPlace {
  return (place, start, target) => {
    const [, , , nbytes, from, to, rows] = place;
    if (from === undefined || to === undefined) {
      copy(place, start, target);
    } else if (rows === undefined) {
      const before = (start / FLOAT_BYTES[to]) * FLOAT_BYTES[from];
      readFloats((at, part) => copy(place, before + at, part), from, to, target);
    } else {
      const isAll = target.length === nbytes && target.byteOffset % FLOAT_BYTES[to] === 0;
      const matrix = isAll ? target : new Uint8Array(nbytes);
      readFloats((at, part) => copy(place, at, part), from, to, matrix, rows);
      if (!isAll) {
        target.set(matrix.subarray(start, start + target.length));
      }
    }
  };
}

/**
 * Put a file together.
 *
 * @param call - the call that needs it, for the message
 * @throws LimitError when there is no room for its bytes
 */
export function assemble(call: string, file: Handout, read: ReadPlace, form: FileForm): Uint8Array | Blob {
  return form === "blob" ? toBlob(file, read) : toBytes(call, file, read);
}

function toBytes(call: string, { data, parts, nbytes }: Handout, read: ReadPlace): Uint8Array {
  if (parts.length === 1 && data.length === nbytes) {
    return data;
  }
  let file: Uint8Array;
  try {
    file = new Uint8Array(nbytes);
  } catch {
    throw new LimitError(
      `${call}: this browser has no room for a Uint8Array of ${nbytes} bytes. Nothing was changed. With ` +
        '{ as: "blob" } the browser keeps the file outside the page.',
    );
  }
  let at = 0;
  let taken = 0;
  for (const part of parts) {
    if (typeof part === "number") {
      file.set(data.subarray(taken, taken + part), at);
      taken += part;
      at += part;
    } else {
      read(part, 0, file.subarray(at, at + part[3]));
      at += part[3];
    }
  }
  return file;
}

function toBlob({ data, parts }: Handout, read: ReadPlace): Blob {
  const pieces: BlobPart[] = [];
  let taken = 0;
  for (const part of parts) {
    if (typeof part === "number") {
      pieces.push(data.slice(taken, taken + part));
      taken += part;
    } else {
      // A transposed matrix is read at once.
      pieces.push(...chunksOf(part[3], (start, target) => read(part, start, target), part[6] && part[3]));
    }
  }
  return new Blob(pieces);
}
