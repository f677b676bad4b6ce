"""Schedules against the rates of torch's schedulers."""

import json
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tests.python.sessions import error_of

from trainweb.errors import ModelError
from trainweb.schedules import SCHEDULES, make_schedule
from trainweb.settings import fields_of

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "schedules" / "expected.json").read_text()
)


@pytest.mark.parametrize("title", RECORDED)
def test_rates_are_those_of_torch(title: str) -> None:
    case = RECORDED[title]
    schedule, rates = make_schedule(case["settings"]), []
    for step in range(len(case["rates"])):
        if "metrics" in case:
            schedule.observe(case["metrics"][step])
        rates.append(schedule.rate(step))
    assert rates == pytest.approx(case["rates"], rel=1e-9, abs=1e-12)
    assert len(set(rates)) > 1 or title == "Constant"


@pytest.mark.parametrize("name", ["Linear", "Cosine", "Polynomial", "OneCycle"])
def test_a_schedule_stays_at_its_end(name: str) -> None:
    schedule = make_schedule({"type": name, "learning_rate": 2.0, "total": 10, "end": 0.25})
    last = 9 if name == "OneCycle" else 10
    assert schedule.rate(last) == pytest.approx(0.5) and schedule.rate(last - 1) > 0.51
    assert schedule.rate(last + 1) == schedule.rate(10_000) == schedule.rate(last)


def test_warm_up_comes_before_any() -> None:
    for name, cls in SCHEDULES.items():
        needed = {"total": 10, "every": 2, "gamma": 0.5}
        settings = {k: v for k, v in needed.items() if k in fields_of(cls)}
        plain = make_schedule({"type": name, "learning_rate": 0.5, **settings})
        # The total contains the warm-up.
        longer = settings | ({"total": 14} if "total" in settings else {})
        warm = make_schedule({"type": name, "learning_rate": 0.5, **longer, "warmup": 4, "warmup_start": 0.5})
        assert [warm.rate(k) for k in range(4)] == [0.25, 0.3125, 0.375, 0.4375]
        assert [warm.rate(4 + k) for k in range(12)] == [plain.rate(k) for k in range(12)]


def test_a_function_is_a_schedule() -> None:
    assert make_schedule(lambda step: 0.1 / (step + 1)).rate(3) == pytest.approx(0.025)
    with pytest.raises(ModelError, match="the learning rate of the function is -1"):
        make_schedule(lambda step: -1).rate(3)


def test_every_schedule_was_recorded_and_explains_its_settings() -> None:
    assert {case["settings"]["type"] for case in RECORDED.values()} == set(SCHEDULES)
    for cls in SCHEDULES.values():
        assert list(fields_of(cls)) == list(signature(cls).parameters)
        assert all(f"{name} : " in (cls.__doc__ or "") for name in fields_of(cls))
        # The first line, which a table shows, tells them from rates, as torch's eta_min is.
        first = (cls.__doc__ or "").splitlines()[0]
        assert all(f"share `{name}`" in first for name in ("start", "end", "least") if name in fields_of(cls))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"type": "Sine"}, "There is no schedule 'Sine'; did you mean 'Cosine'\\?"),
    ({"type": "Cosine", "learning_rate": 0.1}, "Cosine needs the setting 'total': an integer >= 1"),
    ({"type": "Constant", "learning_rate": -0.1}, "learning_rate is -0.1; it must be a number at least 0"),
    ({"type": "Constant", "learning_rate": 0.1, "warmup": 1.5}, "warmup is 1.5; it must be an integer >= 0"),
    ({"type": "Plateau", "learning_rate": 0.1, "mode": "least"}, "mode is 'least'; it must be min or max"),
    (
        {"type": "OneCycle", "learning_rate": 0.1, "total": 5, "power": 2},
        "OneCycle has no setting 'power'; there are l",
    ),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_what_is_no_schedule_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(error_of(said), match=said):
        make_schedule(given)


@pytest.mark.parametrize("step", [-1, 0.5, "1", True])
def test_a_step_is_a_count(step: Any) -> None:
    with pytest.raises(ModelError, match=r"step is .*; it must be an integer >= 0"):
        make_schedule({"type": "Constant", "learning_rate": 0.1}).rate(step)
