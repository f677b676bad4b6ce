"""A test of several cases runs all of them, and its failure names those that failed."""

import pytest
from tests.each import grouped, run_each


def test_all_cases_run_and_the_error_names_those_that_failed() -> None:
    ran = []

    def check(case: int) -> None:
        ran.append(case)
        assert case % 2, "even"

    with pytest.raises(ExceptionGroup, match="2 of 4 cases failed: 2, 4") as caught:
        run_each(range(1, 5), check)
    assert ran == [1, 2, 3, 4]
    assert [error.__notes__ for error in caught.value.exceptions] == [["Case: 2"], ["Case: 4"]]


def test_what_ends_a_test_ends_it_at_that_case() -> None:
    with pytest.raises(pytest.fail.Exception) as caught:
        run_each("abc", pytest.fail)
    assert caught.value.__notes__ == ["Case: a"]


def test_no_cases_are_a_failure() -> None:
    with pytest.raises(AssertionError):
        run_each([], print)


@grouped(["a 1", "b 1", "a 2"], lambda case: case[0])
def test_groups_are_parameters(case: str) -> None:
    assert case[0] in "ab"


def test_each_group_has_its_cases() -> None:
    (mark,) = test_groups_are_parameters.pytestmark  # type: ignore[attr-defined]
    assert list(mark.kwargs["ids"]) == ["a", "b"] and [*mark.args[1]] == [["a 1", "a 2"], ["b 1"]]
