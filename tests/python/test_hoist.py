"""Results that depend only on parameters are kept from run to run, and computed again when the parameters change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model, normal
from tests.python.remote_files import Host

import trainweb
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts
from trainweb.backend.wasm.engine import get_engine
from trainweb.compiler import compile as compiler
from trainweb.ir.layout import PREPARED
from trainweb.ir.shapes import TensorType
from trainweb.model.reader import read_model
from trainweb.training.arrays import from_numpy
from trainweb.training.inference import InferenceCore
from trainweb.training.step_kind import EVAL, StepKind

FROZEN = ("frozen", "table", "gain")
GENEROUS = 1 << 30
"""A memory budget: with one, nothing is kept, and results are the same bytes."""


def network() -> Any:
    """Convolutions with frozen and with trained filters, running statistics, a head of a scaled, transposed table."""
    steps = [
        ("Conv", ["x", "frozen"], "a", {"pads": [1, 1, 1, 1]}),
        ("Conv", ["a", "trained"], "b", {"pads": [1, 1, 1, 1]}),
        ("Relu", ["b"], "c", {}),
        ("Conv", ["c", "second"], "d", {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("BatchNormalization", ["d", "scale", "bias", "mean", "var"], "e", {}),
        ("GlobalAveragePool", ["e"], "f", {}),
        ("Flatten", ["f"], "g", {}),
        ("Mul", ["table", "gain"], "h", {}),
        ("Exp", ["h"], "i", {}),
        ("Transpose", ["i"], "j", {"perm": [1, 0]}),
        ("Add", ["j", "shift"], "k", {}),
        ("MatMul", ["g", "k"], "logits", {}),
    ]
    weights = {
        "frozen": normal(5, 4, 3, 3),
        "trained": normal(6, 5, 3, 3, seed=1),
        "second": normal(8, 6, 3, 3, seed=2),
        "scale": np.ones(8, np.float32),
        "bias": normal(8, seed=3),
        "mean": normal(8, seed=4),
        "var": np.ones(8, np.float32),
        "table": normal(3, 8, seed=5),
        "gain": normal(1, 8, seed=6),
        "shift": normal(8, 3, seed=7),
    }
    nodes = [helper.make_node(op, ins, [out], out, **attrs) for op, ins, out, attrs in steps]
    return make_model(nodes, {"x": ["batch", 4, 8, 8]}, {"logits": ["batch", 3]}, weights)


@cache
def artifacts(frozen: tuple[str, ...] = FROZEN) -> Artifacts:
    return build_artifacts(
        network(), frozen_params=list(frozen), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW
    )


def feeds(seed: int = 0, n: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, 4, 8, 8)).astype(np.float32), "labels": rng.integers(0, 3, n)}


@contextmanager
def session(
    options: dict[str, Any] | None = None, frozen: tuple[str, ...] = FROZEN
) -> Iterator[trainweb.TrainingSession]:
    made = artifacts(frozen)
    with trainweb.TrainingSession(**made, options={"reproducible": True, **(options or {})}) as s:
        yield s


def lines(s: trainweb.TrainingSession, kind: str, overwrite: bool = True) -> list[str]:
    types = {n: TensorType(str(x.dtype), x.shape) for n, x in feeds().items()}
    return s._core.models.compile_step(StepKind(kind), types, overwrite).text


def hoisted(text: list[str]) -> list[str]:
    """Names of what stands between the guards."""
    names = [line.split("(")[0].split(" ")[0] for line in text]
    return names[: len(names) - names[::-1].index("note_current")] if "note_current" in names else []


def test_frozen_weights_leave_a_train_step_and_trained_ones_an_accumulating_or_eval_step() -> None:
    with session() as s:
        fixed = ["skip_if_current", "winograd_weights_f32", "generated", "strided_copy", "note_current"]
        for kind, overwrite, kept in (("train", True, 1), ("train", False, 4), ("eval", True, 3)):
            text = lines(s, kind, overwrite)
            names = [line.split("(")[0].split(" ")[0] for line in text]
            inside = hoisted(text)
            assert inside[: len(fixed)] == fixed
            assert inside.count("winograd_weights_f32") == kept
            # In a step that overwrites, what is trained is transformed where it is used.
            assert names.count("winograd_weights_f32") == (4 if kind == "train" else 3)
    with session({"memory_budget": GENEROUS}) as s:
        assert not hoisted(lines(s, "eval"))
        s.eval_step(feeds())
        assert s.memory().prepared == 0


def test_memory_of_others_is_never_taken_for_kept_values() -> None:
    """Freed memory may look like the counts that say when values were made: a segment that moves is cleared."""

    def parameters(options: dict[str, Any]) -> bytes:
        # The second convolution is frozen: a train step keeps its weights flipped, for the gradient of the first.
        with session(options, frozen=("trained",)) as s:
            s.train_step(feeds())
            s.lazy_reset_grad()
            fill_free_memory(word=1)
            s.eval_step(feeds())  # keeps more, but nothing flipped, and so moves what is kept
            s.train_step(feeds())
            s.optimizer_step()
            return bytes(s.get_contiguous_parameters().tobytes())

    assert parameters({}) == parameters({"memory_budget": GENEROUS})


def fill_free_memory(word: int) -> None:
    """Leave `word` in memory that others will get."""
    engine = get_engine(reproducible=True)
    blocks = [(engine.alloc(n), n) for n in (1 << 12, 1 << 16, 1 << 20, 1 << 22) for _ in range(8)]
    for ptr, nbytes in blocks:
        engine.write(ptr, np.full(nbytes // 4, word, np.int32).tobytes())
    for ptr, _ in blocks:
        engine.free(ptr)


def test_plans_show_which_algorithm_a_convolution_takes() -> None:
    with session() as s:
        text = "\n".join(lines(s, "train"))
    for kernel in ("winograd_conv_f32", "winograd_weight_gradient_f32"):
        assert f" {kernel}(" in f" {text}".replace("\n", " ")
    assert " conv_f32(" not in text


def test_what_is_kept_is_made_only_after_a_change() -> None:
    """Instructions that are left out take no time at all."""
    with session() as s:
        for _ in range(2):  # the step that overwrites and the one that adds: what they keep has its place from here on
            s.train_step(feeds())
        loaded = s._core.plan(EVAL, {n: TensorType(str(x.dtype), x.shape) for n, x in feeds().items()})
        given = {n: from_numpy(n, x) for n, x in feeds().items()}
        names = [line.split("(")[0] for line in loaded.plan.text]
        groups = [k for k, name in enumerate(names) if name == "note_current"]

        def ran() -> list[bool]:
            with s._core.host.timer(loaded.plan) as room:
                times = s._core.host.profile(loaded, given, 1, room)
            return [times[k] > 0 for k in groups]

        assert ran() == [True, True]
        assert ran() == [False, False]
        s.train_step(feeds())  # running statistics
        assert ran() == [False, True]
        s.optimizer_step()
        assert ran() == [False, True]
        s._core.state.parameters["frozen"] = normal(5, 4, 3, 3, seed=9)
        assert ran() == [True, True]
        s.load_parameters_buffer(s.get_contiguous_parameters())
        assert ran() == [True, True]
        s.eval_step(feeds(n=4))  # more is prepared, which moves
        assert ran()[1:] in ([False], [True])
        assert ran() == [False, False]


def test_running_statistics_are_no_frozen_parameters() -> None:
    """A train step changes them: what an eval step keeps of them is made again, though nothing was loaded."""
    model = make_model(
        [
            helper.make_node("Exp", ["mean"], ["e"], "exp"),
            helper.make_node("Reshape", ["e", "column"], ["t"], "view"),
            helper.make_node("MatMul", ["x", "t"], ["from mean"], "product"),
            helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["n"], "bn"),
            helper.make_node("MatMul", ["n", "w"], ["logits"], "head"),
        ],
        {"x": ["batch", 4]},
        {"logits": ["batch", 3]},
        {"scale": np.ones(4, np.float32), "bias": normal(4), "mean": normal(4, seed=1), "var": np.ones(4, np.float32)}
        | {"w": normal(4, 3, seed=2), "column": np.array([4, 1])},
    )
    made = build_artifacts(
        model,
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        additional_output_names=["from mean"],
    )
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with trainweb.TrainingSession(state, made.training_model, made.eval_model, None) as s:
        batch = {"x": normal(6, 4, seed=3) + 2, "labels": np.zeros(6, np.int64)}
        for _ in range(3):
            before = state.parameters["mean"].data.copy()
            for step in (s.eval_step, s.train_step):
                np.testing.assert_allclose(step(batch)["from mean"][:, 0], batch["x"] @ np.exp(before), rtol=1e-5)
            s.lazy_reset_grad()
            assert not np.array_equal(before, state.parameters["mean"].data)


Action = Callable[[trainweb.TrainingSession, np.random.Generator], Any]


def _load(s: trainweb.TrainingSession, rng: np.random.Generator) -> None:
    only = bool(rng.integers(2))
    values = s.get_contiguous_parameters(only)
    s.load_parameters_buffer(values + rng.normal(0, 0.1, values.shape).astype(np.float32), only)


def _update(s: trainweb.TrainingSession, rng: np.random.Generator) -> None:
    name = str(rng.choice([*FROZEN, "trained", "second", "shift", "var"]))
    value = s._core.state.parameters[name].data
    s._core.state.parameters[name] = value + rng.uniform(0, 0.1, value.shape).astype(np.float32)


ACTIONS: tuple[Action, ...] = (
    lambda s, rng: s.train_step(feeds(int(rng.integers(9)))),
    lambda s, rng: s.train_step(feeds(int(rng.integers(9)), 2)),
    lambda s, rng: s.eval_step(feeds(int(rng.integers(9)))),
    lambda s, rng: s.eval_step(feeds(int(rng.integers(9)), 5)),
    lambda s, rng: s.optimizer_step(),
    lambda s, rng: s.lazy_reset_grad(),
    _load,
    _update,
)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_calls_gives_the_bytes_of_a_session_that_keeps_nothing(seed: int) -> None:
    def trajectory(options: dict[str, Any]) -> list[bytes]:
        rng = np.random.default_rng(seed)
        results = []
        with session(options) as s:
            for _ in range(40):
                found = ACTIONS[rng.integers(len(ACTIONS))](s, rng)
                results += [x.tobytes() for x in (found or {}).values()]
            results.append(s.get_contiguous_parameters(False).tobytes())
        return results

    assert trajectory({}) == trajectory({"memory_budget": GENEROUS})


def test_plans_of_a_session_share_what_they_keep() -> None:
    with session() as s:
        s.eval_step(feeds())
        first = s.memory().prepared
        s.eval_step(feeds(n=4))
        # Only the counts at which it ran are the second plan's own.
        assert 0 < s.memory().prepared - first <= 128
        checkpoint = trainweb.CheckpointState.save_checkpoint(s._core.state)
        results = s.eval_step(feeds())
    state = trainweb.CheckpointState.load_checkpoint(checkpoint)
    made = artifacts()
    with trainweb.TrainingSession(state, made.training_model, made.eval_model, None, {"reproducible": True}) as s:
        again = s.eval_step(feeds())
    assert {n: x.tobytes() for n, x in again.items()} == {n: x.tobytes() for n, x in results.items()}


def test_inference_keeps_the_floats_of_quantised_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "FOLDED_BYTES", 0)
    codes = np.random.default_rng(0).integers(0, 256, (64, 80)).astype(np.uint8)
    model = make_model(
        [
            helper.make_node("Cast", ["codes"], ["floats"], "cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", ["floats", "scale"], ["w"], "scaled"),
            helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
        ],
        {"x": ["n", 64]},
        {"y": ["n", 80]},
        {"codes": codes, "scale": normal(80)},
    )
    core = InferenceCore(read_model(model.SerializeToString()))
    x = normal(3, 64)
    for _ in range(2):
        got = np.frombuffer(core.run({"x": from_numpy("x", x)})["y"].data, np.float32)
        np.testing.assert_allclose(got.reshape(3, 80), x @ (codes * normal(80)), rtol=1e-5, atol=1e-2)
    (loaded,) = core.host.loaded
    assert hoisted(loaded.plan.text) == ["skip_if_current", "generated", "note_current"]
    assert core.host.sizes[PREPARED] >= 4 * codes.size
    core.host.release()


@pytest.mark.parametrize("budget", [None, GENEROUS])
def test_results_of_constants_in_a_file_are_kept_in_kernel_memory_instead_of_folded(budget: int | None) -> None:
    codes = np.random.default_rng(0).integers(-99, 99, (80, 256)).astype(np.int32)
    model = make_model(
        [
            helper.make_node("Cast", ["codes"], ["floats"], "cast", to=TensorProto.FLOAT),
            helper.make_node("Exp", ["small"], ["scale"], "exp"),
            helper.make_node("Mul", ["floats", "scale"], ["scaled"], "mul"),
            helper.make_node("Softmax", ["scaled"], ["w"], "softmax", axis=0),
            helper.make_node("ReduceSum", ["w"], ["sums"], "sum", keepdims=0),
            helper.make_node("MatMul", ["w", "x"], ["product"], "product"),
            helper.make_node("Add", ["product", "sums"], ["y"], "add"),
        ],
        {"x": [256, "n"]},
        {"y": [80, "n"]},
        {"codes": codes, "small": normal(256) / 99},
    ).SerializeToString()
    host = Host()
    results, plans = {}, {}
    for where, graph in (("Python", read_model(model)), ("file", read_model(host.open(model)))):
        core = InferenceCore(graph, memory_budget=budget)
        results[where] = [core.run({"x": from_numpy("x", normal(256, 3))})["y"].data for _ in range(2)]
        plans[where] = core.host.loaded[0].plan
        kept = core.host.sizes[PREPARED]
        core.host.release()
    assert len({bytes(r) for found in results.values() for r in found}) == 1
    kernels = {where: [line.split("(")[0] for line in plan.text] for where, plan in plans.items()}
    # Small results are folded: the exponentials, which were not in the file's large part, and the sums.
    assert hoisted(plans["Python"].text) == [] and "softmax_f32" not in kernels["Python"]
    assert hoisted(plans["file"].text).count("softmax_f32") == 1
    assert len(plans["file"].constants) < codes.nbytes < kept
    if budget is not None:
        # Kept results take none of the limited workspace.
        assert plans["file"].arena_bytes <= plans["Python"].arena_bytes


def test_values_of_old_parameters_are_made_again_after_a_restore(tmp_path: Path) -> None:
    store = trainweb.CheckpointStore(tmp_path)
    with session() as s:
        store.save(s, "start")
        before = s.eval_step(feeds())
        s.update_parameter("frozen", normal(5, 4, 3, 3, seed=9))
        other = s.eval_step(feeds())
        assert s.memory().prepared > 0
        store.load(s, "start")
        after = s.eval_step(feeds())
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
        assert (other[name] != value).any()
