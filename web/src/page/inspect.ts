/** Report whether a model trains, and at what cost, before any data is fetched: Python's `trainweb.check` as data. */

import type { ModelReport, WireModelReport } from "../wire/values.js";
import { modelMetadata } from "./call-values.js";
import { askOfModel } from "./load-model.js";
import { resolveOptions, type SessionOptions } from "./options.js";
import { checkSource, type Source } from "./sources.js";
import { resolveConfig, type TrainingConfig } from "./training-config.js";

/** The training configuration to check, and sizes of symbolic dims. The default of a size is the least that fits. */
export interface InspectConfig extends Partial<Omit<TrainingConfig, "dims">> {
  /** Sizes by the name of the dim. A model that cannot be trained otherwise is built with them (`dims` of the report). */
  readonly dims?: Readonly<Record<string, number>>;
}

/**
 * Report the trained tensors of a forward model, the obstacles to its training, and the cost of a step.
 *
 * @returns a report for every model, also for one that is not ONNX: the report has the error.
 * @throws TypeError for anything but a source; ModelError when it cannot be fetched, or for a configuration that does
 *   not exist; EngineError when the worker does not start
 */
export async function inspectModel(
  model: Source,
  config: InspectConfig = {},
  sessionOptions?: SessionOptions,
): Promise<ModelReport> {
  checkSource("model", model);
  const configJson = resolveConfig(config, ["dims"]);
  const { dims = {} } = config;
  const options = resolveOptions(sessionOptions);
  const { value } = await askOfModel(model, options, "inspect_model", [configJson, JSON.stringify(dims)]);
  const report = value as WireModelReport;
  const { modelMetadata: about } = report;
  return { ...report, modelMetadata: about && modelMetadata(about) };
}
