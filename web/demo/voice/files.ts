/** The files of a language model, as its repository names them. */

/** A model to load. */
export interface ModelFiles {
  /** Of the folder, or else of the graph. */
  readonly name: string;
  /** Bytes of the graph and its weights. */
  readonly size: number;
  /** All files, without folders. */
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
  const files = given.map((file) => new File([file], file.name));
  const graph = graphOf(files);
  const tokenizer = files.find(({ name }) => name === "tokenizer.json");
  if (tokenizer === undefined) {
    throw new Error(`There is no tokenizer.json beside ${graph.name}; ${NEEDED}`);
  }
  const json = async (path: string): Promise<Json> => {
    const file = files.find(({ name }) => name === path);
    return file === undefined ? {} : jsonOf(file);
  };
  const config = await json("config.json");
  const layers = numberOf(config, "num_hidden_layers", "n_layer");
  const width = numberOf(config, "hidden_size", "n_embd");
  return {
    name: given[0]?.webkitRelativePath.split("/")[0] || graph.name,
    size: sizeOf(files, graph),
    files,
    graph: graph.name,
    tokenizer: await jsonOf(tokenizer),
    tokenizerConfig: await json("tokenizer_config.json"),
    context: numberOf(config, "max_position_embeddings", "n_positions"),
    width: layers === null || width === null ? null : layers * width,
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
