"""Steps that save little for the backward pass: the same bytes, in less workspace, and only where most is frozen."""

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import smol
from tests.conformance.models import make_model, normal
from tests.python import pipelines
from tests.python.products import product
from tests.python.test_pass_guards import Written
from tests.python.test_recompute import DEEP, KINDS, Layers, artifacts_of, feeds_of, train

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.compiler.passes.cheap import recompute_cheap
from trainweb.ir import calls
from trainweb.ir.layout import PARAMETERS
from trainweb.ir.shapes import TensorType
from trainweb.lora import inject
from trainweb.training.models import SessionModels
from trainweb.training.step_kind import TRAIN

ROWS, WIDTH = 24, 8
SHARE = {"convolutions": 1.0, "transformer": 0.9}
"""What of the workspace is left at most."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_again_is_the_same_bytes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, full = train(kind)
    monkeypatch.setattr(SessionModels, "_is_mostly_frozen", lambda self: True)
    again, little = train(kind)
    assert again == kept
    if kind in DEEP:
        assert little.arena <= SHARE[kind] * full.arena


def block() -> Any:
    """x + linear(GELU(linear(norm(x)))), twice, and a head."""
    f, x = Layers(), "x"
    for k in range(2):
        y = f("LayerNormalization", x, f.vector(1, WIDTH), f.vector(0, WIDTH), axis=-1)
        y = f("MatMul", y, f.weight(normal(WIDTH, 4 * WIDTH, seed=k)))
        y = f("Mul", y, f("Add", f("Erf", f("Div", y, f.weight(np.float32(2**0.5)))), f.weight(np.float32(1))))
        x = f("Add", x, f("MatMul", y, f.weight(normal(4 * WIDTH, WIDTH, seed=k + 2))))
    f("MatMul", x, f.weight(normal(WIDTH, 3, seed=5)))
    f.nodes[-1].output[0] = "logits"
    return make_model(f.nodes, {"x": ["batch", WIDTH]}, {"logits": ["batch", 3]}, f.weights)


def plan_and_bytes(made: Any) -> tuple[list[str], int, bytes]:
    """Text and workspace of a step's plan, and the gradients of the step."""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((ROWS, WIDTH)).astype(np.float32), "labels": rng.integers(0, 3, ROWS)}
    with trainweb.TrainingSession(**made) as s:
        s.train_step(feeds)
        grads = {n: p.grad for n, p in s._core.state.parameters.items() if p.grad is not None}
        return s._core.host.loaded[0].plan.text, s.memory().arena, b"".join(grads[n].tobytes() for n in sorted(grads))


SETTINGS = {"loss": "CrossEntropyLoss", "optimizer": "AdamW"}


def test_adapters_keep_neither_gelu_nor_normalized_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = inject(block(), rank=1).build_artifacts(**SETTINGS)
    text, arena, grads = plan_and_bytes(made)
    assert sum("erf(" in line for line in text) == 4, "once forward, once in the call of GELU's gradient"
    assert sum("erf(" in line and "exp(" in line for line in text) == 2
    assert sum("layer_norm_f32" in line for line in text) == 4
    monkeypatch.setattr(SessionModels, "_is_mostly_frozen", lambda self: False)
    kept, full, expected = plan_and_bytes(made)
    assert sum("erf(" in line for line in kept) == sum("layer_norm_f32" in line for line in kept) == 2
    assert grads == expected
    # Of each block: GELU's result, what its gradient reads, and the normalized rows, but of the last block.
    assert full - arena >= 4 * ROWS * 4 * WIDTH


def test_labels_that_are_ignored_and_counted_change_nothing_about_that() -> None:
    adapted, loss = inject(block(), rank=1), {"type": "CrossEntropyLoss", "ignore_index": -100}
    _, arena, grads = plan_and_bytes(adapted.build_artifacts(**SETTINGS))
    text, counted, found = plan_and_bytes(adapted.build_artifacts(loss=loss, optimizer="AdamW"))
    assert any("loss.count" in line for line in text)
    assert sum("erf(" in line for line in text) == 4
    assert found == grads
    assert counted - arena < ROWS * 4 * WIDTH, "less than one result of GELU"


def test_a_step_that_trains_all_keeps_what_it_made() -> None:
    text, _, _ = plan_and_bytes(build_artifacts(block(), **SETTINGS))
    assert not any(line.endswith(", again") for line in text)


LENGTH = 128
LLAMA = smol.Size(width=144, heads=9, key_heads=3, hidden=384, vocabulary=64)


def llama(folder: Path, layers: int) -> trainweb.TrainingSession:
    path = smol.write(folder / str(layers), replace(LLAMA, layers=layers))
    lora = {"rank": 1, "targets": ["q_proj", "v_proj"]}
    return trainweb.TrainingSession.from_model(path, loss="CrossEntropyLoss", lora=lora)


def test_a_layer_of_llama_keeps_only_what_products_and_attention_made(tmp_path: Path) -> None:
    rows = {name: TensorType("int64", (1, LENGTH)) for name in ("input_ids", "labels")}
    arenas = []
    for layers in (3, 5):
        with llama(tmp_path, layers) as session:
            arenas.append(session._core.models.compile_step(TRAIN, rows, True).arena_bytes)
    keys = LLAMA.head * LLAMA.key_heads
    # Two residual streams, queries, the result of attention; keys and values of 3 of 9 heads; gate and up.
    kept = 4 * LLAMA.width + 2 * keys + 2 * LLAMA.hidden
    statistics = 2 * LLAMA.heads + 2 + 2
    assert (arenas[1] - arenas[0]) / 2 <= 4 * LENGTH * (kept + statistics)


def test_keys_that_are_repeated_again_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where attention stores its scores; its kernels read keys that are not repeated."""
    ids = np.random.default_rng(0).integers(0, LLAMA.vocabulary, (2, 40))
    found = []
    for frozen in (True, False):
        monkeypatch.setattr(SessionModels, "_is_mostly_frozen", lambda self, frozen=frozen: frozen)
        with pipelines.passes(pipelines.without("fuse_attention")), llama(tmp_path, 2) as s:
            loss = s.train_step({"input_ids": ids, "labels": np.roll(ids, -1, 1)})
            grads = [p.grad.tobytes() for p in s._core.state.parameters.values() if p.grad is not None]
            again = [line for line in s._core.host.loaded[0].plan.text if "Expand" in line and line.endswith(", again")]
            found.append((loss["onnx::loss::2"].tobytes(), grads))
            assert len(again) == (4 if frozen else 0)
    assert found[0] == found[1] and len(found[0][1]) == 8


def repeated_again(*between: str, copies: int = 3) -> bool:
    """True if a product's result is repeated again for a gradient, with these steps between."""
    w = Written()
    for name in ("a", "x", "loss", "dy"):
        w.new(name, 3, 3)
    w.new("y", copies, 3, 3)
    b = w.bufs
    w.builder.emit(product(b["a"], b["a"], b["x"], (3, 3, 3)))
    w.builder.elementwise([b["y"]], [b["x"]], lambda e, x: x)
    w.read("y")
    w.builder.emit(product(b["a"], b["x"], b["loss"], (3, 3, 3)))
    for name in between:
        w.fill(name)
    w.builder.emit(product(b["y"], b["loss"], b["dy"], (3, 3, 3)))
    w.read("dy")
    w.outputs = ["loss"]
    program = w.after(recompute_cheap)
    return any(i.node.endswith(", again") for i in program)


def test_a_smaller_value_is_kept_in_the_place_of_its_copies() -> None:
    assert repeated_again()
    assert repeated_again("a")


@pytest.mark.parametrize("between", ["x", "y"])
def test_copies_are_kept_whose_source_or_place_changes(between: str) -> None:
    assert not repeated_again(between)


def test_a_copy_is_kept_whose_source_is_no_smaller() -> None:
    assert not repeated_again(copies=1)


def test_products_are_kept_after_many_values_were_made_before_one_call() -> None:
    """Insertions spread the positions of a program: the forward pass must end where it did."""
    w, count = Written(), 30
    for name in ("a", "x", "u", "v", "loss", "sum", "dx", "du"):
        w.new(name, 3, 3)
    b = w.bufs
    for name in "xu":
        w.builder.emit(product(b["a"], b["a"], b[name], (3, 3, 3)))
    made = [w.new(f"y{k}", 3, 3) for k in range(count)]
    for k, y in enumerate(made):
        w.builder.elementwise([y], [b["x"]], lambda e, x, k=k: e.add(x, e.const(float(k))))
    w.builder.elementwise([b["v"]], [b["u"]], lambda e, u: e.exp(u))
    w.builder.emit(product(b["a"], b["a"], b["loss"], (3, 3, 3)))
    w.builder.elementwise([b["sum"]], made, lambda e, *ys: reduce(e.add, ys))
    w.builder.emit(product(b["x"], b["sum"], b["dx"], (3, 3, 3)))
    w.builder.emit(product(b["u"], b["v"], b["du"], (3, 3, 3)))
    w.read("dx")
    w.read("du")
    w.outputs = ["loss"]
    program = w.after(recompute_cheap)
    assert sum(isinstance(i, calls.Gemm) for i in program) == 5
    assert sum(i.node.endswith(", again") for i in program) == count + 1


def made_again(*between: str, output: bool = False, work: int = 1) -> bool:
    """True if y = exp(...exp(x + p)) is recomputed for a gradient, with these steps between."""
    w = Written()
    for name in ("a", "x", "y", "loss", "dx", "dw"):
        w.new(name, 3, 3)
    w.new("p", 3, 3, segment=PARAMETERS)
    b = w.bufs
    w.builder.emit(product(b["a"], b["a"], b["x"], (3, 3, 3)))

    def roots(e: Any, x: Any, p: Any) -> Any:
        x = e.add(x, p)
        for _ in range(work):
            x = e.exp(x)
        return x

    w.builder.elementwise([b["y"]], [b["x"], b["p"]], roots)
    w.builder.emit(product(b["y"], b["y"], b["loss"], (3, 3, 3)))
    for step in between:
        what, _, name = step.partition(" ")
        (w.read if what == "read" else w.fill)(name)
    w.builder.emit(product(b["y"], b["loss"], b["dw"], (3, 3, 3)))
    w.builder.emit(product(b["x"], b["loss"], b["dx"], (3, 3, 3)))
    w.read("dw")
    w.read("dx")
    w.outputs = ["loss", *["y"] * output]
    program = w.after(recompute_cheap)
    return any(i.node.endswith(", again") for i in program)


def test_a_cheap_value_is_made_again() -> None:
    assert made_again()
    assert made_again("read y")


@pytest.mark.parametrize("between", ["fill x", "fill y", "fill p"])
def test_a_value_is_kept_whose_operand_or_place_changes(between: str) -> None:
    assert not made_again(between)


def test_outputs_and_what_takes_long_are_kept() -> None:
    assert not made_again(output=True)
    assert not made_again(work=9)


def test_a_product_is_not_made_again() -> None:
    w = Written()
    for name in ("a", "x", "loss", "dw"):
        w.new(name, 3, 3)
    b = w.bufs
    w.builder.emit(product(b["a"], b["a"], b["x"], (3, 3, 3)))
    w.builder.emit(product(b["x"], b["x"], b["loss"], (3, 3, 3)))
    w.builder.emit(product(b["x"], b["loss"], b["dw"], (3, 3, 3)))
    w.read("dw")
    w.outputs = ["loss"]
    program = w.program()
    recompute_cheap(program, pipelines.context())
    assert sum(isinstance(i, calls.Gemm) for i in program) == 3


def test_the_models_that_are_tried_make_something_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionModels, "_is_mostly_frozen", lambda self: True)
    for kind in ("convolutions", "transformer"):
        made = artifacts_of(kind)
        with trainweb.TrainingSession(**made) as s:
            s.train_step(feeds_of(kind))
            assert any(line.endswith(", again") for line in s._core.host.loaded[0].plan.text), kind
