/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Tensor } from "onnxruntime-common";

import type { Of, Settings } from "./kinds.js";
import * as values from "./values.js";

/** The losses. */
export type LossType =
  | "MSELoss"
  | "CrossEntropyLoss"
  | "BCEWithLogitsLoss"
  | "L1Loss"
  | "HuberLoss"
  | "SmoothL1Loss"
  | "KLDivLoss"
  | "FocalLoss"
  | "CosineEmbeddingLoss"
  | "ContrastiveLoss"
  | "TripletMarginLoss"
  | "CTCLoss"
  | "DPOLoss"
  | "OutputGradient";

/** Squared error: the mean, the sum or each ("none"). */
export interface MSELossFields {
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** Cross entropy of scores (logits) against class indices or probabilities. */
export interface CrossEntropyLossFields {
  /** Factor of each class. */
  readonly weight?: readonly number[] | Float32Array | Tensor | null;
  /** Another name of `weight`. */
  readonly weights?: readonly number[] | Float32Array | Tensor | null;
  /** "mean" divides by the weights of the rows that count; for probabilities, by the number of rows. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Label of rows that the loss ignores. */
  readonly ignoreIndex?: number | null;
  /** Share of the target that is spread equally over all classes. Default 0.0. */
  readonly labelSmoothing?: number;
  /** Axis of the scores that holds the classes. The last by default, as for (N, C) and (N, S, V); use 1 for (N, C, H, W). Default -1. */
  readonly classAxis?: number;
  /** The labels are float32 probabilities of the classes in the shape of the scores, such as those of mixup. Default false. */
  readonly probabilities?: boolean;
}

/** Binary cross entropy of logits x against targets t in [0, 1]. */
export interface BCEWithLogitsLossFields {
  /** Factor of each element's loss; broadcasts. */
  readonly weight?: readonly number[] | Float32Array | Tensor | null;
  /** Another name of `weight`. */
  readonly weights?: readonly number[] | Float32Array | Tensor | null;
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Factor of the positive targets; broadcasts. */
  readonly posWeight?: readonly number[] | Float32Array | Tensor | null;
  /** Another name of `posWeight`. */
  readonly positiveWeights?: readonly number[] | Float32Array | Tensor | null;
}

/** Absolute error: the mean, the sum or each ("none"). */
export interface L1LossFields {
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** d^2 / 2 where |d| is at most delta, else delta (|d| - delta / 2), d being the error. */
export interface HuberLossFields {
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Error at which the loss becomes linear. Default 1.0. */
  readonly delta?: number;
}

/** d^2 / (2 beta) where |d| is at most beta, else |d| - beta / 2, d being the error. */
export interface SmoothL1LossFields {
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Error at which the loss becomes linear. Default 1.0. */
  readonly beta?: number;
}

/** Kullback-Leibler divergence t (log t - x) of log-probabilities x from target probabilities t. */
export interface KLDivLossFields {
  /** How the elements are combined; "batchmean", the sum divided by the batch, is the divergence. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none" | "batchmean";
  /** True if the target holds logarithms of probabilities, too. Default false. */
  readonly logTarget?: boolean;
}

/** (1 - p)^gamma times the cross entropy -log p of scores against class indices, https://arxiv.org/abs/1708.02002. */
export interface FocalLossFields {
  /** Exponent that reduces the weight of rows that are already classified well. Default 2.0. */
  readonly gamma?: number;
  /** Factor of each class (alpha in the paper). */
  readonly weight?: readonly number[] | Float32Array | Tensor | null;
  /** Another name of `weight`. */
  readonly weights?: readonly number[] | Float32Array | Tensor | null;
  /** How the rows are combined; "mean" divides by the number of rows that count. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Axis of the scores that holds the classes. Default -1. */
  readonly classAxis?: number;
  /** Label of rows that the loss ignores. */
  readonly ignoreIndex?: number | null;
}

/** 1 - cos of two vectors whose label is 1, max(0, cos - margin) of those whose label is -1. */
export interface CosineEmbeddingLossFields {
  /** Cosine above which vectors that should differ have a loss. Default 0.0. */
  readonly margin?: number;
  /** How the samples are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** d^2 of two vectors whose label is 1, max(0, margin - d)^2 of those whose label is 0, d being their distance. */
export interface ContrastiveLossFields {
  /** Distance above which vectors that should differ have no loss. Default 1.0. */
  readonly margin?: number;
  /** How the samples are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** max(0, d(anchor, positive) - d(anchor, negative) + margin) of three vectors for each sample. */
export interface TripletMarginLossFields {
  /** How much farther than the positive the negative vector must be. Default 1.0. */
  readonly margin?: number;
  /** How the samples are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** Connectionist temporal classification of scores or log-probabilities, as torch.nn.CTCLoss: no alignment is given. */
export interface CTCLossFields {
  /** Class that means no symbol. Default 0. */
  readonly blank?: number;
  /** "mean" first divides the loss of each item by the length of its target. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** True gives items whose target does not fit into their steps a loss of 0 instead of infinity. Default false. */
  readonly zeroInfinity?: boolean;
  /** True if the scores are (N, T, C) instead of (T, N, C). Default false. */
  readonly batchFirst?: boolean;
}

/** Direct preference optimization of scores (B, S, V) of tokens: chosen and rejected texts alternate. */
export interface DPOLossFields {
  /** Larger values keep the model closer to the reference. Default 0.1. */
  readonly beta?: number;
  /** Share of pairs whose labels are wrong, below 0.5. Default 0.0. */
  readonly labelSmoothing?: number;
}

/** The sum of an output times its gradient, which is fed: a step for any loss that the caller computes. */
export type OutputGradientFields = Readonly<Record<never, never>>;

/** A loss with its settings. */
export type LossSettings =
  | Of<"MSELoss", MSELossFields>
  | Of<"CrossEntropyLoss", CrossEntropyLossFields>
  | Of<"BCEWithLogitsLoss", BCEWithLogitsLossFields>
  | Of<"L1Loss", L1LossFields>
  | Of<"HuberLoss", HuberLossFields>
  | Of<"SmoothL1Loss", SmoothL1LossFields>
  | Of<"KLDivLoss", KLDivLossFields>
  | Of<"FocalLoss", FocalLossFields>
  | Of<"CosineEmbeddingLoss", CosineEmbeddingLossFields>
  | Of<"ContrastiveLoss", ContrastiveLossFields>
  | Of<"TripletMarginLoss", TripletMarginLossFields>
  | Of<"CTCLoss", CTCLossFields>
  | Of<"DPOLoss", DPOLossFields>
  | Of<"OutputGradient", OutputGradientFields>;

/** @internal */
export const LOSSES: Readonly<Record<LossType, Settings>> = {
  MSELoss: {
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
  },
  CrossEntropyLoss: {
    weight: { kind: values.AN_ARRAY_OF_FINITE_NUMBERS, isOptional: true, default: null, otherName: "weights" },
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
    ignoreIndex: { kind: values.AN_INTEGER, isOptional: true, default: null },
    labelSmoothing: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
    classAxis: { kind: values.AN_INTEGER, default: -1 },
    probabilities: { kind: values.TRUE_OR_FALSE, default: false },
  },
  BCEWithLogitsLoss: {
    weight: { kind: values.AN_ARRAY_OF_FINITE_NUMBERS, isOptional: true, default: null, otherName: "weights" },
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
    posWeight: { kind: values.AN_ARRAY_OF_FINITE_NUMBERS, isOptional: true, default: null, otherName: "positiveWeights" },
  },
  L1Loss: {
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
  },
  HuberLoss: {
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
    delta: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1.0 },
  },
  SmoothL1Loss: {
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
    beta: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1.0 },
  },
  KLDivLoss: {
    reduction: { kind: values.ONE_OF_MEAN_SUM_NONE_OR_BATCHMEAN, default: "mean" },
    logTarget: { kind: values.TRUE_OR_FALSE, default: false },
  },
  FocalLoss: {
    gamma: { kind: values.A_NUMBER_AT_LEAST_0, default: 2.0 },
    weight: { kind: values.AN_ARRAY_OF_FINITE_NUMBERS, isOptional: true, default: null, otherName: "weights" },
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
    classAxis: { kind: values.AN_INTEGER, default: -1 },
    ignoreIndex: { kind: values.AN_INTEGER, isOptional: true, default: null },
  },
  CosineEmbeddingLoss: {
    margin: { kind: values.A_NUMBER_AT_LEAST_MINUS_1_AND_AT_MOST_1, default: 0.0 },
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
  },
  ContrastiveLoss: {
    margin: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1.0 },
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
  },
  TripletMarginLoss: {
    margin: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1.0 },
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
  },
  CTCLoss: {
    blank: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    reduction: { kind: values.ONE_OF_MEAN_SUM_OR_NONE, default: "mean" },
    zeroInfinity: { kind: values.TRUE_OR_FALSE, default: false },
    batchFirst: { kind: values.TRUE_OR_FALSE, default: false },
  },
  DPOLoss: {
    beta: { kind: values.A_NUMBER_GREATER_THAN_0, default: 0.1 },
    labelSmoothing: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_0_POINT_5, default: 0.0 },
  },
  OutputGradient: {},
};
