/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Rule } from "../../wire/formulas.js";
import type { Of, Settings } from "./kinds.js";

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

/** The same rate at every step. */
export interface ConstantFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** A straight line from `start` to `end`, then constant. */
export interface LinearFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** The first rate after the warm-up, as a share of `learningRate`. Default 1.0. */
  readonly start?: number;
  /** The last rate, as a share of `learningRate`. Default 0.0. */
  readonly end?: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** Half a cosine wave down to `end`, then constant, https://arxiv.org/abs/1608.03983. */
export interface CosineFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** The last rate, as a share of `learningRate`. Default 0.0. */
  readonly end?: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** Multiply the rate by `gamma` after every `every` steps. */
export interface StepFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Steps between two changes. */
  readonly every: number;
  /** Factor of the rate. Default 0.1. */
  readonly gamma?: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** Multiply the rate by `gamma` after every step. */
export interface ExponentialFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Factor of the rate. */
  readonly gamma: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** Fall to `end` as a power of the remaining share of the steps, then constant. */
export interface PolynomialFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** The exponent. Default 1.0. */
  readonly power?: number;
  /** The last rate, as a share of `learningRate`. Default 0.0. */
  readonly end?: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** Rise to `learningRate` along a cosine, then fall to nearly zero, https://arxiv.org/abs/1708.07120. */
export interface OneCycleFields {
  /** The highest rate. */
  readonly learningRate: number;
  /** Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps. */
  readonly total: number;
  /** Share of the steps in which the rate rises. Default 0.3. */
  readonly rise?: number;
  /** The first rate, as a share of `learningRate`. Default 0.04. */
  readonly start?: number;
  /** The last rate, as a share of `learningRate`. Default 4e-06. */
  readonly end?: number;
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
}

/** Multiply the rate by `reduction` if a metric stops improving; report the metric with `observe`. */
export interface PlateauFields {
  /** The rate after the warm-up. */
  readonly learningRate: number;
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
  /** Steps over which the rate rises to `learningRate`. Default 0. */
  readonly warmup?: number;
  /** Start of the rise, as a share of `learningRate`. Default 0.0. */
  readonly warmupStart?: number;
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
