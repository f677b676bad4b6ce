/** Epochs as a checkpoint has them: JSON, in which numbers that it does not have are texts. `trainweb/fit/resume.py` is the same. */

import type { EvalValues } from "../wire/fit.js";
import type { EpochEvent } from "./fit-events.js";

const NAMES: ReadonlyMap<number, string> = new Map([[Infinity, "inf"], [-Infinity, "-inf"], [NaN, "nan"]]);
const NUMBERS: ReadonlyMap<unknown, number> = new Map([...NAMES].map(([value, name]) => [name, value]));

export function tellEpochs(epochs: readonly EpochEvent[]): string {
  const told = epochs.map(({ type: _, ...fields }) => fields);
  return JSON.stringify(told, (_, value: unknown) => NAMES.get(value as number) ?? value);
}

export function hearEpochs(told: string): EpochEvent[] {
  const heard = (value: unknown): number => NUMBERS.get(value) ?? (value as number);
  const epochs = JSON.parse(told) as (Omit<EpochEvent, "type">)[];
  return epochs.map(({ epoch, steps, loss, learningRate, seconds, validation }) => ({
    type: "epoch",
    epoch,
    steps,
    loss: heard(loss),
    learningRate: heard(learningRate),
    seconds,
    validation: validation && (Object.fromEntries(Object.entries(validation).map(([n, v]) => [n, heard(v)])) as EvalValues),
  }));
}
