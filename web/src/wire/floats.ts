/** Types of floats to and from float32, in which parameters are kept: rounded to nearest even, beyond the range infinity. */

import { free } from "./pieces.js";
import type { FloatType } from "./values.js";

export const FLOAT_BYTES: Readonly<Record<FloatType, number>> = { float16: 2, bfloat16: 2, float32: 4, float64: 8 };

/** Elements that are converted at once, in aligned memory for bytes of any alignment. */
const BLOCK = 2 ** 16;

const INFINITY = 0x7f800000;
/** The least float32 that rounds to the infinity of a float16, and the least one that is not subnormal. */
const HALF_OVERFLOW = 0x477ff000;
const HALF_NORMAL = 0x38800000;

/** Bytes of a file that are read at once. */
const READ_BYTES = 2 ** 22;
/** Rows and columns of the tiles in which matrices are transposed: two of them fit into a cache. */
const TILE = 64;

/**
 * Read floats of one type as another, or the transpose of a matrix of floats.
 *
 * @param read - reads bytes from a start on
 * @param target - aligned, if `rows` is given
 * @param rows - of the matrix that is read, if its transpose is to be written
 */
export function readFloats(
  read: (start: number, target: Uint8Array) => void,
  from: FloatType,
  to: FloatType,
  target: Uint8Array,
  rows?: number,
): void {
  const [size, step] = [FLOAT_BYTES[from], FLOAT_BYTES[to]];
  const count = target.length / step;
  const width = rows === undefined ? 1 : count / rows;
  const most = Math.max(1, Math.floor(READ_BYTES / (width * size))) * width;
  const buffer = new Uint8Array(Math.min(most, count) * size);
  const strip = from === to ? buffer : new Uint8Array(Math.min(most, count) * step);
  for (let start = 0; start < count; start += most) {
    const source = buffer.subarray(0, (count - start) * size);
    read(start * size, source);
    const floats = rows === undefined ? target.subarray(start * step) : strip.subarray(0, (count - start) * step);
    if (from !== to) {
      convertFloats(source, from, floats, to);
    }
    if (rows !== undefined) {
      writeColumns(wordsOf(floats, step), wordsOf(target, step), start / width, rows);
    }
  }
  // Else there would be garbage as large as all weights of a model.
  new Set([buffer, strip]).forEach(free);
}

/** Numbers of `size` bytes in place. */
function wordsOf({ buffer, byteOffset, length }: Uint8Array, size: number): Words {
  const count = length / size;
  if (size === 2) {
    return new Uint16Array(buffer, byteOffset, count);
  }
  return size === 4 ? new Uint32Array(buffer, byteOffset, count) : new Float64Array(buffer, byteOffset, count);
}

/** Write some rows of a matrix, from the row `first` on, to the columns of another one, which has `rows`. */
function writeColumns(strip: Words, target: Words, first: number, rows: number): void {
  const width = target.length / rows;
  const count = strip.length / width;
  for (let top = 0; top < count; top += TILE) {
    for (let side = 0; side < width; side += TILE) {
      for (let j = side; j < Math.min(width, side + TILE); j++) {
        for (let i = top; i < Math.min(count, top + TILE); i++) {
          target[j * rows + first + i] = strip[i * width + j] as number;
        }
      }
    }
  }
}

type Words = Uint16Array | Uint32Array | Float64Array;

/** Write the floats of one type as another; one of both is float32. */
export function convertFloats(source: Uint8Array, from: FloatType, target: Uint8Array, to: FloatType): void {
  const [size, step] = [FLOAT_BYTES[from], FLOAT_BYTES[to]];
  for (let start = 0; start < source.length / size; start += BLOCK) {
    const block = source.slice(start * size, (start + BLOCK) * size);
    target.set(from === "float32" ? narrowed(block.buffer, to) : widened(block.buffer, from), start * step);
  }
}

function widened(block: ArrayBuffer, from: FloatType): Uint8Array {
  if (from === "float64") {
    return bytes(Float32Array.from(new Float64Array(block)));
  }
  const halves = new Uint16Array(block);
  const words = new Uint32Array(halves.length);
  const table = from === "float16" ? halfTable() : null;
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i] as number;
    words[i] = table === null ? half << 16 : (table[half] as number);
  }
  return bytes(words);
}

function narrowed(block: ArrayBuffer, to: FloatType): Uint8Array {
  if (to === "float64") {
    return bytes(Float64Array.from(new Float32Array(block)));
  }
  return bytes(Uint16Array.from(new Uint32Array(block), to === "float16" ? toHalf : toBfloat));
}

function bytes({ buffer }: Float32Array | Float64Array | Uint16Array | Uint32Array): Uint8Array {
  return new Uint8Array(buffer);
}

/** The bits of each float16 as a float32, by the bits of the float16. */
let halves: Uint32Array | undefined;

function halfTable(): Uint32Array {
  if (halves === undefined) {
    const values = Float32Array.from({ length: 2 ** 16 }, (_, half) => valueOf(half));
    halves = new Uint32Array(values.buffer);
  }
  return halves;
}

function valueOf(half: number): number {
  const [sign, exponent, fraction] = [half >> 15 ? -1 : 1, (half >> 10) & 31, half & 1023];
  if (exponent === 31) {
    return fraction === 0 ? sign * Infinity : NaN;
  }
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

const single = new Float32Array(1);
const singleBits = new Uint32Array(single.buffer);

function toHalf(word: number): number {
  const sign = (word >>> 16) & 0x8000;
  const rest = word & 0x7fffffff;
  if (rest > INFINITY) {
    return sign | 0x7e00;
  }
  if (rest >= HALF_OVERFLOW) {
    return sign | 0x7c00;
  }
  if (rest >= HALF_NORMAL) {
    return sign | ((rest - 0x38000000 + 0xfff + ((rest >>> 13) & 1)) >>> 13);
  }
  // A multiple of 2^-24, the last bit of 0.5: the sum rounds it.
  singleBits[0] = rest;
  single[0] = (single[0] as number) + 0.5;
  return sign | ((singleBits[0] as number) - 0x3f000000);
}

function toBfloat(word: number): number {
  if ((word & 0x7fffffff) > INFINITY) {
    return ((word >>> 16) & 0x8000) | 0x7fc0;
  }
  return (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}
