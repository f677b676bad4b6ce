"""`Dataset.from_text` against a recorded table and a second formula, and in a training."""

import json
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.python.test_generate import GOLDEN, OPENED, PARAMETERS, release, tokens_of

from trainweb import TrainingSession
from trainweb.data import Dataset
from trainweb.errors import TrainwebError
from trainweb.generation.generate import tokens_of as request_tokens

__all__ = ["release"]  # the fixture

END = 9
CHATS: dict[str, Any] = json.loads((GOLDEN.parent / "chats" / "expected.json").read_text())["tokenizers"]


def chat(*turns: str) -> dict[str, Any]:
    """A chat of a user and an assistant."""
    return {"messages": [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(turns)]}


def turns(*prompt: str, then: tuple[str, ...]) -> dict[str, Any]:
    """A chat whose last turns are the completion."""
    messages = chat(*prompt, *then)["messages"]
    return {"prompt": messages[: len(prompt)], "completion": messages[len(prompt) :]}


PAIRS = [{"prompt": "ab", "completion": "c"}, {"prompt": "d", "completion": "ef"}]
BOTH = ["input_ids", "attention_mask", "position_ids", "labels"]
TABLE: list[tuple[list[Any], dict[str, Any], dict[str, list[list[int]]]]] = [
    (
        ["abc", "de", "fgh"],
        {"length": 4},
        {"input_ids": [[0, 1, 2, 9], [3, 4, 9, 5]], "labels": [[1, 2, 9, 3], [4, 9, 5, 6]]},
    ),
    (
        ["abc", "d"],
        {"length": 4, "pack": False, "inputs": BOTH},
        {
            "input_ids": [[0, 1, 2, 0], [3, 0, 0, 0]],
            "attention_mask": [[1, 1, 1, 0], [1, 0, 0, 0]],
            "position_ids": [[0, 1, 2, 3], [0, 1, 2, 3]],
            "labels": [[1, 2, 9, -100], [9, -100, -100, -100]],
        },
    ),
    (
        PAIRS,
        {"length": 3, "mask_prompt": True, "inputs": BOTH},
        {
            "input_ids": [[0, 1, 2], [9, 3, 4]],
            "attention_mask": [[1, 1, 1], [1, 1, 1]],
            "position_ids": [[0, 1, 2], [0, 1, 2]],
            "labels": [[-100, 2, 9], [-100, 4, 5]],
        },
    ),
    (
        PAIRS,
        {"length": 4, "pack": False, "mask_prompt": True, "end_token": 7},
        {"input_ids": [[0, 1, 2, 0], [3, 4, 5, 0]], "labels": [[-100, 2, 7, -100], [4, 5, 7, -100]]},
    ),
    (  # the rows between, of a prompt alone, have nothing to learn
        [{"prompt": "a", "completion": "b"}, {"prompt": "abcdefg", "completion": "h"}],
        {"length": 2, "mask_prompt": True},
        {"input_ids": [[0, 1], [5, 6]], "labels": [[1, 9], [-100, 7]]},
    ),
    (  # the tokenizer has put the end there already
        ["abj", "ab"],
        {"length": 4, "pack": False},
        {"input_ids": [[0, 1, 0, 0], [0, 1, 0, 0]], "labels": [[1, 9, -100, -100], [1, 9, -100, -100]]},
    ),
    (
        [{"text": "abc"}, "d"],
        {"length": 2},
        {"input_ids": [[0, 1], [2, 9]], "labels": [[1, 2], [9, 3]]},
    ),
    (
        [{"prompt": "xy", "completion": "yz"}],
        {"length": 3, "mask_prompt": True},
        {"input_ids": [[23, 99, 25]], "labels": [[99, 25, 9]]},
    ),
    (  # the template has the letter i before a turn and j after it, and the tokens around texts are its own
        [chat("ab", "c"), "ab"],
        {"length": 7, "pack": False},
        {
            "input_ids": [[8, 0, 1, 9, 8, 2, 0], [0, 1, 0, 0, 0, 0, 0]],
            "labels": [[0, 1, 9, 8, 2, 9, -100], [1, 9, -100, -100, -100, -100, -100]],
        },
    ),
    (
        [chat("ab", "c", "d", "e")],
        {"length": 13, "pack": False, "mask_prompt": True, "end_token": 7},
        {
            "input_ids": [[8, 0, 1, 9, 8, 2, 9, 8, 3, 9, 8, 4, 9]],
            "labels": [[*[-100] * 10, 4, 9, 7]],
        },
    ),
    (  # the first answer has it
        [chat("ab", "k"), chat("a", "k", "b", "c")],
        {"length": 12, "pack": False, "end_token": 10},
        {
            "input_ids": [[8, 0, 1, 9, 8, 10, *[0] * 6], [8, 0, 9, 8, 10, 9, 8, 1, 9, 8, 2, 9]],
            "labels": [[0, 1, 9, 8, 10, 9, *[-100] * 6], [0, 9, 8, 10, 9, 8, 1, 9, 8, 2, 9, 10]],
        },
    ),
    (  # all turns of a completion are learned
        [turns("ab", then=("c", "d", "e"))],
        {"length": 12, "pack": False, "mask_prompt": True},
        {
            "input_ids": [[8, 0, 1, 9, 8, 2, 9, 8, 3, 9, 8, 4]],
            "labels": [[*[-100] * 4, 2, 9, 8, 3, 9, 8, 4, 9]],
        },
    ),
]
"""Written by hand: a is 0, b 1; the letters yy are the token 99."""

FAULTS: list[tuple[Any, dict[str, Any], str]] = [
    ([], {"length": 4}, "'texts' is empty"),
    ("abc", {"length": 4}, "must be a list of texts"),
    (["abc", 3], {"length": 4}, "Text 1 is"),
    ([{"prompt": "a"}], {"length": 4}, "Text 0 is"),
    ([{"text": 3}], {"length": 4}, "Text 0 is"),
    (
        [{"id": 1, "source": "x"}],
        {"length": 4},
        " of id, source; each of 'texts' is a text, or has the column 'text', ",
    ),
    ([chat("a", "b"), chat("a")], {"length": 4}, "Text 1 is a chat whose last message is not of the role"),
    ([{"messages": []}], {"length": 4}, "Text 0 is a chat whose last message is not of"),
    ([{"messages": "ab"}], {"length": 4}, "Text 0 is a chat whose last message is not of"),
    ([turns("a", then=("b", "c"))], {"length": 4}, "Text 0 is a chat whose last message is not of"),
    ([{**turns("a", then=()), "completion": "b"}], {"length": 4}, "Text 0 is"),
    (["abc", ""], {"length": 4}, "Text 1 is empty"),
    ([{"prompt": "a", "completion": ""}], {"length": 4}, "Text 0 is empty"),
    (["abc"], {"length": 4, "mask_prompt": True}, "Text 0 has no prompt"),
    (["abc"], {"length": 4}, "The 4 tokens of the texts fill no row of length 4"),
    (["a", "abcde"], {"length": 4, "pack": False}, "Text 1 has 6 tokens; a row of length 4 has room for 5"),
    ([{"prompt": "ab", "completion": "c"}], {"length": 1}, "an integer >= 2"),
    (["abc"], {"length": []}, "length is []; it must be an integer >= 2 or a list"),
    (["abc"], {"length": [4, 1], "pack": False, "batch_size": 2}, "length[1] is 1; it must be an integer >= 2"),
    (["abc"], {"length": [2, 4], "batch_size": 2}, "if 'length' is a list"),
    (["abc"], {"length": [2, 4], "pack": False}, "it must be given with a list of lengths or a seed"),
    (["abc"], {"length": 2, "seed": 1}, "it must be given with a list of lengths or a seed"),
    (["abc"], {"length": 2, "batch_size": 0}, "must be an integer >= 1"),
    (["abc"], {"length": 2, "batch_size": 2, "seed": -1}, "must be an integer >= 0"),
    (["a", "abcde"], {"length": [4, 2], "pack": False, "batch_size": 2}, "a row of length 4 has room for 5"),
    (["abc"], {"length": 2, "end_token": -1}, "an integer >= 0"),
    (["abc"], {"length": 2**28, "pack": False}, "1 rows of length 268435456 take 2147483648 bytes for each input"),
    (["abc"], {"length": [4, 10**9], "pack": False, "batch_size": 1}, "Give a smaller 'length'"),
    (["a\x1fb"], {"length": 2}, "encode returned a negative id"),
    (["abc"], {"length": 2, "inputs": ["input_ids"]}, "input_ids and labels"),
    (["abc"], {"length": 2, "inputs": ["input_ids", "labels", "x"]}, "input_ids and labels"),
]
"""Texts, options and a part of the error."""


BATCHES: dict[str, Any] = {"length": [8, 3, 5], "pack": False, "batch_size": 4, "seed": 5, "inputs": BOTH}
TEXTS = ["abcdefgh"[: 1 + k * 5 % 8] for k in range(30)]
"""Of 1 to 8 letters, and as many rows without the end token."""


class Letters:
    """A tokenizer by letters, with one token of two."""

    eos_token_id: int | None = END

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Any:
        assert not add_special_tokens or not text.startswith("i")
        return [99 if one == "\n" else ord(one) - 97 for one in text.replace("yy", "\n")]

    def apply_chat_template(self, chat: list[Any], *, tokenize: bool, add_generation_prompt: bool = False) -> str:
        assert not tokenize
        return "".join(f"i{one['content']}j" for one in chat) + "i" * add_generation_prompt

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + one) for one in ids)


class Encoding:
    """The result of a tokenizer of `tokenizers` that pads."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.attention_mask = [7, *ids, 7], [0, *(1 for _ in ids), 0]


class Objects(Letters):
    eos_token_id = None
    apply_chat_template = None

    def encode(self, text: str) -> Encoding:
        return Encoding(super().encode(text))


class Echo(Letters):
    """No tokenizer, as it gives text."""

    def encode(self, text: str) -> str:
        return text


def model() -> TrainingSession:
    """The small llama of test_generate, whose inputs are input_ids and attention_mask."""
    loss = {"type": "CrossEntropyLoss", "ignore_index": -100}
    session = TrainingSession.from_model(GOLDEN / "llama.onnx", loss=loss, learning_rate=0.05, requires_grad=PARAMETERS)
    OPENED.append(session)
    return session


def lists_of(data: Dataset) -> dict[str, list[list[int]]]:
    assert data.columns is not None
    assert {str(array.dtype) for array in data.columns.values()} == {"int64"}
    return {name: array.tolist() for name, array in data.columns.items()}


@pytest.mark.parametrize(("texts", "options", "expected"), TABLE)
def test_texts_become_these_rows(texts: list[Any], options: dict[str, Any], expected: Any) -> None:
    assert lists_of(Dataset.from_text(texts, Letters(), **options)) == expected


def test_columns_that_nothing_reads_are_named_once() -> None:
    rows: list[Any] = [{"text": "abc", "meta": 1}, {"id": 5, "source": "x", **chat("ab", "c")}, "de"]
    rows.append({"prompt": "a", "completion": "b", "id": 7})
    with pytest.warns(UserWarning, match="These columns of the texts are not read: id, meta, source.") as caught:
        found = lists_of(Dataset.from_text(rows, Letters(), length=8, pack=False))
    plain = ["abc", chat("ab", "c"), "de", {"prompt": "a", "completion": "b"}]
    assert found == lists_of(Dataset.from_text(plain, Letters(), length=8, pack=False)) and len(caught) == 1


class Frame(list[str]):
    """A table, which iterates over the names of its columns; its library has a method that makes rows of it."""

    def __init__(self, rows: list[dict[str, Any]], method: str) -> None:
        super().__init__(rows[0])
        if method == "to_dict":  # as of pandas, whose lists are arrays
            self.iloc, self.columns = None, list(rows[0])
            rows = [{n: np.array(v) if isinstance(v, list) else v for n, v in row.items()} for row in rows]
        setattr(self, method, lambda *form: rows if form in ((), ("records",)) else None)


@pytest.mark.parametrize("method", ["to_dict", "to_dicts", "to_pylist"])
def test_the_rows_of_a_table_are_the_texts(method: str) -> None:
    rows = [{"messages": chat("ab", "c")["messages"], "id": 1}, {"messages": chat("d", "ef")["messages"], "id": 2}]
    with pytest.warns(UserWarning, match="not read: id"):
        found = lists_of(Dataset.from_text(Frame(rows, method), Letters(), length=8, pack=False))
    plain = [{"messages": row["messages"]} for row in rows]
    assert found == lists_of(Dataset.from_text(plain, Letters(), length=8, pack=False))


class Recorded:
    """A tokenizer and its template, as transformers recorded what they make (tests/golden/chats)."""

    def __init__(self, name: str) -> None:
        self.found = CHATS[name]
        self.eos_token_id = self.found["eos"]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self.found["encode"][f"{int(add_special_tokens)}{text}"]
        return ids

    def decode(self, ids: list[int]) -> str:
        return str(ids)

    def apply_chat_template(self, chat: list[Any], tokenize: bool = True, add_generation_prompt: bool = False) -> str:
        form = "prompt" if add_generation_prompt else "whole"
        assert not tokenize
        return next(
            one["rendered"][form]
            for one in self.found["chats"]
            if chat == one["messages"][: len(one["messages"]) - add_generation_prompt]
        )


def row_of(item: Any, name: str, **options: Any) -> tuple[list[int], int]:
    """The ids of a text, and the number of those that are not learned."""
    made = Dataset.from_text([item], Recorded(name), length=100, pack=False, inputs=BOTH, **options)
    found = {name: values[0] for name, values in lists_of(made).items()}
    count = sum(found["attention_mask"])
    learned = [label for label in found["labels"] if label != -100]
    ids = [*found["input_ids"][: count + 1 - len(learned)], *learned]
    return ids, len(ids) - len(learned)


@pytest.mark.filterwarnings("ignore:The prompt of text 0 is not the beginning")
@pytest.mark.parametrize("name", CHATS)
def test_chats_have_the_ids_of_transformers_and_are_learned_as_in_trl(name: str) -> None:
    for case in CHATS[name]["chats"]:
        ids, start = case["ids"], case["start"]
        messages = {"messages": case["messages"]}
        assert row_of(messages, name, mask_prompt=True) == (ids["whole"], start)
        parts = {"prompt": case["messages"][:-1], "completion": case["messages"][-1:]}
        assert row_of(parts, name, mask_prompt=True) == (ids["whole"], start)
        end = CHATS[name]["eos"]
        ended = ids["whole"] + [end] * (end not in ids["whole"][start:])
        assert row_of(messages, name, mask_prompt=True, end_token=end) == (ended, start)
        assert row_of(messages, name, end_token=end)[0] == ended


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_that_is_text_already_starts_once(name: str) -> None:
    """A tokenizer would put its first token before that of the template."""
    for case in CHATS[name]["chats"]:
        ids, texts, end = case["ids"], case["rendered"], CHATS[name]["eos"]
        whole = ids["whole"] + [end] * (ids["whole"][-1] != end)
        assert request_tokens(texts["prompt"], Recorded(name)) == ids["prompt"]
        assert row_of({"text": texts["whole"]}, name)[0] == row_of(texts["whole"], name)[0] == whole
        if texts["whole"].startswith(texts["prompt"]):
            parts = {"prompt": texts["prompt"], "completion": texts["whole"].removeprefix(texts["prompt"])}
            assert row_of(parts, name, mask_prompt=True) == (whole, case["start"])


def test_the_lost_end_of_a_prompt_is_named_once() -> None:
    cases = CHATS["moved"]["chats"]
    lost = re.escape(str(cases[0]["ids"]["prompt"][cases[0]["start"] :]))
    with pytest.warns(UserWarning, match=rf"prompt of text 0 .* lacks the end of the prompt: '{lost}'") as caught:
        rows = [{"messages": case["messages"]} for case in cases]
        Dataset.from_text(rows, Recorded("moved"), length=32, mask_prompt=True)
    assert len(caught) == 1


def test_a_template_may_belong_to_a_tokenizer_of_text_alone() -> None:
    class Plain:
        eos_token_id = END

        def encode(self, text: str) -> list[int]:
            return [ord(one) - 97 for one in text]

        def apply_chat_template(self, chat: Any, **settings: Any) -> str:
            return "".join(one["content"] for one in chat)

    found = lists_of(Dataset.from_text([chat("ab", "c")], Plain(), length=2, mask_prompt=True))
    assert found == {"input_ids": [[0, 1]], "labels": [[-100, 2]]}


def test_packed_rows_are_each_token_and_the_next() -> None:
    """The labels by the place of each token in the whole text."""
    draw = random.Random(3)
    for _ in range(50):
        texts = ["".join(draw.choices("abcdefgh", k=draw.randrange(1, 30))) for _ in range(draw.randrange(1, 9))]
        length = draw.randrange(2, 8)
        stream = "".join(text + "j" for text in texts)
        expected = [
            [stream[k : k + length], stream[k + 1 : k + length + 1]]
            for k in range(0, len(stream), length)
            if k + length < len(stream)
        ]
        if expected:
            columns = lists_of(Dataset.from_text(texts, Letters(), length=length))
            words = {name: ["".join(chr(97 + k) for k in row) for row in rows] for name, rows in columns.items()}
            assert [list(pair) for pair in zip(words["input_ids"], words["labels"], strict=True)] == expected


def batches_of(data: Dataset) -> list[dict[str, list[list[int]]]]:
    return [{name: array.tolist() for name, array in batch.items()} for batch in data]


def test_texts_of_like_length_make_a_batch() -> None:
    data = Dataset.from_text(TEXTS, Letters(), **BATCHES)
    first, second = batches_of(data), batches_of(data)
    assert first != second and batches_of(Dataset.from_text(TEXTS, Letters(), **BATCHES)) == first
    padded = lists_of(Dataset.from_text(TEXTS, Letters(), length=8, pack=False, inputs=BOTH))
    for batches in (first, second):
        rows = []
        for batch in batches:
            length = len(batch["labels"][0])
            longest = max(sum(row) for row in batch["attention_mask"])
            assert length == next(n for n in (3, 5, 8) if n >= longest) and len(batch["labels"]) <= 4
            for row in zip(*(batch[name] for name in BOTH), strict=True):
                # The row of the whole length has only padding behind.
                tail = ([0] * (8 - length), [0] * (8 - length), list(range(length, 8)), [-100] * (8 - length))
                rows.append([a + b for a, b in zip(row, tail, strict=True)])
        assert sorted(rows) == sorted(list(row) for row in zip(*(padded[name] for name in BOTH), strict=True))
    assert sum(len(batch["labels"]) < 4 for batch in first) <= 3, "one of each length is smaller"


def test_batches_of_packed_rows() -> None:
    data = Dataset.from_text(TEXTS, Letters(), length=4, batch_size=3)
    packed = lists_of(Dataset.from_text(TEXTS, Letters(), length=4))
    rows = [row for batch in data for row in batch["input_ids"].tolist()]
    assert rows != packed["input_ids"] and sorted(rows) == sorted(packed["input_ids"])


def test_a_batch_trains_like_its_padded_rows() -> None:
    session = model()
    inputs = session.input_names()
    options = {"pack": False, "batch_size": len(TEXTS), "inputs": inputs}
    losses = []
    for length in ([8], [12]):
        (batch,) = Dataset.from_text(TEXTS, Letters(), length=length, **options)
        losses.append(float(next(iter(session.train_step(batch).values()))))
        session.lazy_reset_grad()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(("texts", "options", "part"), FAULTS)
def test_wrong_texts_and_options_are_named(texts: Any, options: dict[str, Any], part: str) -> None:
    with pytest.raises(TrainwebError) as caught:
        Dataset.from_text(texts, Letters(), **options)
    assert part in str(caught.value)


@pytest.mark.parametrize("length", ["12", b"ab"])
def test_a_length_is_no_text(length: Any) -> None:
    with pytest.raises(TrainwebError, match=r"length is .*; it must be an integer >= 2 or a list"):
        Dataset.from_text(["abc"], Letters(), length=length, pack=False, batch_size=1)


def test_end_tokens_and_tokenizers() -> None:
    assert lists_of(Dataset.from_text(["abc"], Objects(), length=2))["labels"] == [[1, 2]]
    assert lists_of(Dataset.from_text(["ab", "c"], Objects(), length=2, end_token=5))["labels"] == [[1, 5], [2, 5]]
    with pytest.raises(TrainwebError, match="has no 'eos_token_id'"):
        Dataset.from_text(["ab", "c"], Objects(), length=2)
    with pytest.raises(TrainwebError, match="Text 0 has 1 tokens and no token to learn"):
        Dataset.from_text(["a"], Objects(), length=2, pack=False)
    with pytest.raises(TrainwebError, match="'tokenizer' is object, which has no function encode"):
        Dataset.from_text(["a"], object(), length=2)
    with pytest.raises(TrainwebError, match="Text 0 is a chat, and the tokenizer has no function apply_chat_template"):
        Dataset.from_text([chat("a", "b")], Objects(), length=2)
    with pytest.raises(TrainwebError, match="encode returned str"):
        Dataset.from_text(["a"], Echo(), length=2)


def test_a_model_learns_texts_and_writes_them() -> None:
    session = model()
    data = Dataset.from_text(
        [{"prompt": "ab", "completion": "cdefg"}, {"prompt": "hi", "completion": "hgf"}],
        Letters(),
        length=12,
        pack=False,
        mask_prompt=True,
        inputs=session.input_names(),
    )
    session.fit(data, epochs=40, batch_size=2)
    assert tokens_of(session, "ab", 6, tokenizer=Letters(), stop=END) == [2, 3, 4, 5, 6, END]
    assert tokens_of(session, "hi", 6, tokenizer=Letters(), stop=END) == [7, 6, 5, END]


LETTERS: dict[str, Any] = {key: value for key, value in BATCHES.items() if key != "inputs"} | {"batch_size": 3}
"""Buckets whose last batches are smaller make more batches than the rows alone need."""


@pytest.mark.parametrize("more", [{}, {"length": 9, "pack": True}], ids=["buckets", "packed"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_schedule_knows_the_batches_of_texts(more: dict[str, Any], accumulate: int) -> None:
    """The rate of the last step is the one of a schedule whose total was counted by an iteration."""
    session = model()
    data = Dataset.from_text(TEXTS, Letters(), **(LETTERS | {"inputs": session.input_names()} | more))
    count = len(list(data))
    steps = 2 * -(-count // accumulate)
    schedules = {"type": "Linear"}, {"type": "Linear", "total": steps}
    options = {"epochs": 2, "learning_rate": 0.1, "accumulate": accumulate, "progress": False}
    fits = [session.fit(data, schedule=schedule, **options) for schedule in schedules]
    assert [fit.optimizer_steps for fit in fits] == [steps, steps]
    assert fits[0].epochs[-1].learning_rate == fits[1].epochs[-1].learning_rate
    with pytest.raises(TrainwebError, match="Linear needs 'total'"):
        session.fit(data.filter(bool), schedule="Linear", **options)


TOKENS = [[1, 5, 3, 7], [2, 6, 4, 8]]
COPIES: dict[str, tuple[list[list[int]], bool]] = {
    "the tokens": (TOKENS, True),
    "tokens whose prompt is not learned": ([[-100, -100, 3, 7], [-100, 6, 4, 8]], True),
    "the next tokens": ([[5, 3, 7, 0], [6, 4, 8, 0]], False),
    "nothing": ([[-100] * 4] * 2, False),
    "one class, as in the mask": ([[1] * 4] * 2, False),
}


FORMS: dict[str, Callable[[list[dict[str, np.ndarray]]], Any]] = {
    "columns": lambda rows: {name: np.array([row[name] for row in rows]) for name in rows[0]},
    "rows": lambda rows: rows,
    "dataset": Dataset,
    "batches": lambda rows: Dataset(rows).batch(2),
    "bucket": lambda rows: Dataset(rows).bucket(lambda row: len(row["labels"]), [4], 2),
    "padded": lambda rows: Dataset(rows).bucket(lambda row: 4, [9], 2, {n: -100 * (n == "labels") for n in rows[0]}),
    "generator": lambda rows: lambda: iter(rows),
    "list of batches": lambda rows: [FORMS["columns"](rows)] * 2,
}


PROMPTED = COPIES["tokens whose prompt is not learned"]
IN_FORMS = [(*copies, "columns") for copies in COPIES.values()] + [(*PROMPTED, form) for form in [*FORMS][1:]]


@pytest.mark.parametrize(("labels", "copies", "form"), IN_FORMS, ids=[*COPIES, *[*FORMS][1:]])
def test_labels_that_are_the_tokens_are_named(labels: list[list[int]], *, copies: bool, form: str) -> None:
    """Datasets of transformers have such labels, because its models shift them. Each session says it, at one line."""
    data = {"input_ids": TOKENS, "attention_mask": [[1] * 4] * 2, "labels": labels}
    rows = [{name: np.array(values[k]) for name, values in data.items()} for k in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            session = model()
            session.fit(FORMS[form](rows), epochs=2, progress=False)
            session.fit(FORMS[form](rows), progress=False)
    said = [str(one.message) for one in caught if "The labels 'labels' are equal to" in str(one.message)]
    assert len(said) == 2 * copies
    assert all("equal to 'input_ids'" in text for text in said)


def test_labels_of_padding_change_no_loss() -> None:
    session = model()
    losses = []
    for length in (6, 16):
        data = Dataset.from_text(["abcdef"], Letters(), length=length, pack=False, inputs=session.input_names())
        losses.append(session.evaluate(data)["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
