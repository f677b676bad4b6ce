"""Direct preference optimization of a tiny Llama: the loss by TRL's formula in float64, and what it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import smol
from tests.python.test_attention import kernels
from tests.python.test_generate import GOLDEN, OPENED, release
from tests.python.test_text_data import Letters

from trainweb import InferenceSession, TrainingSession
from trainweb.compiler.passes import head
from trainweb.data import Dataset
from trainweb.data.text import _with_prompt
from trainweb.errors import FeedError, LimitError, ModelError
from trainweb.ir.shapes import TensorType
from trainweb.training.step_kind import EVAL, PREDICT, TRAIN, StepKind

__all__ = ["release"]  # the fixture

PAIRS = [
    {"prompt": "abc", "chosen": "de", "rejected": "fghi"},
    {"prompt": "b", "chosen": "cdefg", "rejected": "c"},
    {"prompt": "xyz", "chosen": "ab", "rejected": "ba"},
]
LENGTH, BETA = 8, 0.3


def session_of(**settings: Any) -> TrainingSession:
    loss = {"type": "DPOLoss", "beta": BETA}
    session = TrainingSession.from_model(
        GOLDEN / "llama.onnx", loss=loss, lora={"rank": 2}, learning_rate=0.02, **settings
    )
    OPENED.append(session)
    return session


def log_probability(session: TrainingSession, prompt: str, answer: str) -> float:
    """Of an answer and its end, token by token, from the logits of the whole text."""
    ids = [*Letters().encode(prompt + answer), Letters.eos_token_id]
    given = np.array([ids[:-1]])
    (logits,) = session.predict({"input_ids": given, "attention_mask": np.ones_like(given)}).values()
    rows = logits.reshape(len(ids) - 1, -1).astype(np.float64)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    return float(sum(rows[k - 1, ids[k]] for k in range(len(prompt), len(ids))))


def margins(session: TrainingSession, reference: list[list[float]]) -> np.ndarray:
    found = []
    for pair, given in zip(PAIRS, reference, strict=True):
        chosen, rejected = (log_probability(session, pair["prompt"], pair[name]) for name in ("chosen", "rejected"))
        found.append((chosen - rejected) - (given[0] - given[1]))
    return np.array(found)


def preferences(session: TrainingSession, size: int = 4, seed: int = 0) -> Dataset:
    return Dataset.from_preferences(PAIRS, Letters(), length=LENGTH, reference=session, batch_size=size, seed=seed)


def test_a_schedule_knows_the_batches_of_preferences() -> None:
    session = session_of()
    data = preferences(session, 3)
    fit = session.fit(data, epochs=2, schedule="Linear", learning_rate=0.001, progress=False)
    assert fit.optimizer_steps == 2 * len(list(data))
    assert fit.epochs[-1].learning_rate < 0.001


@pytest.mark.parametrize("least", [0, head.SCORES_BYTES], ids=["in blocks", "stored"])
def test_the_loss_of_a_fit_is_that_of_the_formula_and_margins_grow(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both where scores of the vocabulary are computed in blocks and where they are few and stored."""
    monkeypatch.setattr(head, "SCORES_BYTES", least)
    session = session_of()
    reference = [[log_probability(session, p["prompt"], p[name]) for name in ("chosen", "rejected")] for p in PAIRS]
    data = preferences(session)
    (batch,) = data
    assert {name: array.shape for name, array in batch.items()} == {
        "input_ids": (6, LENGTH),
        "attention_mask": (6, LENGTH),
        "labels": (6, LENGTH),
        "reference": (6,),
    }
    assert np.sort(batch["reference"]) == pytest.approx(np.sort(np.ravel(reference)), rel=1e-5)
    assert session.evaluate(data)["loss"] == pytest.approx(np.log(2), rel=1e-5)
    session.fit(data, epochs=6)
    found = margins(session, reference)
    assert (found > 0.1).all()
    mixed = {name: array[[1, 0, 2, 3, 4, 5]] for name, array in batch.items()}
    for rows, share in ((batch, 1), (mixed, 2 / 3)):
        assert session.evaluate(rows, metrics="accuracy", batch_size=2)["accuracy"] == pytest.approx(share)
    with pytest.raises(ModelError, match="metrics is 'f1'; it must be 'accuracy' for a DPOLoss: the share of pairs"):
        session.evaluate(data, metrics="f1")
    assert len(list(session.generate([1, 2], max_tokens=4))) == 4
    assert session.evaluate(data)["loss"] == pytest.approx(np.log1p(np.exp(-BETA * found)).mean(), rel=1e-4)


@pytest.mark.parametrize("lora", [{"rank": 2}, None], ids=["adapter", "whole"])
def test_scores_of_a_large_vocabulary_are_not_stored(lora: Any, tmp_path: Path) -> None:
    """Neither where the model learns nor where the reference and an evaluation read the log-probabilities."""
    size = smol.Size(layers=1, width=16, heads=2, key_heads=1, hidden=32, vocabulary=40_000)
    session = TrainingSession.from_model(smol.write(tmp_path, size), loss="DPOLoss", lora=lora)
    OPENED.append(session)
    rows = {name: TensorType("int64", (4, 128)) for name in session.input_names()}
    feeds = rows | {"reference": TensorType("float32", (4,))}
    for kind in (TRAIN, EVAL, StepKind(PREDICT, ["log_probabilities"])):
        needed = feeds if kind in (TRAIN, EVAL) else {n: t for n, t in rows.items() if n != "reference"}
        plan = session._core.models.compile_step(kind, needed, True)
        assert "head_loss_f32" in kernels(plan) and "cross_entropy_f32" not in kernels(plan)
        assert plan.arena_bytes < 4 * 4 * 128 * 40_000 / 8, kind


def orders(data: Dataset) -> Iterator[list[float]]:
    for _ in range(4):
        yield [float(x) for batch in data for x in batch["reference"]]


def test_each_epoch_has_another_order_of_whole_pairs() -> None:
    session = session_of()
    data = preferences(session, size=2)
    found = list(orders(data))
    assert {len(batch["labels"]) for batch in data} == {4, 2}
    pairs = {tuple(order[k : k + 2]) for order in found for k in (0, 2, 4)}
    assert len(pairs) == 3 and len({tuple(order) for order in found}) > 1
    assert found == list(orders(preferences(session, size=2))) != list(orders(preferences(session, size=2, seed=5)))


def test_a_prompt_that_is_left_out_is_what_both_answers_begin_with() -> None:
    """TRL's `extract_prompt`: a space at the end of the prompt belongs to the answers."""
    session = session_of()
    explicit = [PAIRS[0], PAIRS[2]]
    implicit = [{name: pair["prompt"] + pair[name] for name in ("chosen", "rejected")} for pair in explicit]
    first, second = (
        list(Dataset.from_preferences(pairs, Letters(), length=LENGTH, reference=session))
        for pairs in (explicit, implicit)
    )
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    spaced = _with_prompt({"chosen": "ab de", "rejected": "ab fg"})
    assert spaced == {"prompt": "ab", "chosen": " de", "rejected": " fg"}
    user = {"role": "user", "content": "a"}
    good, bad = ({"role": "assistant", "content": text} for text in "bc")
    assert _with_prompt({"chosen": [user, good], "rejected": [user, bad]}) == {
        "prompt": [user],
        "chosen": [good],
        "rejected": [bad],
    }
    assert _with_prompt({"chosen": "\U0001f600", "rejected": "\U0001f601"})["prompt"] == ""
    with pytest.raises(FeedError, match="has no column 'prompt'"):
        Dataset.from_preferences([{"chosen": "a", "rejected": [good]}], Letters(), length=LENGTH, reference=session)


def test_wrong_pairs_and_sessions_are_named() -> None:
    session = session_of()
    faults: list[tuple[Any, str]] = [
        ([PAIRS[0], {"prompt": "a", "chosen": "b"}], "Pair 1 of 'pairs' has no column 'rejected'"),
        (["abc"], "Pair 0 of 'pairs' has no column 'prompt'"),
        ([{**PAIRS[0], "rejected": ""}], "Text 1 is empty"),
        ([{**PAIRS[0], "chosen": "a" * 20}], "Text 0 has 24 tokens"),
        ([], "'texts' is empty"),
        ("abc", "must be a list of texts"),
    ]
    for pairs, part in faults:
        with pytest.raises((FeedError, ModelError), match=part):
            Dataset.from_preferences(pairs, Letters(), length=LENGTH, reference=session)
    inference = InferenceSession(GOLDEN / "llama.onnx")
    strangers = ((TrainingSession, "the class TrainingSession"), (None, "NoneType"), (inference, "InferenceSession"))
    for reference, part in strangers:
        with pytest.raises(
            TypeError, match=f"^'reference' must be a TrainingSession with the loss 'DPOLoss', got {part}"
        ):
            Dataset.from_preferences(PAIRS, Letters(), length=LENGTH, reference=reference)
    inference.release()
    with pytest.raises(LimitError, match="6 rows of length 1000000000 take 48000000000 bytes"):
        Dataset.from_preferences(PAIRS, Letters(), length=10**9, reference=session)
    with pytest.warns(UserWarning, match="These columns of the texts are not read: score_chosen, source"):
        pairs = [{**PAIRS[0], "score_chosen": 1, "source": "x"}]
        Dataset.from_preferences(pairs, Letters(), length=LENGTH, reference=session)
    other = TrainingSession.from_model(GOLDEN / "llama.onnx", loss="CrossEntropyLoss", lora={"rank": 2})
    OPENED.append(other)
    with pytest.raises(ModelError, match="The session of 'reference' needs the loss 'DPOLoss'"):
        Dataset.from_preferences(PAIRS, Letters(), length=LENGTH, reference=other)
