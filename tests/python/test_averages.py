"""Averages of the parameters: their numbers, who reads them, and that a run that goes on keeps them to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import mlp
from tests.python.sessions import batch, error_of

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import ModelError, SessionError
from trainweb.onnxblock import optim

EMA = {"decay": 0.8}
STEPS = 9


def made(optimizer: Any = "AdamW", ema: Any = EMA, **settings: Any) -> Any:
    return build_artifacts(mlp(), loss="CrossEntropyLoss", optimizer=optimizer, ema=ema, **settings)


def opened(files: Any, checkpoint: bytes | None = None) -> trainweb.TrainingSession:
    state = trainweb.CheckpointState.load_checkpoint(checkpoint or files.checkpoint)
    return trainweb.TrainingSession(state, files.training_model, files.eval_model, files.optimizer_model)


def trained(s: trainweb.TrainingSession, first: int = 0, steps: int = STEPS) -> list[np.ndarray]:
    found = []
    for seed in range(first, first + steps):
        s.set_learning_rate(0.05)
        s.train_step(batch(seed=seed))
        s.optimizer_step()
        s.lazy_reset_grad()
        found.append(s.get_contiguous_parameters().astype(np.float64))
    return found


def average(course: list[np.ndarray], decays: list[float]) -> np.ndarray:
    found = course[0]
    for w, decay in zip(course[1:], decays, strict=True):
        found = decay * found + (1 - decay) * w
    return found


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adafactor", "Muon", "Lamb"])
def test_the_average_is_that_of_the_parameters_after_each_step(optimizer: str) -> None:
    with opened(made(optimizer)) as s:
        course = trained(s)
        np.testing.assert_allclose(
            s.get_contiguous_parameters(ema=True), average(course, [0.8] * 8), rtol=1e-5, atol=1e-7
        )
        np.testing.assert_array_equal(s.get_contiguous_parameters(), course[-1].astype(np.float32))


def test_averages_cost_the_course_of_the_parameters_nothing() -> None:
    with opened(made()) as s, opened(made(ema=None)) as plain:
        np.testing.assert_array_equal(trained(s)[-1], trained(plain)[-1])


def test_the_decay_warms_up_as_in_timm() -> None:
    """ModelEmaV3.get_decay: 1 - (1 + step / gamma) ** -power, at most the decay; its first update copies."""
    given = {"decay": 0.7, "warmup": True, "warmup_gamma": 2.0, "warmup_power": 0.75}
    with opened(made(ema=given)) as s:
        course = trained(s)
        decays = [min(0.7, 1 - (1 + t / 2) ** -0.75) for t in range(1, STEPS)]
        assert decays[0] < 0.3 and decays[-1] == 0.7
        np.testing.assert_allclose(s.get_contiguous_parameters(ema=True), average(course, decays), rtol=1e-5, atol=1e-7)


def test_groups_and_frozen_parameters() -> None:
    optimizer = {"type": "SGD", "groups": [{"parameters": ["fc2.*"], "learning_rate_factor": 3.0}]}
    with opened(made(optimizer, frozen_params=["fc1.bias"])) as s:
        course = trained(s)
        np.testing.assert_allclose(
            s.get_contiguous_parameters(ema=True), average(course, [0.8] * 8), rtol=1e-5, atol=1e-7
        )
        frozen = s.get_parameter("fc1.bias")
        whole = s.get_contiguous_parameters(False, ema=True)
        start = sum(s.get_parameter(n).size for n in s.parameter_names()[: s.parameter_names().index("fc1.bias")])
        np.testing.assert_array_equal(whole[start : start + frozen.size], frozen.ravel())
        assert s.get_moments("fc1.bias") == {}


def test_eval_steps_and_exports_read_them_on_request(tmp_path: Path) -> None:
    with opened(made(additional_output_names=["logits"])) as s:
        trained(s)
        feeds = batch(seed=70)
        before = s.get_contiguous_parameters()
        plain, averaged = s.eval_step(feeds), s.eval_step(feeds, options={"ema": True})
        again = s.eval_step(feeds)
        for name in plain:
            np.testing.assert_array_equal(plain[name], again[name])
            assert not np.array_equal(plain[name], averaged[name])
        model = s.export_model_for_inferencing(graph_output_names=["logits"], ema=True)
        assert model is not None
        path = tmp_path / "model.onnx"
        path.write_bytes(model)
        inputs = {"x": feeds["x"]}
        (logits,) = ReferenceEvaluator(str(path)).run(None, inputs)
        np.testing.assert_allclose(logits, averaged["logits"], rtol=1e-5, atol=1e-6)
        assert s.export_weights("npz", ema=True) != s.export_weights("npz")
        np.testing.assert_array_equal(s.get_contiguous_parameters(), before)
        # A failure leaves the parameters where they were, too.
        with pytest.raises(ModelError):
            s.export_model_for_inferencing(graph_output_names=["nowhere"], ema=True)
        np.testing.assert_array_equal(s.get_contiguous_parameters(), before)
        for step in (lambda: s.train_step(feeds, options={"ema": True}), lambda: s.optimizer_step({"ema": True})):
            with pytest.raises(SessionError, match="Only eval steps of a training session"):
                step()


def test_before_the_first_step_they_are_the_parameters() -> None:
    with opened(made()) as s:
        s.load_parameters_buffer(np.arange(s.get_parameters_size(), dtype=np.float32))
        np.testing.assert_array_equal(s.get_contiguous_parameters(ema=True), s.get_contiguous_parameters())


def test_a_run_that_goes_on_gives_the_same_bytes() -> None:
    files = made()
    with opened(files) as whole:
        trained(whole, 0, 8)
        expected = whole.get_contiguous_parameters(), whole.get_contiguous_parameters(ema=True)
    with opened(files) as first:
        trained(first, 0, 3)
        saved = trainweb.CheckpointState.save_checkpoint(first._core.state, include_optimizer_state=True)
    with opened(files, saved) as second:
        trained(second, 3, 5)
        np.testing.assert_array_equal(second.get_contiguous_parameters(), expected[0])
        np.testing.assert_array_equal(second.get_contiguous_parameters(ema=True), expected[1])


def test_a_run_that_kept_none_goes_on_from_its_parameters() -> None:
    with opened(made(ema=None)) as plain:
        start = trained(plain, 0, 3)[-1]
        saved = trainweb.CheckpointState.save_checkpoint(plain._core.state, include_optimizer_state=True)
    with opened(made(), saved) as s:
        np.testing.assert_array_equal(s.get_contiguous_parameters(ema=True), start)
        course = [start, *trained(s, 3, 2)]
        np.testing.assert_allclose(
            s.get_contiguous_parameters(ema=True), average(course, [0.8] * 2), rtol=1e-5, atol=1e-7
        )


def test_fit_evaluates_with_them_and_early_stopping_restores_them() -> None:
    rng = np.random.default_rng(3)
    data = {"x": rng.standard_normal((64, 5)).astype(np.float32), "labels": rng.integers(0, 3, 64)}
    best = {"patience": 0, "restore_best": True}
    common: dict[str, Any] = {"batch_size": 8, "validation_split": 0.25, "progress": False, "seed": 5}
    with opened(made()) as s:
        history = trainweb.Trainer(s).fit(data, epochs=1, ema=True, **common)
        feeds = {name: values[48:] for name, values in data.items()}
        losses = [s.eval_step({n: v[k : k + 8] for n, v in feeds.items()}, options={"ema": True}) for k in (0, 8)]
        expected = np.mean([float(next(iter(found.values()))) for found in losses])
        assert history["val_loss"] == [pytest.approx(expected, rel=1e-6)]
        assert history["val_loss"] != trainweb.Trainer(opened(made())).fit(data, epochs=1, **common)["val_loss"]
        averaged = s.get_contiguous_parameters(ema=True)
    with opened(made()) as s:
        s.set_learning_rate(0.001)
        trainweb.Trainer(s).fit(data, epochs=1, ema=True, early_stopping=best, **common)
        np.testing.assert_array_equal(s.get_contiguous_parameters(), averaged)


def test_what_is_wrong_is_named() -> None:
    for given, text in (
        ({"decay": 1.0}, r"decay is 1.0; it must be"),
        ({"decays": 0.9}, "ema has no setting 'decays'; did you mean 'decay'"),
        (0.9, "ema is 0.9; it must be a mapping"),
    ):
        with pytest.raises(error_of(text), match=text):
            made(ema=given)
    with pytest.raises(ModelError, match="ema needs an 'optimizer'"):
        made(optimizer=None)
    with pytest.raises(ModelError, match=r"give it average\(ExponentialMovingAverage"):
        made(optimizer=optim.AdamW())
    with opened(made(ema=None)) as s:
        for call in (
            lambda: s.get_contiguous_parameters(ema=True),
            lambda: s.eval_step(batch(), options={"ema": True}),
            lambda: s.export_weights("npz", ema=True),
        ):
            with pytest.raises(SessionError, match="keeps no averages"):
                call()


def test_a_block_says_it_itself() -> None:
    block = optim.AdamW().average(optim.ExponentialMovingAverage(0.8))
    with opened(made(optimizer=block, ema=None)) as s, opened(made()) as other:
        trained(s)
        trained(other)
        np.testing.assert_array_equal(s.get_contiguous_parameters(ema=True), other.get_contiguous_parameters(ema=True))


def test_a_store_gives_back_averages_as_they_were(tmp_path: Path) -> None:
    store = trainweb.CheckpointStore(tmp_path)
    with opened(made()) as s:
        for name in ("before the first step", "after it"):
            store.save(s, name)
            s.train_step(batch())
            s.optimizer_step()
            store.load(s, name)
            store.save(s, "again")
            assert store.read("again") == store.read(name)
            s.train_step(batch())
            s.optimizer_step()
