"""Break one line at a time in a copy of the tree, and see whether the tests of its subject notice.

    python scripts/mutants.py            all of tests/mutants.toml
    python scripts/mutants.py pool norm  those with one of these words in their file or text
    python scripts/mutants.py --list

Prints the mutants that survive. The exit status is 0 if only mutants survive that are proven to change nothing. It
needs a built tree (./build.sh) and takes hours; docs/testing.md has the last result.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steps import PYTHON, ROOT, BuildError, environment, say

LIST = ROOT / "tests" / "mutants.toml"
TIMEOUT_S = 900
"""For the tests of one mutant; one that makes them hang is noticed, too."""
NOT_COPIED = (".git", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "zig-cache", "bench")
LINKED = (".venv", "node_modules")
PASSED, FAILED, INTERRUPTED = 0, 1, 2
"""Exit statuses of pytest; INTERRUPTED where a module of tests cannot be imported."""


class MutantError(Exception):
    """The list does not fit the tree, or the tree does not pass its own tests."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line that is changed.

    Attributes
    ----------
    file, old, new
        The file, and a part of one line of it, found once, that another text replaces.
    tests
        Arguments of pytest: the tests of the subject.
    equivalent
        Why nobody can tell the difference; "" for a mutant that must be noticed.
    """

    file: str
    old: str
    new: str
    tests: str
    equivalent: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.old.strip()}  ->  {self.new.strip() or '(nothing)'}"


def read_list(path: Path = LIST) -> list[Mutant]:
    """The mutants of the list."""
    with path.open("rb") as handle:
        files = tomllib.load(handle)
    return [
        Mutant(file, old, new, tests, *proof)
        for file, lists in files.items()
        for tests, texts in lists.items()
        for old, new, *proof in texts
    ]


def mutate(root: Path, mutant: Mutant) -> str:
    """Change the line below `root`; returns the whole text as it was.

    Raises
    ------
    MutantError
        The text is not there, or more than once.
    """
    path = root / mutant.file
    text = path.read_text() if path.is_file() else ""
    if (found := text.count(mutant.old)) != 1:
        raise MutantError(f"{mutant.file} has {mutant.old!r} {found} times; tests/mutants.toml must name it once.")
    path.write_text(text.replace(mutant.old, mutant.new))
    return text


def copy_tree(target: Path) -> Path:
    """A copy of the tree with what was built; the environments are shared."""
    linked = {str(ROOT / name) for name in LINKED}

    def ignored(folder: str, names: list[str]) -> list[str]:
        # Below .build alone, `bench` is what benchmarks left behind.
        left_out = [n for n in names if n in NOT_COPIED and (n != "bench" or folder.endswith(".build"))]
        return left_out + [n for n in names if f"{folder}/{n}" in linked]

    copy = target / "tree"
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    for name in LINKED:
        (copy / name).symlink_to(ROOT / name)
    return copy


class Trial:
    """The copy in which mutants are tried."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        # Files of the same size may change twice a second: byte code that was kept would not notice.
        self.env = environment() | {"PYTHONPATH": str(tree / "py_src"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.env |= {"ZIG_LOCAL_CACHE_DIR": str(tree / ".build" / "zig-cache")}
        where = self.run([str(PYTHON), "-c", "import trainweb; print(trainweb.__file__)"]).stdout.strip()
        if not Path(where).is_relative_to(tree):
            raise MutantError(f"tests in the copy would import {where}")

    def run(self, command: Sequence[str], timeout: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """A command in the copy."""
        return subprocess.run(command, cwd=self.tree, env=self.env, capture_output=True, text=True, timeout=timeout)

    def build(self, mutant: Mutant) -> None:
        """Build the outputs of the file; a page has its Python in a snapshot."""
        file, commands = mutant.file, {".c": [str(PYTHON), "wasm_kernels/build.py"]}
        commands |= {".def": commands[".c"], ".h": commands[".c"], ".ts": ["node", "web/build.mjs", "--scripts"]}
        if file.startswith("py_src/") and "tests/browser" in mutant.tests:
            commands[".py"] = [str(PYTHON), "scripts/build.py"]
        if "test_js_package" in mutant.tests:  # it reads the declarations
            commands[".ts"].append("--types")
        if command := commands.get(Path(file).suffix):
            done = self.run(command)
            if done.returncode:
                raise MutantError(f"{file} cannot be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def tests_pass(self, arguments: str) -> bool:
        """True if these tests pass."""
        command = [str(PYTHON), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(arguments)]
        try:
            done = self.run(command)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode not in (PASSED, FAILED, INTERRUPTED):
            raise MutantError(f"pytest {arguments} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.returncode == PASSED

    def notices(self, mutant: Mutant) -> bool:
        """True if the tests of its subject fail with the mutant."""
        original = mutate(self.tree, mutant)
        try:
            self.build(mutant)
            return not self.tests_pass(mutant.tests)
        finally:
            (self.tree / mutant.file).write_text(original)


def by_language(mutants: Sequence[Mutant]) -> Iterator[list[Mutant]]:
    """Mutants whose files the same tool builds, unbuilt ones first."""
    groups: dict[str, list[Mutant]] = {".py": [], ".c": [], ".ts": []}
    for mutant in mutants:
        suffix = Path(mutant.file).suffix
        groups.setdefault(".c" if suffix in (".h", ".def") else suffix, []).append(mutant)
    return (group for group in groups.values() if group)


def try_all(trial: Trial, mutants: Sequence[Mutant]) -> list[str]:
    """Try each mutant; returns what is wrong."""
    wrong = []
    for group in by_language(mutants):
        for arguments in dict.fromkeys(m.tests for m in group):
            if not trial.tests_pass(arguments):
                raise MutantError(f"pytest {arguments} fails without any mutant")
        for mutant in group:
            start = time.monotonic()
            try:
                noticed = trial.notices(mutant)
            except MutantError as error:
                wrong.append(f"error: {error}")
                say(f"ERROR      {mutant}")
                continue
            if noticed and mutant.equivalent:
                wrong.append(f"not equivalent: {mutant}")
            elif not noticed and not mutant.equivalent:
                wrong.append(f"survives: {mutant}\n    pytest {mutant.tests}")
            verdict = "noticed" if noticed else "equivalent" if mutant.equivalent else "SURVIVES"
            say(f"{verdict:<10} {time.monotonic() - start:5.0f} s  {mutant}")
        trial.build(max(group, key=lambda mutant: "tests/browser" in mutant.tests))  # what the last one left
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="try those with one of these words in their file or text")
    parser.add_argument("--list", action="store_true", help="print them and try none")
    options = parser.parse_args()
    chosen = [m for m in read_list() if not options.words or any(w in f"{m.file} {m.old}" for w in options.words)]
    if options.list:
        print(*chosen, sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="trainweb-mutants-") as folder:
        try:
            wrong = try_all(Trial(copy_tree(Path(folder))), chosen)
        except (MutantError, BuildError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    proven = sum(bool(m.equivalent) for m in chosen)
    print(*wrong, f"{len(chosen)} mutants, {proven} of them proven equivalent; {len(wrong)} wrong", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
