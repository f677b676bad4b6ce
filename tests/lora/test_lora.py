"""Adapters train, save and merge as PEFT's do.

`scripts/record_lora.py` made `recorded/`: base models of two exporters, PEFT's files, losses and outputs.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.python.sessions import infer, take_steps

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import CheckpointError, ModelError, UnsupportedError
from trainweb.lora import Adapter, LoraConfig, LoraModel, inject
from trainweb.lora.layers import find_layers
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.safetensors import read_safetensors, write_safetensors
from trainweb.model.writer import write_model
from trainweb.onnxblock.optim import AdamW

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.stem for path in RECORDED.glob("*.npz"))
EXPORTERS = ("dynamo", "script")
RATE = 0.01
BESIDE = re.compile(r".*\.base_layer\.weight|lm_head\.weight|model\.embed_tokens\.weight")
"""Keys of the base, which PEFT may save beside an adapter."""
OPENED: list[trainweb.TrainingSession] = []


def base_of(name: str, exporter: str) -> Path:
    """The base model of a case; several may have the same."""
    return RECORDED / f"{name.partition('-')[0]}.{exporter}.onnx"


FILES = [(name, exporter) for name in NAMES for exporter in EXPORTERS if base_of(name, exporter).exists()]
"""Name and exporter; TorchScript cannot export all."""


def truth(name: str) -> dict[str, np.ndarray]:
    with np.load(RECORDED / f"{name}.npz") as data:
        return dict(data)


def model_of(name: str, exporter: str) -> LoraModel:
    config = Adapter.load(RECORDED / f"{name}.start").config
    return inject(base_of(name, exporter), config=config)


def session_of(adapted: LoraModel, **arguments: Any) -> trainweb.TrainingSession:
    arguments = {"loss": "CrossEntropyLoss", "optimizer": AdamW(eps=1e-8, weight_decay=0.01, adam_mode=0)} | arguments
    made = adapted.build_artifacts(**arguments)
    session = trainweb.TrainingSession(**made)
    session.set_learning_rate(RATE)
    OPENED.append(session)
    return session


def trained(session: trainweb.TrainingSession, data: dict[str, np.ndarray]) -> list[float]:
    return take_steps(session, {"x": data["x"], "labels": data["labels"]}, len(data["losses"]))


def arrays(adapter: Adapter) -> dict[str, np.ndarray]:
    floats = {n: t for n, t in adapter.tensors.items() if not n.endswith("num_batches_tracked")}
    return {n: np.frombuffer(t.data, np.float32).reshape(t.shape) for n, t in floats.items()}


def run(model: bytes | None, x: np.ndarray, name: str = "x") -> np.ndarray:
    result: np.ndarray = infer(model, {name: x})[0]
    return result


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(("name", "exporter"), FILES, ids=["-".join(file) for file in FILES])
def test_trains_saves_and_merges_as_peft(name: str, exporter: str, tmp_path: Path) -> None:
    data, adapted = truth(name), model_of(name, exporter)
    session = session_of(adapted)
    adapted.load_adapter(session, Adapter.load(RECORDED / f"{name}.start"))
    np.testing.assert_allclose(trained(session, data), data["losses"], rtol=2e-5)

    end = Adapter.load(RECORDED / f"{name}.end")
    saved = bool(adapted.config.modules_to_save)
    expected = {n: a for n, a in arrays(end).items() if saved or not BESIDE.fullmatch(n)}
    found = arrays(adapted.adapter(session))
    assert set(found) == set(expected)
    counts = {n: t for n, t in end.tensors.items() if n.endswith("num_batches_tracked")}
    assert counts.keys() <= adapted.adapter(session).tensors.keys()  # PEFT reads no file without them
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-3, atol=2e-5, err_msg=key)

    adapted.adapter(session).save(tmp_path / "adapter")
    again = Adapter.load(tmp_path / "adapter")
    assert {n: t.data for n, t in again.tensors.items()} == {
        n: bytes(t.data) for n, t in adapted.adapter(session).tensors.items()
    }
    for key, value in end.config.to_peft().items():
        own = again.config.to_peft()[key]
        assert own == value or sorted(own) == sorted(value), key

    unmerged = session.export_model_for_inferencing(None, ["y"])
    assert unmerged is not None
    np.testing.assert_allclose(run(unmerged, data["x"]), data["adapted"], rtol=1e-3, atol=1e-4)
    if name == "grouped":
        with pytest.raises(UnsupportedError, match=r"'conv2' cannot be merged.*2 groups"):
            adapted.merge(session)
        return
    merged = adapted.merge(session)
    assert merged is not None
    assert b"lora" not in merged
    np.testing.assert_allclose(run(merged, data["x"]), data["merged"], rtol=1e-3, atol=1e-4)
    # PEFT's own file lacks the statistics of norms outside modules_to_save: PEFT reads another model of it, too.
    reloaded = data.get("reloaded", data["merged"])
    np.testing.assert_allclose(run(adapted.merge(end), data["x"]), reloaded, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_adapter_changes_nothing(name: str) -> None:
    """B is zero, and magnitudes are the norms of the columns: the recorded base is the truth."""
    data, adapted = truth(name), model_of(name, "dynamo")
    base = run(base_of(name, "dynamo").read_bytes(), data["x"])
    session = session_of(adapted)
    made = session.export_model_for_inferencing(None, ["y"])
    np.testing.assert_allclose(run(made, data["x"]), base, rtol=1e-4, atol=1e-5)


def test_the_base_is_frozen_and_has_no_gradient_and_no_moments() -> None:
    adapted = model_of("attention", "dynamo")
    session = session_of(adapted)
    assert session.parameter_names(trainable_only=True) == adapted.parameter_names
    assert {"q_proj.weight", "embed.weight", "head.bias"} <= set(session.parameter_names())
    assert session.get_parameters_size() == sum(t.size for t in adapted.start.values()) == 2 * (4 * 8 + 8 * 4)
    before = session.get_parameter("q_proj.weight")
    trained(session, truth("attention"))
    np.testing.assert_array_equal(session.get_parameter("q_proj.weight"), before)
    with pytest.raises(CheckpointError, match="frozen"):
        session.get_gradient("q_proj.weight")


def test_adapters_are_switched_without_compiling_again() -> None:
    data, adapted = truth("attention"), model_of("attention", "dynamo")
    session = session_of(adapted)
    first, second = (Adapter.load(RECORDED / f"attention.{when}") for when in ("start", "end"))
    feeds = {"x": data["x"], "labels": data["labels"]}
    losses = {}
    for name, adapter in (("first", first), ("second", second), ("first again", first)):
        adapted.load_adapter(session, adapter)
        losses[name] = float(next(iter(session.eval_step(feeds).values())))
        assert len(session._core.plans) == 1
    assert losses["first"] == losses["first again"] != losses["second"]
    np.testing.assert_allclose(losses["first"], data["losses"][0], rtol=1e-5)


def test_dropout_is_for_training_steps_alone() -> None:
    data = truth("head")
    adapted = inject(RECORDED / "head.dynamo.onnx", ["fc1"], rank=2, dropout=0.5)
    session = session_of(adapted)
    a = next(n for n in adapted.parameter_names if n.endswith("lora_B.weight"))
    session.update_parameter(a, np.ones(session.get_parameter(a).shape, np.float32))
    feeds = {"x": data["x"], "labels": data["labels"]}
    drawn = {float(next(iter(session.train_step(feeds).values()))) for _ in range(4)}
    assert len(drawn) == 4
    assert len({float(next(iter(session.eval_step(feeds).values()))) for _ in range(4)}) == 1


def test_default_targets_are_the_projections_of_attention() -> None:
    assert inject(RECORDED / "attention.dynamo.onnx").config.targets == ("q_proj", "v_proj")
    assert inject(RECORDED / "head.dynamo.onnx").config.targets == ("fc1", "fc2")


def test_a_tied_weight_is_merged_for_its_layer_alone() -> None:
    """An embedding and a head of one table; only the head has an adapter. numpy is the oracle."""
    rng = np.random.default_rng(5)
    table, ids = rng.standard_normal((7, 4), np.float32), np.array([[1, 6, 3]])
    graph = Graph(
        "tied",
        [
            Node("Gather", ["tok.weight", "ids"], ["x"], {}, "", "/tok/Gather"),
            Node("Transpose", ["tok.weight"], ["turned"], {"perm": [1, 0]}),
            Node("MatMul", ["x", "turned"], ["y"], {}, "", "/lm_head/MatMul"),
        ],
        [Value("ids", "int64", (1, 3))],
        [Value("y", "float32", (1, 3, 7))],
        {"tok.weight": Tensor("tok.weight", "float32", (7, 4), table.tobytes())},
        opsets={"": 17},
    )
    adapted = inject(write_model(graph), ["lm_head"], rank=2)
    assert [layer.module for layer in adapted.layers] == ["lm_head"]
    adapter = adapted.adapter()
    b = rng.standard_normal((7, 2), np.float32)
    adapter.tensors["lm_head.lora_B.weight"] = Tensor("lm_head.lora_B.weight", "float32", (7, 2), b.tobytes())
    found = run(adapted.merge(adapter), ids, "ids")
    x, a = table[ids], arrays(adapter)["lm_head.lora_A.weight"]
    expected = x @ (table + b @ a).T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_layers_whose_equal_weights_the_exporter_merged_have_an_adapter_each() -> None:
    """As of copies in torch.nn.TransformerEncoder, by TorchScript's exporter. numpy is the oracle."""
    rng = np.random.default_rng(6)
    weight, head, x = (rng.standard_normal(shape, np.float32) for shape in ((4, 4), (4, 2), (3, 4)))
    first, second = "layers.0.fc", "layers.1.fc"
    graph = Graph(
        "copies",
        [
            Node("Identity", [f"{first}.weight"], [f"{second}.weight"], {}, "", "Identity_0"),
            Node("Gemm", ["x", f"{first}.weight"], ["a"], {"transB": 1}, "", "/layers.0/fc/Gemm"),
            Node("Gemm", ["a", f"{second}.weight"], ["b"], {"transB": 1}, "", "/layers.1/fc/Gemm"),
            Node("MatMul", ["b", "head.weight"], ["y"], {}, "", "/head/MatMul"),
        ],
        [Value("x", "float32", (3, 4))],
        [Value("y", "float32", (3, 2))],
        {
            f"{first}.weight": Tensor(f"{first}.weight", "float32", (4, 4), weight.tobytes()),
            "head.weight": Tensor("head.weight", "float32", (4, 2), head.tobytes()),
        },
        opsets={"": 17},
        producer="pytorch",
    )
    adapted = inject(write_model(graph), "all-linear", rank=2)
    assert [layer.module for layer in adapted.layers] == [first, second]
    adapter = adapted.adapter()
    changed = {}
    for module in (first, second):
        b = rng.standard_normal((4, 2), np.float32)
        adapter.tensors[f"{module}.lora_B.weight"] = Tensor(f"{module}.lora_B.weight", "float32", (4, 2), b.tobytes())
        changed[module] = (weight + b @ arrays(adapter)[f"{module}.lora_A.weight"]).T
    expected = x @ changed[first] @ changed[second] @ head
    np.testing.assert_allclose(run(adapted.merge(adapter), x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"targets": ["q_prj"]}, r"'q_prj' is not a module.*q_proj.*Did you mean 'q_proj'"),
        ({"rank": 0}, "rank of adapters is 0"),
        ({"rank": True}, "rank of adapters is True"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"init": "zeros"}, "init is 'zeros'.*default, gaussian"),
        ({"targets": [3]}, "targets must be names"),
        ({"modules_to_save": ["haed"]}, "modules_to_save: 'haed'.*Did you mean 'head'"),
        ({"targets": ["embed"], "use_dora": True}, "use_dora is for products"),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)),
)
def test_settings_that_are_wrong(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=text):
        inject(RECORDED / "attention.dynamo.onnx", **arguments)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peft_type": "LOHA"}, "peft_type' is 'LOHA'"),
        ({"rank_pattern": {"q_proj": "2"}}, "rank of adapters is '2'"),
        ({"rank_pattern": {"q_proj(": 2}}, r"rank_pattern: 'q_proj\(' is not an expression"),
        ({"alpha_pattern": [3]}, r"alpha_pattern is \[3\]; it must be an object"),
        ({"alpha_pattern": {"v": -1}}, "alpha is -1"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"r": "4"}, "rank of adapters is '4'"),
        ({"r": None}, "rank of adapters is None"),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)
def test_configs_of_peft_that_are_not_supported(change: dict[str, Any], text: str) -> None:
    config = json.loads((RECORDED / "attention.start/adapter_config.json").read_text())
    with pytest.raises(ModelError, match=text):
        LoraConfig.from_peft(config | change)


@pytest.mark.parametrize("form", ["text", "values", "config"])
def test_the_config_of_a_file_is_a_setting_in_each_form(form: str) -> None:
    text = (RECORDED / "attention.start/adapter_config.json").read_text()
    values = json.loads(text)
    lora = {
        "text": {"adapter_config": text},
        "values": {"adapter_config": values},
        "config": {"config": LoraConfig.from_peft(values)},
    }[form]
    with trainweb.TrainingSession.from_model(RECORDED / "attention.dynamo.onnx", loss="MSELoss", lora=lora) as s:
        names = [name for name in s.state.parameters if "lora_A" in name]
    assert len(names) == len(values["target_modules"])


def test_a_folder_of_another_type_of_adapter_is_refused_by_name(tmp_path: Path) -> None:
    values = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 5, "task_type": "CAUSAL_LM", "token_dim": 16}
    vectors = Tensor("prompt_embeddings", "float32", (5, 16), bytes(320))
    (tmp_path / "adapter_model.safetensors").write_bytes(write_safetensors([vectors], {"format": "pt"}))
    (tmp_path / "adapter_config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match="'peft_type' is 'PROMPT_TUNING'; only LORA is supported"):
        Adapter.load(tmp_path)
    with pytest.raises(ModelError, match="'PROMPT_TUNING'; only LORA"):
        settings = {"adapter_config": json.dumps(values)}
        trainweb.TrainingSession.from_model(RECORDED / "attention.dynamo.onnx", loss="CrossEntropyLoss", lora=settings)


def test_an_adapter_of_another_model_is_refused() -> None:
    adapted = model_of("attention", "dynamo")
    session = session_of(adapted)
    with pytest.raises(CheckpointError, match=r"lacks 'q_proj.lora_A.* has 'fc1.lora_A.weight'.*'adapter_config'"):
        adapted.load_adapter(session, Adapter.load(RECORDED / "head.start"))
    other = inject(RECORDED / "attention.dynamo.onnx", ["q_proj", "v_proj"], rank=2).adapter()
    with pytest.raises(CheckpointError, match=r"float32\[2, 8\], not float32\[4, 8\].*'adapter_config'"):
        adapted.load_adapter(session, Adapter(other.tensors, adapted.config))
    with pytest.raises(CheckpointError, match=r"scaling 1; this model has 2.*'adapter_config'"):
        adapted.load_adapter(session, Adapter(adapted.adapter().tensors, LoraConfig(("q_proj",), 4, 4)))


def test_an_adapter_is_read_from_a_session_of_its_model() -> None:
    adapted, other, ended = model_of("attention", "dynamo"), *(session_of(model_of("head", "dynamo")) for _ in "12")
    state = ended.state
    ended.release()
    for source in (other, other.state, state):
        with pytest.raises(CheckpointError, match="q_proj"):
            adapted.adapter(source)
        with pytest.raises(CheckpointError, match="q_proj"):
            adapted.load_adapter(source, adapted.adapter())
    for stranger in (None, other._core):
        with pytest.raises(TypeError, match=f"'target' must be a TrainingSession or .*, got {type(stranger).__name__}"):
            adapted.load_adapter(stranger, adapted.adapter())  # type: ignore[arg-type]


def test_arguments_that_the_adapters_decide_are_refused() -> None:
    with pytest.raises(TypeError, match="requires_grad"):
        model_of("attention", "dynamo").build_artifacts(requires_grad=["q_proj.weight"])


def test_broken_files_of_peft(tmp_path: Path) -> None:
    good = (RECORDED / "attention.start/adapter_model.safetensors").read_bytes()
    config = (RECORDED / "attention.start/adapter_config.json").read_text()
    length = int.from_bytes(good[:8], "little")
    for name, data in {
        "empty": b"",
        "cut": good[:-4],
        "longer": good + b"\0",
        "header": good[:8] + b"{" * length + good[8 + length :],
        "length": (1 << 60).to_bytes(8, "little") + good[8:],
        "negative": good.replace(b'"data_offsets":[0,', b'"data_offsets":[-0,'),
        "dtype": good.replace(b'"F32"', b'"F31"', 1),
    }.items():
        if data == good:
            continue
        with pytest.raises(CheckpointError):
            Adapter.from_bytes(data, config)
        assert name
    with pytest.raises(CheckpointError, match="not JSON"):
        Adapter.from_bytes(good, "{")
    with pytest.raises(ModelError, match="'r' is missing"):
        Adapter.from_bytes(good, {"peft_type": "LORA"})


def test_a_graph_is_what_artifacts_are_built_from() -> None:
    adapted = model_of("attention", "dynamo")
    made = build_artifacts(adapted.graph, requires_grad=adapted.parameter_names, loss="CrossEntropyLoss")
    assert [t.name for t in made.contents().trained] == adapted.parameter_names


def test_read_as_the_library_reads() -> None:
    """Keys, shapes and the first number of PEFT's own file, read by hand."""
    data = (RECORDED / "conv.start/adapter_model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    tensors = read_safetensors(data)
    header.pop("__metadata__", None)
    assert set(tensors) == set(header)
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        assert tensors[name].shape == tuple(entry["shape"])
        assert tensors[name].data == data[8 + length + start : 8 + length + end]


def test_modules_to_save_are_saved_as_pytorch_has_them() -> None:
    """(out, in), however an exporter stored the weight: one of the two turned it."""
    for exporter in ("dynamo", "script"):
        adapted = inject(RECORDED / f"attention.{exporter}.onnx", ["q_proj"], modules_to_save=["o_proj"])
        session = session_of(adapted)
        trained(session, truth("attention"))
        saved = arrays(adapted.adapter(session))
        layer = next(x for x in find_layers(adapted.base) if x.module == "o_proj")
        stored = session.get_parameter("o_proj.weight")
        used = stored.T if layer.rows_first else stored
        np.testing.assert_array_equal(saved["o_proj.weight"], used.T)
        again = inject(RECORDED / f"attention.{exporter}.onnx", ["q_proj"], modules_to_save=["o_proj"])
        other = session_of(again)
        again.load_adapter(other, adapted.adapter(session))
        np.testing.assert_array_equal(other.get_parameter("o_proj.weight"), stored)


def test_no_gradient_is_computed_below_the_first_adapter() -> None:
    """The backward pass reads a weight again only to go on to what lies below it."""
    session = session_of(model_of("llama", "dynamo"))
    data = truth("llama")
    lowered = session.explain({"x": data["x"], "labels": data["labels"]}).split("\n\n")[0].splitlines()

    def readers(name: str) -> int:
        copy = next(line for line in lowered if line.startswith(f"strided_copy(src=inner.model.layers.{name}.weight:"))
        return sum(f" b={copy.partition('dst=')[2].partition(':')[0]}:" in line for line in lowered)

    projections = [f"self_attn.{name}_proj" for name in "qkv"]
    assert [readers(f"0.{name}") for name in projections] == [1, 1, 1]
    assert [readers(f"1.{name}") for name in projections] == [2, 2, 2]
