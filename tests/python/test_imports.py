"""Any module may be the first that a program imports, and no files or folders import each other in a circle."""

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import trainweb
from trainweb.backend.wasm import engine
from trainweb.errors import UnsupportedError

FIRST_OF_ALL = """
import sys, traceback
from importlib import import_module

for name in sys.argv[1:]:
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "trainweb"]:
        del sys.modules[loaded]
    try:
        import_module(name)
        if any(m.startswith("trainweb.ops.") for m in sys.modules):  # then the others of them come later, on demand
            import_module("trainweb.ops.frame.op").find("", "Gemm")
    except Exception:
        print(name, "cannot be the first:")
        traceback.print_exc(file=sys.stdout)
"""
"""One process for all: a start of Python with numpy takes longer than the package."""


# The engine of the page needs Pyodide, and the export of modules torch, which its own tests import.
ELSEWHERE = {"trainweb.backend.wasm.engine.pyodide", "trainweb.torch"}
MODULES = [
    m.name
    for m in pkgutil.walk_packages(trainweb.__path__, "trainweb.")
    if m.name not in ELSEWHERE and not m.name.endswith("__main__")
]
FIRST = sorted({name.rpartition(".")[0]: name for name in MODULES}.values())
"""One module of each folder. Imports without circles, tested below, say the same of the others."""


def test_a_module_of_each_folder_can_be_imported_first() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_OF_ALL, *FIRST], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


@pytest.mark.parametrize("reproducible", [False, True])
def test_sessions_name_the_package_of_the_native_engine(monkeypatch: pytest.MonkeyPatch, reproducible: bool) -> None:
    """`pip install trainweb` leaves it out, which a page does without."""
    monkeypatch.delitem(sys.modules, "trainweb.backend.wasm.engine.wasmtime", raising=False)
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    engine._native_engine.cache_clear()
    with pytest.raises(UnsupportedError, match=r"wasmtime is not installed: pip install 'trainweb\[native\]'"):
        engine.get_engine(reproducible=reproducible)


ROOT = Path(__file__).parents[2]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file, which several tests walk."""
    return [*ast.walk(ast.parse(path.read_text()))]


Imports = dict[str, set[str]]
"""By file or folder, what it imports."""


@cache
def python_imports() -> Imports:
    """All imports of Python, within functions and of names of types, too. A package is its `__init__`."""
    source = ROOT / "py_src"
    files = {".".join(p.relative_to(source).with_suffix("").parts): p for p in source.rglob("*.py")}
    packages = {name.removesuffix(".__init__"): name for name in files if name.endswith(".__init__")}
    found: Imports = {name: set() for name in files}
    for name, path in files.items():
        for node in nodes_of(path):
            targets = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                module = resolve_name("." * node.level + (node.module or ""), name.rpartition(".")[0])
                inner = [f"{module}.{alias.name}" for alias in node.names]
                targets = [full if full in files or full in packages else module for full in inner]
            found[name] |= {packages.get(target, target) for target in targets} & files.keys() - {name}
    return found


def typescript_imports() -> Imports:
    """The imports of the files of the page and the worker, types as well."""
    source = ROOT / "web" / "src"
    found: Imports = {}
    for path in source.rglob("*.ts"):
        names = re.findall(r'(?:from|import)\s*\(?"(\.[^"]+)\.js"', path.read_text())
        targets = ((path.parent / name).resolve().relative_to(source) for name in names)
        found[str(path.relative_to(source).with_suffix(""))] = {str(target) for target in targets}
    return found


def folders(imports: Imports, separator: str, depth: int) -> Imports:
    """The same of folders, each named by its first parts."""
    found: Imports = {}
    for name, targets in imports.items():
        own = name.split(separator)
        for target in targets:
            other = target.split(separator)
            if min(len(own), len(other)) > depth and own[:depth] != other[:depth]:
                found.setdefault(separator.join(own[:depth]), set()).add(separator.join(other[:depth]))
    return found


@pytest.mark.parametrize("language", ["python", "typescript"])
def test_no_files_or_folders_import_each_other_in_a_circle(language: str) -> None:
    imports = python_imports() if language == "python" else typescript_imports()
    between = folders(imports, *((".", 2) if language == "python" else ("/", 1)))
    assert len(imports) > 40 and len(between) > 3
    for graph in (imports, between):
        TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


ABOVE = ("api", "cli", "compat", "federated", "flower", "page", "session", "torch")
"""Packages that stand on the core."""


def test_the_core_loads_nothing_that_stands_on_it() -> None:
    """docs/architecture.md names the packages that stand on the core, and who loads them."""
    above = tuple(f"trainweb.{name}" for name in ABOVE)
    found = {name for name, targets in python_imports().items() if any(t.startswith(above) for t in targets)}
    names_of_types = {"trainweb.__init__"}
    assert {name for name in found if not name.startswith(above)} == names_of_types


def imported_anywhere(path: Path) -> set[str]:
    """Full names of what a file imports, within its functions too."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


FORMAT_OF_PLANS = (
    "HEADER_",
    "PLAN_",
    "SEGMENT_WORDS",
    "BUFFER_",
    "GENERATED_",
    "POINTER_",
    "REDUCTION_",
    "FINGERPRINT",
)


def test_only_the_choice_of_the_back_end_knows_the_kernels() -> None:
    """Compiler, models and sessions ask `Backend`; the words of plans are the back end's own."""
    source = ROOT / "py_src" / "trainweb"
    formats = tuple(f"trainweb.ir.layout.{name}" for name in FORMAT_OF_PLANS)
    imports = {path.relative_to(source): imported_anywhere(path) for path in source.rglob("*.py")}
    others = {path: names for path, names in imports.items() if Path("backend/wasm") not in path.parents}
    assert len(others) > 200
    kernels = {path for path, names in others.items() if any(n.startswith("trainweb.backend.wasm") for n in names)}
    assert kernels == {Path("backend/chosen.py")}
    words = {path for path, names in others.items() if any(n.startswith(formats) for n in names)}
    assert words == {Path("backend/engine.py"), Path("backend/description.py")}


def test_only_the_back_end_calls_the_kernels_session() -> None:
    """Sessions ask `Host`: they name no function of `wasm_kernels/session/`, and no address of a plan or segment."""
    source = ROOT / "py_src" / "trainweb"
    table = source / "ir" / "layout.py"
    above = [path for path in source.rglob("*.py") if source / "backend" not in path.parents and path != table]
    assert len(above) > 200
    for path in above:
        for node in nodes_of(path):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            name = node.attr if isinstance(node, ast.Attribute) else ""
            assert not re.match(r"tw_(session|fit)_", text), (path, text)
            assert name not in {"bases", "code_base", "plan_status", "run_slice"}, (path, name)


def test_only_the_host_of_a_page_knows_kernel_memory() -> None:
    """Sessions of a page ask `StepHost` (worker/host.ts). `worker.ts` starts the engine and opens the kernels' host."""
    imports = {name: targets for name, targets in typescript_imports().items() if name.startswith("worker/")}
    assert len(imports) > 30
    above = {name: targets for name, targets in imports.items() if not name.startswith("worker/wasm/")}
    memory = {t for targets in imports.values() for t in targets if t.startswith(("worker/wasm/", "engine/engine"))}
    kernels = {name: targets & memory for name, targets in above.items() if targets & memory}
    assert kernels == {"worker/worker": {"engine/engine", "worker/wasm/wasm-host"}}
    for name in above:
        text = (ROOT / "web" / "src" / f"{name}.ts").read_text()
        assert not re.search(r'"tw_session_|\baddressOf\(', text), name


def test_no_file_is_longer_than_a_reader_bears() -> None:
    """CONTRIBUTING says how long a file may be; the table of calls is one, which a generator writes."""
    folders = ("py_src", "web/src", "web/demo", "wasm_kernels", "scripts", "tests", "bench")
    kinds = {".py", ".ts", ".c", ".h", ".mjs", ".def"}
    built = ROOT / "wasm_kernels" / "build"
    paths = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in kinds]
    lengths = {
        p.relative_to(ROOT): p.read_text().count("\n")
        for p in paths
        if built not in p.parents and "node_modules" not in p.parts
    }
    assert len(lengths) > 300
    assert {p for p, n in lengths.items() if n > 800} == {Path("py_src/trainweb/ir/calls.py")}


def function_lines(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function, without its signature and docstring."""
    for node in nodes_of(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statements = node.body[1:] if ast.get_docstring(node) else node.body
            yield node.name, (statements[-1].end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def test_no_function_of_the_package_is_longer_than_stated() -> None:
    paths = list((ROOT / "py_src").rglob("*.py"))
    found = [(path.name, name, n) for path in paths for name, n in function_lines(path)]
    assert len(found) > 1000
    assert [function for function in found if function[2] > 60] == []


CHANGES = {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update", "write"}


def test_asserts_only_look() -> None:
    """Python in a page runs none of them."""
    asserts = [
        (path.name, node)
        for path in (ROOT / "py_src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert len(asserts) > 20
    parts = [(name, part) for name, node in asserts for part in ast.walk(node)]
    assert [name for name, part in parts if isinstance(part, ast.NamedExpr)] == []
    assert [(name, part.attr) for name, part in parts if isinstance(part, ast.Attribute) and part.attr in CHANGES] == []
