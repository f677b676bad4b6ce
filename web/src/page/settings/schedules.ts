/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Rule } from "../../wire/formulas.js";
import type { Of, Settings } from "./kinds.js";
import * as values from "./values.js";

/** The schedules. */
export type ScheduleType =
  | "Constant"
  | "Linear"
  | "Cosine"
  | "Step"
  | "Exponential"
  | "Polynomial"
  | "OneCycle"
  | "Plateau";

/** The settings of every schedule. */
export interface AnyScheduleFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** The same rate at every step. */
export type ConstantFields = AnyScheduleFields;

/** A straight line from `start` to `end`, then constant. */
export interface LinearFields extends AnyScheduleFields {
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** The first rate after the warm-up, as a share of `learningRate`. Default 1.0. */
  readonly start?: number;
  /** The last rate, as a share of `learningRate`. Default 0.0. */
  readonly end?: number;
}

/** Half a cosine wave down to `end`, then constant, https://arxiv.org/abs/1608.03983. */
export interface CosineFields extends AnyScheduleFields {
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** The last rate, as a share of `learningRate`. Default 0.0. */
  readonly end?: number;
}

/** Multiply the rate by `gamma` after every `every` steps. */
export interface StepFields extends AnyScheduleFields {
  /** Steps between two changes. */
  readonly every: number;
  /** Factor of the rate. Default 0.1. */
  readonly gamma?: number;
}

/** Multiply the rate by `gamma` after every step. */
export interface ExponentialFields extends AnyScheduleFields {
  /** Factor of the rate. */
  readonly gamma: number;
}

/** Fall to `end` as a power of the remaining share of the steps, then constant. */
export interface PolynomialFields extends AnyScheduleFields {
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** The exponent. Default 1.0. */
  readonly power?: number;
  /** The last rate, as a share of `learningRate`. Default 0.0. */
  readonly end?: number;
}

/** Rise to `learningRate` along a cosine, then fall to nearly zero, https://arxiv.org/abs/1708.07120. */
export interface OneCycleFields extends AnyScheduleFields {
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** Share of the steps in which the rate rises. Default 0.3. */
  readonly rise?: number;
  /** The first rate, as a share of `learningRate`. Default 0.04. */
  readonly start?: number;
  /** The last rate, as a share of `learningRate`. Default 4e-06. */
  readonly end?: number;
}

/** Multiply the rate by `reduction` if a metric stops improving; report the metric with `observe`. */
export interface PlateauFields extends AnyScheduleFields {
  /** Factor of the rate. Default 0.1. */
  readonly reduction?: number;
  /** Observations without improvement before the rate falls. Default 10. */
  readonly patience?: number;
  /** Share of the best metric by which a better one must differ. Default 0.0001. */
  readonly threshold?: number;
  /** "min" if lower metrics are better, "max" if higher ones are. Default "min". */
  readonly mode?: "min" | "max";
  /** Observations to ignore after a change. Default 0. */
  readonly cooldown?: number;
  /** Lowest rate, as a share of `learningRate`. Default 0.0. */
  readonly least?: number;
}

/** A schedule with its settings. */
export type ScheduleSettings =
  | Of<"Constant", ConstantFields>
  | Of<"Linear", LinearFields>
  | Of<"Cosine", CosineFields>
  | Of<"Step", StepFields>
  | Of<"Exponential", ExponentialFields>
  | Of<"Polynomial", PolynomialFields>
  | Of<"OneCycle", OneCycleFields>
  | Of<"Plateau", PlateauFields>;

/** @internal */
export const SCHEDULES: Readonly<Record<ScheduleType, Settings>> = {
  Constant: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
  Linear: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    total: { kind: values.AN_INTEGER_AT_LEAST_1 },
    start: { kind: values.A_NUMBER_AT_LEAST_0, default: 1.0 },
    end: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
  Cosine: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    total: { kind: values.AN_INTEGER_AT_LEAST_1 },
    end: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
  Step: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    every: { kind: values.AN_INTEGER_AT_LEAST_1 },
    gamma: { kind: values.A_NUMBER_GREATER_THAN_0, default: 0.1 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
  Exponential: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    gamma: { kind: values.A_NUMBER_GREATER_THAN_0 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
  Polynomial: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    total: { kind: values.AN_INTEGER_AT_LEAST_1 },
    power: { kind: values.A_NUMBER_GREATER_THAN_0, default: 1.0 },
    end: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
  OneCycle: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    total: { kind: values.AN_INTEGER_AT_LEAST_1 },
    rise: { kind: values.A_NUMBER_GREATER_THAN_0_AND_LESS_THAN_1, default: 0.3 },
    start: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.04 },
    end: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 4e-06 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
  Plateau: {
    learningRate: { kind: values.A_NUMBER_AT_LEAST_0 },
    reduction: { kind: values.A_NUMBER_GREATER_THAN_0_AND_LESS_THAN_1, default: 0.1 },
    patience: { kind: values.AN_INTEGER_AT_LEAST_0, default: 10 },
    threshold: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0001 },
    mode: { kind: values.ONE_OF_MIN_OR_MAX, default: "min" },
    cooldown: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    least: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
    warmup: { kind: values.AN_INTEGER_AT_LEAST_0, default: 0 },
    warmupStart: { kind: values.A_NUMBER_AT_LEAST_0_AND_AT_MOST_1, default: 0.0 },
  },
};

/** Formulas of their rates. @internal */
export const RULES: Readonly<Record<ScheduleType, Rule>> = {
  Constant: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], 1]], "state": [], "observe": []},
  Linear: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], ["+", "start", ["*", ["-", "end", "start"], ["/", ["min", ["-", "step", "warmup"], ["-", "total", "warmup"]], ["-", "total", "warmup"]]]]]], "state": [], "observe": []},
  Cosine: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], ["+", "end", ["*", ["-", 1, "end"], ["/", ["+", 1, ["cos", ["*", 3.141592653589793, ["/", ["min", ["-", "step", "warmup"], ["-", "total", "warmup"]], ["-", "total", "warmup"]]]]], 2]]]]], "state": [], "observe": []},
  Step: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], ["pow", "gamma", ["floor", ["/", ["-", "step", "warmup"], "every"]]]]], "state": [], "observe": []},
  Exponential: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], ["pow", "gamma", ["-", "step", "warmup"]]]], "state": [], "observe": []},
  Polynomial: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], ["+", "end", ["*", ["-", 1, "end"], ["pow", ["-", 1, ["/", ["min", ["-", "step", "warmup"], ["-", "total", "warmup"]], ["-", "total", "warmup"]]], "power"]]]]], "state": [], "observe": []},
  OneCycle: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], ["if", [">", ["-", "step", "warmup"], ["-", ["*", "rise", ["-", "total", "warmup"]], 1]], ["+", "end", ["*", ["-", 1, "end"], ["/", ["+", 1, ["cos", ["*", 3.141592653589793, ["min", ["/", ["-", ["-", "step", "warmup"], ["-", ["*", "rise", ["-", "total", "warmup"]], 1]], ["-", ["-", ["-", "total", "warmup"], 1], ["-", ["*", "rise", ["-", "total", "warmup"]], 1]]], 1]]]], 2]]], ["if", [">", ["-", ["*", "rise", ["-", "total", "warmup"]], 1], 0], ["+", 1, ["*", ["-", "start", 1], ["/", ["+", 1, ["cos", ["*", 3.141592653589793, ["/", ["-", "step", "warmup"], ["-", ["*", "rise", ["-", "total", "warmup"]], 1]]]]], 2]]], 1]]]], "state": [], "observe": []},
  Plateau: {"value": ["*", "learning_rate", ["if", [">", "warmup", "step"], ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]], "factor"]], "state": [["best", ["/", ["if", "mode", -1, 1], 0]], ["factor", 1], ["bad", 0], ["pause", 0]], "observe": [["more", [">", "metric", ["*", "best", ["+", 1, "threshold"]]]], ["less", [">", ["*", "best", ["-", 1, "threshold"]], "metric"]], ["is_better", ["if", "mode", "more", "less"]], ["best", ["if", "is_better", "metric", "best"]], ["bad", ["if", ["max", "is_better", "pause"], 0, ["+", "bad", 1]]], ["pause", ["max", ["-", "pause", 1], 0]], ["is_late", [">", "bad", "patience"]], ["factor", ["if", "is_late", ["max", ["*", "factor", "reduction"], "least"], "factor"]], ["pause", ["if", "is_late", "cooldown", "pause"]], ["bad", ["if", "is_late", 0, "bad"]]]},
};
