"""Gradients of fake quantization against the rule of torch's FakeQuantize: dY where nothing was clipped, else zero."""

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import make_model, normal

from trainweb import check
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.errors import UnsupportedError
from trainweb.session.training_session import TrainingSession

RANGES = {np.int8: (-128, 127), np.uint8: (0, 255), np.int16: (-32768, 32767)}
W, V = normal(6, 4, seed=1), normal(4, 2, seed=2)
X = normal(5, 6, seed=3)


def model(
    scale: Any,
    zero: Any,
    *,
    clip: tuple[int | None, int | None] | None = None,
    between: list[NodeProto] | None = None,
    **attrs: int,
) -> ModelProto:
    """loss = mean(x q(w) v): `between` stands before DequantizeLinear and takes q to r; `clip` bounds the integers."""
    nodes, last = (
        [helper.make_node("QuantizeLinear", [n for n in ("w", "scale", "zero") if n], ["q"], "Q", **attrs)],
        "q",
    )
    held = {"w": W, "v": V, "scale": np.float32(scale), "zero": zero}
    if zero is None:
        nodes[0].input.pop()
        del held["zero"]
    if clip is not None:
        bounds = {f"bound{k}": np.array(b, zero.dtype) for k, b in enumerate(clip) if b is not None}
        held |= bounds
        nodes.append(
            helper.make_node("Clip", ["q", *(n if n in bounds else "" for n in ("bound0", "bound1"))], ["r"], "C")
        )
        last = "r"
    nodes += between or []
    last = "r" if between else last
    nodes += [
        helper.make_node("DequantizeLinear", [last, *nodes[0].input[1:]], ["y"], "D", **attrs),
        helper.make_node("MatMul", ["x", "y"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "v"], ["p"], "second"),
        helper.make_node("ReduceMean", ["p"], ["loss"], "mean", keepdims=0),
    ]
    return make_model(nodes, {"x": [5, 6]}, {"loss": []}, held, opset=21)


def step(file: ModelProto, **options: Any) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and by how much each parameter moves at a rate of one."""
    made = build_artifacts(file, optimizer=OptimType.SGD, **options)
    names = [d.name for d in made.decisions if d.trained]
    with TrainingSession(**made) as session:
        before = {name: session.get_parameter(name).astype(float) for name in names}
        session.set_learning_rate(1.0)
        loss = session.train_step({"x": X})["loss"]
        session.optimizer_step()
        return float(loss), {name: before[name] - session.get_parameter(name) for name in names}


def expected(scale: Any, zero: Any, low: int, high: int, axis: int = 1) -> np.ndarray:
    """The gradient of w in float64."""
    shape = [-1 if k == axis else 1 for k in range(2)] if np.size(scale) > 1 else []
    scales = np.reshape(np.float32(scale), shape).astype(float)
    places = np.rint(W.astype(float) / scales) + np.reshape(zero, shape).astype(float)
    inside = (low <= places) & (places <= high)
    assert inside.any() and not inside.all(), "nothing is clipped: the test would see no mask"
    return inside * (X.astype(float).T @ np.full((5, 2), 0.1) @ V.astype(float).T)


CASES = {
    "int8": (0.0078125, np.int8(0), {}),
    "uint8": (0.0078125, np.uint8(100), {}),
    "int16": (2.0**-15, np.int16(-7), {}),
    "one of one axis": (np.full(1, 0.0078125), np.full(1, 3, np.int8), {}),
    "bound above": (0.0078125, np.uint8(100), {"clip": (None, 127)}),
    "both bounds": (0.125, np.int8(0), {"clip": (-8, 7)}),
    "columns": (2.0 ** np.arange(-8, -4), np.array([0, 5, -3, 0], np.int8), {"axis": 1}),
    "rows": (2.0 ** np.arange(-9, -3), np.arange(6, dtype=np.uint8) + 90, {"axis": 0}),
    "negative axis": (2.0 ** np.arange(-8, -4), np.zeros(4, np.int8), {"axis": -1}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_goes_straight_through_where_nothing_was_clipped(name: str) -> None:
    scale, zero, options = CASES[name]
    low, high = RANGES[zero.dtype.type]
    given = options.get("clip", (None, None))
    low, high = (bound if one is None else one for one, bound in zip(given, (low, high), strict=True))
    file = model(scale, zero, **options)
    loss, moved = step(file, frozen_params=["scale"])
    assert set(moved) == {"w", "v"}
    np.testing.assert_allclose(
        moved["w"], expected(scale, zero, low, high, options.get("axis", 1) % 2), rtol=1e-5, atol=1e-6
    )
    ((y, forward),) = [ReferenceEvaluator(file).run(["y", "loss"], {"x": X})]
    np.testing.assert_allclose(moved["v"], (X @ y).astype(float).T @ np.full((5, 2), 0.1), rtol=1e-4, atol=1e-5)
    assert loss == pytest.approx(float(forward), rel=1e-5)


def test_without_a_zero_point_it_is_zero_of_uint8() -> None:
    _, moved = step(model(0.0078125, None), requires_grad=["w"])
    np.testing.assert_allclose(moved["w"], expected(0.0078125, 0, 0, 255), rtol=1e-5, atol=1e-6)


def test_the_sum_that_a_gradient_goes_through_is_the_quantized_value_to_the_bit() -> None:
    """Training and evaluation give the same bytes, of values between all steps and beyond the range."""
    x = np.concatenate([np.linspace(-30, 30, 1997, dtype=np.float32), np.float32([0, -0.05, 1e-30, 1e5, -1e5])])
    nodes = [
        helper.make_node("Mul", ["w", "one"], ["h"], "times"),
        helper.make_node("QuantizeLinear", ["h", "scale", "zero"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "D"),
        helper.make_node("ReduceSum", ["y"], ["loss"], "sum", keepdims=0),
    ]
    held = {"w": x, "scale": np.float32(0.1), "zero": np.int8(5)}
    file = make_model(nodes, {"one": []}, {"loss": []}, held, opset=21)
    with TrainingSession.from_model(
        file, requires_grad=["w"], loss=None, optimizer=OptimType.SGD, additional_output_names=["y"]
    ) as session:
        feeds = {"one": np.float32(1)}
        trained, evaluated = (np.asarray(run(feeds)["y"]) for run in (session.train_step, session.eval_step))
    np.testing.assert_array_equal(trained, evaluated)
    np.testing.assert_array_equal(evaluated, ReferenceEvaluator(file).run(["y"], feeds)[0])


CAST = [helper.make_node("Cast", ["q"], ["r"], "cast", to=TensorProto.INT8)]


def test_what_torch_quantizes_in_earnest_has_no_gradient() -> None:
    """`torch.quantize_per_tensor(w).dequantize()`, which TorchScript writes with a Cast in between."""
    with pytest.warns(UserWarning, match="'w' is left out .only what has no gradient"):
        made = build_artifacts(model(0.01, np.int8(0), between=CAST), requires_grad=None, frozen_params=["scale"])
    assert [d.name for d in made.decisions if d.trained] == ["v"]


def test_another_scale_on_the_way_back_is_no_fake_quantization() -> None:
    file = model(0.01, np.int8(0))
    file.graph.initializer.append(helper.make_tensor("other", TensorProto.FLOAT, [], [0.02]))
    next(n for n in file.graph.node if n.op_type == "DequantizeLinear").input[1] = "other"
    with pytest.warns(UserWarning, match="'w' is left out"):
        made = build_artifacts(file, frozen_params=["scale", "other"])
    assert [d.name for d in made.decisions if d.trained] == ["v"]


@pytest.mark.parametrize("stopped", ["q", "y"])
def test_a_stop_within_it_is_obeyed(stopped: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, moved = step(model(0.0078125, np.int8(0)), stop_gradient=[stopped], frozen_params=["scale"])
    assert set(moved) == {"v"}


def _scaled(product: str, *nodes: NodeProto) -> list[NodeProto]:
    """The int32 `product` times the scale "s" of activations and of weights, behind other nodes."""
    cast = helper.make_node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT)
    spread = helper.make_node("Mul", ["s", "scale"], ["factor"], "factor")
    return [*nodes, cast, spread, helper.make_node("Mul", ["f", "factor"], ["r"], product)]


PRODUCT = helper.make_node("MatMulInteger", ["q", "weights", "z"], ["i"], "product")
DYNAMIC = helper.make_node("DynamicQuantizeLinear", ["a"], ["q", "s", "z"], "rounded")
SYMMETRIC = [
    helper.make_node("Abs", ["a"], ["magnitudes"], "abs"),
    helper.make_node("ReduceMax", ["magnitudes"], ["largest"], "max", keepdims=0),
    helper.make_node("Div", ["largest", "steps"], ["s"], "steps"),
    helper.make_node("QuantizeLinear", ["a", "s", "z"], ["q"], "rounded"),
]
STATIC = [
    helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["q"], "rounded"),
    helper.make_node("QLinearMatMul", ["q", *["scale", "zero", "weights"], *["scale", "zero"] * 2], ["i"], "product"),
    helper.make_node("DequantizeLinear", ["i", "scale", "zero"], ["f"], "float"),
    helper.make_node("Add", ["f", "a"], ["r"], "skip"),
]
INTEGERS = {
    "of quantize_dynamic": ("product", {}, _scaled("r", DYNAMIC, PRODUCT)),
    "with a symmetric range": ("product", {"z": np.int8(0)}, _scaled("r", *SYMMETRIC, PRODUCT)),
    "static, beside a skip connection": ("product", {"zero": np.int8(0)}, STATIC),
    "and back": ("rounded", {}, [DYNAMIC, helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"], "float")]),
    "of images": (
        "product",
        {"square": np.array([1, 1, 5, 4], np.int64), "kernel": np.ones((1, 1, 1, 1), np.int8), "two": np.array([5, 4])},
        _scaled(
            "wide",
            DYNAMIC,
            helper.make_node("Reshape", ["q", "square"], ["image"], "image"),
            helper.make_node("ConvInteger", ["image", "kernel", "z"], ["j"], "product"),
            helper.make_node("Reshape", ["j", "two"], ["i"], "rows"),
        ),
    ),
}
"""Activations a [5, 4] as integers, until r [5, 4]: the refused node, constants, and the nodes."""


@pytest.mark.parametrize("name", INTEGERS)
def test_only_parameters_behind_rounded_activations_are_trained(name: str) -> None:
    refused, constants, nodes = INTEGERS[name]
    held = {"w": W, "b": np.ones(4, np.float32), "weights": np.ones((4, 4), np.int8), **constants}
    held |= {"scale": np.float32(0.05), "steps": np.float32(127)}
    first, last = helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Mul", ["r", "b"], ["p"])
    mean = helper.make_node("ReduceMean", ["p"], ["loss"], keepdims=0)
    file = make_model([first, *nodes, last, mean], {"x": [5, 6]}, {"loss": []}, held, opset=21)
    for parameters in (["w", "b"], ["w"]):
        with pytest.raises(UnsupportedError, match=f"'{refused}': the file rounds activations "):
            build_artifacts(file, requires_grad=parameters)
        report = check(file, requires_grad=parameters, loss=None)
        assert [problem.nodes for problem in report.unsupported] == [[refused]]
    _, moved = step(file, requires_grad=["b"])
    file.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [5, 4]))
    np.testing.assert_allclose(moved["b"], ReferenceEvaluator(file).run(["r"], {"x": X})[0].sum(0) / 20, rtol=1e-4)


def test_rounding_of_a_float_model_has_a_gradient_of_zero() -> None:
    """As in torch: the sum beside it is trained."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Round", ["a"], ["q"]),
        helper.make_node("Cast", ["q"], ["i"], to=TensorProto.INT32),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["f", "a"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["loss"], keepdims=0),
    ]
    _, moved = step(make_model(nodes, {"x": [5, 6]}, {"loss": []}, {"w": W}, opset=13))
    np.testing.assert_allclose(moved["w"], X.astype(float).T @ np.full((5, 4), 0.05), rtol=1e-5, atol=1e-6)


def test_rounding_beside_the_loss_stops_nothing() -> None:
    """Of another output, and of sizes, which activations decide, not their values."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        DYNAMIC,
        PRODUCT,
        helper.make_node("Shape", ["i"], ["shape"]),
        helper.make_node("Reshape", ["a", "shape"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["loss"], keepdims=0),
    ]
    held = {"w": W, "weights": np.ones((4, 4), np.int8)}
    file = make_model(nodes, {"x": [5, 6]}, {"loss": [], "i": [5, 4]}, held, opset=21)
    file.graph.output[1].type.tensor_type.elem_type = TensorProto.INT32
    _, moved = step(file, requires_grad=["w"])
    np.testing.assert_allclose(moved["w"], X.astype(float).T @ np.full((5, 4), 0.05), rtol=1e-5, atol=1e-6)
