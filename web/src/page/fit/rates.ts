/** The learning rates of a fit; `trainweb/fit/plan.py` is the same in Python. */

import { raise, refuseIf } from "../../wire/messages.js";
import { oneRate } from "../check-settings.js";
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
  source: string | object | ((step: number) => number) | null | undefined,
  learningRate: number | null,
  steps: number | null,
): Schedule | null {
  if (source === null || source === undefined) {
    return learningRate === null ? null : schedule({ type: "Constant", learningRate });
  }
  if (typeof source === "function" || (typeof source === "object" && "rate" in source)) {
    refuseIf(learningRate !== null, "RATE_AND_SCHEDULE");
    return typeof source === "function" ? schedule(source as (step: number) => number) : (source as Schedule);
  }
  if (typeof source !== "string" && typeof source !== "object") {
    return schedule(source);
  }
  const settings: Record<string, unknown> = typeof source === "string" ? { type: source } : { ...source };
  const rate = oneRate(learningRate, "schedule", settings["learningRate"] ?? null);
  if (rate !== null) {
    settings["learningRate"] = rate;
  }
  const kind = String(settings["type"]);
  if (Object.hasOwn(SCHEDULES, kind) && "total" in SCHEDULES[kind as keyof typeof SCHEDULES]) {
    settings["total"] ??= steps ?? raise("TOTAL_OF_STREAM", { name: kind });
  }
  return schedule(settings as unknown as ScheduleSettings);
}
