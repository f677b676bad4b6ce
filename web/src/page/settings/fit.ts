/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Formula, Rule } from "../../wire/formulas.js";
import type { Of, Settings } from "./kinds.js";
import * as values from "./values.js";

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
  epochs: { kind: values.AN_INTEGER_AT_LEAST_1, default: 1 },
  batchSize: { kind: values.AN_INTEGER_AT_LEAST_1, isOptional: true, default: null },
  batched: { kind: values.TRUE_OR_FALSE, isOptional: true, default: null },
  remainder: { kind: values.ONE_OF_KEEP_DROP_OR_PAD, default: "keep" },
  shuffle: { kind: values.TRUE_OR_FALSE, isOptional: true, default: null },
  seed: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991, default: 0 },
  validationSplit: { kind: values.A_NUMBER_GREATER_THAN_0_AND_LESS_THAN_1, isOptional: true, default: null },
  stratify: { kind: values.TRUE_OR_FALSE, default: false },
  trainMetrics: { kind: values.TRUE_OR_FALSE, default: false },
  learningRate: { kind: values.A_NUMBER_AT_LEAST_0, isOptional: true, default: null },
  accumulate: { kind: values.AN_INTEGER_AT_LEAST_1, default: 1 },
  clipGradNorm: { kind: values.A_NUMBER_GREATER_THAN_0, isOptional: true, default: null },
  clipGradValue: { kind: values.A_NUMBER_GREATER_THAN_0, isOptional: true, default: null },
  ema: { kind: values.TRUE_OR_FALSE, default: false },
  proximal: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  onNaN: { kind: values.ONE_OF_STOP_SKIP_OR_RESTORE, isOptional: true, default: null, python: "on_nan" },
};

/** @internal */
export const EARLY_STOPPING: Settings = {
  patience: { kind: values.AN_INTEGER_AT_LEAST_0 },
  minDelta: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  restoreBest: { kind: values.TRUE_OR_FALSE, default: true },
  mode: { kind: values.ONE_OF_MIN_OR_MAX, isOptional: true, default: null },
};

/** When it ends a fit. @internal */
export const EARLY_STOPPING_RULE: Rule = {"value": [">", "bad", ["max", ["-", "patience", 1], 0]], "state": [["best", ["/", ["-", 0, "sign"], 0]], ["bad", 0]], "observe": [["is_better", [">", ["*", "sign", ["-", "value", "best"]], "min_delta"]], ["best", ["if", "is_better", "value", "best"]], ["bad", ["if", "is_better", 0, ["+", "bad", 1]]]]};

/** @internal */
export const FIND_RATE: Settings = {
  steps: { kind: values.AN_INTEGER_AT_LEAST_10_AND_AT_MOST_100000, default: 100 },
  least: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1e-07 },
  most: { kind: values.A_NUMBER_GREATER_THAN_0, default: 10.0 },
  batchSize: { kind: values.AN_INTEGER_AT_LEAST_1, isOptional: true, default: null },
  batched: { kind: values.TRUE_OR_FALSE, isOptional: true, default: null },
  seed: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991, default: 0 },
};

/** @internal */
export const CHECKPOINT: Settings = {
  every: { kind: values.AN_INTEGER_AT_LEAST_1, isOptional: true, default: null },
};

/** @internal */
export const METRICS: Readonly<Record<MetricType, Settings>> = {
  accuracy: {
    ignoreIndex: { kind: values.AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647, isOptional: true, default: null },
  },
  topK: {
    k: { kind: values.AN_INTEGER_AT_LEAST_1_AND_AT_MOST_2147483647, default: 5 },
    ignoreIndex: { kind: values.AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647, isOptional: true, default: null },
  },
  f1: {
    average: { kind: values.ONE_OF_MACRO_MICRO_WEIGHTED_OR_NONE, default: "macro" },
    ignoreIndex: { kind: values.AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647, isOptional: true, default: null },
  },
  precision: {
    average: { kind: values.ONE_OF_MACRO_MICRO_WEIGHTED_OR_NONE, default: "macro" },
    ignoreIndex: { kind: values.AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647, isOptional: true, default: null },
  },
  recall: {
    average: { kind: values.ONE_OF_MACRO_MICRO_WEIGHTED_OR_NONE, default: "macro" },
    ignoreIndex: { kind: values.AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647, isOptional: true, default: null },
  },
  confusionMatrix: {
    ignoreIndex: { kind: values.AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647, isOptional: true, default: null },
  },
  mIoU: {
    ignoreIndex: { kind: values.AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647, isOptional: true, default: null },
  },
  mae: {},
  r2: {},
  auc: {
    average: { kind: values.ONE_OF_MACRO_OR_NONE, default: "macro" },
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
