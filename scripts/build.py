"""Set-up, build, tests and demo of trainweb; `./build.sh --help` lists the commands."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chromium
import environments
import onnxruntime_training
import pyodide_dist
import pyodide_lockfile
import teach_backbone
import typedoc
from published_readme import published_readme
from steps import (
    BUILD,
    DIST,
    LOCKS,
    PYTHON,
    ROOT,
    VENV,
    BuildError,
    Step,
    build_lock,
    environment,
    locked,
    run,
    run_step,
    say,
)

NODE_MAJOR = 20
PACKAGE = ROOT / "py_src" / "trainweb"
ENGINE = PACKAGE / "backend" / "wasm" / "engine"
KERNELS = tuple(f"kernels{variant}.wasm" for variant in ("", ".relaxed", ".threads", ".relaxed.threads"))
WEB = ROOT / "web" / "src"
MADE_OF_KERNELS = (PACKAGE / "ir" / "calls.py", PACKAGE / "ir" / "layout.py", WEB / "engine" / "layout.ts")
"""Sources that follow from kernels.def. Git has the first, which people read, and ignores the others."""
MADE_OF_DECLARATIONS = (
    PACKAGE / "training" / "session_methods.py",
    PACKAGE / "onnxblock" / "rule_optimizers.pyi",
    WEB / "page" / "session-methods.ts",
    WEB / "page" / "settings",
    WEB / "wire" / "constants.ts",
    WEB / "wire" / "error-classes.ts",
    WEB / "wire" / "message-texts.ts",
    WEB / "wire" / "records.ts",
    WEB / "wire" / "session-calls.ts",
)
"""Sources that follow from declarations in Python; git ignores them."""
SCHEMA = PACKAGE / "model" / "onnx_schema.bin"
ENGINE_JS = ENGINE / "engine.js"
PACKED = ("package.json", "LICENSE", "THIRD_PARTY_LICENSES")
"""What lies in the npm tarball beside dist/npm and the README."""
WHEEL_BUILDER = ("build", "editables", "hatchling")

DESCRIPTION = """\
Builds, tests and shows trainweb. Every command does all the set-up it needs by itself
(a Python environment in .venv, npm packages, a Chromium where there is none) and skips
whatever is done already."""

EPILOG = """\
environment:
  TRAINWEB_PYTHON      the Python (>= 3.11, with venv) to create .venv with
  TRAINWEB_CHROMIUM    the Chromium that tests and demo drive
  TRAINWEB_ORT_PYTHON  a Python with onnxruntime-training 1.19.2 for the tests against it;
                       none: skip these tests
  TRAINWEB_FLOWER_PYTHON
                       a Python with flwr, torch and websockets for test-federated
  TRAINWEB_TORCH_PYTHON
                       a Python with torch and the other libraries that recording needs

examples:
  ./build.sh                           wheel, npm tarball and kernels in dist/
  ./build.sh demo                      train in a browser window
  ./build.sh demo --headless           the same with no window; prints the course of training
  ./build.sh test tests/python -k conv
  ./build.sh test-bundlers vite next   the npm package in projects of these bundlers
  ./build.sh test-browsers webkit      pages in WebKit
  ./build.sh test-notebooks marimo     the README's cell in marimo
"""


# --- set-up -------------------------------------------------------------------------------------


def requirements(*names: str) -> list[str]:
    """The pinned group `dev` of pyproject.toml; only the given `names`, if any."""
    with (ROOT / "pyproject.toml").open("rb") as handle:
        dev = tomllib.load(handle)["dependency-groups"]["dev"]
    if not names:
        return list(dev)
    return [line for line in dev if line.split("==")[0] in names]


def _pip(*arguments: str | Path) -> None:
    run(PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _create_venv() -> None:
    if not PYTHON.exists():
        venv.EnvBuilder(with_pip=True, symlinks=os.name != "nt", clear=VENV.exists()).create(VENV)
    _pip("install", *locked("dev"))
    # Editable, so that the tests and the command line see the sources as they stand.
    _pip("install", "--no-deps", "--no-build-isolation", "--editable", ".")


def setup_python() -> None:
    """Create .venv with the pinned development requirements and trainweb itself (editable)."""
    with (ROOT / "pyproject.toml").open("rb") as handle:
        project = tomllib.load(handle)
    identity = [repr(project["project"]), repr(project["build-system"]), platform.python_version()]
    run_step(Step("python-environment", _create_venv, inputs=[*identity, LOCKS / "dev.txt"], outputs=[PYTHON]))


def _node_version() -> str:
    node = shutil.which("node")
    if not node or not shutil.which("npm"):
        raise BuildError(f"node and npm are needed (Node >= {NODE_MAJOR}); not found on PATH")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    text = version.stdout.strip().lstrip("v")
    if int(text.split(".")[0]) < NODE_MAJOR:
        raise BuildError(f"Node >= {NODE_MAJOR} is needed; {node} is {text}")
    return text


def setup_node() -> None:
    """Install the npm packages that package-lock.json names."""
    version = _node_version()
    marker = ROOT / "node_modules" / ".package-lock.json"
    lock = ROOT / "package-lock.json"
    run_step(
        Step(
            "npm-packages",
            lambda: run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"),
            inputs=[lock, version, platform.machine()],
            outputs=[marker],
        )
    )


def setup_chromium() -> str:
    """Find or install Chromium; returns its path."""
    path = chromium.find_chromium()
    say(f"chromium: {path}")
    return path


def setup_headless() -> None:
    """Find or install the headless shell, in which most tests of pages run."""
    say(f"headless: {chromium.find_headless()}")


# --- build --------------------------------------------------------------------------------------


def build_kernels() -> None:
    """Compile the C kernels to the four WebAssembly builds, and write the sources that follow from kernels.def."""
    run_step(
        Step(
            "kernels",
            lambda: run(PYTHON, "wasm_kernels/build.py"),
            inputs=[ROOT / "wasm_kernels", *requirements("ziglang")],
            outputs=[ROOT / "wasm_kernels" / "build", *(ENGINE / name for name in KERNELS), *MADE_OF_KERNELS],
        )
    )


def build_schema() -> None:
    """Take the ONNX protobuf schema out of the installed `onnx` package."""
    script = ROOT / "scripts" / "make_schema.py"
    run_step(
        Step(
            "onnx-schema",
            lambda: run(PYTHON, script),
            inputs=[script, *requirements("onnx", "protobuf")],
            outputs=[SCHEMA],
        )
    )


def build_session_description() -> None:
    """Write the sources that follow from declarations in Python, whose session core must have every call."""
    script = ROOT / "scripts" / "session_description.py"
    run_step(
        Step(
            "session-description",
            lambda: run(PYTHON, script),
            inputs=[script.parent, *sorted(PACKAGE.rglob("*.py")), WEB],
            outputs=MADE_OF_DECLARATIONS,
        )
    )


def build_sources() -> None:
    """Build what the sources in git lack before anything reads them as a program."""
    build_kernels()
    build_schema()
    build_session_description()


def build_pyodide() -> None:
    """Put up the self-hosted Pyodide and the pure wheels of the dependencies."""
    this = ROOT / "scripts" / "pyodide_dist.py"
    run_step(
        Step(
            "pyodide",
            pyodide_dist.build_pyodide,
            inputs=[this, pyodide_dist.VERSION],
            outputs=[pyodide_dist.OUT / name for name in pyodide_dist.RUNTIME] + [pyodide_dist.LOCAL_LOCK],
        )
    )
    run_step(
        Step(
            "dependency-wheels",
            pyodide_dist.build_wheels,
            inputs=[LOCKS / "pyodide-wheels.txt"],
            outputs=[pyodide_dist.WHEELS],
        )
    )


def version() -> str:
    """The version in _version.py; package.json, which npm reads as it stands, must say the same."""
    namespace: dict[str, str] = {}
    exec((PACKAGE / "_version.py").read_text(), namespace)
    python = namespace["__version__"]
    npm = json.loads((ROOT / "package.json").read_text())["version"]
    if npm != python:
        raise BuildError(f"package.json has version {npm}, py_src/trainweb/_version.py {python}")
    return python


def wheel_path() -> Path:
    """The path of the wheel of the present version, built or not."""
    return DIST / f"trainweb-{version()}-py3-none-any.whl"


def _build_wheel() -> None:
    for old in DIST.glob("trainweb-*.whl"):
        old.unlink()
    run(
        PYTHON,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        DIST,
        ".",
        env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )


def build_wheel() -> None:
    """Build the Python wheel into dist/."""
    run_step(
        Step(
            "wheel",
            _build_wheel,
            inputs=[
                ROOT / "pyproject.toml",
                ROOT / "README.md",
                ROOT / "scripts" / "hatch_readme.py",
                ROOT / "scripts" / "published_readme.py",
                ROOT / "LICENSE",
                ROOT / "THIRD_PARTY_LICENSES",
                PACKAGE,
                *requirements(*WHEEL_BUILDER),
            ],
            outputs=[wheel_path()],
        )
    )


WEB_INPUTS = [ROOT / "web", ROOT / "docs" / "first.onnx", ROOT / "package.json", ROOT / "package-lock.json"]


def build_engine_js() -> None:
    """Bundle the kernel engine that goes into the wheel."""
    run_step(
        Step(
            "engine-js",
            lambda: run("node", "web/build.mjs", "--engine"),
            inputs=WEB_INPUTS,
            outputs=[ENGINE_JS],
        )
    )


def build_web() -> None:
    """Build the JS package into dist/npm."""
    run_step(
        Step(
            "js-package",
            lambda: run("node", "web/build.mjs"),
            inputs=[
                *WEB_INPUTS,
                *(ENGINE / name for name in KERNELS),
                wheel_path(),
                pyodide_dist.WHEELS,
                pyodide_dist.OUT / "pyodide-lock.json",
            ],
            outputs=[DIST / "npm" / "index.js"],
        )
    )


def _pack() -> None:
    for old in DIST.glob("trainweb-*.tgz"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        package = Path(folder)
        for name in PACKED:
            shutil.copyfile(ROOT / name, package / name)
        (package / "README.md").write_text(published_readme(ROOT), encoding="utf-8")
        shutil.copytree(DIST / "npm", package / "dist" / "npm", copy_function=os.link)
        run("npm", "pack", "--silent", "--pack-destination", DIST, package)
    for name in KERNELS:
        shutil.copyfile(ENGINE / name, DIST / name)


def build_npm_tarball() -> None:
    """Pack the npm tarball and lay the kernels beside it."""
    run_step(
        Step(
            "npm-tarball",
            _pack,
            inputs=[
                *(ROOT / name for name in (*PACKED, "README.md", "scripts/published_readme.py")),
                DIST / "npm",
            ],
            outputs=[DIST / name for name in KERNELS],
        )
    )


def sbom_path() -> Path:
    """The path of the software bill of materials, built or not."""
    return DIST / f"trainweb-{version()}.cdx.json"


def build_sbom() -> None:
    """Write what the wheel and the npm tarball are made of."""
    this = ROOT / "scripts" / "sbom.py"
    released = [wheel_path(), DIST / f"trainweb-{version()}.tgz"]
    run_step(
        Step(
            "sbom",
            lambda: run(PYTHON, this, version(), *released),
            inputs=[this, *released, ROOT / "package-lock.json", *requirements("cyclonedx-python-lib", "onnx")],
            outputs=[sbom_path()],
        )
    )


def build_pyodide_tools() -> None:
    """Create the environment of pyodide-build."""
    run_step(
        Step(
            "pyodide-build",
            pyodide_lockfile.build_tools,
            inputs=[LOCKS / "pyodide-build.txt"],
            outputs=[pyodide_lockfile.TOOLS / "bin" / "pyodide"],
        )
    )


def build_pyodide_distribution() -> None:
    """Write a Pyodide distribution with trainweb in its lock file to dist/pyodide."""
    build_pyodide_tools()
    this = ROOT / "scripts" / "pyodide_lockfile.py"
    run_step(
        Step(
            "pyodide-distribution",
            lambda: pyodide_lockfile.build_distribution(wheel_path()),
            inputs=[this, wheel_path(), pyodide_dist.WHEELS, pyodide_dist.LOCAL_LOCK],
            outputs=[pyodide_lockfile.OUT / "pyodide-lock.json"],
        )
    )


def build_all() -> None:
    """Everything that a release is made of, and what the tests need."""
    with build_lock():
        setup_python()
        setup_node()
        build_sources()
        build_engine_js()
        build_wheel()
        build_pyodide()
        build_web()
        build_npm_tarball()
        build_sbom()


# --- commands -----------------------------------------------------------------------------------


def command_build(_: list[str]) -> None:
    """Build the wheel, the npm tarball and the kernels into dist/ (the default)."""
    build_all()
    for path in sorted(DIST.iterdir()):
        if path.is_file():
            print(f"    dist/{path.name}  {path.stat().st_size / 1024:.0f} KiB")


def command_setup(_: list[str]) -> None:
    """Only install what building and testing need (.venv, node_modules, Chromium)."""
    with build_lock():
        setup_python()
        setup_node()
        setup_chromium()
        setup_headless()
        typedoc.setup()


PROGRAMS_OF_TESTS = {"PYTHONPATH": str(ROOT / "scripts")}
"""For `python -m tests...`, which shares fixtures with pytest: pyproject.toml gives that the same path."""


def _exec(*command: str | Path, **variables: str) -> None:
    words = [str(word) for word in command]
    sys.stdout.flush()
    os.chdir(ROOT)
    if os.name == "nt":  # where exec ends the process that the caller waits for
        sys.exit(subprocess.run(words, env={**environment(), **variables}, check=False).returncode)
    os.execvpe(words[0], words, {**environment(), **variables})


def check_types() -> None:
    """Check the types of the TypeScript."""
    run("npx", "--no-install", "tsc", "-p", "web/tsconfig.json", "--noEmit")


def command_test(arguments: list[str]) -> None:
    """Run the tests; further arguments go to pytest."""
    build_all()
    with build_lock(), ThreadPoolExecutor() as together:  # most of it waits for registries
        jobs: list[Callable[[], object]] = [typedoc.setup, teach_backbone.wheel, check_types]
        if pyodide_lockfile.find_python():
            jobs.append(build_pyodide_distribution)
        others = [together.submit(job) for job in jobs]
        ort_python = onnxruntime_training.setup()
        for other in others:
            other.result()
    setup_chromium()
    setup_headless()
    processes = str(min(os.cpu_count() or 1, 4))
    # Whole files in the order of tests/order.py. Arguments come later and win: -n 0 for a debugger.
    parallel = ("-n", processes, "--dist", "loadfile", "--no-loadscope-reorder")
    _exec(PYTHON, "-m", "pytest", *parallel, *arguments, TRAINWEB_ORT_PYTHON=ort_python)


def command_test_large(arguments: list[str]) -> None:
    """Run only the tests with up to 700 MiB of weights and 2 GiB files (14 GiB)."""
    build_all()
    browser = setup_chromium()
    tests = ("-m", "", "-s", "--durations=0", "tests/browser/test_js_large.py")
    _exec(PYTHON, "-m", "pytest", *tests, *arguments, TRAINWEB_CHROMIUM=browser)


def command_test_attacks(arguments: list[str]) -> None:
    """Try every fault of every file, fuzz plans and bundles, soak; [--minutes M] for each of these three."""
    parser = argparse.ArgumentParser(prog="./build.sh test-attacks")
    parser.add_argument("--minutes", type=float, default=10)
    minutes = str(parser.parse_args(arguments).minutes)
    build_all()
    browser = {"TRAINWEB_CHROMIUM": setup_chromium()}
    run(PYTHON, "-m", "pytest", "-m", "sweep", "-rP", env=browser)
    for script in ("fuzz_plans", "fuzz_bundles", "soak"):
        run(PYTHON, f"scripts/{script}.py", "--minutes", minutes, env=browser)


def command_test_closed_tabs(arguments: list[str]) -> None:
    """Kill the renderer of a page that trains at random moments, and open it again; [--kills N] [--seed N]."""
    build_all()
    variables = {"TRAINWEB_CHROMIUM": setup_chromium(), **PROGRAMS_OF_TESTS}
    run(PYTHON, "-m", "tests.browser.closed_tabs", *arguments, env=variables)


def command_test_federated(arguments: list[str]) -> None:
    """Federated rounds of Flower, with PyTorch and with pages [--record] [--native FOLDER]; several GB."""
    build_all()
    with build_lock():
        python = environments.setup("flower")
    variables = {"TRAINWEB_CHROMIUM": setup_chromium(), "TRAINWEB_FLOWER_PYTHON": python}
    run(PYTHON, "-m", "tests.federated.run", *arguments, env=variables | PROGRAMS_OF_TESTS)
    _exec(PYTHON, "-m", "tests.federated.guide", **variables, **PROGRAMS_OF_TESTS)


def command_test_webgpu(arguments: list[str]) -> None:
    """Run plans for the GPU natively, and random graphs [--minutes M]; needs a Vulkan driver and PyPI's registry."""
    parser = argparse.ArgumentParser(prog="./build.sh test-webgpu")
    parser.add_argument("--minutes", type=float, default=10)
    minutes = str(parser.parse_args(arguments).minutes)
    build_all()
    _pip("install", *tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["webgpu-tests"])
    run(PYTHON, "-m", "pytest", "tests/webgpu")
    run(PYTHON, "scripts/fuzz_shaders.py", "--minutes", minutes)


def command_test_bundlers(arguments: list[str]) -> None:
    """Train with the tarball in projects of bundlers; needs npm's registry."""
    build_all()
    browser = setup_chromium()
    _exec(PYTHON, "-m", "tests.bundlers.run", *arguments, TRAINWEB_CHROMIUM=browser, **PROGRAMS_OF_TESTS)


def command_test_browsers(arguments: list[str]) -> None:
    """Run pages in Chromium, Firefox and WebKit; needs npm's registry."""
    build_all()
    browser = setup_chromium()
    _exec(PYTHON, "-m", "tests.engines.run", *arguments, TRAINWEB_CHROMIUM=browser, **PROGRAMS_OF_TESTS)


def command_test_notebooks(arguments: list[str]) -> None:
    """Run the README's cell in releases of Pyodide, PyScript and marimo; needs npm's and PyPI's registries."""
    build_all()
    browser = setup_chromium()
    _exec(PYTHON, "-m", "tests.notebooks.run", *arguments, TRAINWEB_CHROMIUM=browser, **PROGRAMS_OF_TESTS)


def command_demo(arguments: list[str]) -> None:
    """Serve the demo and train in Chromium [--headless]."""
    build_all()
    browser = setup_chromium()
    _exec(PYTHON, "scripts/demo.py", *arguments, TRAINWEB_CHROMIUM=browser)


def command_examples(arguments: list[str]) -> None:
    """Serve the pages of examples/ [--port N]."""
    build_all()
    _exec(PYTHON, "scripts/examples.py", *arguments)


def command_site(_: list[str]) -> None:
    """Write the documentation's site to dist/site (needs Python 3.12)."""
    pyodide_lockfile.require_python()
    build_all()
    command_api([])
    with build_lock():
        build_pyodide_tools()
        run(PYTHON, "scripts/make_site.py")


def command_test_site(arguments: list[str]) -> None:
    """Build the site, follow its links and run its code in Chromium."""
    command_site([])
    browser = setup_chromium()
    _exec(PYTHON, "-m", "pytest", "tests/site", *arguments, TRAINWEB_CHROMIUM=browser)


def command_bench(arguments: list[str]) -> None:
    """Run the benchmarks; further arguments go to bench/run.py."""
    build_all()
    browser = setup_chromium()
    _exec(PYTHON, "bench/run.py", *arguments, TRAINWEB_CHROMIUM=browser)


def command_pyodide_dist(_: list[str]) -> None:
    """Write dist/pyodide, a Pyodide with loadPackage("trainweb") (needs Python 3.12)."""
    pyodide_lockfile.require_python()
    build_all()
    with build_lock():
        build_pyodide_distribution()


def _record(script: str, arguments: list[str]) -> None:
    with build_lock():
        python = environments.setup("torch")
    _exec(python, "-W", "ignore", f"scripts/{script}", *arguments)


def command_record_exports(arguments: list[str]) -> None:
    """Record tests/conformance/exports anew with PyTorch [names]."""
    _record("record_exports.py", arguments)


def command_record_lora(arguments: list[str]) -> None:
    """Record tests/lora/recorded anew with PyTorch and PEFT [names]."""
    _record("record_lora.py", arguments)


def command_record_families(arguments: list[str]) -> None:
    """Record tests/lora/families anew with PyTorch, transformers and PEFT [names]."""
    _record("record_families.py", arguments)


def command_record_voice(arguments: list[str]) -> None:
    """Train the model of the demo of voices anew with PyTorch, and record PEFT's adapter of it."""
    _record("record_voice.py", arguments)


def command_record_zoo(arguments: list[str]) -> None:
    """Record tests/zoo/recorded anew with PyTorch [names]."""
    _record("record_zoo.py", arguments)


def command_lint(_: list[str]) -> None:
    """Run ruff (rules and format), mypy, tsc and oxlint."""
    build_all()
    folders = ("py_src", "tests", "scripts", "bench", "site", "wasm_kernels")
    run(PYTHON, "-m", "ruff", "check", *folders)
    run(PYTHON, "-m", "ruff", "format", "--check", *folders)
    for checked in ((), ("scripts",), ("bench",), ("-p", "tests.fuzz", "-p", "tests.lora", "-p", "tests.ops")):
        run(PYTHON, "-m", "mypy", *checked)
    for folder in ("web", "site"):
        project = f"{folder}/tsconfig.json"
        run("npx", "--no-install", "tsc", "-p", project, "--noEmit")
        run("npx", "--no-install", "oxlint", "--type-aware", "-c", "web/oxlint.json", "--tsconfig", project, folder)


def command_api(_: list[str]) -> None:
    """Write the API reference of both languages to docs/api, as Markdown."""
    with build_lock():
        setup_python()
        setup_node()
        build_sources()
        typedoc.setup()
    run(PYTHON, "scripts/api_reference.py")


def command_clean(_: list[str]) -> None:
    """Remove dist/ and all stamps, so that everything is built anew."""
    for folder in (DIST, BUILD / "stamps", ROOT / "wasm_kernels" / "build"):
        shutil.rmtree(folder, ignore_errors=True)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "build": command_build,
    "demo": command_demo,
    "examples": command_examples,
    "site": command_site,
    "test": command_test,
    "test-large": command_test_large,
    "test-attacks": command_test_attacks,
    "test-closed-tabs": command_test_closed_tabs,
    "test-federated": command_test_federated,
    "test-webgpu": command_test_webgpu,
    "test-bundlers": command_test_bundlers,
    "test-browsers": command_test_browsers,
    "test-notebooks": command_test_notebooks,
    "test-site": command_test_site,
    "bench": command_bench,
    "pyodide-dist": command_pyodide_dist,
    "record-exports": command_record_exports,
    "record-families": command_record_families,
    "record-lora": command_record_lora,
    "record-voice": command_record_voice,
    "record-zoo": command_record_zoo,
    "api": command_api,
    "lint": command_lint,
    "setup": command_setup,
    "clean": command_clean,
}


def main() -> int:
    """Run the command on the command line; returns the exit status."""
    listing = "\n".join(f"  {name:<14} {f.__doc__}" for name, f in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="./build.sh",
        description=DESCRIPTION,
        epilog=f"commands:\n{listing}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="./build.sh [command] [arguments ...]",
    )
    parser.add_argument(
        "command",
        nargs="?",
        default="build",
        choices=COMMANDS,
        metavar="command",
        help="one of those below; build when none is given",
    )
    # Split by hand: argparse would swallow options such as -k that are meant for pytest.
    words = sys.argv[1:]
    options = parser.parse_args(words[:1])
    start = time.monotonic()
    try:
        COMMANDS[options.command](words[1:])
    except BuildError as error:
        print(f"build.sh {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    say(f"{options.command}: {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
