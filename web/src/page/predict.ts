/** Predictions and values of a session on data; `trainweb/fit/predict.py` is the same in Python. */

import type { Tensor } from "onnxruntime-common";

import { refuseEmpty } from "../data/epoch.js";
import { refuseSettingIf } from "../data/checks.js";
import { checkOptions } from "../data/nearest.js";
import { Dataset } from "../data/dataset.js";
import type { Batch, Row } from "../data/rows.js";
import { inUnits } from "../data/table.js";
import { areTexts } from "../wire/kinds.js";
import type { Evaluated, EvalValues, Unit, Units, WireBatch } from "../wire/fit.js";
import { refuseIf } from "../wire/messages.js";
import type { NamedTensor, SessionInfo } from "../wire/protocol.js";
import { settingsOf } from "./check-settings.js";
import { callOf } from "./client.js";
import { packBatch, type FitHost } from "./fit/run.js";
import { ModelInputs } from "./model-inputs.js";
import { checkAverages, resolveEvaluation, resolveMetrics } from "./fit/options.js";
import { withFunctions, type Metrics } from "./own-metrics.js";
import { BATCHES, type BatchFields } from "./settings/fit.js";
import { FITTED, warnOfSteps } from "./split.js";
import { joined, unpackNamed } from "./tensors.js";

const KNOWN = { batchSize: true, batched: true, ema: true } as const;

/** Number of evaluations that the page has begun, which numbers them. */
let evaluations = 0;

/** Options of `predict`. The last batch is padded, and the results of the padding are left out. */
export interface PredictOptions extends BatchFields {
  /** Tensors of the eval model; by default the outputs of the model. */
  readonly outputs?: readonly string[];
}

/** Options of `evaluate`. */
export interface EvaluateOptions<M extends Metrics = Metrics> extends BatchFields {
  /** Values to compute besides the loss. */
  readonly metrics?: M;
  /** Output of the eval model for metrics; by default the output of the model that the loss compares with the targets. */
  readonly predictions?: string;
  /** Input of the eval model that metrics compare it with; by default the one that the loss compares. */
  readonly targets?: string;
}

/** See `TrainingSession.predict`. */
export async function predict(host: FitHost, data: unknown, options: PredictOptions): Promise<Record<string, Tensor>> {
  const { outputs, ...others } = checkOptions("predict", options, { ...KNOWN, outputs: true });
  const { handle, evalInputNames, compared, pairs } = host.info;
  const names = outputs ?? ownOutputs(host.info);
  refuseSettingIf(!areTexts(names) || names.length === 0, "outputs", names, "a list of tensors of the eval model");
  const unread = await host.send(() => callOf("unread", [handle, [...names]]));
  const { batches, ema, whole: fixed, units } = resolve(host, data, others, unread);
  const parts: NamedTensor[][] = [];
  const numbers: number[] = [];
  let [size, first] = [fixed ?? 0, 0];
  let isBucketed = false;
  for await (const rows of batches) {
    const batch = await packBatch(rows, evalInputNames, parts.length, first);
    size ||= batch.rows;
    isBucketed ||= (batch.numbers ?? null) !== null;
    const results = await host.send(() => callOf("predict", [handle, [...names], batch, size, ema]));
    if (parts.length > 0) {
      results.forEach((result) => checkRows(result, batch.rows));
    }
    parts.push([...results]);
    for (let k = 0; k < batch.rows; k++) {
      numbers.push(batch.numbers?.[k] ?? first + k);
    }
    first += batch.rows;
  }
  refuseEmpty(parts.length === 0);
  const results = inOrder(unpackNamed(names.map((name, k) => joined(name, parts.map((part) => part[k] as NamedTensor), isBucketed))), numbers);
  const ofLoss = pairs.length > 0 ? pairs : [[compared, evalInputNames.at(-1) as string] as const];
  const unitOf = (name: string): Unit | undefined => units.get(ofLoss.find(([output, targets]) => output === name && units.has(targets))?.[1] ?? "");
  return Object.fromEntries(Object.entries(results).map(([name, tensor]) => [name, inUnits(name, tensor, unitOf(name))]));
}

/** See `TrainingSession.evaluate`. */
export async function evaluate(host: FitHost, data: unknown, options: EvaluateOptions): Promise<EvalValues> {
  const known = { ...KNOWN, metrics: true, predictions: true, targets: true } as const;
  const { metrics = [], predictions, targets, ...others } = checkOptions("evaluate", options, known);
  const { batches, ema, units } = resolve(host, data, others);
  const names = { ...(predictions === undefined ? {} : { predictions }), ...(targets === undefined ? {} : { targets }) };
  const resolved = resolveMetrics(metrics);
  const evaluation = resolveEvaluation(host.info, names, resolved, units);
  const { handle, evalInputNames } = host.info;
  const number = evaluations++;
  const send = (batch: WireBatch | null): Promise<Evaluated | null> =>
    host.send(() => callOf("evaluate", [handle, number, evaluation, batch, ema]));
  let [count, first] = [0, 0];
  try {
    for await (const rows of batches) {
      const batch = await packBatch(rows, evalInputNames, count++, first);
      first += batch.rows;
      await send(batch);
    }
  } catch (error) {
    // The worker forgets what it has summed up.
    await send(null).catch(() => {});
    throw error;
  }
  refuseEmpty(count === 0);
  return withFunctions((await send(null)) as Evaluated, evaluation, resolved.functions);
}

function resolve(
  { info }: FitHost,
  data: unknown,
  options: BatchFields,
  unread: readonly string[] = [],
): { readonly batches: AsyncIterable<Row | Batch>; readonly ema: boolean; readonly whole: number | null; readonly units: Units } {
  const { batchSize, batched, ema } = settingsOf<Required<BatchFields>>("options", options, BATCHES);
  refuseIf(!info.hasEval, "NO_EVAL_MODEL");
  if (ema) {
    checkAverages(info);
  }
  const inputs = new ModelInputs(info, "eval", unread);
  const dataset = inputs.dataset(data);
  inputs.require(dataset, "data");
  warnOfSteps(inputs, FITTED.get(info) ?? [], dataset, "given rows");
  refuseIf(dataset.isBatched && batchSize !== null, "BATCH_OF_BATCHES", { name: "batchSize" });
  refuseIf(dataset.isPadded, "PADDED_VALIDATION");
  refuseIf(dataset.columns !== null && batched === true, "BATCHED_ARRAYS");
  const batches = dataset.columns === null
    ? inputs.batches(dataset, { batchSize, batched, remainder: "keep" })
    : dataset.batch(inputs.size(batchSize));
  return { batches: batches.read(null), ema, whole: inputs.rows, units: inputs.units(dataset) };
}

/** @throws SessionError where the eval model gives nothing but the loss */
export function ownOutputs({ hasEval, evalOutputNames, ownOutputs: names }: SessionInfo): readonly string[] {
  refuseIf(!hasEval, "NO_EVAL_MODEL");
  refuseIf(names.length === 0, "NO_OWN_OUTPUTS", { names: evalOutputNames.join(", ") });
  return names;
}

/** The rows of buckets in the order of the data. */
function inOrder(results: Record<string, Tensor>, numbers: readonly number[]): Record<string, Tensor> {
  if (numbers.every((number, k) => number >= (numbers[k - 1] ?? 0))) {
    return results;
  }
  const order = numbers.map((_, k) => k).sort((a, b) => (numbers[a] as number) - (numbers[b] as number));
  return Object.fromEntries(new Dataset(results).rows(order).columns ?? []);
}

function checkRows({ name, dims }: NamedTensor, rows: number): void {
  refuseIf(dims[0] !== rows, "NO_ROWS_IN_OUTPUT", { name, shape: dims, rows });
}
