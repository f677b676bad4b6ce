"""One test for several cases: it runs them all, and its failure names those that failed."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def run_each(cases: Iterable[T], check: Callable[[T], None], name: Callable[[T], str] = str) -> None:
    """Run `check` on each case.

    Raises
    ------
    ExceptionGroup
        Some cases failed. The message names them, and each error has the name of its case as a note.
    """
    failures: dict[str, Exception] = {}
    cases = [*cases]
    assert cases
    for case in cases:
        try:
            check(case)
        except BaseException as error:
            error.add_note(f"Case: {name(case)}")
            if not isinstance(error, Exception):  # pytest.fail, a timeout or an interrupt ends the test
                raise
            failures[name(case)] = error
    if failures:
        raise ExceptionGroup(
            f"{len(failures)} of {len(cases)} cases failed: {', '.join(failures)}", [*failures.values()]
        )


def grouped(
    cases: Iterable[T], group: Callable[[T], str], name: Callable[[T], str] = str
) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a test of a check of one case: parametrized by group, it runs all cases of its group."""
    groups: dict[str, list[T]] = {}
    for case in cases:
        groups.setdefault(group(case), []).append(case)

    def decorate(check: Callable[[T], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("samples", groups.values(), ids=groups)
        def test(samples: list[T]) -> None:
            run_each(samples, check, name)

        test.__name__, test.__qualname__, test.__module__ = check.__name__, check.__qualname__, check.__module__
        test.__doc__ = check.__doc__
        return test

    return decorate


def over(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test that runs all cases of a check, as `pytest.mark.parametrize` makes a test of each.

    A test costs 1.6 ms of processor time: this is for checks of a few milliseconds.
    """
    keys, cases = [name.strip() for name in names.split(",")], [*cases]

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @wraps(check)
        def test(**others: Any) -> None:
            def one(case: Any) -> None:
                check(**others, **dict(zip(keys, case if len(keys) > 1 else [case], strict=True)))

            run_each(cases, one)

        declared = signature(check)
        kept = [parameter for name, parameter in declared.parameters.items() if name not in keys]
        test.__signature__ = declared.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return decorate
