/** The learning rates of a fit; `trainweb/fit/plan.py` is the same in Python. */

import { sessionError, refuseIf } from "../../wire/messages.js";
import { schedule, type Schedule } from "./schedule.js";
import { SCHEDULES, type ScheduleSettings } from "../settings/schedules.js";

/**
 * The schedule of a fit; null: the rate stays as it is.
 *
 * @param learningRate - the option of that name
 * @param steps - optimizer steps of the fit; null: nobody knows
 * @throws ModelError: a setting is wrong or missing, or there are two rates
 */
export function scheduleOf(
  given: string | object | ((step: number) => number) | null | undefined,
  learningRate: number | null,
  steps: number | null,
): Schedule | null {
  if (given === null || given === undefined) {
    return learningRate === null ? null : schedule({ type: "Constant", learningRate });
  }
  if (typeof given === "function" || (typeof given === "object" && "rate" in given)) {
    refuseIf(learningRate !== null, "RATE_AND_SCHEDULE");
    return typeof given === "function" ? schedule(given as (step: number) => number) : (given as Schedule);
  }
  if (typeof given !== "string" && typeof given !== "object") {
    return schedule(given);
  }
  const settings: Record<string, unknown> = typeof given === "string" ? { type: given } : { ...given };
  const own = settings["learningRate"] ?? null;
  if (learningRate !== null && own !== null && own !== learningRate) {
    throw sessionError("TWO_RATES", { first: learningRate, where: "schedule", second: own });
  }
  if (learningRate !== null) {
    settings["learningRate"] = learningRate;
  }
  const kind = String(settings["type"]);
  if (steps !== null && Object.hasOwn(SCHEDULES, kind) && "total" in SCHEDULES[kind as keyof typeof SCHEDULES]) {
    settings["total"] ??= steps;
  }
  return schedule(settings as unknown as ScheduleSettings);
}
