/** The files of a training session, checked. */

import { mustBe } from "../data/checks.js";
import { checkKnown } from "../data/nearest.js";
import { CheckpointState } from "./checkpoint-state.js";
import { checkSource, isSource, type Source } from "./sources.js";
import { isObject } from "../wire/kinds.js";
import { throwIf } from "../wire/errors.js";

/** The files of artifacts by one name each. */
export interface SessionFiles {
  readonly trainModel: Source;
  readonly checkpointState: Source | CheckpointState;
  readonly evalModel?: Source | null;
  readonly optimizerModel?: Source | null;
}

/** @throws TypeError when they are neither artifacts nor a bundle */
export function checkTrainingOptions(options: unknown): SessionFiles | { readonly bundle: Source } {
  mustBe(isObject(options), "trainingOptions", "an object with 'trainModel' and 'checkpoint' (createFromModel takes a model)", options);
  if ("bundle" in options) {
    checkBundleOptions(options);
    return options as { readonly bundle: Source };
  }
  const { checkpointState, ...sources } = options as Readonly<Record<string, unknown>>;
  if (checkpointState && sources["checkpoint"]) {
    throw new TypeError("'trainingOptions' takes 'checkpoint' and 'checkpointState' for the same file: give one of them.");
  }
  const files: Readonly<Record<string, unknown>> = { ...sources, checkpoint: checkpointState || sources["checkpoint"] };
  const names = ["trainModel", "checkpoint", "evalModel", "optimizerModel"] as const;
  // The result of `buildArtifacts` may be passed as it is: it has the nominal checkpoint besides.
  checkKnown("The file", sources, [...names, "nominalCheckpoint"]);
  for (const name of names) {
    const source = files[name];
    const required = name === "trainModel" || name === "checkpoint";
    if (!source && !required) {
      continue;
    }
    throwIf(!source, TypeError, `'trainingOptions.${name}' is required: a URL, Uint8Array, ArrayBuffer or Blob.`);
    if (!(name === "checkpoint" && source instanceof CheckpointState)) {
      checkSource(`trainingOptions.${name}`, source);
    }
  }
  const { checkpoint, ...models } = files;
  return { ...models, checkpointState: checkpoint } as SessionFiles;
}

function checkBundleOptions(options: { readonly bundle: unknown }): void {
  const others = Object.keys(options).filter((name) => name !== "bundle");
  throwIf(others.length > 0, TypeError, `'trainingOptions.bundle' has the whole session; '${others[0]}' cannot be given besides.`);
  const isBundle = Boolean(options.bundle) && isSource(options.bundle);
  mustBe(isBundle, "trainingOptions.bundle", "a URL, Uint8Array, ArrayBuffer or Blob", options.bundle);
}
