"""Every node test of `onnx` passes, or stands in onnx_node_exceptions.toml with the reason why it does not."""

import tomllib
from pathlib import Path

import pytest
from tests.conformance.onnx_nodes import Outcome, node_cases, run_case

EXCEPTIONS = Path(__file__).parent / "onnx_node_exceptions.toml"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Of every case by name; they are made and run once."""
    return {case.name: run_case(case) for case in node_cases()}


@pytest.fixture(scope="module")
def groups() -> dict[str, dict[str, object]]:
    return tomllib.loads(EXCEPTIONS.read_text())


def names_of(groups: dict[str, dict[str, object]], kind: str) -> set[str]:
    return {name for group in groups.values() if group["kind"] == kind for name in group["tests"]}  # type: ignore[attr-defined]


def test_what_runs_gives_the_recorded_results(
    outcomes: dict[str, Outcome], groups: dict[str, dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {name: o.wrong for name, o in outcomes.items() if o.wrong}
    differs = names_of(groups, "differs")
    passed = [o for o in outcomes.values() if not o.refused and not o.wrong]
    with capsys.disabled():
        refused = sum(bool(o.refused) for o in outcomes.values())
        constants = sum(o.needs_constants for o in passed)
        print(
            f"\n{len(outcomes)} node tests: {len(passed)} pass ({constants} with an input made constant), "
            f"{len(wrong)} differ, {refused} are not supported"
        )
    assert not {name: told for name, told in wrong.items() if name not in differs}


def test_what_is_refused_is_listed_and_what_is_listed_is_refused(
    outcomes: dict[str, Outcome], groups: dict[str, dict[str, object]]
) -> None:
    refused = {name for name, o in outcomes.items() if o.refused}
    listed = names_of(groups, "unsupported")
    assert {name: outcomes[name].refused for name in refused - listed} == {}
    assert listed - refused == set(), "these run now: take them out of the list"


def test_exceptions_are_cases_each_listed_once_with_a_reason(
    outcomes: dict[str, Outcome], groups: dict[str, dict[str, object]]
) -> None:
    names = [name for group in groups.values() for name in group["tests"]]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
    assert set(names) <= set(outcomes)
    for group in groups.values():
        assert group["reason"]
        assert group["kind"] in ("unsupported", "differs")
