"""`Trainer.fit` against a loop that is written out, its options, and what goes wrong."""

import asyncio
import math
import re
import subprocess
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.conformance import fits
from tests.conformance.models import deep_mlp, mlp, normal
from tests.conformance.wrong_fits import WRONG, WRONG_LATER
from tests.each import run_each

import trainweb
from trainweb.data import Dataset
from trainweb.errors import FeedError, ReleasedError, SessionError, TrainwebError, UnsupportedError
from trainweb.fit import Epoch, History, Progress, Run, Trainer
from trainweb.fit import trainer as trainer_module
from trainweb.ir.layout import STATE_STEP

from .sessions import Ended, artifacts, ends_before, session

Result = TypeVar("Result")
ROOT = Path(__file__).parents[2]


def rows(n: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)
    return {"x": x, "labels": (x[:, 0] + x[:, 1] > 0).astype(np.int64)}


def fitted(data: Any, **options: Any) -> tuple[bytes, History]:
    with session() as s:
        history = Trainer(s).fit(data, progress=False, **options)
        return s.get_contiguous_parameters(False).tobytes(), history


def by_hand(batches: list[dict[str, np.ndarray]], rates: list[float], accumulate: int = 1) -> bytes:
    with session() as s:
        for k, feeds in enumerate(batches):
            if k % accumulate == 0:
                s.lazy_reset_grad()
                s.set_learning_rate(rates[k // accumulate])
            s.train_step(feeds)
            if k % accumulate == accumulate - 1 or k == len(batches) - 1:
                s.optimizer_step()
        return s.get_contiguous_parameters(False).tobytes()


def cut(data: dict[str, np.ndarray], places: list[list[int]]) -> list[dict[str, np.ndarray]]:
    return [{n: a[where] for n, a in data.items()} for where in places]


def test_fit_is_the_loop_written_out() -> None:
    data = rows(10)
    got, history = fitted(
        data,
        epochs=2,
        batch_size=4,
        shuffle=False,
        accumulate={"steps": 2, "reduction": "sum"},
        schedule=lambda step: 0.01 * (step + 1),
    )
    epoch = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with session() as s:
        for number in range(2):
            for group, places in enumerate((epoch[:2], epoch[2:])):
                s.lazy_reset_grad()
                s.set_learning_rate(0.01 * (2 * number + group + 1))
                for feeds in cut(data, places):
                    s.train_step(feeds)
                s.optimizer_step()
        assert got == s.get_contiguous_parameters(False).tobytes()
    assert len(history.losses) == 6 and history.optimizer_steps == 4
    assert [e.steps for e in history.epochs] == [3, 3]
    first = history.losses[:3]
    assert history.epochs[0].loss == (first[0] * 4 + first[1] * 4 + first[2] * 2) / 10


@pytest.mark.parametrize(
    ("remainder", "last"), [("keep", [[8, 9]]), ("drop", []), ("pad", [[8, 9, 0, 1]])], ids=["keep", "drop", "pad"]
)
def test_rows_that_do_not_fill_a_batch(remainder: str, last: list[list[int]]) -> None:
    data = rows(10)
    expected = by_hand(cut(data, [[0, 1, 2, 3], [4, 5, 6, 7], *last]), [0.001] * 3)
    assert fitted(data, batch_size=4, shuffle=False, remainder=remainder)[0] == expected
    stream = Dataset(lambda: iter(Dataset(data))).batch(4, remainder)  # type: ignore[arg-type]
    assert fitted(stream)[0] == expected


class Sized:
    """Rows that can be counted, indexed and iterated, as those of Hugging Face's datasets."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        self._rows = list(Dataset(data))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, k: int) -> Any:
        assert type(k) is int
        return self._rows[k]

    def __iter__(self) -> Any:
        return iter(self._rows)


@pytest.mark.parametrize("form", [dict, lambda data: list(Dataset(data)), Sized], ids=["arrays", "list", "sized"])
def test_each_epoch_has_an_order_of_its_own(form: Any) -> None:
    data = rows(12)
    with session() as s:
        (loss,) = s.output_names(False)
        row_losses = [float(s.eval_step({n: a[k : k + 1] for n, a in data.items()})[loss]) for k in range(12)]
        rate = {"learning_rate": 0.0, "batch_size": 1, "progress": False}
        seen = [Trainer(s).fit(form(data), epochs=2, seed=seed, **rate).losses for seed in (0, 0, 1)]
        in_order = Trainer(s).fit(form(data), shuffle=False, **rate).losses
    assert in_order == pytest.approx(row_losses, rel=1e-6)
    first, second = seen[0][:12], seen[0][12:]
    assert seen[0] == seen[1] != seen[2] and first != second
    assert sorted(first) == sorted(second) == pytest.approx(sorted(row_losses), rel=1e-6)


IN_SLICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "kept rows": {"batch_size": 4},
    "dropped rows": {"batch_size": 4, "remainder": "drop"},
    "padded": {"batch_size": 4, "remainder": "pad"},
    "accumulated": {"batch_size": 2, "accumulate": 5},
    "limits of values": {"batch_size": 2, "clip_grad_value": 0.01},
    "limits of the norm": {"batch_size": 2, "accumulate": 2, "clip_grad_norm": 0.01},
    "a schedule": {"batch_size": 1, "schedule": {"type": "Cosine", "learning_rate": 0.1, "total": 40}, "accumulate": 3},
    "a function": {"batch_size": 1, "schedule": lambda step: 0.01 / (1 + step), "accumulate": 2},
    "watched": {"batch_size": 2, "on_nan": "skip", "learning_rate": 0.05},
    "near the start": {"batch_size": 2, "proximal": 0.5, "learning_rate": 0.05},
}


@pytest.mark.parametrize("nbytes", [trainer_module.MOST_BYTES, 1], ids=["together", "alone"])
@pytest.mark.parametrize("options", IN_SLICES.values(), ids=IN_SLICES)
def test_batches_in_slices_are_batches_one_by_one(
    options: dict[str, Any], nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "SLICE_S", 1e9)
    monkeypatch.setattr(trainer_module, "MOST_BYTES", nbytes)
    together, history = fitted(rows(23), epochs=3, **options)
    monkeypatch.setattr(trainer_module.RowBatches, "serves", lambda session: False)
    apart, expected = fitted(rows(23), epochs=3, **options)
    assert together == apart and history.losses == expected.losses
    assert history.optimizer_steps == expected.optimizer_steps
    assert [e.loss for e in history.epochs] == [e.loss for e in expected.epochs]


def test_the_step_that_adds_has_places_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    data, outcomes = {"x": normal(50, 16), "labels": np.arange(50) % 3}, []
    monkeypatch.setattr(trainer_module, "SLICE_S", 1e9)
    for serves in (True, False):
        monkeypatch.setattr(trainer_module.RowBatches, "serves", lambda session, serves=serves: serves)
        with trainweb.TrainingSession.from_model(deep_mlp(16, 32, 32, 3), loss="CrossEntropyLoss") as s:
            history = s.fit(data, epochs=3, batch_size=8, accumulate=3, progress=False)
            outcomes.append((s.get_contiguous_parameters(False).tobytes(), history.losses))
            plans = {str(one.plan.inputs["labels"]) for one in s._core.host.loaded if "labels" in one.plan.inputs}
            assert len(plans) > 2  # or the places are the same after all
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("bad", "value"), [("labels", 9), ("x", np.nan)], ids=["a label", "NaN"])
@pytest.mark.parametrize("place", [0, 5, 22])
def test_a_fault_in_a_slice_is_named_as_alone(
    bad: str, value: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = rows(23)
    data[bad][place] = value
    said = []
    for serves in (True, False):
        monkeypatch.setattr(trainer_module, "SLICE_S", 1e9)
        monkeypatch.setattr(trainer_module.RowBatches, "serves", lambda session, serves=serves: serves)
        with pytest.raises(TrainwebError) as raised:
            fitted(data, epochs=2, batch_size=2, shuffle=False)
        said.append((str(raised.value), vars(raised.value)))
    assert said[0] == said[1]
    if bad == "x":
        outcomes = []
        for serves in (True, False):
            monkeypatch.setattr(trainer_module.RowBatches, "serves", lambda session, serves=serves: serves)
            got, history = fitted(data, epochs=2, batch_size=2, shuffle=False, on_nan="skip")
            outcomes.append((got, np.array(history.losses).tobytes(), history.optimizer_steps))
        assert outcomes[0] == outcomes[1] and sum(map(math.isnan, history.losses)) == 2


def test_the_users_rates_are_asked_for_before_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "SLICE_S", 1e9)
    with session() as s:
        steps: list[int] = []

        def rate(step: int) -> float:
            steps.append(int(s._core.host.read_state(STATE_STEP)))
            return 0.01

        Trainer(s).fit(rows(12), batch_size=1, accumulate=2, schedule=rate, progress=False)
    assert steps == list(range(6))


def test_validation_is_the_eval_model_on_the_last_rows() -> None:
    data = rows(20)
    with session() as s:
        history = Trainer(s).fit(data, batch_size=8, validation_split=0.25, metrics=["perplexity"], progress=False)
        (name,) = s.output_names(False)
        expected = float(s.eval_step({n: a[15:] for n, a in data.items()})[name])
    found = history.epochs[0].validation
    assert found is not None and found["loss"] == pytest.approx(expected, rel=1e-6)
    assert found["perplexity"] == pytest.approx(np.exp(expected), rel=1e-6)


def test_early_stopping_restores_the_best() -> None:
    data, held = rows(16), rows(16, seed=5)
    held["labels"] = 1 - held["labels"]  # what is learnt makes it worse
    best: list[bytes] = []

    with session() as s:

        def keep(event: Any, run: Run) -> None:
            if isinstance(event, Epoch) and run.history.best_epoch == event.epoch:
                best.append(s.get_contiguous_parameters(False).tobytes())

        history = Trainer(s).fit(
            data,
            epochs=50,
            validation_data=held,
            early_stopping={"patience": 2},
            schedule={"type": "Constant", "learning_rate": 0.02},
            callbacks=keep,
            progress=False,
        )
        assert history.ended == "early" and history.best_epoch is not None
        assert len(history.epochs) == history.best_epoch + 2 < 50
        assert s.get_contiguous_parameters(False).tobytes() == best[-1]
        last = s.get_contiguous_parameters(False)
    losses = history["val_loss"]
    assert min(losses) == losses[history.best_epoch - 1]
    with session() as s:
        early = {"patience": 2, "restore_best": False}
        options = {"schedule": {"type": "Constant", "learning_rate": 0.02}, "progress": False}
        again = Trainer(s).fit(data, epochs=50, validation_data=held, early_stopping=early, **options)
        assert again.losses == history.losses and not np.array_equal(s.get_contiguous_parameters(False), last)


def test_plateau_is_told_the_loss() -> None:
    schedule = {"type": "Plateau", "learning_rate": 0.0, "patience": 0, "reduction": 0.5}
    _, history = fitted(rows(8), epochs=3, schedule={**schedule, "learning_rate": 1e-12}, shuffle=False)
    assert history["learning_rate"] == pytest.approx([1e-12, 1e-12, 5e-13], rel=1e-6)


def test_callbacks_hear_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def listen(event: Any, run: Run) -> None:
        heard.append(event)
        if isinstance(event, Epoch) and event.epoch == 2:
            run.stop()

    monkeypatch.setattr(trainer_module, "FRAME_S", 0.0)
    monkeypatch.setattr(trainer_module, "SLICE_S", 0.0)
    _, history = fitted(rows(6), epochs=9, batch_size=2, callbacks=[listen])
    assert history.ended == "stopped" and [e.epoch for e in heard if isinstance(e, Epoch)] == [1, 2]
    progress = [(e.epoch, e.step, e.steps) for e in heard if isinstance(e, Progress)]
    assert progress == [(epoch, step, 3) for epoch in (1, 2) for step in (1, 2, 3)]
    heard.clear()
    monkeypatch.setattr(trainer_module, "FRAME_S", 1e9)
    fitted(rows(6), batch_size=2, callbacks=[listen])
    assert [type(e) for e in heard] == [Epoch]


def test_stop_ends_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "FRAME_S", 0.0)
    got, history = fitted(rows(10), batch_size=2, shuffle=False, accumulate=9, callbacks=lambda _, run: run.stop())
    assert len(history.losses) == 1 and history.optimizer_steps == 1
    assert got == by_hand(cut(rows(10), [[0, 1]]), [0.001])


def test_streams_and_generators() -> None:
    data = rows(12)
    expected, _ = fitted(data, batch_size=4, shuffle=False, epochs=2)
    assert fitted(lambda: iter(Dataset(data)), batch_size=4, epochs=2)[0] == expected
    assert fitted(Dataset(data).map(dict).prefetch(2), batch_size=4, epochs=2)[0] == expected
    assert fitted(list(Dataset(data)), batch_size=4, shuffle=False, epochs=2)[0] == expected
    assert fitted(Dataset(iter(Dataset(data))).cache(), batch_size=4, epochs=2)[0] == expected


@pytest.mark.parametrize("of", ["data", "validation data"])
def test_a_spent_generator_is_refused_before_training(of: str) -> None:
    session = fits.opened("mlp", {})
    spent = iter(Dataset(fits.data(12).columns))
    session.fit(spent, batch_size=4, progress=False)
    before = session.get_contiguous_parameters(False)
    train: Any = spent if of == "data" else fits.data(12).columns
    held = None if of == "data" else Dataset(spent).map(dict)
    with pytest.raises(FeedError, match=f"^The {of} has no rows in epoch 1: .* Give the function"):
        session.fit(train, batch_size=4, progress=False, validation_data=held)
    np.testing.assert_array_equal(session.get_contiguous_parameters(False), before)
    session.release()


@pytest.mark.parametrize("make", [iter, lambda rows: map(dict, rows), lambda rows: zip(rows, strict=True)])
def test_an_iterator_is_read_once(make: Any) -> None:
    rows_of = list(Dataset(fits.data(12).columns))
    again = r"^The data is a \w+ object, which can be read only once\. Further epochs"
    with fits.opened("mlp", {}) as session:
        before = session.get_contiguous_parameters(False)
        with pytest.raises(FeedError, match=again):
            session.fit(make(rows_of), epochs=2, batch_size=4, progress=False)
        np.testing.assert_array_equal(session.get_contiguous_parameters(False), before)
        assert len(session.fit(iter(rows_of), batch_size=4, progress=False).losses) == 3


def in_a_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs in a separate thread: a browser test of the same process has left its loop running in this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, main).result()


@pytest.mark.parametrize(("frame_s", "least"), [(0.0, 120), (1e9, 1)], ids=["every-step", "once"])
def test_fit_async_is_fit_and_lets_others_run(monkeypatch: pytest.MonkeyPatch, frame_s: float, least: int) -> None:
    monkeypatch.setattr(trainer_module, "FRAME_S", frame_s)
    monkeypatch.setattr(trainer_module, "SLICE_S", 0.0)
    expected, _ = fitted(rows(60), batch_size=1, epochs=2)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> bytes:
        task = asyncio.create_task(other())
        with session() as s:
            await Trainer(s).fit_async(rows(60), batch_size=1, epochs=2, progress=False)
            task.cancel()
            return s.get_contiguous_parameters(False).tobytes()

    assert in_a_loop(main()) == expected
    assert turns >= least


def test_a_cancelled_fit_leaves_a_session_that_can_be_fitted() -> None:
    async def main() -> None:
        with session() as s:
            trainer = Trainer(s)
            task = asyncio.create_task(trainer.fit_async(rows(400), batch_size=1, epochs=100, progress=False))
            await asyncio.sleep(0)
            with pytest.raises(SessionError, match="fit of this session is running"):
                trainer.fit(rows())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert trainer.fit(rows(), progress=False).ended == "done"

    in_a_loop(main())


def test_the_limit_of_the_norm_is_the_length_of_a_step() -> None:
    """With SGD, the step is the rate times the clipped gradient."""
    with trainweb.TrainingSession.from_model(mlp(), loss="CrossEntropyLoss", optimizer="SGD", learning_rate=0.5) as s:
        before = s.get_contiguous_parameters(False)
        s.fit(rows(8), batch_size=8, clip_grad_norm=0.01, progress=False)
        step = s.get_contiguous_parameters(False).astype(np.float64) - before
    assert np.linalg.norm(step) == pytest.approx(0.5 * 0.01, rel=1e-4)


def test_an_infinite_loss_ends_before_the_update() -> None:
    data = rows(12)
    data["x"][9, 0] = np.inf
    with session() as s:
        with pytest.raises(TrainwebError, match="The loss is nan at step 3 of epoch 1"):
            Trainer(s).fit(data, batch_size=4, shuffle=False, progress=False)
        found = s.get_contiguous_parameters(False).tobytes()
        assert found == by_hand(cut(data, [[0, 1, 2, 3], [4, 5, 6, 7]]), [0.001] * 2)
        assert Trainer(s).fit(rows(), progress=False).epochs[0].loss > 0


def test_a_callback_that_fails_ends_the_fit() -> None:
    with session() as s:

        def fail(event: Any, run: Run) -> None:
            raise ZeroDivisionError("of mine")

        with pytest.raises(ZeroDivisionError, match="of mine"):
            Trainer(s).fit(rows(), callbacks=fail, progress=False)
        assert Trainer(s).fit(rows(), progress=False).ended == "done"


def test_a_release_while_it_runs() -> None:
    with session() as s, pytest.raises(ReleasedError):
        Trainer(s).fit(rows(), epochs=2, callbacks=lambda *_: s.release(), progress=False)


def test_without_an_optimizer_or_eval_model() -> None:
    made = artifacts("mlp")
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with trainweb.TrainingSession(state, made.training_model) as s, pytest.raises(SessionError, match="OptimizerModel"):
        Trainer(s).fit(rows())
    with (
        trainweb.TrainingSession(state, made.training_model, None, made.optimizer_model) as s,
        pytest.raises(SessionError, match="EvalModel"),
    ):
        Trainer(s).fit(rows(), validation_split=0.5)


X = rows(8)["x"]
WRONG_IN_PYTHON: list[tuple[Any, dict[str, Any], str, str]] = [
    ({"x": [[1.0], [1.0, 2.0]]}, {}, "FeedError", "The rows of 'x' have different shapes"),
    ({"x": 1.0}, {}, "FeedError", r"'x' is one number; its first axis must count rows"),
    ([{"x": [[1.0], [1.0, 2.0]]}], {}, "FeedError", "Row 0 of the data has no array as 'x'"),
    ([np.ones((8, 10), "f4")], {}, "FeedError", r"Row 0 .* ndarray; .*: give whole arrays as a tuple \(x, y\)"),
    (fits.data(8), {"callbacks": 1}, "ModelError", "callbacks is 1; it must be a function"),
    (fits.data(8), {"metrics": 3, "validation_split": 0.5}, "ModelError", "metrics is 3; it must be a list of metrics"),
]


LATER_IN_PYTHON: list[tuple[Any, dict[str, Any], str, str]] = [
    (
        [*fits.data(11, *fits.STREAM).made(), {"x": [[1.0], [1.0, 2.0]], "labels": 0}],
        {"batch_size": 4},
        "FeedError",
        "Row 11 of the data has no array as 'x'",
    ),
    *(
        (fits.data(60, labels={0: label}), {"shuffle": False}, "FeedError", f"give the loss 'ignore_index' {label}\\.")
        for label in (-1, 255)
    ),
]


def test_what_is_wrong_with_a_bad_label_or_used_up_rows_is_named(tmp_path: Path) -> None:
    runner = fits.Runner("mlp", {}, tmp_path)
    before = runner.parameters()

    def check(case: Any) -> None:
        data, options, name, text = case
        outcome = runner.outcome(["fit", data if isinstance(data, fits.Data) else fits.Data(data), options])
        assert outcome["error"] == name and re.search(text, outcome["message"]), outcome
        if "row" in outcome:
            value, position, *places = (outcome[name] for name in fits.PLACES)
            assert f"the label {value} at position {position} is out" in outcome["message"]
            told = re.search(
                r"'(\w+)' of row (\d+) of the .*data is out of range \(batch (\d+) of epoch (\d+)\)", outcome["message"]
            )
            assert told is not None and [*told.groups()] == [str(places[k]) for k in (0, 1, 3, 2)]

    run_each([*WRONG, *WRONG_IN_PYTHON], check, lambda case: case[3])
    assert runner.parameters() == before
    run_each([*WRONG_LATER, *LATER_IN_PYTHON], check, lambda case: case[3])
    runner.session.release()


@pytest.mark.parametrize("name", fits.ALIKE)
def test_fits_that_end_alike(name: str) -> None:
    first, *others = fits.run_python(fits.ALIKE[name])
    for fit, outcomes in zip(fits.ALIKE[name][1:], others, strict=True):
        assert outcomes[-1] == first[-1], fit[1]


def test_each_epoch_of_a_stream_has_an_order_of_its_own() -> None:
    (calls,) = fits.run_python([fits.fit(fits.data(20, *fits.SHUFFLED), before=fits.WITHOUT_RATE, epochs=2)])
    losses = calls[-1][1]
    assert len(losses) == 10 and sorted(losses[:5]) != sorted(losses[5:])


def test_a_loss_that_stays_is_not_better() -> None:
    _, stays = fits.run_python(fits.FITS["best"])
    ended, _, _, best_epoch, epochs, _ = stays[-1]
    assert (ended, best_epoch, len(epochs)) == ("early", 1, 3) and len({loss for _, _, loss, *_ in epochs}) == 1


def test_all_rows_of_validation_data_are_evaluated_whatever_becomes_of_the_remainder() -> None:
    ((_, *outcomes),) = fits.run_python(fits.FITS["remainder"])
    (first, *others) = [validation for *_, [[*_, validation, _]], _ in outcomes]
    for other in others:
        assert other == {"loss": pytest.approx(first["loss"], rel=1e-6), "accuracy": first["accuracy"]}


def test_a_checkpoint_is_written_after_every_so_many_optimizer_steps() -> None:
    for outcomes in fits.run_python(fits.FITS["every_so_many"]):
        assert outcomes[1::3] == [0, 2, 2, 4, 4, 6, 6]


def test_averages_are_scored_and_exported() -> None:
    limited, free = fits.run_python(fits.FITS["averages"])
    for _, history, averages, scores, plain, is_exported in (limited, free):
        assert history[0] == "done" and is_exported is True and scores != plain and averages
    assert limited[1] != free[1]


def test_a_batch_may_be_larger_than_the_data() -> None:
    data = rows(6)
    assert fitted(data, batch_size=64, shuffle=False)[0] == by_hand([data], [0.001])


@pytest.mark.parametrize("slice_s", [0, 1e9], ids=["alone", "together"])
@pytest.mark.parametrize("bad", [None, 0, 2])
def test_the_bar_is_of_tqdm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, slice_s: float, bad: int | None
) -> None:
    """It counts batches that run together, and those that are left out."""
    monkeypatch.setattr(trainer_module, "SLICE_S", slice_s)
    data = rows(40)
    if bad is not None:
        data["x"][4 * bad] = np.nan
    with session() as s:
        Trainer(s).fit(data, batch_size=4, epochs=2, shuffle=False, on_nan="skip")
    assert "20/20" in capsys.readouterr().err


def test_the_bar_of_a_fit_that_goes_on_ends_full(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = {"checkpoint": {"store": tmp_path, "name": "run", "every": 3}, "batch_size": 4, "epochs": 2}
    with session() as s:
        ends_before(s, 15)
        with pytest.raises(Ended):
            Trainer(s).fit(rows(40), **options)
    capsys.readouterr()
    with session() as s:
        Trainer(s).fit(rows(40), **options)
    assert "10/10" in capsys.readouterr().err


def test_history_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    _, history = fitted(rows(20), epochs=3, validation_split=0.2)
    shown = history._repr_html_()
    assert shown.count("<tr>") == 4 and shown.count("<polyline") == 2 and f"{history.epochs[2].loss:.4g}" in shown
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib"):
        history.plot()

    class Axes:
        def __init__(self) -> None:
            self.drawn: list[Any] = []

        def plot(self, x: list[int], y: list[float], label: str) -> None:
            self.drawn.append((x, y, label))

        def set_xlabel(self, text: str) -> None: ...

        def legend(self) -> None: ...

    axes = Axes()
    assert history.plot(axes) is axes
    assert axes.drawn == [([1, 2, 3], history[name], name) for name in ("loss", "val_loss")]


def test_a_history_that_ended_before_its_validation_is_shown() -> None:
    class Axes:
        drawn: dict[str, tuple[list[int], list[float]]] = {}

        def plot(self, x: list[int], y: list[float], label: str) -> None:
            self.drawn[label] = x, y

        def set_xlabel(self, text: str) -> None: ...

        def legend(self) -> None: ...

    found = {"loss": 0.5, "accuracy": 0.25}
    history = History([Epoch(1, 4, 0.75, 0.1, 1.0, found), Epoch(2, 3, 0.625, 0.1, 1.0, None)], ended="stopped")
    assert history.plot(axes := Axes()) is axes
    assert axes.drawn == {"loss": ([1, 2], [0.75, 0.625]), "val_loss": ([1], [0.5]), "val_accuracy": ([1], [0.25])}
    shown = history._repr_html_()
    assert "<tr><td>2</td><td>0.625</td><td></td><td></td><td>0.1</td></tr>" in shown
    # The second epoch of one curve is as far to the right as the other curve's would be.
    ends = re.findall(r'points="([0-9.]+),', shown)
    assert ends == ["34.0", "34.0"] and shown.count("386.0,") == 1


CTRL_C = """
import asyncio, signal, sys, threading

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts jobs in the background has it ignored

from tests.python.test_fit import Dataset, Trainer, rows, session


async def source():
    for row in Dataset(rows(8)):
        yield row
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    await asyncio.Event().wait()


kept = {"store": sys.argv[1], "name": "fit"}
with session() as s:
    try:
        Trainer(s).fit(source, batch_size=2, checkpoint=kept, progress=False)
    except KeyboardInterrupt:
        print(Trainer(s).fit(rows(8), checkpoint=kept, progress=False).ended)
"""
"""Signals come to the main thread of a process, which is not always that of a test."""


def test_ctrl_c_ends_a_fit_whose_async_rows_never_come(tmp_path: Path) -> None:
    """The lock of its checkpoint is free afterwards, and so is the session."""
    command = [sys.executable, "-c", CTRL_C, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout == "done\n", done.stderr
