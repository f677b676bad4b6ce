/** Training and validation data of a fit; `trainweb/fit/plan.py` is the same in Python. */

import type { Tensor } from "onnxruntime-common";

import type { Dataset, DataSource } from "../data/dataset.js";
import type { Batch } from "../data/rows.js";
import { labelsOf } from "../data/split.js";
import type { PreprocessingStep } from "../data/table.js";
import { COMPARED_LABELS, NAMED_CLASSES } from "../wire/constants.js";
import { refuseIf, warnIf } from "../wire/messages.js";
import type { SessionInfo } from "../wire/protocol.js";
import type { ModelInputs } from "./model-inputs.js";
import { isOnCpu, productOf } from "./tensors.js";

/** Steps of tables that the rows of the last fit had, by sessions. */
export const FITTED = new WeakMap<object, readonly PreprocessingStep[]>();

/** The training data and the validation data. @param name - the input that has the classes */
export function splitData(
  inputs: ModelInputs,
  name: string,
  data: unknown,
  validation: DataSource | null,
  { validationSplit: share, stratify }: { readonly validationSplit: number | null; readonly stratify: boolean | string },
): [Dataset, Dataset | null] {
  const train = inputs.dataset(data);
  if (share === null) {
    refuseIf(stratify !== false, "STRATIFIED_NOTHING");
    const given = validation === null ? null : inputs.dataset(validation);
    if (given !== null) {
      warnOfMissing("ABSENT_CLASSES", name, train, given);
    }
    return [train, given];
  }
  refuseIf(validation !== null, "TWO_VALIDATIONS");
  if (stratify !== false) {
    return train.split(share, { stratify: name });
  }
  const parts = train.split(share);
  warnOfMissing("MISSING_CLASSES", name, ...parts);
  return parts;
}

/** Warn of steps that only the training rows have. @throws FeedError for a label that is another class in these */
export function warnOfSteps(inputs: ModelInputs, expected: readonly PreprocessingStep[], data: Dataset, source: string): void {
  for (const step of expected.filter(({ input }) => !inputs.unread.includes(input))) {
    const same = data.preprocessing.find(({ type, input }) => type === step.type && input === step.input);
    const [[ours = []] = [], [theirs = []] = []] = [step, same ?? step].map((one) => ("categories" in one ? one.categories : []));
    const place = ours.findIndex((one, at) => at < theirs.length && one !== theirs[at]);
    refuseIf(place >= 0, "OTHER_CLASSES", { place, name: step.input, actual: theirs[place], expected: ours[place], source });
  }
  const done = data.preprocessing.map((step) => JSON.stringify(step));
  const lacking = expected.filter((step) => !done.includes(JSON.stringify(step)));
  if (lacking.some(({ input, dtype }) => dtype !== undefined && data.columns?.has(input))) { // not those of folders
    const steps = lacking.map(({ type, input }) => `${type} of '${input}'`).join(", ");
    inputs.warn("UNPREPARED_VALIDATION", { source, steps });
  }
}

/** Warn of labels, in columns or a batch, that are the tokens of another input, for losses do not shift them, or no probabilities. */
export function warnOfLabels(inputs: ModelInputs, info: SessionInfo, all: Batch): void {
  const fed = Object.fromEntries(Object.entries(all).filter(([, tensor]) => isOnCpu(tensor)));
  warnOfScores(inputs, info, fed);
  const start = ({ data }: Tensor): number[] => Array.from(data.slice(0, COMPARED_LABELS) as ArrayLike<number | bigint>, Number);
  const ofTokens = Object.entries(fed).filter(([, { type, dims }]) => type === "int64" && dims.length === 2);
  for (const [name, given] of ofTokens.filter(([one]) => info.pairs.some(([, labels]) => labels === one))) {
    const labels = start(given);
    const learned = labels.filter((label) => label >= 0);
    for (const [other, tokens] of ofTokens.filter(([one, { dims }]) => one !== name && dims.join() === given.dims.join())) {
      const copies = start(tokens).every((token, k) => (labels[k] as number) < 0 || token === labels[k]);
      if (copies && Math.max(...learned) - Math.min(...learned) > 1) {
        inputs.warn("COPIED_LABELS", { name, other });
      }
    }
  }
}

/** Warn of labels of a mean cross entropy that should be probabilities: whose mean over no axis is that of such. */
function warnOfScores(inputs: ModelInputs, { pairs, entropies }: SessionInfo, fed: Batch): void {
  for (const [, name] of pairs.filter(([output]) => entropies.some(([of]) => of === "" || of === output))) {
    const { type = "", dims = [], data } = fed[name] ?? {};
    const size = productOf(dims.slice(1));
    const first = type === "float32" ? [...(data as Float32Array).subarray(0, size * Math.ceil(COMPARED_LABELS / size))] : [];
    const rows = Array.from({ length: first.length / size }, (_, k) => first.slice(k * size, (k + 1) * size));
    const sums = rows.map((row) => row.reduce((sum, value) => sum + value, 0));
    const isOf = (classes: number): boolean => sums.every((sum) => Math.abs((sum * classes) / size - 1) <= 1e-3);
    if (sums.length > 0 && !(first.every((value) => value >= 0) && dims.slice(1).some(isOf))) {
      inputs.warn("NO_PROBABILITIES", { name });
    }
  }
}

/** Warn of classes that only one of two parts has, if there are few classes. */
function warnOfMissing(message: "ABSENT_CLASSES" | "MISSING_CLASSES", name: string, train: Dataset, validation: Dataset): void {
  const [trained, validated] = [labelsOf(train.column(name)), labelsOf(validation.column(name))];
  const classes = [...new Set([...(trained ?? []), ...(validated ?? [])])].sort((a, b) => a - b);
  // Of many classes some are rare.
  if (trained === null || validated === null || classes.length > NAMED_CLASSES) {
    return;
  }
  for (const [part, present] of [["training", trained], ["validation", validated]] as const) {
    const missing = classes.filter((label) => !present.includes(label));
    warnIf(missing.length > 0, message, { part, name, classes: missing.join(", ") });
  }
}
