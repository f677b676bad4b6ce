/**
 * Prepares Python for the worker: the packages and the standard library compiled, and a memory snapshot of
 * a Pyodide that has the packages imported. Restoring the snapshot takes a fraction of a plain start; it fits
 * one build of Pyodide only, and the worker starts plainly on any other.
 */

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync, constants } from "node:zlib";

/** Of the heap, from the start: Pyodide starts with 30 MiB, and would grow by a fifth. */
const HEAP_BYTES = 34 * 2 ** 20;
const PAGE_BYTES = 2 ** 16;

/** The start of the memory, in which the constants of Pyodide's WebAssembly lie; web/src/python/boot.ts knows it, too. */
const CONSTANT_BYTES = 2 ** 22;

/** Compile a folder, without sources and doc strings, and zip it: sources take long to import, and memory. */
const COMPILE = `
import ast, compileall, io, pathlib, zipfile
from importlib._bootstrap_external import _code_to_timestamp_pyc

def compile_folder(root, prefix, optimize=2):
    good = compileall.compile_dir(root, quiet=1, legacy=True, stripdir=root, prependdir=prefix, optimize=optimize)
    assert good, "some module does not compile"

def pack(root, skipped=()):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            left_out = path.suffix in {".py", *skipped} or name.parts[0].endswith(".dist-info")
            if path.is_file() and not left_out and "__pycache__" not in name.parts:
                entry = zipfile.ZipInfo(str(name), (2026, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                target.writestr(entry, path.read_bytes())
    return archive.getvalue(), target.namelist()
`;

/** The kernels and their script stay out: the worker has its own. */
const COMPILE_PACKAGES = `
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

def without_references(source):
    """The source without the numpy references of operators, which only tests run; other lines keep their numbers."""
    lines = source.splitlines()
    for owner in ast.walk(ast.parse(source)):
        if isinstance(owner, ast.ClassDef):
            for member in owner.body:
                if getattr(member, "name", None) == "reference":
                    start = member.lineno - 1
                    lines[start : member.end_lineno] = [" " * member.col_offset + "pass", *[""] * (member.end_lineno - start - 1)]
    return "\\n".join(lines)

def without_annotations(tree):
    """The module without annotations of functions. Those of constructors stay: they tell the types of settings."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name != "__init__":
            function.returns = None
            given = function.args
            for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
                if argument:
                    argument.annotation = None
    return tree

for path in root.glob("trainweb/ops/**/*.py"):
    path.write_text(without_references(path.read_text()))
compile_folder(root, "")
for path in root.glob("trainweb/**/*.py"):
    code = compile(without_annotations(ast.parse(path.read_text())), str(path.relative_to(root)), "exec", optimize=2)
    path.with_suffix(".pyc").write_bytes(_code_to_timestamp_pyc(code))
[*pack(root, {".wasm", ".js", ".pyi"}), imports]
`;

/** Pyodide takes its doc strings from _pyodide. */
const COMPILE_LIBRARY = `
root = pathlib.Path("/library")
compile_folder(root / "_pyodide", "/lib/python314.zip/_pyodide", optimize=0)
compile_folder(root, "/lib/python314.zip")
pack(root)[0]
`;

/** Import all of trainweb that runs without numpy, and build what is cached for good. */
const warmUp = (imports) => `
import gc, importlib, pkgutil
import trainweb

ABSENT = {"numpy", "onnx", "torch", "wasmtime"}  # edges of the package that no page needs to load or step
COMMAND_LINE = {"trainweb.__main__", "trainweb.cli"}  # takes megabytes of the standard library along
BRIDGE = "trainweb.flower"  # a server, which no page can be
# What only somebody's own Python calls, and no worker of a page.
CALLED_BY_PYTHON = {
    "trainweb.api", "trainweb.compat.older_optimizers", "trainweb.compat.onnxruntime",
    "trainweb.data.files", "trainweb.data.images",
    "trainweb.federated.privacy", "trainweb.federated.secure", "trainweb.generation.generate",
    "trainweb.generation.pretrained",
    "trainweb.torch", "trainweb.training.calls", "trainweb.training.core", "trainweb.session.creation",
    "trainweb.training.inert", "trainweb.session.inference_session", "trainweb.training.ort.options",
    "trainweb.training.ort.profile", "trainweb.session.tasks",
    "trainweb.training.store"}

# First, while the heap has large holes: its peak would enlarge a heap that is fuller.
from trainweb.model.schema import messages
messages()

names = [module.name for module in pkgutil.walk_packages(trainweb.__path__, "trainweb.")]
for name in [*names, *${JSON.stringify(imports)}]:
    if name in COMMAND_LINE | CALLED_BY_PYTHON or name.startswith(BRIDGE):
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

del name, names, messages, ABSENT, BRIDGE, CALLED_BY_PYTHON, COMMAND_LINE, scores, made, model
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

/** A Pyodide to compile with: without columns in the line tables, which nobody sees without sources. */
async function loadCompiler(distribution, version) {
  const env = { HOME: "/home/pyodide", PYTHONNODEBUGRANGES: "1" };
  const pyodide = await loadPyodide(distribution, version, { env });
  pyodide.runPython(COMPILE);
  return pyodide;
}

async function unpack(pyodide, file, extractDir) {
  pyodide.unpackArchive(new Uint8Array(await readFile(file)), "zip", { extractDir });
}

/** The value of a Python expression, its bytes as Uint8Arrays. */
function evaluate(pyodide, code) {
  const proxy = pyodide.runPython(code);
  try {
    return proxy.toJs();
  } finally {
    proxy.destroy();
  }
}

/**
 * The contents of wheels, compiled.
 *
 * @returns {Promise<{zip: Uint8Array, files: Map<string, Uint8Array>, imports: string[]}>} as one zip,
 *   file by file, and the modules of libraries that trainweb imports
 */
export async function compilePackages(distribution, version, wheels) {
  const pyodide = await loadCompiler(distribution, version);
  for (const wheel of wheels) {
    await unpack(pyodide, wheel, "/packages");
  }
  const [zip, names, imports] = evaluate(pyodide, COMPILE_PACKAGES);
  const files = names.map((name) => [name, pyodide.FS.readFile(`/packages/${name}`)]);
  return { zip, files: new Map(files), imports };
}

/** Python's standard library, compiled, as a zip. */
export async function compileLibrary(distribution, version) {
  const pyodide = await loadCompiler(distribution, version);
  await unpack(pyodide, join(distribution, "python_stdlib.zip"), "/library");
  return evaluate(pyodide, COMPILE_LIBRARY);
}

/** Write a gzip snapshot of a Pyodide that has these packages (of `compilePackages`) imported from this library. */
export async function makeSnapshot(distribution, version, library, { files, imports }, target) {
  let initial;
  const script = await import(pathToFileURL(join(distribution, "pyodide.asm.mjs")).href);
  const createPyodideModule = (settings) => {
    const instantiate = settings.instantiateWasm;
    settings.instantiateWasm = (imported, receive) =>
      instantiate(imported, (instance, module) => {
        const { memory } = instance.exports;
        memory.grow((HEAP_BYTES - memory.buffer.byteLength) / PAGE_BYTES);
        initial = new Uint8Array(memory.buffer).slice();
        receive(instance, module);
      });
    return script.default(settings);
  };
  const pyodide = await loadPyodide(distribution, version, {
    _makeSnapshot: true,
    stdLibURL: library,
    createPyodideModule,
  });
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
  removeConstants(snapshot.subarray(snapshot.length - heap), initial);
  await writeFile(target, gzipSync(snapshot, { level: constants.Z_BEST_COMPRESSION }));
}

/** Leave only differences to what every start puts into the memory. */
function removeConstants(memory, initial) {
  if (initial.subarray(CONSTANT_BYTES).some((byte) => byte !== 0)) {
    throw new Error(`the constants take more than ${CONSTANT_BYTES} bytes`);
  }
  for (let k = 0; k < CONSTANT_BYTES; k++) {
    memory[k] ^= initial[k];
  }
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
