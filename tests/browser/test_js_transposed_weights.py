"""A page gives and takes weights that the exporter stored transposed as PyTorch's module has them."""

import io
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.python.test_safetensors_beside import file_of
from tests.python.test_transposed_weights import NEAR, RECORDED, TRUTH, state_dict

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.artifacts.evidence import FOLDED, SIGNATURE

from .js_session import JsPage

OPEN = """
const config = { loss: "MSELoss", optimizer: "SGD", ...more };
const options = { cache: true, threads: 1 };
const x = new Tensor("float32", values, [2, 3, 64]);
const fetched = async (url) => new Uint8Array(await (await fetch(url)).arrayBuffer());
const open = (model) => TrainingSession.createFromModel(model, config, options);
const numbers = async (session, name) => [...(await session.getParameter(name)).data];
"""


def given(either: JsPage, more: dict[str, Any] | None = None) -> dict[str, Any]:
    model = either.site.add("/t/model.onnx", (RECORDED / "model.onnx").read_bytes())
    other = either.site.add("/t/other.safetensors", file_of(state_dict()))
    return {"model": model, "other": other, "values": TRUTH["x"].ravel().tolist(), "more": more or {}}


def native(dtype: str = "model") -> trainweb.CheckpointState:
    built = build_artifacts(RECORDED / f"{dtype}.onnx", loss="MSELoss", optimizer="SGD")
    return trainweb.CheckpointState.load_checkpoint(built.checkpoint)


def shaped(found: Any, truth: np.ndarray) -> np.ndarray:
    return np.array(found, np.float32).reshape(truth.shape)


def test_weights_of_pytorch_go_in_and_out(either: JsPage) -> None:
    first, cached, dims, other, file, again = either.run(
        f"""{OPEN}
        const first = await open(model);
        const before = [await numbers(first, "0.weight"), await numbers(first, "2.weight")];
        await first.release();
        const session = await open(await fetched(model));
        const cached = [await numbers(session, "0.weight"), await numbers(session, "2.weight")];
        const {{ dims }} = await session.getParameter("2.weight");
        await session.loadWeights(await fetched(other));
        const {{ y }} = await session.predict({{ x }});
        const file = await session.exportWeights("npz");
        const exported = await session.exportModelForInferencing(["y"]);
        await session.release();
        const other_ = await InferenceSession.create(exported);
        const again = (await other_.run({{ x }})).y;
        await other_.release();
        return [before, cached, dims, [...y.data], [...file], [...again.data]];""",
        **given(either),
    )
    state = native()
    for found in (first, cached):
        for name, values in zip(("0.weight", "2.weight"), found, strict=True):
            np.testing.assert_array_equal(np.float32(values), state.parameters[name].data.ravel())
    assert dims == [20, 64]
    for result in (other, again):
        np.testing.assert_allclose(shaped(result, TRUTH["y_other"]), TRUTH["y_other"], **NEAR)
    with np.load(io.BytesIO(bytes(file))) as arrays:
        assert {name: arrays[name].tobytes() for name in arrays} == {n: a.tobytes() for n, a in state_dict().items()}


@pytest.mark.parametrize("more", [{}, {"lora": {"rank": 2, "targets": ["2"]}}], ids=["trained", "frozen"])
@pytest.mark.parametrize("form", ["bytes", "blob"])
def test_artifacts_have_them_as_the_module(either: JsPage, more: dict[str, Any], form: str) -> None:
    """Their data still lies in the model's file, where the page has it transposed."""
    found, lowest = either.run(
        f"""{OPEN}
        const session = await open(model);
        const {{ checkpoint }} = await session.artifacts({{ as: form }});
        const state = await CheckpointState.load(checkpoint);
        const found = [...(await state.getParameter("0.weight")).data];
        const merged = more.lora ? await session.mergeAdapter() : await session.exportModelForInferencing(["y"]);
        await session.release();
        const other_ = await InferenceSession.create(merged);
        const {{ y }} = await other_.run({{ x }});
        await other_.release();
        return [found, [...y.data]];""",
        **given(either, more),
        form=form,
    )
    np.testing.assert_array_equal(np.float32(found), native().parameters["0.weight"].data.ravel())
    np.testing.assert_allclose(shaped(lowest, TRUTH["y"]), TRUTH["y"], **NEAR)


def test_large_weights_are_transposed_by_strips(either: JsPage) -> None:
    """The page reads 4 MiB of a file at once, and compares a sample: a wrong strip would be of other rows."""
    matrix = np.arange(1100 * 1000, dtype=np.float32).reshape(1100, 1000)
    info = helper.make_tensor_value_info("val_0", TensorProto.FLOAT, matrix.shape)
    info.metadata_props.add(key=FOLDED, value="['0.weight']")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "val_0"], ["y"], "node_MatMul")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1100])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1000])],
        [numpy_helper.from_array(matrix, "val_0")],
        value_info=[info],
    )
    graph.metadata_props.add(key=SIGNATURE, value="\np_w: PARAMETER target='0.weight'\n")
    proto = helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    either.site.add("/t/large.onnx", proto.SerializeToString())
    dims, found = either.run(
        f"""{OPEN} const session = await open("/t/large.onnx");
        const {{ dims, data }} = await session.getParameter("0.weight");
        await session.release();
        return [dims, [...data.filter((_, k) => k % 97 === 0)]];""",
        **given(either),
    )
    assert dims == [1000, 1100]
    np.testing.assert_array_equal(np.float32(found), matrix.T.ravel()[::97])


def test_weights_of_16_bits(either: JsPage) -> None:
    either.site.add("/t/half.onnx", (RECORDED / "half.onnx").read_bytes())
    found = either.run(
        f"""{OPEN} const session = await open("/t/half.onnx");
        const found = await numbers(session, "0.weight");
        await session.release();
        return found;""",
        **given(either),
    )
    np.testing.assert_array_equal(np.float32(found), native("half").parameters["0.weight"].data.ravel())
