/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Formula, Rule } from "../../wire/formulas.js";
import type { Of, Settings } from "./kinds.js";

/** The plain options of fit. */
export interface FitFields {
  /** Number of passes over all rows. Default 1. */
  readonly epochs?: number;
  /** Rows of a batch; 32 unless the data comes in batches. */
  readonly batchSize?: number | null;
  /** Whether the items of a stream are whole batches; by default the shape of the first item decides. */
  readonly batched?: boolean | null;
  /** What to do with the last, smaller batch: keep it, which compiles a second plan; drop it; or pad it with the first rows of the epoch. Default "keep". */
  readonly remainder?: "keep" | "drop" | "pad";
  /** Train on the rows in a new order in each epoch: the default for arrays. Shuffle streams themselves. */
  readonly shuffle?: boolean | null;
  /** Seed of the order of rows. Default 0. */
  readonly seed?: number;
  /** Share of the rows, taken from the end, to evaluate after each epoch instead of training on them. */
  readonly validationSplit?: number | null;
  /** Take the share of the split from each class; the last input of the model holds the classes. Default false. */
  readonly stratify?: boolean;
  /** Also evaluate the training data after each epoch, with the same metrics. It needs arrays. Default false. */
  readonly trainMetrics?: boolean;
  /** Learning rate of each optimizer step of this fit, which the session keeps; by default it stays as it is. With a schedule it is the schedule's setting of that name. */
  readonly learningRate?: number | null;
  /** Batches whose gradients are added up for one optimizer step. Default 1. */
  readonly accumulate?: number;
  /** Largest joint L2 norm of the gradients in an optimizer step of this fit. */
  readonly clipGradNorm?: number | null;
  /** Largest magnitude of each element of the gradients in an optimizer step of this fit; it is applied before the norm. */
  readonly clipGradValue?: number | null;
  /** Evaluate the validation data with the averages of the parameters that the session keeps; early stopping then restores the averages of the best epoch. Default false. */
  readonly ema?: boolean;
  /** mu of FedProx: mu times the distance from the parameters at the start of the fit is added to the gradients before each optimizer step. Default 0.0. */
  readonly proximal?: number;
  /** Reaction to NaN or infinity in loss, gradients, parameters or moments. 'stop' undoes the batch and ends the fit. 'skip' undoes the batch and continues with the next one. 'restore' returns to the start of the epoch, or to the last checkpoint in it, and continues with the next batch, up to 3 times. By default the fit fails if the loss is NaN or infinite. */
  readonly onNaN?: "stop" | "skip" | "restore" | null;
}

/** Options of `findLearningRate`. */
export interface FindRateFields {
  /** Batches to train on; they repeat if the data has fewer. Default 100. */
  readonly steps?: number;
  /** The first rate. Default 1e-07. */
  readonly least?: number;
  /** The last rate. Default 10.0. */
  readonly most?: number;
  /** Rows of a batch; 32 unless the data comes in batches. */
  readonly batchSize?: number | null;
  /** Whether the items of a stream are whole batches; by default the shape of the first item decides. */
  readonly batched?: boolean | null;
  /** Seed of the order of rows. Default 0. */
  readonly seed?: number;
}

/** Settings of a checkpoint besides its store and name. */
export interface CheckpointFields {
  /** Optimizer steps between two checkpoints within an epoch; one is written after each epoch anyway. */
  readonly every?: number | null;
}

/** Ends training if a metric stops improving. */
export interface EarlyStoppingFields {
  /** The fit ends after this many epochs in a row without a better value; 0 means 1. */
  readonly patience: number;
  /** A value is better if it improves by more than this. Default 0.0. */
  readonly minDelta?: number;
  /** True: the session ends with the parameters of the best epoch. The optimizer's state stays as the last epoch left it. Default true. */
  readonly restoreBest?: boolean;
  /** Whether lower ("min") or higher ("max") values are better. Only a metric that is a function needs it. */
  readonly mode?: "min" | "max" | null;
}

/** The metrics. */
export type MetricType =
  | "accuracy"
  | "topK"
  | "f1"
  | "precision"
  | "recall"
  | "confusionMatrix"
  | "mIoU"
  | "mae"
  | "r2"
  | "auc"
  | "perplexity";

/** Share of places whose highest score is the target's. */
export interface AccuracyFields {
  /** Class of targets to ignore. */
  readonly ignoreIndex?: number | null;
}

/** Share of places where fewer than `k` classes have a higher score than the target. */
export interface TopKFields {
  /** Number of highest scores among which the target must be. Default 5. */
  readonly k?: number;
  /** Class of targets to ignore. */
  readonly ignoreIndex?: number | null;
}

/** Harmonic mean of precision and recall, of the classes that occur. */
export interface F1Fields {
  /** Mean over classes ("macro"), over all places ("micro"), over classes by their number of targets ("weighted"), or a value for each class ("none"). Default "macro". */
  readonly average?: "macro" | "micro" | "weighted" | "none";
  /** Class of targets to ignore. */
  readonly ignoreIndex?: number | null;
}

/** Share of the places with a predicted class that are right, of the classes that occur. */
export interface PrecisionFields {
  /** Mean over classes ("macro"), over all places ("micro"), over classes by their number of targets ("weighted"), or a value for each class ("none"). Default "macro". */
  readonly average?: "macro" | "micro" | "weighted" | "none";
  /** Class of targets to ignore. */
  readonly ignoreIndex?: number | null;
}

/** Share of the places with a target class that are predicted, of the classes that occur. */
export interface RecallFields {
  /** Mean over classes ("macro"), over all places ("micro"), over classes by their number of targets ("weighted"), or a value for each class ("none"). Default "macro". */
  readonly average?: "macro" | "micro" | "weighted" | "none";
  /** Class of targets to ignore. */
  readonly ignoreIndex?: number | null;
}

/** How often each class was predicted (columns) for each target (rows). */
export interface ConfusionMatrixFields {
  /** Class of targets to ignore. */
  readonly ignoreIndex?: number | null;
}

/** Intersection over union of targets and predictions, the mean over the classes that occur. */
export interface MIoUFields {
  /** Class of targets to ignore. */
  readonly ignoreIndex?: number | null;
}

/** Mean of the magnitudes of the errors. */
export type MaeFields = Readonly<Record<never, never>>;

/** Coefficient of determination: 1 less the share of the variance that is not explained, the mean over columns. */
export type R2Fields = Readonly<Record<never, never>>;

/** Area under the ROC curve, of one class against the rest; predictions are [rows, classes], [rows, 1] or [rows]. */
export interface AucFields {
  /** The mean over the classes that occur, or a value for each class. Two classes have one value. Default "macro". */
  readonly average?: "macro" | "none";
}

/** The exponential of the mean loss, which must be a cross entropy in nats. */
export type PerplexityFields = Readonly<Record<never, never>>;

/** A metric with its settings. */
export type MetricSettings =
  | Of<"accuracy", AccuracyFields>
  | Of<"topK", TopKFields>
  | Of<"f1", F1Fields>
  | Of<"precision", PrecisionFields>
  | Of<"recall", RecallFields>
  | Of<"confusionMatrix", ConfusionMatrixFields>
  | Of<"mIoU", MIoUFields>
  | Of<"mae", MaeFields>
  | Of<"r2", R2Fields>
  | Of<"auc", AucFields>
  | Of<"perplexity", PerplexityFields>;

/** @internal */
export const FIT: Settings = {
  epochs: {
    python: "epochs",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: false,
    default: 1,
  },
  batchSize: {
    python: "batch_size",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: true,
    default: null,
  },
  batched: {
    python: "batched",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: true,
    default: null,
  },
  remainder: {
    python: "remainder",
    kind: {"kind": "choice", "expected": "keep, drop or pad", "options": ["keep", "drop", "pad"]},
    isOptional: false,
    default: "keep",
  },
  shuffle: {
    python: "shuffle",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: true,
    default: null,
  },
  seed: {
    python: "seed",
    kind: {"kind": "integer", "expected": "an integer >= 0 and <= 9007199254740991", "least": 0, "most": 9007199254740991},
    isOptional: false,
    default: 0,
  },
  validationSplit: {
    python: "validation_split",
    kind: {"kind": "number", "expected": "a number greater than 0 and less than 1", "above": 0, "below": 1},
    isOptional: true,
    default: null,
  },
  stratify: {
    python: "stratify",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: false,
  },
  trainMetrics: {
    python: "train_metrics",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: false,
  },
  learningRate: {
    python: "learning_rate",
    kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
    isOptional: true,
    default: null,
  },
  accumulate: {
    python: "accumulate",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: false,
    default: 1,
  },
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
  ema: {
    python: "ema",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: false,
  },
  proximal: {
    python: "proximal",
    kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
    isOptional: false,
    default: 0.0,
  },
  onNaN: {
    python: "on_nan",
    kind: {"kind": "choice", "expected": "stop, skip or restore", "options": ["stop", "skip", "restore"]},
    isOptional: true,
    default: null,
  },
};

/** @internal */
export const EARLY_STOPPING: Settings = {
  patience: {
    python: "patience",
    kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
    isOptional: false,
  },
  minDelta: {
    python: "min_delta",
    kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
    isOptional: false,
    default: 0.0,
  },
  restoreBest: {
    python: "restore_best",
    kind: {"kind": "flag", "expected": "true or false"},
    isOptional: false,
    default: true,
  },
  mode: {
    python: "mode",
    kind: {"kind": "choice", "expected": "min or max", "options": ["min", "max"]},
    isOptional: true,
    default: null,
  },
};

/** When it ends a fit. @internal */
export const EARLY_STOPPING_RULE: Rule = {"value": [">", "bad", ["max", ["-", "patience", 1], 0]], "state": [["best", ["/", ["-", 0, "sign"], 0]], ["bad", 0]], "observe": [["is_better", [">", ["*", "sign", ["-", "value", "best"]], "min_delta"]], ["best", ["if", "is_better", "value", "best"]], ["bad", ["if", "is_better", 0, ["+", "bad", 1]]]]};

/** @internal */
export const FIND_RATE: Settings = {
  steps: {
    python: "steps",
    kind: {"kind": "integer", "expected": "an integer >= 10 and <= 100000", "least": 10, "most": 100000},
    isOptional: false,
    default: 100,
  },
  least: {
    python: "least",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: false,
    default: 1e-07,
  },
  most: {
    python: "most",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: false,
    default: 10.0,
  },
  batchSize: {
    python: "batch_size",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: true,
    default: null,
  },
  batched: {
    python: "batched",
    kind: {"kind": "flag", "expected": "true or false"},
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
export const CHECKPOINT: Settings = {
  every: {
    python: "every",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: true,
    default: null,
  },
};

/** @internal */
export const METRICS: Readonly<Record<MetricType, Settings>> = {
  accuracy: {
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647},
      isOptional: true,
      default: null,
    },
  },
  topK: {
    k: {
      python: "k",
      kind: {"kind": "integer", "expected": "an integer >= 1 and <= 2147483647", "least": 1, "most": 2147483647},
      isOptional: false,
      default: 5,
    },
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647},
      isOptional: true,
      default: null,
    },
  },
  f1: {
    average: {
      python: "average",
      kind: {"kind": "choice", "expected": "macro, micro, weighted or none", "options": ["macro", "micro", "weighted", "none"]},
      isOptional: false,
      default: "macro",
    },
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647},
      isOptional: true,
      default: null,
    },
  },
  precision: {
    average: {
      python: "average",
      kind: {"kind": "choice", "expected": "macro, micro, weighted or none", "options": ["macro", "micro", "weighted", "none"]},
      isOptional: false,
      default: "macro",
    },
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647},
      isOptional: true,
      default: null,
    },
  },
  recall: {
    average: {
      python: "average",
      kind: {"kind": "choice", "expected": "macro, micro, weighted or none", "options": ["macro", "micro", "weighted", "none"]},
      isOptional: false,
      default: "macro",
    },
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647},
      isOptional: true,
      default: null,
    },
  },
  confusionMatrix: {
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647},
      isOptional: true,
      default: null,
    },
  },
  mIoU: {
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647},
      isOptional: true,
      default: null,
    },
  },
  mae: {},
  r2: {},
  auc: {
    average: {
      python: "average",
      kind: {"kind": "choice", "expected": "macro or none", "options": ["macro", "none"]},
      isOptional: false,
      default: "macro",
    },
  },
  perplexity: {},
};

/** Which value of a metric is better; null: it is not a number. @internal */
export const BETTER: Readonly<Record<MetricType, "min" | "max" | null>> = {
  accuracy: "max",
  topK: "max",
  f1: "max",
  precision: "max",
  recall: "max",
  confusionMatrix: null,
  mIoU: "max",
  mae: "min",
  r2: "max",
  auc: "max",
  perplexity: "min",
};

/** How metrics follow that go by the loss alone. @internal */
export const OF_LOSS: Readonly<Partial<Record<MetricType, Formula>>> = {"perplexity": ["exp", "loss"]};

/** @internal */
export const DEFAULT_BATCH = 32;
