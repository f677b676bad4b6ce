/** Folders of models, laid out as on the Hugging Face hub; `trainweb/generation/pretrained.py` reads them in Python. */

import { type FolderSource, folderFiles } from "../data/folder.js";
import { messageOf } from "../wire/fetch-file.js";
import { sessionError } from "../wire/messages.js";
import { log } from "../wire/log.js";
import { otherPlatform } from "../wire/platform.js";
import { loadError } from "./download.js";
import type { GenerateOptions } from "./generate.js";
import type { ExternalData } from "./options.js";
import { NEUTRAL, SAMPLED } from "./settings/generate.js";
import { type Source } from "./sources.js";
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
  readonly externalData: readonly ExternalData[];
  /** Options of `generate`. */
  readonly generation: GenerateOptions;
}

type Json = Readonly<Record<string, unknown>>;

/** The file at a path; null if there is none. */
type Find = (path: string) => Promise<Source | null>;

const GRAPHS = ["model.onnx", "onnx/model.onnx"];
const WEIGHTS = "model.safetensors";
const INDEX = `${WEIGHTS}.index.json`;
/** Of files of external data, as exporters name them after the graph; the first may have numbered ones behind it. */
const DATA = ["_data", ".data"];
/** Prefix of the locations of weights that a graph may not need: `SPARE` of model/weights.py. */
const SPARE = "trainweb:weights/spare";

/**
 * Find the files of a folder.
 *
 * @param file - path of the graph
 * @throws ModelError when there is no graph, or a file cannot be read
 */
export async function readPretrained(folder: Repository, file: string | undefined): Promise<Pretrained> {
  const find = await finder(folder);
  const names = file === undefined ? GRAPHS : [file];
  let path = names[0] as string;
  let model = await find(path);
  for (const other of names.slice(1)) {
    [path, model] = model === null ? [other, await find(other)] : [path, model];
  }
  if (model === null) {
    const shown = typeof folder === "string" || folder instanceof URL ? String(folder) : "The folder";
    throw sessionError("NO_GRAPH_FILE", { folder: shown, names: names.join(" or ") });
  }
  const external = await externalOf(find, path);
  const weights = external.length > 0 ? [] : await weightsOf(find, path.slice(0, path.lastIndexOf("/") + 1));
  const config = { ...(await json(find, "config.json")), ...(await json(find, "generation_config.json")) };
  return { model, externalData: [...external, ...weights], generation: generationOf(config) };
}

/** External data beside a graph; locations in a graph are relative to it. */
async function externalOf(find: Find, path: string): Promise<ExternalData[]> {
  const found: ExternalData[] = [];
  for (const ending of DATA) {
    for (let number = 0, data = await find(path + ending); data !== null; ) {
      const name = `${path}${ending}${number > 0 ? `_${number}` : ""}`;
      found.push({ path: name.slice(name.lastIndexOf("/") + 1), data });
      number++;
      data = await find(`${path}${ending}_${number}`);
    }
  }
  return found;
}

async function weightsOf(find: Find, folder: string): Promise<ExternalData[]> {
  const found: unknown = (await json(find, folder + INDEX))["weight_map"] ?? {};
  const names: readonly unknown[] = found instanceof Object && !Array.isArray(found) ? Object.values(found) : [null];
  if (!names.every((name): name is string => typeof name === "string" && !/[/\\]|^\.*$/u.test(name))) {
    throw sessionError("BAD_SHARDS", { name: INDEX });
  }
  const shards = [...new Set(names)].sort();
  const files = await Promise.all((shards.length > 0 ? shards : [WEIGHTS]).map((name) => find(folder + name)));
  return files.flatMap((data, k) => (data === null ? [] : [{ path: `${SPARE}${k}`, data }]));
}

/**
 * The options of `generate` that a configuration of transformers means, with a warning of settings that are not obeyed.
 */
export function generationOf(config: Json): GenerateOptions {
  const { eos_token_id: end = null, max_new_tokens: most = null, do_sample: samples, temperature, top_k: k, top_p: p } = config;
  const ignored = Object.entries(NEUTRAL).filter(([name, value]) => ![undefined, null, value].includes(config[name] as never));
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

async function json(find: Find, path: string): Promise<Json> {
  const source = await find(path);
  if (source === null) {
    return {};
  }
  const text = source instanceof Blob ? await source.text() : await (await fetched(source as URL | string)).text();
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw sessionError("NOT_JSON", { name: path, fault: messageOf(error) });
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) {
    throw sessionError("NOT_JSON", { name: path, fault: "it has no object" });
  }
  return found as Json;
}

async function finder(folder: Repository): Promise<Find> {
  if (typeof folder !== "string" && !(folder instanceof URL)) {
    const files = new Map((await folderFiles(folder)).map(({ path, file }) => [path.join("/"), file]));
    return (path) => Promise.resolve(files.get(path) ?? null);
  }
  const prefix = String(folder).replace(/\/?$/, "/");
  return async (path) => {
    const url = prefix + path;
    try {
      const response = await fetched(url, "HEAD");
      // A server of an app may answer with its page for all that it does not have.
      return response.ok && response.headers.get("Content-Type")?.startsWith("text/html") !== true ? url : null;
    } catch (error) {
      if ((error as { readonly code?: string }).code === "ENOENT") {
        return null;
      }
      throw loadError("model", `${url} could not be fetched: ${messageOf(error)}`, error);
    }
  };
}

function fetched(url: string | URL, method = "GET"): Promise<Response> {
  return otherPlatform()?.fetch(url, { method }) ?? fetch(url, { method });
}
