"""Paths in comments and docstrings lead to files that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("py_src", "web", "wasm_kernels", "scripts", "bench", "tests", "docs", "site")
READ = ("py_src/trainweb", "web/src", "wasm_kernels", "scripts")
ENDS = "py|ts|mjs|c|h|def|md|toml"
PATH = re.compile(rf"(?<![\w/.:@$}}-])(?:[\w-]+/)+[\w-]+\.(?:{ENDS})\b(?!/)")
OTHERS = ("peft/", "sklearn/", "node_modules/", "python/", "javascript/")
"""Beginnings of paths in other packages, and in what is built."""


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not {"node_modules", "__pycache__"} & set(path.parts):
                yield path


def test_paths_lead_to_files() -> None:
    """A path may leave out its first folders."""
    parts = [path.relative_to(ROOT).parts for path in files(*FOLDERS)]
    known = {"/".join(some[k:]) for some in parts for k in range(len(some))}
    named = [
        (str(path.relative_to(ROOT)), found)
        for path in files(*READ)
        if path.suffix[1:] in ENDS.split("|")
        for found in PATH.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 100
    assert [(file, path) for file, path in named if path not in known and not path.startswith(OTHERS)] == []
