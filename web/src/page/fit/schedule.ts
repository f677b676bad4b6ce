/** Schedules of the learning rate: trainweb/schedules.py declares settings and formulas. */

import { badSetting, refuseSettingIf } from "../../data/checks.js";
import { Course } from "../../wire/formulas.js";
import { checkFields, pythonName, resolveKind, withDefaults, type Fields } from "../check-settings.js";
import type { Setting, Settings } from "../setting-kinds.js";
import { RULES, SCHEDULES, type ScheduleSettings, type ScheduleType } from "../settings/schedules.js";
import { AN_INTEGER_AT_LEAST_0 } from "../settings/values.js";

/** A learning rate for each optimizer step: `session.setLearningRate(schedule.rate(step))`. */
export interface Schedule {
  /**
   * The learning rate of an optimizer step.
   *
   * @param step - how many optimizer steps were done before
   * @throws ModelError when it is not an integer >= 0
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
export function schedule(source: ScheduleSettings | ((step: number) => number)): Schedule {
  if (typeof source === "function") {
    return { rate: (step) => checkRate(source(checkStep(step))), observe: () => undefined };
  }
  const checked = resolveKind("schedule", source, SCHEDULES);
  const type = checked["type"] as ScheduleType;
  const course = new Course(RULES[type], numbersOf(SCHEDULES[type], checked));
  const [total, warmup] = [checked["total"] as number | undefined, course.get("warmup")];
  refuseSettingIf(total !== undefined && total <= warmup, "total", total, `an integer above the warm-up, which takes ${warmup} steps`);
  return {
    rate: (step) => course.value({ step: checkStep(step) }),
    observe: (metric) => course.observe({ metric }),
  };
}

/** All settings as numbers, by Python's names: a choice counts as the position of its value. */
function numbersOf(settings: Settings, checked: Fields): Record<string, number> {
  const entries = Object.entries(withDefaults(checked, settings)).map(([name, value]): [string, number] => {
    const setting = settings[name] as Setting;
    const { kind } = setting;
    return [pythonName(name, setting), kind.kind === "choice" ? kind.options.indexOf(value as string) : Number(value)];
  });
  return Object.fromEntries(entries);
}

const STEP: Setting = { kind: AN_INTEGER_AT_LEAST_0 };

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
