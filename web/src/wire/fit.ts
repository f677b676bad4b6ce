/** What crosses between the page and its worker for a fit: data once, then a call an epoch, and words on a port meanwhile. */

import type { Feed, NamedTensor } from "./values.js";

/** What becomes of the rows that do not fill a batch: a smaller one, nothing, or a batch filled up from the start. */
export type Remainder = "keep" | "drop" | "pad";

/** A number, a name, or an operation with its operands: how a value follows from sums (trainweb/metrics.py). */
export type Formula = number | string | readonly Formula[];

/** A metric. */
export interface WireMetric {
  readonly type: string;
  /** In the order in which Python declares them. */
  readonly settings: readonly unknown[];
  /** Of one that goes by the loss alone; null: its plan has it. */
  readonly formula: Formula | null;
}

/** What is evaluated: outputs and inputs of the eval model by name. */
export interface WireEvaluation {
  readonly loss: string;
  readonly metrics: readonly WireMetric[];
  /** What metrics compare; null: they go by the loss alone. */
  readonly predictions: string | null;
  readonly targets: string | null;
}

/** Where checkpoints are kept: which storage of the browser, and a folder in it. */
export interface CheckpointFolder {
  readonly folder: string;
  readonly backend: "opfs" | "indexedDB";
}

/** The checkpoint of a fit. */
export interface FitCheckpoint {
  readonly where: CheckpointFolder;
  readonly name: string;
  /** Optimizer steps between two of them within an epoch; null: there are none within. */
  readonly every: number | null;
  /** As JSON, what must be as it was for the fit to go on. */
  readonly options: string;
  /** The metric that early stopping goes by. */
  readonly watched: string;
}

/** How far a fit is; `Position` of trainweb/fit/resume.py. */
export interface FitPosition {
  /** That is under way, from 0. */
  readonly epoch: number;
  /** Batches of it that are done. */
  readonly step: number;
  readonly lossSum: number;
  /** What the mean of the losses is divided by. */
  readonly rows: number;
  readonly optimizerSteps: number;
}

/** What a fit goes on from. */
export interface Resumed {
  readonly position: FitPosition;
  /** The epochs that are done, as JSON. */
  readonly epochs: string;
  readonly losses: Float32Array;
  /** Parameters of the best epoch. */
  readonly best: Uint8Array | null;
}

/** An epoch that is done, for the checkpoint. */
export interface EpochRecord {
  /** All epochs so far, as JSON. */
  readonly epochs: string;
  /** Parameters of the best epoch, if that is another than before. */
  readonly best: Uint8Array | null;
}

/** What gradients are clipped to in each optimizer step: the magnitude of each, then their joint norm. */
export interface WireClip {
  readonly value: number | null;
  readonly norm: number | null;
}

/** A fit as the worker knows it. */
export interface FitSpec {
  /** The first output of the training model. */
  readonly loss: string;
  readonly accumulate: number;
  readonly clip: WireClip | null;
  /** Whether averages of the parameters are evaluated in their place. */
  readonly ema: boolean;
  /** mu of FedProx; 0: there is no such term. */
  readonly proximal: number;
  /** Rows of a batch, for data that lies in the worker. */
  readonly batchSize: number;
  readonly remainder: Remainder;
  /** Tensors whose first axis counts rows; null: batches come with the calls. */
  readonly train: readonly NamedTensor[] | null;
  readonly validation: readonly NamedTensor[] | null;
  readonly evaluation: WireEvaluation | null;
  readonly checkpoint: FitCheckpoint | null;
  readonly onNaN: OnNaN | null;
  /** The last order, which the worker sees between any two steps; null: there is no shared memory, and it listens at times. */
  readonly order: Int32Array<SharedArrayBuffer> | null;
  /** Whether the progress is to be told from the start. */
  readonly tells: boolean;
}

/** What follows NaN or infinity. */
export type OnNaN = "stop" | "skip" | "restore";

/** A batch with its number of rows. */
export interface WireBatch {
  readonly feeds: readonly Feed[];
  readonly rows: number;
  /** The number of its first row in the data. */
  readonly first: number;
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

/** What to train on next: an epoch of the rows in the worker, or batches. */
export interface TrainTask {
  readonly epoch: number;
  /** Seed of the order of rows; null: they stay in theirs. */
  readonly seed: number | null;
  /** Null: the rows in the worker. */
  readonly batches: readonly WireBatch[] | null;
  /** Learning rates of the optimizer steps; null: it stays what it is. */
  readonly rates: Float64Array | null;
  /** The optimizer step of the fit that the first of them is of. */
  readonly from: number;
  /** Whether the epoch ends, and with it the accumulation. */
  readonly isLast: boolean;
  /** Whether the fit ends here: what was said on its port may come later than this. */
  readonly isStopped: boolean;
}

/** What was trained. */
export interface TrainAnswer {
  /** Of each batch; NaN of those that were undone. */
  readonly losses: Float32Array;
  /** Of the epoch so far. */
  readonly loss: number;
  /** Batches of the epoch so far that were not undone. */
  readonly batches: number;
  readonly optimizerSteps: number;
  readonly learningRate: number;
  /** Whether NaN or infinity has ended the fit. */
  readonly isNaN: boolean;
}

/** A number, or rows of numbers: a confusion matrix has a row for each true class. */
export type MetricValue = number | readonly (readonly number[])[];

/** The loss and metrics, by name. */
export type EvalValues = Readonly<Record<string, MetricValue>>;

/** What the page says on the port of a fit, and, as its place here, in shared memory. */
export const FIT_ORDERS = ["resume", "pause", "stop", "abort"] as const;
/** One of them. */
export type FitOrder = (typeof FIT_ORDERS)[number];

/** What the page says on it when somebody begins to listen to the progress. */
export const FIT_TELL = "tell";

/** What the worker says on it: batches of the epoch that are done, and their mean loss. */
export interface FitProgress {
  readonly epoch: number;
  readonly step: number;
  readonly loss: number;
}
