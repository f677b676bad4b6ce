/** Checks of everything that a fit takes of its checkpoint, before anything changes; `trainweb/fit/resume.py` is the same. */

import { countBatches } from "../data/epoch.js";
import type { FitPosition, Remainder, Resumed } from "../wire/fit.js";
import { sessionError } from "../wire/messages.js";
import * as fields from "./fields.js";
import type { TensorFile } from "./safetensors.js";
import { LONGEST_NAME } from "./snapshot.js";

/** The options of a fit that must be as they were, as the page sends them. */
export interface FitOptions {
  readonly batchSize: number | null;
  readonly remainder: Remainder | null;
  /** Of data in memory; null for a stream. */
  readonly rows: number | null;
}

/** An epoch as early stopping and the schedule look at it. */
export interface Watched {
  readonly epoch: number;
  readonly loss: unknown;
  readonly validation: Readonly<Record<string, unknown>> | null;
}

/**
 * @throws CheckpointError when no fit wrote the checkpoint
 * @throws ModelError when a fit with other options did
 */
export function checkOptions({ metadata, tensors }: TensorFile, name: string, given: FitOptions): void {
  if (metadata["history"] === undefined || metadata["position"] === undefined || !tensors.has("losses")) {
    throw sessionError("NO_FIT", { name });
  }
  const record = fields.mapping(fields.parse(metadata, "history"), "history");
  const options = fields.mapping(record["options"], "history.options");
  for (const [option, value] of Object.entries(given)) {
    const stored = options[option] ?? null;
    if ((typeof stored === "object" && stored !== null) || String(stored).length > LONGEST_NAME) {
      fields.refuse(stored, `history.options.${option}`, "an option of fit");
    }
    if (stored !== value) {
      throw sessionError("OTHER_FIT", { name, option, stored, given: value });
    }
  }
}

/** @throws ModelError for an epoch that says nothing to early stopping or the schedule, which look at each again */
export function checkWatched(epochs: readonly Watched[], name: string, watched: string): void {
  for (const { epoch, loss, validation } of epochs) {
    const values = validation ?? { loss };
    for (const metric of ["loss", watched]) {
      const value = Object.hasOwn(values, metric) ? values[metric] : undefined;
      if (value === undefined || Array.isArray(value)) {
        throw sessionError("UNWATCHED_EPOCH", { name, metric, epoch });
      }
    }
  }
}

/**
 * Read the state that a fit with these options resumes from.
 *
 * @param size - elements of the parameters
 * @throws CheckpointError for values that no fit leaves
 */
export function readFit(snapshot: TensorFile, options: FitOptions, size: number): Resumed {
  const record = fields.mapping(fields.parse(snapshot.metadata, "history"), "history");
  const epochs = fields.array(record["epochs"], "history.epochs");
  const steps = epochs.reduce<number>((sum, epoch, k) => sum + readEpoch(epoch, k), 0);
  const losses = new Float32Array(readFloats(snapshot, "losses", null).buffer);
  const position = readPosition(snapshot, options, epochs.length, losses.length);
  // Batches that onNaN undid have a loss of NaN, and do not count as steps.
  const before = losses.subarray(0, losses.length - position.step).filter((loss) => !Number.isNaN(loss));
  fields.count(before.length, "number of losses of epochs that are done", steps, steps);
  const best = snapshot.tensors.has("best") ? readFloats(snapshot, "best", size) : null;
  return { position, epochs: JSON.stringify(epochs), losses, best };
}

/** Check how far the fit was, which has so many epochs and losses. */
function readPosition({ metadata }: TensorFile, options: FitOptions, epochs: number, losses: number): FitPosition {
  const record = fields.mapping(fields.parse(metadata, "position"), "position");
  const { rows: given, batchSize: size, remainder } = options;
  const batches = given === null || size === null ? Infinity : countBatches(given, size, remainder ?? "keep");
  const count = (name: keyof FitPosition, least = 0, most?: number): number =>
    fields.count(record[name], `position.${name}`, least, most);
  const step = count("step", 0, Math.min(losses, batches));
  const rows = count("rows", 0, size !== null ? step * size : step === 0 ? 0 : undefined);
  const lossSum = fields.number(record["lossSum"], "position.lossSum");
  if (rows === 0 && lossSum !== 0) {
    fields.refuse(lossSum, "position.lossSum", "0");
  }
  const epoch = count("epoch", epochs, epochs);
  return { epoch, step, lossSum, rows, optimizerSteps: count("optimizerSteps", 0, losses) };
}

/** A copy of a tensor of float32 with one axis, of this size unless it is null. */
function readFloats({ tensors }: TensorFile, name: string, size: number | null): Uint8Array<ArrayBuffer> {
  const tensor = tensors.get(name);
  if (tensor?.dtype !== "float32" || tensor.dims.length !== 1 || (size !== null && tensor.dims[0] !== size)) {
    return fields.refuse(tensor?.dims, name, `float32 of shape [${size ?? "n"}]`);
  }
  return new Uint8Array(tensor.data);
}

/** Check an epoch of the file, which follows `index` others; returns its steps. */
function readEpoch(given: unknown, index: number): number {
  const field = `history.epochs[${index}]`;
  const epoch = fields.mapping(given, field);
  if (epoch["validation"] !== null) {
    for (const [name, value] of Object.entries(fields.mapping(epoch["validation"], `${field}.validation`))) {
      checkMetric(value, `${field}.validation.${name.slice(0, LONGEST_NAME)}`);
    }
  }
  fields.count(epoch["epoch"], `${field}.epoch`, index + 1, index + 1);
  const steps = fields.count(epoch["steps"], `${field}.steps`);
  fields.anyNumber(epoch["loss"], `${field}.loss`);
  fields.rate(epoch["learningRate"], `${field}.learningRate`);
  fields.rate(epoch["seconds"], `${field}.seconds`);
  return steps;
}

/** Check a number, or a matrix of counts. */
function checkMetric(value: unknown, field: string): void {
  if (!Array.isArray(value)) {
    fields.anyNumber(value, field);
    return;
  }
  value.forEach((row) => fields.array(row, field).forEach((n) => fields.count(n, field)));
}
