"""Recurrent layers: a workgroup takes an item of the batch through the steps (wasm_kernels/recurrent.c).

A lane owns every 64th or 256th state. The states of a step lie in workgroup memory, as every sum reads all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates.tools import over_lanes
from trainweb.ir import calls
from trainweb.ir.calls import cell_gates, cell_kept
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import CELL_GRU, CELL_GRU_LINEAR, CELL_LSTM, CELL_RNN_RELU

MOST_STATES = 1344
"""Three arrays of so many states fit into the memory of a workgroup."""
MOST_WORK = 1 << 24
"""Products of a lane in a dispatch: longer ones are cut at steps, so that no dispatch takes too long."""
Call = calls.Recurrence | calls.RecurrenceGradient


def _kernels(call: Call, make: Callable[[Kernel, bool, bool], None]) -> list[Kernel]:
    """Kernels that take the steps in order; `make` gets flags for the first and the last kernel."""
    if call.hidden > MOST_STATES:
        raise NoKernelError(f"a recurrent layer of more than {MOST_STATES} states")
    lanes = 64 if call.hidden <= 64 else 256
    span = max(1, MOST_WORK // (cell_gates(call.cell) * call.hidden * ceil(call.hidden / lanes)))
    kernels = []
    for start in range(0, call.steps, span):
        end = min(call.steps, start + span)
        k = Kernel("recurrence" if isinstance(call, calls.Recurrence) else "recurrence_gradient", lanes)
        numbers = {"hidden": call.hidden, "batch": call.batch, "steps": call.steps, "begin": start, "end": end}
        for name, value in (*numbers.items(), ("gates", cell_gates(call.cell)), ("kept", cell_kept(call.cell))):
            k.count(name, value)
        k.blocks(call.batch)
        for name in ("states", "cells", "others"):
            k.declare(f"var<workgroup> {name}: array<f32, {ceil(call.hidden / 64) * 64}>;")
        make(k, start == 0, end == call.steps)
        kernels.append(k)
    return kernels


def _start(k: Kernel, call: Call, given: tuple[Buf | None, Buf | None], is_first: bool) -> None:
    """Read the given states, or the states that the kernel before left."""
    lines = []
    for n, (name, b) in enumerate(zip(("states", "cells"), given, strict=True)):
        if not is_first:
            value = k.operand("kept_states", call.states).load(f"({n}u * u.batch + block) * u.hidden + j")
        else:
            value = "0.0f" if b is None else k.operand(f"{name}_before", b).load("block * u.hidden + j")
        lines.append(f"{name}[j] = {value};")
    k.add(*over_lanes(k, "j", "u.hidden", *lines), "workgroupBarrier();")


def _finish(k: Kernel, call: Call, results: tuple[Buf | None, Buf | None], is_last: bool) -> None:
    """Store the states for the next kernel, or as results."""
    lines = []
    for n, (name, b) in enumerate(zip(("states", "cells"), results, strict=True)):
        if not is_last:
            place = f"({n}u * u.batch + block) * u.hidden + j"
            lines.append(k.operand("kept_states", call.states).store(place, f"{name}[j]"))
        elif b is not None:
            lines.append(k.operand(f"{name}_after", b).store("block * u.hidden + j", f"{name}[j]"))
    k.add(*over_lanes(k, "j", "u.hidden", *lines))


def _step(k: Kernel, call: Call, step: str) -> None:
    """The item of a step, and whether the sequence is over."""
    time = f"u.steps - 1u - {step}" if call.reverse else step
    over = "false"
    if call.lengths is not None:
        over = f"i32(time) >= {k.operand('lengths', call.lengths).load('block')}"
    k.add(f"let time = {time};", "let item = time * u.batch + block;", f"let is_over = {over};")


def recurrence(call: calls.Recurrence) -> list[Kernel]:
    """The states of all steps, and what the gradient needs."""

    def make(k: Kernel, is_first: bool, is_last: bool) -> None:
        _start(k, call, (call.h0, call.c0), is_first)
        k.add("for (var step = u.begin; step < u.end; step++) {")
        _step(k, call, "step")
        kept = [(b, name) for b, name in ((call.before, "states"), (call.cells, "cells")) if b is not None]
        stores = [k.operand(f"{name}_of", b).store("item * u.hidden + j", f"{name}[j]") for b, name in kept]
        k.add(*over_lanes(k, "j", "u.hidden", *stores, *_gates(k, call)), "workgroupBarrier();")
        if call.cell == CELL_GRU:
            k.add(*over_lanes(k, "j", "u.hidden", *_candidate(k, call)), "workgroupBarrier();")
        y = k.operand("y", call.y)
        new = "cells[j]" if call.cell == CELL_GRU else "others[j]"
        k.add(*over_lanes(
            k, "j", "u.hidden", f"let y = {new};", "if (!is_over) { states[j] = y; }",
            y.store("item * u.hidden + j", "select(y, 0.0f, is_over)"),
        ), "workgroupBarrier();", "}")  # fmt: skip
        _finish(k, call, (call.h, call.c), is_last)

    return _kernels(call, make)


def _sum(k: Kernel, call: calls.Recurrence, gate: int, source: str) -> list[str]:
    """Statements for `sumG`: the product of a gate with the states, and its bias."""
    r = k.operand("r", call.r)
    at = f"({gate}u * u.hidden + j) * u.hidden + n"
    lines = [
        f"var sum{gate} = 0.0f;",
        f"for (var n = 0u; n < u.hidden; n++) {{ sum{gate} += {source}[n] * {r.load(at)}; }}",
    ]
    if call.bias is not None:
        lines.append(f"sum{gate} += {k.operand('bias', call.bias).load(f'{gate}u * u.hidden + j')};")
    return lines


def _gates(k: Kernel, call: calls.Recurrence) -> list[str]:
    """Statements for a state of a step; of a GRU that multiplies the states, only its gates."""
    x = k.operand("x", call.x)
    gates = 2 if call.cell == CELL_GRU else cell_gates(call.cell)
    of_x = [x.load(f"(item * u.gates + {g}u) * u.hidden + j") for g in range(gates)]
    lines = [line for g in range(gates) for line in _sum(k, call, g, "states")]
    ins = [f"{of_x[g]} + sum{g}" for g in range(gates)]
    if call.cell == CELL_LSTM:
        lines += [f"let gate{g} = {'tanh_' if g == 3 else 'sigmoid_'}({ins[g]});" for g in range(4)]
        lines += ["let cell = gate2 * cells[j] + gate0 * gate3;", "others[j] = gate1 * tanh_(cell);"]
        lines += ["if (!is_over) { cells[j] = cell; }"]
        values = [f"gate{g}" for g in range(4)]
    elif call.cell == CELL_GRU:
        lines += [f"let gate{g} = sigmoid_({ins[g]});" for g in range(2)]
        lines += ["let reset = gate1 * states[j];", "cells[j] = gate0;", "others[j] = reset;"]
        values = ["gate0", "gate1", "", "reset"]
    elif call.cell == CELL_GRU_LINEAR:
        lines += [f"let gate{g} = sigmoid_({ins[g]});" for g in range(2)]
        lines += [f"let candidate = tanh_({of_x[2]} + gate1 * sum2);"]
        lines += ["others[j] = (1.0f - gate0) * candidate + gate0 * states[j];"]
        values = ["gate0", "gate1", "candidate", "sum2"]
    else:
        value = f"p_max({ins[0]}, 0.0f)" if call.cell == CELL_RNN_RELU else f"tanh_({ins[0]})"
        lines.append(f"others[j] = {value};")
        values = ["others[j]"]
    return [*lines, *_keep(k, call, values)]


def _keep(k: Kernel, call: calls.Recurrence, values: list[str]) -> list[str]:
    if call.gates is None:
        return []
    kept = k.operand("gates_of", call.gates)
    return [kept.store(f"(item * u.kept + {n}u) * u.hidden + j", value) for n, value in enumerate(values) if value]


def _candidate(k: Kernel, call: calls.Recurrence) -> list[str]:
    """Statements for the new state of a GRU; `others` is the reset gate times the states, `cells` the update gate."""
    x = k.operand("x", call.x).load("(item * u.gates + 2u) * u.hidden + j")
    lines = [*_sum(k, call, 2, "others"), f"let candidate = tanh_({x} + sum2);"]
    lines.append("cells[j] = (1.0f - cells[j]) * candidate + cells[j] * states[j];")
    return [*lines, *_keep(k, call, ["", "", "candidate"])]


def recurrence_gradient(call: calls.RecurrenceGradient) -> list[Kernel]:
    """The gradients of the gates of all steps, from the last to the first, and of the first states."""

    def make(k: Kernel, is_first: bool, is_last: bool) -> None:
        _start(k, call, (call.dh, call.dc), is_first)
        k.add("for (var back = u.begin; back < u.end; back++) {", "let step = u.steps - 1u - back;")
        _step(k, call, "step")
        k.add(*over_lanes(k, "j", "u.hidden", *_gate_gradients(k, call)))
        k.add("storageBarrier();", "workgroupBarrier();")
        gates = cell_gates(call.cell)
        if call.cell == CELL_GRU:
            before, gate = k.operand("before", call.before), k.operand("gates_of", call.gates)
            reset = gate.load("(item * u.kept + 1u) * u.hidden + j")
            body = [f"let reset = {reset};", *_product(k, call, 2, 3)]
            slope = f"sum * {before.load('item * u.hidden + j')} * (reset * (1.0f - reset))"
            body += ["if (!is_over) {", *_store_dx(k, call, 1, slope, slope), "others[j] += sum * reset;", "}"]
            k.add(*over_lanes(k, "j", "u.hidden", *body), "storageBarrier();", "workgroupBarrier();")
            gates = 2
        k.add(*over_lanes(k, "j", "u.hidden", *_product(k, call, 0, gates), "states[j] = others[j] + sum;"), "}")
        _finish(k, call, (call.dh0, call.dc0), is_last)

    return _kernels(call, make)


def _product(k: Kernel, call: calls.RecurrenceGradient, first: int, end: int) -> list[str]:
    """Statements for `sum`: the gradients of some gates times the weights."""
    is_linear = call.cell == CELL_GRU_LINEAR and call.dproduct is not None
    source = k.operand("dproduct", call.dproduct) if is_linear and call.dproduct else k.operand("dx", call.dx)
    term = f"{source.load('item * u.gates * u.hidden + n')} * {k.operand('r', call.r).load('n * u.hidden + j')}"
    return ["var sum = 0.0f;", f"for (var n = {first}u * u.hidden; n < {end}u * u.hidden; n++) {{ sum += {term}; }}"]


def _store_dx(k: Kernel, call: calls.RecurrenceGradient, gate: int, value: str, product: str) -> list[str]:
    """Store the gradients of a gate's input and of its product."""
    at = f"(item * u.gates + {gate}u) * u.hidden + j"
    lines = [k.operand("dx", call.dx).store(at, value)]
    if call.dproduct is not None:
        lines.append(k.operand("dproduct", call.dproduct).store(at, product))
    return lines


def _gate_gradients(k: Kernel, call: calls.RecurrenceGradient) -> list[str]:
    """Statements for the gradients of the gates of a state; `others` is what goes past the products."""
    gates, hidden = k.operand("gates_of", call.gates), "item * u.hidden + j"
    lines = [
        f"let gate{n} = {gates.load(f'(item * u.kept + {n}u) * u.hidden + j')};" for n in range(cell_kept(call.cell))
    ]
    dy = "" if call.dy is None else f" + {k.operand('dy', call.dy).load(hidden)}"
    lines += [f"let slope = states[j]{dy};", "var direct = 0.0f;", "var cell = cells[j];"]
    if call.cell == CELL_LSTM:
        assert call.cells is not None
        lines += [f"let old = {k.operand('cells_of', call.cells).load(hidden)};"]
        lines += ["let y = tanh_(gate2 * old + gate0 * gate3);", "cell += slope * gate1 * (1.0f - y * y);"]
        values = ["cell * gate3 * (gate0 * (1.0f - gate0))", "slope * y * (gate1 * (1.0f - gate1))"]
        values += ["cell * old * (gate2 * (1.0f - gate2))", "cell * gate0 * (1.0f - gate3 * gate3)"]
        products = values
    elif call.cell in (CELL_GRU, CELL_GRU_LINEAR):
        lines += [f"let old = {k.operand('before', call.before).load(hidden)};"]
        lines += ["let candidate = slope * (1.0f - gate0) * (1.0f - gate2 * gate2);", "direct = slope * gate0;"]
        values = ["slope * (old - gate2) * (gate0 * (1.0f - gate0))", "0.0f", "candidate"]
        products = values
        if call.cell == CELL_GRU_LINEAR:
            values[1] = "candidate * gate3 * (gate1 * (1.0f - gate1))"
            products = [*values[:2], "candidate * gate1"]
    else:
        slope = "select(0.0f, slope, gate0 > 0.0f)" if call.cell == CELL_RNN_RELU else "slope * (1.0f - gate0 * gate0)"
        products = values = [slope]
    for gate, (value, product) in enumerate(zip(values, products, strict=True)):
        lines += _store_dx(k, call, gate, f"select({value}, 0.0f, is_over)", f"select({product}, 0.0f, is_over)")
    if call.cell == CELL_LSTM:
        lines.append("if (!is_over) { cells[j] = cell * gate2; }")
    return [*lines, "others[j] = select(direct, states[j], is_over);"]
