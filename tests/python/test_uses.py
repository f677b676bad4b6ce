"""Every part of the compiler answers alike who reads a weight, and how: `model/uses.py` has the one table."""

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model
from tests.python.sessions import infer

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.lora import inject
from trainweb.lora.layers import find_layers
from trainweb.lora.quantize import quantize
from trainweb.model.graph import Node
from trainweb.model.reader import read_model
from trainweb.model.uses import BIAS, EMBEDDING, NORM, ROTATION, SCORES, STATISTICS, WEIGHT, role_at

RNG = np.random.default_rng(6)
NAMES = {
    "W": WEIGHT,
    "R": WEIGHT,
    "B": BIAS,
    "P": WEIGHT,
    "scale": NORM,
    "bias": NORM,
    "slope": NORM,
    "input_mean": STATISTICS,
    "input_var": STATISTICS,
    "attn_mask": SCORES,
    "cos_cache": ROTATION,
    "sin_cache": ROTATION,
}
"""Roles by what the specification of ONNX calls an input."""
OTHERS = {("Gemm", "B"): WEIGHT, ("MatMul", "B"): WEIGHT, ("LayerNormalization", "B"): NORM}
OTHERS |= {("InstanceNormalization", "B"): NORM, ("BatchNormalization", "B"): NORM, ("GroupNormalization", "B"): NORM}
OTHERS |= {
    ("CausalConvWithState", "weight"): WEIGHT,
    ("CausalConvWithState", "bias"): BIAS,
    ("Gather", "data"): EMBEDDING,
}
SPECIFIED = (
    "Attention BatchNormalization CausalConvWithState Conv ConvTranspose DeformConv GRU Gather Gemm "
    "GroupNormalization InstanceNormalization LSTM LayerNormalization MatMul PRelu RMSNormalization RNN RotaryEmbedding"
)


@pytest.mark.parametrize("op", SPECIFIED.split())
def test_roles_stand_where_the_specification_has_the_inputs(op: str) -> None:
    if not onnx.defs.has(op):
        pytest.skip("this version of onnx does not specify it")
    node = Node(op, [], [])
    for position, value in enumerate(onnx.defs.get_schema(op).inputs):
        role = OTHERS.get((op, value.name), NAMES.get(value.name))
        if role is not None:
            assert role_at(node, position) == role, value.name


def model_of(nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], shape: list[Any], opset: int = 17) -> bytes:
    """y of x."""
    return make_model(
        nodes, {"x": shape}, {"y": None}, tensors, opset=opset, domains=["com.microsoft"]
    ).SerializeToString()


def run(file: bytes, x: np.ndarray) -> np.ndarray:
    return np.array(infer(file, {"x": x})[0])


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_the_cosines_of_a_rotary_operator_are_never_trained(domain: str) -> None:
    """They are buffers of torch's modules."""
    angles = RNG.random((32, 2))
    tables = {"cos_cache": np.cos(angles).astype(np.float32), "sin_cache": np.sin(angles).astype(np.float32)}
    tensors = {"q.weight": normal(16, 16), "places": np.arange(3)[None], **tables}
    inputs = ["q", *tables, "places"] if domain == "" else ["q", "places", *tables]
    nodes = [
        helper.make_node("MatMul", ["x", "q.weight"], ["q"]),
        helper.make_node("RotaryEmbedding", inputs, ["y"], domain=domain, num_heads=4),
    ]
    file = model_of(nodes, tensors, [1, 3, 16], opset=23)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decisions = {d.name: d for d in build_artifacts(file, loss="MSELoss").decisions}
    assert decisions["q.weight"].trained
    for name in tables:
        assert not decisions[name].trained and decisions[name].reason == ROTATION


def test_a_bias_of_scores_is_doubtful_in_every_form() -> None:
    """As an Add before the softmax is, and an operand of ONNX's Attention."""
    tensors = {"q.weight": normal(16, 16), "position_bias": normal(1, 4, 3, 3), "scale": np.float32(0.5).reshape(())}
    product = helper.make_node("MatMul", ["x", "q.weight"], ["q"])
    heads = {"q_num_heads": 4, "kv_num_heads": 4}
    fused = [product, helper.make_node("Attention", ["q", "x", "x", "position_bias"], ["y"], **heads)]
    with pytest.warns(UserWarning, match="added to attention scores"):
        decisions = {
            d.name: d for d in build_artifacts(model_of(fused, tensors, [1, 3, 16], 23), loss="MSELoss").decisions
        }
    assert not decisions["position_bias"].trained and decisions["position_bias"].doubtful


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "FusedMatMul"])
def test_a_head_that_is_a_transposed_copy_of_the_table_is_tied(op: str) -> None:
    table = normal(24, 8)
    domain = {"domain": "com.microsoft"} if op == "FusedMatMul" else {}
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["h"]),
        helper.make_node(op, ["h", "head"], ["y"], **domain),
    ]
    file = model_of(nodes, {"table": table, "head": np.ascontiguousarray(table.T)}, ["n"])
    files = build_artifacts(file, loss="CrossEntropyLoss", optimizer="SGD")
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    assert list(state.parameters) == ["table"]


LAYERS = [("MatMul", {}), ("Gemm", {"transB": 1}), ("FusedMatMul", {"transB": 1}), ("FusedMatMul", {})]


def linear(op: str, attrs: dict[str, int], weights: list[np.ndarray]) -> bytes:
    """Two linear layers, whose weights are (out, in) before the model is written."""
    domain = {"domain": "com.microsoft"} if op == "FusedMatMul" else {}
    stored = [w if attrs else np.ascontiguousarray(w.T) for w in weights]
    nodes = [
        helper.make_node(op, ["x", "m.a.weight"], ["h"], name="/m/a/MatMul", **attrs, **domain),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node(op, ["t", "m.b.weight"], ["y"], name="/m/b/MatMul", **attrs, **domain),
    ]
    return model_of(nodes, dict(zip(("m.a.weight", "m.b.weight"), stored, strict=True)), ["n", 64])


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_fit_beside_every_form_of_a_product(dora: bool) -> None:
    weights, feeds = [normal(64, 64), normal(64, 64)], {"x": normal(5, 64), "target": normal(5, 64)}
    losses: list[list[float]] = []
    merged: list[np.ndarray] = []
    for op, attrs in LAYERS:
        adapted = inject(read_model(linear(op, attrs, weights)), ["m.a"], rank=2, seed=1, use_dora=dora, dropout=0.25)
        files = adapted.build_artifacts(loss="MSELoss", optimizer="AdamW")
        with trainweb.TrainingSession(**files) as session:
            row = []
            for _ in range(3):
                row += map(
                    float, session.train_step(dict(zip(session.input_names(), feeds.values(), strict=True))).values()
                )
                session.optimizer_step()
                session.lazy_reset_grad()
            file = adapted.merge(session)
        losses.append(row)
        merged.append(run(file, feeds["x"]))
    assert len(set(losses[0])) == 3
    for row, y in zip(losses[1:], merged[1:], strict=True):
        np.testing.assert_allclose(row, losses[0], rtol=1e-5)
        np.testing.assert_allclose(y, merged[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "attrs"), LAYERS)
def test_every_form_of_a_product_is_quantized(op: str, attrs: dict[str, int]) -> None:
    weights, x = [normal(64, 64), normal(64, 64)], normal(5, 64)
    file = quantize(linear(op, attrs, weights), bits=8, only_frozen=False)
    expected = np.tanh(x.astype(np.float64) @ weights[0].T) @ weights[1].T
    found = run(file, x)
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert all(node.op_type != op for node in read_model(file).nodes)


@pytest.mark.parametrize("attrs", [{"transA": 1}, {"alpha": 0.5}, {"transBatchA": 1}])
def test_a_product_of_something_else_has_no_adapter(attrs: dict[str, Any]) -> None:
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", **attrs)
    assert not find_layers(read_model(model_of([node], {"w": normal(64, 64)}, [64, 64])))


def test_a_transposition_that_moves_no_axis_is_none() -> None:
    nodes = [
        helper.make_node("Transpose", ["m.weight"], ["same"], perm=[0, 1]),
        helper.make_node("MatMul", ["x", "same"], ["y"]),
    ]
    assert not find_layers(read_model(model_of(nodes, {"m.weight": normal(64, 48)}, ["n", 64])))


def test_the_scales_of_a_weight_are_no_weight() -> None:
    packed = RNG.integers(-100, 100, (64, 48)).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["m.weight", "m.scales"], ["wide"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "wide"], ["y"], name="/m/MatMul"),
    ]
    file = model_of(nodes, {"m.weight": packed, "m.scales": abs(normal(2, 48))}, ["n", 64], 21)
    (layer,) = find_layers(read_model(file))
    assert (layer.weight, layer.shape, layer.stored) == ("m.weight", (48, 64), "8 bits, DequantizeLinear")
