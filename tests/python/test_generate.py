"""`generate` against recordings of transformers (tests/golden/generate) and against predictions of whole texts."""

import json
import re
from collections import Counter, UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bench import smol
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.each import run_each
from tests.python.sessions import take_steps

from trainweb import InferenceSession, TrainingSession
from trainweb.artifacts import build_artifacts
from trainweb.errors import ModelError, ReleasedError, SessionError, UnsupportedError
from trainweb.generation.generate import Sampling
from trainweb.training.decoder import Decoder
from trainweb.training.step_kind import StepKind

GOLDEN = Path(__file__).parents[1] / "golden" / "generate"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
MODELS = EXPECTED["models"]
CASES = [(name, k) for name in MODELS for k in range(3)]
DRAWS = 3000


OPENED: list[TrainingSession | InferenceSession] = []
PARAMETERS = [
    "model.lm_head.weight",
    "model.model.norm.weight",
    *(
        f"model.model.layers.{layer}.{part}.weight"
        for layer in range(2)
        for part in (
            *(f"self_attn.{letter}_proj" for letter in "qkvo"),
            *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
            *("input_layernorm", "post_attention_layernorm"),
        )
    ),
]
"""Of llama, whose head is the table of embeddings, too."""


@pytest.fixture(autouse=True)
def release() -> Iterator[None]:
    """Release the sessions of a test."""
    yield
    while OPENED:
        OPENED.pop().release()


def session_of(model: Any, **options: Any) -> InferenceSession:
    OPENED.append(session := InferenceSession(model, options))
    return session


def inference(name: str, **options: Any) -> InferenceSession:
    return session_of(GOLDEN / f"{name}.onnx", **options)


def training(**settings: Any) -> TrainingSession:
    if "lora" not in settings:
        settings["requires_grad"] = PARAMETERS
    session = TrainingSession.from_model(GOLDEN / "llama.onnx", loss="CrossEntropyLoss", learning_rate=0.05, **settings)
    OPENED.append(session)
    return session


def trained(model: bytes) -> TrainingSession:
    session = TrainingSession.from_model(model, loss="CrossEntropyLoss")
    OPENED.append(session)
    return session


def tokens_of(session: TrainingSession | InferenceSession, prompt: Any, count: int = 24, **settings: Any) -> list[int]:
    return [one.token for one in session.generate(prompt, max_tokens=count, **settings)]


def predicted(session: TrainingSession, prompt: list[int], count: int) -> list[int]:
    """The most likely tokens by predictions of the whole text, token by token."""
    tokens = list(prompt)
    for _ in range(count):
        ids = np.array([tokens])
        (logits,) = session.predict({"input_ids": ids, "attention_mask": np.ones_like(ids)}).values()
        tokens.append(int(logits.reshape(len(tokens), -1)[-1].argmax()))
    return tokens[len(prompt) :]


def learn(session: TrainingSession, ids: Any = None) -> None:
    ids = np.random.default_rng(0).integers(0, 61, (1, 12)) if ids is None else np.array([ids])
    take_steps(session, {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": np.roll(ids, -1, 1)}, 3)


@pytest.mark.parametrize(("name", "k"), CASES)
def test_the_most_likely_tokens_are_those_of_transformers(name: str, k: int) -> None:
    case = MODELS[name][k]
    session = inference(name)
    assert tokens_of(session, case["prompt"]) == case["tokens"]


@pytest.mark.parametrize(("name", "k"), CASES)
def test_logits_after_a_prompt_are_those_of_transformers(name: str, k: int) -> None:
    case = MODELS[name][k]
    core = inference(name)._core
    logits = np.frombuffer(core.decoder.logits(core, case["prompt"], "logits", 96, adapter=True), np.float32)
    np.testing.assert_allclose(logits, case["logits"], atol=2e-5)


def test_a_training_session_generates_with_what_it_learned() -> None:
    session = training()
    prompt = MODELS["llama"][0]["prompt"]
    assert tokens_of(session, prompt) == MODELS["llama"][0]["tokens"]
    learn(session)
    learned = tokens_of(session, prompt, 12)
    assert learned != MODELS["llama"][0]["tokens"][:12]
    assert learned == predicted(session, prompt, 12)


def test_training_between_two_tokens_counts_for_all_tokens() -> None:
    session = training()
    prompt = MODELS["llama"][1]["prompt"]
    steps = session.generate(prompt, max_tokens=16)
    before = [next(steps).token for _ in range(6)]
    learn(session)
    after = [one.token for one in steps]
    assert after == predicted(session, [*prompt, *before], 10)


def test_texts_that_are_generated_by_turns_do_not_mix() -> None:
    session = inference("qwen3")
    cases = MODELS["qwen3"]
    texts: list[Iterator[Any]] = [session.generate(case["prompt"], max_tokens=12) for case in cases]
    found = [[next(text).token for text in texts] for _ in range(12)]
    assert [list(text) for text in zip(*found, strict=True)] == [case["tokens"][:12] for case in cases]


def with_another_result() -> bytes:
    """A model of tokens, and a result that takes room beside the caches."""
    model = onnx.ModelProto.FromString(model_of(attention(causal=True)))
    model.graph.node.append(helper.make_node("Tanh", ["table"], ["bounded"]))
    model.graph.node.append(helper.make_node("Gather", ["bounded", "input_ids"], ["other"]))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, None))
    return model.SerializeToString()


def test_caches_that_another_result_has_moved_are_filled_again() -> None:
    expected = tokens_of(session_of(with_another_result()), [3, 1, 4, 1, 5])
    session = session_of(with_another_result())
    steps = session.generate([3, 1, 4, 1, 5], max_tokens=24)
    tokens = [next(steps).token for _ in range(9)]
    session.run(["other"], {"input_ids": np.array([[1, 2]])})
    assert [*tokens, *(one.token for one in steps)] == expected


def test_a_text_has_the_bits_that_it_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go on from the rows of one before, which were computed one by one."""
    bits: list[bytes] = []

    def logits(*args: Any, **settings: Any) -> bytes:
        bits.append(computed(*args, **settings))
        return bits[-1]

    computed = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", logits)
    session, prompt = inference("llama"), np.arange(40) % 61
    tokens = tokens_of(session, prompt, 30)
    tokens_of(session, [*prompt, *tokens], 1)
    tokens_of(inference("llama"), [*prompt, *tokens], 1)
    assert bits[-2] == bits[-1] != bits[-3]


def test_a_session_with_room_for_one_plan_gives_the_same_tokens() -> None:
    case = MODELS["phi"][2]
    assert tokens_of(inference("phi", max_plans=1), case["prompt"]) == case["tokens"]


def test_adapters_of_dora_cannot_be_left_out() -> None:
    session = training(lora={"rank": 2, "use_dora": True})
    assert tokens_of(session, MODELS["llama"][0]["prompt"], 3) == MODELS["llama"][0]["tokens"][:3]
    with pytest.raises(UnsupportedError, match="DoRA"):
        tokens_of(session, MODELS["llama"][0]["prompt"], 3, adapter=False)


def test_adapters_can_be_left_out() -> None:
    session = training(lora={"rank": 2})
    prompt, tokens = MODELS["llama"][0]["prompt"], MODELS["llama"][0]["tokens"]
    assert tokens_of(session, prompt) == tokens
    learn(session)
    adapted = tokens_of(session, prompt, 12)
    assert adapted == predicted(session, prompt, 12) != tokens[:12]
    assert tokens_of(session, prompt, adapter=False) == tokens
    assert tokens_of(session, prompt, 12) == adapted


@pytest.mark.parametrize("law", EXPECTED["sampling"]["laws"], ids=lambda law: str(law["settings"]))
def test_draws_have_the_probabilities_of_transformers(law: dict[str, Any]) -> None:
    logits = np.array(EXPECTED["sampling"]["logits"], np.float32)
    sampling = Sampling(**law["settings"], seed=5)
    counts = Counter(sampling.choose(logits, place, 0) for place in range(DRAWS))
    expected = np.array(law["probabilities"])
    drawn = np.array([counts[k] for k in range(len(logits))])
    assert not drawn[expected == 0].any()
    deviation = np.sqrt(DRAWS * expected * (1 - expected))
    assert (np.abs(drawn - DRAWS * expected) <= 4 * deviation + 1e-9).all()


@pytest.mark.parametrize("law", [{}, {"top_k": 3}, {"top_p": 1e-12}])
def test_the_smallest_temperature_takes_the_most_likely_token(law: dict[str, Any]) -> None:
    logits = np.array([3, -80, 90, 89.999, -np.inf], np.float32)
    assert Sampling(1e-310, **law).choose(logits, 0, 0) == 2


def test_the_inputs_that_transformers_makes_of_a_text_are_a_prompt() -> None:
    case = MODELS["llama"][1]
    rows = {"input_ids": np.array([case["prompt"]]), "attention_mask": np.ones((1, len(case["prompt"])), np.int64)}
    nested = {name: array.tolist() for name, array in rows.items()}
    for inputs in (rows, UserDict(rows), {"input_ids": case["prompt"]}, nested, nested["input_ids"]):
        assert tokens_of(inference("llama"), inputs) == case["tokens"]


PADDED = {"left": (5, 0), "right": (0, 3), "both": (2, 4)}
"""Tokens of padding on either side; 5 before the prompt were recorded."""


def padded(prompt: list[int], before: int, behind: int) -> dict[str, list[int]]:
    """The inputs that a tokenizer of transformers makes with padding by token 7."""
    mask = [0] * before + [1] * len(prompt) + [0] * behind
    ids = [7] * before + prompt + [7] * behind
    positions = [max(sum(mask[:k]), 0) for k in range(len(ids))]
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "token_type_ids": [0] * len(ids)}


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("side", PADDED)
def test_padding_of_a_prompt_is_left_out(name: str, side: str) -> None:
    """As transformers does with padding before a prompt, whether the model takes a mask (Llama, OPT) or not."""
    session = inference(name)
    for case in MODELS[name]:
        inputs: dict[str, Any] = padded(case["prompt"], *PADDED[side])
        assert tokens_of(session, inputs) == case["padded"] == case["tokens"]
        arrays = {key: np.array([row]) for key, row in inputs.items()}
        assert tokens_of(session, {**arrays, "attention_mask": arrays["attention_mask"] > 0}, 3) == case["padded"][:3]


def test_a_seed_decides_the_tokens() -> None:
    session = inference("gpt2")
    prompt = MODELS["gpt2"][0]["prompt"]
    first, again, other = (tokens_of(session, prompt, temperature=1.5, top_k=20, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert tokens_of(session, prompt, temperature=1.5, top_k=1, seed=3) == MODELS["gpt2"][0]["tokens"]


class Letters:
    """A tokenizer of one letter a token; 60 and 59 together are one character, as bytes of UTF-8 are."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 65 for letter in text]

    def decode(self, ids: list[int]) -> str:
        text = "".join("<" if one == 60 else ">" if one == 59 else chr(65 + one) for one in ids)
        return text.replace("<>", "é").replace("<", "\N{REPLACEMENT CHARACTER}")


def test_text_comes_with_the_tokens() -> None:
    case = MODELS["qwen3"][0]
    given = list(inference("qwen3").generate(Letters().decode(case["prompt"]), max_tokens=24, tokenizer=Letters()))
    assert [one.token for one in given] == case["tokens"]
    assert "".join(one.text or "" for one in given) == Letters().decode(case["tokens"])


def test_a_stop_token_is_the_last_one_and_has_no_text() -> None:
    case = MODELS["gpt2"][0]
    stop = case["tokens"][7]
    count = case["tokens"].index(stop) + 1
    given = list(inference("gpt2").generate(case["prompt"], max_tokens=24, stop=[stop], tokenizer=Letters()))
    assert [one.token for one in given] == case["tokens"][:count]
    assert "".join(one.text or "" for one in given) == Letters().decode(case["tokens"][: count - 1])


def test_a_stop_text_ends_the_text_before_it() -> None:
    case = MODELS["qwen3"][2]
    whole = Letters().decode(case["tokens"])
    stop = whole[5:8]
    given = list(inference("qwen3").generate(case["prompt"], max_tokens=24, stop=stop, tokenizer=Letters()))
    assert "".join(one.text or "" for one in given) == whole[: whole.index(stop)]
    assert len(given) == whole.index(stop) + 3


def test_a_beginning_of_a_stop_text_is_held_back_until_it_is_none() -> None:
    case = MODELS["qwen3"][2]
    whole = Letters().decode(case["tokens"])
    given = list(inference("qwen3").generate(case["prompt"], max_tokens=24, stop=whole[0] + "!!", tokenizer=Letters()))
    assert given[0].text == ""
    assert "".join(one.text or "" for one in given) == whole


def test_a_model_has_as_much_room_as_it_has_positions() -> None:
    """The last of 97 tokens has no row."""
    prompt = MODELS["gpt2"][0]["prompt"]
    texts = [tokens_of(inference("gpt2"), prompt, 87), tokens_of(inference("gpt2"), prompt, 88)]
    for count in (89, 2000, 10**9):
        text: list[int] = []
        with pytest.raises(ModelError, match=r"does not take 97 tokens, prompt.* or give fewer 'max_tokens'"):
            text.extend(one.token for one in inference("gpt2").generate(prompt, max_tokens=count))
        texts.append(text)
    assert texts == [texts[1][:87], *[texts[1]] * 4]


def test_the_most_tokens_take_no_memory_before_they_come() -> None:
    case = MODELS["llama"][0]
    text = inference("llama").generate(case["prompt"], max_tokens=2**31 - 1)
    assert [next(text).token for _ in case["tokens"]] == case["tokens"]


@pytest.mark.parametrize("name", MODELS)
def test_room_grows_with_a_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainweb.training.decoder.FIRST", 4)
    monkeypatch.setattr("trainweb.training.decoder.LENGTHS", 2)
    for case, rooms in zip(MODELS[name], ([16, 32], [4, 8, 16, 26], [64, 68]), strict=True):
        session = inference(name)
        assert tokens_of(session, case["prompt"]) == case["tokens"]
        kinds = map(StepKind.of, session._core.model._forwards)
        assert sorted({kind.request[1] for kind in kinds if kind.base == "generate"}) == rooms


def test_a_limit_of_sizes_is_an_error_of_the_text() -> None:
    """A mask of 46,341 tokens with each other takes 2 GiB."""
    core = inference("llama")._core
    assert core.decoder.length_for(core, "logits", 46_000, 10**9, adapter=True) == 46_340
    with pytest.raises(ModelError, match=r"does not take 46341 tokens.*46341\] is larger.*fewer 'max_tokens'"):
        core.decoder.length_for(core, "logits", 46_341, 10**9, adapter=True)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 0}, "ModelError", "max_tokens is 0"),
    ({"temperature": -1}, "ModelError", "temperature is -1"),
    ({"temperature": 1, "top_k": 0}, "ModelError", "top_k is 0"),
    ({"temperature": 1, "top_p": 1.5}, "ModelError", "top_p is 1.5; it must be a number greater than 0 and at most 1"),
    ({"temperature": 1, "seed": -1}, "ModelError", "seed is -1"),
    ({"top_k": 3}, "ModelError", "'top_k' changes nothing at temperature 0"),
    ({"seed": 3}, "ModelError", "'seed' changes nothing at temperature 0"),
    ({"stop": "x"}, "ModelError", "'stop' is text, which needs a tokenizer"),
    ({"stop": [1.5]}, "ModelError", "stop is"),
    ({"prompt": "x"}, "ModelError", "'prompt' is text, which needs a tokenizer"),
    ({"prompt": []}, "FeedError", "has no tokens"),
    ({"prompt": [0.5]}, "ModelError", "prompt is"),
    ({"prompt": [[1, 2], [3, 4]]}, "ModelError", "prompt is"),
    ({"prompt": {"input_ids": [[1, 2], [3, 4]]}}, "ModelError", "prompt is"),
    ({"prompt": {"ids": [1]}}, "ModelError", "prompt is"),
    ({"prompt": [1, -1]}, "ModelError", "prompt is"),
    ({"prompt": [{"role": "user", "content": "x"}]}, "ModelError", "make one of a chat by apply_chat_template"),
    ({"prompt": {"messages": [{"role": "user"}]}}, "ModelError", "make one of a chat by apply_chat_template"),
    ({"prompt": [61]}, "FeedError", "61"),
    ({"prompt": {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}}, "ModelError", "attention_mask is .*padding"),
    ({"prompt": {"input_ids": [1, 2, 3], "attention_mask": [0, 0.5, 1]}}, "ModelError", "attention_mask is"),
    ({"prompt": {"input_ids": [1, 2, 3], "attention_mask": [1, 2, 1]}}, "ModelError", "attention_mask is"),
    ({"prompt": {"input_ids": [1, 2, 3], "attention_mask": [1, 1]}}, "ModelError", "attention_mask is"),
    ({"prompt": {"input_ids": [1, 2, 3], "attention_mask": 1}}, "ModelError", "attention_mask is"),
    ({"prompt": {"input_ids": [1, 2, 3], "attention_mask": [[1, 1], [1]]}}, "ModelError", "(prompt|attention_mask) is"),
    ({"prompt": {"input_ids": [[1, 2], [3, 4]]}}, "ModelError", "prompt is"),
    ({"prompt": [[]]}, "FeedError", "has no tokens"),
    ({"prompt": {"input_ids": [1, 2, 3], "attention_mask": [0, 0, 0]}}, "FeedError", "has no tokens"),
    ({"prompt": {"input_ids": [1, 2, 3], "position_ids": [1, 2, 3]}}, "ModelError", "position_ids is .*0, 1, 2, "),
    ({"prompt": {"input_ids": [1, 2], "position_ids": [0, 1, 2]}}, "ModelError", "position_ids is"),
    ({"prompt": {"input_ids": [1, 2], "token_type_ids": [0, 1]}}, "ModelError", "token_type_ids is .*0 for each"),
    ({"adapter": 1}, "ModelError", "adapter is 1"),
    ({"adapter": False}, "ModelError", "the model has none"),
    ({"max_token": 3}, "TypeError", "max_tokens"),
]
"""Arguments, and the error: its class, and a part of its text; pages refuse the same."""


def test_arguments_are_checked() -> None:
    session = training()

    def check(case: tuple[dict[str, Any], str, str]) -> None:
        settings, name, text = case
        with pytest.raises(Exception, match=text) as caught:
            list(session.generate(**{"prompt": [1, 2], **settings}))
        assert type(caught.value).__name__ == name

    run_each(WRONG, check)


def test_a_released_session_does_not_go_on() -> None:
    session = training()
    steps = session.generate([1, 2])
    next(steps)
    session.release()
    with pytest.raises(ReleasedError):
        next(steps)


def test_a_session_without_an_eval_model_does_not_generate() -> None:
    artifacts = build_artifacts((GOLDEN / "llama.onnx").read_bytes(), loss="CrossEntropyLoss", requires_grad=PARAMETERS)
    session = TrainingSession(checkpoint=artifacts.checkpoint, train_model=artifacts.training_model)
    OPENED.append(session)
    with pytest.raises(SessionError, match="no EvalModel"):
        session.generate([1, 2])


def test_logits_that_are_not_finite_are_an_error_and_spoil_nothing() -> None:
    session = training()
    prompt = MODELS["llama"][0]["prompt"]
    name = next(n for n in session.parameter_names() if "norm" in n)
    kept = session.get_parameter(name)
    session.update_parameter(name, np.full_like(kept, np.nan))
    with pytest.raises(SessionError, match=r"Token 8 has a logit that is NaN"):
        next(session.generate(prompt))
    session.update_parameter(name, kept)
    assert tokens_of(session, prompt) == MODELS["llama"][0]["tokens"]


def with_nan(number: float) -> bytes:
    """A model whose token 6 is embedded as this number."""
    model = onnx.load_from_string(model_of(attention(causal=True)))
    table = numpy_helper.to_array(model.graph.initializer[0]).copy()
    table[6] = number
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(table, "table"))
    return model.SerializeToString()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_text_that_meets_nan_spoils_no_other(number: float) -> None:
    """Neither the next text nor one that was begun before, and waits."""
    session = session_of(with_nan(number))
    clean = tokens_of(session, [1, 2], 3)
    waiting = session.generate([1, 2], max_tokens=3)
    tokens = [next(waiting).token]
    with pytest.raises(SessionError, match="Token 5 has a logit that is NaN"):
        tokens_of(session, [1, 2, 1, 2, 1, 6])
    tokens += [one.token for one in waiting]
    assert tokens == clean == tokens_of(session, [1, 2], 3)


# Models that are not causal language models.


def model_of(nodes: list[Any], *inputs: str, output: str = "logits") -> bytes:
    rng = np.random.default_rng(0)
    values = {"table": rng.normal(size=(7, 4)), "head": rng.normal(size=(4, 7))}
    made = make_model(
        [helper.make_node("Gather", ["table", "input_ids"], ["x"]), *nodes],
        [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "n"]) for name in ("input_ids", *inputs)],
        {output: None},
        {name: value.astype(np.float32) for name, value in values.items()},
        opset=18,
    )
    return made.SerializeToString()


def attention(*, causal: bool) -> list[Any]:
    """Attention of one head whose values are the tokens."""
    size = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Concat", ["n", "n"], ["square"], axis=0),
        helper.make_node("ConstantOfShape", ["square"], ["lows"], value=numpy_helper.from_array(np.array([-1e9], "f"))),
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array(1))),
        helper.make_node("Trilu", ["lows", "one"], ["mask"], upper=1),
    ]
    return [
        *size,
        helper.make_node("Einsum", ["x", "x"], ["scores"], equation="bqd,bkd->bqk"),
        helper.make_node("Add" if causal else "Identity", ["scores", "mask"] if causal else ["scores"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "head"], ["logits"]),
    ]


def test_a_model_with_a_causal_mask_is_taken() -> None:
    assert len(tokens_of(session_of(model_of(attention(causal=True))), [1, 2, 3], 5)) == 5


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_log_probabilities_are_taken_as_logits(name: str) -> None:
    model = onnx.load(GOLDEN / f"{name}.onnx")
    (logits,) = model.graph.output
    model.graph.node.append(helper.make_node("LogSoftmax", [logits.name], ["log_prob"], "log", axis=-1))
    logits.name = "log_prob"
    case = MODELS[name][0]
    assert tokens_of(session_of(model.SerializeToString()), case["prompt"]) == case["tokens"]


def test_features_picked_by_tuples_are_taken() -> None:
    """As torch's exporter writes `x[..., [2, 0, 3, 1]]`, for Falcon with keys of one head."""
    places = numpy_helper.from_array(np.array([[2], [0], [3], [1]]))
    picked = [
        helper.make_node("Constant", [], ["places"], value=places),
        helper.make_node("Transpose", ["x"], ["columns"], perm=[2, 0, 1]),
        helper.make_node("GatherND", ["columns", "places"], ["picked"]),
        helper.make_node("Transpose", ["picked"], ["keys"], perm=[1, 2, 0]),
    ]
    mixing = attention(causal=True)
    scores = next(node for node in mixing if node.op_type == "Einsum")
    scores.input[1] = "keys"
    session = session_of(model_of([*picked, *mixing]))
    text = [1, 2, 3, 4, 5, 6]
    for token in tokens_of(session, text, 8):
        (logits,) = session.run(["logits"], {"input_ids": np.array([text])})
        assert token == logits[0, -1].argmax()
        text.append(token)


def test_quantized_tables_and_products_are_taken() -> None:
    rng = np.random.default_rng(0)
    sizes = {"K": 32, "N": 7, "bits": 4, "block_size": 32}
    values = {
        "table": rng.integers(0, 255, (7, 16), np.uint8),
        "table_scale": np.full((7, 1), 0.1, np.float32),
        "head": rng.integers(0, 255, (7, 1, 16), np.uint8),
        "head_scale": np.full(7, 0.1, np.float32),
    }
    mixing = attention(causal=True)[:-1]
    session = session_of(
        make_model(
            [
                helper.make_node(
                    "GatherBlockQuantized",
                    ["table", "input_ids", "table_scale"],
                    ["x"],
                    None,
                    None,
                    "com.microsoft",
                    block_size=32,
                    bits=4,
                ),
                *mixing,
                helper.make_node(
                    "MatMulNBits", ["mixed", "head", "head_scale"], ["logits"], None, None, "com.microsoft", **sizes
                ),
            ],
            {"input_ids": [1, "n"]},
            {"logits": None},
            values,
            opset=18,
            types={"input_ids": TensorProto.INT64},
            domains=["com.microsoft"],
        )
    )
    text = [1, 2, 3, 4, 5, 6]
    found = tokens_of(session, text, 8)
    for token in found:
        (logits,) = session.run(["logits"], {"input_ids": np.array([text])})
        assert token == logits[0, -1].argmax()
        text.append(token)


def test_a_model_without_a_causal_mask_is_refused() -> None:
    with pytest.raises(ModelError, match="the model is not causal"):
        tokens_of(session_of(model_of(attention(causal=False))), [1, 2, 3])


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([("ReduceMean", ["x"], {"keepdims": 1}, "y"), ("Add", ["x", "y"], {}, "z")], "it mixes tokens"),
        ([("Softmax", ["x"], {"axis": 1}, "z")], "it mixes tokens"),
        ([("Transpose", ["x"], {"perm": [0, 2, 1]}, "y"), ("MatMul", ["y", "x"], {}, "z")], "it mixes tokens"),
        (
            [
                ("Equal", ["x", "x"], {}, "y"),
                ("Cast", ["y"], {"to": 7}, "one"),
                ("GatherElements", ["x", "one"], {"axis": 1}, "z"),
            ],
            "it mixes tokens",
        ),
        ([("CumSum", ["x", "axis"], {}, "z")], "its effect on a sequence is not known"),
    ],
)
def test_operators_that_mix_tokens_are_refused(nodes: list[Any], text: str) -> None:
    axis = helper.make_node("Constant", [], ["axis"], value=numpy_helper.from_array(np.array(1)))
    made = [helper.make_node(kind, inputs, [output], **attrs) for kind, inputs, attrs, output in nodes]
    session = session_of(model_of([axis, *made, helper.make_node("MatMul", ["z", "head"], ["logits"])]))
    with pytest.raises(UnsupportedError, match=text):
        tokens_of(session, [1, 2, 3])


def fixed(shape: list[Any], inside: list[int] | None = None) -> bytes:
    """A model that declares a shape of its ids, and computes embeddings of the shape `inside`."""
    nodes = [helper.make_node("MatMul", ["x" if inside is None else "y", "head"], ["logits"])]
    if inside is not None:
        given = helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array(inside)))
        nodes = [given, helper.make_node("Reshape", ["x", "shape"], ["y"]), *nodes]
    made = onnx.load_from_string(model_of(nodes))
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape))
    return made.SerializeToString()


@pytest.mark.parametrize(("shape", "inside"), [([2, 9], [2, 9, 4]), ([2, "n"], [2, -1, 4]), (["b", 9], [-1, 9, 4])])
def test_a_model_of_fixed_shapes_is_refused(shape: list[Any], inside: list[int]) -> None:
    text = rf"Input 'input_ids' has the fixed shape {re.escape(str(shape))}.*Export the model with dynamic axes"
    for session in (session_of(fixed(shape, inside)), trained(fixed(shape, inside))):
        with pytest.raises(ModelError, match=text):
            tokens_of(session, [1, 2, 3])


def test_a_graph_that_computes_any_shape_is_taken_whatever_it_declares() -> None:
    assert tokens_of(session_of(fixed([2, 9])), [1, 2, 3]) == tokens_of(session_of(fixed([1, "n"])), [1, 2, 3])


def test_an_output_without_rows_of_tokens_is_refused() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["logits"], to=TensorProto.FLOAT)]
    with pytest.raises(ModelError, match="does not have a row for each token"):
        tokens_of(session_of(model_of(nodes)), [1, 2, 3])


def test_an_input_that_is_not_known_is_refused() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "speakers"], ["y"]),
        helper.make_node("Add", ["x", "y"], ["z"]),
        helper.make_node("MatMul", ["z", "head"], ["logits"]),
    ]
    with pytest.raises(ModelError, match="does not know what to give the input 'speakers'"):
        tokens_of(session_of(model_of(nodes, "speakers")), [1, 2, 3])


def test_two_outputs_of_which_none_is_called_logits_are_refused() -> None:
    made = onnx.load_from_string(model_of([helper.make_node("MatMul", ["x", "head"], ["y"])], output="y"))
    made.graph.output.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="Name the output 'logits'"):
        session_of(made).generate([1, 2])


def test_two_inputs_of_integers_need_a_name() -> None:
    made = onnx.load_from_string(model_of([helper.make_node("MatMul", ["x", "head"], ["logits"])], "other"))
    made.graph.input[0].name = "first"
    made.graph.node[0].input[1] = "first"
    made.graph.node.append(helper.make_node("Gather", ["table", "other"], ["z"]))
    made.graph.node[1].input[0] = "sum"
    made.graph.node.insert(1, helper.make_node("Add", ["x", "z"], ["sum"]))
    made.graph.node.insert(1, made.graph.node.pop())
    with pytest.raises(ModelError, match="it has first, other"):
        tokens_of(session_of(made), [1, 2])


def test_a_session_that_trains_scalars_writes_tokens(tmp_path: Path) -> None:
    """The mask's numbers are parameters of no axes here. The oracle predicts whole texts."""
    size = smol.Size(layers=1, width=32, heads=2, key_heads=1, hidden=64, vocabulary=50)
    floats = [t.name for t in smol.graph_of(size).graph.initializer if t.data_type == TensorProto.FLOAT]
    path = smol.write(tmp_path, size)
    session = TrainingSession.from_model(path, loss="CrossEntropyLoss", requires_grad=floats)
    OPENED.append(session)
    assert any(session.get_parameter(name).ndim == 0 for name in session.parameter_names())
    text = [3, 1, 4]
    for _ in range(8):
        logits = session.predict({"input_ids": [text]})["logits"]
        text.append(int(np.argmax(logits[0, -1])))
    assert tokens_of(session, text[:3], 8) == text[3:]
