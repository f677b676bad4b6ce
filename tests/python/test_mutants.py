"""The list of scripts/mutants.py fits the tree: whoever moves or rewrites a line on it says what to break instead."""

import shlex
from pathlib import Path

import mutants
import pytest
from tests.each import run_each

ROOT = Path(__file__).resolve().parents[2]

FEWEST = 40
LIST = mutants.read_list()


def test_each_line_is_there_once() -> None:
    run_each(LIST, check_mutant)


def check_mutant(mutant: mutants.Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file}: {mutant.old!r} is there {text.count(mutant.old)} times"
    assert mutant.old != mutant.new and "\n" not in mutant.old + mutant.new
    paths = [part for part in shlex.split(mutant.tests) if part.startswith("tests/")]
    assert paths and all((ROOT / path.split("::")[0]).exists() for path in paths)


def test_there_are_enough_in_every_language() -> None:
    assert len(LIST) >= FEWEST
    assert {Path(m.file).suffix for m in LIST} >= {".py", ".c", ".ts"}
    assert len({(m.file, m.old, m.new) for m in LIST}) == len(LIST)


def test_a_text_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("a = 1\nb = 1\n")
    for old, found in (("c = 1", 0), (" = 1", 2)):
        with pytest.raises(mutants.MutantError, match=rf"f.py has '{old}' {found} times"):
            mutants.mutate(tmp_path, mutants.Mutant("f.py", old, "x", "tests"))
    mutants.mutate(tmp_path, mutants.Mutant("f.py", "b = 1", "b = 2", "tests"))
    assert (tmp_path / "f.py").read_text() == "a = 1\nb = 2\n"
