"""Resize against ONNX's reference implementation, in all its modes."""

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import make_model
from tests.python.sessions import infer

import trainweb
from trainweb.ir.shapes import TensorType
from trainweb.model.reader import read_model
from trainweb.ops.frame.op import bind
from trainweb.ops.frame.shapes import infer_shapes

COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
X = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
TARGETS: list[dict[str, Any]] = [
    {"scales": [1.0, 1.0, 2.0, 3.0]},
    {"scales": [1.0, 1.0, 0.7, 1.6]},
    {"scales": [1.0, 1.0, 0.5, 0.25]},
    {"sizes": [1, 2, 9, 3]},
    {"sizes": [1, 2, 2, 12]},
]


def model(target: dict[str, Any], opset: int = 19, **attrs: Any) -> onnx.ModelProto:
    kinds = {"scales": onnx.TensorProto.FLOAT, "sizes": onnx.TensorProto.INT64}
    constants = [onnx.helper.make_tensor(name, kinds[name], [len(values)], values) for name, values in target.items()]
    node = onnx.helper.make_node("Resize", ["x", "", *(n if n in target else "" for n in kinds)], ["y"], **attrs)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    return make_model([node], [x], [y], constants, opset=opset)


def run(m: onnx.ModelProto) -> np.ndarray:
    return np.asarray(infer(m.SerializeToString(), {"x": X}, ["y"])[0])


def compare(m: onnx.ModelProto) -> None:
    actual = run(m)
    with np.errstate(all="ignore"):
        (expected,) = (np.asarray(y) for y in ReferenceEvaluator(m).run(None, {"x": X}))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


def whole(target: dict[str, Any]) -> bool:
    """True if scales make whole sizes."""
    return all(float(n * f).is_integer() for n, f in zip(X.shape, target.get("scales", ()), strict=False))


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_modes(coordinates: str, target: dict[str, Any]) -> None:
    if coordinates == "align_corners" and not whole(target):  # the reference aligns where the corners would have been
        y = run(model(target, mode="linear", coordinate_transformation_mode=coordinates))
        np.testing.assert_allclose(y[..., :: y.shape[2] - 1, :: y.shape[3] - 1], X[..., ::5, ::7], rtol=1e-6)
        return
    for rounding in ROUNDINGS:
        compare(model(target, mode="nearest", nearest_mode=rounding, coordinate_transformation_mode=coordinates))
    for mode, exclude in product(("linear", "cubic"), (0, 1)):
        compare(model(target, mode=mode, exclude_outside=exclude, coordinate_transformation_mode=coordinates))
    compare(model(target, mode="cubic", cubic_coeff_a=-0.5, coordinate_transformation_mode=coordinates))


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode: str, target: dict[str, Any]) -> None:
    for exclude in (0, 1):
        compare(model(target, mode=mode, antialias=1, exclude_outside=exclude))


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_sizes_of_some_axes(policy: str) -> None:
    compare(model({"sizes": [9, 4]}, mode="linear", axes=[3, 2], keep_aspect_ratio_policy=policy))


def test_tf_crop_and_resize_without_its_crop_is_refused() -> None:
    with pytest.raises(trainweb.errors.ModelError, match="it needs a roi of 8 numbers"):
        compare(model(TARGETS[0], mode="linear", coordinate_transformation_mode="tf_crop_and_resize"))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_masks_and_labels_are_resized_to_the_nearest(dtype: str) -> None:
    m = model({"scales": [1.0, 1.0, 2.0, 0.5]}, mode="nearest")
    m.graph.input[0].type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    m.graph.output[0].type.tensor_type.elem_type = m.graph.input[0].type.tensor_type.elem_type
    x = (10 * np.abs(X)).astype(dtype) if dtype != "bool" else X > 0
    (found,) = infer(m.SerializeToString(), {"x": x})
    assert found.dtype == x.dtype
    # Of half as many columns, the lower of the two nearest.
    np.testing.assert_array_equal(found, x.repeat(2, axis=2)[..., ::2])


SIZES = {
    1.4: {5: 7, 6: 8, 10: 14, 30: 42, 90: 126},
    0.7: {10: 7, 15: 10, 50: 35, 90: 63},
    1.8: {5: 9, 6: 10, 30: 54},
    5 / 3: {3: 5, 4: 6, 9: 15, 54: 90},
    7 / 6: {6: 7, 54: 62, 90: 105},
}
"""By scale and size, that of the result in ONNX Runtime 1.31, whose product is float32; ONNX's evaluator has others."""


@pytest.mark.parametrize("scale", SIZES, ids=lambda scale: f"{scale:.2f}")
def test_sizes_are_those_of_onnx_runtime(scale: float) -> None:
    """float32 has 1.4 as 1.39999998: five elements become seven all the same."""
    graph = read_model(model({"scales": [1.0, 1.0, 1.0, scale]}).SerializeToString())
    scales = TensorType("float32", (4,), (1.0, 1.0, 1.0, float(np.float32(scale))))
    op = bind(graph.nodes[0], graph.opsets)
    for n, size in SIZES[scale].items():
        assert op.infer(TensorType("float32", (1, 2, 6, n)), None, scales, None).shape[3] == size  # type: ignore[union-attr]
    for n in range(1, 61):
        size = int(np.floor(np.float32(n) * np.float32(scale)))
        assert op.infer(TensorType("float32", (1, 2, 6, n)), None, scales, None).shape[3] == size  # type: ignore[union-attr]


def test_a_size_that_varies_is_multiplied_by_the_fraction_that_was_meant() -> None:
    m = model({"scales": [1.0, 1.0, 1.0, 1.4]})
    m.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"
    assert infer_shapes(read_model(m.SerializeToString()))["y"].shape == (1, 2, 6, "w + (2*w)//5")
