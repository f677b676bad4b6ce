/** `findLearningRate`: losses while the learning rate grows; `trainweb/fit/find_rate.py` is the same in Python. */

import type { DataSource } from "../../data/dataset.js";
import { refuseSettingIf } from "../../data/checks.js";
import { checkOptions } from "../../data/nearest.js";
import { BETA, BUFFER, DIVERGED, SKIPPED_END, SKIPPED_START } from "../../wire/constants.js";
import type { SessionInfo } from "../../wire/protocol.js";
import { settingsOf } from "../check-settings.js";
import type { History } from "./events.js";
import type { FitOptions } from "./options.js";
import { ModelInputs } from "../model-inputs.js";
import { FIND_RATE, type FindRateFields } from "../settings/fit.js";

/** Options of `findLearningRate`. */
export type FindRateOptions = FindRateFields;

/** The result of `findLearningRate`. */
export interface LearningRates {
  /** The learning rate of each step, until the loss diverged. */
  readonly rates: readonly number[];
  /** The smoothed loss with each rate. */
  readonly losses: readonly number[];
  /** A rate at which the loss falls; null if it falls nowhere. */
  readonly suggestion: number | null;
  /** The losses by rate as the text of an SVG picture, with a line at the suggestion. */
  plot(): string;
}

interface Fitted {
  fit(data: DataSource, options: FitOptions): PromiseLike<History>;
}

/** See `TrainingSession.findLearningRate`. `call` saves the whole state of the session, and restores it. */
export async function findLearningRate(
  session: Fitted,
  info: SessionInfo,
  call: (name: "keepState" | "goBack") => Promise<unknown>,
  data: DataSource,
  options: FindRateOptions,
): Promise<LearningRates> {
  const fields = checkOptions("findLearningRate", options, FIND_RATE);
  const settings = settingsOf<Required<FindRateFields>>("findLearningRate", fields, FIND_RATE);
  const { steps, least, most, batchSize, batched, seed } = settings;
  refuseSettingIf(most <= least, "most", most, `greater than 'least', which is ${least}`);
  const inputs = new ModelInputs(info, "train");
  const dataset = inputs.dataset(data);
  const rows = dataset.columns === null ? dataset : dataset.shuffle({ buffer: BUFFER });
  const batches = inputs.batches(rows, { batchSize, remainder: "keep", batched, drops: true });
  const rates = Array.from({ length: steps }, (_, k) => least * (most / least) ** (k / (steps - 1)));
  await call("keepState");
  let losses: readonly number[];
  try {
    const schedule = (step: number): number => rates[step] as number;
    ({ losses } = await session.fit(batches, { batched: true, stepsPerEpoch: steps, schedule, seed, onNaN: "stop" }));
  } finally {
    await call("goBack");
  }
  const smooth = smoothed(losses);
  const tried = rates.slice(0, smooth.length);
  const suggestion = suggested(tried, smooth, steps);
  return { rates: tried, losses: smooth, suggestion, plot: () => picture(tried, smooth, suggestion) };
}

/** Moving averages without their bias to 0, until one is many times the least or the loss is not a number. */
function smoothed(losses: readonly number[]): number[] {
  const averages: number[] = [];
  let average = 0;
  let lowest = Infinity;
  for (const [k, loss] of losses.entries()) {
    if (!Number.isFinite(loss)) {
      break;
    }
    average = BETA * average + (1 - BETA) * loss;
    const current = average / (1 - BETA ** (k + 1));
    averages.push(current);
    lowest = Math.min(lowest, current);
    if (current > DIVERGED * lowest) {
      break;
    }
  }
  return averages;
}

/** The rate at two thirds of the longest valley: the longest sequence of steps that each have a lower loss. */
function suggested(allRates: readonly number[], allLosses: readonly number[], steps: number): number | null {
  const start = Math.floor(steps / SKIPPED_START);
  const end = Math.max(allLosses.length - SKIPPED_END, 0);
  const losses = allLosses.slice(start, end);
  const rates = allRates.slice(start, end);
  const lengths = losses.map(() => 1);
  const lengthAt = (k: number): number => lengths[k] ?? 0;
  let last = 0;
  for (const [i, loss] of losses.entries()) {
    for (let j = 0; j < i; j++) {
      if (loss < (losses[j] as number) && lengthAt(i) < lengthAt(j) + 1) {
        lengths[i] = lengthAt(j) + 1;
      }
      if (lengthAt(last) < lengthAt(i)) {
        last = i;
      }
    }
  }
  if (lengthAt(last) < 2) {
    return null;
  }
  const first = last - lengthAt(last);
  const third = (last - first) / 3;
  return rates[Math.max(first, 0) + Math.floor(third) + Math.floor(third / 2)] ?? null;
}

const WIDTH = 480;
const HEIGHT = 240;
const MARGIN = 32;

function picture(rates: readonly number[], losses: readonly number[], suggestion: number | null): string {
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const [first, last] = [Math.log10(rates[0] ?? 1), Math.log10(rates.at(-1) ?? 1)];
  const x = (rate: number): string => (MARGIN + ((WIDTH - 2 * MARGIN) * (Math.log10(rate) - first)) / (last - first || 1)).toFixed(1);
  const y = (loss: number): string => (HEIGHT - MARGIN - ((HEIGHT - 2 * MARGIN) * (loss - low)) / (high - low || 1)).toFixed(1);
  const points = rates.map((rate, k) => `${x(rate)},${y(losses[k] as number)}`).join(" ");
  const label = (at: number, text: string): string => `<text x="${at}" y="${HEIGHT - 10}" font-size="11">${text}</text>`;
  const mark = suggestion === null ? "" : `<line x1="${x(suggestion)}" x2="${x(suggestion)}" y1="${MARGIN}" y2="${HEIGHT - MARGIN}" stroke="gray" stroke-dasharray="4"/>`;
  const title = suggestion === null ? "Loss by learning rate" : `Loss by learning rate; suggestion ${suggestion.toPrecision(2)}`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" fill="currentColor"><title>${title}</title>` +
    `<polyline points="${points}" fill="none" stroke="currentColor"/>${mark}` +
    `${label(MARGIN, (rates[0] ?? 0).toExponential(0))}${label(WIDTH - 2 * MARGIN, (rates.at(-1) ?? 0).toExponential(0))}</svg>`
  );
}
