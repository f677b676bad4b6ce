"""Schedules in a page against the rates of torch's schedulers, and Python's."""

import json
import re
from typing import Any

import pytest

from trainweb.schedules import make_schedule

from .js_session import JsPage
from .server import ROOT

RECORDED: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/golden/schedules/expected.json").read_text())


def in_page(settings: dict[str, Any]) -> dict[str, Any]:
    return {re.sub("_([a-z])", lambda m: m[1].upper(), name): value for name, value in settings.items()}


@pytest.mark.parametrize("title", RECORDED)
def test_rates_are_those_of_torch_and_of_python(js: JsPage, title: str) -> None:
    case = RECORDED[title]
    metrics = case.get("metrics")
    rates = js.run(
        f"""const s = trainweb.schedule({json.dumps(in_page(case["settings"]))});
        const metrics = {json.dumps(metrics)};
        return Array.from({{ length: {len(case["rates"])} }}, (_, k) => {{
          if (metrics) s.observe(metrics[k]);
          return s.rate(k);
        }});"""
    )
    assert rates == pytest.approx(case["rates"], rel=1e-9, abs=1e-12)
    schedule = make_schedule(case["settings"])
    for k, rate in enumerate(rates):
        if metrics:
            schedule.observe(metrics[k])
        assert rate == pytest.approx(schedule.rate(k), rel=1e-14, abs=0)


def test_a_warm_up_comes_before_a_cycle(js: JsPage) -> None:
    settings = {"type": "OneCycle", "learning_rate": 0.5, "total": 10, "warmup": 4, "warmup_start": 0.5}
    rates = js.run(
        f"""const s = trainweb.schedule({json.dumps(in_page(settings))});
        return Array.from({{ length: 20 }}, (_, k) => s.rate(k));"""
    )
    schedule = make_schedule(settings)
    assert rates == pytest.approx([schedule.rate(k) for k in range(20)], rel=1e-14)
    assert rates[:4] == [0.25, 0.3125, 0.375, 0.4375]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("schedule('Sine')", "There is no schedule 'Sine'; did you mean 'Cosine'? There are Constant"),
        ("schedule({ type: 'Cosine', learningRate: 0.1 })", "Cosine needs the setting 'schedule.total': an integer"),
        ("schedule({ type: 'Constant', learningRate: -1 })", "schedule.learningRate is -1; it must be a number at"),
        ("schedule({ type: 'Constant', learningRate: 1 }).rate(0.5)", "step is 0.5; it must be an integer >= 0"),
        ("schedule(() => NaN).rate(0)", "the learning rate of the function is nan; it must be a number at least 0"),
    ],
)
def test_refusals(js: JsPage, call: str, said: str) -> None:
    error = js.failure(f"trainweb.{call};")
    assert error["name"] == ("TypeError" if "There is no" in said else "ModelError") and said in error["message"]


def test_a_function_is_a_schedule(js: JsPage) -> None:
    assert js.run("return trainweb.schedule((step) => 0.1 / (step + 1)).rate(3);") == pytest.approx(0.025)
