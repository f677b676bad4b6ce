"""The input of labels is `labels` for every loss; `target` and the name of an output mean the same."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.python.test_loss_terms import FIT, LOSS, model, rows, session

from trainweb.artifacts import LossType, build_artifacts
from trainweb.cli import main
from trainweb.data import Dataset
from trainweb.errors import FeedError
from trainweb.spelling import by_inputs, input_name


@pytest.mark.parametrize("loss", ["MSELoss", "CrossEntropyLoss"])
def test_labels_and_target_mean_the_same(loss: str) -> None:
    output = "age" if loss == "MSELoss" else "kind"
    data = rows("train", labels=output)
    given = [data, {"x": data["x"], "target": data["labels"]}, (data["x"], data["labels"])]
    with session(loss, output) as s:
        assert s.input_names()[-1] == "labels"
        results = [s.evaluate(one) for one in given]
        for one in given[:2]:
            stream = [{n: a[k] for n, a in one.items()} for k in range(23)]  # type: ignore[union-attr]
            results.append(s.evaluate(Dataset(lambda stream=stream: iter(stream))))
        assert all(one == results[0] for one in results)
        steps = [s.eval_step(one) for one in given[:2]]
        assert steps[0].keys() == steps[1].keys()
        assert all(np.array_equal(a, b) for a, b in zip(steps[0].values(), steps[1].values(), strict=True))
        metric = "mae" if loss == "MSELoss" else "accuracy"
        assert len({s.evaluate(data, metrics=metric, targets=t)[metric] for t in ("labels", "target")}) == 1
        s.fit(given[1], **FIT)


def test_labels_of_outputs_may_have_the_output_s_name() -> None:
    with session(LOSS, "kind", "age") as s:
        plain = s.evaluate(rows("test", kind_labels="kind", age_labels="age"))
        assert s.evaluate(rows("test", kind="kind", age="age")) == plain


def test_two_columns_for_one_input_are_further_columns() -> None:
    data = rows("test", labels="age", target="age")
    with session("MSELoss", "age") as s:
        with pytest.raises(FeedError, match="invalid input 'target'"):
            s.eval_step(data)
        with pytest.warns(UserWarning, match="target"):
            s.evaluate(data)
    assert input_name("target", ["x", "target", "labels"]) == "target"
    assert input_name("labels", ["x", "target", "targets"]) == "labels"
    assert by_inputs({"age": 1, "age_labels": 2}, ["age_labels"]) == {"age": 1, "age_labels": 2}


def test_predictions_do_not_need_labels_and_ignore_further_columns() -> None:
    data = {**rows("test"), "id": np.arange(11)}
    with session("MSELoss", "age", sample_weight="w") as s:
        plain = s.predict({"x": data["x"]})["age"]
        with pytest.warns(UserWarning, match="id"):
            np.testing.assert_array_equal(s.predict(data)["age"], plain)
        keyed = {**rows("test"), "key": np.arange(11)}  # a session tells of each once
        stream = Dataset(lambda: iter([{n: a[k] for n, a in keyed.items()} for k in range(11)]))
        with pytest.warns(UserWarning, match="key"):
            np.testing.assert_array_equal(s.predict(stream)["age"], plain)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(s.predict(rows("test", labels="age", w="w"))["age"], plain)
        strange = [{"x": row, "labels": k * ["text"], "w": None} for k, row in enumerate(data["x"])]
        for labels in (strange, {"x": data["x"], "labels": 3 * ["text"]}, [{"x": data["x"], "labels": np.zeros(())}]):
            np.testing.assert_array_equal(s.predict(labels)["age"], plain)
        with pytest.raises(FeedError, match=r"The data has no 'x'; it has points, id, .*'preprocess' with 'prep"):
            s.predict({"points": data["x"], "id": data["id"]})
        with pytest.raises(FeedError, match=r"has no 'x'; it has points, and .*\. Rename 'points' to 'x'"):
            s.predict({"points": data["x"]})
        with pytest.raises(FeedError, match=r"has no 'w'; it has x, .*\. Give it\."):
            s.evaluate({"x": data["x"], "labels": data["x"][:, :1]})


def test_a_prediction_of_nan_names_input_and_row_once() -> None:
    """As a form with an empty date gives it."""
    data = rows("test")
    gap = data["x"].copy()
    gap[7:, 1] = np.nan
    with session("MSELoss", "age") as s, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        s.predict({"x": data["x"]})
        other = gap.copy()
        other[2, 0] = np.nan
        for x in (gap, gap, other):
            assert np.isnan(s.predict({"x": x}, batch_size=4)["age"]).any()
    for row, said in zip((7, 2), [str(w.message) for w in caught], strict=True):
        assert said.startswith(f"Output 'age' has NaN. 'x' has nan in row {row} of the given rows.")


@pytest.mark.parametrize(
    ("loss", "name"), [(LossType.MSELoss, "target"), ("MSELoss", "labels"), ({"name": "L1Loss"}, "labels")]
)
def test_a_loss_type_keeps_the_name_of_onnx_runtime(loss: Any, name: str) -> None:
    with session(loss, "age") as s:
        assert s.input_names() == ["x", name]
        with pytest.raises(FeedError, match=f"the model takes x, {name}"):
            s.evaluate({"x": rows("test")["x"]})


def test_the_command_line_says_labels_and_takes_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Artifacts, reports and bundles of a loss whose input ONNX Runtime calls `target`."""
    file = tmp_path / "model.onnx"
    file.write_bytes(model("age"))
    assert main(["check", str(file), "--loss", "MSELoss"]) == 0
    assert re.search("^  labels: float32", capsys.readouterr().out, re.MULTILINE)
    assert main(["artifacts", str(file), "--loss", "MSELoss", "-o", str(tmp_path / "own")]) == 0
    (tmp_path / "theirs").mkdir()
    build_artifacts(file, loss=LossType.MSELoss, optimizer="AdamW").write(tmp_path / "theirs")
    data = rows("train", labels="age")
    for folder, name in (("own", "labels"), ("theirs", "target")):
        training = tmp_path / folder / "training_model.onnx"
        assert name in [value.name for value in onnx.load(training).graph.input]
        for given in ("labels", "target"):
            out = tmp_path / f"{folder}.{given}.bundle"
            sizes = {"x": data["x"].shape, given: data["labels"].shape}
            feeds = [f"--feed={feed}=float32[{','.join(map(str, shape))}]" for feed, shape in sizes.items()]
            assert main(["compile", str(tmp_path / folder), *feeds, "-o", str(out)]) == 0
            assert out.stat().st_size > 0
    capsys.readouterr()
    feeds = ["--feed=x=float32[2,2]", "--feed=other=float32[2,1]"]
    assert main(["compile", str(tmp_path / "own"), *feeds, "-o", str(tmp_path / "no.bundle")]) == 1


@pytest.mark.parametrize("given", ["labels", "target"])
def test_prepare_and_check_take_both_names(given: str) -> None:
    with session("MSELoss", "age") as s:
        data = rows("train", labels="age")
        s.prepare({"x": data["x"].shape, given: data["labels"].shape})
        compiled = s.memory()
        s.train_step({"x": data["x"], "labels": data["labels"]})
        assert s.memory() == compiled
