"""Weights that torch's exporters computed, merged or masked: trained as in the module, or named in a warning."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from tests.conformance.models import make_model
from tests.zoo.recording import load

import trainweb
from trainweb.artifacts import Artifacts, OptimType, build_artifacts
from trainweb.artifacts.evidence import FOLDED, KIND, SIGNATURE, Decision
from trainweb.model.graph import FX_NODE
from trainweb.session.training_session import TrainingSession
from trainweb.training.state import CheckpointState

RNG = np.random.default_rng(5)
SQUARE = RNG.normal(size=(4, 4)).astype(np.float32)
X = RNG.normal(size=(3, 4)).astype(np.float32)


def model(nodes: list[NodeProto], tensors: dict[str, np.ndarray], out: str = "y") -> ModelProto:
    """The mean of the squares of `out`, as torch's exporters write what comes before."""
    nodes = [
        *nodes,
        helper.make_node("Mul", [out, out], ["squares"], name="/Mul_9"),
        helper.make_node("ReduceMean", ["squares"], ["loss"], name="/ReduceMean", keepdims=0),
    ]
    return make_model(nodes, {"x": [3, 4]}, {"loss": []}, tensors, producer="pytorch")


def decided(proto: ModelProto) -> tuple[dict[str, Decision], list[str]]:
    """Decisions by name, and what warnings say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        artifacts = build_artifacts(proto.SerializeToString(), optimizer=OptimType.SGD)
    return {d.name: d for d in artifacts.decisions}, [str(w.message) for w in caught]


def folded(name: str, sources: str = "['w']") -> ModelProto:
    """x @ f(w), where the dynamo exporter's optimizer computed f(w) and called it `name`."""
    proto = model([helper.make_node("MatMul", ["x", name], ["y"], name="node_matmul")], {name: SQUARE})
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])
    info.metadata_props.add(key=FOLDED, value=sources)
    proto.graph.value_info.append(info)
    proto.graph.metadata_props.add(key=SIGNATURE, value="\n# inputs\np_w: PARAMETER target='w'\nx: USER_INPUT\n")
    return proto


@pytest.mark.parametrize("name", ["val_0", "val_17", "t", "t_2", "permute", "transpose_1", "numpy_t"])
def test_a_matrix_that_was_turned_round_is_the_parameter(name: str) -> None:
    decisions, said = decided(folded(name))
    assert decisions["w"].trained and not decisions["w"].doubtful
    assert not said and name not in decisions


@pytest.mark.parametrize("name", ["exp", "softmax", "tanh_1", "abs_1", "neg", "sigmoid", "softplus", "view", "flip"])
def test_a_function_of_a_matrix_is_not_the_parameter(name: str) -> None:
    """One source and two dims are not enough: what was trained as `w` was exp(w), without a word."""
    decisions, said = decided(folded(name))
    assert decisions[name].doubtful and "optimize=False" in decisions[name].reason
    assert decisions["w"].doubtful and not decisions["w"].trained
    assert len(said) == 1 and "optimize=False" in said[0]


def test_a_bias_into_which_batch_normalization_was_folded_is_trained() -> None:
    """The shift of the norm learned; a bias beside a weight that is no parameter is none."""
    gemms = [
        helper.make_node("Gemm", [x, weight, f"{weight}_bias"], [y], name="node_linear", transB=1)
        for x, weight, y in (("x", "fc.weight", "h"), ("h", "table", "y"))
    ]
    biases = dict.fromkeys(("fc.weight_bias", "table_bias"), SQUARE[0])
    proto = model(gemms, {"fc.weight": SQUARE, "table": SQUARE, **biases})
    listed = "p_w: PARAMETER target='fc.weight'\np_s: PARAMETER target='norm.weight'"
    proto.graph.metadata_props.add(key=SIGNATURE, value=f"\n# inputs\n{listed}\nx: USER_INPUT\n")
    decisions, (said,) = decided(proto)
    assert {name for name, decision in decisions.items() if decision.trained} == {"fc.weight", "fc.weight_bias"}
    assert "'fc.weight_bias' is trained (a bias of the exporter" in said and "'norm.weight' is left out" in said


def test_a_warning_says_a_reason_once() -> None:
    """Folded batch normalization lists a hundred parameters of a MobileNet."""
    proto = folded("exp", "['w']")
    proto.graph.metadata_props[0].value += "".join(f"p_{k}: PARAMETER target='norm{k}.bias'\n" for k in range(9))
    _, (said,) = decided(proto)
    assert said.count("not in the file") == 1
    assert "'norm0.bias', 'norm1.bias', 'norm2.bias', 'norm3.bias' and 6 more are left out (" in said


def test_what_the_exporter_recorded_needs_no_name() -> None:
    proto = folded("exp", "[]")
    proto.graph.value_info[0].metadata_props.add(key=KIND, value="InputKind.PARAMETER")
    decisions, said = decided(proto)
    assert decisions["exp"].trained and not decisions["exp"].doubtful
    assert all("'exp'" not in text for text in said)


MASKED = SQUARE * (np.arange(16).reshape(4, 4) % 3 != 0)
NAME = "onnx::MatMul_9"


def product(node: str, *, bias: str = "", weight: np.ndarray = SQUARE) -> ModelProto:
    """A product with a weight that the TorchScript exporter folded, in the module that `node` says."""
    nodes = [helper.make_node("MatMul", ["x", NAME], ["p" if bias else "y"], name=node)]
    if bias:
        nodes.append(helper.make_node("Add", [bias, "p"], ["y"], name=node.replace("MatMul", "Add")))
    others = {bias: np.ones(4, np.float32) * 0.1} if bias else {}
    return model([*nodes], {NAME: weight.astype(np.float32), **others})


@pytest.mark.parametrize(
    "proto",
    [
        product("/layer/MatMul"),
        product("/block/layer/MatMul", bias="block.layer.bias"),
        product("/MatMul", bias="a.bias"),
    ],
    ids=["module of its own", "bias", "functional with a bias"],
)
def test_weights_of_linear_layers_are_trained_without_a_word(proto: ModelProto) -> None:
    decisions, said = decided(proto)
    assert decisions[NAME].trained and not decisions[NAME].doubtful and not said


@pytest.mark.parametrize(
    "proto",
    [
        product("/MatMul"),
        product("/layer/MatMul", weight=MASKED),
        product("/layer/MatMul", bias="layer.bias", weight=SQUARE + SQUARE.T),
    ],
    ids=["among other nodes", "masked", "symmetric"],
)
def test_folded_products_of_other_kinds_are_named(proto: ModelProto) -> None:
    decisions, said = decided(proto)
    assert decisions[NAME].trained and decisions[NAME].doubtful
    assert len(said) == 1 and "do_constant_folding=False" in said[0]


def test_a_gemm_weight_without_a_name_was_computed() -> None:
    node = helper.make_node("Gemm", ["x", "onnx::Gemm_5", "fc.bias"], ["y"], name="/fc/Gemm", transB=1)
    decisions, said = decided(model([node], {"onnx::Gemm_5": SQUARE, "fc.bias": SQUARE[0]}))
    assert decisions["onnx::Gemm_5"].doubtful and "do_constant_folding=False" in said[0]
    assert decisions["fc.bias"].trained and not decisions["fc.bias"].doubtful


@pytest.mark.parametrize(("values", "trained"), [([0, 1, 1, 0], False), ([1, 1, 1, 1], True), ([0, 1, 2, 0], True)])
def test_a_factor_of_zeros_and_ones_is_a_mask(values: list[float], trained: bool) -> None:
    nodes = [
        helper.make_node("Mul", ["fc.weight", "fc.mask"], ["w"], name="/fc/Mul"),
        helper.make_node("Gemm", ["x", "w"], ["y"], name="/fc/Gemm"),
    ]
    mask = np.array(values, np.float32)
    decisions, said = decided(model(nodes, {"fc.weight": SQUARE, "fc.mask": mask}))
    assert decisions["fc.mask"].trained == trained
    assert decisions["fc.mask"].doubtful and "fc.mask" in said[0]
    assert decisions["fc.weight"].trained


def scaled_twice(a: np.ndarray, second: str = "b.weight", name: str = "Identity_0") -> ModelProto:
    """tanh(x * a) * b, where the exporter made one tensor of a and b."""
    nodes = [
        helper.make_node("Identity", ["a.weight"], [second], name=name),
        helper.make_node("Mul", ["x", "a.weight"], ["h"], name="/a/Mul"),
        helper.make_node("Tanh", ["h"], ["t"], name="/Tanh"),
        helper.make_node("Mul", ["t", second], ["y"], name="/b/Mul"),
    ]
    return model(nodes, {"a.weight": a.astype(np.float32)})


def trained(artifacts: Artifacts, rate: float) -> dict[str, np.ndarray]:
    """Parameters after one step of SGD."""
    models = artifacts.training_model, artifacts.eval_model, artifacts.optimizer_model
    with TrainingSession(CheckpointState.load_checkpoint(artifacts.checkpoint), *models) as session:
        session.set_learning_rate(rate)
        session.train_step({"x": X})
        session.optimizer_step()
        return {name: np.array(session.get_parameter(name)) for name in session.parameter_names()}


def test_equal_parameters_that_were_merged_are_trained_apart() -> None:
    """In evaluation mode the exporter merges fresh norms and biases by their values, which ties them."""
    artifacts = build_artifacts(scaled_twice(np.full(4, 0.5)).SerializeToString(), optimizer=OptimType.SGD)
    found = trained(artifacts, 0.3)
    x, a, b = X.astype(np.float64), 0.5, 0.5
    t = np.tanh(x * a)
    dy = 2 * t * b / x.size
    expected = {"a.weight": (dy * b * (1 - t**2) * x).sum(0), "b.weight": (dy * t).sum(0)}
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        assert found[name] == pytest.approx(0.5 - 0.3 * gradient, rel=1e-5)
    assert not any(d.doubtful for d in artifacts.decisions)


def test_merged_parameters_that_the_caller_names_stay_one() -> None:
    proto = scaled_twice(np.full(4, 0.5)).SerializeToString()
    one = build_artifacts(proto, optimizer=OptimType.SGD, requires_grad=["a.weight"])
    assert [d.name for d in one.decisions if d.trained] == ["a.weight"]
    both = build_artifacts(proto, optimizer=OptimType.SGD, requires_grad=["a.weight", "b.weight"])
    assert [d.name for d in both.decisions if d.trained] == ["a.weight", "b.weight"]


def test_equal_parameters_that_are_not_uniform_stay_tied() -> None:
    """Tied embeddings are; layers of a list that were copied are, too, and nothing tells: a warning does."""
    values = np.array([0.1, 0.2, 0.3, 0.4])
    decisions, said = decided(scaled_twice(values))
    assert set(decisions) == {"a.weight"} and not said
    copied = scaled_twice(values, "layers.1.weight")
    copied.graph.initializer[0].name = "layers.0.weight"
    for node in copied.graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = "layers.0.weight" if name == "a.weight" else name
    decisions, said = decided(copied)
    assert decisions["layers.0.weight"].doubtful and "layers.1.weight" in said[0] and "TRAINING" in said[0]
    nodes = [
        helper.make_node("Identity", ["onnx::MatMul_7"], ["onnx::MatMul_8"], name="Identity_0"),
        helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["h"], name="/layers.0/fc/MatMul"),
        helper.make_node("MatMul", ["h", "onnx::MatMul_8"], ["y"], name="/layers.1/fc/MatMul"),
    ]
    decisions, said = decided(model(nodes, {"onnx::MatMul_7": SQUARE}))
    assert decisions["onnx::MatMul_7"].doubtful and "the weight of layers.1/fc, of a module like its own" in said[0]
    nodes[2].name = "/layers.0/fc/MatMul_1"  # a module that is called twice
    assert not decided(model(nodes, {"onnx::MatMul_7": SQUARE}))[1]


def test_an_identity_module_of_a_constant_is_left_alone() -> None:
    decisions, _ = decided(scaled_twice(np.full(4, 0.5), name="/pass/Identity"))
    assert set(decisions) == {"a.weight"}


def test_a_matrix_that_is_read_as_it_is_too_is_one_parameter() -> None:
    """The decoder of an autoencoder reads the encoder's weights the other way round: one gradient, of both."""
    reads = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="in"),
        helper.make_node("MatMul", ["h", "t"], ["y"], name="out"),
    ]
    w = RNG.normal(size=(4, 2)).astype(np.float32)
    proto = model(reads, {"w": w, "t": w.T.copy()})
    for name, key, value in (("w", KIND, "InputKind.PARAMETER"), ("t", FOLDED, "['w']")):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, list(w.shape if name == "w" else w.T.shape))
        info.metadata_props.add(key=key, value=value)
        proto.graph.value_info.append(info)
    proto.graph.metadata_props.add(key=SIGNATURE, value="\n# inputs\np_w: PARAMETER target='w'\nx: USER_INPUT\n")
    decisions, said = decided(proto)
    assert list(decisions) == ["w"] and decisions["w"].trained and not said
    built = build_artifacts(proto.SerializeToString(), optimizer=OptimType.SGD)
    models = built.training_model, built.eval_model, built.optimizer_model
    with TrainingSession(CheckpointState.load_checkpoint(built.checkpoint), *models) as session:
        session.set_learning_rate(1.0)
        session.train_step({"x": X})
        session.optimizer_step()
        moved = w - session.get_parameter("w")
    x, v = X.astype(np.float64), w.astype(np.float64)
    dy = 2 * (x @ v @ v.T) / x.size
    np.testing.assert_allclose(moved, x.T @ (dy @ v) + dy.T @ (x @ v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "batch norm"])
def test_what_lies_beside_statistics_that_no_norm_reads_is_frozen(frozen: bool) -> None:
    """FrozenBatchNorm2d of DETR and of torchvision's detectors: its weight and bias are buffers."""
    names = ["n.weight", "n.bias", "n.running_mean", "n.running_var"]
    arithmetic = [
        helper.make_node("Sqrt", ["n.running_var"], ["deviation"], name="/n/Sqrt"),
        helper.make_node("Div", ["n.weight", "deviation"], ["scale"], name="/n/Div"),
        helper.make_node("Mul", ["n.running_mean", "scale"], ["moved"], name="/n/Mul"),
        helper.make_node("Sub", ["n.bias", "moved"], ["shift"], name="/n/Sub"),
        helper.make_node("Mul", ["x", "scale"], ["scaled"], name="/n/Mul_1"),
        helper.make_node("Add", ["scaled", "shift"], ["h"], name="/n/Add"),
    ]
    norm = helper.make_node("BatchNormalization", ["x", *names], ["h"], name="/n/BatchNormalization")
    product = helper.make_node("MatMul", ["h", "fc.weight"], ["y"], name="/fc/MatMul")
    tensors = {name: RNG.uniform(0.5, 1.5, 4).astype(np.float32) for name in names}
    proto = model([*(arithmetic if frozen else [norm]), product], {**tensors, "fc.weight": SQUARE})
    decisions, said = decided(proto)
    trained = {name for name, decision in decisions.items() if decision.trained}
    assert trained == ({"fc.weight"} if frozen else {"fc.weight", "n.weight", "n.bias"})
    assert {name for name, decision in decisions.items() if decision.doubtful} == (set(names[:2]) if frozen else set())
    assert any("'n.weight', 'n.bias' are left out" in text for text in said) == frozen


@pytest.mark.parametrize(
    ("scopes", "parameter", "doubtful"),
    [
        ("['', 'linear']", "backbone.fc.weight", True),
        ("['', 'backbone', 'linear']", "backbone.fc.weight", False),
        ("['', 'backbone', 'backbone.fc', 'linear']", "backbone.fc.weight", False),
        ("['', 'head', 'linear']", "backbone.fc.weight", False),
        ("['', 'linear']", "fc.weight", False),
        ("['', 'tables', 'linear']", "tables.items.0.weight", False),
    ],
    ids=["no_grad", "read by the owner", "its own", "tied", "at the top", "item of a list"],
)
def test_a_backbone_under_no_grad_is_warned_of(scopes: str, parameter: str, doubtful: bool) -> None:
    """torch.export makes it a part of the module that calls it: the scopes of its nodes are gone."""
    reads = [
        helper.make_node("MatMul", ["x", parameter], ["h"], "deep"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "top"),
    ]
    reads[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    proto = model(reads, {parameter: SQUARE, "w": SQUARE.T.copy() + 1})
    for name in (parameter, "w"):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])
        info.metadata_props.add(key=KIND, value="InputKind.PARAMETER")
        proto.graph.value_info.append(info)
    decisions, said = decided(proto)
    assert decisions[parameter].trained and decisions[parameter].doubtful == doubtful
    assert any("torch.no_grad()" in text and parameter in text for text in said) == doubtful


def lstm(weights: list[np.ndarray]) -> float:
    """The mean square of one step of an LSTM of one unit, whose state is zeros, with the two biases of PyTorch."""
    w, b_ih, b_hh = weights
    i, o, _, c = ((X.astype(np.float64) @ w.T) + b_ih + b_hh).T
    states = np.tanh(np.tanh(c) / (1 + np.exp(-i))) / (1 + np.exp(-o))
    return float(np.mean(states**2))


def slopes(weights: list[np.ndarray], place: int) -> np.ndarray:
    """Central differences of `lstm` by each number of one tensor."""
    result = np.zeros(weights[place].shape)
    for at in np.ndindex(result.shape):
        moved = [[one.copy() for one in weights] for _ in range(2)]
        moved[0][place][at] += 1e-5
        moved[1][place][at] -= 1e-5
        result[at] = (lstm(moved[0]) - lstm(moved[1])) / 2e-5
    return result


def test_packed_biases_learn_as_the_two_of_the_module_do() -> None:
    weights = [RNG.normal(size=shape).astype(np.float32) for shape in [(4, 4), (4,), (4,)]]
    w, b_ih, b_hh = weights
    packed = {"val_1": w[None], "val_2": np.zeros((1, 4, 1), np.float32), "val_3": np.concatenate([b_ih, b_hh])[None]}
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["steps"], name="node_unsqueeze"),
        helper.make_node("LSTM", ["steps", *packed], ["y"], name="node_lstm", hidden_size=1),
    ]
    proto = model(nodes, {"axis": np.array([0]), **packed})
    sources = ["['w_ih']", "['w_hh']", "['b_ih', 'b_hh']"]
    for (name, array), source in zip(packed.items(), sources, strict=True):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        info.metadata_props.add(key=FOLDED, value=source)
        proto.graph.value_info.append(info)
    listed = "".join(f"p_{name}: PARAMETER target='{name}'\n" for name in ("w_ih", "w_hh", "b_ih", "b_hh"))
    proto.graph.metadata_props.add(key=SIGNATURE, value=f"\n# inputs\n{listed}x: USER_INPUT\n")
    with pytest.warns(UserWarning, match="'val_3' is trained"):
        artifacts = build_artifacts(proto.SerializeToString(), optimizer=OptimType.SGD)
    biases = trained(artifacts, 0.5)["val_3"]
    wanted = [b - 0.5 * slopes([one.astype(np.float64) for one in weights], k) for k, b in ((1, b_ih), (2, b_hh))]
    np.testing.assert_allclose(biases, [np.concatenate(wanted)], rtol=1e-5, atol=1e-6)


def test_a_default_file_with_folded_norms_brings_one_line() -> None:
    """What a colleague sends: the norms are folded, the rest is as it was, and nothing has to be done."""
    files = load("mobilenet_v3").files
    norms = sum(node.op_type == "BatchNormalization" for node in onnx.load_from_string(files["plain"]).graph.node)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_artifacts(files["dynamo"], loss="CrossEntropyLoss", optimizer="SGD")
    (said,) = [str(w.message) for w in caught]
    assert said.startswith(f"Batch normalization 'features.0.1' and {norms - 1} more, in training mode, is folded")
    assert said in trainweb.check(files["dynamo"], loss="CrossEntropyLoss").remarks


def folded_norm(called: str) -> ModelProto:
    """A Gemm whose call names the tensors of `called`; the module has a norm, which the file lacks."""
    gemm = helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["y"], name="node_gemm", transB=1)
    call = f"%norm = call_function[target=torch.ops.aten.batch_norm.default](args = (%h, {called}), kwargs = {{}})"
    gemm.metadata_props.add(key=FX_NODE, value=call)
    proto = model([gemm], {"0.weight": SQUARE, "0.bias": SQUARE[0]})
    kinds = {"0.weight": "PARAMETER", "0.bias": "PARAMETER", "1.weight": "PARAMETER", "1.running_var": "BUFFER"}
    lines = "".join(f"p_{name.replace('.', '_')}: {kind} target='{name}'\n" for name, kind in kinds.items())
    proto.graph.metadata_props.add(key=SIGNATURE, value=f"\n# inputs\n{lines}x: USER_INPUT\n")
    return proto


FOLDED_NORM = folded_norm("%p_1_weight, %p_1_running_var")


def test_a_norm_that_no_call_names_is_not_taken_for_folded() -> None:
    """The file lacks it, and nothing says that the output depends on it: that stays in doubt."""
    decisions, said = decided(FOLDED_NORM)
    assert said == [
        "2 tensors are trained. Batch normalizations (1, such as '1') are folded into the layers before them and "
        "trained with these. For training exactly as in PyTorch export with optimize=False."
    ]
    assert decisions["1.weight"].reason.startswith("folded by the exporter into '0.weight'")
    decisions, said = decided(folded_norm("%p_0_weight"))
    assert "does not settle" in said[0] and "'1.weight' is left out (not in the file" in said[0]
    assert decisions["1.weight"].doubtful


def recurrent(reason: str) -> ModelProto:
    """An RNN whose weight the exporter computed from `reason`."""
    tensors = {"val_1": SQUARE[None], "rnn.weight_hh_l0": SQUARE[None]}
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["s"]),
        helper.make_node("RNN", ["s", "val_1", "rnn.weight_hh_l0"], ["", "y"], name="node_rnn", hidden_size=4),
    ]
    proto = model(nodes, {**tensors, "axes": np.array([0])})
    info = helper.make_tensor_value_info("val_1", TensorProto.FLOAT, [1, 4, 4])
    info.metadata_props.add(key=FOLDED, value=f"['{reason}', 'val_0']")
    proto.graph.value_info.append(info)
    listed = f"\n# inputs\np_w: PARAMETER target='{reason}'\np_h: PARAMETER target='rnn.weight_hh_l0'\nx: USER_INPUT\n"
    proto.graph.metadata_props.add(key=SIGNATURE, value=listed)
    return proto


def test_a_recurrent_layer_whose_gates_were_reordered_learns_without_a_word() -> None:
    """The numbers are those of the module, and each learns by itself; what else the exporter computes is in doubt."""
    decisions, said = decided(recurrent("rnn.weight_ih_l0"))
    assert decisions["val_1"].trained and not decisions["val_1"].doubtful
    assert not any("rnn.weight_ih_l0" in text for text in said) and "rnn.weight_ih_l0" not in decisions
    for reason in ("rnn.weight_g", "factor"):
        decisions, said = decided(recurrent(reason))
        assert decisions["val_1"].doubtful and any("val_1" in text for text in said)


def opened(file: bytes, loss: str | None = None, **settings: str) -> tuple[bytes, list[str], list[str]]:
    """What a session of the file exports, what opening it says, and what it trains."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = TrainingSession.from_model(file, loss=loss, optimizer="SGD", **settings)
    with session:
        exported = session.export(outputs=None if loss else "loss")
        return exported, [str(w.message) for w in caught], sorted(session.parameter_names(True))


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_an_exported_model_with_folded_norms_says_what_its_file_said(kind: str) -> None:
    """No more: the file settles no less than before."""
    loss = "CrossEntropyLoss" if kind == "training" else None
    file = load("mobilenet_v3").files["dynamo"] if loss else FOLDED_NORM.SerializeToString()
    exported, said, trained = opened(file, loss)
    assert len(said) == 1 and "folded" in said[0] and "does not settle" not in said[0]
    assert opened(exported, loss)[1:] == (said, trained)


def test_statistics_that_a_file_with_folded_norms_lacks_are_not_named() -> None:
    """It has none to hold by frozen_params."""
    _, (*_, said), _ = opened(FOLDED_NORM.SerializeToString(), batch_norm="as_exported")
    assert "changes nothing" in said and "running" not in said


def test_an_exported_model_has_the_same_name_for_a_table_of_three_modules() -> None:
    """A checkpoint of a session fits the session of its export."""
    exported, _, trained = opened(load("bart").files["plain"], "CrossEntropyLoss")
    assert "inner.model.encoder.embed_tokens.weight" in trained
    assert opened(exported, "CrossEntropyLoss")[2] == trained
