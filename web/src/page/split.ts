/** Training and validation data of a fit; `trainweb/fit/plan.py` is the same in Python. */

import type { Dataset, DataSource } from "../data/dataset.js";
import { labelsOf } from "../data/split.js";
import { NAMED_CLASSES } from "../wire/constants.js";
import { log } from "../wire/log.js";
import { sessionError, refuseIf } from "../wire/messages.js";
import type { ModelInputs } from "./model-inputs.js";

/**
 * The training data and the validation data.
 *
 * @param name - the input that has the classes
 */
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
    return [train, validation === null ? null : inputs.dataset(validation)];
  }
  refuseIf(validation !== null, "TWO_VALIDATIONS");
  if (stratify !== false) {
    return train.split(share, { stratify: name });
  }
  const parts = train.split(share);
  const labels = labelsOf(train.known?.get(name));
  if (labels !== null) {
    warnOfMissing(name, labels, parts[0].size as number);
  }
  return parts;
}

/** Warn of steps of tables that only the training rows have. */
export function warnOfSteps(train: Dataset, validation: Dataset): void {
  const done = validation.preprocessing.map((step) => JSON.stringify(step));
  const lacking = train.preprocessing.filter((step) => !done.includes(JSON.stringify(step)));
  if (lacking.length > 0 && validation.columns !== null) {
    const steps = lacking.map(({ type, input }) => `${type} of '${input}'`).join(", ");
    log("warning", sessionError("UNPREPARED_VALIDATION", { steps }).message);
  }
}

/** Warn of classes that only one of two parts has, if there are few classes. */
function warnOfMissing(name: string, labels: readonly number[], first: number): void {
  const classes = [...new Set(labels)].sort((a, b) => a - b);
  for (const [part, present] of [["training", labels.slice(0, first)], ["validation", labels.slice(first)]] as const) {
    const missing = classes.filter((label) => !present.includes(label));
    // Of many classes some are rare.
    if (missing.length > 0 && classes.length <= NAMED_CLASSES) {
      log("warning", sessionError("MISSING_CLASSES", { part, name, classes: missing.join(", ") }).message);
    }
  }
}
