"""The table of fits in a page: the numbers, bytes and errors of Python."""

import json
import re
from functools import cache
from typing import Any

import pytest
from tests.conformance.fits import FITS, KINDS, Fit, camel, common, odd_files, run_python, snake
from tests.conformance.wrong_fits import WRONG, WRONG_LATER

from .js_session import JsPage

SEVERAL_THREADS = ("all_options", "in_slices limits")
"""Fits that also run in a page with several threads."""


@cache
def native(name: str) -> list[list[Any]]:
    """The outcomes in Python."""
    return run_python(FITS[name])


def serve(page: JsPage, fit: Fit) -> list[Any]:
    kind, calls, options = fit
    if kind == "odd":
        files = odd_files()
        for name, file in files.items():
            page.site.add(f"/odd/{name}", file)
        return [{"files": {name: f"/odd/{name}" for name in files}}, camel(calls), camel(options)]
    model, config = KINDS[kind]
    page.site.add(f"/fits/{kind}.onnx", model())
    return [{"model": f"/fits/{kind}.onnx", "config": camel(config)}, camel(calls), camel(options)]


def run(page: JsPage, fits: list[Fit]) -> list[list[Any]]:
    body = """const { runFits } = await import("/tests/fits.mjs"); return runFits(fits);"""
    outcomes: list[list[Any]] = page.run(body, fits=[serve(page, fit) for fit in fits])
    return outcomes


def check(page: JsPage, name: str) -> None:
    for fit, outcomes, expected in zip(FITS[name], run(page, FITS[name]), native(name), strict=True):
        for call, outcome, wanted in zip(fit[1], outcomes, expected, strict=True):
            # A page writes null for None.
            assert common(outcome) == json.loads(json.dumps(common(wanted)).replace("has None.", "has null.")), call


@pytest.mark.parametrize("name", FITS)
def test_a_page_fits_as_python(js: JsPage, name: str) -> None:
    check(js, name)


@pytest.mark.parametrize("name", SEVERAL_THREADS)
def test_several_threads_fit_as_python(isolated: JsPage, name: str) -> None:
    check(isolated, name)


def test_what_is_wrong_with_a_bad_label_or_used_up_rows_is_named(js: JsPage) -> None:
    wrong = [*WRONG, *WRONG_LATER]
    calls = [["parameters"], *(["fit", data, options] for data, options, *_ in WRONG), ["parameters"]]
    later = [["fit", data, options] for data, options, *_ in WRONG_LATER]
    (outcomes,) = run(js, [("mlp", calls + later, {})])
    assert outcomes.pop(0) == outcomes.pop(len(WRONG))
    for (_, options, name, text), outcome in zip(wrong, outcomes, strict=True):
        assert "error" in outcome, (options, text)
        assert outcome["error"] == name and re.search(text, snake(outcome["message"])), (options, outcome)
