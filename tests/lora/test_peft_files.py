"""Files of PEFT beside the plain ones: types, weights of the base, tied tables, and names as PEFT reads them.

`test_lora.py` trains each kind as PEFT; `scripts/record_lora.py` made the files.
"""

import dataclasses
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.lora.test_lora import RECORDED, arrays, base_of, model_of, session_of, trained, truth

from trainweb.errors import CheckpointError, ModelError, UnsupportedError
from trainweb.lora import Adapter, LoraConfig, LoraModel, inject
from trainweb.model.graph import Graph, Node, Tensor
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TABLE = "model.embed_tokens.weight"


def start_of(name: str) -> Adapter:
    return Adapter.load(RECORDED / f"{name}.start")


def with_tensor(adapter: Adapter, name: str, array: np.ndarray) -> Adapter:
    tensor = Tensor(name, str(array.dtype), array.shape, array.tobytes())
    return Adapter(adapter.tensors | {name: tensor}, adapter.config)


def config_of(name: str, **change: Any) -> LoraConfig:
    return LoraConfig.from_peft(json.loads((RECORDED / f"{name}.start/adapter_config.json").read_text()) | change)


def with_table_in(dtype: str) -> bytes:
    """The tied model with a table that is stored in a half type."""
    graph: Graph = read_model(base_of("tied", "dynamo"))
    (name,) = (n for n, t in graph.initializers.items() if t.shape == (11, 8))
    table = graph.initializers[name]
    half = np.frombuffer(table.data, np.float32).astype(TYPES[dtype])
    for node in graph.nodes:
        node.inputs[:] = ["wide" if x == name else x for x in node.inputs]
    graph.initializers[name] = Tensor(name, dtype, table.shape, half.tobytes())
    graph.value_info[name] = dataclasses.replace(graph.value_info[name], dtype=dtype)
    graph.nodes.insert(0, Node("Cast", [name], ["wide"], {"to": 1}))
    return write_model(graph)


def base_layers(adapter: Adapter) -> dict[str, np.ndarray]:
    return {
        n: np.frombuffer(t.data, np.float32).reshape(t.shape)
        for n, t in adapter.tensors.items()
        if ".base_layer." in n or n in (TABLE, "lm_head.weight")
    }


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["tied-adapted", "tied-beside"])
def test_weights_of_the_base_may_be_rounded(name: str, dtype: str) -> None:
    """The file has the table in 16 bits, or the base has, or both."""
    adapter = rounded = start_of(name)
    assert len(base_layers(adapter)) == 2
    for key, table in base_layers(adapter).items():
        rounded = with_tensor(rounded, key, table.astype(TYPES[dtype]))
    for base in (base_of("tied", "dynamo"), with_table_in(dtype)):
        adapted = inject(base, config=adapter.config)
        session = session_of(adapted)
        for one in (adapter, rounded):
            adapted.load_adapter(session, one)
        table = next(iter(base_layers(adapter).values())).copy()
        table[3, 2] += 1e-5
        with pytest.raises(CheckpointError, match="of the adapter is not the weight that this base model has"):
            adapted.load_adapter(
                session, with_tensor(adapter, next(iter(base_layers(adapter))), table * np.float32(1.01))
            )
    adapted = inject(base_of("tied", "dynamo"), config=adapter.config)
    with pytest.raises(CheckpointError, match="of the adapter is not the weight"):
        adapted.merge(with_tensor(adapter, next(iter(base_layers(adapter))), table))


def test_copies_of_a_table_that_stays_tied_must_be_equal() -> None:
    adapter = start_of("tied-still")
    adapted = model_of("tied-still", "dynamo")
    other = np.ones((11, 8), np.float32)
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' of the adapter is not equal to 'model.embed_tokens"):
        adapted.merge(with_tensor(adapter, "lm_head.weight", other))
    assert arrays(adapted.adapter())["lm_head.weight"].tolist() == arrays(adapted.adapter())[TABLE].tolist()
    session, learned = session_of(adapted), Adapter.load(RECORDED / "tied-still.end")
    adapted.load_adapter(session, learned)  # each copy differs from the base
    assert not np.array_equal(arrays(learned)[TABLE], arrays(adapter)[TABLE])
    np.testing.assert_array_equal(arrays(adapted.adapter(session))["lm_head.weight"], arrays(learned)[TABLE])


def test_an_adapter_of_a_table_that_stays_tied_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"ensure_weight_tying is not supported where.*merge_and_unload"):
        inject(base_of("tied", "dynamo"), config=config_of("tied-adapted", ensure_weight_tying=True))
    inject(base_of("tied", "dynamo"), config=config_of("tied", modules_to_save=None, ensure_weight_tying=True))


def frozen_and_trained(adapted: LoraModel) -> tuple[set[str], set[str]]:
    """Tables that stay, and tables that change, in training."""
    session = session_of(adapted)
    before = {n: session.get_parameter(n) for n in session.parameter_names()}
    trained(session, truth("tied"))
    same = {n for n, a in before.items() if np.array_equal(session.get_parameter(n), a)}
    tables = {n for n, a in before.items() if a.shape == (11, 8)}
    return tables & same, tables - same


@pytest.mark.parametrize(
    ("saved", "still", "moved"),
    [
        (["embed_tokens"], {"lm_head.weight"}, {TABLE}),
        (["lm_head"], {TABLE}, {"lm_head.weight"}),
        (["head", "tokens"], set(), {TABLE, "lm_head.weight"}),
        ([], {TABLE}, set()),
    ],
)
def test_a_module_of_a_tied_table_is_trained_alone(saved: list[str], still: set[str], moved: set[str]) -> None:
    model = base_of("tied", "dynamo")
    assert frozen_and_trained(inject(model, ["q_proj"], rank=2, modules_to_save=saved)) == (still, moved)


def test_halves_are_widened_and_integers_are_refused() -> None:
    """PEFT's file has bfloat16, float16 and float32 in turns; its losses are in test_lora.py."""
    adapter, adapted = start_of("head-halves"), model_of("head-halves", "dynamo")
    assert {t.dtype for t in adapter.tensors.values()} == {"bfloat16", "float16", "float32"}
    session = session_of(adapted)
    adapted.load_adapter(session, adapter)
    for name, tensor in adapter.tensors.items():
        kind = TYPES.get(tensor.dtype, np.float32)
        exact = np.frombuffer(tensor.data, kind).reshape(tensor.shape).astype(np.float32)
        np.testing.assert_array_equal(arrays(adapted.adapter(session))[name], exact)
    name = "fc1.lora_A.weight"
    shape = adapter.tensors[name].shape
    with pytest.raises(CheckpointError, match=r"of the adapter is int32\[3, 6\], not float32"):
        adapted.load_adapter(session, with_tensor(adapter, name, np.zeros(shape, np.int32)))
    with pytest.raises(CheckpointError, match="of the adapter has inf at position 0"):
        adapted.load_adapter(session, with_tensor(adapter, name, np.full(shape, 1e39)))


def test_all_linear_is_every_product_but_the_head() -> None:
    """PEFT writes the list that it made of the word."""
    expected = set(start_of("tied-linear").config.targets)
    assert len(expected) == 7
    for word in ("all-linear", "All-Linear"):
        for targets in (word, [word]):
            assert set(inject(base_of("tied", "dynamo"), targets, rank=2).config.targets) == expected
        config = dataclasses.replace(config_of("tied-linear"), targets=word)
        adapted = inject(base_of("tied", "dynamo"), config=config)
        assert {layer.module for layer in adapted.layers} == expected


def test_names_of_files_are_read_by_the_rules_of_peft() -> None:
    """An expression matches whole names, and stays one; names that the model lacks stay, and do nothing."""
    model = base_of("tied", "dynamo")
    with pytest.raises(ModelError, match="targets: 'q_proj' is not a module that can be adapted"):
        inject(model, config=LoraConfig("q_proj"))
    (layer,) = inject(model, config=LoraConfig(r".*q_pro.", 2)).layers
    assert layer.module == "model.layers.0.self_attn.q_proj"
    assert model_of("tied-expression", "dynamo").config.to_peft()["target_modules"] == r".*\.(q|down)_proj"
    adapted = model_of("head-lacking", "dynamo")
    assert [x.module for x in adapted.layers] == ["fc1"]
    assert set(adapted.config.targets) == {"fc1", "fc9", "head"}
    with pytest.raises(ModelError, match="targets: 'fc9' is not a module"):
        inject(base_of("head", "dynamo"), ["fc1", "fc9"])
    with pytest.raises(ModelError, match="modules_to_save has all of these modules"):
        inject(base_of("head", "dynamo"), ["head"], modules_to_save=["head"])
    with pytest.raises(ModelError, match="modules_to_save: '' is not a module"):
        inject(base_of("head", "dynamo"), ["fc1"], modules_to_save=[""])


def test_of_patterns_the_first_that_matches_the_end_of_a_name_counts() -> None:
    """PEFT's ranks are in test_lora.py; these are names with dots, by its `re.match(rf"(.*\\.)?({key})$", name)`."""
    config = LoraConfig(("q",), 4, 8, rank_pattern={"0.q": 1, "q": 2, "k": 3}, alpha_pattern={r"layers\.\d.q": 5})
    settings = {name: (config.of(name).rank, config.of(name).alpha) for name in ("layers.0.q", "a.q", "qk", "a.k.b")}
    assert settings == {"layers.0.q": (1, 5), "a.q": (2, 8), "qk": (4, 8), "a.k.b": (4, 8)}


def test_an_adapter_with_another_alpha_of_one_module_is_refused() -> None:
    adapted, adapter = model_of("head-patterns", "dynamo"), start_of("head-patterns")
    other = dataclasses.replace(adapter.config, alpha_pattern={"fc1": 12})
    with pytest.raises(CheckpointError, match=r"adapter of 'fc2' was made with alpha 8 and rank 5, scaling 1\.6"):
        adapted.merge(Adapter(adapter.tensors, other))
