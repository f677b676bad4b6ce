/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Settings } from "./kinds.js";
import * as values from "./values.js";

/** Exponential moving average of the trainable parameters, after each optimizer step; it begins as they are then. */
export interface EmaFields {
  /** Share of the average that is kept from step to step, in [0, 1). Default 0.999. */
  readonly decay?: number;
  /** True if the decay grows: after t steps it is at most 1 - (1 + t / warmupGamma) ** -warmupPower. Default false. */
  readonly warmup?: boolean;
  /** Exponent of the warm-up. timm suggests 2/3 for 1e6 steps and more, 3/4 for fewer. Default 0.6666666666666666. */
  readonly warmupPower?: number;
  /** Divisor of the steps: larger values slow the warm-up. Default 1.0. */
  readonly warmupGamma?: number;
}

/** Settings of low-rank adapters, as of `trainweb.lora.inject` in Python. */
export interface LoraFields {
  /** Modules to adapt, by names or last parts of names, or ["all-linear"]; by default the choice of PEFT. */
  readonly targets?: readonly string[] | null;
  /** Rank of the product B A. Default 8. */
  readonly rank?: number;
  /** The product is multiplied by alpha / rank; by default `rank`. */
  readonly alpha?: number | null;
  /** Probability with which an element of an adapter's input is zero in training steps. Default 0.0. */
  readonly dropout?: number;
  /** Distribution of A: uniform, or normal with deviation 1 / rank. B starts as zero. Default "default". */
  readonly init?: "default" | "gaussian";
  /** Multiply the product by alpha / sqrt(rank) instead. Default false. */
  readonly useRslora?: boolean;
  /** Also learn magnitudes of the columns of weights (DoRA). Default false. */
  readonly useDora?: boolean;
  /** Modules to train whole and to save with the adapters, such as a new head. */
  readonly modulesToSave?: readonly string[] | null;
  /** Seed of the random numbers. Default 0. */
  readonly seed?: number;
}

/** Settings of a new last layer. */
export interface HeadFields {
  /** Number of classes. */
  readonly classes: number;
  /** Module that makes the scores; needed where several may do so. */
  readonly layer?: string | null;
  /** Seed of the weights, which are those of a layer of PyTorch after `torch.manual_seed(seed)`. Default 0. */
  readonly seed?: number;
}

/** Settings of trained prompts. */
export interface PromptTuningFields {
  /** Number of vectors. Default 20. */
  readonly tokens?: number;
  /** Token ids whose embeddings the vectors start as, repeated or cut to `tokens`; by default normal numbers. */
  readonly init?: readonly number[] | null;
  /** Seed of the random numbers. Default 0. */
  readonly seed?: number;
}

/** @internal */
export const CONFIG: Settings = {
  clipGradNorm: { kind: values.A_NUMBER_GREATER_THAN_0, isOptional: true, default: null },
  clipGradValue: { kind: values.A_NUMBER_GREATER_THAN_0, isOptional: true, default: null },
  requiresGrad: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS, isOptional: true, default: null },
  frozenParams: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS_MAYBE_EMPTY, isOptional: true, default: null },
  additionalOutputNames: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS_MAYBE_EMPTY, isOptional: true, default: null },
  lossInputNames: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS, isOptional: true, default: null },
  batchNorm: { kind: values.ONE_OF_TRAIN_OR_AS_EXPORTED, isOptional: true, default: null },
  stopGradient: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS, isOptional: true, default: null },
  dims: { kind: values.SIZES_BY_THE_NAMES_OF_DIMENSIONS_EACH_AN_INTEGER_AT_LEAST_1, isOptional: true, default: null },
  nominalCheckpoint: { kind: values.TRUE_OR_FALSE, isOptional: true, default: null },
};

/** @internal */
export const LORA: Settings = {
  targets: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS, isOptional: true, default: null },
  rank: { kind: values.AN_INTEGER_AT_LEAST_1, default: 8 },
  alpha: { kind: values.A_NUMBER_GREATER_THAN_0, isOptional: true, default: null },
  dropout: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.0 },
  init: { kind: values.ONE_OF_DEFAULT_OR_GAUSSIAN, default: "default" },
  useRslora: { kind: values.TRUE_OR_FALSE, default: false },
  useDora: { kind: values.TRUE_OR_FALSE, default: false },
  modulesToSave: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS, isOptional: true, default: null },
  seed: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991, default: 0 },
};

/** @internal */
export const HEAD: Settings = {
  classes: { kind: values.AN_INTEGER_AT_LEAST_1 },
  layer: { kind: values.A_TEXT, isOptional: true, default: null },
  seed: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991, default: 0 },
};

/** @internal */
export const PROMPT_TUNING: Settings = {
  tokens: { kind: values.AN_INTEGER_AT_LEAST_1, default: 20 },
  init: { kind: values.A_LIST_OF_TOKEN_IDS, isOptional: true, default: null },
  seed: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991, default: 0 },
};

/** @internal */
export const EMA: Settings = {
  decay: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.999 },
  warmup: { kind: values.TRUE_OR_FALSE, default: false },
  warmupPower: { kind: values.A_NUMBER_GREATER_THAN_0, default: 0.6666666666666666 },
  warmupGamma: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1.0 },
};
