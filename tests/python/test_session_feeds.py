"""Feeds and fetches of steps: what is refused changes nothing, what is accepted is read as meant."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.python.sessions import PICKING, batch, session, unchanged, warm

from trainweb.errors import FeedError

Feeds = dict[str, Any]


def with_(**changes: Any) -> Callable[[Feeds], Feeds]:
    return lambda feeds: feeds | changes


def without(name: str) -> Callable[[Feeds], Feeds]:
    return lambda feeds: {k: v for k, v in feeds.items() if k != name}


X = np.zeros((6, 5), np.float32)
REFUSED: dict[str, tuple[Callable[[Feeds], Any], str]] = {
    "missing": (without("labels"), "labels"),
    "extra": (with_(more=X), "more"),
    "prototype": (with_(__proto__=X), "__proto__"),
    "parameter": (with_(**{"fc1.weight": np.zeros((4, 5), np.float32)}), "fc1.weight"),
    "reset flag": (with_(lazy_reset_grad=np.array([True])), "lazy_reset_grad"),
    "empty name": (with_(**{"": X}), "''"),
    "float64": (with_(x=X.astype(np.float64)), "astype"),
    "float16": (with_(x=X.astype(np.float16)), "x"),
    "integers": (with_(x=X.astype(np.int64)), "astype"),
    "int32 labels": (with_(labels=np.zeros(6, np.int32)), "astype"),
    "complex": (with_(x=X.astype(np.complex64)), "x"),
    "strings": (with_(x=np.full((6, 5), "a")), "x"),
    "objects": (with_(x=np.full((6, 5), None)), "x"),
    "None": (with_(x=None), "x"),
    "words": (with_(x="words"), "x"),
    "ragged": (with_(x=[[1.0], [1.0, 2.0]]), "x"),
    "too few dims": (with_(x=np.zeros(5, np.float32)), "x"),
    "too many dims": (with_(x=np.zeros((6, 5, 1), np.float32)), "x"),
    "scalar": (with_(x=np.float32(1)), "x"),
    "wrong size": (with_(x=np.zeros((6, 4), np.float32)), "4"),
    "other batch": (with_(labels=np.zeros(5, np.int64)), "batch"),
    "empty batch": (with_(x=X[:0], labels=np.zeros(0, np.int64)), "empty"),
    "no dict": (lambda feeds: list(feeds.values()), "dict"),
    "nothing": (lambda feeds: None, "dict"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_feed_is_named_and_changes_nothing(name: str) -> None:
    change, said = REFUSED[name]
    with session() as s:
        warm(s)
        with unchanged(s), pytest.raises(FeedError) as e:
            s.train_step(change(batch()))
        assert said in str(e.value)
        s.train_step(batch())


LABELS = (3, -1, -101, 2**63 - 1, -(2**63), 2**32, -(2**32))


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
def test_a_label_out_of_range_is_given_with_its_position_and_changes_nothing(kind: str, label: int) -> None:
    feeds = batch(kind)
    feeds["labels"][4] = label
    said = rf"label {label} at position 4 is out of range.* 0 to {dict(mlp=2, batch_norm=1)[kind]}\."
    with session(kind) as s:
        warm(s, kind)
        with unchanged(s):
            with pytest.raises(FeedError, match=said):
                s.train_step(feeds)
            with pytest.raises(FeedError, match=said):
                s.eval_step(feeds)


def test_a_first_step_that_fails_leaves_the_gradients_to_be_overwritten() -> None:
    bad = batch("batch_norm")
    bad["labels"][0] = 9
    with session("batch_norm") as s, session("batch_norm") as other:
        with pytest.raises(FeedError):
            s.train_step(bad)
        assert s.train_step(batch("batch_norm")) == other.train_step(batch("batch_norm"))
        with unchanged(s):
            assert all(
                np.array_equal(s._core.state.parameters[n].grad, other._core.state.parameters[n].grad)
                for n in ("conv.weight", "head.weight")
            )


@pytest.mark.parametrize(
    ("kind", "index"),
    [
        ("embedding", 7),
        ("embedding", -8),
        ("embedding", 2**62),
        ("embedding", -(2**63)),
        ("computed", 5),
        ("computed", -10),
        ("computed", 2**62),
    ],
)
def test_an_index_out_of_range_changes_nothing_not_even_running_statistics(kind: str, index: int) -> None:
    feeds = batch(kind)
    feeds["ids"][1, 2] = index
    said = index + 2 if kind == "computed" else index
    with session(kind) as s:
        warm(s, kind)
        with unchanged(s), pytest.raises(FeedError, match=f"index {said} at position 5"):
            s.train_step(feeds)
        with unchanged(s), pytest.raises(FeedError, match=f"index {said} at position 5"):
            s.eval_step(feeds)


@pytest.mark.parametrize("kind", PICKING)
def test_an_index_is_checked_before_statistics_move_in_front_of_it(kind: str) -> None:
    feeds = batch(kind)
    feeds["ids"].flat[2] = 9
    with session(kind) as s:
        warm(s, kind)
        with unchanged(s), pytest.raises(FeedError, match="index 9 at position 2"):
            s.train_step(feeds)
        before = s.get_parameter("bn.mean")
        s.train_step(batch(kind))
        assert not np.array_equal(s.get_parameter("bn.mean"), before)


def test_indices_count_from_the_end_where_they_are_negative() -> None:
    feeds = batch("embedding")
    with session("embedding") as s:
        expected = s.eval_step(feeds)
        assert s.eval_step(feeds | {"ids": feeds["ids"] - 7}) == expected


@pytest.mark.parametrize("kind", ["embedding", "computed"])
def test_steps_with_indices_move_running_statistics_like_any(kind: str) -> None:
    with session(kind) as s:
        before = s.get_parameter("bn.mean")
        s.train_step(batch(kind))
        mean = s.get_parameter("table")[batch("embedding")["ids"] + (2 if kind == "computed" else 0)].mean((0, 1))
        np.testing.assert_allclose(s.get_parameter("bn.mean"), 0.9 * before + 0.1 * mean, rtol=1e-5, atol=1e-6)


def test_nan_and_infinity_pass_through() -> None:
    feeds = batch()
    feeds["x"][0, 0] = np.nan
    feeds["x"][1, 1] = np.inf
    with session() as s:
        (loss,) = s.train_step(feeds).values()
        assert np.isnan(loss)
        s.lazy_reset_grad()
        (loss,) = s.train_step(batch()).values()
        assert np.isfinite(loss)
        assert all(np.isfinite(p.grad).all() for p in s._core.state.parameters.values() if p.grad is not None)


def forms(x: np.ndarray) -> dict[str, Any]:
    wide = np.zeros((x.shape[0], 2 * x.shape[1]), x.dtype)
    wide[:, ::2] = x
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    read_only = x.copy()
    read_only.flags.writeable = False
    return {
        "strided": wide[:, ::2],
        "reversed": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
        "column order": np.asfortranarray(x),
        "big-endian": x.astype(x.dtype.newbyteorder(">")),
        "unaligned": odd,
        "read-only": read_only,
        "list": x.tolist(),
        "tuple": tuple(map(tuple, x.tolist())),
        "broadcast": np.broadcast_to(x, x.shape),
        "matrix": np.ma.masked_array(x),
    }


@pytest.mark.parametrize("form", list(forms(X)))
def test_any_memory_layout_is_read_as_meant(form: str) -> None:
    feeds = batch()
    with session() as s:
        (expected,) = s.eval_step(feeds).values()
        (got,) = s.eval_step(feeds | {"x": forms(feeds["x"])[form]}).values()
        assert got == expected


def test_a_feed_is_not_kept() -> None:
    feeds = batch()
    with session() as s:
        first = s.train_step(feeds)
        s.lazy_reset_grad()
        feeds["x"][:] = 0
        assert s.train_step(feeds) != first


def test_an_empty_batch_evaluates_to_a_loss_of_nothing() -> None:
    with session() as s, unchanged(s):
        (loss,) = s.eval_step({"x": X[:0], "labels": np.zeros(0, np.int64)}).values()
        assert loss.shape == ()


# Fetches.


def outputs(names: list[str] | None = None, **kwargs: Any) -> tuple[str, float]:
    with session(**kwargs) as s:
        ((name, value),) = s.train_step(batch(), names).items()
        return name, float(value)


def test_fetches_are_a_subset_in_the_order_asked_for() -> None:
    name, value = outputs()
    assert outputs([name]) == (name, value)
    with session() as s:
        with unchanged(s):
            for wrong in (["other"], [name, "other"], {"other": None}, "loss", [1], ["fc1.weight_grad"]):
                with pytest.raises(FeedError):
                    s.train_step(batch(), wrong)
        assert s.train_step(batch(), []) == {}
        assert all(p.grad is None or p.grad.any() for p in s._core.state.parameters.values())


def test_fetches_are_written_into_the_arrays_given() -> None:
    name, value = outputs()
    with session() as s:
        target = np.zeros((), np.float32)
        results = s.train_step(batch(), {name: target})
        assert results[name] is target
        assert float(target) == value
        assert s.eval_step(batch(), {name: None})[name].shape == ()


@pytest.mark.parametrize("target", [np.zeros((), np.float64), np.zeros(1, np.float32), [0.0], 0.0])
def test_an_array_that_does_not_fit_its_fetch_is_refused_before_the_step(target: Any) -> None:
    name, _ = outputs()
    with session() as s:
        warm(s)
        with unchanged(s), pytest.raises(FeedError, match=name):
            s.train_step(batch(), {name: target})


def test_an_array_that_cannot_be_written_is_refused_before_the_step() -> None:
    name, _ = outputs()
    target = np.zeros((), np.float32)
    target.flags.writeable = False
    with session() as s:
        warm(s)
        with unchanged(s), pytest.raises(FeedError, match=name):
            s.train_step(batch(), {name: target})
