"""Every row of docs/migration.toml that has JavaScript runs in a page, isolated and not, in order."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from .js_session import JsPage, open_js_page
from .server import ROOT, Site

DOCUMENTS = tomllib.loads((ROOT / "docs" / "migration.toml").read_text())["document"]

SETUP = """
const files = golden("mlp");
const { trainModel, checkpointState, evalModel, optimizerModel } = files;
const baseModel = "/golden/mlp/base.onnx";
const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
const feeds = { x, labels };
const outcomes = [];
let session, inference, buffer, parameter, result;
"""


@pytest.fixture(scope="module", params=["plain_site", "isolated_site"])
def js(request: pytest.FixtureRequest, browser: Browser) -> Iterator[JsPage]:
    site: Site = request.getfixturevalue(request.param)
    with open_js_page(browser, site) as page:
        yield page


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["title"])
def test_every_row_runs_in_a_page(js: JsPage, document: dict[str, Any]) -> None:
    rows = [row for row in document["row"] if "js" in row]
    if not rows:
        return  # an interface of Python alone
    steps = [
        f"try {{ {'' if ' = ' in row['js'] else 'result = '}{row['js']}; outcomes.push(null); }} "
        "catch (e) { outcomes.push([e.name, e.message]); }"
        for row in rows
    ]
    end = "await session?.release(); return outcomes;"
    outcomes = js.run("\n".join([SETUP, *steps, end]))
    for row, outcome in zip(rows, outcomes, strict=True):
        assert (outcome and outcome[0]) == row.get("raises"), f"{row['theirs']}: {json.dumps(outcome)}"
