/** The options of `fit`, checked. */

import { Dataset, isSpent, type DataSource } from "../../data/dataset.js";
import type { Batch } from "../../data/rows.js";
import { countBatches, refuseEmpty } from "../../data/epoch.js";
import type { EvalValues, FitSpec, Units, WireClip, WireEarlyStopping, WireEvaluation, WireMetric } from "../../wire/fit.js";
import { inputName } from "../../wire/feed-names.js";
import { sessionError, refuseIf } from "../../wire/messages.js";
import type { SessionInfo } from "../../wire/protocol.js";
import { badSetting, nameOf, refuseSettingIf } from "../../data/checks.js";
import { checkIsObject } from "../../data/nearest.js";
import { checkFields, resolveKind, settingsOf, withDefaults, type Fields } from "../check-settings.js";
import type { Resolved, Setting } from "../setting-kinds.js";
import {
  ACCUMULATE,
  BETTER,
  CHECKPOINT,
  EARLY_STOPPING,
  EARLY_STOPPING_RULE,
  FIT,
  METRICS,
  OF_LOSS,
  type AccumulateFields,
  type CheckpointFields,
  type EarlyStoppingFields,
  type FitFields,
  type MetricType,
} from "../settings/fit.js";
import { CheckpointStore } from "./checkpoint-store.js";
import type { FitControl, FitEvent } from "./events.js";
import { scheduleOf } from "./rates.js";
import { ModelInputs } from "../model-inputs.js";
import { hasFunctions, metricsOf, type MetricFunction, type Metrics, type ValuesOf } from "../own-metrics.js";
import { FITTED, splitData, warnOfLabels, warnOfSteps } from "../split.js";
import type { Schedule } from "./schedule.js";
import type { ScheduleSettings, ScheduleType } from "../settings/schedules.js";

/** Called with each event and the fit, which it can pause and end. The next epoch waits for a promise that it returns. */
export type FitCallback<Values extends EvalValues = EvalValues> = (event: FitEvent<Values>, fit: FitControl) => unknown;

/** Ends the training when a metric of the validation data stops improving. */
export interface EarlyStoppingSettings extends EarlyStoppingFields {
  /** "loss" (the default; without validation data the training loss), or one of the metrics, by name. */
  readonly metric?: string;
}

/** The checkpoint of a running fit. */
export interface FitCheckpointSettings extends CheckpointFields {
  /** The store. */
  readonly store: CheckpointStore;
  /** Its name there. */
  readonly name: string;
}

type Without<Settings, Names extends string> = Settings extends unknown
  ? Omit<Settings, Names> & Partial<Pick<Settings, Names & keyof Settings>>
  : never;

/** Settings of a schedule in a fit, where `total` has a default, and `learningRate` may be an option of the fit. */
export type FitScheduleSettings = Without<ScheduleSettings, "total" | "learningRate">;

/** Options of `fit`. */
export interface FitOptions<M extends Metrics = Metrics> extends FitFields {
  /**
   * Batches for an optimizer step. Their gradient is that of one large batch: each counts by what its loss was divided
   * by, such as rows or tokens. Default 1.
   */
  readonly accumulate?: number | AccumulateFields;
  /** Evaluated after each epoch with the eval model. */
  readonly validationData?: DataSource | null;
  /**
   * Learning rate of each optimizer step of this fit, counted from 0; by default the rate stays as it is. The default
   * of
   * `total` is the number of optimizer steps of the fit, with the warm-up. You may give the rate as `learningRate`.
   */
  readonly schedule?: ScheduleType | FitScheduleSettings | Schedule | ((step: number) => number) | null;
  /** Metrics of the validation data. */
  readonly metrics?: M;
  /** Output of the eval model for metrics; by default the output of the model that the loss compares with the targets. */
  readonly predictions?: string;
  /** Input of the eval model that metrics compare it with; by default the one that the loss compares. */
  readonly targets?: string;
  /** End the fit when a metric stops improving; by default it runs all epochs. */
  readonly earlyStopping?: EarlyStoppingSettings | null;
  /** Place of the fit's progress. If the checkpoint exists, the fit continues from it, with the same bytes as without a break. */
  readonly checkpoint?: FitCheckpointSettings | null;
  /** Called with every event. */
  readonly callbacks?: FitCallback<ValuesOf<M>> | readonly FitCallback<ValuesOf<M>>[];
  /** Abort it to end the fit within a step; the fit then fails with the signal's reason. */
  readonly signal?: AbortSignal;
}

const OTHERS = [
  "accumulate",
  "validationData", "schedule", "metrics", "predictions", "targets", "earlyStopping", "callbacks", "signal",
  "checkpoint",
];

/** Options of the batches of validation data. */
const VALIDATION = { remainder: "keep", batched: null, ignoresSize: true } as const;

type OwnedByPage = "loss" | "hasSchedule" | "train" | "validation" | "hasValidation" | "checkpoint" | "order" | "tells";

export interface ResolvedFit extends Omit<FitSpec, OwnedByPage> {
  readonly train: Dataset;
  /** False: a stream stays in order. */
  readonly shuffles: boolean;
  readonly validation: Dataset | null;
  readonly schedule: Schedule | null;
  /** Metrics that the page computes. */
  readonly functions: ReadonlyMap<string, MetricFunction>;
  readonly callbacks: readonly FitCallback[];
  readonly signal: AbortSignal | null;
  readonly checkpoint: ResolvedCheckpoint | null;
}

export interface ResolvedCheckpoint {
  readonly store: CheckpointStore;
  readonly name: string;
  readonly every: number | null;
  /** The options that determine batches and their order. */
  readonly options: Readonly<Record<string, unknown>>;
}

/** @throws ModelError for an option that is wrong; FeedError for data without rows; SessionError without the models */
export function resolveFit(info: SessionInfo, data: unknown, options: unknown): ResolvedFit {
  checkIsObject("fit", options);
  refuseIf(!info.hasOptimizer, "NO_OPTIMIZER_MODEL");
  const settings = options as FitOptions;
  const plain = checkPlain(options);
  const inputs = new ModelInputs(info, "train");
  const classes = typeof plain.stratify === "string" ? inputName(plain.stratify, info.trainingInputNames) : labelsOf(info.trainingInputNames, info).at(-1);
  const [train, validation] = splitData(inputs, classes as string, data, settings.validationData ?? null, plain);
  inputs.require(train, "data");
  if (validation !== null) {
    new ModelInputs(info, "eval").require(validation, "validation data");
    warnOfSteps(inputs, train.preprocessing, validation, "validation rows");
  }
  FITTED.set(info, train.preprocessing);
  const isStream = train.columns === null;
  refuseIf(train.isBatched && (settings.batchSize ?? null) !== null, "BATCH_OF_BATCHES", { name: "batchSize" });
  refuseIf(!isStream && plain.batched === true, "BATCHED_ARRAYS");
  const isDrawn = train.isDrawn || inputs.listsRows(train, plain.batched);
  refuseIf(isStream && plain.shuffle === true && !isDrawn, "SHUFFLED_STREAM");
  refuseIf(!isStream && plain.stepsPerEpoch !== null, "STEPS_OF_ARRAYS");
  checkGenerators(train, validation, plain, (settings.checkpoint ?? null) !== null);
  const metrics = resolveMetrics(settings.metrics ?? []);
  refuseIf(validation === null && !plain.trainMetrics && metrics.metrics.length + metrics.functions.size > 0, "METRICS_WITHOUT_DATA");
  refuseIf(isStream && plain.trainMetrics, "TRAIN_METRICS_STREAM");
  refuseIf(validation?.isPadded === true, "PADDED_VALIDATION");
  if (plain.ema) {
    checkAverages(info);
  }
  const early = settings.earlyStopping ?? null;
  const signal = settings.signal ?? null;
  refuseSettingIf(signal !== null && !(signal instanceof AbortSignal), "signal", signal, "an AbortSignal");
  refuseIf(plain.proximal > 0 && (settings.checkpoint ?? null) !== null, "PROXIMAL_CHECKPOINT");
  const batchSize = inputs.size(plain.batchSize);
  const drops = inputs.rows !== null && plain.remainder === "keep";
  const remainder = drops && !isStream ? "drop" : plain.remainder;
  const size = isStream ? null : train.size;
  const left = (size ?? 0) % batchSize;
  if (drops && left > 0) {
    inputs.warn("DROPPED_ROWS", { count: left, rows: batchSize });
  }
  const look = (fed: Batch): void => warnOfLabels(inputs, info, fed);
  look(Object.fromEntries(train.columns ?? []));
  const batches = size === null ? null : countBatches(size, batchSize, remainder);
  const stepsPerEpoch = plain.stepsPerEpoch ?? batches;
  const { steps: accumulate, reduction } = resolveAccumulate(settings.accumulate);
  const uneven = accumulate > 1 && reduction === "mean" ? info.unevenTerms : [];
  refuseIf(uneven === null, "UNWEIGHED_BATCHES");
  const names = (uneven ?? []).join(", ");
  refuseIf(names !== "", "UNEVEN_TERMS", { names });
  const counted = stepsPerEpoch ?? (inputs.rows === null ? train.count : null);
  const steps = counted === null ? null : plain.epochs * Math.ceil(counted / accumulate);
  const seed = !isStream && plain.shuffle === false ? null : plain.seed;
  // The items of a stream may be batches of any size.
  const hasSize = !train.isBatched && !(isStream && plain.batchSize === null && plain.batched !== false);
  const fingerprint = {
    batchSize: hasSize ? batchSize : null,
    remainder: hasSize ? plain.remainder : null,
    seed: isStream ? plain.seed || null : seed,
    shuffle: isDrawn ? plain.shuffle !== false : null,
    accumulate,
    reduction: accumulate > 1 ? reduction : null,
    clipGradNorm: plain.clipGradNorm,
    clipGradValue: plain.clipGradValue,
    ema: plain.ema || null,
    stratify: plain.stratify || null,
    stepsPerEpoch: plain.stepsPerEpoch,
    rows: size,
    validationRows: validation?.columns === null ? null : validation?.size ?? null,
  };
  return {
    train: isStream ? inputs.batches(train, { ...plain, drops, look }) : train,
    validation: validation?.columns === null ? inputs.batches(validation, { ...VALIDATION, batchSize: plain.batchSize }) : validation,
    epochs: plain.epochs,
    stepsPerEpoch,
    batchSize,
    remainder,
    seed,
    shuffles: plain.shuffle !== false,
    accumulate,
    sumsGradients: reduction === "sum",
    clip: clipOf(plain),
    ema: plain.ema,
    proximal: plain.proximal,
    onNaN: plain.onNaN,
    schedule: scheduleOf(settings.schedule, plain.learningRate, steps),
    evaluation: validation === null && !plain.trainMetrics ? null : resolveEvaluation(info, settings, metrics, inputs.units(validation ?? train)),
    evaluatesTraining: plain.trainMetrics,
    functions: metrics.functions,
    early: early === null ? null : resolveEarlyStopping(early, validation === null ? NO_METRICS : metrics, validation === null ? [] : info.terms),
    callbacks: asCallbacks(settings.callbacks ?? []),
    signal,
    checkpoint: resolveCheckpoint(settings.checkpoint ?? null, fingerprint),
  };
}

function resolveAccumulate(accumulate: number | AccumulateFields = 1): Required<AccumulateFields> {
  if (typeof accumulate === "object" && accumulate !== null) {
    return settingsOf("accumulate", accumulate, ACCUMULATE);
  }
  checkFields("accumulate", "", { accumulate }, { accumulate: ACCUMULATE["steps"] as Setting });
  return { steps: accumulate, reduction: "mean" };
}

/** @throws FeedError for a generator object or iterator that has been read, or that the fit may read again */
function checkGenerators(train: Dataset, validation: Dataset | null, { epochs, stepsPerEpoch }: Plain, isKept: boolean): void {
  const again = isKept || epochs > 1;
  const parts = [
    ["data", train, isKept || (again && stepsPerEpoch === null)],
    ["validation data", validation, again],
  ] as const;
  for (const [source, data, isAgain] of parts) {
    const generator = data?.generator ?? null;
    if (generator === null) {
      continue;
    }
    if (isAgain) {
      const kind = nameOf(generator).replace(/^(Async)?Generator$/u, "generator object");
      throw sessionError("READ_AGAIN", { source, kind });
    }
    refuseEmpty(isSpent(generator), 0, source);
  }
}

function resolveCheckpoint(checkpoint: unknown, options: ResolvedCheckpoint["options"]): ResolvedCheckpoint | null {
  if (checkpoint === null) {
    return null;
  }
  const expected = "an object with 'store' and 'name'";
  refuseSettingIf(typeof checkpoint !== "object", "checkpoint", checkpoint, expected);
  const { store, name, ...settings } = checkpoint as Fields;
  for (const [key, value] of Object.entries({ store, name })) {
    refuseIf(value === undefined || value === null, "MISSING_SETTING", { what: "checkpoint", name: key, expected });
  }
  if (!(store instanceof CheckpointStore)) {
    throw badSetting("checkpoint.store", store, "a CheckpointStore");
  }
  const checked = checkFields("checkpoint", "checkpoint.", settings, CHECKPOINT, ["store", "name"]);
  return { store, name: name as string, every: (checked["every"] as number | undefined) ?? null, options };
}

type Plain = Resolved<FitFields>;

/** @throws SessionError where the session keeps no averages of its parameters */
export function checkAverages({ hasAverages }: Pick<SessionInfo, "hasAverages">): void {
  refuseIf(!hasAverages, "NO_AVERAGES");
}

function clipOf({ clipGradNorm: norm, clipGradValue: value }: Plain): WireClip | null {
  return norm === null && value === null ? null : { norm, value };
}

/** The plain options by the page's names, with defaults for the missing ones. */
function checkPlain(options: object): Plain {
  const plain = Object.fromEntries(Object.entries(options).filter(([name]) => !OTHERS.includes(name)));
  return settingsOf<Plain>("fit", plain, FIT, OTHERS);
}

/** A metric of an output; null: of the one that the loss compares. */
type ResolvedMetric = Omit<WireMetric, "predictions" | "targets" | "scale"> & { readonly output: string | null };

export interface ResolvedMetrics {
  readonly metrics: readonly ResolvedMetric[];
  readonly functions: ReadonlyMap<string, MetricFunction>;
}

const NO_METRICS: ResolvedMetrics = { metrics: [], functions: new Map() };

export function resolveMetrics(choices: unknown): ResolvedMetrics {
  const listed = metricsOf(choices);
  const functions = listed.flatMap(([output, metric]) => {
    refuseIf(output !== null && hasFunctions(metric), "FUNCTION_OF_OUTPUT");
    return hasFunctions(metric) ? Object.entries(metric) : [];
  });
  const metrics = listed.filter(([, metric]) => !hasFunctions(metric)).map(([output, metric]): ResolvedMetric => {
    const fields = resolveKind("metric", metric, METRICS);
    const type = fields["type"] as MetricType;
    const settings = Object.values(withDefaults(fields, METRICS[type]));
    const formula = OF_LOSS[type] ?? null;
    return { key: output === null ? type : `${output}_${type}`, type, settings, formula, output };
  });
  checkNames([...metrics.map(({ key }) => key), ...functions.map(([name]) => name)]);
  return { metrics, functions: new Map(functions) };
}

function checkNames(names: readonly string[]): void {
  names.forEach((name, k) => {
    refuseIf(names.indexOf(name) !== k, "METRIC_TWICE", { name });
    refuseSettingIf(name === "loss", "the name of a metric", name, "a text other than 'loss'");
  });
}

/** The inputs that may hold labels: no weights, and no gradients of outputs. */
function labelsOf(inputs: readonly string[], { sampleWeights }: SessionInfo): readonly string[] {
  return inputs.filter((name) => !sampleWeights.includes(name));
}

type PairNames = Pick<FitOptions, "predictions" | "targets">;

/** The metrics to evaluate, checked against the model, with the terms of the loss. */
export function resolveEvaluation(info: SessionInfo, names: PairNames, { metrics, functions }: ResolvedMetrics, units: Units): WireEvaluation {
  const { hasEval, evalOutputNames, terms, entropies } = info;
  const [loss] = evalOutputNames;
  if (!hasEval || loss === undefined) {
    throw sessionError("NO_EVAL_MODEL", {});
  }
  const compared = metrics.map(({ output, ...metric }): WireMetric => {
    refuseSettingIf(output !== null && names.predictions !== undefined, "predictions", names.predictions, "left out with metrics of outputs");
    const entropy = entropies.find(([of]) => of === (output ?? ""));
    refuseIf(metric.formula !== null && entropy === undefined, "NO_PERPLEXITY", { name: output === null ? "the loss" : `${output}_loss` });
    const ofLoss = [output === null ? "" : (entropy?.[1] as string), ""] as const;
    const [predictions, targets] = metric.formula === null ? pairOf(info, output === null ? names : { ...names, predictions: output }) : ofLoss;
    const scale = units.get(targets)?.std ?? [1];
    return { ...metric, type: metric.type === "mae" && scale.length > 1 ? "column_mae" : metric.type, predictions, targets, scale };
  });
  const ofLoss = terms.map((term): WireMetric => ({ key: term, type: "term", settings: [], formula: null, predictions: term, targets: "", scale: [1] }));
  const collects = functions.size > 0 ? pairOf(info, names) : null;
  const isWeighed = collects !== null && info.weighedLabels.some((labels) => ["", collects[1]].includes(labels));
  refuseIf(isWeighed, "UNWEIGHTED_METRIC", { name: [...functions.keys()].join(", ") });
  return { loss, metrics: [...compared, ...ofLoss], collects, unit: units.get(collects?.[1] ?? "") };
}

/** Predictions and targets of metrics. @throws ModelError for a name that is not known, or where one must be given */
function pairOf(info: SessionInfo, { predictions, targets: meant }: PairNames): readonly [predictions: string, targets: string] {
  const { evalOutputNames, ownOutputs, compared, pairs, defaultPair } = info;
  const inputs = labelsOf(info.evalInputNames, info);
  const targets = meant === undefined ? undefined : inputName(meant, inputs);
  const names = [...new Set([...evalOutputNames, ...ownOutputs, ...(compared === null ? [] : [compared]), ...pairs.map(([name]) => name)])];
  refuseSettingIf(predictions !== undefined && !names.includes(predictions), "predictions", predictions, `one of ${names.join(", ")}`);
  refuseSettingIf(targets !== undefined && !inputs.includes(targets), "targets", targets, `one of ${inputs.join(", ")}`);
  const fits = pairs.filter(([first, second]) => (predictions ?? first) === first && (targets ?? second) === second);
  const [first, second] = fits.length === 1 ? (fits[0] as (typeof fits)[0]) : defaultPair;
  const [predicted, target] = [predictions ?? first, targets ?? second];
  if (predicted === null || target === null) {
    throw sessionError("NO_PREDICTIONS", { names: names.join(", "), inputs: inputs.join(", ") });
  }
  refuseIf(info.sampleWeights.includes(target), "METRIC_OF_GRADIENT", { predictions: predicted, targets: target });
  return [predicted, target];
}

function asCallbacks(functions: FitCallback | readonly FitCallback[]): readonly FitCallback[] {
  const callbacks: readonly unknown[] = Array.isArray(functions) ? functions : [functions];
  for (const callback of callbacks) {
    refuseSettingIf(typeof callback !== "function", "callbacks", callback, "a function of an event and the fit, or a list of them");
  }
  return callbacks as readonly FitCallback[];
}

function resolveEarlyStopping(
  stopping: EarlyStoppingSettings,
  { metrics, functions }: ResolvedMetrics,
  terms: readonly string[],
): WireEarlyStopping {
  refuseSettingIf(typeof stopping !== "object", "earlyStopping", stopping, "an object with 'patience'");
  const { metric = "loss", ...settings } = stopping;
  const numbers = metrics.filter((one) => !one.settings.includes("none"));
  const better = new Map<string, "min" | "max" | null>([["loss", "min"]]);
  numbers.filter(({ type }) => BETTER[type as MetricType] !== null).forEach(({ key, type }) => better.set(key, BETTER[type as MetricType]));
  terms.forEach((term) => better.set(term, "min"));
  functions.forEach((_, name) => better.set(name, null));
  refuseSettingIf(!better.has(metric), "earlyStopping.metric", metric, `${[...better.keys(), "one of 'metrics'"].join(" or ")}, without 'val_'`);
  const checked = checkFields("earlyStopping", "earlyStopping.", settings, EARLY_STOPPING, ["metric"]);
  const { patience, minDelta, restoreBest, mode } = withDefaults(checked, EARLY_STOPPING);
  const direction = mode ?? better.get(metric);
  refuseIf(direction === null, "MISSING_SETTING", { what: "earlyStopping", name: "mode", expected: "min or max" });
  return {
    metric,
    restoresBest: restoreBest as boolean,
    rule: EARLY_STOPPING_RULE,
    settings: { patience: patience as number, min_delta: minDelta as number, sign: direction === "max" ? 1 : -1 },
  };
}
