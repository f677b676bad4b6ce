/** The first steps of training sessions: load the files, and open them in the worker. */

import type { BridgeArguments, Origin, SessionInfo } from "../wire/protocol.js";
import { CheckpointState } from "./checkpoint-state.js";
import { buffersIn, callOf, type WorkerClient } from "./client.js";
import { whole } from "./download.js";
import { knownHashes } from "./file-cache.js";
import { withFiles, withModel, type Beside } from "./load-model.js";
import type { SharedContents } from "./shared-contents.js";
import { resolveOptions, type ResolvedOptions, type SessionOptions } from "./options.js";
import type { SessionFiles } from "./session-files.js";
import { checkSource, loadSource, type LoadOptions, type Source } from "./sources.js";
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
  const isState = checkpointState instanceof CheckpointState;
  const load = async (how: LoadOptions): Promise<BridgeArguments> => [
    ...(await Promise.all([
      loadSource("trainModel", trainModel, how),
      loadSource("checkpointState", isState ? await checkpointState.contents.lend() : checkpointState, how),
      evalModel ? loadSource("evalModel", evalModel, how) : null,
      optimizerModel ? loadSource("optimizerModel", optimizerModel, how) : null,
    ])),
    options.json,
  ];
  const info = await withFiles(client, options, options.cache, load, (args) => ask(client, { call: "create", args }, options));
  const session = await open(client, info, options);
  if (isState) {
    await session.workOn(checkpointState.contents);
  }
  return session;
}

/** Ask the worker for a session; null: a kept file is damaged. */
function ask(client: WorkerClient, origin: Origin, { cache, json }: ResolvedOptions): Promise<SessionInfo | null> {
  return client.request(callOf("createSession", [origin, json, cache ? knownHashes(origin.args) : null], buffersIn(origin)));
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
    async (client, argumentsOf) => {
      const origin = { call: "create_from_model", args: argumentsOf(configJson, options.json) } as const;
      const info = await ask(client, origin, options);
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
  const info = await client.request(callOf("createFromBundle", [file, options.json]));
  return open(client, info, options);
}
