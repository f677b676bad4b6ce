/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Of, Settings } from "./kinds.js";
import * as values from "./values.js";

/** The optimizers. */
export type OptimizerType =
  | "AdamW"
  | "SGD"
  | "Lamb"
  | "Adafactor"
  | "Muon"
  | "Lion"
  | "Adam"
  | "RMSProp"
  | "Adagrad"
  | "Adadelta"
  | "Adamax"
  | "NAdam"
  | "RAdam"
  | "AdaBelief"
  | "Adan"
  | "Lookahead"
  | "ScheduleFreeAdamW";

/** AdamW as ONNX Runtime builds it. */
export interface AdamWFields {
  /** True if the moments are corrected for starting from zero. Default true. */
  readonly biasCorrection?: boolean;
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the second moment. Default 1e-06. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay, decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** 1 is the form of Hugging Face's transformers, which ONNX Runtime builds; 0 that of torch.optim.AdamW, which puts eps after the bias correction and decays before the update. Default 1. */
  readonly adamMode?: 0 | 1;
}

/** w -= learningRate * gradient; momentum and weight decay as in torch.optim.SGD. ONNX Runtime has neither. */
export interface SGDFields {
  /** Share of the velocity that is kept from step to step, in [0, 1). Default 0.0. */
  readonly momentum?: number;
  /** Share of the gradient that is not added to the velocity. Default 0.0. */
  readonly dampening?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** Nesterov's momentum: the step uses the gradient plus momentum times the velocity. Default false. */
  readonly nesterov?: boolean;
}

/** LAMB: Adam's step, scaled to the length of each parameter, https://arxiv.org/abs/1904.00962. */
export interface LambFields {
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the corrected second moment. Default 1e-06. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the step before it is scaled. Default 0.0. */
  readonly weightDecay?: number;
}

/** Adafactor as torch.optim.Adafactor: for a matrix it keeps one row and one column. ONNX Runtime does not have it. */
export interface AdafactorFields {
  /** At step t, the averages of squared gradients take the share t ** beta2Decay from the new gradient. Default -0.8. */
  readonly beta2Decay?: number;
  /** Minimum of the root of the estimated squares. Its square must be a float32. Default 1.1920928955078125e-07. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Minimum root mean square of a parameter; steps are proportional to it. Default 0.001. */
  readonly scaleEps?: number;
  /** Maximum root mean square of an update. Default 1.0. */
  readonly clipThreshold?: number;
  /** Weight decay, decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Muon as torch.optim.Muon, in float32, and AdamW for parameters that are not matrices. */
export interface MuonFields {
  /** Share of the velocity that is kept from step to step, in [0, 1). Default 0.95. */
  readonly momentum?: number;
  /** Nesterov's momentum. Default true. */
  readonly nesterov?: boolean;
  /** Weight decay, decoupled from the gradient. Default 0.1. */
  readonly weightDecay?: number;
  /** Iterations that bring the velocity close to an orthogonal matrix. Default 5. */
  readonly steps?: number;
  /** True scales steps of matrices to the length of AdamW's, so that one learning rate fits both. False keeps the length of the original Muon, for a learning rate of about 0.02. Default true. */
  readonly matchRms?: boolean;
  /** Of AdamW: decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Of AdamW: added to the root of the corrected second moment. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
}

/** Lion: the sign of an interpolated gradient, https://arxiv.org/abs/2302.06675. ONNX Runtime does not have it. */
export interface LionFields {
  /** Share of the moment in the direction of the update, and decay of the moment, each in [0, 1). Default [0.9, 0.99]. */
  readonly betas?: readonly [number, number];
  /** Weight decay, decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Adam as torch.optim.Adam: weight decay is added to the gradient. ONNX Runtime does not have it. */
export interface AdamFields {
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the corrected second moment. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** RMSProp as torch.optim.RMSprop, https://arxiv.org/abs/1308.0850. ONNX Runtime does not have it. */
export interface RMSPropFields {
  /** Decay of the average of squared gradients, in [0, 1). Default 0.99. */
  readonly alpha?: number;
  /** Added to the root of that average. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** Share of the velocity that is kept from step to step, in [0, 1); 0 keeps no velocity. Default 0.0. */
  readonly momentum?: number;
  /** Divide by the deviation of the gradients; their mean is kept, too. Default false. */
  readonly centered?: boolean;
}

/** Adagrad as torch.optim.Adagrad, https://jmlr.org/papers/v12/duchi11a.html. ONNX Runtime does not have it. */
export interface AdagradFields {
  /** The learning rate is divided by 1 plus this times the steps so far. Default 0.0. */
  readonly lrDecay?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** Start of the sum of squared gradients. Default 0.0. */
  readonly initialAccumulatorValue?: number;
  /** Added to the root of that sum. Default 1e-10. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
}

/** Adadelta as torch.optim.Adadelta, https://arxiv.org/abs/1212.5701. ONNX Runtime does not have it. */
export interface AdadeltaFields {
  /** Decay of the averages of squared gradients and squared updates, in [0, 1). Default 0.9. */
  readonly rho?: number;
  /** Added to both averages under the root. Default 1e-06. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Adamax as torch.optim.Adamax: Adam with the largest gradient so far, https://arxiv.org/abs/1412.6980. */
export interface AdamaxFields {
  /** Decay of the first moment and of the largest gradient, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the absolute value of the gradient. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Adam with Nesterov's momentum, as torch.optim.NAdam, https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ. */
export interface NAdamFields {
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the corrected second moment. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
  /** The momentum of step t is betas[0] * (1 - 0.96 ** (t * momentumDecay) / 2). Default 0.004. */
  readonly momentumDecay?: number;
}

/** Adam with rectified first steps, as torch.optim.RAdam, https://arxiv.org/abs/1908.03265. */
export interface RAdamFields {
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the second moment. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** AdaBelief as optax.adabelief: the second moment averages the squared difference of gradient and first moment. */
export interface AdaBeliefFields {
  /** Decay of the first and the second moment, each in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the second moment at each step, and to its corrected root. Default 1e-16. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay, decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Adan as optax.adan: Nesterov's momentum by differences of gradients, https://arxiv.org/abs/2208.06677. */
export interface AdanFields {
  /** Decay of the averages of gradients, of their differences and of the squares of both, each in [0, 1). Default [0.98, 0.92, 0.99]. */
  readonly betas?: readonly [number, number, number];
  /** Added to the corrected squares and to their root. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay, decoupled from the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** SGD with momentum that returns part of the way every few steps, https://arxiv.org/abs/1907.08610. */
export interface LookaheadFields {
  /** Steps between two returns, at least 1. Default 5. */
  readonly syncPeriod?: number;
  /** Share of the way that the parameters keep, in (0, 1]. Default 0.5. */
  readonly slowStepSize?: number;
  /** Share of the velocity that is kept from step to step, in [0, 1). Default 0.9. */
  readonly momentum?: number;
  /** Weight decay: this times the parameter is added to the gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** AdamW that needs no schedule, as schedulefree.AdamWScheduleFree, https://arxiv.org/abs/2405.15682. */
export interface ScheduleFreeAdamWFields {
  /** Share of the average where gradients are taken, in (0, 1), and decay of the second moment, in [0, 1). Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Added to the root of the corrected second moment. Default 1e-08. */
  readonly eps?: number;
  /** Another name of `eps`. */
  readonly epsilon?: number;
  /** Weight decay: this times the parameter is added to the normalized gradient. Default 0.0. */
  readonly weightDecay?: number;
}

/** Parameters that are updated otherwise than most. */
export interface ParameterGroup {
  /** Names, or regular expressions that match whole names. */
  readonly parameters: readonly string[];
  /** Factor of the session's learning rate for these parameters. Default 1.0. */
  readonly learningRateFactor?: number;
}

interface InGroups<Fields> {
  /** Parameters with their own settings. A parameter belongs to the first group that names it. */
  readonly groups?: readonly (ParameterGroup & Fields)[];
  /** False turns off weight decay for parameters with fewer than two axes: biases, scales of norms. Default true. */
  readonly decayBiasesAndNorms?: boolean;
}

/** An optimizer with its settings. */
export type OptimizerSettings =
  | Of<"AdamW", AdamWFields & InGroups<AdamWFields>>
  | Of<"SGD", SGDFields & InGroups<SGDFields>>
  | Of<"Lamb", LambFields & InGroups<LambFields>>
  | Of<"Adafactor", AdafactorFields & InGroups<AdafactorFields>>
  | Of<"Muon", MuonFields & InGroups<MuonFields>>
  | Of<"Lion", LionFields & InGroups<LionFields>>
  | Of<"Adam", AdamFields & InGroups<AdamFields>>
  | Of<"RMSProp", RMSPropFields & InGroups<RMSPropFields>>
  | Of<"Adagrad", AdagradFields & InGroups<AdagradFields>>
  | Of<"Adadelta", AdadeltaFields & InGroups<AdadeltaFields>>
  | Of<"Adamax", AdamaxFields & InGroups<AdamaxFields>>
  | Of<"NAdam", NAdamFields & InGroups<NAdamFields>>
  | Of<"RAdam", RAdamFields & InGroups<RAdamFields>>
  | Of<"AdaBelief", AdaBeliefFields & InGroups<AdaBeliefFields>>
  | Of<"Adan", AdanFields & InGroups<AdanFields>>
  | Of<"Lookahead", LookaheadFields & InGroups<LookaheadFields>>
  | Of<"ScheduleFreeAdamW", ScheduleFreeAdamWFields & InGroups<ScheduleFreeAdamWFields>>;

/** @internal */
export const OPTIMIZERS: Readonly<Record<OptimizerType, Settings>> = {
  AdamW: {
    biasCorrection: { kind: values.TRUE_OR_FALSE, default: true },
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-06, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    adamMode: { kind: values.ONE_OF_0_OR_1, default: 1 },
  },
  SGD: {
    momentum: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.0 },
    dampening: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    nesterov: { kind: values.TRUE_OR_FALSE, default: false },
  },
  Lamb: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-06, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  Adafactor: {
    beta2Decay: { kind: values.A_NUMBER_LESS_THAN_0, default: -0.8 },
    eps: { kind: values.A_NUMBER_AT_LEAST_1E_MINUS_18, default: 1.1920928955078125e-07, otherName: "epsilon" },
    scaleEps: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.001 },
    clipThreshold: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1.0 },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  Muon: {
    momentum: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.95 },
    nesterov: { kind: values.TRUE_OR_FALSE, default: true },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.1 },
    steps: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_100, default: 5 },
    matchRms: { kind: values.TRUE_OR_FALSE, default: true },
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
  },
  Lion: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.99] },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  Adam: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  RMSProp: {
    alpha: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.99 },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    momentum: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.0 },
    centered: { kind: values.TRUE_OR_FALSE, default: false },
  },
  Adagrad: {
    lrDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    initialAccumulatorValue: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-10, otherName: "epsilon" },
  },
  Adadelta: {
    rho: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.9 },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-06, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  Adamax: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  NAdam: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    momentumDecay: { kind: values.A_NUMBER_GREATER_THAN_0, default: 0.004 },
  },
  RAdam: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  AdaBelief: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-16, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  Adan: {
    betas: { kind: values.THREE_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.98, 0.92, 0.99] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  Lookahead: {
    syncPeriod: { kind: values.AN_INTEGER_AT_LEAST_1, default: 5 },
    slowStepSize: { kind: values.A_NUMBER_GREATER_THAN_0_AND_AT_MOST_1, default: 0.5 },
    momentum: { kind: values.A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1, default: 0.9 },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
  ScheduleFreeAdamW: {
    betas: { kind: values.TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1, default: [0.9, 0.999] },
    eps: { kind: values.A_NUMBER_AT_LEAST_0, default: 1e-08, otherName: "epsilon" },
    weightDecay: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  },
};

/** @internal */
export const GROUP: Settings = {
  parameters: { kind: values.A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS },
  learningRateFactor: { kind: values.A_NUMBER_AT_LEAST_0, default: 1.0 },
};
