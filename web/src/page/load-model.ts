/** The first steps of every call that takes a forward model: load it with its external data, and start the worker. */

import type { SourceData } from "../wire/pieces.js";
import type { Answer, BridgeArguments, FileForm, ModelCall } from "../wire/protocol.js";
import { callOf, withWorker, type WorkerClient } from "./client.js";
import type { Keeping } from "./download.js";
import { expectFiles } from "./integrity.js";
import type { ResolvedOptions } from "./options.js";
import { externalBeside } from "./outside-data.js";
import { loadExternalData, loadSource, type ExternalSource, type LoadOptions, type Source } from "./sources.js";

/** Gives the arguments of a function of Python's bridge: the model, these, and the external data. */
export type ArgumentsOf = (...args: readonly string[]) => BridgeArguments;

/** Finds the files that a graph needs besides files of the options; by default files in the folder of its URL. */
export type Beside = (graph: SourceData) => Promise<readonly ExternalSource[]>;

/**
 * Load files, and open something of them in a worker, once they, the worker and Python are ready.
 *
 * @param mayBeCached - true: the worker may have it stored, and need no Python. It checks the kept files
 * @param open - null: a kept file is damaged
 */
export async function withFiles<Files, T>(
  client: WorkerClient,
  options: ResolvedOptions,
  mayBeCached: boolean,
  load: (how: LoadOptions) => Promise<Files>,
  open: (files: Files) => Promise<T | null>,
): Promise<T> {
  // A cached session needs no Python. Without a cached one, Python starts later.
  const python = mayBeCached ? null : client.startPython();
  const openWith = async (cache: Keeping): Promise<T | null> => {
    const files = await load({ ...options, cache });
    await client.ready;
    await python;
    if (!mayBeCached) {
      options.progress.compiles();
    }
    return open(files);
  };
  const opened = mayBeCached ? await openWith("unchecked") : null;
  return opened ?? ((await openWith(options.cache)) as T);
}

/**
 * Open something of a model in the worker.
 *
 * @param open - makes the object, which keeps the worker until `WorkerClient.leave`; null: a kept file is damaged
 * @param mayBeCached - as of `withFiles`
 * @throws ModelError when a file cannot be fetched or has another hash; EngineError when the worker does not start
 */
export function withModel<T>(
  model: Source,
  options: ResolvedOptions,
  open: (client: WorkerClient, argumentsOf: ArgumentsOf) => Promise<T | null>,
  mayBeCached = false,
  beside: Beside = (graph) => externalBeside(model, graph),
): Promise<T> {
  expectFiles(options.integrity, ["model"]);
  const isMore = ({ path }: ExternalSource): boolean => options.externalData.every((other) => other.path !== path);
  const load = async (how: LoadOptions): Promise<ArgumentsOf> => {
    const loading = loadSource("model", model, how);
    const [file, ...externals] = await Promise.all([
      loading,
      loadExternalData(options.externalData, how),
      loading.then(beside).then((files) => loadExternalData(files.filter(isMore), how)),
    ]);
    const external = externals.flat();
    const paths = JSON.stringify(external.map(({ path }) => path));
    return (...args) => [file, ...args, paths, ...external.map(({ data }) => data)];
  };
  return withWorker(options, (client) => withFiles(client, options, mayBeCached, load, (argumentsOf) => open(client, argumentsOf)));
}

/** Have a function of Python's bridge work on a model that nobody keeps. */
export function askOfModel(
  model: Source,
  options: ResolvedOptions,
  name: ModelCall,
  args: readonly string[],
  form: FileForm = "bytes",
): Promise<Answer<"ofModel">> {
  return withModel(model, options, async (client, argumentsOf) => {
    const answer = await client.request(callOf("ofModel", [name, argumentsOf(...args), form]));
    client.leave();
    return answer;
  });
}
