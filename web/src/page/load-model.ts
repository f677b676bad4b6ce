/** The first steps of every call that takes a forward model: load it with its external data, and start the worker. */

import type { GivenData } from "../wire/pieces.js";
import type { Answer, FileForm, GivenModel, ModelCall } from "../wire/protocol.js";
import { callOf, withWorker, type WorkerClient } from "./client.js";
import type { Keeping } from "./download.js";
import { expectFiles } from "./integrity.js";
import type { ResolvedOptions } from "./options.js";
import { externalBeside } from "./outside-data.js";
import { buffersOf, loadExternalData, loadSource, type ExternalSource, type Source } from "./sources.js";

/** A model, and the buffers that go over to the worker with it. */
export interface LoadedModel {
  readonly model: GivenModel;
  readonly buffers: ArrayBuffer[];
}

/** Finds the files that a graph needs besides those of the options; by default those in the folder of its URL. */
export type Beside = (graph: GivenData) => Promise<readonly ExternalSource[]>;

/**
 * Open something of a model in the worker, once the model, the worker and Python are ready.
 *
 * @param open - makes the object, which keeps the worker until `WorkerClient.leave`; null: a kept file is damaged
 * @param mayBeCached - true: the worker may have it stored, and need no Python. It checks the kept files
 * @throws ModelError when a file cannot be fetched or has another hash; EngineError when the worker does not start
 */
export function withModel<T>(
  model: Source,
  options: ResolvedOptions,
  open: (client: WorkerClient, loaded: LoadedModel) => Promise<T | null>,
  mayBeCached = false,
  beside: Beside = (graph) => externalBeside(model, graph),
): Promise<T> {
  expectFiles(options.integrity, ["model"]);
  const isMore = ({ path }: ExternalSource): boolean => options.externalData.every((other) => other.path !== path);
  return withWorker(options, async (client) => {
    // A cached session needs no Python. Without a cached one, Python starts later.
    const python = mayBeCached ? null : client.startPython();
    const openWith = async (cache: Keeping): Promise<T | null> => {
      const how = { ...options, cache };
      const loading = loadSource("model", model, how);
      const [file, ...externals] = await Promise.all([
        loading,
        loadExternalData(options.externalData, how),
        loading.then(beside).then((files) => loadExternalData(files.filter(isMore), how)),
      ]);
      const external = externals.flat();
      await client.ready;
      await python;
      if (!mayBeCached) {
        options.progress.compiles();
      }
      return open(client, { model: { file, external }, buffers: buffersOf(file, ...external.map(({ data }) => data)) });
    };
    const opened = mayBeCached ? await openWith("unchecked") : null;
    return opened ?? ((await openWith(options.cache)) as T);
  });
}

/** Have a function of Python's bridge work on a model that nobody keeps. */
export function askOfModel(
  model: Source,
  options: ResolvedOptions,
  name: ModelCall,
  args: readonly (string | number)[],
  form: FileForm = "bytes",
): Promise<Answer<"ofModel">> {
  return withModel(model, options, async (client, { model: loaded, buffers }) => {
    const answer = await client.request(callOf("ofModel", [name, loaded, args, form], buffers));
    client.leave();
    return answer;
  });
}
