"""Exports of PyTorch modules train PyTorch's parameters along PyTorch's trajectory.

`scripts/record_exports.py` made `exports/`: each module as three exporters write it, and PyTorch's own training.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.python.sessions import take_steps

import trainweb
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts
from trainweb.cli import main
from trainweb.onnxblock.optim import AdamW
from trainweb.session.training_session import TrainingSession
from trainweb.training.state import CheckpointState

EXPORTS = Path(__file__).parent / "exports"
NAMES = sorted(path.stem for path in EXPORTS.glob("*.npz"))
RATE = 0.01

DOUBTFUL = {
    "mel.script": {"mel", "mean"},
    "rotary.script": {"inv_freq"},
    "spline.script": {"coefficients", "scale", "knots"},
    "temperature.script": {"gate", "logit_scale"},
    "tokens.script": {"token", "position", "gamma"},
}
"""What the TorchScript exporter leaves open: it writes parameters and buffers alike."""
LOST = {
    "batch_norm": {"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"},
    "temperature": {"gate", "logit_scale"},
    "tokens": {"token"},
    "weight_norm": {"fc.parametrizations.weight.original0", "fc.parametrizations.weight.original1"},
}
"""Parameters that the dynamo exporter's optimizer folds away, so that the file holds no tensor of them."""
WITHOUT_GRADIENT = {
    "batch_norm": ("conv2.bias", slice(None)),
    "causal_attention": ("k.bias", slice(None)),
    "finite_mask": ("qkv.bias", slice(8, 16)),
}
"""Biases before a batch norm and of attention's keys: their gradient is zero but for rounding, which AdamW blows up."""


def truth(name: str) -> dict[str, np.ndarray]:
    with np.load(EXPORTS / f"{name}.npz") as data:
        return dict(data)


def of(data: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): value for key, value in data.items() if key.startswith(prefix)}


def build(name: str, exporter: str, optimizer: object = None, **arguments: object) -> Artifacts:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The file does not settle")
        return build_artifacts(
            EXPORTS / f"{name}.{exporter}.onnx", loss=LossType.CrossEntropyLoss, optimizer=optimizer, **arguments
        )


@pytest.mark.parametrize("exporter", ["dynamo", "plain", "script"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_trained_is_what_pytorch_trains(name: str, exporter: str) -> None:
    parameters = of(truth(name), "before/")
    decisions = {d.name: d for d in build(name, exporter).decisions}
    doubtful = {d.name for d in decisions.values() if d.doubtful}
    wrong = {d.name for d in decisions.values() if d.trained != (d.name in parameters)}
    wrong |= set(parameters) - set(decisions)
    assert wrong <= doubtful | (LOST.get(name, set()) if exporter == "dynamo" else set()), wrong
    assert all(d.reason for d in decisions.values())
    if exporter == "script":
        assert doubtful == DOUBTFUL.get(f"{name}.script", set())
    elif exporter == "plain" or name not in LOST:
        assert not doubtful and not wrong, (doubtful, wrong)
    else:
        assert doubtful


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("exporter", ["dynamo", "plain", "script"])
@pytest.mark.parametrize("name", NAMES)
def test_five_steps_are_pytorchs(name: str, exporter: str, kind: str) -> None:
    assert trainweb.check(EXPORTS / f"{name}.{exporter}.onnx", loss=LossType.CrossEntropyLoss).ok
    if exporter == "dynamo" and name in LOST:
        with pytest.warns(UserWarning, match="optimize=False"):
            build_artifacts(EXPORTS / f"{name}.dynamo.onnx", loss=LossType.CrossEntropyLoss)
        return
    data = truth(name)
    after = of(data, f"{kind}/after/")
    optimizer = OptimType.SGD if kind == "SGD" else AdamW(eps=1e-8, weight_decay=0.01, adam_mode=0)
    settled = {"requires_grad": sorted(after)} if f"{name}.{exporter}" in DOUBTFUL else {}
    artifacts = build(name, exporter, optimizer, **settled)
    with TrainingSession(**artifacts) as session:
        session.set_learning_rate(RATE)
        names = session.input_names()
        feeds = {n: data["labels" if n == "labels" else "x"] for n in names}
        losses = take_steps(session, feeds, 5)
        np.testing.assert_allclose(losses, data[f"{kind}/losses"], rtol=2e-5)
        trained = {d.name for d in artifacts.decisions if d.trained}
        transposed = {d.name for d in artifacts.decisions if "transposed" in d.reason}
        assert trained == set(after)
        for key, expected in after.items():
            found = session.get_parameter(key)
            found = found.T if key in transposed else found
            expected = expected.copy()
            noisy, part = WITHOUT_GRADIENT.get(name, ("", slice(0)))
            if kind == "AdamW" and key == noisy:
                assert np.abs(found[part] - data[f"before/{key}"][part]).max() < 5 * RATE * 1.01
                expected[part] = found[part]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("exporter", ["dynamo", "plain", "script"])
@pytest.mark.parametrize("name", NAMES)
def test_a_trained_file_is_built_again_with_the_same_decisions(name: str, exporter: str) -> None:
    first = build(name, exporter, OptimType.SGD)
    models = (first.training_model, first.eval_model, first.optimizer_model)
    with TrainingSession(CheckpointState.load_checkpoint(first.checkpoint), *models) as session:
        exported = session.export()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The file does not settle")
        again = build_artifacts(exported, loss=LossType.CrossEntropyLoss)
    trained = {d.name for d in first.decisions if d.trained}
    assert {d.name for d in again.decisions if d.trained} == trained
    assert not {d.name for d in again.decisions if d.doubtful} - {d.name for d in first.decisions if d.doubtful}


def test_the_report_lists_reasons_and_is_data() -> None:
    path = EXPORTS / "mel.script.onnx"
    report = trainweb.check(path, loss=LossType.CrossEntropyLoss)
    assert report.ok and {d.name for d in report.trained} == {"fc.weight", "fc.bias"}
    assert {d.name for d in report.doubtful} == {"mel", "mean"}
    assert "doubtful:\n  mel: left out; weight of a product" in str(report)
    assert [d["name"] for d in report.as_data()["doubtful"]] == ["mel", "mean"]
    without = trainweb.check(path)
    assert not without.ok and "such as CrossEntropyLoss" in str(without) and "cannot" not in str(without)


def test_what_the_caller_names_wins() -> None:
    chosen = build("causal_attention", "dynamo", requires_grad=["mask", "val_0"])
    assert {d.name for d in chosen.decisions if d.trained} == {"val_0", "mask"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_artifacts(EXPORTS / "mel.script.onnx", loss=LossType.CrossEntropyLoss, frozen_params=["mel", "mean"])


def test_the_command_line_prints_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EXPORTS / "causal_attention.script.onnx")
    assert main(["check", path, "--loss", "CrossEntropyLoss"]) == 0
    assert "left out:\n  mask: holds -inf" in capsys.readouterr().out
    assert main(["check", path]) == 1
    assert "name one, such as CrossEntropyLoss" in capsys.readouterr().out
    assert main(["check", path, "--loss", "MSELoss", "--train", "out.bias", "--json"]) == 0
    assert [d["name"] for d in json.loads(capsys.readouterr().out)["trained"]] == ["out.bias"]
