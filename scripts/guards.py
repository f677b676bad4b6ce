"""Take out one guard of a compiler pass at a time, and see whether tests notice.

    python scripts/guards.py attention packed                the guards of these passes
    python scripts/guards.py attention:204                   the guard in this line
    python scripts/guards.py --list                          all guards
    python scripts/guards.py head --tests "tests/zoo -k v2"  with other tests than those of the files' mutants

A guard is an `if` that ends in `return None`, `return False` or `continue`, or a call of `_need`. Its mutant goes on as
if the condition held. A guard that no test notices is not needed, lacks a test, or only saves work: judge it.

The tests are those that tests/mutants.toml has for the file, and those of all passes. Each guard meets those in which
it holds something back, the shortest first. Each trial is a fork of the process that has loaded all modules. It needs
a built tree (./build.sh).
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from _pytest.main import pytest_runtestloop as run_tests
from mutants import read_list
from steps import ROOT, say

PASSES = Path("py_src/trainweb/compiler/passes")
OF_ALL = tuple(
    f"tests/python/test_{name}.py"
    for name in ("pass_guards", "attention_hazards", "compiler_hazards", "compiler_passes")
)
"""Tests of all passes."""
OPTIONS = ["-x", "-s", "-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
"""Of pytest, which prints nothing."""
NEED = "_need"
"""The function of attention.py that raises where its condition does not hold."""
CALL = "_guard"
"""The function that conditions of guards go through."""
JUDGED = {
    "fuse: self._tensor(b) not in target.ins": "a call that does not read the result may compute it: the same bytes",
    "fuse: not _is_cheap(e.roots[number]) or not all(_reads_all(reader, made_of) for reader in calls)": "saves "
    "expressions: the checks after it say the same",
    "hoist: any(w.position < i.position and w not in chosen for w in self.program.writers(b.storage))": "saves turns "
    "of `_close`, which takes these out",
    "recompute: not isinstance(i, ElementwiseCall)": "an estimate: a plan is measured before it is taken",
    "recompute: full <= budget": "saves work: the first schedule repeats nothing then",
}
"""Guards whose mutants give the same results, and why, by pass and first line of the condition."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition of a pass."""

    file: str
    line: int
    text: str
    """The first line of the condition."""
    passes: bool
    """The value with which the pass goes on."""

    @property
    def verdict(self) -> str:
        """The reason why no test can notice it; "" for one that tests must notice."""
        return JUDGED.get(f"{self.file}: {self.text}", "")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(slots=True)
class Guards:
    """All guards of some passes, in functions that ask here whether a condition holds."""

    all: list[Guard] = field(default_factory=list)
    meet: Callable[[int], object] = lambda number: None
    """Called with the number of a guard that holds something back."""
    taken_out: int = -1

    def ask(self, number: int, value: object) -> object:
        """The value of a condition, or the one with which the pass goes on if the guard is taken out."""
        passes = self.all[number].passes
        if bool(value) != passes:
            self.meet(number)
            return passes if number == self.taken_out else value
        return value

    def add(self, name: str) -> None:
        """Let the conditions in a pass ask here."""
        module = importlib.import_module(f"trainweb.compiler.passes.{name}")
        source = (ROOT / PASSES / f"{name}.py").read_text()
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and _gives_up(node.body[-1]):
                node.test = self._asks(node.test, name, source, passes=False)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == NEED:
                node.args[0] = self._asks(node.args[0], name, source, passes=True)
        new = {code.co_qualname: code for code in _codes(compile(ast.fix_missing_locations(tree), name, "exec"))}
        vars(module)[CALL] = self.ask
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                function.__code__ = new.get(function.__qualname__, function.__code__)

    def _asks(self, test: ast.expr, name: str, source: str, passes: bool) -> ast.Call:
        text = (ast.get_source_segment(source, test) or "").splitlines()[0]
        self.all.append(Guard(name, test.lineno, text, passes))
        return ast.Call(ast.Name(CALL, ast.Load()), [ast.Constant(len(self.all) - 1), test], [])


def _gives_up(last: ast.stmt) -> bool:
    """Return whether a statement leaves a function or a turn of a loop without a result."""
    if isinstance(last, ast.Return):
        return last.value is None or (isinstance(last.value, ast.Constant) and last.value.value in (None, False))
    return isinstance(last, ast.Continue)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def tests_of(names: list[str]) -> list[str]:
    """The files of tests that notice the mutants of passes, and those of all passes."""
    files = {str(PASSES / f"{name}.py") for name in names}
    own = [test for m in read_list() if m.file in files for test in m.tests.partition(" -k")[0].split()]
    return [test for test in dict.fromkeys([*OF_ALL, *own]) if "/browser/" not in test]


class Trials:
    """A plugin of pytest that tries the guards instead of running the tests once."""

    def __init__(self, guards: Guards, only: Sequence[str], limit: float) -> None:
        self.guards, self.limit, self.survivors = guards, limit, 0
        self.chosen = [k for k, guard in enumerate(guards.all) if not only or f"{guard}".startswith(tuple(only))]
        self.met: dict[int, dict[str, float]] = {number: {} for number in range(len(guards.all))}
        """Tests in which each guard holds something back, and the seconds that they take."""
        self.test, self.failed = "", ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember which test runs."""
        self.test = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test that fails, and how long tests take."""
        if report.failed:
            self.failed = report.nodeid
        for tests in self.met.values():
            if report.nodeid in tests:
                tests[report.nodeid] += report.duration

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests without a mutant, then for each guard those that can notice it."""
        items = {item.nodeid: item for item in session.items}
        self.guards.meet = lambda number: self.met[number].setdefault(self.test, 0.0)
        failed, met = self.fork(session)
        if failed:
            raise pytest.UsageError(f"{failed} fails without any mutant")
        self.guards.meet = lambda number: None
        for number in self.chosen:
            guard = self.guards.all[number]
            own, seconds = met.get(str(number), {}), 0.0
            shortest = sorted(own, key=own.__getitem__)
            session.items[:] = [items[test] for test in shortest if (seconds := seconds + own[test]) < self.limit]
            self.guards.taken_out = number
            failed = self.fork(session)[0] if own else ""
            self.survivors += not failed and not guard.verdict
            verdict = "noticed" if failed else "judged" if guard.verdict else "SURVIVES"
            print(f"{verdict:<10}{guard}  {failed or guard.verdict or f'{len(own)} tests'}", flush=True)
        return True

    def fork(self, session: pytest.Session) -> tuple[str, dict[str, dict[str, float]]]:
        """Run the session's tests in a fork; returns the first that failed, and the tests that met guards."""
        receiver, sender = Pipe(duplex=False)
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                run_tests(session)
            except BaseException as error:
                self.failed = self.failed or repr(error)
            sender.send_bytes(json.dumps((self.failed, self.met)).encode())
            os._exit(0)
        sender.close()
        try:
            failed, met = json.loads(receiver.recv_bytes())
        except EOFError:
            failed, met = "the process ended", {}
        os.waitpid(child, 0)
        return failed, met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passes", nargs="*", help="files in compiler/passes, perhaps with a line; all by default")
    parser.add_argument("--list", action="store_true", help="print the guards")
    parser.add_argument("--tests", help="arguments of pytest")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of tests that a guard meets at most")
    args = parser.parse_args()
    all_names = sorted(path.stem for path in (ROOT / PASSES).glob("[!_]*.py"))
    names = list(dict.fromkeys(each.partition(":")[0] for each in args.passes)) or all_names
    os.chdir(ROOT)
    guards = Guards()
    for name in names:
        guards.add(name)
    if args.list:
        print(*guards.all, sep="\n")
        return 0
    trials = Trials(guards, [f"{each}:" for each in args.passes], args.seconds)
    tests = shlex.split(args.tests) if args.tests else tests_of(names)
    status = pytest.main([*OPTIONS, *tests], [trials])
    say(f"{trials.survivors} of {len(trials.chosen)} guards survive")
    return int(status) or int(trials.survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
