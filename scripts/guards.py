"""Take out one guard of a compiler pass at a time in a copy of the tree, and see whether tests notice.

    python scripts/guards.py attention packed          the guards of these passes
    python scripts/guards.py --list                    all guards
    python scripts/guards.py head --tests tests/zoo    with other tests than those of the file's mutants

A guard is an `if` that ends in `return None`, `return False` or `continue`, or a call of `_need`. Its mutant goes on as
if the condition held. A guard that no test notices is not needed, lacks a test, or only saves work: judge it. The tests
are those that tests/mutants.toml has for the file, then those of all passes. It needs a built tree (./build.sh).
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutants import Trial, copy_tree, read_list
from steps import ROOT, BuildError, say

PASSES = Path("py_src/trainweb/compiler/passes")
OF_ALL = [f"tests/python/test_{name}.py" for name in ("pass_guards", "compiler_hazards", "compiler_passes")]
"""Tests of all passes."""
NEED = "_need"
"""The function of attention.py that raises where its condition does not hold."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition of a pass: its file, and the place of the text that the mutant replaces by another."""

    file: Path
    line: int
    column: int
    end_line: int
    end_column: int
    new: str

    def text(self, source: str) -> str:
        """The first line of the guard, for people."""
        return f"{self.file.name}:{self.line}: {source.splitlines()[self.line - 1].strip()}"

    def mutant(self, source: str) -> str:
        """The source without the guard."""
        lines = source.encode().splitlines(keepends=True)  # columns of `ast` count bytes
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (before + self.new.encode() + after).decode()


def guards_of(file: Path, source: str) -> Iterator[Guard]:
    """The guards of a file, in its order."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and _gives_up(node.body[-1]):
            yield _guard(file, node.test, "False")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == NEED:
            yield _guard(file, node.args[0], "True")


def _gives_up(last: ast.stmt) -> bool:
    """Return whether a statement leaves a function or a turn of a loop without a result."""
    if isinstance(last, ast.Return):
        return last.value is None or (isinstance(last.value, ast.Constant) and last.value.value in (None, False))
    return isinstance(last, ast.Continue)


def _guard(file: Path, test: ast.expr, new: str) -> Guard:
    assert test.end_lineno is not None and test.end_col_offset is not None
    return Guard(file, test.lineno, test.col_offset, test.end_lineno, test.end_col_offset, new)


def tests_of(file: Path) -> str:
    """The files of tests that notice the file's mutants, and those of all passes."""
    own = [test for m in read_list() if m.file == str(file) for test in m.tests.partition(" -k")[0].split()]
    return " ".join(dict.fromkeys([*own, *OF_ALL]))


def try_guards(trial: Trial, guards: list[Guard], tests: str) -> int:
    """Try the guards of one file; print and count those that no test notices."""
    target, survivors = trial.tree / guards[0].file, 0
    source = target.read_text()
    if not trial.tests_pass(tests):
        raise BuildError(f"pytest {tests} fails without any mutant")
    for guard in guards:
        target.write_text(guard.mutant(source))
        try:
            if trial.tests_pass(tests):
                survivors += 1
                print(f"survives: {guard.text(source)}", flush=True)
        finally:
            target.write_text(source)
    say(f"{guards[0].file.name}: {survivors} of {len(guards)} guards survive")
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passes", nargs="*", help="names of files in compiler/passes; all by default")
    parser.add_argument("--list", action="store_true", help="print the guards")
    parser.add_argument("--tests", help="arguments of pytest")
    args = parser.parse_args()
    names = args.passes or sorted(path.stem for path in (ROOT / PASSES).glob("*.py"))
    files = {PASSES / f"{name}.py": (ROOT / PASSES / f"{name}.py").read_text() for name in names}
    by_file = {file: guards for file, text in files.items() if (guards := list(guards_of(file, text)))}
    if args.list:
        print("\n".join(guard.text(files[file]) for file, guards in by_file.items() for guard in guards))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(copy_tree(Path(folder)))
        return int(sum(try_guards(trial, guards, args.tests or tests_of(file)) for file, guards in by_file.items()) > 0)


if __name__ == "__main__":
    sys.exit(main())
