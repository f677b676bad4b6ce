/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Settings } from "./kinds.js";

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
  nominalCheckpoint: {
    python: "nominal_checkpoint",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: true,
    default: null,
  },
};
