"""The package as it is shipped: importable anywhere, strict policies, other origins, declarations."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .conftest import require_built
from .js_session import expose_python, open_js_page
from .server import MOUNTS, ROOT, Site
from .test_guides import EVERYTHING, GUIDES, declared

NPM = ROOT / "dist" / "npm"
TYPES = ROOT / "tests" / "types"
VALUES = {"CheckpointStore", "Dataset", "InferenceSession", "Tensor", "TrainingSession", "env", "listFolder", "readCsv",
          "readImage", "readImages", "readObjectStore"}  # fmt: skip
"""Values of the package that the guides use without an import."""
OTHER_TYPE, NO_OVERLOAD, NOT_CALLABLE = "TS2345", "TS2769", "TS2349"
IS_UNDEFINED, NOT_UNDEFINED = "TS18048", "TS2322"
MAYBE_NULL, OBJECT_NULL, MAYBE_UNDEFINED, NO_MEMBER = "TS18047", "TS2531", "TS2532", "TS2339"
SETTINGS = {(page, OTHER_TYPE) for page in ("debug", "pictures", "resume", "sessions")}
"""Settings in a variable need a type."""
ELEMENTS = {("losses", OTHER_TYPE), ("losses", NOT_CALLABLE), ("series", NO_OVERLOAD), ("table", OTHER_TYPE)}
"""The data of a tensor may be of bigints or texts."""
COLUMNS = {("data", MAYBE_NULL), ("data", MAYBE_UNDEFINED), ("data", NO_MEMBER)}
COLUMNS |= {("elsewhere", code) for code in (MAYBE_NULL, IS_UNDEFINED, NO_MEMBER, NOT_UNDEFINED)}
"""A stream has no columns, and a table may lack one."""
PANELS = {("fit", OBJECT_NULL), ("fit", NO_MEMBER)}
"""The elements of trainweb/vis are known where it is imported."""
PYTHON_FILES = [
    "python/packages.zip",
    "python/snapshot.bin",
    "python/python_stdlib.zip",
    "python/pyodide.mjs",
    "python/pyodide.asm.mjs",
    "python/pyodide.asm.wasm.gz",
]

TRAIN = """
    const s = await TrainingSession.create(golden("mlp"));
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const losses = [];
    for (let k = 0; k < 3; k++) {
      losses.push((await s.runTrainStep({ x, labels }))[s.trainingOutputNames[0]].data[0]);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    await s.release();
    return losses;
"""

ORT_WEB_BYTES = 11_854_635
"""What a first visit fetches of onnxruntime-web 1.19.2: its WebAssembly and its scripts."""

STRICT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'wasm-unsafe-eval'",
        "worker-src 'self'",
        "connect-src 'self'",
        "img-src data:",
    )
)

TRUSTED_TYPES = "; require-trusted-types-for 'script'; trusted-types trainweb"


def node(code: str, *arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        ["node", *arguments, "--input-type=module", "-e", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guide_tells_the_size_of_the_charts() -> None:
    (told,) = re.findall(r"load its\s+(\d+) KiB", (ROOT / "docs" / "vis.md").read_text())
    assert int(told) * 1024 == pytest.approx((NPM / "vis.js").stat().st_size, rel=0.05)


def test_scripts_are_built_alone_as_with_all_else(tmp_path: Path) -> None:
    """For the mutants of TypeScript, `node web/build.mjs --scripts --types` in a copy of the tree."""
    require_built(NPM / "index.js")
    engine = "py_src/trainweb/backend/wasm/engine"
    for folder in (tmp_path / "web", tmp_path / engine):
        folder.mkdir(parents=True)
    for name in ("build.mjs", "snapshot.mjs", "tsconfig.json"):
        shutil.copy(ROOT / "web" / name, tmp_path / "web" / name)
    shutil.copy(ROOT / "package.json", tmp_path / "package.json")
    shutil.copytree(NPM, tmp_path / "dist" / "npm")
    shutil.copytree(ROOT / "web" / "src", tmp_path / "web" / "src")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "first.onnx", tmp_path / "docs")
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    names = [str(p.relative_to(NPM)) for p in (*NPM.glob("*.js"), *NPM.rglob("*.d.ts")) if p.name != "cli.js"]

    def scripts(folder: Path) -> dict[str, str]:
        # Comments say where a package lies.
        return {n: re.sub("// .*node_modules/", "", (folder / n).read_text()) for n in names}

    for name in names:
        (tmp_path / "dist" / "npm" / name).unlink()
    subprocess.run(["node", "web/build.mjs", "--scripts", "--types"], cwd=tmp_path, check=True)
    found, wanted = scripts(tmp_path / "dist" / "npm"), scripts(NPM)
    assert [n for n in names if found[n] != wanted[n]] == []


@pytest.mark.parametrize("specifier", ["trainweb", "trainweb/bundle", "trainweb/engine"])
def test_imports_on_a_server(specifier: str) -> None:
    """Nothing of a browser is touched at import: server-side rendering loads the module, too."""
    require_built(NPM / "index.js")
    names = json.loads(
        node(
            "for (const name of ['window', 'document', 'Worker', 'crossOriginIsolated', 'navigator'])"
            "  Object.defineProperty(globalThis, name, { get() { throw new Error(name) } });"
            f"console.log(JSON.stringify(Object.keys(await import('{specifier}'))))"
        )
    )
    wanted = {"Engine"} if specifier.endswith("engine") else {"TrainingSession", "Tensor", "env"}
    assert wanted <= set(names)


def test_tensor_is_that_of_onnxruntime_common() -> None:
    assert (
        node(
            "import { Tensor } from 'trainweb'; import * as ort from 'onnxruntime-common';"
            "console.log(Tensor === ort.Tensor)"
        ).strip()
        == "true"
    )


def test_a_session_without_workers_is_a_typed_error() -> None:
    """Of the script for browsers; Node has another one (test_node.py)."""
    assert "EngineError: sessions need Worker" in node(
        "import { TrainingSession } from './dist/npm/module.js';"
        "await TrainingSession.create({ trainModel: new Uint8Array(1), checkpointState: new Uint8Array(1) })"
        ".catch((error) => console.log(String(error)))"
    )


def compiled(folder: Path, *options: str) -> list[str]:
    """The errors of tsc in the programs of a folder, with the declarations as a user gets them."""
    require_built(NPM / "page" / "index.d.ts")
    modules = folder / "node_modules"
    (modules / "@huggingface" / "transformers").mkdir(parents=True)
    shutil.copy(TYPES / "transformers.d.ts", modules / "@huggingface" / "transformers" / "index.d.ts")
    for name in ("onnxruntime-common", "@huggingface/tokenizers"):
        (modules / name).symlink_to(ROOT / "node_modules" / name)
    (modules / "trainweb").symlink_to(ROOT)
    lib = "es2022,dom,dom.iterable,dom.asynciterable"
    form = ["--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler", "--lib", lib, "--types", ""]
    programs = sorted(path.name for path in folder.iterdir() if path.is_file())
    tsc = ["node", str(ROOT / "node_modules/typescript/bin/tsc"), "--noEmit", "--strict", *form, *options, *programs]
    done = subprocess.run(tsc, cwd=folder, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if not line.startswith(" ")]


def test_declarations_compile_for_a_user(tmp_path: Path) -> None:
    """A program in strict TypeScript, with the declarations as a user gets them."""
    (tmp_path / "program.ts").write_text(
        """
import { Dataset, env, FeedError, InferenceSession, Tensor, TrainingSession } from "trainweb";
import type { FitEvent, FitOptions, FitRun, SessionOptions, TrainingConfig, UnsupportedError } from "trainweb";
import type { InferenceSessionFactory, NonTensorType, OnnxValue, TrainingSessionFactory } from "trainweb";

env.wasm.numThreads = 2;
const options: SessionOptions = { reproducible: true, limits: { nodes: 10 } };
const session: TrainingSession = await TrainingSession.create(
  { trainModel: "a", checkpointState: new Uint8Array(1), evalModel: new Blob([]) }, options);
const feeds = { x: new Tensor("float32", [1], [1]) };
const results = await session.runTrainStep(feeds, ["loss"], { transfer: true });
const loss: Tensor | undefined = results["loss"];
await session.runEvalStep(feeds, { loss: null });
const size: number = await session.getParametersSize();
const config: TrainingConfig = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
await using made = await TrainingSession.createFromModel("m.onnx", config);
const inference = await InferenceSession.create(await made.exportModelForInferencing(["y"]));
await inference.run(feeds);
try { await session.release(); } catch (error) {
  if (error instanceof FeedError) console.log(error.message, size, loss?.dims);
  const op: string | null | undefined = (error as UnsupportedError).op;
  console.log(op);
}
const makers: [TrainingSessionFactory, InferenceSessionFactory] = [TrainingSession, InferenceSession];
const values: Record<string, OnnxValue> = { x: feeds.x, loss: results["loss"] as Exclude<OnnxValue, NonTensorType> };
const shape: readonly (number | string)[] | undefined = inference.inputMetadata[0]?.shape;
console.log(makers, values, shape, inference.modelMetadata.version > 1n, await made.getPropertyKind("a") === "int");
interface Question { prompt: string; completion: string; id: number }
const questions: Question[] = [];
const messages = [{ role: "user", content: "a" }, { role: "assistant", content: "b" }];
const literals = [{ prompt: "a", completion: "b", id: 1 }, { messages, id: 2 }, { text: "a", id: 3 }];
const coder = { encode: () => [1, 2], eos_token_id: 0 };
Dataset.fromText([{ prompt: "a", completion: "b", id: 1 }, { messages, id: 2 }], coder, { length: 8 });
Dataset.fromText([...questions, ...literals], coder, { length: 8 });
await Dataset.fromPreferences([{ chosen: "a", rejected: "b", id: 1 }], coder, { length: 8, reference: session });
const history = await session.fit({}, {
  metrics: ["accuracy", { type: "f1", average: "macro" }, { mine: (predictions) => predictions.size }],
  callbacks: (event) => event.type === "epoch" && event.validation?.accuracy.toFixed(2),
});
history.epochs.at(-1)?.validation?.accuracy.toFixed();
history.epochs[0]?.training?.f1.toFixed();
history.epochs[0]?.validation?.mine.toFixed();
for await (const event of session.fit({}, { metrics: "mae" }))
  if (event.type === "epoch") event.validation?.mae.toFixed();
(await session.evaluate({}, { metrics: { age: ["mae", "r2"] } })).age_r2.toFixed();
let running: FitRun = session.fit({}, { metrics: ["accuracy"] });
const anyMetrics: FitOptions = { metrics: ["accuracy", "mIoU"], callbacks: (event: FitEvent) => event.epoch };
running = session.fit({}, anyMetrics);
console.log(running.history.epochs[0]?.validation?.loss.toFixed());
// @ts-expect-error a matrix
(await session.evaluate({}, { metrics: ["confusionMatrix"] })).confusionMatrix.toFixed();
// @ts-expect-error a value for each class
(await session.evaluate({}, { metrics: { type: "f1", average: "none" } })).f1.toFixed();
// @ts-expect-error the metric was not named
(await session.evaluate({}, { metrics: ["accuracy"] })).auc.toFixed();
// @ts-expect-error metrics that are known only as the page runs
(await session.fit({}, anyMetrics)).epochs[0]?.validation?.accuracy.toFixed();
// @ts-expect-error no such metric
session.fit({}, { metrics: ["accurcy"] });
// @ts-expect-error a prompt needs a completion
Dataset.fromText([{ prompt: "a" }], coder, { length: 8 });
// @ts-expect-error profile() times a step
const profiling: SessionOptions = { enableProfiling: true };
// @ts-expect-error names cannot be changed
session.trainingInputNames.push("a");
// @ts-expect-error a checkpoint is required
await TrainingSession.create({ trainModel: "a" });
// @ts-expect-error no such loss
await TrainingSession.createFromModel("a", { loss: "Cosine" });
// @ts-expect-error no such level
env.logLevel = "loud";
// @ts-expect-error sessions are made by create
new TrainingSession();
"""
    )
    (ten_lines,) = re.findall(r"\[start:ten\] -->\n```js\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "ten.ts").write_text(ten_lines)
    (of_docs,) = re.findall(r"```ts\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)
    (tmp_path / "docs.ts").write_text(of_docs)
    shutil.copy(TYPES / "texts.ts", tmp_path)
    assert compiled(tmp_path, "--exactOptionalPropertyTypes") == []


def test_javascript_of_the_guides_has_the_types_it_needs(tmp_path: Path) -> None:
    """As tsc checks plain JavaScript; what it still asks of users is in docs/deploy.md#typescript or at the code."""
    shutil.copy(TYPES / "globals.ts", tmp_path)
    for name, programs in GUIDES.items():
        for k, code in enumerate(code for code in programs if not code.startswith(EVERYTHING)):
            known = declared(code) | set(re.findall(r"\w+", " ".join(re.findall("import {(.*?)}", code, re.DOTALL))))
            values = [value for value in re.findall(r"\w+", code) if value in VALUES - known]
            imports = f"import {{ {', '.join(dict.fromkeys(values))} }} from 'trainweb';\n"
            (tmp_path / f"{Path(name).stem}-{k}.js").write_text(f"{imports}{code}")
    errors = compiled(tmp_path, "--allowJs", "--checkJs", "--noImplicitAny", "false")
    places = {(line.partition("-")[0], *re.findall("error (TS[0-9]+)", line)) for line in errors}
    assert places == SETTINGS | ELEMENTS | COLUMNS | PANELS, "\n".join(errors)


def test_package_lists_what_it_needs() -> None:
    done = subprocess.run(["npm", "pack", "--dry-run", "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    listing = json.loads(done.stdout)
    entry = listing[0] if isinstance(listing, list) else next(iter(listing.values()))
    files = {file["path"] for file in entry["files"]}
    package = json.loads((ROOT / "package.json").read_text())
    targets = re.findall(r': "\./([^"]+)"', json.dumps(package["exports"]))
    assert len(targets) > 8
    assert set(targets) <= files
    for name in ("worker.js", "pool-worker.js", *PYTHON_FILES):
        assert f"dist/npm/{name}" in files
    assert {"LICENSE", "THIRD_PARTY_LICENSES", "dist/npm/cli.js"} <= files
    assert not any(path.endswith(".whl") for path in files)
    assert not any(path.startswith(("py_src/", "tests/", "web/", ".")) for path in files)


IN_PYODIDE = {
    "zlib": b" inflate 1.",
    "bzip2": b"libbzip2",
    "Zstandard": b"ZSTD_",
    "liblzma": b"LZMACompressor",
    "SQLite": b"sqlite_master",
    "Expat": b"expat_",
    "libmpdec": b"mpd_",
    "libffi": b"_ctypes",
    "error-stack-parser": b"ErrorStackParser",
}
"""Libraries by a text that their code has."""


def test_licences_of_what_pyodide_is_linked_with_are_named() -> None:
    wasm = gzip.decompress((NPM / "python" / "pyodide.asm.wasm.gz").read_bytes())
    code = wasm + (NPM / "python" / "pyodide.mjs").read_bytes()
    assert [name for name, sign in IN_PYODIDE.items() if sign not in code] == []
    text = (ROOT / "THIRD_PARTY_LICENSES").read_text()
    entry = text.partition("Libraries in Pyodide ")[2].partition("\nCPython ")[0]
    assert [name for name in IN_PYODIDE if name not in entry] == []
    own_texts = ("zlib", "bzip2", "Zstandard", "libmpdec")
    assert [name for name in own_texts if f"\nLicence of {name}\n" not in text] == []


def test_licences_of_others_are_named_with_their_texts() -> None:
    text = (ROOT / "THIRD_PARTY_LICENSES").read_text()
    for name in ("Pyodide", "CPython", "protobuf", "flatbuffers", "ONNX", "onnxruntime-common", "d3-dsv", "uPlot",
                 "Images of the MNIST database"):  # fmt: skip
        assert re.search(rf"^{name}[ ,]", text, re.MULTILINE), name
    for phrase in ("Mozilla Public License Version 2.0", "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2",
                   "Apache License\n", "Redistribution and use in source and binary forms",
                   "Copyright (c) Microsoft Corporation"):  # fmt: skip
        assert phrase in text, phrase
    (wheel,) = (ROOT / "dist").glob("trainweb-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("/licenses/THIRD_PARTY_LICENSES") for name in archive.namelist())


def test_the_package_says_where_it_comes_from() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    assert {"repository", "homepage", "bugs"} <= set(package)
    # An application's own onnxruntime-common serves, too.
    assert package["dependencies"]["onnxruntime-common"].startswith("^")


def test_lock_file_names_no_registry() -> None:
    assert "resolved" not in (ROOT / "package-lock.json").read_text()


ASSETS = [
    "worker.js", "pool-worker.js", "webgpu.js",
    *(f"kernels{kind}.wasm.gz" for kind in ("", ".relaxed", ".threads", ".relaxed.threads")), *PYTHON_FILES,
]  # fmt: skip

INLINED_BYTES = 4096
"""Vite turns smaller assets into data: URLs, and a worker of one gets no shared memory."""


def test_every_asset_is_named_for_bundlers() -> None:
    """Literally, and outside of `new Worker`; tests/bundlers has the bundlers themselves."""
    module = (NPM / "module.js").read_text()
    assert sorted(re.findall(r'new URL\("\./([^"]+)", import\.meta\.url\)', module)) == sorted(ASSETS)
    assert not re.search(r"new Worker\(\s*new URL", module)
    for name in ASSETS:
        assert (NPM / name).stat().st_size >= INLINED_BYTES, name


def test_the_page_in_one_file_names_no_assets() -> None:
    """A bundler that takes it in carries nothing along: the files lie in env.baseURL then."""
    script = (NPM / "index.js").read_text()
    assert not re.search(r"new URL\([^)]*import\.meta", script)
    assert not re.search(r"new Worker\(\s*new URL", script)


@pytest.mark.parametrize(("name", "imports"), [("worker.js", 1), ("pool-worker.js", 0)])
def test_a_worker_resolves_nothing_itself(name: str, imports: int) -> None:
    """Bundlers send it out as it is, under another name and in another folder."""
    script = (NPM / name).read_text()
    assert "import.meta" not in script
    assert not re.search(r"""(^|[;}])\s*(import\s*["'{*]|import\s+\w+\s+from|export\b)""", script, re.MULTILINE)
    assert "sourceMappingURL" not in script
    found = re.findall(r"\bimport\((.{80})", script)
    assert len(found) == imports
    for text in found:
        assert text.startswith("/* @vite-ignore */ /* webpackIgnore: true */ /* turbopackIgnore: true */ ")


@pytest.mark.parametrize("name", ["pyodide.mjs", "pyodide.asm.mjs"])
def test_bundlers_see_nothing_missing_in_pyodide(name: str) -> None:
    """Vite's development server reads these scripts, and fails on a package that is not installed."""
    script = (NPM / "python" / name).read_text()
    assert set(re.findall(r"""\bimport\(\s*["'`](\w+)""", script)) == {"node"}
    assert "sourceMappingURL" not in script


def test_every_declaration_is_one_that_users_come_to(tmp_path: Path) -> None:
    """Which files TypeScript reads for all entries together: the package has no others."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "trainweb").symlink_to(ROOT)
    exports = json.loads((ROOT / "package.json").read_text())["exports"]
    entries = [name for name, entry in exports.items() if isinstance(entry, dict) and "types" in entry]
    lines = [f'import * as entry{k} from "trainweb{name[1:]}";' for k, name in enumerate(entries)]
    (tmp_path / "program.ts").write_text("\n".join(lines))
    options = ["--listFilesOnly", "--module", "nodenext", "--target", "es2022", "program.ts"]
    tsc = ROOT / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(["node", tsc, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    read = {Path(line).resolve() for line in done.stdout.splitlines()}
    assert {file for file in read if file.is_relative_to(NPM)} == set(NPM.rglob("*.d.ts"))


def test_source_maps_that_are_named_are_there() -> None:
    named = {
        script: match[1]
        for script in [*NPM.glob("*.js"), *NPM.glob("python/*.mjs")]
        if (match := re.search(r"sourceMappingURL=(\S+)", script.read_text()))
    }
    entries = {f"{name}.js" for name in ("index", "trainweb", "module", "engine", "vis", "node", "node-engine")}
    assert {script.name for script in named} == entries
    assert all((script.parent / target).is_file() for script, target in named.items())


def test_what_crosses_to_the_worker_imports_no_other_folder() -> None:
    sources = list((ROOT / "web" / "src" / "wire").glob("*.ts"))
    assert len(sources) > 3
    for source in sources:
        assert not re.search(r'from "\.\./', source.read_text()), source


def npx(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command of the package, as npm puts it on the path."""
    script = ROOT / json.loads((ROOT / "package.json").read_text())["bin"]["trainweb"]
    return subprocess.run(["node", script, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_a_copy_serves_everything(browser: Browser, make_site: Callable[..., Site], tmp_path: Path) -> None:
    """`npx trainweb copy` and env.baseURL: nothing is asked for elsewhere, with threads or without."""
    done = npx("copy", "public/trainweb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "public" / "trainweb"
    copied = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert copied == {"index.js", "trainweb.js", "vis.js", "THIRD_PARTY_LICENSES", *ASSETS}
    for isolated in (False, True):
        site = make_site(isolated=isolated, mounts={**MOUNTS, "/copy/": (folder,)})
        with open_js_page(browser, site) as js:
            losses = js.run("env.baseURL = '/copy'; env.wasm.numThreads = 2;" + TRAIN)
        assert losses[2] < losses[0]
        assert site.requests("/dist/") == ["/dist/index.js"]
        assert ("/copy/pool-worker.js" in site.requests()) == isolated


def test_kernels_are_unpacked(tmp_path: Path) -> None:
    """`npx trainweb kernels`: the four builds as they lie in the wheel."""
    done = npx("kernels", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    engine = ROOT / "py_src" / "trainweb" / "backend" / "wasm" / "engine"
    builds = {file.name: file.read_bytes() for file in engine.glob("*.wasm")}
    assert len(builds) == 4
    assert {file.name: file.read_bytes() for file in (tmp_path / "here").iterdir()} == builds


def test_the_command_says_how_it_is_used(tmp_path: Path) -> None:
    usage = "usage: npx trainweb <command> ..."
    for words in ((), ("copy",), ("copy", "x", "y"), ("copy", "--all")):
        done = npx(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(usage)
    done = npx("move", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"There is no command 'move'.\n\n{usage}")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    done = npx("copy", "file/below", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("trainweb copy: ")


def test_the_command_tells_its_version() -> None:
    assert npx("--version").stdout.strip() == json.loads((ROOT / "package.json").read_text())["version"]


def test_every_command_of_python_runs_or_says_where_it_is(tmp_path: Path) -> None:
    """Every command of the other package, as its own help lists them."""
    done = subprocess.run([sys.executable, "-m", "trainweb.cli", "--help"], capture_output=True, text=True, check=True)
    (commands,) = re.findall(r"\{([\w,-]+)\}", done.stdout.replace("\n", ""))[:1]
    listed = re.findall(r"^  (\w+) \.\.\.", npx("--help").stdout, re.MULTILINE)
    assert set(listed) < set(commands.split(","))
    for command in set(commands.split(",")) - set(listed):
        done = npx(command, "model.onnx", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"'{command}' is a command of the Python package only.")
        assert 'pip install "trainweb[native]"' in done.stderr


def test_settings_that_name_no_folder_are_refused(browser: Browser, make_site: Callable[..., Site]) -> None:
    with open_js_page(browser, make_site(), ("404",)) as js:
        error = js.failure("env.baseURL = '';" + TRAIN)
        assert error["name"] == "TypeError"
        assert "env.baseURL must be a URL prefix" in error["message"]
        error = js.failure("env.baseURL = '/nowhere';" + TRAIN)
        assert error["name"] == "EngineError"
        assert "/nowhere/worker.js answered with HTTP status 404" in error["message"]
        assert "env.baseURL" in error["message"]


def test_vite_is_told_which_of_its_settings_keeps_a_linked_package_from_it(
    browser: Browser, make_site: Callable[..., Site]
) -> None:
    site = make_site()
    site.add("/@fs/home/trainweb/dist/npm/worker.js", "403 Restricted", "text/html", status=403)
    with open_js_page(browser, site, ("403",)) as js:
        error = js.failure("env.baseURL = '/@fs/home/trainweb/dist/npm/';" + TRAIN)
    assert error["name"] == "EngineError" and "HTTP status 403" in error["message"]
    assert "server.fs.allow" in error["message"] and "npx" not in error["message"]


def test_vite_is_told_its_setting_for_the_packages_of_a_workspace(
    browser: Browser, make_site: Callable[..., Site]
) -> None:
    """npm hoists them above Vite's root, and Vite answers with the page."""
    site = make_site()
    site.add("/node_modules/trainweb/dist/npm/worker.js", "<!doctype html>", "text/html")
    with open_js_page(browser, site, ("MIME",)) as js:
        error = js.failure("env.baseURL = '/node_modules/trainweb/dist/npm/';" + TRAIN)
    assert error["name"] == "EngineError" and "starts with" in error["message"]
    assert 'optimizeDeps: { exclude: ["trainweb"] }' in error["message"] and "npx" not in error["message"]


def test_scripts_name_no_scripts_of_other_servers() -> None:
    """Stores refuse extensions that have such addresses."""
    scripts = [file for ending in ("js", "mjs") for file in NPM.rglob(f"*.{ending}")]
    assert len(scripts) > 8
    for file in scripts:
        assert re.findall(r"https?://(?:cdn|unpkg|esm)[^\s\"'`)]*", file.read_text()) == [], file


@pytest.mark.parametrize("left", ['"file:///app/node_modules/trainweb/index.js"', "(void 0)"], ids=["file", "nothing"])
def test_files_lie_beside_a_bundle_that_has_no_address(
    browser: Browser, make_site: Callable[..., Site], left: str
) -> None:
    """webpack and Parcel write file: URLs for import.meta.url, esbuild nothing where there are no modules."""
    site = make_site(mounts={"/dist/trainweb/": (NPM,), **MOUNTS})
    script = (NPM / "index.js").read_text()
    assert script.count("import.meta.url") == 1
    site.add("/dist/index.js", script.replace("import.meta.url", left))
    with open_js_page(browser, site) as js:
        losses = js.run(TRAIN)
    assert losses[2] < losses[0]
    assert "/dist/trainweb/worker.js" in site.requests()


def test_files_that_no_bundler_carried_are_asked_for_beside_the_bundle(
    browser: Browser, make_site: Callable[..., Site]
) -> None:
    """Rollup and esbuild leave import.meta.url as it is, in another script: the error says the one command."""
    site = make_site()
    module = (
        (NPM / "module.js")
        .read_text()
        .replace('"onnxruntime-common"', '"/node_modules/onnxruntime-common/dist/esm/index.js"')
    )
    site.add("/dist/index.js", module)
    with open_js_page(browser, site, ("404",)) as js:
        error = js.failure(TRAIN)
    assert error["name"] == "EngineError"
    folder = site.url("/dist/trainweb/")
    assert f"{folder}worker.js answered with HTTP status 404" in error["message"]
    assert f"The files of trainweb should lie in {folder}: npx trainweb copy FOLDER" in error["message"]
    assert ".." not in error["message"]


@pytest.mark.parametrize("isolated", [False, True])
def test_a_strict_content_security_policy(browser: Browser, make_site: Callable[..., Site], isolated: bool) -> None:
    site = make_site(csp=STRICT_POLICY + TRUSTED_TYPES, isolated=isolated)
    with open_js_page(browser, site) as js:
        losses = js.run("env.wasm.numThreads = 2;" + TRAIN)
    assert losses[2] < losses[0]


def test_a_policy_without_webassembly_is_told_the_one_word_that_it_lacks(
    browser: Browser, make_site: Callable[..., Site]
) -> None:
    """The browser's own text names 'unsafe-eval', which allows more than is needed."""
    site = make_site(csp=STRICT_POLICY.replace(" 'wasm-unsafe-eval'", ""))
    with open_js_page(browser, site) as js:
        error = js.failure(TRAIN)
    text = "The page's content security policy lacks script-src 'wasm-unsafe-eval', which http"
    assert error["name"] == "EngineError" and error["message"].startswith(text) and "'unsafe" not in error["message"]


@pytest.mark.parametrize("isolated", [False, True])
def test_loaded_from_another_origin(browser: Browser, make_site: Callable[..., Site], isolated: bool) -> None:
    """As from a content delivery network: scripts, kernels and Python all come from there."""
    page_site, cdn = make_site(isolated=isolated), make_site(isolated=isolated)
    with open_js_page(browser, page_site, package=cdn.url("/dist/index.js")) as js:
        losses = js.run("env.wasm.numThreads = 2;" + TRAIN)
    assert losses[2] < losses[0]
    assert page_site.requests("/dist/") == []
    kernels = "/dist/kernels.relaxed.threads.wasm.gz" if isolated else "/dist/kernels.relaxed.wasm.gz"
    assert kernels in cdn.requests()
    assert ("/dist/pool-worker.js" in cdn.requests()) == isolated


SESSION_FILES = (
    "/tests/session.html",
    "/tests/session.mjs",
    "/dist/index.js",
    "/dist/worker.js",
    "/dist/kernels.relaxed.wasm.gz",
    "/golden/mlp/training_model.onnx",
    "/golden/mlp/eval_model.onnx",
    "/golden/mlp/optimizer_model.onnx",
    "/golden/mlp/checkpoint",
)
PATIENT = "env.timeouts.stall = 600_000;"
"""Scripts that do not start within a quarter of it are fetched again, and checked: on a busy machine all of them."""
PLAIN_FILES = ("/dist/python/packages.zip", "/dist/python/python_stdlib.zip")


def fetched(prefix: str, packed: str, *others: str) -> list[str]:
    """All that a page asks for which trains with Pyodide from `prefix`."""
    runtime = [f"{prefix}{name}" for name in ("pyodide.mjs", "pyodide.asm.mjs", f"pyodide.asm.wasm{packed}")]
    return sorted([*SESSION_FILES, *runtime, *others])


@pytest.mark.parametrize("snapshot", [True, False])
def test_nothing_else_is_fetched(browser: Browser, make_site: Callable[..., Site], snapshot: bool) -> None:
    """Neither numpy nor a package index: what a first visit costs is listed here in full."""
    site = make_site()
    with open_js_page(browser, site) as js:
        js.run(f"{PATIENT} env.pyodide.snapshot = {json.dumps(snapshot)};" + TRAIN)
    others = ["/dist/python/snapshot.bin"] if snapshot else PLAIN_FILES
    assert sorted(site.requests()) == fetched("/dist/python/", ".gz", *others)
    if snapshot:
        assert site.bytes_served() < ORT_WEB_BYTES


def test_pyodide_of_the_page(browser: Browser, make_site: Callable[..., Site]) -> None:
    """A distribution of the same version starts from the snapshot, too."""
    site = make_site()
    with open_js_page(browser, site) as js:
        losses = js.run(f"{PATIENT} env.pyodide.indexURL = '/pyodide/';" + TRAIN)
    assert losses[2] < losses[0]
    assert sorted(site.requests()) == fetched("/pyodide/", "", "/dist/python/snapshot.bin")


def test_the_library_is_fetched_when_something_else_is_imported(
    browser: Browser, make_site: Callable[..., Site]
) -> None:
    site = make_site()
    expose_python(site)
    with open_js_page(browser, site) as js:
        js.run(TRAIN)
        before = site.requests()
        value = js.worker.evaluate("python.runPython('import colorsys; str(colorsys.rgb_to_hsv(1, 0, 0))')")
    assert value == "(0.0, 1.0, 1)"
    assert "/dist/python/python_stdlib.zip" not in before
    assert "/dist/python/python_stdlib.zip" in site.requests()


@pytest.mark.parametrize("path", ["pyodide.asm.wasm.gz", "snapshot.bin"])
def test_a_server_may_unpack_what_it_sends(browser: Browser, make_site: Callable[..., Site], path: str) -> None:
    """Other bytes than expected are errors (test_faults_files.py); these are fine."""
    site = make_site()
    site.add(f"/dist/python/{path}", gzip.decompress((NPM / "python" / path).read_bytes()))
    with open_js_page(browser, site) as js:
        losses = js.run(TRAIN)
    assert losses[2] < losses[0]
    assert "/dist/python/packages.zip" not in site.requests()


def test_another_pyodide_starts_plainly(browser: Browser, make_site: Callable[..., Site]) -> None:
    """The snapshot belongs to one version; it is not even fetched for another."""
    site = make_site()
    loader = (ROOT / ".build" / "pyodide" / "pyodide.mjs").read_text()
    version = re.search(r'"(314\.\d+\.\d+)"', loader)
    assert version is not None
    site.add("/pyodide/pyodide.mjs", loader.replace(version[1], "314.0.99"))
    with open_js_page(browser, site, ("version", "lock")) as js:
        error = js.failure("env.pyodide.indexURL = '/pyodide/';" + TRAIN)
    assert "snapshot" not in error["message"]
    assert "/dist/python/snapshot.bin" not in site.requests()
