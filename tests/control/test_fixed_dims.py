"""Models whose control flow a size decides train where it is given: against formulas in float64."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.control.test_control_flow import FLOAT, INT, body, info, model, node

import trainweb
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.cli import main
from trainweb.errors import FeedError, ModelError, UnsupportedError

SIZE = 4
"""A frame: of one, the squeeze makes rows."""
RNG = np.random.default_rng(0)
CONSTANTS = {
    "kernel": RNG.standard_normal((2, 1, SIZE)).astype(np.float32),
    "fc.weight": RNG.standard_normal((2, 3)).astype(np.float32),
    "fc.bias": RNG.standard_normal(3).astype(np.float32),
    "last": np.array([-1]),
    "one": np.array([1]),
    "wide": np.array(16),
}
X, TARGET = RNG.standard_normal((5, SIZE)).astype(np.float32), RNG.standard_normal((5, 3)).astype(np.float32)


def detector_nodes(stride: int, label: str, padding: int = 0) -> list[Any]:
    """A convolution, a squeeze where there is one frame, and a layer that needs rows: as silero-vad's decoder."""
    names = {n: f"{label}{n}" for n in ("rows", "frames", "shape", "size", "single", "squeezed", "same", "flat", "y")}
    then = body([node("Squeeze", [names["frames"], "last"], [names["squeezed"]])], [], [info(names["squeezed"], FLOAT)])
    other = body([node("Identity", [names["frames"]], [names["same"]])], [], [info(names["same"], FLOAT)])
    return [
        node("Unsqueeze", ["x", "one"], [names["rows"]]),
        node("Conv", [names["rows"], "kernel"], [names["frames"]], strides=[stride], pads=[padding, 0]),
        node("Shape", [names["frames"]], [names["shape"]]),
        node("Gather", [names["shape"], "last"], [names["size"]]),
        node("Equal", [names["size"], "one"], [names["single"]]),
        node("If", [names["single"]], [names["flat"]], f"{label}frames", then_branch=then, else_branch=other),
        node("Gemm", [names["flat"], "fc.weight", "fc.bias"], [names["y"]], f"{label}fc"),
    ]


def detector(sequence: str | None = "sequence") -> onnx.ModelProto:
    return model(detector_nodes(SIZE, ""), [info("x", FLOAT, ["batch", sequence])], [info("y", FLOAT, None)], CONSTANTS)


def with_rates() -> onnx.ModelProto:
    """The same by a rate that is fed: in the other branch two frames of these sizes fit nothing."""
    then, other = detector_nodes(SIZE, "wide/"), detector_nodes(1, "narrow/", 1)
    branches = {
        "then_branch": body(then, [], [info("wide/y", FLOAT)]),
        "else_branch": body(other, [], [info("narrow/y", FLOAT)]),
    }
    nodes = [node("Equal", ["rate", "wide"], ["is_wide"]), node("If", ["is_wide"], ["y"], "rates", **branches)]
    inputs = [info("x", FLOAT, ["batch", "sequence"]), info("rate", INT, [])]
    return model(nodes, inputs, [info("y", FLOAT, None)], CONSTANTS)


def session_of(built: Artifacts) -> trainweb.TrainingSession:
    return trainweb.TrainingSession(**built)


def check_step(session: trainweb.TrainingSession, **feeds: np.ndarray) -> None:
    """Loss and gradients of the step equal the formula."""
    kernel, w, b = (CONSTANTS[n].astype(np.float64) for n in ("kernel", "fc.weight", "fc.bias"))
    h = X @ kernel[:, 0].T
    error = h @ w + b - TARGET
    dy = 2 * error / error.size
    results = session.train_step({"x": X, "target": TARGET, **feeds})
    np.testing.assert_allclose(next(iter(results.values())), np.mean(error**2), rtol=1e-5)
    expected = {"fc.weight": h.T @ dy, "fc.bias": dy.sum(0), "kernel": (dy @ w.T).T @ X}
    for name, gradient in expected.items():
        found = np.asarray(session.get_gradient(name))
        np.testing.assert_allclose(found.reshape(gradient.shape), gradient, rtol=1e-4, atol=1e-6)
    session.lazy_reset_grad()


@pytest.mark.parametrize(("sequence", "name"), [("sequence", "sequence"), (None, "x[1]")])
def test_a_size_that_decides_about_ranks_can_be_given(sequence: str | None, name: str) -> None:
    proto = detector(sequence)
    with pytest.raises(UnsupportedError, match=rf"frames.*{re.escape(repr(name))} must be known.*a size in dims"):
        build_artifacts(proto, loss="MSELoss", optimizer="SGD")
    with session_of(build_artifacts(proto, loss="MSELoss", optimizer="SGD", dims={name: SIZE})) as session:
        check_step(session)
        with pytest.raises(FeedError, match="x"):
            session.train_step({"x": np.zeros((5, 2 * SIZE), np.float32), "target": TARGET})
        check_step(session)


def test_the_innermost_decision_is_asked_for() -> None:
    with pytest.raises(UnsupportedError, match=r"wide/frames.*'sequence' must be known") as raised:
        build_artifacts(with_rates(), loss="MSELoss", optimizer="SGD")
    assert "'rate'" not in str(raised.value)


def test_a_branch_that_no_size_can_run_is_an_error_where_it_is_chosen() -> None:
    built = build_artifacts(with_rates(), loss="MSELoss", optimizer="SGD", dims={"sequence": SIZE})
    with session_of(built) as session:
        check_step(session, rate=np.array(16))
        with pytest.raises(ModelError, match="narrow/fc"):
            session.train_step({"x": X, "target": TARGET, "rate": np.array(8)})
        check_step(session, rate=np.array(16))


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({"sequenze": SIZE}, r"'sequenze' is not known; did you mean 'sequence'\?"),
        ({"n": SIZE}, r"'n' is not known; there are batch, sequence\."),
        ({"sequence": 0}, r"dims is .*it must be sizes by the names of dimensions, each an integer >= 1"),
        ({"sequence": True}, r"it must be sizes"),
        ({"sequence": 4.0}, r"it must be sizes"),
        ([4], r"it must be sizes"),
        ({"sequence": SIZE - 1}, r"Conv"),
    ],
)
def test_wrong_sizes_are_named(dims: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build_artifacts(detector(), loss="MSELoss", dims=dims)


def test_the_report_and_the_command_line_take_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = detector()
    assert not trainweb.check(proto, loss="MSELoss").ok
    report = trainweb.check(proto, loss="MSELoss", dims={"sequence": SIZE, "batch": 5})
    assert (report.ok, report.dims) == (True, {"sequence": SIZE, "batch": 5})
    assert [feed.shape for feed in report.feeds] == [[5, SIZE], [5, 3]]
    assert 'dims: {"sequence": 4, "batch": 5}' in report.code["javascript"]
    assert 'dims={"sequence": 4, "batch": 5}' in report.code["python"]
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    sizes = ["--dim", "sequence=4"]
    assert main(["check", str(path), "--loss", "MSELoss", "--steps", "1", "--json", *sizes]) == 0
    assert json.JSONDecoder().raw_decode(capsys.readouterr().out)[0]["dims"] == {"sequence": SIZE}
    made = ["artifacts", str(path), "--loss", "MSELoss", "-o", str(tmp_path)]
    assert main(made) == 1
    assert main([*made, *sizes]) == 0
    declared = onnx.load(tmp_path / "training_model.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in declared] == ["batch", SIZE]


def test_a_model_that_needs_no_size_is_not_built_with_one() -> None:
    nodes = [node("MatMul", ["x", "fc.weight"], ["y"])]
    proto = model(nodes, [info("x", FLOAT, ["batch", 2])], [info("y", FLOAT, None)], CONSTANTS)
    report = trainweb.check(proto, loss="MSELoss", dims={"batch": 7})
    assert (report.ok, report.dims, report.feeds[0].shape) == (True, {}, [7, 2])
