"""Trained prompts equal PEFT's, which `scripts/record_prompt.py` recorded, and PEFT loads them.

The models come from tests/golden/generate. Folders that end in `.own` are prompts of trainweb, which
`python -m tests.lora.test_prompt` writes; with `--own` the script records the logits of PEFT with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import smol
from tests.lora.test_lora import OPENED, arrays, session_of

import trainweb
from trainweb.errors import CheckpointError, LimitError, ModelError, UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.lora import Adapter, LoraConfig, PromptConfig, PromptModel, inject_prompt
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.training.step_kind import TRAIN

RECORDED = Path(__file__).parent / "prompt"
MODELS = Path(__file__).parents[1] / "golden" / "generate"
NAMES = sorted(path.stem for path in MODELS.glob("*.onnx") if path.stem != "opt")
NAME = "prompt_embeddings"
LOSS = {"type": "CrossEntropyLoss", "ignore_index": -100}


def recorded(name: str) -> dict[str, np.ndarray]:
    with np.load(RECORDED / f"{name}.npz") as data:
        return dict(data)


def from_model(name: str, prompt_tuning: dict[str, Any], **settings: Any) -> trainweb.TrainingSession:
    made = trainweb.TrainingSession.from_model(
        MODELS / f"{name}.onnx", loss=LOSS, prompt_tuning=prompt_tuning, learning_rate=0.1, **settings
    )
    OPENED.append(made)
    return made


def feeds_of(name: str, *, labels: bool = True) -> dict[str, np.ndarray]:
    data = {key.removeprefix("data."): a for key, a in recorded(name).items() if key.startswith("data.")}
    return data if labels else {key: a for key, a in data.items() if key != "labels"}


def opened(adapted: PromptModel, **arguments: Any) -> trainweb.TrainingSession:
    return session_of(adapted, loss=LOSS, **arguments)


def loaded(name: str, when: str) -> tuple[PromptModel, trainweb.TrainingSession]:
    """A session that goes on with a folder."""
    adapter = Adapter.load(RECORDED / f"{name}.{when}")
    adapted = inject_prompt(MODELS / f"{name}.onnx", config=adapter.config)
    session = opened(adapted)
    adapted.load_adapter(session, adapter)
    return adapted, session


def steps(name: str) -> tuple[PromptModel, trainweb.TrainingSession, list[float]]:
    """The model with PEFT's start, after its steps, and their losses."""
    adapted, session = loaded(name, "start")
    losses = []
    for _ in recorded(name)["losses"]:
        losses.append(float(next(iter(session.train_step(feeds_of(name)).values()))))
        session.optimizer_step()
        session.lazy_reset_grad()
    return adapted, session, losses


def logits(session: trainweb.TrainingSession, name: str) -> np.ndarray:
    return session.predict(feeds_of(name, labels=False))["logits"]


def tokens(session: Any, prompt: Any, count: int, **settings: Any) -> list[int]:
    return [one.token for one in session.generate(prompt, max_tokens=count, **settings)]


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_vectors_are_those_of_peft(name: str, tmp_path: Path) -> None:
    data = recorded(name)
    adapted, session, losses = steps(name)
    np.testing.assert_allclose(losses, data["losses"], rtol=1e-5)
    np.testing.assert_allclose(logits(session, name), data["logits"], rtol=1e-3, atol=1e-4)
    end, own = arrays(Adapter.load(RECORDED / f"{name}.end")), arrays(adapted.adapter(session))
    assert set(own) == set(end) == {NAME}
    np.testing.assert_allclose(own[NAME], end[NAME], rtol=1e-3, atol=2e-5)
    adapted.adapter(session).save(tmp_path)
    np.testing.assert_array_equal(arrays(Adapter.load(tmp_path))[NAME], own[NAME])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_logits_of_a_prompt_of_peft(name: str) -> None:
    _, session = loaded(name, "start")
    session.train_step(feeds_of(name))
    np.testing.assert_allclose(session.get_gradient(NAME), recorded(name)["gradient"], rtol=1e-4, atol=1e-6)
    _, session = loaded(name, "end")
    np.testing.assert_allclose(logits(session, name), recorded(name)["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_peft_computes_the_same_with_a_prompt_of_trainweb(name: str) -> None:
    _, session = loaded(name, "own")
    with np.load(RECORDED / f"{name}.own.npz") as data:
        np.testing.assert_allclose(logits(session, name), data["logits"], rtol=1e-5, atol=1e-5)


def test_pieces_in_a_sequence_as_exported_without_optimizer() -> None:
    graph = read_model(MODELS / "gpt2.onnx")
    nodes = list[Node]()
    for node in graph.nodes:
        if node.op_type != "Split":
            nodes.append(node)
            continue
        pieces = f"{node.outputs[0]}.pieces"
        graph.initializers["width"] = Tensor.of("width", "int64", (), [16])
        attrs = {"axis": node.attrs["axis"]}
        nodes.append(Node("SplitToSequence", [node.inputs[0], "width"], [pieces], attrs, "", pieces))
        for k, output in enumerate(node.outputs):
            place = Tensor.of(f"{output}.place", "int64", (), [k])
            graph.initializers[place.name] = place
            nodes.append(Node("SequenceAt", [pieces, place.name], [output], {}, "", output))
    assert len(nodes) > len(graph.nodes)
    adapter = Adapter.load(RECORDED / "gpt2.end")
    adapted = inject_prompt(graph.with_nodes(nodes), config=adapter.config)
    session = opened(adapted)
    adapted.load_adapter(session, adapter)
    np.testing.assert_allclose(logits(session, "gpt2"), recorded("gpt2")["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_peft(name: str) -> None:
    data = recorded(name)
    _, session = loaded(name, "end")
    prompt, expected = data["prompt"].tolist(), data["tokens"].tolist()
    assert tokens(session, prompt, len(expected)) == expected
    exported = trainweb.InferenceSession(session.export_model_for_inferencing(None, ["logits"]))
    base = trainweb.InferenceSession(MODELS / f"{name}.onnx")
    try:
        assert tokens(exported, prompt, len(expected)) == expected
        plain = tokens(base, prompt, len(expected))
        assert (plain == expected) == (name == "gemma3")  # its prompt changes the logits, but no token
        assert tokens(session, prompt, len(expected), adapter=False) == plain
        assert tokens(session, prompt, len(expected)) == expected
    finally:
        exported.release()
        base.release()


@pytest.mark.parametrize("name", ["gemma3", "llama"])
def test_vectors_start_as_embeddings_of_ids(name: str) -> None:
    """Gemma multiplies its embeddings by a factor, and PEFT takes them after that."""
    embedded = recorded(name)["embedded"]
    session = from_model(name, {"tokens": 7, "init": [3, 1, 4, 1, 59]})
    np.testing.assert_allclose(session.get_parameter(NAME), embedded[[0, 1, 2, 3, 4, 0, 1]], rtol=1e-6)
    session = from_model(name, {"tokens": 2, "init": np.array([3, 1, 4, 1, 59])})
    np.testing.assert_allclose(session.get_parameter(NAME), embedded[:2], rtol=1e-6)


@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
def test_a_prompt_of_embeddings_counts_as_its_tokens(name: str) -> None:
    """Logits and tokens equal the ones of a text that starts with these tokens."""
    first, ids = [3, 1, 4, 1, 59], [[7, 8, 9, 10], [11, 12, 13, 14]]
    session = from_model(name, {"tokens": 5, "init": first})
    base = trainweb.InferenceSession(MODELS / f"{name}.onnx")
    whole = np.array([[*first, *row] for row in ids])
    given = {"input_ids": np.array(ids), "attention_mask": np.ones((2, 4), np.int64)}
    feeds = {key: a for key, a in given.items() if key in session.input_names()}
    full = {key: whole if key == "input_ids" else np.ones_like(whole) for key in feeds}
    prompt = np.random.default_rng(0).integers(0, 61, 50).tolist()
    try:
        expected = base.run(None, full)[0][:, 5:]
        continued = tokens(base, [*first, *prompt], 12)
    finally:
        base.release()
    np.testing.assert_allclose(session.predict(feeds)["logits"], expected, rtol=1e-5, atol=1e-5)
    assert tokens(session, prompt, 12) == continued


def test_only_the_vectors_learn_and_the_next_text_has_them() -> None:
    session = from_model("llama", {"tokens": 3, "seed": 4})
    assert session.parameter_names(trainable_only=True) == [NAME]
    prompt = [5, 6, 7, 8, 9, 10, 11]
    before = tokens(session, prompt, 8)
    frozen = {n: session.get_parameter(n) for n in session.parameter_names() if n != NAME}
    ids = np.array([[5, 6, 7, 8, 9, 10, 11, 12]] * 4)
    data = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": np.full_like(ids, 33)}
    session.fit(data, epochs=30, batch_size=2)
    for key, value in frozen.items():
        np.testing.assert_array_equal(session.get_parameter(key), value)
    after = tokens(session, prompt, 8)
    assert after != before
    assert 33 in after
    assert len(tokens(session, prompt[:3], 1, adapter=False)) == 1
    assert tokens(session, prompt, 8) == after


@pytest.mark.parametrize("name", NAMES)
def test_the_head_makes_no_logits_of_vectors(name: str) -> None:
    graph = inject_prompt(MODELS / f"{name}.onnx").graph
    cut = next(node for node in graph.nodes if node.op_type == "Slice" and node.name.startswith("prompt_tuning/"))
    assert [node.op_type for node in graph.nodes if cut.outputs[0] in node.inputs] == ["MatMul"]


@pytest.mark.parametrize("bits", [32, 4])
def test_a_large_vocabulary_and_a_quantized_table(bits: int, tmp_path: Path) -> None:
    """Scores are not stored, and a prompt of embeddings counts as its tokens."""
    smol.write(tmp_path, smol.Size(layers=1, width=64, heads=4, key_heads=2, hidden=64, vocabulary=20000))
    model: Any = tmp_path / "model.onnx" if bits == 32 else trainweb.quantize(tmp_path / "model.onnx", bits)
    first, ids = [3, 1999, 4], np.arange(5, 69).reshape(1, 64)
    session = trainweb.TrainingSession.from_model(model, loss=LOSS, prompt_tuning={"tokens": 3, "init": first})
    OPENED.append(session)
    types = {name: TensorType("int64", ids.shape) for name in session.input_names()}
    kernels = [line.split("(")[0].split()[0] for line in session._core.models.compile_step(TRAIN, types, True).text]
    assert ("head_loss_f32" if bits == 32 else "head_loss_quantized_f32") in kernels

    base = trainweb.InferenceSession(model)
    try:
        (name,) = base.get_inputs()
        whole = np.concatenate([[first], ids], 1)
        expected = base.run(None, {name.name: whole})[0][:, 3:]
        text = [*ids[0].tolist(), *ids[0].tolist()][:122]
        continued = tokens(base, [*first, *text], 6)
    finally:
        base.release()
    np.testing.assert_allclose(session.predict({name.name: ids})["logits"], expected, rtol=1e-4, atol=1e-4)
    # Text and new tokens fill the cache, and the prompt has room besides.
    assert tokens(session, text, 6) == continued


def graph_of(name: str = "llama") -> Graph:
    return read_model(MODELS / f"{name}.onnx")


def changed(change: Callable[[Graph], None]) -> Graph:
    graph = graph_of()
    change(graph)
    return graph


def fixed(graph: Graph) -> None:
    graph.inputs = [Value(v.name, "int64", (2, 9)) for v in graph.inputs]


def reads_ids(graph: Graph) -> None:
    graph.nodes.insert(0, Node("Equal", ["input_ids", "input_ids"], ["is_same"], {}, "", "compare"))


def looks_up_twice(graph: Graph) -> None:
    graph.nodes.insert(0, Node("Gather", ["model.lm_head.weight", "input_ids"], ["second"], {}, "", "lookup"))


def last_logits(graph: Graph) -> None:
    graph.initializers["ends"] = Tensor.of("ends", "int64", (1,), [-1])
    graph.nodes.append(Node("Gather", ["logits", "ends"], ["last"], {"axis": 1}, "", "pick"))
    graph.outputs = [Value("last", "float32", ("batch", 1, 61))]


def two_outputs(graph: Graph) -> None:
    graph.outputs = [*graph.outputs, Value("embedding", "float32", ("batch", "sequence", 16))]


def another_input(graph: Graph) -> None:
    graph.inputs = [*graph.inputs, Value("noise", "float32", ("batch", 4))]


REFUSED = {
    "a fixed shape": (fixed, ModelError, r"'input_ids' has the shape \(2, 9\).*dynamic axes"),
    "ids elsewhere": (reads_ids, UnsupportedError, "compare.* reads the ids 'input_ids'"),
    "two tables": (looks_up_twice, UnsupportedError, "one table of embeddings, and .*lookup.* and .*node_embedding"),
    "one row": (last_logits, UnsupportedError, "pick.* makes the output 'last' of shape .*logits .* of all tokens"),
    "two outputs": (two_outputs, ModelError, "only output is logits; this one has logits, embedding"),
    "another input": (another_input, ModelError, "cannot make the input 'noise' longer"),
    "an old opset": (lambda graph: graph.opsets.update({"": 12}), UnsupportedError, "needs opset 13; the model has 12"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_do_not_fit_are_refused(name: str) -> None:
    change, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        inject_prompt(changed(change))


def test_settings_are_checked() -> None:
    model = MODELS / "llama.onnx"
    for settings, error, text in (
        ({"token": 3}, TypeError, "'token'.*did you mean 'tokens'"),
        ({"tokens": 0}, ModelError, "'tokens' of a prompt is 0; it must be an integer of at least 1"),
        ({"tokens": 2**17}, LimitError, "at most 65536"),
        ({"init": [61]}, ModelError, "'init' has an id without an embedding.*61"),
        ({"init": "text"}, ModelError, "init is 'text'; it must be a list of token ids"),
        ({"adapter_config": LoraConfig(("q_proj",)).to_peft()}, ModelError, "is LORA; it must be PROMPT_TUNING here"),
    ):
        with pytest.raises(error, match=text):
            trainweb.TrainingSession.from_model(model, loss=LOSS, prompt_tuning=settings)
    with pytest.raises(ModelError, match=r"prompt_tuning is .* left out with 'lora'"):
        trainweb.TrainingSession.from_model(model, loss=LOSS, prompt_tuning={"tokens": 3}, lora={"rank": 2})
    with pytest.raises(ModelError, match="contains a prompt"):
        inject_prompt(inject_prompt(model).graph)


def test_files_of_other_settings_are_refused() -> None:
    values = json.loads((RECORDED / "llama.start" / "adapter_config.json").read_text())
    assert PromptConfig.from_peft(values) == PromptConfig(5, 16)
    for change, text in (
        ({"task_type": "SEQ_2_SEQ_LM"}, "task_type = 'SEQ_2_SEQ_LM' is not supported"),
        ({"num_transformer_submodules": 2}, "num_transformer_submodules = 2"),
        ({"modules_to_save": ["head"]}, "modules_to_save = .*'head'.* is not supported"),
        ({"peft_type": "PREFIX_TUNING"}, "'PREFIX_TUNING'; LORA and PROMPT_TUNING are supported"),
    ):
        with pytest.raises(ModelError, match=text):
            Adapter.parse_config(values | change)
    del values["num_virtual_tokens"]
    with pytest.raises(ModelError, match="'num_virtual_tokens' is missing"):
        Adapter.parse_config(values)
    adapted, session = loaded("llama", "start")
    with pytest.raises(CheckpointError, match=r"float32\[5, 16\], not float32\[4, 16\]"):
        inject_prompt(MODELS / "llama.onnx", 4).load_adapter(session, adapted.adapter())
    with pytest.raises(CheckpointError, match="peft_type LORA, and this model was made for PROMPT_TUNING"):
        adapted.load_adapter(session, Adapter(adapted.adapter().tensors, LoraConfig(("q_proj",))))
    with pytest.raises(ModelError, match="vectors of 24 numbers; the model's embeddings have 16"):
        inject_prompt(MODELS / "llama.onnx", config=PromptConfig(5, 24))


def test_merging_writes_a_model_with_the_vectors() -> None:
    adapted, session = loaded("llama", "end")
    merged = trainweb.InferenceSession(adapted.merge(session))
    try:
        (found,) = merged.run(None, feeds_of("llama", labels=False))
    finally:
        merged.release()
    np.testing.assert_allclose(found, recorded("llama")["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2])
def test_positions_that_are_fed_move_behind_the_vectors(rank: int) -> None:
    """The oracle adds learned positions to embeddings with numpy."""
    rng = np.random.default_rng(2)
    table, places = rng.normal(size=(7, 4)).astype(np.float32), rng.normal(size=(12, 4)).astype(np.float32)
    weights = {"table": table, "places": places}
    dims = ("batch", "sequence")
    graph = Graph(
        "positions",
        [
            Node("Gather", ["table", "input_ids"], ["words"], {}, "", "words"),
            Node("Gather", ["places", "position_ids"], ["moved"], {}, "", "moved"),
            Node("Add", ["words", "moved"], ["sum"], {}, "", "sum"),
            Node("Transpose", ["table"], ["head"], {"perm": [1, 0]}, "", "head"),
            Node("MatMul", ["sum", "head"], ["logits"], {}, "", "logits"),
        ],
        [Value("input_ids", "int64", dims), Value("position_ids", "int32", dims[2 - rank :])],
        [Value("logits", "float32", (*dims, 7))],
        {n: Tensor(n, "float32", a.shape, a.tobytes()) for n, a in weights.items()},
        opsets={"": 13},
    )
    adapted = inject_prompt(graph, tokens=3, seed=1)
    start = trainweb.InferenceSession(adapted.merge(adapted.adapter()))
    ids, positions = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[0, 1, 2], [4, 3, 2]][:rank], np.int32)
    positions = positions if rank == 2 else positions[0]
    feeds = {"input_ids": ids, "position_ids": positions}
    try:
        (found,) = start.run(None, feeds)
    finally:
        start.release()
    np.testing.assert_allclose(found, (table[ids] + places[positions + 3]) @ table.T, rtol=1e-5, atol=1e-6)


def main() -> None:
    """Save the prompts of trainweb."""
    for name in NAMES:
        adapted, session, _ = steps(name)
        adapted.adapter(session).save(RECORDED / f"{name}.own")


if __name__ == "__main__":
    main()
