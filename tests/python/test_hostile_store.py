"""Checkpoints of a store that somebody has changed: an error of trainweb's own, and a session as it was before."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.conformance.hostile_checkpoints import Hostile, hostile

import trainweb
from trainweb.errors import CheckpointError, ModelError
from trainweb.fit import Trainer
from trainweb.training.store import take_snapshot

from .sessions import Ended, ends_before, session
from .test_fit import rows

OPTIONS: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 4,
    "validation_split": 0.4,
    "metrics": ["accuracy", "confusionMatrix"],
    "early_stopping": {"patience": 3, "restore_best": True},
    "progress": False,
}
LEAST = {"fit": 900, "load": 250}
"""Changes that the table makes at least."""
MOST_LETTERS = 400
"""Of a message, whatever the checkpoint has."""


def written(store: trainweb.CheckpointStore, opened: Any, data: Any) -> bytes:
    """The checkpoint of a fit that was killed in its third epoch, three steps each, with properties."""
    with opened as s:
        for name, value in (("count", 3), ("ratio", 0.5), ("title", "one")):
            s._core.add_property(name, value)
        ends_before(s, 8)
        with pytest.raises(Ended):
            checkpoint = {"store": store, "name": "run", "every": 1}
            Trainer(s).fit(data, checkpoint=checkpoint, **OPTIONS)
    return store.read("run")


def everything(s: trainweb.TrainingSession) -> bytes:
    return take_snapshot(s._core).to_bytes()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> trainweb.CheckpointStore:
    return trainweb.CheckpointStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def cases(store: trainweb.CheckpointStore) -> list[Hostile]:
    return list(hostile(written(store, session(), rows(20))))


def faults_of(s: trainweb.TrainingSession, load: Callable[[], object], before: bytes) -> str | None:
    """The fault in the way a changed checkpoint is refused."""
    try:
        load()
    except (CheckpointError, ModelError) as error:
        if len(str(error)) > MOST_LETTERS:
            return f"a text of {len(str(error))} letters"
    except Exception as error:
        return f"{error!r:.80}"
    else:
        return "accepted"
    return "the session was changed" if everything(s) != before else None


@pytest.mark.parametrize("by", ["load", "fit"])
def test_every_change_is_found_before_anything_is_written(
    store: trainweb.CheckpointStore, cases: list[Hostile], by: str
) -> None:
    refused = [case for case in cases if not case.is_valid and (by == "fit" or case.of_session)]
    assert len(refused) > LEAST[by]
    wrong = []
    with session() as s:
        if by == "load":
            s.train_step(rows(4))
        else:
            s.lazy_reset_grad()
        calls = {
            "fit": lambda: Trainer(s).fit(rows(20), checkpoint={"store": store, "name": "run"}, **OPTIONS),
            "load": lambda: store.load(s, "run"),
        }
        for case in refused:
            store._write("run", case.data)
            before = everything(s)
            fault = faults_of(s, calls[by], before)
            if fault is not None:
                wrong.append(f"{case.name}: {fault}")
    assert not wrong, "\n".join(wrong)


def test_what_a_fit_may_have_left_is_taken(store: trainweb.CheckpointStore, cases: list[Hostile]) -> None:
    for case in cases:
        if case.is_valid:
            store._write("run", case.data)
            with session() as s:
                history = Trainer(s).fit(rows(20), checkpoint={"store": store, "name": "run"}, **OPTIONS)
                assert history.ended in ("done", "early"), case.name
