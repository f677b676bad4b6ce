/** Can a session learn one batch by heart? trainweb/fit/overfit.py is the same in Python. */

import type { Tensor } from "onnxruntime-common";

import { refuseSettingIf } from "../../data/given.js";
import { checkOptions } from "../../data/nearest.js";
import { NumericsError } from "../../wire/errors.js";
import { sessionError } from "../../wire/messages.js";
import type { FeedsType } from "../arguments.js";

/** Share of the first loss that is nearly zero. */
const FALLEN = 0.05;
/** By how much gradients grow when something is wrong. */
const EXPLODES = 100;
/** Changes of a step, beside the parameter, that lead nowhere in a hundred steps. */
const SLOW = 1e-5;
/** Most parameters that a suspicion names. */
const FIRST_NAMES = 5;
const STEPS = 100;

/** Options of `overfitOneBatch`. */
export interface OverfitOptions {
  /** Steps at most. Default 100. */
  readonly steps?: number;
  /** Default: the session's learning rate. */
  readonly learningRate?: number;
}

/** The result of training on one batch again and again. */
export interface OverfitReport {
  /** True if the loss came down to 5 % of the first. */
  readonly hasFallen: boolean;
  /** Of each step. */
  readonly losses: readonly number[];
  /** Of the first step, by parameter. */
  readonly gradientNorms: Readonly<Record<string, number>>;
  /** Relative change by the first optimizer step: the norm of the change, in parts of the parameter's norm before. */
  readonly updateRatios: Readonly<Record<string, number>>;
  /** What looks wrong; empty where all is well. */
  readonly suspicions: readonly string[];
}

/** Methods of a session that are called here. */
export interface OverfitHost {
  readonly trainingOutputNames: readonly string[];
  runTrainStep(feeds: FeedsType, fetches: readonly string[]): Promise<Readonly<Record<string, Tensor>>>;
  runOptimizerStep(): Promise<void>;
  lazyResetGrad(): Promise<void>;
  gradientNorms(): Promise<Readonly<Record<string, number>>>;
  parameterNames(options: { readonly trainableOnly: boolean }): Promise<readonly string[]>;
  getParameter(name: string): Promise<Tensor>;
  getLearningRate(): Promise<number>;
  setLearningRate(rate: number): Promise<void>;
}

/** Saves the whole state of a session, and restores it. */
export interface StateKeeper {
  keepState(): Promise<void>;
  goBack(): Promise<void>;
}

/** Train on a batch, and look; the session is as before at the end. */
export async function overfitOneBatch(
  host: OverfitHost,
  state: StateKeeper,
  batch: FeedsType,
  options: OverfitOptions,
): Promise<OverfitReport> {
  const { steps = STEPS, learningRate } = checkOptions("overfitOneBatch", options, { steps: true, learningRate: true });
  refuseSettingIf(!Number.isSafeInteger(steps) || steps < 1, "steps", steps, "an integer >= 1");
  const isRate = learningRate === undefined || (Number.isFinite(learningRate) && learningRate > 0);
  refuseSettingIf(!isRate, "learningRate", learningRate, "a number greater than 0");
  await state.keepState();
  try {
    if (learningRate !== undefined) {
      await host.setLearningRate(learningRate);
    }
    return await train(host, batch, steps);
  } finally {
    await state.goBack();
  }
}

async function train(host: OverfitHost, batch: FeedsType, steps: number): Promise<OverfitReport> {
  const [name] = host.trainingOutputNames as readonly [string];
  const losses: number[] = [];
  const totals: number[] = [];
  const wrong: string[] = [];
  let gradientNorms: OverfitReport["gradientNorms"] = {};
  let updateRatios: OverfitReport["updateRatios"] = {};
  let hasFallen = false;
  try {
    for (let step = 0; step < steps && !hasFallen; step++) {
      await host.lazyResetGrad();
      const { [name]: loss } = await host.runTrainStep(batch, [name]);
      const data = loss?.data as Float32Array;
      if (data.length !== 1) {
        throw sessionError("SCALAR_LOSS", { name, shape: loss?.dims ?? [] });
      }
      const norms = await host.gradientNorms();
      totals.push(Math.hypot(...Object.values(norms)));
      losses.push(data[0] as number);
      if (!Number.isFinite((data[0] as number) + (totals[step] as number))) {
        wrong.push(sessionError("OVERFIT_NAN", { step: step + 1 }).message);
        break;
      }
      if (step === 0) {
        gradientNorms = norms;
        updateRatios = await updated(host);
      } else {
        await host.runOptimizerStep();
      }
      hasFallen = (losses[step] as number) <= FALLEN * (losses[0] as number);
    }
  } catch (error) {
    if (!(error instanceof NumericsError)) {
      throw error;
    }
    wrong.push(error.message);
  }
  const report = { hasFallen, losses, gradientNorms, updateRatios };
  return { ...report, suspicions: [...wrong, ...suspicionsOf(report, totals, short(await host.getLearningRate()))] };
}

/** Take an optimizer step. Returns the relative change of each parameter. */
async function updated(host: OverfitHost): Promise<Record<string, number>> {
  const names = await host.parameterNames({ trainableOnly: true });
  const read = (): Promise<Float32Array[]> =>
    Promise.all(names.map(async (name) => (await host.getParameter(name)).data as Float32Array));
  const before = await read();
  await host.runOptimizerStep();
  const after = await read();
  return Object.fromEntries(
    names.map((name, k) => {
      const old = before[k] as Float32Array;
      const change = Float64Array.from(after[k] as Float32Array, (value, i) => value - (old[i] as number));
      return [name, norm(change) / (norm(old) || 1)];
    }),
  );
}

function norm(values: Float32Array | Float64Array): number {
  let sum = 0;
  values.forEach((value) => (sum += value * value));
  return Math.sqrt(sum);
}

function suspicionsOf(report: Omit<OverfitReport, "suspicions">, totals: readonly number[], rate: string): string[] {
  const { hasFallen, losses, gradientNorms: norms, updateRatios: ratios } = report;
  const found: Error[] = [];
  const names = Object.keys(norms);
  const without = names.filter((name) => norms[name] === 0);
  const unmoved = Object.keys(ratios).filter((name) => ratios[name] === 0 && norms[name] !== 0);
  if (names.length > 0 && without.length === names.length) {
    found.push(sessionError("OVERFIT_NO_GRADIENT", {}));
  } else if (without.length > 0) {
    found.push(sessionError("OVERFIT_ZERO_GRADIENTS", { names: listed(without) }));
  }
  if (unmoved.length > 0) {
    found.push(sessionError("OVERFIT_UNCHANGED", { names: listed(unmoved), rate }));
  }
  const [first = 0] = totals;
  const most = Math.max(...totals);
  if (totals.length > 1 && first > 0 && most > EXPLODES * first) {
    found.push(sessionError("OVERFIT_EXPLODES", { first: short(first), most: short(most) }));
  }
  if (!hasFallen && found.length === 0 && losses.length > 1) {
    const isSlow = Math.max(0, ...Object.values(ratios)) < SLOW;
    const rises = (losses.at(-1) as number) > (losses[0] as number);
    found.push(
      rises
        ? sessionError("OVERFIT_RISES", { rate })
        : isSlow
          ? sessionError("OVERFIT_SLOW", { rate })
          : sessionError("OVERFIT_STUCK", { steps: losses.length }),
    );
  }
  return found.map(({ message }) => message);
}

function listed(names: readonly string[]): string {
  const more = names.length > FIRST_NAMES ? ` and ${names.length - FIRST_NAMES} more` : "";
  return names.slice(0, FIRST_NAMES).join(", ") + more;
}

function short(value: number): string {
  return String(Number(value.toPrecision(3)));
}
