/** The choice of the next token from logits; `trainweb/generation/sampling.py` makes the same one. */

import { RandomStream } from "../data/random.js";
import { sessionError } from "../wire/messages.js";
import type { SamplingSettings } from "../wire/protocol.js";

const WORD = 2 ** 32;

/**
 * Choose the next token.
 *
 * @param place - number of tokens that were chosen before
 * @param position - position of the token that the logits belong to, for errors
 * @throws SessionError if a logit is NaN or plus infinity, or none is finite
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
  if (isWrong || !Number.isFinite(logits[most])) {
    throw sessionError("LOGITS_NOT_FINITE", { position });
  }
  if (temperature === 0) {
    return most;
  }
  // The score of the most likely token is 0 at the smallest temperature, too.
  const score = (token: number): number => ((logits[token] as number) - (logits[most] as number)) / temperature;
  const least = topK === null || topK >= logits.length ? -Infinity : (logits.slice().sort()[logits.length - topK] as number);
  const tokens = Array.from(logits.keys()).filter((token) => (logits[token] as number) >= least);
  const weight = (token: number): number => Math.exp(score(token));
  const weights = new Map(tokens.map((token) => [token, weight(token)]));
  const weightOf = (token: number): number => weights.get(token) as number;
  const kept = topP === null ? tokens : mostLikely(tokens, weightOf, topP);
  const sums = sumsOf(kept, weightOf);
  const point = (new RandomStream(seed, place).at(0) / WORD) * (sums[sums.length - 1] as number);
  return kept[sums.findIndex((sum) => sum > point)] as number;
}

/** The most likely tokens whose weights together are at least this part of all. */
function mostLikely(tokens: readonly number[], weightOf: (token: number) => number, part: number): number[] {
  const sorted = [...tokens].sort((a, b) => weightOf(b) - weightOf(a));
  const sums = sumsOf(sorted, weightOf);
  const enough = part * (sums[sums.length - 1] as number);
  return sorted.slice(0, 1 + sums.slice(0, -1).filter((sum) => sum < enough).length);
}

function sumsOf(tokens: readonly number[], weightOf: (token: number) => number): number[] {
  let sum = 0;
  return tokens.map((token) => (sum += weightOf(token)));
}
