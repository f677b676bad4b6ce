"""`CheckpointStore` on disk, and fits that are ended anywhere and go on from their checkpoint."""

import errno
import json
import os
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance import fits
from tests.conformance.models import mlp

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.data import Dataset
from trainweb.errors import CheckpointError, ModelError, StorageError
from trainweb.fit import History, Run, Trainer
from trainweb.fit import trainer as trainer_module
from trainweb.fit.trainer import start
from trainweb.training import store as store_module

from .sessions import Ended, artifacts, batch, ends_before, session, take_steps, warm
from .test_fit import rows

SCHEDULE = {"type": "Plateau", "learning_rate": 0.02, "patience": 0, "reduction": 0.5, "threshold": 0.3, "warmup": 3}
EARLY = {"patience": 1, "restore_best": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 8},
    "accumulated": {"batch_size": 4, "accumulate": 3, "remainder": "pad"},
    "validated": {"batch_size": 8, "validation_split": 0.4, "schedule": SCHEDULE, "early_stopping": EARLY},
}


def streamed() -> Dataset:
    return Dataset(lambda: iter(Dataset(rows(20)))).shuffle(6, seed=4).map(dict).batch(4).prefetch(2)


def fitted(
    data: Any, folder: Path, every: int | None, ends_at: int | None, **options: Any
) -> tuple[dict[str, Any], History] | None:
    """The results of a fit, or None when it is ended before this many optimizer steps."""
    with session() as s:
        ends_before(s, ends_at)
        checkpoint = {"store": folder, "name": "run", "every": every}
        try:
            history = Trainer(s).fit(data, epochs=3, progress=False, checkpoint=checkpoint, **options)
        except Ended:
            return None
        state = {"parameters": s.get_contiguous_parameters(False).tobytes(), "rate": s.get_learning_rate()}
        for name in s.parameter_names(True):
            state |= {f"{name} {n}": moment.tobytes() for n, moment in s.get_moments(name).items()}
        return state, history


def by_format(data: bytes) -> dict[str, np.ndarray]:
    """Tensors of a safetensors file, by the description of the format alone."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    types = {"F32": "<f4", "U8": "u1"}
    return {
        name: np.frombuffer(data[8 + length :][slice(*entry["data_offsets"])], types[entry["dtype"]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def timeless(history: History) -> History:
    return replace(history, epochs=[replace(e, seconds=0.0) for e in history.epochs])


@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize("case", [*OPTIONS, "streamed"])
def test_a_fit_that_is_ended_anywhere_ends_with_the_same_bytes(tmp_path: Path, case: str, every: int | None) -> None:
    def data() -> Any:
        return streamed() if case == "streamed" else rows(20)

    options = OPTIONS.get(case, {})
    whole = fitted(data(), tmp_path / "whole", None, None, **options)
    assert whole is not None
    steps = whole[1].optimizer_steps
    for first in range(0, steps, 2 if every is None else 3):
        folder = tmp_path / str(first)
        found, ends_at = None, first
        for _ in range(20):
            found = fitted(data(), folder, every, ends_at, **options)
            if found is not None:
                break
            ends_at = 5 if every is None else 2  # enough for an epoch, or for the next checkpoint
        else:
            # Epochs that are ended before their end make no progress.
            found = fitted(data(), folder, every, None, **options)
        assert found is not None and found[0] == whole[0], first
        assert timeless(found[1]) == timeless(whole[1]), first
    # At the end there is nothing left to do, and the same to be had.
    again = fitted(data(), tmp_path / "0", every, 0, **options)
    assert again is not None and again[0] == whole[0] and timeless(again[1]) == timeless(whole[1])


def test_more_epochs_go_on_and_stop_keeps_the_place(tmp_path: Path) -> None:
    checkpoint = {"store": tmp_path, "name": "a/b", "every": 100}

    def stop(event: Any, run: Run) -> None:
        if len(run.history.losses) >= 7:
            run.stop()

    with session() as s:
        whole = Trainer(s).fit(rows(20), epochs=4, batch_size=4, progress=False)
        expected = s.get_contiguous_parameters(False).tobytes()
    with session() as s:
        ended = Trainer(s).fit(rows(20), epochs=2, batch_size=4, progress=False, checkpoint=checkpoint)
        assert ended.ended == "done" and len(ended.losses) == 10
    with session() as s:
        more = Trainer(s).fit(rows(20), epochs=4, batch_size=4, progress=False, checkpoint=checkpoint)
        assert s.get_contiguous_parameters(False).tobytes() == expected and timeless(more) == timeless(whole)
    assert [entry.name for entry in trainweb.CheckpointStore(tmp_path).list()] == ["a/b"]


def test_a_stopped_fit_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "SLICE_S", 0.0)  # one batch at a time
    data = {"store": tmp_path, "name": "run"}
    with session() as s:
        Trainer(s).fit(rows(20), epochs=2, batch_size=4, progress=False)
        expected = s.get_contiguous_parameters(False).tobytes()
    with session() as s:
        options = {"epochs": 2, "batch_size": 4, "progress": False, "checkpoint": data}
        found, events = start(s._core, rows(20), options)
        for k, _ in enumerate(events):
            if k == 2:
                found.stop()
        assert found.history.ended == "stopped" and len(found.history.losses) == 3
    with session() as s:
        assert len(Trainer(s).fit(rows(20), epochs=2, batch_size=4, progress=False, checkpoint=data).losses) == 10
        assert s.get_contiguous_parameters(False).tobytes() == expected


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[trainweb.CheckpointStore, trainweb.TrainingSession]]:
    """A store with the checkpoint "one" of a session that has gone on since."""
    store = trainweb.CheckpointStore(tmp_path / "deep" / "folder")
    with session() as s:
        Trainer(s).fit(rows(12), batch_size=4, progress=False)
        store.save(s, "one")
        yield store, s


def test_sessions_are_saved_and_loaded(kept: tuple[trainweb.CheckpointStore, trainweb.TrainingSession]) -> None:
    store, s = kept
    with session() as other:
        store.load(other, "one")
        for one in (s, other):
            Trainer(one).fit(rows(12, seed=3), batch_size=4, progress=False)
        assert (s.get_contiguous_parameters() == other.get_contiguous_parameters()).all()
        assert other.step_count() == s.step_count() == 6
    # It is a file of that format, with the parameters in it.
    tensors = by_format(store.read("one"))
    assert set(tensors) == {"parameters", "momentum0", "momentum1", "state"}
    with session() as other:
        store.load(other, "one")
        assert (other.get_contiguous_parameters(False) == tensors["parameters"]).all()
        # Accumulated gradients are kept where they count.
        other.train_step(rows(4))
        store.save(other, "two")
        gradients = [other.get_gradient(n) for n in other.parameter_names(True)]
    with session() as third:
        store.load(third, "two")
        again = [third.get_gradient(n) for n in third.parameter_names(True)]
        assert all((a == b).all() for a, b in zip(gradients, again, strict=True)) and any(g.any() for g in gradients)


def test_a_session_that_is_loaded_has_only_the_properties_of_the_checkpoint(
    kept: tuple[trainweb.CheckpointStore, trainweb.TrainingSession],
) -> None:
    store, s = kept
    s._core.add_property("kept", 1)
    store.save(s, "one")
    s._core.add_property("later", 2)
    s._core.add_property("kept", 3)
    store.load(s, "one")
    assert s._core.property_names() == ["kept"] and s._core.get_property("kept") == 1


def test_entries_have_sizes_and_times(kept: tuple[trainweb.CheckpointStore, trainweb.TrainingSession]) -> None:
    store, _ = kept
    assert [(e.name, e.nbytes) for e in store.list()] == [("one", len(store.read("one")))]
    assert store.list()[0].written.year > 2000
    with pytest.raises(CheckpointError, match="safetensors"):
        store.write("moved", b"rubbish and more")


def test_the_store_gives_what_its_table_says() -> None:
    calls, others, (_, unshuffled) = fits.run_python(fits.FITS["stores"])
    for (call, expected), found in zip(fits.STORE_CALLS, calls[2:-1], strict=True):
        if isinstance(expected, tuple):
            assert found["error"] == expected[0] and re.search(expected[1], found["message"]), call
        else:
            assert found == expected, call
    with fits.opened("mlp", {}) as s:
        s.train_step(fits.data(4).made())
        s.optimizer_step()
        # It came from a copy of a renamed checkpoint of this state, after that of the start.
        assert calls[-1][0] == sha256(s.get_contiguous_parameters(False).tobytes()).hexdigest()
    assert others[1][0] == "done"
    for (options, name, text), found in zip(fits.OTHER_FITS, others[2:], strict=True):
        assert found["error"] == name and re.search(text, found["message"]), options
        assert "batchSize" not in found["message"]
    assert unshuffled["message"].startswith("The checkpoint 'stream' belongs to a fit with shuffle True, and this one")


def test_damage_and_other_sessions_are_refused(
    kept: tuple[trainweb.CheckpointStore, trainweb.TrainingSession],
) -> None:
    store, s = kept
    (path,) = store.folder.glob("*.checkpoint")
    data = path.read_bytes()
    before = s.get_contiguous_parameters(False)
    for cut in [*range(0, len(data), 61), len(data) - 1]:
        path.write_bytes(data[:cut])
        with pytest.raises(CheckpointError, match="is damaged"):
            store.load(s, "one")
    for place in range(0, len(data), 97):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match="is damaged"):
            store.load(s, "one")
    path.write_bytes(data)
    assert (s.get_contiguous_parameters(False) == before).all()
    both = "optimizer state of AdamW, and this session's optimizer is SGD"
    with session(optimizer="SGD") as other, pytest.raises(CheckpointError, match=both):
        store.load(other, "one")
    with session("embedding") as other, pytest.raises(CheckpointError, match="is missing there, and trained"):
        store.load(other, "one")
    with pytest.raises(ModelError, match="checkpoint is 'name'; it must be a mapping"):
        Trainer(s).fit(rows(12), progress=False, checkpoint="name")


def test_a_full_disk_leaves_the_old_one(
    kept: tuple[trainweb.CheckpointStore, trainweb.TrainingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, s = kept
    before = store.read("one")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module, "write_file_atomically", full)
    with pytest.raises(StorageError, match="There is no room for the checkpoint 'one'") as info:
        store.save(s, "one")
    error: Any = info.value
    assert error.needed > 4 * s.get_parameters_size(False) and error.quota >= error.usage > 0
    assert store.read("one") == before


HOLDER = """
import sys
from trainweb import CheckpointStore
with CheckpointStore(sys.argv[1])._locked("one"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_kept_out(kept: tuple[trainweb.CheckpointStore, trainweb.TrainingSession]) -> None:
    store, s = kept
    command = [sys.executable, "-c", HOLDER, str(store.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        checkpoint = {"store": store, "name": "one"}
        for action in (
            lambda: store.save(s, "one"),
            lambda: store.delete("one"),
            lambda: store.rename("one", "two"),
            lambda: Trainer(s).fit(rows(12), progress=False, checkpoint=checkpoint),
        ):
            with pytest.raises(StorageError, match="'one' is in use"):
                action()
        holder.kill()
    store.save(s, "one")
    assert np.isfinite(s.get_contiguous_parameters()).all()


def everything(s: trainweb.TrainingSession) -> bytes:
    return store_module.take_snapshot(s._core).to_bytes()


def test_a_session_goes_on_from_each_form_of_its_checkpoint(tmp_path: Path) -> None:
    with session() as s:
        s.register_linear_lr_scheduler(2, 9, 0.05)
        warm(s)
        s.state.properties["epoch"] = 3
        store = trainweb.CheckpointStore(tmp_path)
        store.save(s, "run")
        file, parameters = s.save(), s.save(include_optimizer_state=False)
        (tmp_path / "file").write_bytes(file)
        (tmp_path / "stored").write_bytes(store.read("run"))
        trained = s.get_contiguous_parameters(False).tobytes()
        expected = take_steps(s, batch(), 3), everything(s)
    for form in (file, bytearray(file), store.read("run"), tmp_path / "file", str(tmp_path / "stored")):
        with session() as other:
            other.state.properties["mine"] = 1
            take_steps(other, batch(seed=5), 1)
            other.load_checkpoint(form)
            assert dict(other.state.properties) == {"epoch": 3}
            assert (take_steps(other, batch(), 3), everything(other)) == expected
    with session() as other:
        warm(other)
        other.load_checkpoint(parameters)
        assert other.get_contiguous_parameters(False).tobytes() == trained
        assert (other.step_count(), other.get_learning_rate()) == (0, np.float32(0.001))
        for name in other.parameter_names(True):
            assert not other.get_gradient(name).any()
            assert not any(moment.any() for moment in other.get_moments(name).values())


def test_a_checkpoint_of_another_session_is_refused() -> None:
    with session() as s:
        warm(s)
        file = s.save()
        model = s.export()
    nominal, frozen = artifacts("mlp").nominal_checkpoint, build_artifacts(mlp(), loss="CrossEntropyLoss").checkpoint
    faults = {file: "the optimizer state of AdamW", file[:-9]: "truncated", b"{}": "not a checkpoint"}
    forward = mlp() if isinstance(mlp(), bytes) else mlp().SerializeToString()
    onnx_text = r"This is an ONNX model\. Give the file that save\(\) of a session made"
    faults |= {model: onnx_text, forward: onnx_text, artifacts("mlp").training_model: onnx_text}
    faults |= {nominal: "nominal", frozen: "'fc1.bias' is trained \\[4\\] there, and frozen"}
    with session(optimizer="SGD") as other:
        before = everything(other)
        for wrong, text in faults.items():
            with pytest.raises(CheckpointError, match=text):
                other.load_checkpoint(wrong)
        assert everything(other) == before


@pytest.mark.parametrize(
    ("first", "second", "is_over"),
    [
        ({"epochs": 2}, {"epochs": 2, "learning_rate": 0.5}, True),
        ({"epochs": 3}, {"epochs": 1}, True),
        ({"epochs": 9, "early_stopping": EARLY}, {"epochs": 9, "early_stopping": EARLY}, True),
        ({"epochs": 2}, {"epochs": 3}, False),
    ],
    ids=["another rate", "fewer epochs", "early", "more epochs"],
)
def test_a_fit_that_has_ended_says_that_nothing_is_trained(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], is_over: bool
) -> None:
    checkpoint = {"store": tmp_path, "name": "run"}
    plain = {"batch_size": 8, "validation_split": 0.4, "learning_rate": 0.3, "checkpoint": checkpoint}
    counts = []
    for options in (first, second):
        with session() as s, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            counts.append(len(Trainer(s).fit(rows(40), progress=False, **plain | options).losses))
        notices = [str(one.message) for one in said if "ended before" in str(one.message)]
        assert len(notices) == (options is second and is_over)
    assert (counts[0] == counts[1]) == is_over
    if is_over:
        epochs = counts[0] // 3
        text = f"The fit of the checkpoint 'run' ended before, after {epochs} epochs: nothing was trained. To train on"
        assert notices[0].startswith(text)
