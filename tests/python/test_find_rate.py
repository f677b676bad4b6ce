"""`find_learning_rate` against a loop of one's own and fastai's rules written with numpy; `save` and `export`."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import mlp

import trainweb
from trainweb.data import Dataset
from trainweb.errors import ModelError, SessionError, UnsupportedError
from trainweb.fit.find_rate import suggested
from trainweb.training.history import LearningRates

from .sessions import session
from .test_fit import rows

DATA = rows(40)
BATCHES = [{n: a[k : k + 8] for n, a in DATA.items()} for k in range(0, 40, 8)]


def test_losses_are_those_of_a_loop_with_growing_rates() -> None:
    with session() as s:
        before = s.get_contiguous_parameters(False).tobytes(), s.get_learning_rate(), s.step_count()
        found = s.find_learning_rate(BATCHES, steps=30, least=1e-5, most=1.0)
        assert before == (s.get_contiguous_parameters(False).tobytes(), s.get_learning_rate(), s.step_count())
        np.testing.assert_allclose(found.rates, np.geomspace(1e-5, 1.0, 30), rtol=1e-12)
        raw = []
        for k, rate in enumerate(found.rates):
            s.lazy_reset_grad()
            s.set_learning_rate(rate)
            raw.append(float(s.train_step(BATCHES[k % 5])[s.output_names()[0]]))
            s.optimizer_step()
    weights = 0.98 ** np.arange(30)[::-1]
    expected = [np.average(raw[: k + 1], weights=weights[29 - k :]) for k in range(30)]
    np.testing.assert_allclose(found.losses, expected, rtol=1e-12)


def test_it_ends_where_the_loss_diverges() -> None:
    with session() as s:
        found = s.find_learning_rate(DATA, steps=60, most=1e6, batch_size=8)
        assert len(found.losses) < 60 and found.losses[-1] > 4 * min(found.losses)
        assert all(loss <= 4 * min(found.losses[: k + 1]) for k, loss in enumerate(found.losses[:-1]))
        assert found.suggestion is not None and found.rates[0] < found.suggestion < found.rates[-1]
        again = s.find_learning_rate(DATA, steps=60, most=1e6, batch_size=8)
        listed = [s.find_learning_rate(list(Dataset(DATA)), steps=60, most=1e6, batch_size=8, seed=k) for k in (0, 1)]
        assert listed[0] != listed[1]
        assert again == found != s.find_learning_rate(DATA, steps=60, most=1e6, batch_size=8, seed=1)


def test_the_suggestion_lies_in_the_longest_valley() -> None:
    # Of 50 steps the first five and the last five do not count; the loss falls from step 10 to step 34.
    losses = [3.0] * 10 + [3 - 0.1 * k for k in range(1, 26)] + [2.0 + k for k in range(15)]
    rates = [10.0**k for k in range(50)]
    # The valley has 26 steps with the plateau before it; its middle third begins 8 steps after the start, and 4 more.
    assert suggested(rates, losses, 50) == rates[5 + (29 - 26) + 8 + 4]
    assert suggested(rates, [1.0 + k for k in range(50)], 50) is None


def test_wrong_settings_are_named() -> None:
    with session() as s:
        with pytest.raises(ModelError, match="steps is 3; it must be an integer >= 10"):
            s.find_learning_rate(DATA, steps=3)
        with pytest.raises(ModelError, match=r"most is 0\.1; it must be greater than 'least', which is 1\.0"):
            s.find_learning_rate(DATA, least=1, most=0.1)
        with pytest.raises(TypeError, match="did you mean 'steps'"):
            s.find_learning_rate(DATA, step=20)


def test_save_and_export_are_short_names(tmp_path: Path) -> None:
    with session() as s:
        s.fit(DATA, progress=False)
        saved = s.save()
        assert s.save(tmp_path / "checkpoint") is None and (tmp_path / "checkpoint").read_bytes() == saved
        assert saved is not None and len(saved) > len(s.save(include_optimizer_state=False) or b"")
        exported = s.export()
        s.export(tmp_path / "model.onnx")
        assert (tmp_path / "model.onnx").read_bytes() == exported
        logits = s.predict({"x": DATA["x"]})["logits"]
        model = onnx.load_from_string(exported or b"")
        (found,) = ReferenceEvaluator(model).run(None, {"x": DATA["x"]})
        np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-6)
        names = s.parameter_names(trainable_only=True)
        parameters = {name: s.get_parameter(name) for name in names}
    state = trainweb.CheckpointState.load_checkpoint(saved)
    for name in names:
        np.testing.assert_array_equal(state.parameters[name].data, parameters[name])
    files = trainweb.artifacts.build_artifacts(mlp(), loss="CrossEntropyLoss", optimizer="SGD")
    without = trainweb.TrainingSession(checkpoint=files.checkpoint, train_model=files.train_model)
    with without, pytest.raises(SessionError, match="no EvalModel"):
        without.export()


def test_the_plot_shows_the_rates_with_a_line_at_the_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []

    class Axes:
        def __getattr__(self, name: str) -> Any:
            return lambda *given, **options: drawn.append((name, *given))

    found = LearningRates([0.1, 0.2], [3.0, 2.0], 0.15)
    axes = Axes()
    assert found.plot(axes) is axes
    assert ("plot", [0.1, 0.2], [3.0, 2.0]) in drawn and ("set_xscale", "log") in drawn
    assert ("axvline", 0.15) in drawn
    drawn.clear()
    LearningRates([0.1], [3.0], None).plot(axes)
    assert "axvline" not in [name for name, *_ in drawn]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib"):
        found.plot()
