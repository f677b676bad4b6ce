/** Messages between the page and its worker for a fit: data once, a call per epoch, and short messages on a port. */

import type { Formula, Rule } from "./formulas.js";
import type { EpochRecord, EvalValues } from "./records.js";
import type { Feed, NamedTensor } from "./values.js";

export type { EpochRecord, EvalValues, MetricValue } from "./records.js";

/** Treatment of the rows that do not fill a batch: a smaller batch, none, or a batch filled up from the start. */
export type Remainder = "keep" | "drop" | "pad";

export interface WireMetric {
  /** The name of its value. */
  readonly key: string;
  readonly type: string;
  /** In the order in which Python declares them. */
  readonly settings: readonly unknown[];
  /** Formula of a metric that follows from the loss; null: its plan has it. */
  readonly formula: Formula | null;
  /** The output that it compares with the input `targets`, or a term of the loss; "" for a formula of the loss. */
  readonly predictions: string;
  readonly targets: string;
  /** The units of errors: deviations of standardized targets. */
  readonly scale: readonly number[];
}

/** Deviation and mean of each value in a row of a standardized input. */
export interface Unit {
  readonly std: readonly number[];
  readonly mean: readonly number[];
}
/** By the names of inputs. */
export type Units = ReadonlyMap<string, Unit>;

/** Outputs and inputs of the eval model that an evaluation uses, by name. */
export interface WireEvaluation {
  readonly loss: string;
  readonly metrics: readonly WireMetric[];
  /** Predictions and targets of which the page wants all rows; null: none. */
  readonly collects: readonly [predictions: string, targets: string] | null;
  /** The units of what it collects. */
  readonly unit: Unit | undefined;
}

/** The place of checkpoints: a storage of the browser or the disk, and a folder in it. */
export interface CheckpointFolder {
  readonly folder: string;
  readonly backend: "opfs" | "indexedDB" | "disk";
}

export interface FitCheckpoint {
  readonly where: CheckpointFolder;
  readonly name: string;
  /** Optimizer steps between two of them within an epoch; null: there are none within. */
  readonly every: number | null;
  /** Options that must be unchanged for the fit to go on, as JSON. */
  readonly options: string;
}

export interface WireEarlyStopping {
  /** The value that it goes by. */
  readonly metric: string;
  readonly restoresBest: boolean;
  /** Of the "value" of each epoch; its value is not 0 when the fit is to end. */
  readonly rule: Rule;
  readonly settings: Readonly<Record<string, number>>;
}

/** The position of a fit; `Position` of trainweb/fit/resume.py. */
export interface FitPosition {
  /** That is under way, from 0. */
  readonly epoch: number;
  /** Batches of it that are done. */
  readonly step: number;
  readonly lossSum: number;
  /** Divisor of the mean loss. */
  readonly rows: number;
  readonly optimizerSteps: number;
  /** Sums of the terms of the loss, as `lossSum`. */
  readonly terms: readonly number[];
}

/** The state that a fit begins with: the state of its checkpoint, if it has one. */
export interface FitStart {
  readonly optimizerSteps: number;
  readonly epochs: readonly EpochRecord[];
  readonly bestEpoch: number | null;
  /** Of all batches. */
  readonly losses: Float32Array;
}

/** Limits that gradients are clipped to in each optimizer step: the magnitude of each, then their joint norm. */
export interface WireClip {
  readonly value: number | null;
  readonly norm: number | null;
}

/** A fit as the worker knows it. */
export interface FitSpec {
  readonly epochs: number;
  /** Batches of an epoch, of which a stream may have more or fewer; null: an epoch is one iteration over the stream. */
  readonly stepsPerEpoch: number | null;
  /** The first output of the training model. */
  readonly loss: string;
  readonly accumulate: number;
  /** True: gradients of batches are added; false: they become the gradients of one batch. */
  readonly sumsGradients: boolean;
  readonly clip: WireClip | null;
  /** True: evaluate the averages of the parameters in their place. */
  readonly ema: boolean;
  /** mu of FedProx; 0: no proximal term. */
  readonly proximal: number;
  /** Rows of a batch, for data that lies in the worker. */
  readonly batchSize: number;
  readonly remainder: Remainder;
  /** Seed of the order of rows; null: they stay in theirs. */
  readonly seed: number | null;
  /** True: the page says the learning rates. */
  readonly hasSchedule: boolean;
  /** Tensors whose first axis counts rows; null: the page has a stream of batches. */
  readonly train: readonly NamedTensor[] | null;
  readonly validation: readonly NamedTensor[] | null;
  readonly hasValidation: boolean;
  readonly evaluatesTraining: boolean;
  readonly evaluation: WireEvaluation | null;
  readonly early: WireEarlyStopping | null;
  readonly checkpoint: FitCheckpoint | null;
  readonly onNaN: OnNaN | null;
  /**
   * The last order, which the worker reads between any two steps; null: there is no shared memory, and the worker reads
   * messages from time to time.
   */
  readonly order: Int32Array<SharedArrayBuffer> | null;
  /** True: report the progress from the start. */
  readonly tells: boolean;
}

/** The reaction to NaN or infinity. */
export type OnNaN = "stop" | "skip" | "restore";

/** A batch with its number of rows. */
export interface WireBatch {
  readonly feeds: readonly Feed[];
  readonly rows: number;
  /** The number of its first row in the data. */
  readonly first: number;
  /** The numbers of all its rows, if they do not follow the first. */
  readonly numbers?: readonly number[] | null;
}

/** Batches to train on, each for itself, or, where all are alike, one tensor an input, whose first axis counts batches. */
export interface StepsTask {
  readonly batches: readonly WireBatch[];
  readonly stacked: readonly NamedTensor[] | null;
}

/** The losses of steps, and the buffers of stacked batches, for the page to use again. */
export interface StepsAnswer {
  readonly losses: Float32Array;
  readonly buffers: readonly ArrayBuffer[];
}

/** A finished evaluation. */
export interface Evaluated {
  readonly values: EvalValues;
  /** Predictions and targets of each batch, if the evaluation collects them. */
  readonly rows: readonly CollectedRows[];
}

/** Predictions and targets of a batch. */
export type CollectedRows = readonly [predictions: NamedTensor, targets: NamedTensor];

/** Orders of the page on the port of a fit. Shared memory has the index of an order. */
export const FIT_ORDERS = ["resume", "pause", "stop", "abort"] as const;
/** One of them. */
export type FitOrder = (typeof FIT_ORDERS)[number];

/** The page sends this on the port when a listener for the progress is added. */
export const FIT_TELL = "tell";

/** Reports of the worker on the port: the number of finished batches in the epoch, and their mean loss. */
export interface FitProgress {
  readonly epoch: number;
  readonly step: number;
  readonly loss: number;
}

/** Batches that are done since the last such message. */
export interface FitLosses {
  /** NaN for a batch that was undone. */
  readonly losses: Float32Array;
  readonly optimizerSteps: number;
  /** True if NaN or infinity has ended the fit. */
  readonly isNaN: boolean;
}

/** The end of a fit that did not fail. */
export type FitEnd = "done" | "stopped" | "early" | "nan";

/** Questions of the worker to the page, with their answers. The answer is null where the fit ends. */
export interface FitAsks {
  /** Learning rates of optimizer steps. */
  readonly rates: { readonly about: RateRange; readonly answer: Float64Array };
  /** The next batch of a stream, the first after `start` others, and learning rates; null: there are no more. */
  readonly batch: { readonly about: StreamPlace; readonly answer: StreamBatch };
  /** Values of an evaluation, the page's functions among them. */
  readonly values: { readonly about: Evaluated; readonly answer: EvalValues };
  /** The end of callbacks for an epoch. */
  readonly epoch: { readonly about: Pick<FitStart, "bestEpoch"> & { readonly record: EpochRecord }; readonly answer: null };
  readonly end: { readonly about: FitEnd; readonly answer: null };
}

/** Optimizer steps. */
export interface RateRange {
  readonly from: number;
  readonly count: number;
}

export interface StreamPlace {
  readonly of: "train" | "validation";
  readonly start: number;
  readonly steps: RateRange | null;
}

export interface StreamBatch {
  readonly batch: WireBatch;
  /** Null: the rate stays as it is. */
  readonly rates: Float64Array | null;
}

/** A question, and an answer with the same number. */
export interface FitAsk<Name extends keyof FitAsks = keyof FitAsks> {
  readonly id: number;
  readonly ask: Name;
  readonly about: FitAsks[Name]["about"];
}
export interface FitAnswer {
  readonly id: number;
  readonly answer: unknown;
}
