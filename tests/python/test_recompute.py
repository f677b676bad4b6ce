"""Sessions under a memory budget: the same bytes, in the budget, at a reported cost."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from onnx import TensorProto, helper
from tests.conformance.models import make_model, normal
from tests.python import pipelines
from tests.python.random_graphs import RandomGraph
from tests.python.sessions import artifacts, batch, snapshot
from tests.python.test_session_memory import bytes_in_use

import trainweb
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts
from trainweb.compiler.context import Context
from trainweb.compiler.passes.recompute import Schedule, Values
from trainweb.compiler.pipeline import PASSES
from trainweb.errors import FeedError, LimitError
from trainweb.ir.instructions import Instruction, Storage
from trainweb.ir.program import Program
from trainweb.ir.shapes import TensorType
from trainweb.training.arrays import from_numpy
from trainweb.training.inference import InferenceCore
from trainweb.training.step_kind import TRAIN

DEPTH = 6


class Layers:
    """A model that grows node by node."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}

    def __call__(self, op: str, *inputs: str, **attrs: int | list[int]) -> str:
        (out,) = self.several(1, op, *inputs, **attrs)
        return out

    def several(self, n: int, op: str, *inputs: str, **attrs: int | list[int]) -> list[str]:
        name = f"{op}_{len(self.nodes)}"
        outs = [f"{name}.{k}" for k in range(n)]
        self.nodes.append(helper.make_node(op, inputs, outs, name, **attrs))
        return outs

    def weight(self, value: ArrayLike) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def vector(self, value: float, n: int) -> str:
        return self.weight(np.full(n, value, np.float32))


def convolutions() -> Any:
    """Residual blocks of convolution, batch normalization, relu and dropout."""
    f, x = Layers(), "x"
    ratio, on = f.weight(np.float32(0.3)), f.weight(np.bool_(True))
    for k in range(DEPTH):
        y = f("Conv", x, f.weight(normal(4, 4, 3, 3, seed=k)), pads=[1, 1, 1, 1])
        y = f("BatchNormalization", y, *(f.vector(v, 4) for v in (1, 0, 0, 1)))
        x = f("Add", x, f("Dropout", f("Relu", y), ratio, on))
    y = f("Flatten", f("GlobalAveragePool", x))
    f.nodes.append(helper.make_node("Gemm", [y, f.weight(normal(4, 3)), f.vector(0, 3)], ["logits"], "head"))
    return make_model(f.nodes, {"x": ["batch", 4, 8, 8]}, {"logits": ["batch", 3]}, f.weights)


def transformer() -> Any:
    """Attention over rows of a table and noise; the indices are computed, so that state is written last."""
    f = Layers()
    x = f("Gather", f.weight(normal(5, 8)), f("Add", "ids", "offset"))
    x = f("Add", x, f("RandomNormalLike", x))
    heads, rows, thirds = (f.weight(np.array(v)) for v in ([0, 6, 2, 4], [0, 6, 8], [8, 8, 8]))
    for k in range(3):
        y = f("LayerNormalization", x, f.vector(1, 8), f.vector(0, 8), axis=-1)
        parts = f.several(3, "Split", f("MatMul", y, f.weight(normal(8, 24, seed=k))), thirds, axis=2)
        q, key, v = (f("Reshape", part, heads) for part in parts)
        q, key, v = (f("Transpose", t, perm=p) for t, p in ((q, [0, 2, 1, 3]), (key, [0, 2, 3, 1]), (v, [0, 2, 1, 3])))
        y = f("Transpose", f("MatMul", f("Softmax", f("MatMul", q, key)), v), perm=[0, 2, 1, 3])
        y = f("MatMul", f("Reshape", y, rows), f.weight(normal(8, 8, seed=k)))
        x = f("Add", x, f("Mul", f("Tanh", y), f("Sigmoid", y)))
    y = f("ReduceMean", x, axes=[1], keepdims=0)
    f.nodes.append(helper.make_node("MatMul", [y, f.weight(normal(8, 2))], ["logits"], "head"))
    return make_model(
        f.nodes,
        {"ids": ["batch", 6], "offset": [1]},
        {"logits": ["batch", 2]},
        f.weights,
        types={"ids": TensorProto.INT64, "offset": TensorProto.INT64},
    )


DEEP = {"convolutions": convolutions, "transformer": transformer}
KINDS = (*DEEP, "batch_norm", "computed", "dropout")


@cache
def artifacts_of(kind: str) -> Artifacts:
    if kind not in DEEP:
        return artifacts(kind)
    return build_artifacts(DEEP[kind](), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)


def feeds_of(kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    if kind not in DEEP:
        return batch(kind, seed=seed)
    rng = np.random.default_rng(seed)
    if kind == "convolutions":
        return {"x": rng.standard_normal((6, 4, 8, 8)).astype(np.float32), "labels": rng.integers(0, 3, 6)}
    return {"ids": rng.integers(0, 4, (6, 6)), "offset": np.array([1]), "labels": rng.integers(0, 2, 6)}


@contextmanager
def open_session(kind: str, budget: object = None, *, evaluates: bool = True) -> Iterator[trainweb.TrainingSession]:
    made = artifacts_of(kind)
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    models = made.training_model, made.eval_model if evaluates else None, made.optimizer_model
    with trainweb.TrainingSession(state, *models, {"memory_budget": budget}) as s:
        yield s


def train(kind: str, budget: int | None = None) -> tuple[list[Any], Any]:
    """The results of a session in some steps of every kind, and its memory."""
    results: list[Any] = []
    with open_session(kind, budget) as s:
        for seed in range(3):
            results += [x.tobytes() for x in s.train_step(feeds_of(kind, seed)).values()]
            results += [x.tobytes() for x in s.train_step(feeds_of(kind, seed + 10)).values()]
            results.append(snapshot(s))
            s.optimizer_step()
            s.lazy_reset_grad()
        return [*results, snapshot(s)], s.memory()


def smallest(kind: str) -> int:
    """The smallest budget for train steps, as errors name it for overwriting and for adding steps."""
    types = {n: TensorType(str(x.dtype), x.shape) for n, x in feeds_of(kind).items()}
    needed = []
    with open_session(kind, 1) as s:
        for overwrite in (True, False):
            with pytest.raises(LimitError) as refused:
                s._core.models.compile_step(TRAIN, types, overwrite)
            found = re.search(r"'memory_budget' must be at least (\d+) for these shapes, not 1:", str(refused.value))
            assert found
            needed.append(int(found[1]))
    return max(needed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_changes_no_byte(kind: str) -> None:
    expected, free = train(kind)
    low, full = smallest(kind), free.arena
    assert (free.arena_without_budget, free.recomputed_instructions, free.recomputed_share) == (full, 0, 0)
    if kind in DEEP:
        assert low < 0.7 * full
    for budget in sorted({low, (low + full) // 2, (low + 3 * full) // 4, full}):
        found, memory = train(kind, budget)
        assert found == expected, f"budget {budget} of {full}"
        assert memory.arena <= budget
        assert memory.arena_without_budget == full
        assert (memory.recomputed_instructions > 0) == (budget < full) == (memory.recomputed_share > 0)


def test_the_cost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    free = plain_plan("convolutions")
    with caplog.at_level(logging.INFO, "trainweb"), open_session("convolutions", smallest("convolutions")) as s:
        s.train_step(feeds_of("convolutions"))
        (loaded,) = s._core.host.loaded
        memory = s.memory()
    again = [line for line in loaded.plan.text if line.endswith(", again")]
    assert len(again) == memory.recomputed_instructions
    assert memory.recomputed_flops == loaded.plan.flops - free.flops > 0
    assert 0 < memory.recomputed_share < 1.5
    (record,) = [r for r in caplog.records if r.name.startswith("trainweb")]
    for said in (memory.arena, free.arena_bytes, memory.recomputed_instructions):
        assert str(said) in record.getMessage()
    assert any("dropout_f32" in line for line in again)
    assert all("running_mean=null" in line for line in again if "batch_norm" in line)
    assert any("batch_norm" in line for line in again)


def plain_plan(kind: str) -> Any:
    with open_session(kind) as s:
        s.train_step(feeds_of(kind))
        return s._core.host.loaded[0].plan


def test_plans_under_a_budget_are_the_same_in_every_process() -> None:
    budget = smallest("transformer")
    texts = []
    for _ in range(3):
        with open_session("transformer", budget) as s:
            s.train_step(feeds_of("transformer"))
            texts.append(s._core.host.loaded[0].plan.text)
    assert texts[0] == texts[1] == texts[2]


def test_a_failed_step_under_a_budget_changes_nothing() -> None:
    with open_session("transformer", smallest("transformer")) as s:
        s.train_step(feeds_of("transformer"))
        before = snapshot(s)
        with pytest.raises(FeedError, match="index"):
            s.train_step(feeds_of("transformer") | {"offset": np.array([4])})
        assert snapshot(s) == before


def test_a_budget_that_cannot_be_met_leaves_the_session_as_it_was() -> None:
    before = bytes_in_use()
    with open_session("convolutions", 1000) as s:
        start = snapshot(s)
        for _ in range(3):
            with pytest.raises(LimitError, match=r"memory_budget' must be at least .*, not 1000:"):
                s.train_step(feeds_of("convolutions"))
            assert snapshot(s) == start
    assert bytes_in_use() == before


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "1000"])
def test_a_budget_is_a_number_of_bytes(budget: object) -> None:
    with pytest.raises(LimitError, match="memory_budget' must be"), open_session("dropout", budget):
        pass


class Restless(Schedule):
    """Evicts everything that it can after every instruction."""

    @classmethod
    def of(cls, program: Program) -> Restless:
        schedule = cls(Values(program), 2**40, 1.0)
        assert schedule.run()
        return schedule

    def _emit(self, i: Instruction, reads: Iterable[Storage], missing: set[Storage] | None) -> bool:
        fits = super()._emit(i, reads, missing)
        while missing is None and self._give_up():
            pass
        return fits


def test_random_graphs_compute_the_same_bytes_from_values_that_are_all_made_again() -> None:
    repeated = []

    def rematerialise(program: Program, context: Context) -> None:
        schedule = Restless.of(program)
        repeated.append(len(schedule.repeated))
        program.rebuild(schedule.instructions)

    instead = tuple(replace(p, run=rematerialise) if p.name == "rematerialise" else p for p in PASSES)
    with pipelines.passes(instead):
        for seed in range(60):
            made = RandomGraph(seed, n_nodes=25)
            assert run(made, 1) == run(made, None), f"seed {seed}"
    assert sum(repeated) > len(repeated)


def run(made: RandomGraph, budget: int | None) -> dict[str, bytes]:
    core = InferenceCore(made.graph, memory_budget=budget)
    try:
        feeds = {n: from_numpy(n, made.feeds[n]) for n in core.inputs}
        return {n: bytes(t.data) for n, t in core.run(feeds).items()}
    finally:
        core.host.release()
