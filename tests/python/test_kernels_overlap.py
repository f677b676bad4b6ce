"""An operand that decides where a call reads or writes must not overlap its results: it is checked first and used
later."""

import random

import numpy as np
import pytest
from tests.python.kernel_description import kernels_of
from tests.python.plan_builder import RawPlan, instruction, words_of
from tests.python.random_calls import Call

from trainweb.backend.wasm.engine import Engine
from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine

OPERANDS = {
    **dict.fromkeys(("topk_f32", "topk_i64"), ("heap",)),
    "cross_entropy_f32": ("labels",),
    "cross_entropy_grad_f32": ("labels",),
    **dict.fromkeys(("head_loss_f32", "head_loss_quantized_f32", "head_loss_weight_grad_f32"), ("labels", "rows")),
    "max_pool_gradient_f32": ("indices",),
    **dict.fromkeys(
        ("gather", "gather_grad_f32", "gather_elements", "scatter_elements", "gather_nd", "scatter_nd", "one_hot"),
        ("indices",),
    ),
    "gather_dequantized_f32": ("indices",),
    **dict.fromkeys(("ctc_loss_f32", "ctc_loss_grad_f32"), ("targets", "input_lengths", "target_lengths")),
}
"""Operands whose contents are places in another operand, from what the kernels do. Attention's `spans` are such, too;
it reads each once and checks it then."""
SINGLE = ("loop_take", "loop_put")
"""Their one operand of this kind, the counter, is one number: tests/control/test_repeat.py lays results over it."""
WRITTEN = ("out", "inout", "scratch")
RAN = ("TW_OK", "TW_BAD_INDEX", "TW_BAD_LABEL")
"""Where there is no row or class, 0 is none either."""
TRIES = 60
ROOM = 64


def test_every_kernel_that_looks_at_indices_is_here(engine: Engine) -> None:
    kernels = kernels_of(engine).values()
    checking = {k.name for k in kernels if k.facts.get("fails") and any(a.kind in WRITTEN for a in k.args)}
    assert checking <= {*OPERANDS, *SINGLE}


def status_with(engine: Engine, call: Call, indices: str, result: str, offset: int) -> str:
    """Of a run in which `result` starts `offset` bytes behind the start of the indices, everything else elsewhere."""
    plan = RawPlan(engine.description.fingerprint)
    sizes = {name: array.nbytes for name, array in call.buffers.items()}
    starts, at = {}, ROOM
    for name, nbytes in sizes.items():
        starts[name] = at
        at += -(-nbytes // ROOM) * ROOM + 2 * ROOM
    starts[indices], at = at + sizes[result] + ROOM, at + sizes[indices] + 2 * sizes[result] + 4 * ROOM
    starts[indices] = -(-starts[indices] // ROOM) * ROOM
    starts[result] = starts[indices] + offset
    block = engine.alloc(at + ROOM)
    for name, array in call.buffers.items():
        engine.write(block + starts[name], array)
    plan.segments = [[block, at + ROOM, 1]]
    plan.buffers = [[0, starts[name], sizes[name]] for name in sizes]
    plan.code = [instruction(call.kernel, words_of(call.kernel, call.args, {n: k for k, n in enumerate(sizes)}))]
    encoded = plan.encode()
    address = engine.alloc(encoded.nbytes)
    engine.write(address, encoded)
    plan.place(engine, address)
    try:
        return engine.description.status_name(engine.run(address))
    finally:
        engine.free(address)
        engine.free(block)


@pytest.mark.parametrize(("name", "indices"), [(name, each) for name in sorted(OPERANDS) for each in OPERANDS[name]])
def test_results_over_indices_are_refused(name: str, indices: str) -> None:
    engine, rng = WasmtimeEngine(), random.Random(name)
    kernel = kernels_of(engine)[name]
    seen: set[str] = set()
    for _ in range(TRIES):
        call = Call(kernel, rng)
        if not call.valid or not call.buffers[indices].size:
            continue
        for array in call.buffers.values():
            array.fill(0)  # indices and labels that are valid everywhere
        for arg in kernel.args:
            result = call.buffers.get(arg.name, np.empty(0))
            if arg.kind not in WRITTEN or arg.name == indices or not result.nbytes:
                continue
            width, step = call.buffers[indices].nbytes, 8
            if width <= step or result.nbytes <= step:
                continue
            seen.add(arg.name)
            before, after = -(-result.nbytes // step) * step, -(-width // step) * step
            for offset in (0, step - before, after - step):
                assert status_with(engine, call, indices, arg.name, offset) == "TW_OVERLAP", (arg.name, offset)
            for offset in (-before, after):
                assert status_with(engine, call, indices, arg.name, offset) in RAN, (arg.name, offset)
    assert seen == {a.name for a in kernel.args if a.kind in WRITTEN and a.name != indices}
