"""The limits that CONTRIBUTING.md states for sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.server import ROOT

FILE_LINES = 800
FUNCTION_LINES = 60
"""Of a function's statements, without its signature and docstring."""
FOLDERS = ("py_src", "web/src", "wasm_kernels", "scripts", "bench", "tests", "site")
SUFFIXES = (".py", ".ts", ".c", ".h", ".mjs")
GENERATED = ("py_src/trainweb/ir/calls.py",)
LEFT_OUT = ("node_modules", "build", "recorded")


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return [path for path in found if not {*LEFT_OUT} & {*path.relative_to(ROOT).parts}]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statements = node.body[1:] if ast.get_docstring(node) else node.body
            lines = statements[-1].end_lineno or 0 if statements else 0
            yield node.name, lines - statements[0].lineno + 1 if statements else 0


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_longer_than_stated(folder: str) -> None:
    paths = sources(folder)
    assert paths
    lengths = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in paths}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES and name not in GENERATED} == {}


def test_no_function_of_the_package_is_longer_than_stated() -> None:
    paths = [path for path in sources("py_src") if path.suffix == ".py"]
    assert paths
    found = [(path.name, name, n) for path in paths for name, n in functions(path)]
    assert [function for function in found if function[2] > FUNCTION_LINES] == []
