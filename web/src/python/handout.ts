/**
 * Check the files that Python hands out: Pyodide's glue copies by itself, and a wrong address gives wrong bytes without
 * an error.
 */

import { EngineError } from "../wire/errors.js";
import type { FloatType } from "../wire/values.js";

/** Python's description of the bytes that come with an answer. */
export interface Announced {
  readonly nbytes: number;
  /** CRC-32 of blocks spread over the bytes; `sample_checksum` of `trainweb.page.bridge`. */
  readonly crc32: number;
  /** The parts of the whole file. */
  readonly parts: readonly Part[];
}

/**
 * Bytes that Python only names: a range of a segment of the session, or of a given file. If two float types are named,
 * the bytes are stored as the first type. They are wanted as the second, which `nbytes` counts. With `rows` a matrix of
 * so many rows is stored, and its transpose is wanted.
 */
export type Place = readonly [
  store: "segment" | "file",
  index: number,
  offset: number,
  nbytes: number,
  from?: FloatType,
  to?: FloatType,
  rows?: number,
];

/** As many of Python's bytes as the number says, or a place. */
export type Part = number | Place;

/** A file as Python lays it out. */
export interface Handout {
  /** The bytes that Python has of it. */
  readonly data: Uint8Array;
  readonly parts: readonly Part[];
  /** Of the whole file. */
  readonly nbytes: number;
}

const SAMPLES = 16;
const SAMPLE_BYTES = 4096;

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) {
    crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return crc;
});

/**
 * Check a file that Python handed out, and return it.
 *
 * @param call - name of the call, for the message
 * @throws EngineError when the bytes are not the ones that Python announced
 */
export function checkHandout(call: string, data: unknown, announced: Announced): Handout {
  const fault = faultOf(data, announced);
  if (fault !== null) {
    throw new EngineError(
      `${call}: the data would have been damaged, and nothing was saved: ${fault}. The session is as it was; should ` +
        "this happen again, load the page anew.",
    );
  }
  const { parts } = announced;
  const nbytes = parts.reduce((sum: number, part) => sum + (typeof part === "number" ? part : part[3]), 0);
  return { data: data as Uint8Array, parts, nbytes };
}

function faultOf(data: unknown, { nbytes, crc32, parts }: Announced): string | null {
  if (!(data instanceof Uint8Array)) {
    return "no bytes came out of Python";
  }
  if (data.length !== nbytes) {
    return `${data.length} bytes came out of Python instead of ${nbytes}`;
  }
  const received = parts.reduce((sum: number, part) => sum + (typeof part === "number" ? part : 0), 0);
  if (received !== nbytes) {
    return `its parts take ${received} of the ${nbytes} bytes that came out of Python`;
  }
  return sampleChecksum(data) === crc32 ? null : "their checksum is another one";
}

/** CRC-32 of blocks spread over the bytes, or of all bytes if there are no more. */
function sampleChecksum(data: Uint8Array): number {
  if (data.length <= SAMPLES * SAMPLE_BYTES) {
    return crc32(data, 0);
  }
  const last = data.length - SAMPLE_BYTES;
  let crc = 0;
  for (let k = 0; k < SAMPLES; k++) {
    const start = Math.floor((k * last) / (SAMPLES - 1));
    crc = crc32(data.subarray(start, start + SAMPLE_BYTES), crc);
  }
  return crc;
}

function crc32(data: Uint8Array, start: number): number {
  let crc = ~start;
  for (const byte of data) {
    crc = (CRC_TABLE[(crc ^ byte) & 0xff] as number) ^ (crc >>> 8);
  }
  return ~crc >>> 0;
}
