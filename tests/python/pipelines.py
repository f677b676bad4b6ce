"""Parts of the compiler's pipeline, for tests that run one pass by itself or all but one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainweb.backend.chosen import DEFAULT_TARGET
from trainweb.compiler import pipeline
from trainweb.compiler.context import Context
from trainweb.compiler.pipeline import PASSES, Pass

ROOT = Path(__file__).parents[2]
NAMES = tuple(each.name for each in PASSES)


def alone(name: str) -> tuple[Pass, ...]:
    """A pass, and those without which its program is not complete."""
    names = {name}
    while more := {n for each in PASSES if each.name in names for n in each.needs} - names:
        names |= more
    return tuple(each for each in PASSES if each.name in names)


def without(name: str) -> tuple[Pass, ...]:
    """All passes except one, and except the passes that need it."""
    return tuple(each for each in PASSES if each.name != name and name not in each.needs)


@contextmanager
def passes(some: tuple[Pass, ...]) -> Iterator[None]:
    """Compile with these passes alone."""
    before, pipeline.PASSES = pipeline.PASSES, some
    try:
        yield
    finally:
        pipeline.PASSES = before


def context() -> Context:
    """The context of passes in a session without options."""
    return Context(DEFAULT_TARGET)
