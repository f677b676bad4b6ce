/** Messages between the page and its worker for a fit: data once, a call per epoch, and short messages on a port. */

import type { Feed, NamedTensor } from "./values.js";

/** Treatment of the rows that do not fill a batch: a smaller batch, none, or a batch filled up from the start. */
export type Remainder = "keep" | "drop" | "pad";

/** A number, a name, or an operation with its operands: how a value follows from sums (trainweb/metrics.py). */
export type Formula = number | string | readonly Formula[];

/** A metric. */
export interface WireMetric {
  readonly type: string;
  /** In the order in which Python declares them. */
  readonly settings: readonly unknown[];
  /** Formula of a metric that follows from the loss; null: its plan has it. */
  readonly formula: Formula | null;
}

/** Outputs and inputs of the eval model that an evaluation uses, by name. */
export interface WireEvaluation {
  readonly loss: string;
  readonly metrics: readonly WireMetric[];
  /** The output that metrics compare; null: they follow from the loss. */
  readonly predictions: string | null;
  readonly targets: string | null;
}

/** The place of checkpoints: a storage of the browser, and a folder in it. */
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
  /** Options that must be unchanged for the fit to go on, as JSON. */
  readonly options: string;
  /** The metric that early stopping goes by. */
  readonly watched: string;
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
}

/** The state that a fit resumes from. */
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

/** Limits that gradients are clipped to in each optimizer step: the magnitude of each, then their joint norm. */
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
  /** True: evaluate the averages of the parameters in their place. */
  readonly ema: boolean;
  /** mu of FedProx; 0: no proximal term. */
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
  /** Learning rates of the optimizer steps; null: the rate stays as it is. */
  readonly rates: Float64Array | null;
  /** The optimizer step of the fit that the first rate belongs to. */
  readonly from: number;
  /** True: the epoch ends, and with it the accumulation. */
  readonly isLast: boolean;
  /** True: the fit ends here. Messages on its port may arrive later than this. */
  readonly isStopped: boolean;
}

/** What was trained. */
export interface TrainAnswer {
  /** One loss per batch; NaN for a batch that was undone. */
  readonly losses: Float32Array;
  /** Of the epoch so far. */
  readonly loss: number;
  /** Batches of the epoch so far that were not undone. */
  readonly batches: number;
  readonly optimizerSteps: number;
  readonly learningRate: number;
  /** True if NaN or infinity has ended the fit. */
  readonly isNaN: boolean;
}

/** A number, a number for each class, or rows of numbers: a confusion matrix has a row for each true class. */
export type MetricValue = number | readonly number[] | readonly (readonly number[])[];

/** The loss and metrics, by name. */
export type EvalValues = Readonly<Record<string, MetricValue>>;

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
