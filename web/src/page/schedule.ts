/** Schedules of the learning rate, as trainweb.schedules in Python: the same settings, the same formulas. */

import { badSetting } from "../data/given.js";
import { checkFields, resolveKind } from "./check-settings.js";
import type { Setting } from "./settings/kinds.js";
import { SCHEDULES, type ScheduleSettings, type ScheduleType } from "./settings/schedules.js";

type Numbers = Readonly<Record<string, number>>;

/** The learning rate after the warm-up, `t` steps after it, in parts of `learningRate`. */
const FACTORS: Readonly<Record<Exclude<ScheduleType, "Plateau">, (t: number, settings: Numbers) => number>> = {
  Constant: () => 1,
  Linear: (t, { total = 1, start = 1, end = 0 }) => start + (end - start) * (Math.min(t, total) / total),
  Cosine: (t, { total = 1, end = 0 }) => halfWave(1, end, Math.min(t, total) / total),
  Step: (t, { every = 1, gamma = 1 }) => gamma ** Math.floor(t / every),
  Exponential: (t, { gamma = 1 }) => gamma ** t,
  Polynomial: (t, { total = 1, power = 1, end = 0 }) =>
    end + (1 - end) * (1 - Math.min(t, total) / total) ** power,
  OneCycle: (t, { total = 1, rise = 0, start = 1, end = 0 }) => {
    const [top, last] = [rise * total - 1, total - 1];
    if (t <= top) {
      return top > 0 ? halfWave(start, 1, t / top) : 1;
    }
    return halfWave(1, end, Math.min((t - top) / (last - top), 1));
  },
};

/** From `start` to `end` along a cosine; `share` of the way. */
function halfWave(start: number, end: number, share: number): number {
  return end + (start - end) * ((1 + Math.cos(Math.PI * share)) / 2);
}

/** A learning rate for each optimizer step: `session.setLearningRate(schedule.rate(step))`. */
export interface Schedule {
  /**
   * The learning rate of an optimizer step.
   *
   * @param step - how many optimizer steps were done before
   * @throws ModelError when it is no integer >= 0
   */
  rate(step: number): number;
  /** Take note of a metric, such as the loss of an epoch in evaluation: "Plateau" goes by it, others do not. */
  observe(metric: number): void;
}

/**
 * A schedule by its name and settings, or of a function of the step.
 *
 * @throws ModelError when the name is unknown, or a setting is wrong or missing
 */
export function schedule(given: ScheduleSettings | ((step: number) => number)): Schedule {
  if (typeof given === "function") {
    return { rate: (step) => checkRate(given(checkStep(step))), observe: () => undefined };
  }
  const checked = resolveKind("schedule", given, SCHEDULES);
  const type = checked["type"] as ScheduleType;
  const settings = withDefaults(type, checked);
  const { learningRate = 0, warmup = 0, warmupStart = 0, total } = settings as Numbers;
  if (total !== undefined && total <= warmup) {
    throw badSetting("total", total, `an integer above the warm-up, which takes ${warmup} steps`);
  }
  const afterWarmup = total === undefined ? settings : { ...settings, total: total - warmup };
  const plateau = type === "Plateau" ? new Plateau(settings) : null;
  const factor = type === "Plateau" ? (): number => plateau?.current ?? 1 : FACTORS[type];
  return {
    rate: (step) => {
      checkStep(step);
      if (step < warmup) {
        return learningRate * (warmupStart + (1 - warmupStart) * (step / warmup));
      }
      return learningRate * factor(step - warmup, afterWarmup as Numbers);
    },
    observe: (metric) => plateau?.observe(metric),
  };
}

/** All settings by the page's names, with defaults for the missing ones. */
function withDefaults(type: ScheduleType, checked: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const settings = Object.entries<Setting>(SCHEDULES[type]);
  return Object.fromEntries(settings.map(([name, { python, default: other }]) => [name, checked[python] ?? other]));
}

const STEP: Setting = {
  python: "step",
  kind: { kind: "integer", expected: "an integer >= 0", least: 0 },
  isOptional: false,
};

function checkStep(step: number): number {
  checkFields("rate", "", { step }, { step: STEP });
  return step;
}

function checkRate(rate: unknown): number {
  if (typeof rate !== "number" || !Number.isFinite(rate) || rate < 0) {
    throw badSetting("the learning rate of the function", rate, "a number at least 0");
  }
  return rate;
}

class Plateau {
  /** The rate in parts of `learningRate`. */
  current = 1;
  readonly #settings: Readonly<Record<string, unknown>>;
  #best: number;
  #bad = 0;
  #pause = 0;

  constructor(settings: Readonly<Record<string, unknown>>) {
    this.#settings = settings;
    this.#best = settings["mode"] === "min" ? Infinity : -Infinity;
  }

  observe(metric: number): void {
    const { reduction = 1, patience = 0, threshold = 0, cooldown = 0, least = 0 } = this.#settings as Numbers;
    const isBetter =
      this.#settings["mode"] === "min"
        ? metric < this.#best * (1 - threshold)
        : metric > this.#best * (1 + threshold);
    [this.#best, this.#bad] = isBetter ? [metric, 0] : [this.#best, this.#bad + 1];
    if (this.#pause > 0) {
      [this.#pause, this.#bad] = [this.#pause - 1, 0];
    }
    if (this.#bad > patience) {
      this.current = Math.max(this.current * reduction, least);
      [this.#pause, this.#bad] = [cooldown, 0];
    }
  }
}
