/**
 * SHA-256: the browser's, or our own in pages that are not secure, where browsers offer none. @noble/hashes would add
 * 5 KB to the page's script and to the worker's, for these pages only.
 */

import { bytesOf, concatenate, free, PIECE_BYTES, sizeOf, type SourceData } from "./pieces.js";

const BLOCK_BYTES = 64;

const PRIMES: number[] = [];
for (let n = 2; PRIMES.length < 64; n++) {
  if (PRIMES.every((prime) => n % prime !== 0)) {
    PRIMES.push(n);
  }
}
/** The first 32 bits of the fractions of roots. All are at least 100 rounding errors from another number. */
const ROUNDS = Uint32Array.from(PRIMES, (prime) => (prime ** (1 / 3) % 1) * 2 ** 32);
const START = Uint32Array.from(PRIMES.slice(0, 8), (prime) => (prime ** (1 / 2) % 1) * 2 ** 32);

/** Bytes as hexadecimal digits. */
export function hexOf(bytes: Iterable<number>): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The reverse of `hexOf`. */
export function bytesOfHex(hex: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(hex.match(/../g) ?? [], (digits) => parseInt(digits, 16));
}

/** The hash of some bytes. */
export async function sha256(bytes: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  const { subtle } = globalThis.crypto ?? {};
  return subtle === undefined
    ? sha256InScript(bytes)
    : new Uint8Array(await subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
}

/**
 * Hash a file. The hash of a file with more than 16 MiB is the hash of the hashes of its pieces of 16 MiB, in order.
 * Browsers only hash data in memory as a whole, and a Blob need not be in memory.
 *
 * @param from - the first byte that counts
 */
export async function sha256OfFile(file: SourceData, from = 0): Promise<Uint8Array<ArrayBuffer>> {
  const nbytes = sizeOf(file);
  if (nbytes - from <= PIECE_BYTES) {
    return sha256(await bytesOf(file, from, nbytes - from));
  }
  const hashes: Uint8Array[] = [];
  for await (const [, bytes] of piecesOf(file, from)) {
    hashes.push(await sha256(bytes));
  }
  return sha256OfPieces(hashes, nbytes - from);
}

/** The pieces of a file, and where they start; each is there until the next. */
async function* piecesOf(file: SourceData, from = 0): AsyncGenerator<readonly [start: number, bytes: Uint8Array]> {
  const nbytes = sizeOf(file);
  for (let start = from; start < nbytes; start += PIECE_BYTES) {
    const bytes = await bytesOf(file, start, Math.min(nbytes - start, PIECE_BYTES));
    yield [start, bytes];
    if (file instanceof Blob) {
      free(bytes as Uint8Array<ArrayBuffer>);
    }
  }
}

/**
 * Go through a file, and say whether its pieces have these hashes.
 *
 * @param use - takes each piece before its hash is known
 */
export async function hasHashes(
  file: SourceData,
  hashes: readonly Uint8Array[],
  use: (start: number, bytes: Uint8Array) => void = () => {},
): Promise<boolean> {
  let isRight: Promise<boolean> = Promise.resolve(true);
  for await (const [start, bytes] of piecesOf(file)) {
    // Of a copy: meanwhile the next piece is read.
    const hash = sha256(bytes);
    use(start, bytes);
    if (!(await isRight)) {
      return false;
    }
    isRight = hash.then((actual) => String(actual) === String(hashes[start / PIECE_BYTES]));
  }
  return isRight;
}

/** The same hash, from known hashes of the pieces. @param nbytes - size of the file, which has more than one piece */
export function sha256OfPieces(hashes: readonly Uint8Array[], nbytes: number): Promise<Uint8Array<ArrayBuffer>> {
  // A piece without bytes may follow the last one.
  return sha256(concatenate(hashes.slice(0, Math.ceil(nbytes / PIECE_BYTES))));
}

/** FIPS 180-4, section 6.2. */
export function sha256InScript(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const state = START.slice();
  const blockBytes = bytes.length - (bytes.length % BLOCK_BYTES);
  const schedule = new Uint32Array(64);
  for (let at = 0; at < blockBytes; at += BLOCK_BYTES) {
    addBlock(state, schedule, new DataView(bytes.buffer, bytes.byteOffset + at, BLOCK_BYTES));
  }
  const left = bytes.length - blockBytes;
  const tail = new Uint8Array(left < BLOCK_BYTES - 8 ? BLOCK_BYTES : 2 * BLOCK_BYTES);
  tail.set(bytes.subarray(blockBytes));
  tail[left] = 0x80;
  new DataView(tail.buffer).setBigUint64(tail.length - 8, BigInt(bytes.length) * 8n);
  for (let at = 0; at < tail.length; at += BLOCK_BYTES) {
    addBlock(state, schedule, new DataView(tail.buffer, at, BLOCK_BYTES));
  }
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, k) => digest.setUint32(4 * k, word));
  return new Uint8Array(digest.buffer);
}

function rotated(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits));
}

function addBlock(state: Uint32Array, w: Uint32Array, block: DataView): void {
  for (let t = 0; t < 16; t++) {
    w[t] = block.getUint32(4 * t);
  }
  for (let t = 16; t < 64; t++) {
    const x = w[t - 15] as number;
    const y = w[t - 2] as number;
    const s0 = rotated(x, 7) ^ rotated(x, 18) ^ (x >>> 3);
    const s1 = rotated(y, 17) ^ rotated(y, 19) ^ (y >>> 10);
    w[t] = (w[t - 16] as number) + s0 + (w[t - 7] as number) + s1;
  }
  let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = state;
  for (let t = 0; t < 64; t++) {
    const s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + (ROUNDS[t] as number) + (w[t] as number)) | 0;
    const s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, k) => {
    state[k] = (state[k] as number) + word;
  });
}
