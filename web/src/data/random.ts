/**
 * Random numbers of the data: a function of seed, epoch and place, the same in a page and in Python.
 *
 * The finalizer of MurmurHash3 over a Weyl sequence (SplitMix32): any number can be computed without the earlier ones.
 * `trainweb/data/random.py` is the same; the page and Python shuffle alike.
 */

/** 2^32 over the golden ratio: successive counters fall far apart. */
const STRIDE = 0x9e3779b9;
const WORD = 2 ** 32;
const SEEDS = 2n ** 53n;

function mix(word: number): number {
  let x = word;
  x ^= x >>> 16;
  x = Math.imul(x, 0x85ebca6b);
  x ^= x >>> 13;
  x = Math.imul(x, 0xc2b2ae35);
  x ^= x >>> 16;
  return x >>> 0;
}

/** The numbers of a stream (an epoch, say) of a seed from 0 to 2^53 - 1. */
export class RandomStream {
  readonly #key: number;
  #used = 0;

  constructor(seed: number, stream: number) {
    let key = seed % WORD;
    for (const word of [Math.floor(seed / WORD), stream]) {
      key = mix((mix(key) + word) | 0);
    }
    this.#key = key;
  }

  /** The number at a place, from 0 to 2^32 - 1. */
  at(place: number): number {
    return mix((Math.imul(place + 1, STRIDE) + this.#key) | 0);
  }

  /** The next number below `count`. */
  below(count: number): number {
    return Math.floor((this.at(this.#used++) * count) / WORD);
  }
}

/** The epoch and the fit's seed, which decide the random numbers of an iteration over rows. */
export interface Draw {
  /** False keeps the order of the rows; their values are drawn. */
  readonly shuffles: boolean;
  readonly epoch: number;
  readonly seed: number;
}

/** The sum of the fit's seed and of the data's. */
export function seedWith(draw: Draw, seed: number): number {
  return Number((BigInt(draw.seed) + BigInt(seed)) % SEEDS);
}

/** The numbers below `count` in a random order (Fisher and Yates). */
export function permutation(count: number, seed: number, stream: number): Uint32Array {
  const order = Uint32Array.from({ length: count }, (_, k) => k);
  const random = new RandomStream(seed, stream);
  for (let k = count - 1; k > 0; k--) {
    const other = Math.floor((random.at(k) * (k + 1)) / WORD);
    const swapped = order[k] as number;
    order[k] = order[other] as number;
    order[other] = swapped;
  }
  return order;
}
