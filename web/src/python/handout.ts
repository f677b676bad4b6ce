/** Checks of what Python hands out: Pyodide's glue copies by itself, and a wrong address gives wrong bytes without a word. */

import { EngineError } from "../wire/errors.js";

/** What Python says of the bytes that come with an answer. */
export interface Announced {
  readonly format: "checkpoint" | "onnx" | "blobs";
  readonly nbytes: number;
  /** CRC-32 of blocks spread over the bytes; `sample_checksum` of `trainweb.training.bridge`. */
  readonly crc32: number;
}

const SAMPLES = 16;
const SAMPLE_BYTES = 4096;

/** Where a format has a text by which it is known. */
const IDENTIFIERS: Readonly<Record<string, { readonly at: number; readonly text: string }>> = {
  checkpoint: { at: 4, text: "ODTC" },
};

/** Wire types of protobuf: a varint, and bytes after their length. A model has no others at its top. */
const VARINT = 0;
const LENGTH_DELIMITED = 2;

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) {
    crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return crc;
});

/**
 * The bytes that Python handed out.
 *
 * @param call - what was called, for the message
 * @throws EngineError when they are not those that Python announced
 */
export function checkHandout(call: string, data: unknown, announced: Announced): Uint8Array {
  const fault = faultOf(data, announced);
  if (fault !== null) {
    throw new EngineError(
      `${call}: the data would have been damaged, and nothing was saved: ${fault}. The session is as it was; should ` +
        "this happen again, load the page anew.",
    );
  }
  return data as Uint8Array;
}

function faultOf(data: unknown, { format, nbytes, crc32 }: Announced): string | null {
  if (!(data instanceof Uint8Array)) {
    return "no bytes came out of Python";
  }
  if (data.length !== nbytes) {
    return `${data.length} bytes came out of Python instead of ${nbytes}`;
  }
  const identifier = IDENTIFIERS[format];
  if (identifier !== undefined) {
    const { at, text } = identifier;
    if (String.fromCharCode(...data.subarray(at, at + text.length)) !== text) {
      return `there is no ${text} at byte ${at}`;
    }
  }
  if (format === "onnx" && !isMessage(data)) {
    return "they are no protobuf message";
  }
  return sampleChecksum(data) === crc32 ? null : "their checksum is another one";
}

/** CRC-32 of blocks spread over the bytes, or of all of them where that is no more. */
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

/** Whether the bytes are fields of a protobuf message, the last of which ends with them. */
function isMessage(data: Uint8Array): boolean {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; at < data.length; scale *= 128) {
      const byte = data[at++] as number;
      value += (byte & 127) * scale;
      if (byte < 128) {
        return value;
      }
    }
    return NaN;
  };
  while (at < data.length) {
    const tag = varint();
    const value = varint();
    if (tag < 8 || Number.isNaN(value) || (tag % 8 !== VARINT && tag % 8 !== LENGTH_DELIMITED)) {
      return false;
    }
    at += tag % 8 === LENGTH_DELIMITED ? value : 0;
  }
  return at === data.length && at > 0;
}
