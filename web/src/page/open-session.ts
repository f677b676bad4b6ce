/** The first steps of training sessions: load the files, and open them in the worker. */

import type { SessionInfo } from "../wire/protocol.js";
import { CheckpointState } from "./checkpoint-state.js";
import { callOf, type WorkerClient } from "./client.js";
import { whole, type Keeping } from "./download.js";
import { knownHashes } from "./file-cache.js";
import { withModel, type Beside } from "./load-model.js";
import type { SharedContents } from "./shared-contents.js";
import { resolveOptions, type ResolvedOptions, type SessionOptions } from "./options.js";
import type { SessionFiles } from "./session-files.js";
import { buffersOf, checkSource, loadSource, type Source } from "./sources.js";
import { requireLoss, resolveConfig, takeRate, withOptimizer, type TrainingConfig } from "./training-config.js";

/** Makes a session of what the worker opened. */
type Open<Session> = (client: WorkerClient, info: SessionInfo, options: ResolvedOptions) => Promise<Session>;

/** A session that takes over the state of a checkpoint. */
interface Stateful {
  workOn(state: SharedContents): Promise<void>;
}

export async function openArtifacts<Session extends Stateful>(
  client: WorkerClient,
  { trainModel, checkpointState, evalModel, optimizerModel }: SessionFiles,
  options: ResolvedOptions,
  open: Open<Session>,
): Promise<Session> {
  const { json, cache, progress } = options;
  // A cached session needs no Python; it starts later if nothing is cached.
  const python = cache ? null : client.startPython();
  const isState = checkpointState instanceof CheckpointState;
  const openWith = async (keeping: Keeping): Promise<SessionInfo | null> => {
    const how = { ...options, cache: keeping };
    const [train, checkpoint, evaluate, optimizer] = await Promise.all([
      loadSource("trainModel", trainModel, how),
      loadSource("checkpointState", isState ? await checkpointState.contents.lend() : checkpointState, how),
      evalModel ? loadSource("evalModel", evalModel, how) : null,
      optimizerModel ? loadSource("optimizerModel", optimizerModel, how) : null,
    ]);
    await client.ready;
    await python;
    if (!cache) {
      progress.compiles();
    }
    const artifacts = { trainModel: train, checkpoint, evalModel: evaluate, optimizerModel: optimizer };
    const buffers = buffersOf(train, checkpoint, evaluate, optimizer);
    const hashes = cache ? knownHashes([train, checkpoint, evaluate, optimizer]) : null;
    return client.request(callOf("createTraining", [artifacts, json, hashes], buffers));
  };
  // Null where a kept file is damaged.
  const info = (await openWith(cache && "unchecked")) ?? ((await openWith(true)) as SessionInfo);
  const session = await open(client, info, options);
  if (isState) {
    await session.workOn(checkpointState.contents);
  }
  return session;
}

/** Open a session of a forward model, whose training artifacts the worker builds. */
export async function openModel<Session extends { setLearningRate(rate: number): Promise<void> }>(
  model: Source,
  config: TrainingConfig,
  sessionOptions: SessionOptions | undefined,
  open: Open<Session>,
  beside?: Beside,
): Promise<Session> {
  checkSource("model", model);
  const [artifacts, rate] = takeRate(withOptimizer(config));
  const configJson = resolveConfig(artifacts);
  requireLoss(config);
  const options = resolveOptions(sessionOptions);
  const session = await withModel(
    model,
    options,
    async (client, { model: loaded, buffers }) => {
      const hashes = options.cache ? knownHashes([loaded.file, ...loaded.external.map(({ data }) => data)]) : null;
      const call = callOf("createFromModel", [loaded, configJson, options.json, hashes], buffers);
      const info = await client.request(call);
      return info && open(client, info, options);
    },
    options.cache,
    beside,
  );
  if (rate !== null) {
    await session.setLearningRate(rate);
  }
  return session;
}

export async function openBundle<Session>(
  client: WorkerClient,
  bundle: Source,
  options: ResolvedOptions,
  open: Open<Session>,
): Promise<Session> {
  const file = await whole(await loadSource("bundle", bundle, options));
  await client.ready;
  options.progress.compiles();
  const info = await client.request(callOf("createFromBundle", [file, options.json], buffersOf(file)));
  return open(client, info, options);
}
