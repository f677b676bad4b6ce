"""stop_gradient against the derivative worked out by hand: ONNX has no detach."""

import warnings

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from tests.conformance.models import make_model, normal

from trainweb.artifacts import Artifacts, OptimType, build_artifacts
from trainweb.errors import ModelError
from trainweb.session.check import check
from trainweb.session.training_session import TrainingSession

W, V = normal(3, 2, seed=1), normal(2, 2, seed=2)


def net() -> object:
    """h = x w, loss = mean((h v - h) ** 2): h is both the prediction's source and the target."""
    return make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
            helper.make_node("Identity", ["h"], ["target"], "target"),
            helper.make_node("MatMul", ["h", "v"], ["p"], "second"),
            helper.make_node("Sub", ["p", "target"], ["d"], "difference"),
            helper.make_node("Mul", ["d", "d"], ["s"], "square"),
            helper.make_node("ReduceMean", ["s"], ["loss"], "mean", keepdims=0),
        ],
        {"x": [4, 3]},
        {"loss": []},
        {"w": W, "v": V},
    )


def moved_by_a_step(made: Artifacts, x: np.ndarray) -> np.ndarray:
    """The gradient of w, by which a step of SGD with the rate 1 moves it."""
    with TrainingSession(**made) as session:
        session.set_learning_rate(1.0)
        session.train_step({"x": x})
        session.optimizer_step()
        moved: np.ndarray = W.astype(np.float64) - session.get_parameter("w")
    return moved


@pytest.mark.parametrize("stopped", [[], ["target"]])
def test_no_gradient_goes_through_a_stopped_tensor(stopped: list[str]) -> None:
    made = build_artifacts(net(), optimizer=OptimType.SGD, stop_gradient=stopped)
    x = normal(4, 3, seed=5)
    moved = moved_by_a_step(made, x)
    x64, w64, v64 = (a.astype(np.float64) for a in (x, W, V))
    slope = 2 * (x64 @ w64 @ v64 - x64 @ w64) / 8
    towards = slope @ v64.T - (0 if stopped else slope)
    np.testing.assert_allclose(moved, x64.T @ towards, rtol=1e-4, atol=1e-6)


def test_what_lies_only_before_a_stop_is_not_trained() -> None:
    made = build_artifacts(net(), stop_gradient=["h"])
    assert [d.name for d in made.decisions if d.trained] == ["v"]
    with pytest.raises(ModelError, match="no tensor 'nothing'"):
        build_artifacts(net(), stop_gradient=["nothing"])
    with pytest.raises(ModelError, match="is the loss"):
        build_artifacts(net(), stop_gradient=["loss"])


RELU = [helper.make_node("Relu", ["h"], ["q"], "quantizer")]
ROUND = [helper.make_node("Round", ["h"], ["q"], "quantizer")]


def constant(name: str, value: float) -> NodeProto:
    return helper.make_node(
        "Constant", [], [name], name, value=helper.make_tensor(name, TensorProto.FLOAT, [], [value])
    )


SIGN = [
    constant("zero", 0.0),
    constant("one", 1.0),
    constant("minus", -1.0),
    helper.make_node("Greater", ["h", "zero"], ["is"], "compare"),
    helper.make_node("Where", ["is", "one", "minus"], ["q"], "quantizer"),
]
SCALED = [
    helper.make_node("Round", ["h"], ["r"], "quantizer"),
    helper.make_node("Mul", ["r", "scale.weight"], ["q"], "scaled"),
]
BEFORE = [("Sub", ["q", "h"], "d"), ("Add", ["h", "d"], "y")]
AFTER = [("Sub", ["q", "h"], "d"), ("Add", ["d", "h"], "y")]
TAKEN = [("Sub", ["h", "q"], "d"), ("Sub", ["h", "d"], "y")]


def straight_through(sums: list[tuple[str, list[str], str]], quantizer: list[NodeProto] = RELU) -> ModelProto:
    """loss = mean(y v), where h = x w and q comes from h. y is q by way of h, as an estimator without its detach."""
    scale = {"scale.weight": np.array([0.5], np.float32)} if quantizer is SCALED else {}
    scale |= {"u": W} if any("u" in node.input for node in quantizer) else {}
    return make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
            *quantizer,
            *(helper.make_node(op, ins, [out], f"{op} {out}") for op, ins, out in sums),
            helper.make_node("MatMul", ["y", "v"], ["p"], "second"),
            helper.make_node("ReduceMean", ["p"], ["loss"], "mean", keepdims=0),
        ],
        {"x": [4, 3]},
        {"loss": []},
        {"w": W, "v": V, **scale},
    )


@pytest.mark.parametrize("sums", [BEFORE, AFTER, TAKEN], ids=["before", "after", "taken away"])
@pytest.mark.parametrize("quantizer", [RELU, SCALED], ids=["gradient of the input", "gradient of a parameter"])
def test_a_gradient_that_goes_straight_through_without_a_stop_is_warned_of(
    sums: list[tuple[str, list[str], str]], quantizer: list[NodeProto]
) -> None:
    with pytest.warns(UserWarning, match="'d' is left out.*stop_gradient"):
        made = build_artifacts(straight_through(sums, quantizer))
    assert [d.name for d in made.decisions if d.doubtful] == ["d"]
    assert {"w", "v"} <= {d.name for d in made.decisions if d.trained}


@pytest.mark.parametrize(
    "sums",
    [[("Add", ["q", "h"], "s"), ("Sub", ["s", "h"], "y")], [("Sub", ["h", "h"], "z"), ("Add", ["q", "z"], "y")]],
    ids=["added and taken away", "less itself"],
)
def test_what_takes_away_what_it_adds_is_warned_of(sums: list[tuple[str, list[str], str]]) -> None:
    with pytest.warns(UserWarning, match="takes away what it adds.*optimize=False"):
        made = build_artifacts(straight_through(sums, ROUND))
    (doubtful,) = [d.name for d in made.decisions if d.doubtful]
    assert doubtful in {out for _, _, out in sums}


@pytest.mark.parametrize("sums", [BEFORE, AFTER, TAKEN], ids=["before", "after", "taken away"])
@pytest.mark.parametrize("quantizer", [ROUND, SIGN], ids=["rounding", "choice"])
@pytest.mark.parametrize("named", [None, ["w", "v"]], ids=["", "named"])
def test_a_step_without_a_gradient_has_that_of_its_detour(
    sums: list[tuple[str, list[str], str]], quantizer: list[NodeProto], named: list[str] | None
) -> None:
    """Without a stop the gradients of the detour cancel, and the first weights stay where they are."""
    model = straight_through(sums, quantizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = build_artifacts(model, optimizer=OptimType.SGD, requires_grad=named)
        (stopped,) = [d for d in check(model, requires_grad=named).left_out if d.name == "d"]
    assert "detached" in stopped.reason and "dynamo=True" in stopped.reason
    x = normal(4, 3, seed=5)
    moved = moved_by_a_step(made, x)
    towards = np.full((4, 2), 1 / 8) @ V.astype(np.float64).T
    np.testing.assert_allclose(moved, x.astype(np.float64).T @ towards, rtol=1e-4, atol=1e-6)


OTHER = [helper.make_node("MatMul", ["x", "u"], ["g"], "other"), helper.make_node("Round", ["g"], ["q"], "quantizer")]
FIXED = [helper.make_node("MatMul", ["x", "u"], ["q"], "fixed")]


@pytest.mark.parametrize("quantizer", [OTHER, FIXED], ids=["another step", "the input"])
@pytest.mark.parametrize("sums", [BEFORE, AFTER, TAKEN], ids=["before", "after", "taken away"])
def test_what_does_not_come_from_what_it_goes_round_is_no_detour(
    sums: list[tuple[str, list[str], str]], quantizer: list[NodeProto]
) -> None:
    """(q - h) + h is q, and its derivative by h is zero."""
    model = straight_through(sums, quantizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = build_artifacts(model, optimizer=OptimType.SGD, requires_grad=["w", "v"])
    with TrainingSession(**made) as session:
        session.train_step({"x": normal(4, 3, seed=5)})
        np.testing.assert_allclose(session.get_gradient("w"), np.zeros_like(W), atol=1e-7)


def test_a_step_from_what_h_is_computed_from_is_a_detour() -> None:
    """Exporters repeat nodes: here the step and h are each computed from z."""
    nodes = [
        helper.make_node("Identity", ["h"], ["h0"], "copy"),
        helper.make_node("Round", ["h0"], ["q"], "quantizer"),
        helper.make_node("Tanh", ["h"], ["t"], "bounded"),
    ]
    made = build_artifacts(straight_through([("Sub", ["q", "t"], "d"), ("Add", ["t", "d"], "y")], nodes))
    assert "detached" in {d.name: d for d in made.decisions}["d"].reason


def test_a_file_that_notes_every_detach_is_taken_at_its_word() -> None:
    model = straight_through(BEFORE, ROUND)
    note = model.graph.metadata_props.add()
    note.key, note.value = "pkg.torch.export.ExportedProgram.graph_signature", ": PARAMETER target='w'"
    with pytest.warns(UserWarning, match="'d' is left out"):
        made = build_artifacts(model)
    assert "d" in [d.name for d in made.decisions if d.doubtful]


def test_a_constant_that_is_taken_from_twice_is_no_detour() -> None:
    """1 - (1 - q), as of opacities along a ray: the constant has no gradient that could be meant."""
    sums = [("Sub", ["one", "q"], "d"), ("Sub", ["one", "d"], "y")]
    model = straight_through(sums, [constant("one", 1.0), *RELU])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = build_artifacts(model)
    assert [d.name for d in made.decisions if d.trained] == ["w", "v"]


def test_a_parameter_that_only_steps_depend_on_is_warned_of() -> None:
    """A spike with a custom surrogate gradient: of an autograd.Function the file holds only the comparison."""
    spike = [
        constant("threshold", 0.1),
        helper.make_node("Greater", ["h", "threshold"], ["fires"], "fires"),
        helper.make_node("Cast", ["fires"], ["y"], "spike", to=TensorProto.FLOAT),
    ]
    model = straight_through([], spike)
    with pytest.warns(UserWarning, match=r"'w' is left out \(only what has no gradient.*autograd.Function"):
        made = build_artifacts(model)
    assert [(d.name, d.trained, d.doubtful) for d in made.decisions] == [("v", True, False), ("w", False, True)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_artifacts(model, frozen_params=["w"])
        build_artifacts(net(), stop_gradient=["h"])


def test_nothing_is_said_where_it_is_stopped_or_something_else_is_added() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_artifacts(straight_through(BEFORE), stop_gradient=["d"])
        build_artifacts(straight_through([("Sub", ["q", "h"], "d"), ("Add", ["q", "d"], "y")]))
