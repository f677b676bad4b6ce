/** The choice of the next token from logits, the same as in `trainweb/generation/generate.py`. */

import { RandomStream } from "../data/random.js";
import { refuseIf } from "../wire/messages.js";
import type { SamplingSettings } from "../wire/protocol.js";

const WORD = 2 ** 32;

/**
 * Choose the next token.
 *
 * @param place - number of tokens that were chosen before
 * @param position - position of the token that the logits belong to, for errors
 * @throws SessionError if a logit is NaN or plus infinity, or no logit is finite
 */
export function chooseToken(
  logits: Float32Array,
  { temperature, topK, topP, seed }: SamplingSettings,
  place: number,
  position: number,
): number {
  let most = 0;
  let isWrong = false;
  logits.forEach((logit, token) => {
    isWrong ||= Number.isNaN(logit);
    most = logit > (logits[most] as number) ? token : most;
  });
  refuseIf(isWrong || !Number.isFinite(logits[most]), "LOGITS_NOT_FINITE", { position });
  if (temperature === 0) {
    return most;
  }
  const top = logits[most] as number;
  // The score of the most likely token is 0 at the smallest temperature, too.
  const weights = new Float64Array(logits).map((logit) => Math.exp((logit - top) / temperature));
  const least = topK === null || topK >= logits.length ? -Infinity : (logits.slice().sort()[logits.length - topK] as number);
  const tokens = new Uint32Array(logits.length).map((_, token) => token).filter((token) => (logits[token] as number) >= least);
  const candidates = topP === null ? tokens : mostLikely(tokens, weights, topP);
  const sums = sumsOf(pick(weights, candidates));
  const point = (new RandomStream(seed, place).at(0) / WORD) * (sums[sums.length - 1] as number);
  return candidates[sums.findIndex((sum) => sum > point)] as number;
}

/** The most likely tokens whose weights add up to this part of the sum. Only these are sorted: sorting is slow. */
function mostLikely(tokens: Uint32Array, weights: Float64Array, part: number): Uint32Array {
  const sorted = pick(weights, tokens).sort().reverse();
  const sums = sumsOf(sorted);
  const enough = part * (sums[sums.length - 1] as number);
  const count = 1 + sums.subarray(0, -1).filter((sum) => sum < enough).length;
  const weightOf = (token: number): number => weights[token] as number;
  const least = sorted[count - 1] as number;
  const likely = tokens.filter((token) => weightOf(token) >= least);
  return likely.sort((a, b) => weightOf(b) - weightOf(a)).subarray(0, count);
}

function pick(weights: Float64Array, tokens: Uint32Array): Float64Array {
  return new Float64Array(tokens).map((token) => weights[token] as number);
}

function sumsOf(values: Float64Array): Float64Array {
  let sum = 0;
  return values.map((value) => (sum += value));
}
