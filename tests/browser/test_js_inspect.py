"""`inspectModel` in a page tells what `trainweb.check` tells in Python."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.python.test_check import map_of_scores, model, two_towers

import trainweb
from trainweb.artifacts import LossType, OptimType

from .js_session import JsPage, open_js_page
from .server import ROOT, Site

MLP = (ROOT / "tests" / "golden" / "mlp" / "base.onnx").read_bytes()
SETTLED = (
    "ok",
    "trainable",
    "frozen",
    "trained",
    "left_out",
    "doubtful",
    "unsupported",
    "missing_gradients",
    "refined",
    "remarks",
    "untold",
    "inputs",
    "outputs",
    "operators",
    "suggested_loss",
    "feeds",
    "code",
)
CASES: dict[str, tuple[bytes, dict[str, Any], dict[str, Any]]] = {
    "trains": (
        MLP,
        {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "dims": {"batch": 8}},
        {"loss": LossType.CrossEntropyLoss, "optimizer": OptimType.AdamW, "dims": {"batch": 8}},
    ),
    "without a loss": (MLP, {}, {}),
    "unsupported": (model(("MatMul", ["x", "w"], ["a"]), ("Bogus", ["a"], ["y"])), {"loss": None}, {}),
    "stopped": (
        two_towers("Relu", "Tanh"),
        {"loss": "MSELoss", "requiresGrad": ["w"], "stopGradient": ["d"]},
        {"loss": LossType.MSELoss, "requires_grad": ["w"], "stop_gradient": ["d"]},
    ),
    "no such dimension": (
        MLP,
        {"loss": "CrossEntropyLoss", "dims": {"depth": 2}},
        {"loss": LossType.CrossEntropyLoss, "dims": {"depth": 2}},
    ),
    "a map of scores": (map_of_scores("n", 5, "h", "w"), {}, {}),
    "no model": (b"<html>", {}, {}),
}


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page


def camel_case(name: str) -> str:
    return re.sub("_(.)", lambda m: m[1].upper(), name)


@pytest.mark.parametrize("name", CASES)
def test_the_page_tells_what_python_tells(js: JsPage, name: str) -> None:
    data, config, arguments = CASES[name]
    found = js.run(
        "return inspectModel(Uint8Array.from(atob(model), (c) => c.charCodeAt(0)), config);",
        model=b64encode(data).decode(),
        config=config,
    )
    expected = trainweb.check(data, **arguments).as_data()
    assert set(found) == {camel_case(key) for key in expected}
    for decision in (*expected["trained"], *expected["left_out"], *expected["doubtful"]):
        # With the page's names of what it was given.
        decision["reason"] = decision["reason"].replace("requires_grad", "requiresGrad")
    if isinstance(suggested := expected["suggested_loss"], dict):
        expected["suggested_loss"] = {camel_case(key): value for key, value in suggested.items()}
    for key in (*SETTLED, "missing_loss", "error", "flops"):
        assert found[camel_case(key)] == expected[key], key
    # The plans of the page's build need other constants, but not much else.
    assert found["peakBytes"] == pytest.approx(expected["peak_bytes"], rel=0.2)
