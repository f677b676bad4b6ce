"""`fit(on_nan=...)` against loops that are written out: what is undone leaves no byte behind."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import ModelError, NumericsError
from trainweb.fit import History, Trainer

from .sessions import batch, session, snapshot

KIND = "batch_norm"
"""Its running statistics take what a step is fed, whatever becomes of the loss."""


def rows(n: int, bad: tuple[int, ...] = (), value: float = np.nan) -> dict[str, np.ndarray]:
    data = {name: np.concatenate([batch(KIND, 4, seed=k)[name] for k in range(n)]) for name in ("x", "labels")}
    for k in bad:
        data["x"][4 * k] = value
    return data


def fitted(data: Any, **options: Any) -> tuple[dict[str, Any], History]:
    with session(KIND) as s:
        history = Trainer(s).fit(data, batch_size=4, shuffle=False, progress=False, **options)
        return state(s), history


def state(s: trainweb.TrainingSession) -> dict[str, Any]:
    """All but the gradients, which the next step overwrites."""
    found = snapshot(s)
    return found | {"segments": {k: data for k, data in found["segments"].items() if k in (2, 4, 5)}}


def by_hand(s: trainweb.TrainingSession, places: list[list[int]], n: int = 6) -> None:
    """Batches whose gradients are added up, for one update after the other."""
    for group in places:
        s.lazy_reset_grad()
        for k in group:
            s.train_step({name: a[4 * k : 4 * k + 4] for name, a in rows(n).items()})
        s.optimizer_step()


def expected(places: list[list[int]]) -> dict[str, Any]:
    with session(KIND) as s:
        by_hand(s, places)
        return state(s)


def test_a_batch_that_is_skipped_leaves_no_trace() -> None:
    got, history = fitted(rows(6, (0, 3)), on_nan="skip")
    assert got == expected([[1], [2], [4], [5]])
    assert np.isnan(history.losses).tolist() == [True, False, False, True, False, False]
    assert (history.optimizer_steps, history.epochs[0].steps, history.ended) == (4, 4, "done")
    assert history.epochs[0].loss == pytest.approx(np.nanmean(history.losses), rel=1e-6)


def test_gradients_of_a_batch_that_is_skipped_are_not_added() -> None:
    got, history = fitted(rows(6, (1,)), on_nan="skip", accumulate={"steps": 2, "reduction": "sum"})
    assert got == expected([[0, 2], [3, 4], [5]]) and history.optimizer_steps == 3


def test_it_ends_before_the_batch() -> None:
    got, history = fitted(rows(6, (3,)), on_nan="stop", epochs=3)
    assert got == expected([[0], [1], [2]])
    assert (len(history.losses), len(history.epochs), history.ended) == (3, 1, "nan")
    none = fitted(rows(6, (0,)), on_nan="stop")[1]
    assert (none.losses, none.epochs, none.ended) == ([], [], "nan")


def test_it_goes_back_to_the_begin_of_the_epoch() -> None:
    got, history = fitted(rows(6, (3,)), on_nan="restore")
    assert got == expected([[4], [5]])
    assert history.optimizer_steps == 5 and np.isnan(history.losses[3])
    # In the second epoch the state is that after the first.
    twice, _ = fitted(rows(6, (3,)), on_nan="restore", epochs=2)
    assert twice == expected([[4], [5], [4], [5]])


def test_it_goes_back_to_the_last_checkpoint(tmp_path: Any) -> None:
    kept = {"store": tmp_path, "name": "fit", "every": 2}
    got, _ = fitted(rows(6, (3,)), on_nan="restore", checkpoint=kept)
    assert got == expected([[0], [1], [4], [5]])


def test_it_does_not_go_back_for_ever() -> None:
    with session(KIND) as s:
        with pytest.raises(NumericsError, match="went back to its last good state 3 times") as caught:
            Trainer(s).fit(rows(6, (1,)), batch_size=4, shuffle=False, progress=False, on_nan="restore", epochs=9)
        found = state(s)
    assert found == expected([[2], [3], [4], [5]] * 3) and "step 2 of epoch 4" in str(caught.value)


def test_a_fit_of_nothing_but_bad_batches_fails() -> None:
    with session(KIND) as s:
        before = state(s)
        with pytest.raises(NumericsError, match="All batches of epoch 1 were skipped"):
            Trainer(s).fit(rows(2, (0, 1)), batch_size=4, shuffle=False, progress=False, on_nan="skip")
        assert state(s) == before


def test_gradients_and_parameters_count_though_the_loss_is_finite() -> None:
    # The running variance of such values is infinite, but values normalised by the batch are finite.
    data = rows(6, (3,), 1e25)
    got, history = fitted(data)
    assert np.isfinite(history.losses).all() and not finite(got)
    assert fitted(data, on_nan="skip")[0] == expected([[0], [1], [2], [4], [5]])


def finite(found: dict[str, Any]) -> bool:
    return all(np.isfinite(np.frombuffer(data, "<f4")).all() for data in found["segments"].values())


def test_without_it_the_fit_fails_as_ever() -> None:
    with pytest.raises(NumericsError, match="The loss is nan at step 2 of epoch 1") as caught:
        fitted(rows(3, (1,)))
    assert (caught.value.epoch, caught.value.batch) == (1, 2)


def test_it_goes_with_checked_numerics() -> None:
    with session(KIND, options={"debug": {"check_numerics": True}}) as s:
        with pytest.raises(NumericsError) as caught:
            Trainer(s).fit(rows(3, (1,)), batch_size=4, shuffle=False, progress=False)
        assert (caught.value.epoch, caught.value.batch, caught.value.step) == (1, 2, 1)
        assert caught.value.inputs[0]["nan"] == 32
    got, _ = fitted(rows(6, (3,)), on_nan="skip")
    with session(KIND, options={"debug": {"check_numerics": True}}) as s:
        Trainer(s).fit(rows(6, (3,)), batch_size=4, shuffle=False, progress=False, on_nan="skip")
        assert state(s) == got


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(ModelError, match="on_nan is 'ignore'"):
        fitted(rows(2), on_nan="ignore")


def test_numbers_that_are_infinite_on_purpose_stay_so() -> None:
    """A mask of minus infinity is a parameter as others are."""
    masked = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "mask"], ["logits"]),
        ],
        {"x": ["batch", 4]},
        {"logits": ["batch", 3]},
        {"w": normal(4, 3), "mask": np.array([0, 0, -np.inf], np.float32)},
    )
    built = build_artifacts(masked, loss="CrossEntropyLoss", optimizer="SGD")
    x = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
    data = {"x": x, "labels": (x[:, 0] > 0).astype(np.int64)}
    for action in ("stop", "skip", "restore"):
        with trainweb.TrainingSession(**built) as s:
            history = Trainer(s).fit(data, batch_size=4, on_nan=action, epochs=2, progress=False)
        assert history.ended == "done" and np.isfinite(history.losses).all() and len(history.losses) == 6


@pytest.mark.parametrize("action", ["stop", "skip", "restore"])
def test_no_copy_outlasts_the_fit(action: str) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": False, "progress": False}
    with session(KIND) as s:
        Trainer(s).fit(rows(6), **settings)
        before = s._core.engine.bytes_in_use()
        Trainer(s).fit(rows(6, (3,)), on_nan=action, **settings)
        assert s._core.engine.bytes_in_use() == before
