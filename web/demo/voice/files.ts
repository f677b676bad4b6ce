/** The files of a language model, as its repository names them. */

/** A model to load. */
export interface ModelFiles {
  /** Of the folder, or else of the graph. */
  readonly name: string;
  /** Bytes of the graph and its weights. */
  readonly size: number;
  /** Files beside the graph and in folders above it, by their paths from its folder on. */
  readonly files: readonly File[];
  /** Name of the graph. */
  readonly graph: string;
  readonly tokenizer: unknown;
  readonly tokenizerConfig: Readonly<Record<string, unknown>>;
  /** Most tokens of a text; null if no file says it. */
  readonly context: number | null;
  /** Width of all layers together; null if no file says it. */
  readonly width: number | null;
}

type Json = Readonly<Record<string, unknown>>;

const OURS = "model/";
const OUR_FILES = ["model.onnx", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"];
const NEEDED = "a model needs model.onnx, its weights and tokenizer.json.";
/** In front of the paths of a model's files: of a folder's files the outermost folder is left out. */
const ROOT = "model/";
/** Files of what is dropped: a model has some tens. */
const MOST_FILES = 1000;

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
export async function modelOf(given: readonly File[]): Promise<ModelFiles> {
  const graph = graphOf(given);
  const files = filesOfModel(given, pathOf(graph).slice(0, -graph.name.length));
  const find = (name: string): File | undefined => files.find((file) => file.webkitRelativePath === ROOT + name);
  const tokenizer = find("tokenizer.json");
  if (tokenizer === undefined) {
    throw new Error(`There is no tokenizer.json beside ${graph.name} or in a folder above it; ${NEEDED}`);
  }
  const json = async (name: string): Promise<Json> => {
    const file = find(name);
    return file === undefined ? {} : jsonOf(file);
  };
  const config = await json("config.json");
  const [folder = "", ...inner] = pathOf(graph).split("/");
  const layers = numberOf(config, "num_hidden_layers", "n_layer");
  const width = numberOf(config, "hidden_size", "n_embd");
  return {
    name: inner.length > 0 ? folder : graph.name,
    size: sizeOf(files, graph),
    files,
    graph: graph.name,
    tokenizer: await jsonOf(tokenizer),
    tokenizerConfig: await json("tokenizer_config.json"),
    context: numberOf(config, "max_position_embeddings", "n_positions"),
    width: layers === null || width === null ? null : layers * width,
  };
}

/** The path of a visitor's file; those that were chosen one by one have only names. */
function pathOf(file: File): string {
  return file.webkitRelativePath || file.name;
}

function placed(file: File, path: string): File {
  return Object.defineProperty(new File([file], file.name), "webkitRelativePath", { value: path });
}

/** Files in the folder of a graph, and those right in the folders above it whose names are not there: the hub's layout. */
function filesOfModel(given: readonly File[], folder: string): readonly File[] {
  const files = given.filter((file) => pathOf(file).startsWith(folder))
    .map((file) => placed(file, ROOT + pathOf(file).slice(folder.length)));
  const names = new Set(files.map((file) => file.webkitRelativePath));
  for (let above = folder; above !== ""; ) {
    above = above.slice(0, above.lastIndexOf("/", above.length - 2) + 1);
    for (const file of given.filter((one) => pathOf(one) === above + one.name && !names.has(ROOT + one.name))) {
      files.push(placed(file, ROOT + file.name));
      names.add(ROOT + file.name);
    }
  }
  return files;
}

/** The graph: the outermost model.onnx, or else the only one. */
function graphOf(files: readonly File[]): File {
  const graphs = files.filter(({ name }) => name.endsWith(".onnx"));
  const depth = (file: File): number => pathOf(file).split("/").length;
  const named = graphs.filter(({ name }) => name === "model.onnx");
  const least = Math.min(...named.map(depth));
  const candidates = named.length > 0 ? named.filter((file) => depth(file) === least) : graphs;
  const [graph] = candidates;
  if (graph === undefined) {
    const names = files.slice(0, 3).map(({ name }) => name).join(", ");
    throw new Error(`There is no .onnx file among ${names}${files.length > 3 ? ", …" : ""}; ${NEEDED}`);
  }
  if (candidates.length > 1 && named.length > 0) {
    throw new Error(`There are ${candidates.length} models, ${candidates.map(pathOf).join(" and ")}: choose the folder of one.`);
  }
  if (candidates.length > 1) {
    throw new Error(`There are ${graphs.length} .onnx files, and none is named model.onnx: choose one model.`);
  }
  return graph;
}

/** Bytes of a graph with its weights: external data, or else safetensors where the graph is smaller than they are. */
function sizeOf(files: readonly File[], graph: File): number {
  const bytes = (is: (name: string) => boolean): number =>
    files.filter(({ name }) => is(name)).reduce((sum, one) => sum + one.size, 0);
  const external = bytes((name) => name !== graph.name && name.startsWith(graph.name));
  return external > 0 ? graph.size + external : Math.max(graph.size, bytes((name) => /^model.*\.safetensors$/u.test(name)));
}

async function jsonOf(file: File): Promise<Json> {
  let found: unknown = null;
  try {
    found = JSON.parse(await file.text());
  } catch {
    // As of a file without an object.
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) {
    throw new Error(`${file.name} is not a JSON object.`);
  }
  return found as Json;
}

/** A number of `config.json`: GPT-2 and later models name it differently. */
function numberOf(config: Json, ...names: readonly string[]): number | null {
  return names.map((name) => config[name]).find((value) => typeof value === "number") ?? null;
}

/** The files of what was dropped, with those in folders that are not hidden. */
export async function filesOf(data: DataTransfer): Promise<readonly File[]> {
  const entries = [...data.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  const files: File[] = [];
  // Entries are gone once the event ends: all are taken before the first is read.
  for (const entry of entries) {
    await addFiles(entry, files);
  }
  return files;
}

async function addFiles(entry: FileSystemEntry, files: File[]): Promise<void> {
  if (files.length >= MOST_FILES) {
    throw new Error(`There are more than ${MOST_FILES} files: choose the folder of a model.`);
  }
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    files.push(placed(file, entry.fullPath.replace(/^\//u, "")));
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  // A reader gives its entries in portions, the last of which is empty.
  for (let portion = await read(reader); portion.length > 0; portion = await read(reader)) {
    for (const inner of portion.filter(({ name }) => !name.startsWith("."))) {
      await addFiles(inner, files);
    }
  }
}

function read(reader: FileSystemDirectoryReader): Promise<FileSystemEntry[]> {
  return new Promise((resolve, reject) => reader.readEntries(resolve, reject));
}
