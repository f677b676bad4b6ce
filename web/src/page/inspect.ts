/** Whether and at what cost a model can be trained, before any data are fetched: `trainweb.check` of Python as data. */

import type { ModelReport } from "../wire/report.js";
import { callOf, withWorker } from "./client.js";
import { resolveOptions, type SessionOptions } from "./options.js";
import { buffersOf, isSource, loadExternalData, loadSource, type Source } from "./sources.js";
import { describe } from "../data/given.js";
import { resolveConfig, type TrainingConfig } from "./training-config.js";

/** What the model would be trained with, and sizes of its symbolic dims, the least that fit where none is given. */
export interface InspectConfig extends Partial<TrainingConfig> {
  /** Sizes by the name of the dim. */
  readonly dims?: Readonly<Record<string, number>>;
}

/**
 * Report what of a forward model is trained, what stands in the way, and what a step costs.
 *
 * @returns a report for every model, also for one that is not ONNX: what is wrong is told in it
 * @throws TypeError for something that is no source; ModelError when it cannot be fetched, or for a configuration
 *   that does not exist; EngineError when the worker does not start
 */
export async function inspectModel(
  model: Source,
  config: InspectConfig = {},
  sessionOptions?: SessionOptions,
): Promise<ModelReport> {
  if (!isSource(model)) {
    throw new TypeError(`'model' must be a URL, Uint8Array, ArrayBuffer or Blob, got ${describe(model)}.`);
  }
  const { dims = {}, ...rest } = config;
  const configJson = resolveConfig(rest);
  const options = resolveOptions(sessionOptions);
  options.integrity.expect(["model"]);
  return withWorker(options, async (client) => {
    const python = client.startPython();
    const [file, external] = await Promise.all([
      loadSource("model", model, options.integrity, options.progress),
      loadExternalData(options.externalData, options.progress),
    ]);
    await client.ready;
    await python;
    options.progress.compiles();
    const buffers = buffersOf(file, ...external.map(({ data }) => data));
    const call = callOf("inspectModel", [file, external, configJson, JSON.stringify(dims)], buffers);
    const report = await client.request(call);
    client.leave();
    return report;
  });
}
