"""Models that torch's two exporters wrote: shapes of all tensors against ONNX Runtime's, and gradients at other sizes.

tests/exported/make.py made them, and says what each is.
"""

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from tests.ops.op_runner import run

from trainweb.autodiff.gradient import build_gradients
from trainweb.ir.dims import static
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.ops.frame.shapes import ShapeInference

FOLDER = Path(__file__).parent.parent / "exported"
RECORD: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "shapes.json").read_text())
SMALL = 32
"""Float initializers with more elements are weights, which the files have zeros for."""


def model(name: str) -> Graph:
    return read_model(FOLDER / f"{name}.onnx")


def sizes_of(graph: Graph, inputs: dict[str, list[int]]) -> dict[str, int]:
    dims = [(v, k, d) for v in graph.inputs if isinstance(v, Value) for k, d in enumerate(v.shape or ())]
    return {d: inputs[v.name][k] for v, k, d in dims if isinstance(d, str)}


@pytest.mark.parametrize("name", RECORD)
def test_every_shape_is_the_one_onnxruntime_computes(name: str) -> None:
    graph = model(name)
    inference = ShapeInference(graph)
    assert RECORD[name]
    for recorded in RECORD[name]:
        sizes = sizes_of(graph, recorded["inputs"])
        for tensor, shape in recorded["shapes"].items():
            found = inference[tensor].shape
            assert [inference.table.evaluated(dim, sizes) for dim in found] == shape, (tensor, found)


@pytest.mark.parametrize("name", RECORD)
def test_no_less_is_known_than_onnx_infers(name: str) -> None:
    proto = onnx.shape_inference.infer_shapes(onnx.load(FOLDER / f"{name}.onnx"), strict_mode=True, data_prop=True)
    inference = ShapeInference(model(name))
    assert len(proto.graph.value_info) > 1
    for value in proto.graph.value_info:
        found = inference[value.name].shape
        theirs = value.type.tensor_type
        for mine, dim in zip(
            found, theirs.shape.dim if theirs.HasField("shape") else (), strict=theirs.HasField("shape")
        ):
            if dim.HasField("dim_value"):
                assert mine == dim.dim_value, value.name
        assert static(*found) or any(isinstance(d, str) for d in inference.value(value.name).shape or ())


@pytest.mark.parametrize(
    ("name", "refined"),
    [
        ("positions.script", ["n = 7, as Reshape node '/layer/self_attn/Reshape_4' needs 56*batch = 8*batch*n"]),
        ("unet.script", ["h is a multiple of 4, as Concat node", "w is a multiple of 4, as Concat node"]),
        ("gpt.script", []),
        ("windows.script", ["h is a multiple of 4, as Reshape node", "w is a multiple of 4, as Reshape node"]),
    ],
)
def test_what_a_model_demands_of_its_sizes(name: str, refined: list[str]) -> None:
    found = ShapeInference(model(name)).table.refinements()
    assert len(found) == len(refined)
    for text, start in zip(found, refined, strict=True):
        assert text.startswith(start)


def trained(name: str) -> tuple[Graph, list[str]]:
    """The model with weights, and `loss`: the sum of the squares of its outputs."""
    graph = model(name)
    rng = np.random.default_rng(crc32(name.encode()))
    weights = []
    for tensor in graph.initializers.values():
        if tensor.dtype == "float32" and tensor.size > SMALL:
            data = 0.3 * rng.standard_normal(tensor.shape).astype(np.float32)
            graph.initializers[tensor.name] = Tensor(tensor.name, "float32", tensor.shape, data.tobytes())
        if tensor.dtype == "float32" and len(tensor.shape) > 1 and tensor.size > 1:
            weights.append(tensor.name)
    terms = []
    for k, value in enumerate(graph.outputs):
        graph.nodes.append(Node("Mul", [value.name, value.name], [f"square_{k}"], {}, "", f"square_{k}"))
        graph.nodes.append(Node("ReduceMean", [f"square_{k}"], [f"mean_{k}"], {"keepdims": 0}, "", f"mean_{k}"))
        terms.append(f"mean_{k}")
    graph.nodes.append(Node("Sum", terms, ["loss"], {}, "", "loss"))
    graph.outputs = [Value("loss", "float32", ())]
    assert weights
    return graph, weights


@pytest.mark.parametrize("name", RECORD)
def test_gradients_do_not_depend_on_which_sizes_are_known(name: str) -> None:
    graph, weights = trained(name)
    extended = build_gradients(graph, "loss", weights)
    rng = np.random.default_rng(3)
    for recorded in RECORD[name]:
        fixed = graph.copy()
        fixed.inputs = [Value(v.name, v.dtype, tuple(recorded["inputs"][v.name])) for v in graph.inputs]  # type: ignore[union-attr]
        feeds = {
            v.name: rng.integers(0, 20, v.shape) if v.dtype == "int64" else rng.standard_normal(v.shape).astype("f4")  # type: ignore[arg-type]
            for v in fixed.inputs
            if isinstance(v, Value)
        }
        names = [f"{w}_grad" for w in weights]
        found = run(extended, feeds, names)
        expected = run(build_gradients(fixed, "loss", weights), feeds, names)
        for w in names:
            scale = float(np.abs(expected[w]).max(initial=1e-3))
            assert scale > 1e-3
            np.testing.assert_allclose(found[w], expected[w], rtol=1e-5, atol=1e-6 * scale)
