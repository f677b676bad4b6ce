/** Updates of parameters as vectors: clipping, noise and averages; trainweb/federated/updates.py is the same. */

import { badSetting, checkInteger, describe, refuseSettingIf } from "../data/checks.js";
import { checkOptions } from "../data/nearest.js";
import { RandomStream } from "../data/random.js";
import { isObject } from "../wire/kinds.js";
import { refuseIf } from "../wire/messages.js";

/** Data of a client's round that a server needs. */
export interface WeightedUpdate {
  /** Parameters after the training less those before. */
  readonly delta: Float32Array;
  /** Rows that were trained on. */
  readonly examples: number;
  /** True if noise was added. */
  readonly isNoised?: boolean;
}

/** The result of a client's round that may leave the client. */
export interface ClientUpdate extends WeightedUpdate {
  /** L2 norm before clipping; it is not noised: keep it in the page where privacy matters. */
  readonly norm: number;
  /** True if noise was added. */
  readonly isNoised: boolean;
}

/** Settings of noise. */
export interface NoiseOptions {
  /** For tests, from 0 to 2^53 - 1; by default the numbers come from `crypto.getRandomValues`. */
  readonly seed?: number | null;
  /** The stream of the seed's numbers: take another one in each round. Default 0. */
  readonly stream?: number;
}

/** An update that is not too long. */
export interface ClippedUpdate {
  /** The update. */
  readonly delta: Float32Array;
  /** L2 norm that it had. */
  readonly norm: number;
}

/** Most words of one call of `crypto.getRandomValues`. */
const MOST_WORDS = 65536 / 4;
/** Random words for two numbers of noise. */
const WORDS = 4;

/** @throws ModelError unless `given` is a vector of finite numbers; BufferSizeError for another length than `size` */
export function checkVector(name: string, vector: unknown, size?: number): Float32Array {
  if (!(vector instanceof Float32Array) || vector.length === 0) {
    throw badSetting(name, describe(vector), "a Float32Array that is not empty");
  }
  refuseIf(size !== undefined && vector.length !== size, "UPDATE_SIZE", { name, actual: vector.length, expected: size });
  refuseIf(!vector.every(Number.isFinite), "UPDATE_NOT_FINITE", { name });
  return vector;
}

/** @throws ModelError unless `value` is a number above 0, at most `most` */
export function checkPositive(name: string, value: unknown, most = Infinity): number {
  if (typeof value !== "number" || !Number.isFinite(value) || value <= 0 || value > most) {
    throw badSetting(name, value, most === Infinity ? "a number greater than 0" : `a number greater than 0 and at most ${most}`);
  }
  return value;
}

/**
 * An update of at most this L2 norm, and the norm that it had.
 *
 * @param delta - the update
 * @param norm - the largest norm; a longer update is multiplied by `norm / its norm`
 * @throws ModelError: `norm` is not above 0, or the update no vector of finite numbers
 */
export function clipUpdate(delta: Float32Array, norm: number): ClippedUpdate {
  checkPositive("norm", norm);
  checkVector("delta", delta);
  const length = Math.sqrt(delta.reduce((sum, x) => sum + x * x, 0));
  const factor = length <= norm ? 1 : norm / length;
  return { delta: delta.map((x) => x * factor), norm: length };
}

/**
 * Add Gaussian noise to an update.
 *
 * @param delta - the update
 * @param deviation - standard deviation of the noise of each element
 * @param options - the source of the random numbers
 * @throws ModelError: an argument is out of range
 */
export function addNoise(delta: Float32Array, deviation: number, options: NoiseOptions = {}): Float32Array {
  const { seed = null, stream = 0 } = checkOptions("addNoise", options, { seed: true, stream: true });
  checkVector("delta", delta);
  if (deviation === 0) {
    return delta.slice();
  }
  checkPositive("deviation", deviation);
  Object.entries(seed === null ? { stream } : { seed, stream }).forEach(([name, value]) => checkInteger(name, value, 0));
  const noise = gaussian(delta.length, seed, stream);
  return delta.map((x, i) => x + deviation * (noise[i] as number));
}

/** Normal numbers, two of four random words: https://en.wikipedia.org/wiki/Box-Muller_transform. */
function gaussian(count: number, seed: number | null, stream: number): Float64Array {
  const words = randomWords(WORDS * Math.ceil(count / 2), seed, stream);
  const numbers = new Float64Array(words.length / 2);
  // 53 bits; above 0, whose logarithm there is, or below 1.
  const fraction = (k: number, shift: number): number =>
    ((words[k] as number) * 2 ** 21 + ((words[k + 1] as number) >>> 11) + shift) / 2 ** 53;
  for (let k = 0; k < words.length; k += WORDS) {
    const radius = Math.sqrt(-2 * Math.log(fraction(k, 1)));
    const angle = 2 * Math.PI * fraction(k + 2, 0);
    numbers[k / 2] = radius * Math.cos(angle);
    numbers[k / 2 + 1] = radius * Math.sin(angle);
  }
  return numbers.subarray(0, count);
}

function randomWords(count: number, seed: number | null, stream: number): Uint32Array {
  if (seed !== null) {
    const random = new RandomStream(seed, stream);
    return Uint32Array.from({ length: count }, (_, k) => random.at(k));
  }
  const words = new Uint32Array(count);
  for (let start = 0; start < count; start += MOST_WORDS) {
    crypto.getRandomValues(words.subarray(start, start + MOST_WORDS));
  }
  return words;
}

/**
 * Compute the parameters of the next round: the old ones and the mean of the updates, summed in float64 (FedAvg).
 *
 * @param parameters - the parameters that all clients started from
 * @param updates - one per client
 * @param weights - "examples" weights by the number of examples, "equal" weights all alike; or give an array of
 *   numbers. Updates with noise take only "equal", which the accounting of privacy assumes.
 * @throws ModelError: there are no updates, weights are wrong, or an update has numbers that are not finite.
 * @throws BufferSizeError: an update has another length than the parameters
 */
export function averageUpdates(
  parameters: Float32Array,
  updates: readonly WeightedUpdate[],
  weights: "examples" | "equal" | readonly number[] = "examples",
): Float32Array {
  checkVector("parameters", parameters);
  const areUpdates = Array.isArray(updates) && updates.length > 0 && updates.every(isObject);
  refuseSettingIf(!areUpdates, "updates", updates, "a list of updates, one a client");
  const shares = sharesOf(updates, weights);
  const total = shares.reduce((a, b) => a + b);
  const mean = new Float64Array(parameters.length);
  for (const [k, { delta }] of updates.entries()) {
    const share = (shares[k] as number) / total;
    checkVector(`updates[${k}].delta`, delta, parameters.length).forEach((x, i) => {
      mean[i] = (mean[i] as number) + x * share;
    });
  }
  return parameters.map((x, i) => x + (mean[i] as number));
}

function sharesOf(updates: readonly WeightedUpdate[], weights: unknown): number[] {
  let shares: number[];
  if (Array.isArray(weights)) {
    refuseSettingIf(weights.length !== updates.length, "weights", weights, `${updates.length} numbers, one a client`);
    shares = weights.map((share, k) => checkPositive(`weights[${k}]`, share));
  } else {
    refuseSettingIf(weights !== "examples" && weights !== "equal", "weights", weights, "'examples', 'equal' or a list of numbers, one a client");
    updates.forEach(({ examples }, k) => checkInteger(`updates[${k}].examples`, examples, 1));
    shares = updates.map(({ examples }) => (weights === "examples" ? examples : 1));
  }
  refuseIf(new Set(shares).size > 1 && updates.some(({ isNoised }) => isNoised === true), "NOISE_AND_WEIGHTS");
  return shares;
}
