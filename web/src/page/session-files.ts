/** The files of a training session, checked. */

import { describe } from "../data/given.js";
import { checkKnown } from "../data/nearest.js";
import { CheckpointState } from "./checkpoint-state.js";
import { isSource } from "./sources.js";

/** @throws TypeError when they are neither artifacts nor a bundle */
export function checkTrainingOptions(options: unknown): void {
  if (typeof options !== "object" || options === null) {
    throw new TypeError("'trainingOptions' must be an object with 'trainModel' and 'checkpointState'.");
  }
  if ("bundle" in options) {
    checkBundleOptions(options);
    return;
  }
  const names = ["trainModel", "checkpointState", "evalModel", "optimizerModel"] as const;
  // The result of `buildArtifacts` may be passed as it is: it has the nominal checkpoint besides.
  checkKnown("The file", options, [...names, "nominalCheckpoint"]);
  for (const name of names) {
    const source = (options as Readonly<Record<string, unknown>>)[name];
    const required = name === "trainModel" || name === "checkpointState";
    if (!source && !required) {
      continue;
    }
    if (!source) {
      throw new TypeError(`'trainingOptions.${name}' is required: a URL, Uint8Array, ArrayBuffer or Blob.`);
    }
    if (!isSource(source) && !(name === "checkpointState" && source instanceof CheckpointState)) {
      throw new TypeError(
        `'trainingOptions.${name}' must be a URL, Uint8Array, ArrayBuffer or Blob, got ${describe(source)}.`,
      );
    }
  }
}

function checkBundleOptions(options: { readonly bundle: unknown }): void {
  const others = Object.keys(options).filter((name) => name !== "bundle");
  if (others.length > 0) {
    throw new TypeError(`'trainingOptions.bundle' has the whole session; '${others[0]}' cannot be given besides.`);
  }
  if (!options.bundle || !isSource(options.bundle)) {
    throw new TypeError(
      `'trainingOptions.bundle' must be a URL, Uint8Array, ArrayBuffer or Blob, got ${describe(options.bundle)}.`,
    );
  }
}
