"""Small models for the tests of artifacts."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make_model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[Any] | None] | Sequence[onnx.ValueInfoProto],
    outputs: Mapping[str, Sequence[Any] | None] | Sequence[onnx.ValueInfoProto],
    initializers: Mapping[str, Any] | Sequence[onnx.TensorProto],
    *,
    opset: int = 17,
    types: Mapping[str, int] = MappingProxyType({}),
    domains: Sequence[str] = (),
    producer: str = "",
) -> onnx.ModelProto:
    """A model of inputs and outputs by their shapes, and of initializers by their arrays.

    `types`: those of inputs and outputs that are not float32. `domains`: further ones of operators, in version 1.
    """

    def values(shapes: Any) -> list[onnx.ValueInfoProto]:
        if not isinstance(shapes, Mapping):
            return list(shapes)
        return [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), s) for n, s in shapes.items()]

    if isinstance(initializers, Mapping):
        initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in initializers.items()]
    graph = helper.make_graph(list(nodes), "test", values(inputs), values(outputs), list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Seeded standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mlp(*, opset: int = 17) -> onnx.ModelProto:
    """x[batch, 5] -> Gemm(4) -> Relu -> Gemm(3) = logits."""
    return make_model(
        [
            helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
            helper.make_node("Relu", ["h"], ["a"], "relu"),
            helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1),
        ],
        {"x": ["batch", 5]},
        {"logits": ["batch", 3]},
        {
            "fc1.weight": normal(4, 5),
            "fc1.bias": normal(4, seed=1),
            "fc2.weight": normal(3, 4, seed=2),
            "fc2.bias": normal(3, seed=3),
        },
        opset=opset,
    )


def deep_mlp(*widths: int) -> onnx.ModelProto:
    """x[batch, widths[0]] -> Gemm(widths[1]) -> Relu -> ... -> Gemm(widths[-1]) = logits."""
    nodes, weights = [], {}
    for k, (rows, columns) in enumerate(pairwise(widths)):
        weights |= {f"w{k}": normal(rows, columns, seed=k) / np.sqrt(np.float32(rows)), f"b{k}": normal(columns)}
        nodes += [
            helper.make_node("Gemm", [f"a{k}" if k else "x", f"w{k}", f"b{k}"], [f"h{k}"]),
            helper.make_node("Relu", [f"h{k}"], [f"a{k + 1}"]),
        ]
    nodes.pop()
    nodes[-1].output[0] = "logits"
    return make_model(nodes, {"x": ["batch", widths[0]]}, {"logits": ["batch", widths[-1]]}, weights)


def batch_norm_net(*, training_mode: bool = False, opset: int = 17) -> onnx.ModelProto:
    """x[batch, 2, 4, 4] -> Conv(3) -> BatchNormalization -> pool -> MatMul(2) = logits."""
    attrs: dict[str, Any] = {"training_mode": 1} if training_mode and opset >= 14 else {}
    outputs, normalizer = ["n"], ["bn.scale", "bn.bias", "bn.mean", "bn.var"]
    if training_mode:
        # Before opset 14 the saved statistics are outputs too, and their presence means training.
        outputs += [
            "bn.mean_out",
            "bn.var_out",
            *(["saved_mean", "saved_var"] if opset < 14 else []),
        ]
    return make_model(
        [
            helper.make_node("Conv", ["x", "conv.weight"], ["c"], "conv", kernel_shape=[3, 3]),
            helper.make_node("BatchNormalization", ["c", *normalizer], outputs, "bn", **attrs),
            helper.make_node("GlobalAveragePool", ["n"], ["p"], "pool"),
            helper.make_node("Flatten", ["p"], ["f"], "flatten"),
            helper.make_node("MatMul", ["f", "head.weight"], ["logits"], "head"),
        ],
        {"x": ["batch", 2, 4, 4]},
        {"logits": ["batch", 2]},
        {
            "conv.weight": normal(3, 2, 3, 3),
            "bn.scale": np.ones(3, np.float32),
            "bn.bias": np.zeros(3, np.float32),
            "bn.mean": normal(3, seed=1),
            "bn.var": np.ones(3, np.float32),
            "head.weight": normal(3, 2, seed=2),
        },
        opset=opset,
    )
