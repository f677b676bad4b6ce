/** Epochs of a checkpoint as JSON, in which NaN and infinities are texts. `trainweb/fit/resume.py` does the same. */

import type { EvalValues } from "../wire/fit.js";
import type { EpochEvent } from "./fit-events.js";

const NAMES: ReadonlyMap<number, string> = new Map([[Infinity, "inf"], [-Infinity, "-inf"], [NaN, "nan"]]);
const NUMBERS: ReadonlyMap<unknown, number> = new Map([...NAMES].map(([value, name]) => [name, value]));

export function epochsToJson(epochs: readonly EpochEvent[]): string {
  const records = epochs.map(({ type: _, ...fields }) => fields);
  return JSON.stringify(records, (_, value: unknown) => NAMES.get(value as number) ?? value);
}

export function epochsFromJson(json: string): EpochEvent[] {
  const numberOf = (value: unknown): number => NUMBERS.get(value) ?? (value as number);
  const epochs = JSON.parse(json) as (Omit<EpochEvent, "type">)[];
  return epochs.map(({ epoch, steps, loss, learningRate, seconds, validation }) => ({
    type: "epoch",
    epoch,
    steps,
    loss: numberOf(loss),
    learningRate: numberOf(learningRate),
    seconds,
    validation: validation && (Object.fromEntries(Object.entries(validation).map(([n, v]) => [n, numberOf(v)])) as EvalValues),
  }));
}
