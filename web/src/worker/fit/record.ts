/** The record of a fit in its checkpoint. It is checked whole before anything changes; `trainweb/fit/resume.py` is the same. */

import { countBatches } from "../../data/epoch.js";
import type { EpochRecord, EvalValues, FitPosition, MetricValue, Remainder } from "../../wire/fit.js";
import { refuseIf } from "../../wire/messages.js";
import type { NamedTensor } from "../../wire/values.js";
import * as fields from "../fields.js";
import type { TensorFile } from "../safetensors.js";
import { LONGEST_NAME } from "../../wire/constants.js";

/** The options of a fit that must be as they were, as the page sends them. */
export interface FitOptions {
  readonly batchSize: number | null;
  readonly remainder: Remainder | null;
  readonly stepsPerEpoch: number | null;
  /** Of data in memory; null for a stream. */
  readonly rows: number | null;
}

/** The state that a fit resumes from. */
export interface FitRecord {
  readonly position: FitPosition;
  readonly epochs: readonly EpochRecord[];
  readonly losses: Float32Array;
  /** Parameters of the best epoch. */
  readonly best: Uint8Array | null;
}

/**
 * A snapshot with the record of a fit. Texts stand for NaN and infinities, which JSON does not have.
 *
 * @param options - as JSON
 */
export function writeFit(
  { metadata, tensors }: TensorFile,
  options: string,
  { position, epochs, losses, best }: FitRecord,
): TensorFile {
  const epochsJson = JSON.stringify(epochs, (_, value: unknown) => fields.TEXTS.get(value) ?? value);
  const history = `{"options":${options},"epochs":${epochsJson}}`;
  const flat = (name: string, data: Uint8Array): [string, NamedTensor] => [
    name,
    { name, dtype: "float32", dims: [data.length / 4], data },
  ];
  const arrays = [flat("losses", new Uint8Array(losses.buffer)), ...(best === null ? [] : [flat("best", best)])];
  return {
    metadata: { ...metadata, history, position: JSON.stringify(position) },
    tensors: new Map([...tensors, ...arrays]),
  };
}

/** @throws CheckpointError when no fit wrote the checkpoint. @throws ModelError when a fit with other options did */
export function checkOptions({ metadata, tensors }: TensorFile, name: string, expected: FitOptions): void {
  refuseIf(metadata["history"] === undefined || metadata["position"] === undefined || !tensors.has("losses"), "NO_FIT", { name });
  const record = fields.mapping(fields.parse(metadata, "history"), "history");
  const options = fields.mapping(record["options"], "history.options");
  for (const [option, value] of Object.entries(expected)) {
    const stored = options[option] ?? null;
    if ((typeof stored === "object" && stored !== null) || String(stored).length > LONGEST_NAME) {
      fields.refuse(stored, `history.options.${option}`, "an option of fit");
    }
    refuseIf(stored !== value, "OTHER_FIT", { name, option, stored, actual: value });
  }
}

/** @throws ModelError for an epoch that says nothing to early stopping or the schedule, which look at each again */
export function checkWatched(epochs: readonly EpochRecord[], name: string, watched: string): void {
  for (const { epoch, loss, validation } of epochs) {
    const values: EvalValues = validation ?? { loss };
    for (const metric of ["loss", watched]) {
      const value = Object.hasOwn(values, metric) ? values[metric] : undefined;
      refuseIf(value === undefined || Array.isArray(value), "UNWATCHED_EPOCH", { name, metric, epoch });
    }
  }
}

/**
 * Read the state that a fit with these options resumes from.
 *
 * @param size - elements of the parameters
 * @param byRows - losses were divided by the number of rows
 * @throws CheckpointError for values that no fit leaves
 */
export function readFit(snapshot: TensorFile, options: FitOptions, size: number, byRows: boolean): FitRecord {
  const history = fields.mapping(fields.parse(snapshot.metadata, "history"), "history");
  const epochs = fields.array(history["epochs"], "history.epochs").map(readEpoch);
  const steps = epochs.reduce((sum, epoch) => sum + epoch.steps, 0);
  const losses = new Float32Array(readFloats(snapshot, "losses", null).buffer);
  const position = readPosition(snapshot, options, epochs.length, losses.length, byRows);
  // Batches that onNaN undid have a loss of NaN, and do not count as steps.
  const before = losses.subarray(0, losses.length - position.step).filter((loss) => !Number.isNaN(loss));
  fields.count(before.length, "number of losses of epochs that are done", steps, steps);
  const best = snapshot.tensors.has("best") ? readFloats(snapshot, "best", size) : null;
  return { position, epochs, losses, best };
}

/** Check how far the fit was, which has so many epochs and losses. */
function readPosition(
  { metadata }: TensorFile,
  options: FitOptions,
  epochs: number,
  losses: number,
  byRows: boolean,
): FitPosition {
  const record = fields.mapping(fields.parse(metadata, "position"), "position");
  const { rows: dataRows, batchSize: size, remainder, stepsPerEpoch } = options;
  const ofData = dataRows === null || size === null ? Infinity : countBatches(dataRows, size, remainder ?? "keep");
  const batches = stepsPerEpoch ?? ofData;
  const count = (name: keyof FitPosition, least = 0, most?: number): number =>
    fields.count(record[name], `position.${name}`, least, most);
  const step = count("step", 0, Math.min(losses, batches));
  // Weights of labels may be any numbers.
  const rows = fields.number(record["rows"], "position.rows");
  if (byRows || step === 0) {
    count("rows", 0, step === 0 ? 0 : size === null ? undefined : step * size);
  }
  const lossSum = fields.number(record["lossSum"], "position.lossSum");
  if (rows === 0 && lossSum !== 0) {
    fields.refuse(lossSum, "position.lossSum", "0");
  }
  const epoch = count("epoch", epochs, epochs);
  const terms = fields.array("terms" in record ? record["terms"] : [], "position.terms");
  return { epoch, step, lossSum, rows, optimizerSteps: count("optimizerSteps", 0, losses), terms: terms.map((term) => fields.number(term, "position.terms")) };
}

/** A copy of a tensor of float32 with one axis, of this size unless it is null. */
function readFloats({ tensors }: TensorFile, name: string, size: number | null): Uint8Array<ArrayBuffer> {
  const tensor = tensors.get(name);
  if (tensor?.dtype !== "float32" || tensor.dims.length !== 1 || (size !== null && tensor.dims[0] !== size)) {
    return fields.refuse(tensor?.dims, name, `float32 of shape [${size ?? "n"}]`);
  }
  return new Uint8Array(tensor.data);
}

/** An epoch of the file, which follows `index` others. */
function readEpoch(value: unknown, index: number): EpochRecord {
  const field = `history.epochs[${index}]`;
  const { validation, training, terms = {}, ...epoch } = fields.mapping(value, field);
  const values = {
    validation: readValues(validation, `${field}.validation`),
    training: readValues(training, `${field}.training`),
  };
  const ofTerms = Object.entries(fields.mapping(terms, `${field}.terms`));
  return {
    epoch: fields.count(epoch["epoch"], `${field}.epoch`, index + 1, index + 1),
    steps: fields.count(epoch["steps"], `${field}.steps`),
    loss: fields.anyNumber(epoch["loss"], `${field}.loss`),
    learningRate: fields.rate(epoch["learningRate"], `${field}.learningRate`),
    seconds: fields.rate(epoch["seconds"], `${field}.seconds`),
    ...values,
    terms: Object.fromEntries(ofTerms.map(([name, term]) => [name, fields.anyNumber(term, `${field}.terms`)])),
  };
}

/** The loss and metrics of some data, by name; null: it was not evaluated. */
function readValues(value: unknown, field: string): EvalValues | null {
  const read = ([n, v]: [string, unknown]): [string, MetricValue] =>
    [n, readMetric(v, `${field}.${n.slice(0, LONGEST_NAME)}`)];
  if (value === null) {
    return null;
  }
  const values = fields.mapping(value, field);
  const loss = fields.anyNumber(values["loss"], `${field}.loss`);
  return { ...Object.fromEntries(Object.entries(values).map(read)), loss };
}

/** A number, or a matrix of counts. */
function readMetric(value: unknown, field: string): MetricValue {
  return Array.isArray(value)
    ? value.map((row) => fields.array(row, field).map((n) => fields.count(n, field)))
    : fields.anyNumber(value, field);
}
