/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Settings } from "./kinds.js";
import * as values from "./values.js";

/** The plain options of `generate`. */
export interface GenerateFields {
  /** Maximum number of tokens to write. Default 100. */
  readonly maxTokens?: number;
  /** Divisor of the logits; 0 takes the most likely token. Default 0.0. */
  readonly temperature?: number;
  /** Sample from this many of the most likely tokens. */
  readonly topK?: number | null;
  /** Sample from the most likely tokens whose probabilities add up to at least this. */
  readonly topP?: number | null;
  /** Seed of the random numbers, 0 by default. The same seed gives the same tokens in Python and in a page. */
  readonly seed?: number | null;
  /** False ignores adapters. Default true. */
  readonly adapter?: boolean;
}

/** @internal */
export const GENERATE: Settings = {
  maxTokens: { kind: values.AN_INTEGER_AT_LEAST_1_AND_AT_MOST_2147483647, default: 100 },
  temperature: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  topK: { kind: values.AN_INTEGER_AT_LEAST_1, isOptional: true, default: null },
  topP: { kind: values.A_NUMBER_GREATER_THAN_0_AND_AT_MOST_1, isOptional: true, default: null },
  seed: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991, isOptional: true, default: null },
  adapter: { kind: values.TRUE_OR_FALSE, default: true },
};

/** @internal */
export const SAMPLED = {"temperature": 1.0, "topK": 50};

/** @internal */
export const NEUTRAL: Readonly<Record<string, unknown>> = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "min_length": 0, "min_new_tokens": 0, "bad_words_ids": null, "suppress_tokens": null, "begin_suppress_tokens": null, "forced_bos_token_id": null, "forced_eos_token_id": null, "sequence_bias": null, "guidance_scale": 1.0, "exponential_decay_length_penalty": null, "stop_strings": null, "penalty_alpha": null, "top_h": null, "watermarking_config": null};
