"""Every row of docs/migration.toml that has JavaScript runs in a page, isolated and not, in order."""

import json
from typing import Any

import migration
import pytest
from tests.conformance.test_migration import check_recorded

from .js_session import JsPage

DOCUMENTS = migration.documents()

SETUP = """
const files = golden("mlp");
const { trainModel, checkpointState, evalModel, optimizerModel } = files;
const baseModel = "/golden/mlp/base.onnx";
const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
const feeds = { x, labels };
const outcomes = [];
let session, state, inference, built, builder, buffer, parameter, result;
const ones = new Tensor("float32", new Float32Array(32).fill(1), [8, 4]);
const parameterOf = async (checkpoint, name) => {
  const loaded = await CheckpointState.load(checkpoint);
  try { return await loaded.getParameter(name); } finally { await loaded.release(); }
};
const outputsOf = async (model, given) => {
  const running = await InferenceSession.create(model);
  try { return await running.run(given); } finally { await running.release(); }
};
const logitsOf = async (model) => (await outputsOf(model, { x })).logits;
const evaluated = async (artifacts) => {
  const evaluating = await TrainingSession.create(artifacts);
  try { return await evaluating.runEvalStep(feeds); } finally { await evaluating.release(); }
};
const flat = (value) =>
    value instanceof Tensor ? Array.from(value.data, Number)
    : Array.isArray(value) ? value.flatMap(flat)
    : value instanceof Object ? Object.values(value).flatMap(flat)
    : [value];
"""


def step(row: dict[str, Any]) -> str:
    """A row as JavaScript that notes its result or error."""
    call = row["js"] if " = " in row["js"] else f"result = {row['js']}"
    values = f"flat({row.get('js_result', 'result')})" if "recorded" in row else "[]"
    if "js_check" in row:
        call += f"; if (!({row['js_check']})) throw new Error(`result is ${{String(result)}}`)"
    return (
        f"try {{ {call}; outcomes.push({{ values: {values} }}); }} catch (e) {{ outcomes.push([e.name, e.message]); }}"
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["title"])
def test_every_row_runs_in_a_page(either: JsPage, document: dict[str, Any]) -> None:
    rows = [row for row in document["row"] if "js" in row]
    if not rows:
        return  # an interface of Python alone
    steps = [step(row) for row in rows]
    end = "await session?.release(); return outcomes;"
    outcomes = either.run("\n".join([SETUP, *steps, end]))
    for row, outcome in zip(rows, outcomes, strict=True):
        error = outcome[0] if isinstance(outcome, list) else None
        assert error == row.get("js_raises", row.get("raises")), f"{row['theirs']}: {json.dumps(outcome)}"
        if "recorded" in row:
            check_recorded(row, outcome["values"], "js_recorded" if "js_recorded" in row else "recorded")
