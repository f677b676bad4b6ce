"""The evidence of names and uses in a file of torch's TorchScript exporter, which notes nothing."""

import time
import warnings
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.zoo.recording import load

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.artifacts.evidence import lost_parameters
from trainweb.model.reader import read_model


def convolution(weight: str, bias: str, matrix: str, *, producer: str = "pytorch") -> bytes:
    """loss = the mean of a convolution, rectified, flattened and multiplied by a matrix, under names given."""
    nodes = [
        helper.make_node("Conv", ["x", weight, bias], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", matrix], ["m"]),
        helper.make_node("ReduceMean", ["m"], ["loss"], keepdims=0),
    ]
    rng = np.random.default_rng(3)
    shapes = {weight: (2, 1, 3, 3), bias: (2,), matrix: (8, 3)}
    model = make_model(
        nodes,
        {"x": [2, 1, 4, 4]},
        {"loss": []},
        {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()},
        producer=producer,
    )
    return model.SerializeToString()


@pytest.mark.parametrize("names", [("onnx::Conv_15", "onnx::Conv_16"), ("61", "62")], ids=["named", "numbered"])
def test_a_folded_convolution_is_trained_with_a_warning(names: tuple[str, str]) -> None:
    """In evaluation mode the exporter folds batch normalization: what is trained is not a parameter of the module."""
    with pytest.warns(UserWarning, match=r"folded into it.*TrainingMode\.TRAINING"):
        decisions = {d.name: d for d in build_artifacts(convolution(*names, "onnx::MatMul_20")).decisions}
    assert all(decisions[name].trained and decisions[name].doubtful for name in names)
    assert decisions["onnx::MatMul_20"].trained, "a linear layer's weight, transposed"
    assert not decisions["onnx::MatMul_20"].doubtful
    report = trainweb.check(convolution(*names, "onnx::MatMul_20"))
    assert {*names, "onnx::MatMul_20"} <= {d.name for d in report.trained}
    assert {*names} == {d.name for d in report.doubtful}
    assert str(report).count(names[0]) == 1 and names[0] in {d["name"] for d in report.as_data()["trained"]}


def test_other_convolutions_are_trained_without_a_word() -> None:
    files = convolution("conv.weight", "conv.bias", "onnx::MatMul_20"), convolution("W1", "B_2", "M", producer="keras")
    for file in files:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            decisions = build_artifacts(file).decisions
        assert all(d.trained and not d.doubtful for d in decisions)


@pytest.mark.parametrize("how", ["Slice", "Gather"])
@pytest.mark.parametrize("producer", ["pytorch", "other"])
def test_tables_of_which_parts_are_factors_are_left_out(how: str, producer: str) -> None:
    """Rotary positions of sequences shorter than the table, or by fed ids, as older modules look them up."""
    angles = np.outer(np.arange(6), [1.0, 0.1])
    tables = {"rope.cos": np.cos(angles), "rope.sin": np.sin(angles)}
    tensors = {**tables, "head.weight": np.random.default_rng(0).standard_normal((2, 3))}
    constants = [numpy_helper.from_array(t.astype(np.float32), name) for name, t in tensors.items()]
    constants += [numpy_helper.from_array(np.array([n]), name) for n, name in ((0, "nought"), (4, "four"))]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 2])]
    if how == "Gather":
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 4]))
    nodes = []
    for name in ("cos", "sin"):
        given = ["nought", "four", "nought"] if how == "Slice" else ["ids"]
        nodes += [
            helper.make_node(how, [f"rope.{name}", *given], [name]),
            helper.make_node("Mul", ["x", name], [f"x{name}"]),
        ]
    nodes += [helper.make_node("Add", ["xcos", "xsin"], ["h"]), helper.make_node("MatMul", ["h", "head.weight"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 3])]
    proto = make_model(nodes, inputs, outputs, constants, producer=producer)
    decisions = {d.name: d for d in build_artifacts(proto.SerializeToString(), loss="MSELoss").decisions}
    assert [name for name, d in decisions.items() if d.trained] == ["head.weight"]
    assert all("table of cosines and sines" in decisions[name].reason for name in tables)


@pytest.mark.parametrize("exporter", ["script", "dynamo", "plain"])
def test_what_an_exporter_never_tells_is_said(exporter: str) -> None:
    """Of torch's files, TorchScript's lack the notes of others; of other exporters nothing is known."""
    report = trainweb.check(load("mlp").files[exporter])
    assert (report.untold is None) == (exporter != "script")
    assert ("no trace of detach" in str(report)) == (exporter == "script")
    assert trainweb.check(convolution("a.weight", "a.bias", "b.weight", producer="tf2onnx")).untold is None


def clipped(names: tuple[str, str], producer: str) -> bytes:
    """loss = the mean of x w between two bounds."""
    nodes = [
        helper.make_node("MatMul", ["x", "layer.weight"], ["h"]),
        helper.make_node("Clip", ["h", *names], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    weight = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
    bounds = [numpy_helper.from_array(np.float32(b), name) for name, b in zip(names, (0, 6), strict=True)]
    model = make_model(
        nodes,
        {"x": ["n", 4]},
        {"loss": []},
        [numpy_helper.from_array(weight, "layer.weight"), *bounds],
        producer=producer,
    )
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("names", "producer", "trained"),
    [
        (("onnx::Clip_3", "onnx::Clip_4"), "pytorch", False),
        (("low", "high"), "keras", False),
        (("low", "high"), "pytorch", True),
    ],
)
def test_bounds_are_learned_where_torch_names_them(names: tuple[str, str], producer: str, trained: bool) -> None:
    """A scalar attribute of a module is a parameter or a buffer; the others are the 0 and 6 of a rectifier."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if trained else "error")
        decisions = {d.name: d for d in build_artifacts(clipped(names, producer)).decisions}
    assert [decisions[name].trained for name in names] == [trained] * 2
    assert decisions["layer.weight"].trained


# Numbers that nothing learned, and weights that ONNX Runtime's optimizer moved into its own operators.


def products(tensors: dict[str, np.ndarray], op: str = "MatMul", producer: str = "pytorch", moves: int = 0) -> bytes:
    """y = x times each of the tensors, one after the other, turned round `moves` times before."""
    nodes, edge = [], "x"
    for k, name in enumerate(tensors):
        read = name
        for j in range(moves):
            nodes.append(helper.make_node("Transpose", [read], [f"{name}_{j}"], perm=[1, 0]))
            read = f"{name}_{j}"
        domain = "com.microsoft" if op.startswith("Fused") else ""
        nodes.append(helper.make_node(op, [edge, read], [f"y{k}"], domain=domain))
        edge = f"y{k}"
    last = tensors[name].shape[-1]
    return make_model(
        nodes,
        {"x": ["n", next(iter(tensors.values())).shape[0]]},
        {edge: ["n", last]},
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()},
        domains=["com.microsoft"],
        producer=producer,
    ).SerializeToString()


WEIGHT = np.random.default_rng(5).normal(size=(4, 16))
GRIDS = {
    "range": np.arange(16.0)[:, None],
    "support": np.linspace(-10, 10, 16)[:, None],
    "backwards": np.linspace(1, 0, 16)[:, None],
    "coordinates": np.stack(np.meshgrid(np.arange(8) + 0.5, np.arange(2) + 0.5), -1).reshape(16, 2),
}
NO_GRIDS = {
    "random": np.random.default_rng(6).normal(size=(16, 8)),
    "one number": np.ones((16, 8)),
    "signs": np.sign(np.random.default_rng(7).normal(size=(16, 8))),
    "quantized": 0.03 * np.random.default_rng(8).integers(-8, 8, (16, 64)),
    "few": np.arange(7.0)[:, None] * np.ones((1, 1)),
}


@pytest.mark.parametrize("producer", ["pytorch", "other"])
@pytest.mark.parametrize("kind", GRIDS)
def test_a_grid_is_left_out_whatever_it_is_for(kind: str, producer: str) -> None:
    """As the sum over 0 to 15 that YOLOv8 writes as a convolution, whose weight has the name of a parameter."""
    file = products({"head.weight": WEIGHT, "dfl.conv.weight": GRIDS[kind]}, producer=producer)
    with pytest.warns(UserWarning, match=r"'dfl\.conv\.weight' is left out .*evenly spaced"):
        decisions = {d.name: d for d in build_artifacts(file, loss="MSELoss").decisions}
    assert not decisions["dfl.conv.weight"].trained and decisions["dfl.conv.weight"].doubtful
    assert decisions["head.weight"].trained and not decisions["head.weight"].doubtful


@pytest.mark.parametrize("kind", NO_GRIDS)
def test_weights_are_no_grids(kind: str) -> None:
    weight = NO_GRIDS[kind]
    file = products({"head.weight": WEIGHT[:, : len(weight)], "last.weight": weight})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(d.trained for d in build_artifacts(file, loss="MSELoss").decisions)


def test_a_large_weight_is_not_read() -> None:
    """More numbers than grids have are taken for what name and use say."""
    file = products({"head.weight": WEIGHT, "last.weight": np.arange(16.0 * 512).reshape(16, 512)})
    assert all(d.trained and not d.doubtful for d in build_artifacts(file, loss="MSELoss").decisions)


@pytest.mark.parametrize("op", ["MatMul", "FusedMatMul"])
def test_products_of_onnx_runtimes_optimizer_have_weights(op: str) -> None:
    names = "onnx::MatMul_12", "/fc/Constant_output_0"
    file = products(dict(zip(names, (WEIGHT, WEIGHT.T), strict=True)), op)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decisions = build_artifacts(file, loss="MSELoss").decisions
    assert [d.name for d in decisions if d.trained] == list(names)
    assert not any("do_constant_folding" in str(w.message) for w in caught) or op == "MatMul"


def test_convolutions_of_onnx_runtimes_optimizer_have_weights() -> None:
    proto = onnx.load_from_string(convolution("61", "62", "fc.weight"))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "FusedConv", "com.microsoft"
    proto.graph.node[0].attribute.append(helper.make_attribute("activation", "Relu"))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.warns(UserWarning, match="export without ONNX Runtime's optimizer") as caught:
        decisions = {d.name: d for d in build_artifacts(proto.SerializeToString()).decisions}
    assert decisions["61"].trained and decisions["62"].trained
    assert not any("TrainingMode" in str(w.message) for w in caught)


def test_a_use_is_followed_through_any_number_of_moves() -> None:
    file = products({"onnx::MatMul_3": WEIGHT, "onnx::MatMul_5": WEIGHT.T}, moves=20)
    decisions = build_artifacts(file, loss="MSELoss").decisions
    assert [d.trained for d in decisions] == [True, True]
    assert all("weight of a product" in d.reason for d in decisions)


@pytest.mark.parametrize("scales", [0, 12])
def test_a_mask_is_found_behind_any_number_of_scales(scales: int) -> None:
    """A table that is added to scores, which are scaled before and after, is a position bias."""
    nodes = [helper.make_node("MatMul", ["x", "q.weight"], ["q"]), helper.make_node("Transpose", ["q"], ["k"])]
    nodes += [helper.make_node("MatMul", ["q", "k"], ["s0"])]
    nodes += [helper.make_node("Mul", [f"s{i}", "factor"], [f"s{i + 1}"]) for i in range(scales)]
    nodes += [helper.make_node("Add", [f"s{scales}", "table"], ["t0"])]
    nodes += [helper.make_node("Mul", [f"t{i}", "factor"], [f"t{i + 1}"]) for i in range(scales)]
    nodes += [helper.make_node("Softmax", [f"t{scales}"], ["y"])]
    tensors = {"q.weight": WEIGHT[:, :4], "table": WEIGHT[:, 4:8], "factor": np.float64(0.5)}
    proto = make_model(
        nodes,
        {"x": [4, 4]},
        {"y": [4, 4]},
        {name: np.asarray(t, np.float32) for name, t in tensors.items()},
        producer="pytorch",
    )
    with pytest.warns(UserWarning, match="'table' is left out"):
        decisions = {d.name: d for d in build_artifacts(proto.SerializeToString(), loss="MSELoss").decisions}
    assert not decisions["table"].trained and "attention scores" in decisions["table"].reason


def test_a_mask_as_large_as_gpt2s_is_found() -> None:
    side = 1024
    mask = np.triu(np.full((side, side), -np.inf, np.float32), 1)
    nodes = [
        helper.make_node("MatMul", ["x", "q.weight"], ["q"]),
        helper.make_node("Add", ["q", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    proto = make_model(
        nodes,
        {"x": [side, 4]},
        {"y": [side, side]},
        {"q.weight": np.ones((4, side), np.float32), "mask": mask},
        producer="other",
    )
    decisions = {d.name: d for d in build_artifacts(proto.SerializeToString(), loss="MSELoss").decisions}
    assert not decisions["mask"].trained and "holds -inf" in decisions["mask"].reason


def scripted(name: str, shape: tuple[int, ...], nodes: list[onnx.NodeProto], factor: str, prefix: str = "/") -> bytes:
    """The mean of (x a) * `factor`, where `nodes` make the factor of the tensor `name`, as torch names nodes."""
    nodes = [
        helper.make_node("MatMul", ["x", "a.weight"], ["h"], f"{prefix}MatMul"),
        *nodes,
        helper.make_node("Mul", ["h", factor], ["m"], f"{prefix}Mul"),
        helper.make_node("MatMul", ["m", "b.weight"], ["o"], f"{prefix}MatMul_1"),
        helper.make_node("ReduceMean", ["o"], ["loss"], f"{prefix}ReduceMean", keepdims=0),
    ]
    rng = np.random.default_rng(3)
    tensors = {"a.weight": rng.normal(size=(4, 3)), "b.weight": rng.normal(size=(3, 2)), name: rng.normal(size=shape)}
    constants = [numpy_helper.from_array(np.asarray(t, np.float32), key) for key, t in tensors.items()]
    constants += [numpy_helper.from_array(np.array(n), key) for key, n in (("nought", 0), ("width", [3]))]
    return make_model(nodes, {"x": ["n", 4]}, {"loss": []}, constants, producer="pytorch").SerializeToString()


OWN = ["gain", "gain_1", "alpha_1", "pos_embed_0", "Add_12", "val_1", "mul", "view_2", "const", "blocks.0.constant_1"]


@pytest.mark.parametrize("shape", [(3,), ()], ids=["vector", "scalar"])
@pytest.mark.parametrize("name", OWN)
def test_attributes_with_names_as_other_exporters_make_are_trained(name: str, shape: tuple[int, ...]) -> None:
    with pytest.warns(UserWarning, match=f"'{name}' is trained"):
        decisions = {d.name: d for d in build_artifacts(scripted(name, shape, [], name)).decisions}
    assert decisions[name].trained and decisions[name].doubtful


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("onnx::Mul_12", "/"), ("12", "Mul_"), ("/Constant_output_0", "/"), ("val_1", "node_"), ("mul_2", "node_")],
)
def test_names_that_the_exporter_of_the_file_makes_are_constants(name: str, prefix: str) -> None:
    decisions = {d.name: d for d in build_artifacts(scripted(name, (), [], name, prefix)).decisions}
    assert not decisions[name].trained and not decisions[name].doubtful


@pytest.mark.parametrize("way", ["Shape", "Size"])
@pytest.mark.parametrize("is_state", [False, True], ids=["token", "state"])
def test_a_tensor_for_each_row_of_the_input_does_not_meet_the_input(way: str, is_state: bool) -> None:
    """A size reads no value: `token.expand(x.shape[0], -1)`, and `torch.zeros(x.shape[0], 3) + state`."""
    count = [
        helper.make_node("Shape", ["x"], ["sizes"], "/Shape"),
        helper.make_node("Gather", ["sizes", "nought"], ["count"], "/Gather"),
    ]
    if way == "Size":
        count = [
            helper.make_node("ReduceMax", ["x"], ["most"], "/ReduceMax", axes=[1], keepdims=0),
            helper.make_node("Size", ["most"], ["count"], "/Size"),
        ]
    nodes = [
        *count,
        helper.make_node("Constant", [], ["one"], "/Constant", value_ints=[1]),
        helper.make_node("Reshape", ["count", "one"], ["rows"], "/Reshape"),
        helper.make_node("Concat", ["rows", "width"], ["dims"], "/Concat", axis=0),
    ]
    if is_state:
        nodes.append(helper.make_node("ConstantOfShape", ["dims"], ["zeros"], "/ConstantOfShape"))
    reads = ("Add", ["zeros", "token"]) if is_state else ("Expand", ["token", "dims"])
    nodes.append(helper.make_node(*reads, ["spread"], f"/{reads[0]}"))
    with pytest.warns(UserWarning, match="'token' is trained"):
        decisions = {d.name: d for d in build_artifacts(scripted("token", (1, 3), nodes, "spread")).decisions}
    assert decisions["token"].trained


def test_a_tensor_that_meets_the_input_itself_is_left_out() -> None:
    nodes = [helper.make_node("ReduceMax", ["x"], ["most"], "/ReduceMax", axes=[1], keepdims=1)]
    nodes.append(helper.make_node("Sub", ["most", "mean"], ["centered"], "/Sub"))
    with pytest.warns(UserWarning, match="'mean' is left out.*applied to an input"):
        build_artifacts(scripted("mean", (1, 3), nodes, "centered"))


def test_the_time_of_a_decision_follows_the_number_of_nodes() -> None:
    """An unrolled loop multiplies by one vector in each iteration; nothing else is learned."""
    edges = ["x", *(f"h{k}" for k in range(1000))]
    model = make_model(
        [
            *(helper.make_node("Mul", [edge, "w"], [after]) for edge, after in pairwise(edges)),
            helper.make_node("ReduceMean", [edges[-1]], ["loss"], keepdims=0),
        ],
        {"x": [2, 8]},
        {"loss": []},
        {"w": np.full(8, 0.999, np.float32)},
    ).SerializeToString()
    start = time.process_time()
    decisions = {d.name: d for d in build_artifacts(model).decisions}
    assert time.process_time() - start < 5
    assert decisions["w"].trained


@pytest.mark.parametrize("model", ["bart", "bert_masked_words", "gpt2", "opt"])
def test_names_of_tied_parameters_are_no_doubt(model: str) -> None:
    """Other names of a shared table and of a head's bias lack a tensor of their own."""
    file = load(model).files["plain"]
    assert not trainweb.check(file).doubtful
    graph = read_model(file)
    graph.nodes = [node for node in graph.nodes if node.op_type != "Constant"]  # as after the optimizer
    assert not lost_parameters(graph)


def test_parameters_that_the_caller_freezes_are_no_doubt() -> None:
    """The exporter merged norms into convolutions: who freezes them does not miss them."""
    file = load("mobilenet_v3").files["dynamo"]
    assert {d.name.partition(".")[0] for d in trainweb.check(file).doubtful} == {"features"}
    loss = trainweb.check(file, loss="CrossEntropyLoss")
    assert set(trainweb.check(file).trainable) == set(loss.trainable)  # zeros that the exporter dropped are back
    assert not trainweb.check(file, frozen_params=r"(?!classifier\.).*").doubtful
