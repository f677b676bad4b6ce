"""The mode of batch normalizations that torch's dynamo exporter notes, and does not write: against float64."""

import numpy as np
import pytest
from onnx import ModelProto, helper
from tests.conformance.models import make_model, normal

from trainweb.artifacts import OptimType, build_artifacts
from trainweb.session.training_session import TrainingSession
from trainweb.training.state import CheckpointState

X, W = normal(6, 3, seed=1), normal(3, 2, seed=2)
SCALE, BIAS, MEAN, VARIANCE = (normal(3, seed=s) ** 2 + 0.5 for s in range(3, 7))
TRAINED, KEPT = "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training_1"


def net(*modes: str) -> ModelProto:
    """loss = mean((norms(x) w)^2): a norm for each mode, as the exporter notes it."""
    nodes, tensors, edge = [], {"w": W}, "x"
    for k, mode in enumerate(modes):
        names = [f"n{k}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        tensors |= dict(zip(names, (SCALE, BIAS, MEAN, VARIANCE), strict=True))
        nodes.append(helper.make_node("BatchNormalization", [edge, *names], [f"h{k}"], f"norm {k}"))
        note = nodes[-1].metadata_props.add()
        note.key, note.value = "pkg.torch.onnx.name_scopes", f"['', 'n{k}', '{mode}']"
        edge = f"h{k}"
    nodes += [
        helper.make_node("MatMul", [edge, "w"], ["p"], "product"),
        helper.make_node("Mul", ["p", "p"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["loss"], "mean", keepdims=0),
    ]
    return make_model(
        nodes, {"x": ["n", 3]}, {"loss": []}, {name: a.astype(np.float32) for name, a in tensors.items()}, opset=20
    )


def normalized(x: np.ndarray, batch: bool) -> np.ndarray:
    mean, variance = (x.mean(0), x.var(0)) if batch else (MEAN.astype(np.float64), VARIANCE.astype(np.float64))
    return (x - mean) / np.sqrt(variance + 1e-5) * SCALE.astype(np.float64) + BIAS.astype(np.float64)


@pytest.mark.parametrize(
    ("modes", "named", "by_batch"),
    [
        ([TRAINED], ["w"], [True]),
        ([TRAINED], None, [True]),
        ([KEPT], ["w"], [False]),
        ([KEPT], None, [True]),
        ([TRAINED, KEPT], None, [True, False]),
        ([KEPT, TRAINED + "_3"], None, [False, True]),
    ],
    ids=["frozen", "trained", "kept and frozen", "all kept", "second kept", "first kept"],
)
def test_a_norm_has_the_mode_that_was_noted(modes: list[str], named: list[str] | None, by_batch: list[bool]) -> None:
    """In inference mode are: norms that nothing trains, and those beside others that were exported in training."""
    made = build_artifacts(net(*modes), optimizer=OptimType.SGD, requires_grad=named)
    models = made.training_model, made.eval_model, made.optimizer_model
    h = X.astype(np.float64)
    for batch in by_batch:
        h = normalized(h, batch)
    with TrainingSession(CheckpointState.load_checkpoint(made.checkpoint), *models) as session:
        session.set_learning_rate(1.0)
        (loss,) = session.train_step({"x": X}).values()
        session.optimizer_step()
        moved = W.astype(np.float64) - session.get_parameter("w")
    p = h @ W.astype(np.float64)
    assert float(loss) == pytest.approx((p**2).mean(), rel=1e-5)
    np.testing.assert_allclose(moved, h.T @ (2 * p / p.size), rtol=1e-4, atol=1e-5)
