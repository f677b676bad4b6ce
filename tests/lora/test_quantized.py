"""Adapters beside quantized weights train as beside the same weights dequantized by numpy."""

import numpy as np
import pytest
from tests.lora.test_refusals import NAMES, quantized

import trainweb
from trainweb.lora import Adapter, LoraModel, inject
from trainweb.model.graph import Graph, Node, Tensor
from trainweb.model.reader import read_model


def dequantized(graph: Graph) -> Graph:
    """The model of `quantized` with weights in float32."""
    result, values, renamed = graph.copy(), dict(graph.initializers), dict[str, str]()
    nodes = []
    for node in result.nodes:
        if node.op_type == "MatMulNBits":
            packed = np.frombuffer(values[node.inputs[1]].data, np.uint8).reshape(16, 8)
            weight = np.stack([packed & 15, packed >> 4], -1).reshape(16, 16).T.astype(np.float32) - 8  # scales are 1
        elif node.op_type == "DequantizeLinear":
            weight = np.frombuffer(values[node.inputs[0]].data, np.int8).reshape(16, 16) * np.float32(0.01)
        elif node.op_type == "Cast":
            weight = np.frombuffer(values[node.inputs[0]].data, np.float16).reshape(16, 16).astype(np.float32)
        else:
            nodes.append(node)
            continue
        name = f"{node.outputs[0].rpartition('.')[0]}.weight"
        renamed[node.outputs[0]] = name
        result.initializers[name] = Tensor(name, "float32", weight.shape, np.ascontiguousarray(weight).tobytes())
        if node.op_type == "MatMulNBits":
            nodes.append(Node("MatMul", [node.inputs[0], name], node.outputs, {}, "", node.name))
    for node in nodes:
        node.inputs = [renamed.get(n, n) if node.op_type == "Transpose" else n for n in node.inputs]
    result.nodes = nodes
    read = {name for node in nodes for name in node.inputs}
    result.initializers = {name: t for name, t in result.initializers.items() if name in read}
    return result


def steps(adapted: LoraModel, adapter: Adapter) -> tuple[list[float], dict[str, np.ndarray]]:
    made = adapted.build_artifacts(loss="MSELoss", optimizer="AdamW")
    rng, losses = np.random.default_rng(2), list[float]()
    feeds = {name: rng.standard_normal((6, 16)).astype(np.float32) for name in ("x", "target")}
    with trainweb.TrainingSession(**made) as session:
        adapted.load_adapter(session, adapter)
        for _ in range(4):
            losses += map(float, session.train_step(feeds).values())
            session.optimizer_step()
        found = adapted.adapter(session).tensors
        # A pass for models that are mostly frozen, which quantized weights are, too.
        if any(layer.stored for layer in adapted.layers):
            assert "recompute_cheap" in session.explain(feeds)
    return losses, {n: np.frombuffer(t.data, np.float32).reshape(t.shape) for n, t in found.items()}


@pytest.mark.parametrize("kind", ["nbits", "int8", "float16"])
@pytest.mark.parametrize("targets", [None, ["fc", "m.q_proj"]], ids=["by default", "by name"])
def test_an_adapter_trains_as_beside_the_dequantized_weight(kind: str, targets: list[str] | None) -> None:
    graph = read_model(quantized(kind))
    adapted = inject(graph, targets, rank=2, seed=3)
    modules = ["m.q_proj", "m.v_proj"] if targets is None else ["m.q_proj", "m.fc"]
    assert [layer.module for layer in adapted.layers] == modules and set(modules) < set(NAMES)
    twin = inject(dequantized(graph), modules, rank=2, config=None, seed=3)
    start = adapted.adapter()
    (losses, learned), (expected, theirs) = steps(adapted, start), steps(twin, twin.adapter())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert losses[-1] < losses[0]
    assert learned.keys() == theirs.keys()
    for name, value in learned.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)
    # What was learned goes on beside the dequantized weights.
    config = Adapter(start.tensors, start.config).config
    assert inject(dequantized(graph), config=config).config.targets == adapted.config.targets
