/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Tensor } from "onnxruntime-common";

export type LossType = "MSELoss" | "CrossEntropyLoss" | "BCEWithLogitsLoss" | "L1Loss" | "HuberLoss" | "SmoothL1Loss" | "KLDivLoss" | "FocalLoss" | "CosineEmbeddingLoss" | "ContrastiveLoss" | "TripletMarginLoss";
export type OptimizerType = "AdamW" | "SGD" | "Lion" | "Adam" | "RMSProp" | "Adagrad" | "Adadelta" | "Lamb" | "Adafactor" | "Muon";
export type ScheduleType = "Constant" | "Linear" | "Cosine" | "Step" | "Exponential" | "Polynomial" | "OneCycle" | "Plateau";

/** Squared error: the mean, the sum or each ("none"). */
export interface MSELossFields {
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** Cross entropy of scores (logits) against class indices. */
export interface CrossEntropyLossFields {
  /** Factor of each class. */
  readonly weights?: readonly number[] | Float32Array | Tensor | null;
  /** "mean" divides by the weights of the rows that count. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Rows with this label count nothing. */
  readonly ignoreIndex?: number | null;
  /** Share of the target that goes to all classes alike. Default 0.0. */
  readonly labelSmoothing?: number;
  /** Axis of the scores that holds the classes. The last by default, as for (N, C) and (N, S, V); use 1 for (N, C, H, W). Default -1. */
  readonly classAxis?: number;
}

/** Binary cross entropy of logits x against targets t in [0, 1]. */
export interface BCEWithLogitsLossFields {
  /** Factor of each element's loss; broadcasts. */
  readonly weights?: readonly number[] | Float32Array | Tensor | null;
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Factor of the positive targets; broadcasts. */
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
  /** Where it becomes linear. Default 1.0. */
  readonly delta?: number;
}

/** d^2 / (2 beta) where |d| is at most beta, else |d| - beta / 2, d being the error. */
export interface SmoothL1LossFields {
  /** How the elements are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Where it becomes linear. Default 1.0. */
  readonly beta?: number;
}

/** Kullback-Leibler divergence t (log t - x) of log-probabilities x from target probabilities t. */
export interface KLDivLossFields {
  /** How the elements are combined; "batchmean", the sum divided by the batch, is the divergence. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none" | "batchmean";
  /** Whether the target holds logarithms of probabilities, too. Default false. */
  readonly logTarget?: boolean;
}

/** (1 - p)^gamma times the cross entropy -log p of scores against class indices, https://arxiv.org/abs/1708.02002. */
export interface FocalLossFields {
  /** How much less rows count that are classified well already. Default 2.0. */
  readonly gamma?: number;
  /** Factor of each class (alpha in the paper). */
  readonly weights?: readonly number[] | Float32Array | Tensor | null;
  /** How the rows are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
  /** Axis of the scores that holds the classes. Default -1. */
  readonly classAxis?: number;
}

/** 1 - cos of two vectors whose label is 1, max(0, cos - margin) of those whose label is -1. */
export interface CosineEmbeddingLossFields {
  /** From which cosine on vectors that differ cost something. Default 0.0. */
  readonly margin?: number;
  /** How the samples are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** d^2 of two vectors whose label is 1, max(0, margin - d)^2 of those whose label is 0, d being their distance. */
export interface ContrastiveLossFields {
  /** From which distance on vectors that differ cost nothing. Default 1.0. */
  readonly margin?: number;
  /** How the samples are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** max(0, d(anchor, positive) - d(anchor, negative) + margin) of three vectors for each sample. */
export interface TripletMarginLossFields {
  /** How much further the negative vector must be. Default 1.0. */
  readonly margin?: number;
  /** How the samples are combined. Default "mean". */
  readonly reduction?: "mean" | "sum" | "none";
}

/** AdamW as ONNX Runtime builds it. */
export interface AdamWFields {
  /** Whether the moments are corrected for starting from zero. Default true. */
  readonly biasCorrection?: boolean;
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the second moment. Default 1e-06. */
  readonly epsilon?: number;
  /** Decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** 1 is the form of Hugging Face's transformers, which ONNX Runtime builds; 0 that of torch.optim.AdamW, which puts eps after the bias correction and decays before the update. Default 1. */
  readonly adamMode?: 0 | 1;
}

/** w -= learning_rate * gradient; with momentum or weight decay as torch.optim.SGD, which ONNX Runtime lacks. */
export interface SGDFields {
  /** Share of the velocity that is kept from step to step, in [0, 1). Default 0.0. */
  readonly momentum?: number;
  /** Share of the gradient that the velocity is not given. Default 0.0. */
  readonly dampening?: number;
  /** Times the parameter, added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** Look ahead: the gradient plus momentum times the velocity. Default false. */
  readonly nesterov?: boolean;
}

/** Lion: the sign of an interpolated gradient, https://arxiv.org/abs/2302.06675. ONNX Runtime does not have it. */
export interface LionFields {
  /** Share of the moment in the direction of the update, and decay of the moment, each in [0, 1). Default [0.9, 0.99]. */
  readonly betas?: readonly [number, number];
  /** Decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Adam as torch.optim.Adam: weight decay is added to the gradient. ONNX Runtime does not have it. */
export interface AdamFields {
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the corrected second moment. Default 1e-08. */
  readonly epsilon?: number;
  /** Times the parameter, added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** RMSProp as torch.optim.RMSprop. ONNX Runtime does not have it. */
export interface RMSPropFields {
  /** Decay of the average of squared gradients, in [0, 1). Default 0.99. */
  readonly alpha?: number;
  /** Added to the root of that average. Default 1e-08. */
  readonly epsilon?: number;
  /** Times the parameter, added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** Share of the velocity that is kept from step to step, in [0, 1); 0 keeps none. Default 0.0. */
  readonly momentum?: number;
  /** Divide by the deviation of the gradients instead, for which their mean is kept, too. Default false. */
  readonly centered?: boolean;
}

/** Adagrad as torch.optim.Adagrad. ONNX Runtime does not have it. */
export interface AdagradFields {
  /** Steps so far times this, plus 1, divide the learning rate. Default 0.0. */
  readonly lrDecay?: number;
  /** Times the parameter, added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** What the sum of squared gradients starts from. Default 0.0. */
  readonly initialAccumulatorValue?: number;
  /** Added to the root of that sum. Default 1e-10. */
  readonly epsilon?: number;
}

/** Adadelta as torch.optim.Adadelta; its usual learning rate is 1. ONNX Runtime does not have it. */
export interface AdadeltaFields {
  /** Decay of the averages of squared gradients and squared updates, in [0, 1). Default 0.9. */
  readonly rho?: number;
  /** Added to both averages under the root. Default 1e-06. */
  readonly epsilon?: number;
  /** Times the parameter, added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** LAMB: Adam's step, scaled to the length of each parameter, https://arxiv.org/abs/1904.00962. */
export interface LambFields {
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the corrected second moment. Default 1e-06. */
  readonly epsilon?: number;
  /** Times the parameter, added to the step before it is scaled. Default 0.0. */
  readonly weightDecay?: number;
}

/** Adafactor as torch.optim.Adafactor: of matrices it keeps a row and a column. ONNX Runtime does not have it. */
export interface AdafactorFields {
  /** The averages of squared gradients take the step to this power of what is new. Default -0.8. */
  readonly beta2Decay?: number;
  /** Least root of the estimated squares; its own square must be a float32. Default 1.1920928955078125e-07. */
  readonly epsilon?: number;
  /** Least root mean square that a parameter counts with: its steps are in proportion. Default 0.001. */
  readonly scaleEps?: number;
  /** Root mean square that an update has at most. Default 1.0. */
  readonly clipThreshold?: number;
  /** Decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Muon as torch.optim.Muon, in float32, and AdamW for parameters that are no matrices. ONNX Runtime lacks it. */
export interface MuonFields {
  /** Share of the velocity that is kept from step to step, in [0, 1). Default 0.95. */
  readonly momentum?: number;
  /** Look ahead. Default true. */
  readonly nesterov?: boolean;
  /** Decoupled from the gradient. Default 0.1. */
  readonly weightDecay?: number;
  /** Iterations that bring the velocity close to an orthogonal matrix. Default 5. */
  readonly steps?: number;
  /** Steps of matrices are as long as those of AdamW, so that one learning rate fits both; else as long as in Muon's first form, with a learning rate of about 0.02. Default true. */
  readonly matchRms?: boolean;
  /** Of AdamW: decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Of AdamW: added to the root of the corrected second moment. Default 1e-08. */
  readonly epsilon?: number;
}

/** The same rate at every step. */
export interface ConstantFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps over which the rate rises to it. Default 0. */
  readonly warmup?: number;
  /** Where it rises from, in parts of it. Default 0.0. */
  readonly warmupStart?: number;
}

/** A straight line from `start` to `end`, and `end` from then on. */
export interface LinearFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps after the warm-up until the end. */
  readonly total: number;
  /** The first rate after the warm-up, in parts of `learning_rate`. Default 1.0. */
  readonly start?: number;
  /** The last rate, in parts of `learning_rate`. Default 0.0. */
  readonly end?: number;
  /** Steps over which the rate rises to `learning_rate`. Default 0. */
  readonly warmup?: number;
  /** Where it rises from, in parts of it. Default 0.0. */
  readonly warmupStart?: number;
}

/** Half a wave of the cosine down to `end`, and `end` from then on, https://arxiv.org/abs/1608.03983. */
export interface CosineFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps after the warm-up until the end. */
  readonly total: number;
  /** The last rate, in parts of `learning_rate`. Default 0.0. */
  readonly end?: number;
  /** Steps over which the rate rises to `learning_rate`. Default 0. */
  readonly warmup?: number;
  /** Where it rises from, in parts of it. Default 0.0. */
  readonly warmupStart?: number;
}

/** Times `gamma` after every so many steps. */
export interface StepFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps between two changes. */
  readonly every: number;
  /** What the rate is multiplied by. Default 0.1. */
  readonly gamma?: number;
  /** Steps over which the rate rises to `learning_rate`. Default 0. */
  readonly warmup?: number;
  /** Where it rises from, in parts of it. Default 0.0. */
  readonly warmupStart?: number;
}

/** Times `gamma` after every step. */
export interface ExponentialFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** What the rate is multiplied by. */
  readonly gamma: number;
  /** Steps over which the rate rises to `learning_rate`. Default 0. */
  readonly warmup?: number;
  /** Where it rises from, in parts of it. Default 0.0. */
  readonly warmupStart?: number;
}

/** The remaining share of the steps to a power, down to `end`, and `end` from then on. */
export interface PolynomialFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps after the warm-up until the end. */
  readonly total: number;
  /** The exponent. Default 1.0. */
  readonly power?: number;
  /** The last rate, in parts of `learning_rate`. Default 0.0. */
  readonly end?: number;
  /** Steps over which the rate rises to `learning_rate`. Default 0. */
  readonly warmup?: number;
  /** Where it rises from, in parts of it. Default 0.0. */
  readonly warmupStart?: number;
}

/** Up to `learning_rate` along a cosine, and down to nearly nothing, https://arxiv.org/abs/1708.07120. */
export interface OneCycleFields {
  /** The highest rate. */
  readonly learningRate: number;
  /** Steps of the cycle. */
  readonly total: number;
  /** Share of the steps in which the rate rises. Default 0.3. */
  readonly rise?: number;
  /** The first rate, in parts of `learning_rate`. Default 0.04. */
  readonly start?: number;
  /** The last rate, in parts of `learning_rate`. Default 4e-06. */
  readonly end?: number;
}

/** Times `reduction` when a metric has not become better for a while: tell it with `observe`. */
export interface PlateauFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** What the rate is multiplied by. Default 0.1. */
  readonly reduction?: number;
  /** Observations without a better one that are let pass. Default 10. */
  readonly patience?: number;
  /** By what share of the best metric another must be better. Default 0.0001. */
  readonly threshold?: number;
  /** Whether less or more is better. Default "min". */
  readonly mode?: "min" | "max";
  /** Observations after a change that do not count. Default 0. */
  readonly cooldown?: number;
  /** The rate is not lowered further than this, in parts of `learning_rate`. Default 0.0. */
  readonly least?: number;
  /** Steps over which the rate rises to `learning_rate`. Default 0. */
  readonly warmup?: number;
  /** Where it rises from, in parts of it. Default 0.0. */
  readonly warmupStart?: number;
}

/** Parameters that are updated otherwise than most. */
export interface ParameterGroup {
  /** Names, or regular expressions that match whole names. */
  readonly parameters: readonly string[];
  /** Their learning rate, in parts of the session's. Default 1.0. */
  readonly learningRateFactor?: number;
}

interface InGroups<Fields> {
  /** Parameters with settings of their own; the first group that names a parameter has it. */
  readonly groups?: readonly (ParameterGroup & Fields)[];
  /** False: weight decay leaves out parameters of fewer than two axes, biases and scales of norms. Default true. */
  readonly decayBiasesAndNorms?: boolean;
}

type Of<Name extends string, Fields> = { readonly type: Name } & Fields;

/** An optimizer with its settings. */
export type OptimizerSettings = Of<"AdamW", AdamWFields & InGroups<AdamWFields>> | Of<"SGD", SGDFields & InGroups<SGDFields>> | Of<"Lion", LionFields & InGroups<LionFields>> | Of<"Adam", AdamFields & InGroups<AdamFields>> | Of<"RMSProp", RMSPropFields & InGroups<RMSPropFields>> | Of<"Adagrad", AdagradFields & InGroups<AdagradFields>> | Of<"Adadelta", AdadeltaFields & InGroups<AdadeltaFields>> | Of<"Lamb", LambFields & InGroups<LambFields>> | Of<"Adafactor", AdafactorFields & InGroups<AdafactorFields>> | Of<"Muon", MuonFields & InGroups<MuonFields>>;

/** A schedule with its settings. */
export type ScheduleSettings = Of<"Constant", ConstantFields> | Of<"Linear", LinearFields> | Of<"Cosine", CosineFields> | Of<"Step", StepFields> | Of<"Exponential", ExponentialFields> | Of<"Polynomial", PolynomialFields> | Of<"OneCycle", OneCycleFields> | Of<"Plateau", PlateauFields>;

/** A loss with its settings. */
export type LossSettings = Of<"MSELoss", MSELossFields> | Of<"CrossEntropyLoss", CrossEntropyLossFields> | Of<"BCEWithLogitsLoss", BCEWithLogitsLossFields> | Of<"L1Loss", L1LossFields> | Of<"HuberLoss", HuberLossFields> | Of<"SmoothL1Loss", SmoothL1LossFields> | Of<"KLDivLoss", KLDivLossFields> | Of<"FocalLoss", FocalLossFields> | Of<"CosineEmbeddingLoss", CosineEmbeddingLossFields> | Of<"ContrastiveLoss", ContrastiveLossFields> | Of<"TripletMarginLoss", TripletMarginLossFields>;

/** What a setting may be, in words (`expected`) and by rules. */
export type Kind =
  | {
      readonly kind: "number" | "integer";
      readonly expected: string;
      readonly least?: number;
      readonly above?: number;
      readonly most?: number;
      readonly below?: number;
    }
  | { readonly kind: "flag" | "array"; readonly expected: string }
  | { readonly kind: "names"; readonly expected: string; readonly mayBeEmpty: boolean }
  | { readonly kind: "choice"; readonly expected: string; readonly options: readonly (string | number)[] }
  | { readonly kind: "pair"; readonly expected: string; readonly of: Kind };

/** A setting: its name in Python, whether it may be null, and its default, unless it must be given. */
export interface Setting {
  readonly python: string;
  readonly kind: Kind;
  readonly isOptional: boolean;
  readonly default?: unknown;
}

export type Settings = Readonly<Record<string, Setting>>;

export const LOSSES: Readonly<Record<LossType, Settings>> = {
  MSELoss: {
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
  },
  CrossEntropyLoss: {
    weights: {
      python: "weight",
      kind: {"kind": "array", "expected": "an array of finite numbers"},
      isOptional: true,
      default: null,
    },
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
    ignoreIndex: {
      python: "ignore_index",
      kind: {"kind": "integer", "expected": "an integer"},
      isOptional: true,
      default: null,
    },
    labelSmoothing: {
      python: "label_smoothing",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
    classAxis: {
      python: "class_axis",
      kind: {"kind": "integer", "expected": "an integer"},
      isOptional: false,
      default: -1,
    },
  },
  BCEWithLogitsLoss: {
    weights: {
      python: "weight",
      kind: {"kind": "array", "expected": "an array of finite numbers"},
      isOptional: true,
      default: null,
    },
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
    positiveWeights: {
      python: "pos_weight",
      kind: {"kind": "array", "expected": "an array of finite numbers"},
      isOptional: true,
      default: null,
    },
  },
  L1Loss: {
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
  },
  HuberLoss: {
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
    delta: {
      python: "delta",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
      default: 1.0,
    },
  },
  SmoothL1Loss: {
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
    beta: {
      python: "beta",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
      default: 1.0,
    },
  },
  KLDivLoss: {
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum, none or batchmean", "options": ["mean", "sum", "none", "batchmean"]},
      isOptional: false,
      default: "mean",
    },
    logTarget: {
      python: "log_target",
      kind: {"kind": "flag", "expected": "true or false"},
      isOptional: false,
      default: false,
    },
  },
  FocalLoss: {
    gamma: {
      python: "gamma",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 2.0,
    },
    weights: {
      python: "weight",
      kind: {"kind": "array", "expected": "an array of finite numbers"},
      isOptional: true,
      default: null,
    },
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
    classAxis: {
      python: "class_axis",
      kind: {"kind": "integer", "expected": "an integer"},
      isOptional: false,
      default: -1,
    },
  },
  CosineEmbeddingLoss: {
    margin: {
      python: "margin",
      kind: {"kind": "number", "expected": "a number at least -1 and at most 1", "least": -1, "most": 1},
      isOptional: false,
      default: 0.0,
    },
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
  },
  ContrastiveLoss: {
    margin: {
      python: "margin",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
      default: 1.0,
    },
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
  },
  TripletMarginLoss: {
    margin: {
      python: "margin",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
      default: 1.0,
    },
    reduction: {
      python: "reduction",
      kind: {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]},
      isOptional: false,
      default: "mean",
    },
  },
};

export const OPTIMIZERS: Readonly<Record<OptimizerType, Settings>> = {
  AdamW: {
    biasCorrection: {
      python: "bias_correction",
      kind: {"kind": "flag", "expected": "true or false"},
      isOptional: false,
      default: true,
    },
    betas: {
      python: "betas",
      kind: {"kind": "pair", "expected": "two numbers, each at least 0 and less than 1", "of": {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1}},
      isOptional: false,
      default: [0.9, 0.999],
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1e-06,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    adamMode: {
      python: "adam_mode",
      kind: {"kind": "choice", "expected": "0 or 1", "options": [0, 1]},
      isOptional: false,
      default: 1,
    },
  },
  SGD: {
    momentum: {
      python: "momentum",
      kind: {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1},
      isOptional: false,
      default: 0.0,
    },
    dampening: {
      python: "dampening",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    nesterov: {
      python: "nesterov",
      kind: {"kind": "flag", "expected": "true or false"},
      isOptional: false,
      default: false,
    },
  },
  Lion: {
    betas: {
      python: "betas",
      kind: {"kind": "pair", "expected": "two numbers, each at least 0 and less than 1", "of": {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1}},
      isOptional: false,
      default: [0.9, 0.99],
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
  },
  Adam: {
    betas: {
      python: "betas",
      kind: {"kind": "pair", "expected": "two numbers, each at least 0 and less than 1", "of": {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1}},
      isOptional: false,
      default: [0.9, 0.999],
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1e-08,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
  },
  RMSProp: {
    alpha: {
      python: "alpha",
      kind: {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1},
      isOptional: false,
      default: 0.99,
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1e-08,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    momentum: {
      python: "momentum",
      kind: {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1},
      isOptional: false,
      default: 0.0,
    },
    centered: {
      python: "centered",
      kind: {"kind": "flag", "expected": "true or false"},
      isOptional: false,
      default: false,
    },
  },
  Adagrad: {
    lrDecay: {
      python: "lr_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    initialAccumulatorValue: {
      python: "initial_accumulator_value",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1e-10,
    },
  },
  Adadelta: {
    rho: {
      python: "rho",
      kind: {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1},
      isOptional: false,
      default: 0.9,
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1e-06,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
  },
  Lamb: {
    betas: {
      python: "betas",
      kind: {"kind": "pair", "expected": "two numbers, each at least 0 and less than 1", "of": {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1}},
      isOptional: false,
      default: [0.9, 0.999],
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1e-06,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
  },
  Adafactor: {
    beta2Decay: {
      python: "beta2_decay",
      kind: {"kind": "number", "expected": "a number less than 0", "below": 0},
      isOptional: false,
      default: -0.8,
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 1e-18", "least": 1e-18},
      isOptional: false,
      default: 1.1920928955078125e-07,
    },
    scaleEps: {
      python: "scale_eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.001,
    },
    clipThreshold: {
      python: "clip_threshold",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
      default: 1.0,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
  },
  Muon: {
    momentum: {
      python: "momentum",
      kind: {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1},
      isOptional: false,
      default: 0.95,
    },
    nesterov: {
      python: "nesterov",
      kind: {"kind": "flag", "expected": "true or false"},
      isOptional: false,
      default: true,
    },
    weightDecay: {
      python: "weight_decay",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.1,
    },
    steps: {
      python: "steps",
      kind: {"kind": "integer", "expected": "an integer >= 0 and <= 100", "least": 0, "most": 100},
      isOptional: false,
      default: 5,
    },
    matchRms: {
      python: "match_rms",
      kind: {"kind": "flag", "expected": "true or false"},
      isOptional: false,
      default: true,
    },
    betas: {
      python: "betas",
      kind: {"kind": "pair", "expected": "two numbers, each at least 0 and less than 1", "of": {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1}},
      isOptional: false,
      default: [0.9, 0.999],
    },
    epsilon: {
      python: "eps",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1e-08,
    },
  },
};

export const SCHEDULES: Readonly<Record<ScheduleType, Settings>> = {
  Constant: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    warmup: {
      python: "warmup",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    warmupStart: {
      python: "warmup_start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
  },
  Linear: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    total: {
      python: "total",
      kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
      isOptional: false,
    },
    start: {
      python: "start",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 1.0,
    },
    end: {
      python: "end",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    warmup: {
      python: "warmup",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    warmupStart: {
      python: "warmup_start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
  },
  Cosine: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    total: {
      python: "total",
      kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
      isOptional: false,
    },
    end: {
      python: "end",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    warmup: {
      python: "warmup",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    warmupStart: {
      python: "warmup_start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
  },
  Step: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    every: {
      python: "every",
      kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
      isOptional: false,
    },
    gamma: {
      python: "gamma",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
      default: 0.1,
    },
    warmup: {
      python: "warmup",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    warmupStart: {
      python: "warmup_start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
  },
  Exponential: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    gamma: {
      python: "gamma",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
    },
    warmup: {
      python: "warmup",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    warmupStart: {
      python: "warmup_start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
  },
  Polynomial: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    total: {
      python: "total",
      kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
      isOptional: false,
    },
    power: {
      python: "power",
      kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
      isOptional: false,
      default: 1.0,
    },
    end: {
      python: "end",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
      default: 0.0,
    },
    warmup: {
      python: "warmup",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    warmupStart: {
      python: "warmup_start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
  },
  OneCycle: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    total: {
      python: "total",
      kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
      isOptional: false,
    },
    rise: {
      python: "rise",
      kind: {"kind": "number", "expected": "a number greater than 0 and less than 1", "above": 0, "below": 1},
      isOptional: false,
      default: 0.3,
    },
    start: {
      python: "start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.04,
    },
    end: {
      python: "end",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 4e-06,
    },
  },
  Plateau: {
    learningRate: {
      python: "learning_rate",
      kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
      isOptional: false,
    },
    reduction: {
      python: "reduction",
      kind: {"kind": "number", "expected": "a number greater than 0 and less than 1", "above": 0, "below": 1},
      isOptional: false,
      default: 0.1,
    },
    patience: {
      python: "patience",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 10,
    },
    threshold: {
      python: "threshold",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0001,
    },
    mode: {
      python: "mode",
      kind: {"kind": "choice", "expected": "min or max", "options": ["min", "max"]},
      isOptional: false,
      default: "min",
    },
    cooldown: {
      python: "cooldown",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    least: {
      python: "least",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
    warmup: {
      python: "warmup",
      kind: {"kind": "integer", "expected": "an integer >= 0", "least": 0},
      isOptional: false,
      default: 0,
    },
    warmupStart: {
      python: "warmup_start",
      kind: {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1},
      isOptional: false,
      default: 0.0,
    },
  },
};

export const GROUP: Settings = {
  parameters: {
    python: "parameters",
    kind: {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": false},
    isOptional: false,
  },
  learningRateFactor: {
    python: "learning_rate_factor",
    kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
    isOptional: false,
    default: 1.0,
  },
};

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
