/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Settings } from "./kinds.js";

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
  /** False ignores adapters: LoRA, and trained prompts. Default true. */
  readonly adapter?: boolean;
}

/** @internal */
export const GENERATE: Settings = {
  maxTokens: {
    python: "max_tokens",
    kind: {"kind": "integer", "expected": "an integer >= 1 and <= 2147483647", "least": 1, "most": 2147483647},
    isOptional: false,
    default: 100,
  },
  temperature: {
    python: "temperature",
    kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
    isOptional: false,
    default: 0.0,
  },
  topK: {
    python: "top_k",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: true,
    default: null,
  },
  topP: {
    python: "top_p",
    kind: {"kind": "number", "expected": "a number greater than 0 and at most 1", "above": 0, "most": 1},
    isOptional: true,
    default: null,
  },
  seed: {
    python: "seed",
    kind: {"kind": "integer", "expected": "an integer >= 0 and <= 9007199254740991", "least": 0, "most": 9007199254740991},
    isOptional: true,
    default: null,
  },
  adapter: {
    python: "adapter",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: true,
  },
};

/** @internal */
export const SAMPLED = {"temperature": 1.0, "topK": 50};

/** @internal */
export const NEUTRAL: Readonly<Record<string, unknown>> = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "min_length": 0, "min_new_tokens": 0, "bad_words_ids": null, "suppress_tokens": null, "begin_suppress_tokens": null, "forced_bos_token_id": null, "forced_eos_token_id": null, "sequence_bias": null};
