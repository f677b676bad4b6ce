/** The files of a language model, as its repository names them. */

import type { SessionOptions } from "trainweb";

/** A model to load. */
export interface ModelFiles {
  readonly name: string;
  /** Bytes of the files. */
  readonly size: number;
  readonly graph: File;
  /** Weights that are not in the graph. */
  readonly beside: Pick<SessionOptions, "externalData" | "weights">;
  readonly tokenizer: unknown;
  readonly tokenizerConfig: Readonly<Record<string, unknown>>;
  /** Most tokens of a text; null if no file says it. */
  readonly context: number | null;
}

const OURS = "model/";
const OUR_FILES = ["model.onnx", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"];
/** Names of the longest text in `config.json`. */
const CONTEXTS = ["max_position_embeddings", "n_positions"];
const NEEDED = "a model needs model.onnx, its weights and tokenizer.json.";

/** Fetch the small model of this page. */
export async function ourModel(): Promise<ModelFiles> {
  const fetched = OUR_FILES.map(async (name) => {
    const answer = await fetch(OURS + name);
    if (!answer.ok) {
      throw new Error(`The server answers ${answer.status} for ${OURS}${name}.`);
    }
    return new File([await answer.blob()], name);
  });
  return { ...(await modelOf(await Promise.all(fetched))), name: "the small model" };
}

/** Find the model among the files of a visitor. */
export async function modelOf(files: readonly File[]): Promise<ModelFiles> {
  const named = (name: string): File | undefined => files.find((file) => file.name === name);
  const graph = graphOf(files);
  const tokenizer = named("tokenizer.json");
  if (tokenizer === undefined) {
    throw new Error(`There is no tokenizer.json beside ${graph.name}; ${NEEDED}`);
  }
  const beside = besideOf(files, graph);
  const config = named("config.json");
  const settings = named("tokenizer_config.json");
  return {
    name: graph.name,
    size: [graph, ...beside.files].reduce((sum, file) => sum + file.size, 0),
    graph,
    beside: beside.options,
    tokenizer: await jsonOf(tokenizer),
    tokenizerConfig: settings === undefined ? {} : await jsonOf(settings),
    context: config === undefined ? null : contextOf(await jsonOf(config)),
  };
}

function graphOf(files: readonly File[]): File {
  const graphs = files.filter(({ name }) => name.endsWith(".onnx"));
  const graph = graphs.find(({ name }) => name === "model.onnx") ?? graphs[0];
  if (graph === undefined) {
    const names = files.slice(0, 3).map(({ name }) => name).join(", ");
    throw new Error(`There is no .onnx file among ${names}${files.length > 3 ? ", …" : ""}; ${NEEDED}`);
  }
  if (graphs.length > 1 && graph.name !== "model.onnx") {
    throw new Error(`There are ${graphs.length} .onnx files, and none is named model.onnx: choose one model.`);
  }
  return graph;
}

/** Files with weights: those of ONNX, or else safetensors where the graph is smaller than they are. */
function besideOf(files: readonly File[], graph: File): { readonly files: readonly File[]; readonly options: ModelFiles["beside"] } {
  const data = files.filter(({ name }) => name.startsWith(graph.name) && /[._]data(_\d+)?$/u.test(name));
  if (data.length > 0) {
    return { files: data, options: { externalData: data.map((file) => ({ path: file.name, data: file })) } };
  }
  const shards = files.filter(({ name }) => /^model.*\.safetensors$/u.test(name));
  const bytes = shards.reduce((sum, { size }) => sum + size, 0);
  return bytes > graph.size ? { files: shards, options: { weights: shards } } : { files: [], options: {} };
}

async function jsonOf(file: File): Promise<Record<string, unknown>> {
  try {
    return JSON.parse(await file.text()) as Record<string, unknown>;
  } catch {
    throw new Error(`${file.name} is not JSON.`);
  }
}

function contextOf(config: object): number | null {
  const values = CONTEXTS.map((name) => (config as Record<string, unknown>)[name]);
  return values.find((value): value is number => typeof value === "number") ?? null;
}

/** The files of what was dropped, with those in folders. */
export async function filesOf(data: DataTransfer): Promise<readonly File[]> {
  const entries = [...data.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  return (await Promise.all(entries.map(filesIn))).flat();
}

async function filesIn(entry: FileSystemEntry): Promise<readonly File[]> {
  if (entry.isFile) {
    return [await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject))];
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const found: FileSystemEntry[] = [];
  // A reader gives its entries in portions, the last of which is empty.
  for (;;) {
    const portion = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (portion.length === 0) {
      break;
    }
    found.push(...portion);
  }
  return (await Promise.all(found.map(filesIn))).flat();
}
