/** Folders of models, laid out as on the Hugging Face hub; `trainweb/generation/pretrained.py` reads them in Python. */

import { type FolderSource, folderFiles } from "../data/folder.js";
import { isAddress } from "../data/checks.js";
import { GRAPHS, INDEX, SPARE, WEIGHTS } from "../wire/constants.js";
import { messageOf } from "../wire/fetch-file.js";
import { isObject, isRecord } from "../wire/kinds.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import { log } from "../wire/log.js";
import { otherPlatform } from "../wire/platform.js";
import { loadError } from "./download.js";
import type { SourceData } from "../wire/pieces.js";
import type { GenerateOptions } from "./generate.js";
import type { Beside } from "./load-model.js";
import { externalFiles, outsideData } from "./outside-data.js";
import { NEUTRAL, SAMPLED } from "./settings/generate.js";
import type { ExternalSource, Source } from "./sources.js";
import type { Tokenizer } from "./text.js";
import type { TrainingConfig } from "./training-config.js";

/** A folder with a model: a URL prefix (in Node also a path), a handle, or the files of a folder. */
export type Repository = string | URL | FolderSource;

/** Settings of `createFromPretrained`. */
export interface PretrainedConfig extends Omit<TrainingConfig, "loss"> {
  /** The loss, as in `createFromModel`; by default cross entropy that ignores the label -100. */
  readonly loss?: TrainingConfig["loss"];
  /** The path of the graph in the folder; by default `model.onnx` or `onnx/model.onnx`. */
  readonly file?: string;
  /** The default tokenizer of `generate`. */
  readonly tokenizer?: Tokenizer;
}

/** The files of a folder that a session is made of. */
export interface Pretrained {
  readonly model: Source;
  /** The files that a graph refers to. */
  readonly beside: Beside;
  /** Options of `generate`. */
  readonly generation: GenerateOptions;
  /** PEFT's note of the task of adapters, where `config.json` names a causal language model. */
  readonly task: { readonly taskType?: string };
}

type Json = Readonly<Record<string, unknown>>;

/** The files of a folder. */
interface Folder {
  /** The file at a path, of which a server is not asked whether it is there; null: it is not. */
  at(path: string): Source | null;
  /** The same, but for a server. */
  find(path: string): Promise<Source | null>;
}

/**
 * Find the files of a folder.
 *
 * @param file - path of the graph
 * @throws ModelError when there is no graph, or a file cannot be read
 */
export async function readPretrained(folder: Repository, file: string | undefined): Promise<Pretrained> {
  const files = await openFolder(folder);
  const names = file === undefined ? GRAPHS : [file];
  let path = names[0] as string;
  let model = await files.find(path);
  for (const other of names.slice(1)) {
    [path, model] = model === null ? [other, await files.find(other)] : [path, model];
  }
  if (model === null) {
    const shown = isAddress(folder) ? String(folder) : "The folder";
    throw sessionError("NO_GRAPH_FILE", { folder: shown, names: names.join(" or ") });
  }
  const config = { ...(await json(files, "config.json")), ...(await json(files, "generation_config.json")) };
  const parent = path.slice(0, path.lastIndexOf("/") + 1);
  const isCausal = [config["architectures"]].flat().some((name) => /(ForCausalLM|LMHeadModel)$/u.test(String(name)));
  const [generation, task] = [generationOf(config), isCausal ? { taskType: "CAUSAL_LM" } : {}];
  return { model, beside: (graph) => filesBeside(files, parent, graph), generation, task };
}

/** The files that a graph refers to; locations in it are relative to its folder. */
async function filesBeside(files: Folder, folder: string, graph: SourceData): Promise<ExternalSource[]> {
  const { locations, missing } = await outsideData(graph);
  const external = externalFiles(locations, (path) => files.at(folder + path));
  const weights = missing.size > 0 ? await weightsOf(files, folder, missing) : [];
  return [...external, ...weights.filter((one): one is ExternalSource => one.data !== null)];
}

/** Safetensors files with tensors of these names: of the graph's folder, or else of the whole one. */
async function weightsOf(files: Folder, folder: string, names: ReadonlySet<string>): Promise<{ readonly data: Source | null }[]> {
  const beside = await weightsIn(files, folder, names);
  return beside.length > 0 || folder === "" ? beside : weightsIn(files, "", names);
}

async function weightsIn(files: Folder, folder: string, names: ReadonlySet<string>): Promise<{ readonly data: Source | null }[]> {
  const single = await files.find(folder + WEIGHTS);
  const named = (data: Source | null, k: number): ExternalSource | { readonly data: null } =>
    data === null ? { data } : { what: `weights ${k}`, path: `${SPARE}${k}`, data };
  if (single !== null) {
    return [named(single, 0)];
  }
  const weightMap: unknown = (await json(files, folder + INDEX))["weight_map"] ?? {};
  const shards = weightMap instanceof Object && !Array.isArray(weightMap) ? Object.entries(weightMap) : [["", null]];
  refuseIf(!shards.every(([, name]) => typeof name === "string" && !/[/\\]|^\.*$/u.test(name)), "BAD_SHARDS", { name: INDEX });
  const needed = shards.filter(([tensor]) => names.has(tensor as string));
  const paths = new Set((needed.length > 0 ? needed : shards).map(([, name]) => name as string));
  return [...paths].sort().map((name, k) => named(files.at(folder + name), k));
}

/**
 * The options of `generate` that a configuration of transformers means, with a warning of settings that are not obeyed.
 */
export function generationOf(config: Json): GenerateOptions {
  const { eos_token_id: end = null, max_new_tokens: most = null, do_sample: samples, temperature, top_k: k, top_p: p } = config;
  const changes = (setting: unknown, value: unknown): boolean =>
    isObject(setting) ? Object.keys(setting).length > 0 : ![undefined, null, value].includes(setting as never);
  const ignored = Object.entries(NEUTRAL).filter(([name, value]) => changes(config[name], value));
  if (ignored.length > 0) {
    const names = ignored.map(([name]) => name).join(", ");
    log("warning", `generation_config.json has ${names}, which generate of trainweb does not have.`);
  }
  return {
    ...(end === null ? {} : { stop: end as number | number[] }),
    ...(most === null ? {} : { maxTokens: most as number }),
    ...(samples === true
      ? {
          temperature: (temperature ?? SAMPLED.temperature) as number,
          topK: ((k ?? SAMPLED.topK) as number) || null,
          topP: (p ?? null) as number | null,
        }
      : {}),
  };
}

async function json(files: Folder, path: string): Promise<Json> {
  const source = files.at(path);
  const text = source instanceof Blob ? await source.text() : await (await answerOf(source as string | null))?.text();
  if (text === undefined) {
    return {};
  }
  let content: unknown;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw sessionError("NOT_JSON", { name: path, fault: messageOf(error) });
  }
  refuseIf(!isRecord(content), "NOT_JSON", { name: path, fault: "it has no object" });
  return content as Json;
}

async function openFolder(folder: Repository): Promise<Folder> {
  if (!isAddress(folder)) {
    const files = new Map((await folderFiles(folder)).map(({ path, file }) => [path.join("/"), file]));
    const at = (path: string): Source | null => files.get(path) ?? null;
    return { at, find: (path) => Promise.resolve(at(path)) };
  }
  const prefix = String(folder).replace(/\/?$/, "/");
  return {
    at: (path) => prefix + path,
    find: async (path) => ((await answerOf(prefix + path, "HEAD")) === null ? null : prefix + path),
  };
}

/** A server's answer; null where it has no such file. */
async function answerOf(url: string | null, method = "GET"): Promise<Response | null> {
  if (url === null) {
    return null;
  }
  try {
    const response = await (otherPlatform()?.fetch(url, { method }) ?? fetch(url, { method }));
    // A server of an app may answer with its page for files that it lacks.
    return response.ok && response.headers.get("Content-Type")?.startsWith("text/html") !== true ? response : null;
  } catch (error) {
    if ((error as { readonly code?: string }).code === "ENOENT") {
      return null;
    }
    throw loadError("model", `${url} could not be fetched: ${messageOf(error)}`, error);
  }
}
