"""Every row of docs/migration.toml runs, in order, with what it says of its result."""

import builtins
import gc
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import migration
import numpy as np
import pytest
from tests.golden.calls.scenarios import X, Y, loss_model

import trainweb
from trainweb.training.core import free_abandoned

ROOT = Path(__file__).parent.parent.parent

DOCUMENTS = migration.documents()
MLP = ROOT / "tests" / "golden" / "mlp"
RECORDED = json.loads((ROOT / "tests" / "golden" / "migration" / "recorded.json").read_text())


def check_recorded(row: dict[str, Any], values: list[Any], key: str = "recorded") -> None:
    """Fail unless a result is what the real package gave: names, or numbers within the rounding of float32."""
    expected = RECORDED[row[key]]
    if isinstance(expected[0], str):
        assert values == expected, row["theirs"]
    else:
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5, err_msg=row["theirs"])


def flat(result: Any) -> list[Any]:
    """Names or numbers of a result, in order."""
    if isinstance(result, dict):
        return [value for part in result.values() for value in flat(part)]
    if isinstance(result, list):
        return [value for part in result for value in flat(part)]
    return [result] if isinstance(result, str) else np.asarray(result).ravel().tolist()


def parameter_of(checkpoint: Any, name: str) -> np.ndarray:
    return trainweb.CheckpointState.load_checkpoint(checkpoint).parameters[name].data


def outputs_of(model: Any, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    session = trainweb.InferenceSession(model)
    found = dict(zip(session.output_names, session.run(None, feeds), strict=True))
    session.release()
    return found


def trained(train_model: Any, checkpoint: Any, *names: str) -> list[Any]:
    """The loss of a train step of artifacts, and gradients."""
    state = trainweb.CheckpointState.load_checkpoint(checkpoint)
    with trainweb.TrainingSession(state, train_model) as session:
        loss = session.train_step({"x": X, "labels": Y})
        return [loss, *(session.get_gradient(name) for name in names)]


def evaluated(train_model: Any, checkpoint: Any, eval_model: Any) -> list[Any]:
    """The outputs of an eval step of artifacts."""
    state = trainweb.CheckpointState.load_checkpoint(checkpoint)
    with trainweb.TrainingSession(state, train_model, eval_model) as session:
        return list(session.eval_step({"x": X, "labels": Y}).values())


def files() -> dict[str, Any]:
    """Names for the rows: the MLP's files and feeds."""
    return {
        "parameter_of": parameter_of,
        "logits_of": lambda model: outputs_of(model, {"x": X})["logits"],
        "trained": trained,
        "evaluated": evaluated,
        "trainweb": trainweb,
        "np": np,
        "base_model": MLP / "base.onnx",
        "ort_model": MLP.parent / "ort_format" / "mlp.plain.ort",
        "train_model": MLP / "training_model.onnx",
        "eval_model": MLP / "eval_model.onnx",
        "optimizer_model": MLP / "optimizer_model.onnx",
        "checkpoint": MLP / "checkpoint",
        "x": X,
        "labels": Y,
        "feeds": {"x": X, "labels": Y},
    }


def session() -> dict[str, Any]:
    """And its state."""
    return files() | {"state": trainweb.CheckpointState.load_checkpoint(MLP / "checkpoint")}


def older() -> dict[str, Any]:
    """A model that ends in its loss: sum(x w) + b."""
    import trainweb.compat.onnxruntime as ort

    gradient_of = lambda model, name, feeds: outputs_of(model, feeds)[name]  # noqa: E731
    return {
        "gradient_of": gradient_of,
        "ort": ort,
        "np": np,
        "loss_model": loss_model().SerializeToString(),
        "xs": np.ones(4, np.float32),
    }


PAGE_ERRORS = set(re.findall(r"class (\w+Error)", (ROOT / "web" / "src" / "wire" / "error-classes.ts").read_text())) | {
    *("Error", "TrainwebError", "TypeError", "RangeError")
}

SETUPS = {"files": files, "session": session, "older": older}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["title"])
def test_every_row_runs_in_python(document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = SETUPS[document["setup"]]()
    for row in document["row"]:
        if "python" not in row:
            assert row.get("note"), f"{row['theirs']} has no Python, and does not say why"
            continue
        names.pop("result", None) if "result =" in row["python"] else None
        error = None
        try:
            exec(row["python"], names)
        except Exception as e:
            error = type(e).__name__
            assert error == row.get("raises"), f"{row['theirs']}: {e!r}"
        assert error == row.get("raises"), f"{row['theirs']} raised nothing"
        if "recorded" in row:
            check_recorded(row, flat(eval(row.get("python_result", "result"), names)))
        if "check" in row:
            assert eval(row["check"], names), f"{row['theirs']}: {names['result']!r}"
    names.clear()
    gc.collect()
    free_abandoned()


def test_the_page_names_the_errors_of_both_languages() -> None:
    names = vars(trainweb.errors)
    for row in (row for document in DOCUMENTS for row in document["row"] if "raises" in row):
        printed = migration.row(row)
        python, page = row["raises"], row.get("js_raises", row["raises"])
        assert f"*error*: {python}" in printed
        assert page == python or f"in JavaScript {page}" in printed
        # Classes that only Python has are no errors of a page.
        assert "js" not in row or page in PAGE_ERRORS, f"{row['theirs']}: a page has no {page}"
        assert "python" not in row or python in names or hasattr(builtins, python)


def test_the_page_is_made_of_the_data() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "migration.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
