"""Models with quantized weights train and predict as the same models with the weights dequantized by numpy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.errors import UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore
from trainweb.training.step_kind import TRAIN

K, N, CLASSES, ROWS = 200, 72, 9, 8
INTS = {
    TensorProto.INT8: (-128, 128),
    TensorProto.UINT8: (0, 256),
    TensorProto.INT4: (-8, 8),
    TensorProto.UINT4: (0, 16),
}


@dataclass
class Weight:
    """A weight (K, N) as the nodes and initializers that make `weight`, and its values."""

    nodes: list[Any]
    initializers: list[Any]
    values: np.ndarray


def linear(dtype: int, blocks: tuple[int, int], attrs: dict[str, int], zeros: bool, *, turned: bool = False) -> Weight:
    """DequantizeLinear of (K, N), or with `turned` of (N, K) and a Transpose."""
    rng = np.random.default_rng(int(dtype) + blocks[0])
    shape = (N, K) if turned else (K, N)
    counts = [-(-d // b) for d, b in zip(shape, blocks, strict=True)]
    low, high = INTS[dtype]
    # Zero points near the middle: weights have both signs.
    numbers, points = (
        rng.integers(low, high, shape),
        rng.integers(*(low + (high - low) * k // 16 for k in (7, 10)), counts),
    )
    scale = (0.02 * rng.random(counts) + 0.001).astype(np.float32) / (INTS[dtype][1] // 8)
    of_scales = counts if attrs.get("block_size") else [max(counts)] if max(counts) > 1 else []
    spread = [x.repeat(blocks[0], 0).repeat(blocks[1], 1)[: shape[0], : shape[1]] for x in (points * zeros, scale)]
    values = ((numbers - spread[0]) * spread[1].astype(np.float64)).astype(np.float32)
    initializers = [
        helper.make_tensor("w", dtype, shape, numbers.flatten().tolist()),
        numpy_helper.from_array(scale.reshape(of_scales), "scale"),
        *([helper.make_tensor("zero", dtype, of_scales, points.flatten().tolist())] if zeros else []),
    ]
    name = "turned" if turned else "weight"
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale", *(["zero"] * zeros)], [name], "dequantize", **attrs)]
    if turned:
        nodes.append(helper.make_node("Transpose", ["turned"], ["weight"], "turn", perm=[1, 0]))
    return Weight(nodes, initializers, values.T if turned else values)


WEIGHTS = {
    "int8, one scale": lambda: linear(TensorProto.INT8, (K, N), {}, False),
    "uint8, one scale and zero point": lambda: linear(TensorProto.UINT8, (K, N), {}, True),
    "int8 by columns": lambda: linear(TensorProto.INT8, (K, 1), {"axis": 1}, False),
    "uint8 by rows": lambda: linear(TensorProto.UINT8, (1, N), {"axis": 0}, True),
    "int8 by columns, turned": lambda: linear(TensorProto.INT8, (1, K), {"axis": 0}, False, turned=True),
    "int8 by blocks": lambda: linear(TensorProto.INT8, (32, 1), {"axis": 0, "block_size": 32}, True),
    "int4 by blocks": lambda: linear(TensorProto.INT4, (32, 1), {"axis": 0, "block_size": 32}, False),
    "uint4 by blocks": lambda: linear(TensorProto.UINT4, (16, 1), {"axis": 0, "block_size": 16}, True),
    "uint4 by blocks, turned": lambda: linear(
        TensorProto.UINT4, (1, 32), {"axis": 1, "block_size": 32}, True, turned=True
    ),
    "int4 by columns": lambda: linear(TensorProto.INT4, (K, 1), {"axis": 1}, True),
}


def model(weight: Weight | np.ndarray, *, gemm: bool = False) -> bytes:
    """first.weight -> relu -> the weight -> relu -> head.weight."""
    inputs = [numpy_helper.from_array(weight, "weight")] if isinstance(weight, np.ndarray) else weight.initializers
    product = helper.make_node("MatMul", ["r", "weight"], ["h"], "fc")
    if gemm:
        product = helper.make_node("Gemm", ["r", "weight", "head.bias"], ["h"], "fc")
    rng = np.random.default_rng(5)
    others = {
        "first.weight": rng.standard_normal((K, K)) / 14,
        "head.weight": rng.standard_normal((N, CLASSES)) / 8,
        "head.bias": rng.standard_normal(N) / 8,
    }
    found = make_model(
        [
            helper.make_node("MatMul", ["x", "first.weight"], ["f"], "first"),
            helper.make_node("Relu", ["f"], ["r"], "relu"),
            *([] if isinstance(weight, np.ndarray) else weight.nodes),
            product,
            helper.make_node("Relu", ["h"], ["a"], "act"),
            helper.make_node("MatMul", ["a", "head.weight"], ["y"], "head"),
        ],
        {"x": ["batch", K]},
        {"y": ["batch", CLASSES]},
        [*inputs, *(numpy_helper.from_array(v.astype(np.float32), n) for n, v in others.items())],
        opset=21,
    )
    onnx.checker.check_model(found)
    data: bytes = found.SerializeToString()
    return data


def artifacts_of(data: bytes) -> Artifacts:
    return build_artifacts(
        data, loss="CrossEntropyLoss", optimizer="AdamW", requires_grad=["first.weight", "head.weight"]
    )


def trained(data: bytes) -> tuple[list[float], list[str]]:
    """Losses of steps, and the kernels of a step."""
    made = artifacts_of(data)
    rng, losses = np.random.default_rng(1), []
    feeds = {"x": rng.standard_normal((ROWS, K)).astype(np.float32), "labels": rng.integers(0, CLASSES, ROWS)}
    with trainweb.TrainingSession(**made) as session:
        for _ in range(4):
            losses += map(float, session.train_step(feeds).values())
            session.optimizer_step()
        losses += map(float, session.eval_step(feeds).values())
        types = {name: TensorType(str(x.dtype), x.shape) for name, x in feeds.items()}
        plan = session._core.models.compile_step(TRAIN, types, True)
    kernels = [line.split("(")[0].split()[0] for line in plan.text]
    return losses, kernels


@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_losses_are_those_of_the_dequantized_weight(name: str, gemm: bool) -> None:
    weight = WEIGHTS[name]()
    losses, kernels = trained(model(weight, gemm=gemm))
    expected, _ = trained(model(np.ascontiguousarray(weight.values), gemm=gemm))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert len(set(losses)) == len(losses)
    # Forward, and the gradient by the input.
    assert kernels.count("gemm_quantized_f32") == 2
    assert "dequantize_f32" not in kernels


def nbits(bits: int, zeros: bool, block: int = 32) -> tuple[list[Any], np.ndarray]:
    """Initializers of a MatMulNBits, and its weight (K, N)."""
    rng = np.random.default_rng(bits)
    blocks = -(-K // block)
    numbers, points = rng.integers(0, 1 << bits, (N, blocks * block)), rng.integers(0, 1 << bits, (N, blocks))
    scale = (0.02 * rng.random((N, blocks)) + 0.001).astype(np.float32) / (1 << bits - 4)
    packed, row = numbers.astype(np.uint8), points.astype(np.uint8)
    if bits == 4:
        row = np.pad(row, ((0, 0), (0, blocks % 2)))
        packed, row = packed[:, ::2] | packed[:, 1::2] << 4, row[:, ::2] | row[:, 1::2] << 4
    offset = points if zeros else np.full_like(points, 1 << bits - 1)
    values = (numbers - offset.repeat(block, 1)) * scale.astype(np.float64).repeat(block, 1)
    initializers = [
        numpy_helper.from_array(packed.reshape(N, blocks, -1), "w"),
        numpy_helper.from_array(scale.reshape(-1), "scale"),
        *([numpy_helper.from_array(row.reshape(-1), "zero")] if zeros else []),
    ]
    return initializers, values[:, :K].T.astype(np.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits_trains_as_the_product_with_its_matrix(bits: int, zeros: bool, bias: bool) -> None:
    initializers, values = nbits(bits, zeros)
    attrs = {"K": K, "N": N, "bits": bits, "block_size": 32, "accuracy_level": 4}
    given = ["r", "w", "scale", "zero" if zeros else "", "", "head.bias" if bias else ""]
    while not given[-1]:
        given.pop()
    node = helper.make_node("MatMulNBits", given, ["h"], "fc", domain="com.microsoft", **attrs)
    stored = onnx.ModelProto.FromString(model(np.ascontiguousarray(values), gemm=bias))
    expected, _ = trained(stored.SerializeToString())
    graph = stored.graph
    graph.node[2].CopyFrom(node)
    kept = [t for t in graph.initializer if t.name != "weight"]
    del graph.initializer[:]
    graph.initializer.extend([*initializers, *kept])
    stored.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    losses, kernels = trained(stored.SerializeToString())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert kernels.count("gemm_quantized_f32") == 2 and "dequantize_f32" not in kernels


def table_model(dtype: int, *, op: str) -> tuple[bytes, np.ndarray]:
    """ids -> rows of a quantized table -> the product with the same table."""
    w = linear(dtype, (1, 40), {"axis": 1, "block_size": 40}, dtype == TensorProto.UINT4, turned=True)
    nodes = [w.nodes[0], helper.make_node("Gather", ["turned", "ids"], ["rows"], "lookup")]
    opsets = [helper.make_opsetid("", 21)]
    if op == "GatherBlockQuantized":
        inputs = ["w", "ids", "scale", *(["zero"] if dtype == TensorProto.UINT4 else [])]
        attrs = {"block_size": 40, "gather_axis": 0, "quantize_axis": 1}
        nodes[1] = helper.make_node(op, inputs, ["rows"], "lookup", domain="com.microsoft", **attrs)
        opsets.append(helper.make_opsetid("com.microsoft", 1))
    nodes += [w.nodes[1], helper.make_node("MatMul", ["rows", "weight"], ["y"], "head")]
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        w.initializers,
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), w.values.T


@pytest.mark.parametrize("op", ["Gather", "GatherBlockQuantized"])
@pytest.mark.parametrize("dtype", [TensorProto.UINT4, TensorProto.INT4])
def test_a_table_and_the_head_that_is_tied_to_it_read_one_tensor(dtype: int, op: str) -> None:
    data, table = table_model(dtype, op=op)
    ids = np.array([3, 0, N - 1, -1, 3])
    core = InferenceCore(read_model(data))
    try:
        found = to_numpy(core.run({"ids": from_numpy("ids", ids)})["y"])
        plan = core.plan({"ids": TensorType("int64", ids.shape)}).plan
    finally:
        core.host.release()
    np.testing.assert_allclose(found, table[ids].astype(np.float64) @ table.T, rtol=1e-4, atol=1e-6)
    kernels = [line.split("(")[0].split()[0] for line in plan.text]
    assert [k for k in kernels if k != "check_indices"] == ["gather_dequantized_f32", "gemm_quantized_f32"]
    assert len(plan.constants) + len(plan.large) < N * K  # the numbers of 4 bits and their scales, once


BESIDE: dict[str, tuple[tuple[int, int], tuple[int, ...], list[Any], Any]] = {
    "the weight is the left operand": (
        (16, 16),
        (16, 16),
        [helper.make_node("MatMul", ["weight", "x"], ["y"])],
        lambda x, w: w @ x,
    ),
    "the weight has other rows": (
        (16, 8),
        (5, 8),
        [helper.make_node("Reshape", ["weight", "shape"], ["v"]), helper.make_node("MatMul", ["x", "v"], ["y"])],
        lambda x, w: x @ w.reshape(8, 16),
    ),
}
"""Shapes of the weight and of x, nodes, and the formula of a product that does not read a packed weight in place."""


@pytest.mark.parametrize("name", BESIDE)
def test_products_that_cannot_read_the_packed_weight_are_right(name: str) -> None:
    shape, x_shape, nodes, formula = BESIDE[name]
    rng = np.random.default_rng(8)
    numbers = rng.integers(-128, 128, shape).astype(np.int8)
    stored = [numpy_helper.from_array(numbers, "w"), numpy_helper.from_array(np.float32(0.01), "scale")]
    stored.append(numpy_helper.from_array(np.array([8, 16]), "shape"))
    data = make_model(
        [helper.make_node("DequantizeLinear", ["w", "scale"], ["weight"]), *nodes],
        {"x": x_shape},
        {"y": None},
        stored,
        opset=21,
    ).SerializeToString()
    x = rng.standard_normal(x_shape).astype(np.float32)
    core = InferenceCore(read_model(data))
    try:
        found = to_numpy(core.run({"x": from_numpy("x", x)})["y"])
    finally:
        core.host.release()
    weight = (numbers * np.float32(0.01)).astype(np.float64)
    np.testing.assert_allclose(found, formula(x.astype(np.float64), weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["Cast", "Identity", "Transpose", "Flatten"])
def test_numbers_of_4_bits_are_only_dequantized(op: str) -> None:
    tensor = helper.make_tensor("w", TensorProto.INT4, (4, 5), [1] * 20)
    node = helper.make_node(op, ["w"], ["y"], "only", **({"to": 1} if op == "Cast" else {}))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT if op == "Cast" else TensorProto.INT4, None)
    stored = make_model([node], {}, [y], [tensor], opset=21)
    with pytest.raises(UnsupportedError, match=rf"{op} node 'only': dtype int4 is not supported"):
        artifacts_of(stored.SerializeToString())


def test_files_keep_numbers_of_4_bits() -> None:
    data = model(WEIGHTS["uint4 by blocks"]())
    graph = read_model(data)
    again = onnx.ModelProto.FromString(write_model(graph))
    given = {t.name: numpy_helper.to_array(t) for t in onnx.ModelProto.FromString(data).graph.initializer}
    for tensor in again.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), given[tensor.name])
    assert graph.initializers["w"].nbytes == K * N // 2
