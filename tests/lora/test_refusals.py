"""Adapters that are of another model, change the base, or have no weight to lie beside: refused by name, as is."""

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from tests.lora.test_lora import RECORDED, arrays, model_of, run, session_of, truth

from trainweb import TrainingSession
from trainweb.artifacts.evidence import FOLDED
from trainweb.errors import CheckpointError, LimitError, ModelError, TrainwebError, UnsupportedError
from trainweb.lora import Adapter, LoraConfig, LoraModel, inject
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model

LONGEST = 2500
"""Characters of a message: what a list of twenty names of 80 needs, and some words."""
NAMES = ("m.q_proj", "m.v_proj", "m.fc", "m.head")


def ended() -> tuple[LoraModel, Adapter]:
    return model_of("attention", "dynamo"), Adapter.load(RECORDED / "attention.end")


def with_tensors(adapter: Adapter, **tensors: np.ndarray) -> Adapter:
    made = {n.replace("__", "."): v.astype(np.float32) for n, v in tensors.items()}
    return Adapter(
        adapter.tensors | {n: Tensor(n, "float32", v.shape, v.tobytes()) for n, v in made.items()}, adapter.config
    )


def without_one(adapter: Adapter) -> Adapter:
    return Adapter({n: t for n, t in adapter.tensors.items() if n != "q_proj.lora_A.weight"}, adapter.config)


def with_value(adapter: Adapter, value: float) -> Adapter:
    a = arrays(adapter)["v_proj.lora_B.weight"].copy()
    a[1, 2] = value
    return with_tensors(adapter, v_proj__lora_B__weight=a)


def with_alpha(adapter: Adapter) -> Adapter:
    return Adapter(adapter.tensors, dataclasses.replace(adapter.config, alpha=800))


OTHERS = {
    "another alpha": (with_alpha, "made with alpha 800 and rank 4, scaling 200; this model has 2"),
    "a weight of the base": (
        lambda a: with_tensors(a, head__weight=np.zeros((5, 8))),
        "'head.weight' of the adapter is not the weight",
    ),
    "another shape": (
        lambda a: with_tensors(a, q_proj__lora_A__weight=np.zeros((4, 9))),
        r"q_proj.lora_A.weight' of the adapter is float32\[4, 9\], not float32\[4, 8\]",
    ),
    "a tensor missing": (without_one, "it lacks 'q_proj.lora_A.weight'"),
    "NaN": (lambda a: with_value(a, np.nan), "v_proj.lora_B.weight' of the adapter has nan at position 6 of 32"),
    "infinity": (lambda a: with_value(a, -np.inf), "of the adapter has -inf at position 6 of 32"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_load_and_merge_refuse_the_same(name: str) -> None:
    adapted, adapter = ended()
    change, text = OTHERS[name]
    session = session_of(adapted)
    before = {n: session.get_parameter(n) for n in session.parameter_names()}
    with pytest.raises(CheckpointError, match=text):
        adapted.load_adapter(session, change(adapter))
    with pytest.raises(CheckpointError, match=text):
        adapted.merge(change(adapter))
    for key, value in before.items():
        np.testing.assert_array_equal(session.get_parameter(key), value, err_msg=key)


def test_a_session_that_diverged_is_not_merged() -> None:
    adapted, _ = ended()
    session = session_of(adapted)
    session.update_parameter("q_proj.lora_B.weight", np.full((8, 4), np.nan, np.float32))
    with pytest.raises(CheckpointError, match=r"'q_proj.lora_B.weight' of the session has nan at position 0 of 32"):
        adapted.merge(session)


def test_numbers_of_any_size_are_finite() -> None:
    """A sum in float32 would overflow."""
    adapted, adapter = ended()
    session = session_of(adapted)
    largest = np.full((8, 4), np.finfo(np.float32).max)
    adapted.load_adapter(session, with_tensors(adapter, q_proj__lora_B__weight=largest))
    assert session.get_parameter("q_proj.lora_B.weight").max() == np.finfo(np.float32).max


def config_of(**change: Any) -> LoraConfig:
    config = json.loads((RECORDED / "attention.start/adapter_config.json").read_text())
    return LoraConfig.from_peft(config | change)


@pytest.mark.parametrize(
    "start", ["pissa", "pissa_niter_4", "PiSSA", "olora", "OLoRA", "corda", "loftq", "lora_ga", "mica", "of_2030", 3]
)
def test_starts_that_change_the_base_are_refused(start: object) -> None:
    with pytest.raises(ModelError, match=rf"init_lora_weights = {start!r} .*path_initial_model_for_weight_conversion"):
        config_of(init_lora_weights=start)


@pytest.mark.parametrize("start", [True, False, "gaussian", "orthogonal", "eva"])
def test_starts_that_leave_the_base(start: object) -> None:
    assert config_of(init_lora_weights=start) == config_of()


def test_an_adapter_that_peft_converted_computes_what_peft_computed() -> None:
    """The way that the refusal names, recorded: PiSSA trained in PEFT, saved as a plain adapter of the base."""
    folder = RECORDED / "converted"
    with np.load(folder / "truth.npz") as data:
        x, expected = data["x"], data["adapted"]
    with pytest.raises(ModelError, match="'pissa'"):
        Adapter.load(folder / "pissa")
    adapter = Adapter.load(folder / "plain")
    adapted = inject(folder / "base.onnx", config=adapter.config)
    np.testing.assert_allclose(run(adapted.merge(adapter), x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"exclude_modules": ["k_proj"]},
        {"layers_to_transform": [0]},
        {"lora_bias": True},
        {"trainable_token_indices": [1]},
        {"monteclora_config": {"samples": 2}},
        {"velora_config": {"rank": 1}},
        {"use_something_of_2030": True},
        {"bias": "lora_only"},
    ],
    ids=lambda v: next(iter(v)),
)
def test_settings_that_would_be_lost_are_refused(change: dict[str, Any]) -> None:
    (name,) = change
    way = "set it to None.*targeted_module_names" if name in ("exclude_modules", "layers_to_transform") else "merge_and"
    with pytest.raises(ModelError, match=rf"adapter_config.json: {name} = .* is not supported.*In PEFT, .*{way}"):
        config_of(**change)


def test_the_files_of_peft_say_whether_weights_are_turned() -> None:
    """PEFT asks for fan_in_fan_out where its Conv1D stores (in, out); no exporter's own turning counts."""
    for name, expected in {"transposed": True, "attention": False, "head": False}.items():
        for exporter in ("dynamo", "script"):
            model = RECORDED / f"{name}.{exporter}.onnx"
            targets = json.loads((RECORDED / f"{name}.start/adapter_config.json").read_text())["target_modules"]
            adapter = inject(model, targets, rank=2).adapter()
            assert json.loads(adapter.config_json)["fan_in_fan_out"] is expected, (name, exporter)
    assert config_of(fan_in_fan_out=True).to_peft()["fan_in_fan_out"] is True


def test_a_weight_without_a_name_of_its_module_is_not_saved() -> None:
    """TorchScript folds the transposition of a weight, and gives the result a name of its own."""
    graph = read_model(quantized("float32"))
    weight = graph.initializers.pop("m.head.weight")
    graph.initializers["onnx::MatMul_9"] = weight.renamed("onnx::MatMul_9")
    graph.initializers["m.head.bias"] = Tensor("m.head.bias", "float32", (16,), bytes(64))
    node = next(node for node in graph.nodes if "m.head.weight" in node.inputs)
    node.inputs[1], node.outputs[0] = "onnx::MatMul_9", "product"
    graph.nodes.append(Node("Add", ["product", "m.head.bias"], ["m.head.y"], {}, "", "/m/head/Add"))
    with pytest.raises(UnsupportedError, match=r"'m.head' of modules_to_save.*'onnx::MatMul_9'.*dynamo=True"):
        inject(write_model(graph), ["q_proj"], rank=2, modules_to_save=["head"])


def test_of_modules_to_save_one_must_be_there() -> None:
    model = RECORDED / "classifier.dynamo.onnx"
    adapted = inject(model, config=LoraConfig(("c_attn",), 2, modules_to_save=("score", "classifier")))
    heads = {f"classifier.{part}.{kind}" for part in ("dense", "out_proj") for kind in ("weight", "bias")}
    assert {n for n in adapted.parameter_names if "lora" not in n} == heads
    with pytest.raises(ModelError, match=r"modules_to_save: 'score' is not a module that can be saved.*classifier"):
        inject(model, config=LoraConfig(("c_attn",), 2, modules_to_save=("score",)))
    with pytest.raises(ModelError, match="modules_to_save: 'score'"):
        inject(model, ["c_attn"], modules_to_save=["classifier", "score"])


def quantized(kind: str, floats: tuple[str, ...] = ()) -> bytes:
    """Four products in a row, all but `floats` with weights that are stored in `kind`."""
    rng, nodes, tensors, x = np.random.default_rng(0), list[Node](), dict[str, Tensor](), "x"

    def hold(name: str, dtype: str, array: np.ndarray) -> str:
        tensors[name] = Tensor(name, dtype, array.shape, array.tobytes())
        return name

    for module in NAMES:
        path, y = f"/{module.replace('.', '/')}", f"{module}.y"
        if module in floats or kind == "float32":
            inputs = [x, hold(f"{module}.weight", "float32", rng.standard_normal((16, 16), np.float32))]
            nodes.append(Node("MatMul", inputs, [y], {}, "", f"{path}/MatMul"))
        elif kind == "nbits":
            packed = hold(f"{module}.MatMul.weight_Q4", "uint8", rng.integers(0, 255, (16, 1, 8), np.uint8))
            scales = hold(f"{module}.scales", "float32", np.ones(16, np.float32))
            attrs = {"K": 16, "N": 16, "bits": 4, "block_size": 16}
            nodes.append(Node("MatMulNBits", [x, packed, scales], [y], attrs, "com.microsoft", f"{path}/MatMul_Q4"))
        else:
            if kind == "float16":
                inputs = [hold(f"{module}.weight", "float16", rng.standard_normal((16, 16)).astype(np.float16))]
                nodes.append(Node("Cast", inputs, [f"{module}.w"], {"to": 1}))
            else:
                scale = hold(f"{module}.scale", "float32", np.array(0.01, np.float32))
                inputs = [hold(f"{module}.weight_quantized", "int8", rng.integers(-9, 9, (16, 16), np.int8)), scale]
                nodes.append(Node("DequantizeLinear", inputs, [f"{module}.w"], {}))
            nodes.append(Node("Transpose", [f"{module}.w"], [f"{module}.t"], {"perm": [1, 0]}))
            nodes.append(Node("MatMul", [x, f"{module}.t"], [y], {}, "", f"{path}/MatMul"))
        x = y
    opsets = {"": 17, "com.microsoft": 1}
    row = ("n", 16)
    return write_model(
        Graph("q", nodes, [Value("x", "float32", row)], [Value(x, "float32", row)], tensors, opsets=opsets)
    )


STORED = {"nbits": "4 bits, MatMulNBits", "int8": "8 bits, DequantizeLinear"}


@pytest.mark.parametrize("kind", STORED)
def test_an_adapter_is_not_merged_into_a_quantized_weight(kind: str) -> None:
    adapted = inject(quantized(kind, ("m.q_proj",)), rank=2)
    with pytest.raises(UnsupportedError, match=rf": m.v_proj \({STORED[kind]}\)\. Merge it into the model in float32"):
        adapted.merge(adapted.adapter())


@pytest.mark.parametrize(("name", "target"), [("attention", "q_proj"), ("embedding", "embed")])
def test_a_model_that_holds_adapters_gets_no_others_in_their_place(name: str, target: str) -> None:
    """The error names the way to train them."""
    adapted = inject(RECORDED / f"{name}.dynamo.onnx", [target], rank=2)
    model = session_of(adapted).export_model_for_inferencing(None, ["y"])
    with pytest.raises(ModelError, match=rf"already, such as '{target}\.lora_.*A.*'\. Merge them") as caught:
        inject(model, rank=2)
    names = re.findall(r"requires_grad is \['(.*)'\]", str(caught.value))
    with TrainingSession.from_model(model, loss="MSELoss", optimizer="SGD", requires_grad=names) as again:
        assert sorted(again.parameter_names()) == sorted(adapted.parameter_names)


@pytest.mark.parametrize("kind", STORED)
def test_magnitudes_need_a_weight_in_float32(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"m.q_proj.*use_dora needs.*stored in {STORED[kind]}\."):
        inject(quantized(kind), rank=2, use_dora=True)


@pytest.mark.filterwarnings("error::UserWarning")
def test_the_last_product_is_adapted_by_name_alone() -> None:
    """A head beside products that are quantized, a model of one product, and one of four."""
    assert inject(quantized("float32")).config.targets == ("m.q_proj", "m.v_proj")
    assert inject(quantized("nbits", ("m.head",)), ["head"], rank=2).config.targets == ("m.head",)
    one = Graph(
        "one",
        [Node("MatMul", ["x", "fc.weight"], ["y"])],
        [Value("x", "float32", (2, 3))],
        [Value("y", "float32", (2, 3))],
        {"fc.weight": Tensor("fc.weight", "float32", (3, 3), bytes(36))},
        opsets={"": 17},
    )
    with pytest.raises(ModelError, match="one product with a weight, 'fc'"):
        inject(write_model(one))
    assert inject(write_model(one), ["fc"], rank=2).config.targets == ("fc",)


def test_a_tied_weight_that_is_turned_twice_is_merged() -> None:
    """Stored (in, out), turned by a node, and turned again by Gemm's transB; another product reads it as it is."""
    rng = np.random.default_rng(3)
    weight, x = rng.standard_normal((4, 4), np.float32), rng.standard_normal((3, 4), np.float32)
    graph = Graph(
        "twice",
        [
            Node("MatMul", ["x", "first.weight"], ["h"], {}, "", "/first/MatMul"),
            Node("Transpose", ["first.weight"], ["turned"], {"perm": [1, 0]}),
            Node("Gemm", ["h", "turned"], ["h2"], {"transB": 1}, "", "/second/Gemm"),
            Node("Gemm", ["h2", "first.weight"], ["y"], {"transB": 1}, "", "/third/Gemm"),
        ],
        [Value("x", "float32", (3, 4))],
        [Value("y", "float32", (3, 4))],
        {"first.weight": Tensor("first.weight", "float32", (4, 4), weight.tobytes())},
        opsets={"": 17},
    )
    for target in ("first", "third"):
        adapted = inject(write_model(graph), [target], rank=2)
        adapter = adapted.adapter()
        b = rng.standard_normal((4, 2), np.float32)
        adapter = with_tensors(adapter, **{f"{target}__lora_B__weight": b})
        change = b @ arrays(adapter)[f"{target}.lora_A.weight"]  # (out, in)
        first, third = (weight + change.T * (target == "first"), weight + change * (target == "third"))
        # `first` is the module of both products that read the weight as (in, out).
        expected = x @ first @ first @ third.T
        np.testing.assert_allclose(run(adapted.merge(adapter), x), expected, rtol=1e-4, atol=1e-4)


LONG = "q" * 100_000


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"alpha": 1e308}, ModelError),
        ({"alpha": 10**400}, ModelError),
        ({"alpha": 10**5000}, ModelError),
        ({"alpha": 1e-320}, ModelError),
        ({"alpha": LONG}, ModelError),
        ({"rank": LONG}, ModelError),
        ({"rank": 10**5000}, LimitError),
        ({"dropout": LONG}, ModelError),
        ({"targets": [LONG]}, ModelError),
        ({"targets": ["(" + LONG]}, ModelError),
        ({"targets": LONG}, ModelError),
        ({"modules_to_save": [LONG]}, ModelError),
        ({"init": LONG}, ModelError),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else v.__name__,
)
def test_messages_are_bounded(settings: dict[str, Any], error: type[TrainwebError]) -> None:
    with pytest.raises(error) as caught:
        inject(RECORDED / "attention.dynamo.onnx", **settings)
    assert next(iter(settings)).rstrip("s") in str(caught.value)
    assert len(str(caught.value)) < LONGEST


@pytest.mark.parametrize(
    "change",
    [
        {"peft_type": LONG},
        {"r": LONG},
        {"target_modules": 7},
        {"target_modules": {LONG: 1}},
        {"modules_to_save": [[LONG]]},
        {"init_lora_weights": LONG},
        {LONG: True},
        {"layers_pattern": LONG},
    ],
    ids=lambda v: next(iter(v))[:20],
)
def test_messages_about_files_are_bounded(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        inject(RECORDED / "attention.dynamo.onnx", config=config_of(**change))
    assert len(str(caught.value)) < LONGEST


def test_messages_about_other_adapters_are_bounded() -> None:
    adapted, adapter = ended()
    with pytest.raises(CheckpointError) as caught:
        adapted.merge(with_tensors(adapter, **{LONG: np.zeros(2)}))
    assert len(str(caught.value)) < LONGEST


def test_many_layers_are_listed_once() -> None:
    """40 layers of one kind are one entry, so that all kinds are named."""
    nodes, x = list[Node](), "x"
    tensors = {}
    for module in [*(f"m.layers.{k}.{part}" for k in range(40) for part in ("query", "dense")), "classifier"]:
        tensors[f"{module}.weight"] = Tensor(f"{module}.weight", "float32", (2, 2), bytes(16))
        nodes.append(Node("MatMul", [x, f"{module}.weight"], [f"{module}.y"]))
        x = f"{module}.y"
    row = (1, 2)
    graph = Graph("deep", nodes, [Value("x", "float32", row)], [Value(x, "float32", row)], tensors, opsets={"": 17})
    with pytest.raises(ModelError) as caught:
        inject(write_model(graph), ["keys"])
    assert "The model has m.layers.0.query, m.layers.0.dense, classifier." in str(caught.value)


def test_dora_of_a_turned_weight_starts_from_its_columns() -> None:
    """The norm of each output's inputs in float64, for weights (in, out) and (out, in)."""
    for exporter in ("dynamo", "script"):
        model = RECORDED / f"transposed.{exporter}.onnx"
        adapted = inject(model, ["c_attn", "dense"], rank=2, use_dora=True)
        for layer in adapted.layers:
            weight = adapted.base.initializers[layer.weight]
            stored = np.frombuffer(weight.data, np.float32).reshape(weight.shape).astype(float)
            out = stored if layer.rows_first else stored.T
            found = arrays(adapted.adapter())[f"{layer.module}.lora_magnitude_vector"]
            np.testing.assert_allclose(found, np.sqrt((out**2).sum(1)), rtol=1e-6)
        assert {layer.rows_first for layer in adapted.layers} == {True, False}


def test_new_adapters_are_drawn_as_in_peft() -> None:
    """Kaiming's uniform numbers for a = sqrt(5), or normal ones of deviation 1 / rank; B is zero, in tables A is."""
    for model, target, inputs in (("attention", "q_proj", 8), ("conv", "conv1", 27)):
        for init, bound, deviation in (("default", inputs**-0.5, (3 * inputs) ** -0.5), ("gaussian", 1, 1 / 256)):
            adapter = inject(RECORDED / f"{model}.dynamo.onnx", [target], rank=256, init=init).adapter()
            a, b = arrays(adapter).values()
            assert abs(a).max() <= bound and not b.any()
            np.testing.assert_allclose([a.mean() / deviation, a.std() / deviation], [0, 1], atol=0.05)
    adapter = inject(RECORDED / "embedding.dynamo.onnx", ["embed"], rank=256).adapter()
    a, b = arrays(adapter).values()
    assert not a.any()
    np.testing.assert_allclose([b.mean(), b.std()], [0, 1], atol=0.05)


def test_names_that_exporters_gave_are_not_those_of_modules() -> None:
    """A quantizer adds to the names of weights and nodes; the path of the node says the module."""
    for kind in ("nbits", "int8"):
        graph = read_model(quantized(kind))
        names = {name: f"onnx::MatMul_{k}_Q4" for k, name in enumerate(graph.initializers)}
        for node in graph.nodes:
            node.inputs = [names.get(name, name) for name in node.inputs]
        graph.initializers = {names[n]: t.renamed(names[n]) for n, t in graph.initializers.items()}
        assert inject(graph, ["q_proj"]).config.targets == ("m.q_proj",)
        # The dynamo exporter's optimizer computed the weight from another one, and noted it.
        for node in graph.nodes:
            node.name = f"node_{node.op_type}"
        for module, name in zip(NAMES, [n for n in names.values() if graph.initializers[n].size > 16], strict=True):
            value = Value(name.removesuffix("_Q4"), "float32", (16, 16), {FOLDED: f"['{module}.weight']"})
            graph.value_info[value.name] = value
        assert inject(graph, ["q_proj"]).config.targets == ("m.q_proj",)


def test_what_merges_is_what_was_trained() -> None:
    """A merge of the right adapter, which the checks let through, is PEFT's."""
    adapted, adapter = ended()
    data = truth("attention")
    np.testing.assert_allclose(run(adapted.merge(adapter), data["x"]), data["merged"], rtol=1e-3, atol=1e-4)
