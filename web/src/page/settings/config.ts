/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Settings } from "./kinds.js";

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
  /** Modules to adapt, by whole names or last parts of names; by default the modules that PEFT adapts. */
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

/** Settings of trained prompts, as of `trainweb.lora.inject_prompt` in Python. */
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
  clipGradNorm: {
    python: "clip_grad_norm",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: true,
    default: null,
  },
  clipGradValue: {
    python: "clip_grad_value",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: true,
    default: null,
  },
  requiresGrad: {
    python: "requires_grad",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": false},
    isOptional: true,
    default: null,
  },
  frozenParams: {
    python: "frozen_params",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": true},
    isOptional: true,
    default: null,
  },
  additionalOutputNames: {
    python: "additional_output_names",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": true},
    isOptional: true,
    default: null,
  },
  lossInputNames: {
    python: "loss_input_names",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": false},
    isOptional: true,
    default: null,
  },
  batchNorm: {
    python: "batch_norm",
    kind: {"kind": "choice", "expected": "train or as_exported", "options": ["train", "as_exported"]},
    isOptional: true,
    default: null,
  },
  stopGradient: {
    python: "stop_gradient",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": false},
    isOptional: true,
    default: null,
  },
  dims: {
    python: "dims",
    kind: {"kind": "sizes", "expected": "sizes by the names of dimensions, each an integer >= 1"},
    isOptional: true,
    default: null,
  },
  nominalCheckpoint: {
    python: "nominal_checkpoint",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: true,
    default: null,
  },
};

/** @internal */
export const LORA: Settings = {
  targets: {
    python: "targets",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": false},
    isOptional: true,
    default: null,
  },
  rank: {
    python: "rank",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: false,
    default: 8,
  },
  alpha: {
    python: "alpha",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: true,
    default: null,
  },
  dropout: {
    python: "dropout",
    kind: {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1},
    isOptional: false,
    default: 0.0,
  },
  init: {
    python: "init",
    kind: {"kind": "choice", "expected": "default or gaussian", "options": ["default", "gaussian"]},
    isOptional: false,
    default: "default",
  },
  useRslora: {
    python: "use_rslora",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: false,
  },
  useDora: {
    python: "use_dora",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: false,
  },
  modulesToSave: {
    python: "modules_to_save",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": false},
    isOptional: true,
    default: null,
  },
  seed: {
    python: "seed",
    kind: {"kind": "integer", "expected": "an integer >= 0 and <= 9007199254740991", "least": 0, "most": 9007199254740991},
    isOptional: false,
    default: 0,
  },
};

/** @internal */
export const PROMPT_TUNING: Settings = {
  tokens: {
    python: "tokens",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: false,
    default: 20,
  },
  init: {
    python: "init",
    kind: {"kind": "ids", "expected": "a list of token ids"},
    isOptional: true,
    default: null,
  },
  seed: {
    python: "seed",
    kind: {"kind": "integer", "expected": "an integer >= 0 and <= 9007199254740991", "least": 0, "most": 9007199254740991},
    isOptional: false,
    default: 0,
  },
};

/** @internal */
export const EMA: Settings = {
  decay: {
    python: "decay",
    kind: {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1},
    isOptional: false,
    default: 0.999,
  },
  warmup: {
    python: "warmup",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: false,
  },
  warmupPower: {
    python: "warmup_power",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: false,
    default: 0.6666666666666666,
  },
  warmupGamma: {
    python: "warmup_gamma",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: false,
    default: 1.0,
  },
};
