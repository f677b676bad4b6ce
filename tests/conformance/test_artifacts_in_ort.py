"""Artifacts beyond the golden ones: two steps in ONNX Runtime training and here give the same numbers."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import trainweb
from trainweb import onnxblock
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts
from trainweb.lora import inject
from trainweb.lora.adapted import arguments_of
from trainweb.onnxblock import loss as losses

from .models import batch_norm_net, make_model, mlp, normal

ORT_PYTHON = os.environ.get("TRAINWEB_ORT_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not ORT_PYTHON, reason="set TRAINWEB_ORT_PYTHON to a Python with onnxruntime-training 1.19.2"
)
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
STEPS, LEARNING_RATE = 2, 0.05

Case = tuple[Any, dict[str, Any], dict[str, np.ndarray]]
"""Model, arguments of build_artifacts, feeds."""


def classifier(**loss: Any) -> Case:
    feeds = {"x": normal(4, 5, seed=5), "labels": np.array([0, 2, 1, 1])}
    return mlp(), {"loss": losses.CrossEntropyLoss(**loss)}, feeds


def adapters() -> Case:
    """Their scaling is in the checkpoint."""
    model, arguments, feeds = classifier()
    settings = arguments_of(inject(model, "all-linear", rank=2, alpha=3), arguments)
    return settings.pop("model"), settings, feeds


def sequences() -> Case:
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["m"], "m"), helper.make_node("Add", ["m", "b"], ["logits"], "a")],
        {"x": ["batch", "tokens", 5]},
        {"logits": ["batch", "tokens", 7]},
        {"w": normal(5, 7), "b": normal(7, seed=1)},
    )
    feeds = {"x": normal(2, 3, 5, seed=1), "labels": np.array([[0, 1, -100], [3, 4, 6]])}
    return model, {"loss": losses.CrossEntropyLoss(ignore_index=-100)}, feeds


def images() -> Case:
    model = make_model(
        [helper.make_node("Conv", ["x", "w"], ["logits"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        {"x": ["batch", 2, 3, 4]},
        {"logits": ["batch", 5, 3, 4]},
        {"w": normal(5, 2, 3, 3)},
    )
    feeds = {"x": normal(2, 2, 3, 4, seed=1), "labels": np.arange(24).reshape(2, 3, 4) % 5}
    return model, {"loss": losses.CrossEntropyLoss(class_axis=1)}, feeds


def binary(**loss: Any) -> Case:
    feeds = {"x": normal(4, 5, seed=5), "target": (normal(4, 3, seed=6) > 0).astype(np.float32)}
    return mlp(), {"loss": losses.BCEWithLogitsLoss(**loss)}, feeds


def batch_norm(**arguments: Any) -> Case:
    options = {k: arguments.pop(k) for k in ("training_mode", "opset") if k in arguments}
    feeds = {"x": normal(6, 2, 4, 4, seed=4), "target": normal(6, 2, seed=5)}
    return batch_norm_net(**options), {"loss": LossType.MSELoss, **arguments}, feeds


def symbolic_broadcasts(opset: int) -> Case:
    model = make_model(
        [
            helper.make_node("Mul", ["x", "s"], ["a"], "mul"),
            helper.make_node("Mul", ["a", "mask"], ["m"], "masked"),
            helper.make_node("Add", ["m", "b"], ["y"], "add"),
            helper.make_node("Sub", ["y", "x"], ["d"], "sub"),
        ],
        {"x": ["n", 3, 4], "mask": ["m", 1, 4]},
        {"d": ["n", 3, 4]},
        {"s": normal(3, 1), "b": normal(4, seed=1)},
        opset=opset,
    )
    feeds = {"x": normal(2, 3, 4, seed=4), "mask": normal(1, 1, 4, seed=6), "target": normal(2, 3, 4, seed=5)}
    return model, {"loss": LossType.L1Loss}, feeds


def layer_norm(outputs: int, bias: bool) -> Case:
    names = ["y", "mean", "inverse"][:outputs]
    inputs = ["x", "scale", *(["bias"] if bias else [])]
    weights = {"scale": 1 + 0.1 * normal(5), "bias": normal(5, seed=1), "w": normal(5, 3, seed=2)}
    model = make_model(
        [
            helper.make_node("LayerNormalization", inputs, names, "ln"),
            helper.make_node("MatMul", ["y", "w"], ["z"], "m"),
        ],
        {"x": ["batch", 5]},
        {"z": ["batch", 3]},
        {n: a for n, a in weights.items() if bias or n != "bias"},
    )
    return model, {"loss": LossType.MSELoss}, {"x": normal(4, 5, seed=5), "target": normal(4, 3, seed=6)}


def shared_weights() -> Case:
    """One matrix used twice, as tied embeddings are, and once transposed without perm."""
    model = make_model(
        [
            helper.make_node("Gather", ["w", "ids"], ["e"], "embed"),
            helper.make_node("Relu", ["e"], ["h"], "relu"),
            helper.make_node("Transpose", ["w"], ["wt"], "tie"),
            helper.make_node("MatMul", ["h", "wt"], ["logits"], "head"),
        ],
        {"ids": ["batch", "tokens"]},
        {"logits": ["batch", "tokens", 6]},
        {"w": normal(6, 4)},
        types={"ids": onnx.TensorProto.INT64},
    )
    feeds = {"ids": np.array([[0, 5, 2], [1, 1, 3]]), "labels": np.array([[5, 2, 1], [1, 3, 0]])}
    return model, {"loss": LossType.CrossEntropyLoss}, feeds


def residual() -> Case:
    """A block whose input is used twice, over an operator ONNX Runtime has no gradient for."""
    model = make_model(
        [
            helper.make_node("Gemm", ["x", "w1"], ["h"], "one"),
            helper.make_node("Elu", ["h"], ["e"], "elu", alpha=0.7),
            helper.make_node("Gemm", ["e", "w2"], ["r"], "two"),
            helper.make_node("Sum", ["h", "r", "e"], ["s"], "sum"),
            helper.make_node("Softplus", ["s"], ["y"], "softplus"),
        ],
        {"x": ["batch", 5]},
        {"y": ["batch", 5]},
        {"w1": normal(5, 5), "w2": normal(5, 5, seed=1)},
    )
    return model, {"loss": LossType.MSELoss}, {"x": normal(4, 5, seed=5), "target": normal(4, 5, seed=6)}


def recurrent(op_type: str, opset: int, gates: int, **attrs: Any) -> Case:
    """Two layers over any number of steps: one of a direction, one of both with the lengths of sequences."""
    weights: dict[str, np.ndarray] = {}
    for layer, directions, size in (("one", 1, 3), ("two", 2, 4)):
        shapes = {"w": (gates * 4, size), "r": (gates * 4, 4), "b": (8 * gates,)}
        weights |= {f"{layer}.{n}": normal(directions, *s, seed=len(weights)) * 0.5 for n, s in shapes.items()}
    nodes = [
        helper.make_node(op_type, ["x", "one.w", "one.r", "one.b"], ["a"], "one", hidden_size=4, **attrs),
        helper.make_node("Transpose", ["a"], ["t"], "turned", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "shape"], ["s"], "flat"),
        helper.make_node(
            op_type,
            ["s", "two.w", "two.r", "two.b", "lengths"],
            ["", "last"],
            "two",
            hidden_size=4,
            direction="bidirectional",
            **attrs,
        ),
        helper.make_node(
            "ReduceSum", ["last"], ["y"], "sum", **({"keepdims": 0} if opset >= 13 else {"axes": [0], "keepdims": 0})
        ),
    ]
    model = make_model(
        nodes,
        {"x": ["steps", "batch", 3], "lengths": ["batch"]},
        {"y": []} if opset >= 13 else {"y": ["batch", 4]},
        {**weights, "shape": np.array([0, 0, -1])},
        opset=opset,
        types={"lengths": onnx.TensorProto.INT32},
    )
    target = normal(seed=9) if opset >= 13 else normal(2, 4, seed=9)
    feeds = {"x": normal(5, 2, 3, seed=8), "lengths": np.array([5, 3], np.int32), "target": target}
    return model, {"loss": LossType.MSELoss}, feeds


CASES: dict[str, Callable[[], Case]] = {
    "weighted classes": lambda: classifier(weight=[0.5, 2.0, 1.0], ignore_index=1),
    "summed classes": lambda: classifier(reduction="sum"),
    "adapters": adapters,
    "sequences": sequences,
    "images": images,
    "binary": binary,
    "binary with weights": lambda: binary(weight=[1.0, 0.5, 2.0], pos_weight=[3.0, 1.0, 0.5]),
    "batch norm": batch_norm,
    "batch norm for training": lambda: batch_norm(training_mode=True),
    "batch norm of opset 9": lambda: batch_norm(opset=9),
    "batch norm for training of opset 13": lambda: batch_norm(opset=13, training_mode=True),
    "batch norm as exported": lambda: batch_norm(batch_norm="as_exported"),
    "batch norm frozen": lambda: batch_norm(requires_grad=["conv.weight"]),
    "layer norm": lambda: layer_norm(3, True),
    "layer norm with one output": lambda: layer_norm(1, True),
    "layer norm without bias": lambda: layer_norm(1, False),
    "symbolic broadcasts": lambda: symbolic_broadcasts(17),
    "symbolic broadcasts of opset 11": lambda: symbolic_broadcasts(11),
    "shared weights": shared_weights,
    "residual": residual,
    "LSTM": lambda: recurrent("LSTM", 17, 4),
    "GRU": lambda: recurrent("GRU", 13, 3),
    "GRU, linear": lambda: recurrent("GRU", 11, 3, linear_before_reset=1),
    "RNN": lambda: recurrent("RNN", 9, 1),
}
OPTIMIZERS = {
    "adamw": OptimType.AdamW,
    "sgd": OptimType.SGD,
    "torch's adamw, clipped": onnxblock.optim.AdamW(
        weight_decay=0.1, adam_mode=0, clip_grad=onnxblock.optim.ClipGradNorm(0.25)
    ),
}


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def optimizer_of(name: str) -> Any:
    return list(OPTIMIZERS.values())[list(CASES).index(name) % len(OPTIMIZERS)]


def built(name: str) -> tuple[Artifacts, dict[str, np.ndarray]]:
    model, arguments, feeds = CASES[name]()
    return build_artifacts(model, optimizer=optimizer_of(name), **arguments), feeds


@pytest.fixture(scope="module")
def ort_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts, feeds and ONNX Runtime's results of every case."""
    root = tmp_path_factory.mktemp("ort")
    folders = []
    for name in CASES:
        artifacts, feeds = built(name)
        folder = root / slug(name)
        folder.mkdir()
        artifacts.write(folder)
        np.savez(folder / "feeds.npz", **feeds)
        folders.append(str(folder))
    script = Path(__file__).with_name("ort_steps.py")
    subprocess.run([ORT_PYTHON, str(script), *folders], capture_output=True, timeout=600, check=False)
    return root


@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_and_trainweb_take_the_same_steps(name: str, ort_folder: Path) -> None:
    folder = ort_folder / slug(name)
    error = folder / "error.txt"
    assert not error.exists(), error.read_text()
    want = np.load(folder / "results.npz")
    artifacts, feeds = built(name)
    state = trainweb.CheckpointState.load_checkpoint(artifacts.checkpoint)
    models = artifacts.training_model, artifacts.eval_model, artifacts.optimizer_model
    with trainweb.TrainingSession(state, *models) as session:
        session.set_learning_rate(LEARNING_RATE)
        for k in range(STEPS):
            got = {f"loss{k}": next(iter(session.train_step(feeds).values()))}
            got |= {f"grad{k}.{n}": p.grad for n, p in state.parameters.items() if p.requires_grad}
            session.optimizer_step()
            session.lazy_reset_grad()
            got[f"params{k}"] = session.get_contiguous_parameters(False)
            got[f"eval{k}"] = next(iter(session.eval_step(feeds).values()))
            for key, value in got.items():
                np.testing.assert_allclose(value, want[key].reshape(value.shape), **TOLERANCE, err_msg=key)
            assert {key for key in want.files if key[:-1].endswith(str(k)) or str(k) in key.split(".")[0]} == set(got)
