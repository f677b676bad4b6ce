"""site/pages/start.md: each block of the tutorial prints what stands below it, in both languages."""

import contextlib
import io
import re
import textwrap

import pytest

from .server import ROOT
from .test_node import node

TEXT = (ROOT / "site" / "pages" / "start.md").read_text()
STEPS = 6


def blocks(language: str) -> tuple[str, list[str]]:
    """The program, and the lines below its blocks."""
    block = rf"^    ```{language}\n(.*?)^    ```\n\n    ```text\n(.*?)^    ```"
    found = re.findall(block, TEXT, re.MULTILINE | re.DOTALL)
    assert len(found) == STEPS == TEXT.count(f"    ```{language}\n")
    codes, outputs = zip(*found, strict=True)
    return "".join(map(textwrap.dedent, codes)), textwrap.dedent("".join(outputs)).splitlines()


def test_javascript_prints_what_stands_below_it() -> None:
    program, expected = blocks("js")
    assert node(program).replace("'", '"').splitlines() == expected


@pytest.mark.filterwarnings("error")
def test_python_prints_what_stands_below_it() -> None:
    program, expected = blocks("python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert printed.getvalue().splitlines() == expected


def test_both_languages_print_the_same() -> None:
    (_, javascript), (_, python) = blocks("js"), blocks("python")
    assert [re.findall(r"[\w.]+", line) for line in javascript] == [re.findall(r"[\w.]+", line) for line in python]
