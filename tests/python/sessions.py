"""Small sessions, and what must not change when a call fails."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tests.conformance.models import batch_norm_net, make_model, mlp, normal

import trainweb
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts
from trainweb.backend.base import Stop
from trainweb.backend.plan import LoadedPlan
from trainweb.errors import ModelError
from trainweb.ir.layout import ARENA, CONSTANTS, PREPARED, STATE_LEARNING_RATE, STATE_STEP


class Ended(BaseException):
    """A process that is killed, as far as one process can tell."""


def before_updates(session: trainweb.TrainingSession, call: Callable[[int], None]) -> None:
    """Have a callback before each optimizer step, with the number of those before. A fit takes single batches then."""
    host, count = session._core.host, 0

    def observe(loaded: LoadedPlan, stop: Stop) -> None:
        nonlocal count
        if loaded is session._core.optimizer_plan():
            call(count)
            count += 1
        host.observer = None
        try:
            host.run(loaded, stop)
        finally:
            host.observer = observe

    host.observer = observe


def ends_before(session: trainweb.TrainingSession, step: int | None) -> None:
    """Have a fit end before the optimizer step of this number."""

    def end(number: int) -> None:
        if number == step:
            raise Ended

    before_updates(session, end)


def embedding_net(*, computed: bool = False) -> Any:
    """ids[batch, 3] -> Gather(7 x 4) -> mean -> BatchNormalization -> MatMul(2) = logits.

    `computed`: the indices are made in the graph, ids + offset[1].
    """
    lookup = [helper.make_node("Gather", ["table", "at" if computed else "ids"], ["rows"], "lookup")]
    if computed:
        lookup.insert(0, helper.make_node("Add", ["ids", "offset"], ["at"], "shift"))
    return make_model(
        [
            *lookup,
            helper.make_node("ReduceMean", ["rows"], ["mean"], "pool", axes=[1], keepdims=0),
            helper.make_node("BatchNormalization", ["mean", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["n"], "bn"),
            helper.make_node("MatMul", ["n", "head.weight"], ["logits"], "head"),
        ],
        {"ids": ["batch", 3]} | ({"offset": [1]} if computed else {}),
        {"logits": ["batch", 2]},
        {
            "table": normal(7, 4),
            "bn.scale": np.ones(4, np.float32),
            "bn.bias": np.zeros(4, np.float32),
            "bn.mean": normal(4, seed=1),
            "bn.var": np.ones(4, np.float32),
            "head.weight": normal(4, 2, seed=2),
        },
        types={"ids": TensorProto.INT64, "offset": TensorProto.INT64},
    )


def picking_net(op: str) -> Any:
    """x[batch, 4] -> BatchNormalization -> elements picked by fed ids = y: the statistics move before the picking."""
    ids, y = {
        "Gather": (["k"], ["batch", "k"]),
        "GatherElements": (["batch", "k"], ["batch", "k"]),
        "GatherND": (["k", 2], ["k"]),
    }[op]
    attrs = {} if op == "GatherND" else {"axis": 1}
    return make_model(
        [
            helper.make_node("BatchNormalization", ["x", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["n"], "bn"),
            helper.make_node(op, ["n", "ids"], ["y"], "pick", **attrs),
        ],
        {"x": ["batch", 4], "ids": ids},
        {"y": y},
        {
            "bn.scale": np.ones(4, np.float32),
            "bn.bias": np.zeros(4, np.float32),
            "bn.mean": normal(4, seed=1),
            "bn.var": np.ones(4, np.float32),
        },
        types={"ids": TensorProto.INT64},
    )


def dropout_net() -> Any:
    """x[batch, 50] -> Dropout(0.5) -> MatMul(1) = y, the weights being ones."""
    return make_model(
        [
            helper.make_node("Dropout", ["x", "ratio", "train"], ["d"], "drop"),
            helper.make_node("MatMul", ["d", "w"], ["y"], "sum"),
        ],
        {"x": ["batch", 50]},
        {"y": ["batch", 1]},
        {"w": np.ones((50, 1), np.float32), "ratio": np.float32(0.5), "train": np.bool_(True)},
    )


PICKING = ("Gather", "GatherElements", "GatherND")


@cache
def artifacts(kind: str, optimizer: str = "AdamW") -> Artifacts:
    """Artifacts of one of the small models."""
    make: dict[str, Any] = {
        "mlp": mlp,
        "batch_norm": batch_norm_net,
        "embedding": embedding_net,
        "computed": lambda: embedding_net(computed=True),
        "dropout": dropout_net,
        **{op: partial(picking_net, op) for op in PICKING},
    }
    loss = LossType.MSELoss if kind in ("dropout", *PICKING) else LossType.CrossEntropyLoss
    return build_artifacts(
        make[kind](),
        loss=loss,
        optimizer=OptimType[optimizer],
        nominal_checkpoint=kind == "mlp",
        frozen_params=["fc1.bias"] if kind == "mlp" else None,
    )


@contextmanager
def session(
    kind: str = "mlp",
    *,
    optimizer: str = "AdamW",
    nominal: bool = False,
    checkpoint: bytes | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[trainweb.TrainingSession]:
    """A session, released at the end."""
    made = artifacts(kind, optimizer)
    source = checkpoint or (made.nominal_checkpoint if nominal else made.checkpoint)
    assert source is not None
    state = trainweb.CheckpointState.load_checkpoint(source)
    with trainweb.TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model, options) as s:
        yield s


def batch(kind: str = "mlp", n: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """Feeds of a train step."""
    rng = np.random.default_rng(seed)
    if kind == "mlp":
        return {"x": rng.standard_normal((n, 5)).astype(np.float32), "labels": rng.integers(0, 3, n)}
    if kind == "batch_norm":
        return {"x": rng.standard_normal((n, 2, 4, 4)).astype(np.float32), "labels": rng.integers(0, 2, n)}
    if kind == "dropout":
        return {"x": np.ones((n, 50), np.float32), "target": np.zeros((n, 1), np.float32)}
    if kind in PICKING:
        shape = {"Gather": (3,), "GatherElements": (n, 3), "GatherND": (3, 2)}[kind]
        target = np.zeros((3,) if kind == "GatherND" else (n, 3), np.float32)
        return {"x": rng.standard_normal((n, 4)).astype(np.float32), "ids": rng.integers(0, 4, shape), "target": target}
    feeds = {"ids": rng.integers(0, 5, (n, 3)), "labels": rng.integers(0, 2, n)}
    return feeds | ({"offset": np.array([2])} if kind == "computed" else {})


def warm(s: trainweb.TrainingSession, kind: str = "mlp") -> None:
    """A step of everything, so that nothing is at its start value."""
    s.train_step(batch(kind, seed=7))
    s.optimizer_step()
    s.set_learning_rate(0.0125)
    s.train_step(batch(kind, seed=8))


def take_steps(s: trainweb.TrainingSession, feeds: dict[str, np.ndarray], count: int) -> list[float]:
    """Train on the same feeds; returns the loss of each step."""
    losses = []
    for _ in range(count):
        losses.append(float(next(iter(s.train_step(feeds).values()))))
        s.optimizer_step()
        s.lazy_reset_grad()
    return losses


def infer(model: Any, feeds: dict[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
    """Results of a model in an inference session."""
    s = trainweb.InferenceSession(model)
    try:
        return s.run(outputs, feeds)
    finally:
        s.release()


def snapshot(s: trainweb.TrainingSession) -> dict[str, Any]:
    """All a session remembers: parameters, gradients, moments and the words of its state."""
    host = s._core.host
    contents = {
        k: host.read_segment(k, 0, size) for k, size in enumerate(host.sizes) if k not in (ARENA, CONSTANTS, PREPARED)
    }
    return {
        "segments": contents,
        "lr": host.read_state(STATE_LEARNING_RATE),
        "step": host.read_state(STATE_STEP),
        "nominal": s._core.state.is_nominal,
        "properties": dict(s._core.state.properties.items()),
    }


@contextmanager
def unchanged(s: trainweb.TrainingSession) -> Iterator[None]:
    """Fail unless what happens inside leaves the session as it was."""
    before = snapshot(s)
    yield
    assert snapshot(s) == before


def error_of(said: str) -> type[Exception]:
    """The class of an error by its text: unknown names are TypeErrors, values that are not allowed ModelErrors."""
    return TypeError if "has no setting" in said or "There is no" in said else ModelError
