/**
 * Prepares Python for the worker: the packages compiled for Pyodide's Python, and a memory snapshot of
 * a Pyodide that has them imported. Restoring the snapshot takes a fraction of a plain start; it fits
 * one build of Pyodide only, and the worker starts plainly on any other.
 */

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync, constants } from "node:zlib";

/** A restored heap cannot be larger than the one Pyodide starts with: it copies, but never grows. */
const HEAP_BYTES = 30 * 2 ** 20;

/**
 * Compile everything, without doc strings, and zip it. The kernels and their script stay out: the
 * worker has its own.
 * Importing sources would take more memory than a snapshot can hold, and longer.
 */
const COMPILE = `
import ast, compileall, io, pathlib, zipfile

root = pathlib.Path("/packages")

# What functions import when they are first called must be in the snapshot, too: no files are there.
imports = set()
for path in root.glob("trainweb/**/*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}

def is_module(name):
    path = root / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()

imports = sorted(name for name in imports if is_module(name))

good = compileall.compile_dir(root, quiet=1, legacy=True, stripdir="/packages", optimize=2)
assert good, "some module does not compile"

SKIPPED = {".py", ".wasm", ".js", ".pyi"}
archive = io.BytesIO()
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        skipped = path.suffix in SKIPPED or name.parts[0].endswith(".dist-info")
        if path.is_file() and not skipped and "__pycache__" not in name.parts:
            entry = zipfile.ZipInfo(str(name), (2026, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, path.read_bytes())
archive.getvalue()
`;

/** Import all of trainweb that runs without numpy, and build what is cached for good. */
const warmUp = (imports) => `
import gc, importlib, pkgutil
import trainweb

ABSENT = {"numpy", "onnx", "wasmtime"}  # edges of the package that no page needs to load or step
COMMAND_LINE = {"trainweb.__main__", "trainweb.cli"}  # takes megabytes of the standard library along

# First, while the heap has large holes: its peak would enlarge a heap that is fuller.
from trainweb.model.schema import messages
messages()

names = [module.name for module in pkgutil.walk_packages(trainweb.__path__, "trainweb.")]
for name in [*names, *${JSON.stringify(imports)}]:
    if name in COMMAND_LINE:
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ABSENT:
            raise

# A session's way once: what libraries build and the interpreter learns at first use is in the snapshot, too.
from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.checkpoint import read_checkpoint
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model

scores = Graph("scores", opsets={"": 17})
scores.inputs, scores.outputs = [Value("x", "float32", ("n", 2))], [Value("y", "float32", ("n", 2))]
scores.initializers = {k: Tensor(k, "float32", d, bytes(8 * d[0])) for k, d in (("w", (2, 2)), ("v", (2, 2)))}
scores.nodes = [
    Node("MatMul", ["x", "w"], ["h"]), Node("Relu", ["h"], ["r"]), Node("Gemm", ["r", "v"], ["y"], {"transB": 1})]
made = build_artifacts(write_model(scores), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
for model in (made.training_model, made.eval_model, made.optimizer_model):
    read_model(model)
read_checkpoint(made.checkpoint)

del name, names, messages, ABSENT, COMMAND_LINE, scores, made, model
del LossType, OptimType, build_artifacts, read_checkpoint, Graph, Node, Tensor, Value, read_model, write_model
gc.collect()
`;

/** @param {string} distribution - folder of a Pyodide distribution, which must have this version */
async function loadPyodide(distribution, version, options) {
  const module = await import(pathToFileURL(join(distribution, "pyodide.mjs")).href);
  if (module.version !== version) {
    throw new Error(`${distribution} holds Pyodide ${module.version}, wanted ${version}`);
  }
  return module.loadPyodide({ indexURL: `${distribution}/`, ...options });
}

/**
 * The contents of wheels, compiled.
 *
 * @returns {Promise<{zip: Uint8Array, files: Map<string, Uint8Array>, imports: string[]}>} as one zip,
 *   file by file, and the modules of libraries that trainweb imports
 */
export async function compilePackages(distribution, version, wheels) {
  // Without columns in the line tables: smaller, and nobody sees them without sources.
  const env = { HOME: "/home/pyodide", PYTHONNODEBUGRANGES: "1" };
  const pyodide = await loadPyodide(distribution, version, { env });
  for (const wheel of wheels) {
    const bytes = new Uint8Array(await readFile(wheel));
    pyodide.unpackArchive(bytes, "zip", { extractDir: "/packages" });
  }
  const archive = pyodide.runPython(COMPILE);
  const lists = pyodide.runPython("[target.namelist(), imports]");
  try {
    const [names, imports] = lists.toJs();
    const files = names.map((name) => [name, pyodide.FS.readFile(`/packages/${name}`)]);
    return { zip: archive.toJs(), files: new Map(files), imports };
  } finally {
    archive.destroy();
    lists.destroy();
  }
}

/** Write a gzip snapshot of a Pyodide that has these packages (of `compilePackages`) imported. */
export async function makeSnapshot(distribution, version, { files, imports }, target) {
  const pyodide = await loadPyodide(distribution, version, { _makeSnapshot: true });
  // Written from outside: unpacking an archive in Python would leave traces in its heap.
  for (const [name, bytes] of files) {
    const path = `/home/pyodide/${name}`;
    pyodide.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    pyodide.FS.writeFile(path, bytes);
  }
  pyodide.runPython(warmUp(imports));
  zeroFreeMemory(pyodide);
  const heap = pyodide._module.HEAP8.length;
  if (heap > HEAP_BYTES) {
    throw new Error(`the heap grew to ${heap} bytes; a snapshot can hold ${HEAP_BYTES}`);
  }
  const snapshot = pyodide.makeMemorySnapshot();
  await writeFile(target, gzipSync(snapshot, { level: constants.Z_BEST_COMPRESSION }));
}

/** Fill what is free in the heap with zeros, which compress; without making the heap larger. */
function zeroFreeMemory(pyodide) {
  const end = () => pyodide._module._sbrk(0);
  pyodide.runPython("blocks = []\ndef take(n):\n    blocks.append(bytearray(n))");
  const take = pyodide.globals.get("take");
  for (let size = 2 ** 16; size >= 2 ** 10; size /= 2) {
    for (const before = end(); end() === before; ) {
      take(size);
    }
  }
  take.destroy();
  pyodide.runPython("del blocks, take");
}
