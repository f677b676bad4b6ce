"""Recurrent layers: a workgroup takes an item of the batch through the steps (wasm_kernels/recurrent.c).

A lane owns every 64th or 256th state. The states of a step lie in workgroup memory, as every sum reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, template
from trainweb.ir import calls
from trainweb.ir.calls import cell_gates, cell_kept
from trainweb.ir.layout import CELL_GRU, CELL_GRU_LINEAR, CELL_LSTM, CELL_RNN_RELU

MOST_STATES = 1344
"""Three arrays of so many states fit into the memory of a workgroup."""
MOST_WORK = 1 << 24
"""Products of a lane in a dispatch: longer ones are cut at steps, so that no dispatch takes too long."""
Call = calls.Recurrence | calls.RecurrenceGradient
HIDDEN = "item * u.hidden + j"
"""The state `j` of a step."""


def _of(group: str, n: int) -> str:
    """The state `j` of one of the `gates` of a step, or of what is `kept` of it for the gradient."""
    return f"(item * u.of_{group} + {n}u) * u.hidden + j"


def _each_state(k: Kernel, *lines: str) -> None:
    """Run lines for each state `j`; all lanes wait for each other before they go on."""
    k.each_step("u.hidden", *lines, variable="j")
    k.add(*(["storageBarrier();"] if isinstance(k.call, calls.RecurrenceGradient) else []), "workgroupBarrier();")


def _parts(k: Kernel, call: Call, operands: tuple[str, str], results: tuple[str, str]) -> Iterator[Kernel]:
    """Kernels that take the steps in order, of which each begins with the states that the one before left.

    `given` and `results` are fields of the first and the last states and cells. The caller adds the lines of a step.
    """
    if call.hidden > MOST_STATES:
        raise NoKernelError(f"a recurrent layer of more than {MOST_STATES} states")
    lanes = 64 if call.hidden <= 64 else 256
    span = max(1, MOST_WORK // (cell_gates(call.cell) * call.hidden * ceil(call.hidden / lanes)))
    for start in range(0, call.steps, span):
        part = k.then(f"steps from {start}", lanes)
        part.count("begin", start)
        part.count("end", min(call.steps, start + span))
        part.count("of_gates", cell_gates(call.cell))
        part.count("of_kept", cell_kept(call.cell))
        part.blocks(row="batch")
        first, last, states = [], [], part.operand("states")
        both = zip(("states", "cells"), ("row", "(u.batch + row)"), operands, results, strict=True)
        for name, row, before, after in both:
            at = f"{row} * u.hidden + j"
            value = part.if_given(before, "{}", "row * u.hidden + j") or "0.0f"
            first.append(f"if (u.begin == 0u) {{ {name}[j] = {value}; }} else {{ {name}[j] = {states[at]}; }}")
            last.append(states.store(at, f"{name}[j]"))
            last += part.wanted("row * u.hidden + j", **{after: f"{name}[j]"})
        for name in ("states", "cells", "others"):
            part.declare(f"var<workgroup> {name}: array<f32, {ceil(call.hidden / 64) * 64}>;")
        _each_state(part, *first)
        is_backward = bool(call.reverse) != isinstance(call, calls.RecurrenceGradient)
        part.add("for (var turn = u.begin; turn < u.end; turn++) {")
        part.add(f"let time = {'u.steps - 1u - turn' if is_backward else 'turn'};", "let item = time * u.batch + row;")
        part.add(f"let is_over = {part.if_given('lengths', 'i32(time) >= {}', 'row') or 'false'};")
        yield part
        part.add("}")
        _each_state(part, *last)


@template(calls.Recurrence)
def recurrence(k: Kernel, call: calls.Recurrence) -> None:
    """The states of all steps, and what the gradient needs."""
    for part in _parts(k, call, ("h0", "c0"), ("h", "c")):
        stores = part.wanted(HIDDEN, before="states[j]", cells="cells[j]")
        _each_state(part, *stores, *_gates(part, call))
        if call.cell == CELL_GRU:  # `others` is the reset gate times the states, `cells` the update gate
            sums = [*_sum(part, 2, "others"), f"let candidate = tanh_({part.operand('x')[_of('gates', 2)]} + sum2);"]
            state = "cells[j] = (1.0f - cells[j]) * candidate + cells[j] * states[j];"
            _each_state(part, *sums, state, *_keep(part, "", "", "candidate"))
        new = "cells[j]" if call.cell == CELL_GRU else "others[j]"
        y = part.operand("y").store(HIDDEN, "select(y, 0.0f, is_over)")
        _each_state(part, f"let y = {new};", "if (!is_over) { states[j] = y; }", y)


def _sum(k: Kernel, gate: int, source: str) -> list[str]:
    """Statements for `sumG`: the product of a gate with the states, and its bias."""
    weight = k.operand("r")[f"({gate}u * u.hidden + j) * u.hidden + n"]
    return [
        f"var sum{gate} = 0.0f;",
        f"for (var n = 0u; n < u.hidden; n++) {{ sum{gate} += {source}[n] * {weight}; }}",
        f"sum{gate} += {k.if_given('bias', '{}', f'{gate}u * u.hidden + j') or '0.0f'};",
    ]


def _gates(k: Kernel, call: calls.Recurrence) -> list[str]:
    """Statements for a state of a step; of a GRU that multiplies the states, only its gates."""
    x = k.operand("x")
    gates = 2 if call.cell == CELL_GRU else cell_gates(call.cell)
    lines = [line for g in range(gates) for line in _sum(k, g, "states")]
    ins = [f"{x[_of('gates', g)]} + sum{g}" for g in range(gates)]
    if call.cell == CELL_LSTM:
        lines += [f"let gate{g} = {'tanh_' if g == 3 else 'sigmoid_'}({ins[g]});" for g in range(4)]
        lines += ["let cell = gate2 * cells[j] + gate0 * gate3;", "others[j] = gate1 * tanh_(cell);"]
        lines += ["if (!is_over) { cells[j] = cell; }"]
        values = [f"gate{g}" for g in range(4)]
    elif call.cell in (CELL_GRU, CELL_GRU_LINEAR):
        lines += [f"let gate{g} = sigmoid_({ins[g]});" for g in range(2)]
        if call.cell == CELL_GRU:
            lines += ["let reset = gate1 * states[j];", "cells[j] = gate0;", "others[j] = reset;"]
            values = ["gate0", "gate1", "", "reset"]
        else:
            lines += [f"let candidate = tanh_({x[_of('gates', 2)]} + gate1 * sum2);"]
            lines += ["others[j] = (1.0f - gate0) * candidate + gate0 * states[j];"]
            values = ["gate0", "gate1", "candidate", "sum2"]
    else:
        value = f"p_max({ins[0]}, 0.0f)" if call.cell == CELL_RNN_RELU else f"tanh_({ins[0]})"
        lines.append(f"others[j] = {value};")
        values = ["others[j]"]
    return [*lines, *_keep(k, *values)]


def _keep(k: Kernel, *values: str) -> list[str]:
    return [line for n, value in enumerate(values) if value for line in k.wanted(_of("kept", n), gates=value)]


@template(calls.RecurrenceGradient)
def recurrence_gradient(k: Kernel, call: calls.RecurrenceGradient) -> None:
    """The gradients of the gates of all steps, from the last to the first, and of the first states."""
    for part in _parts(k, call, ("dh", "dc"), ("dh0", "dc0")):
        _each_state(part, *_gate_gradients(part, call))
        gates = cell_gates(call.cell)
        if call.cell == CELL_GRU:
            gates = 2
            before, gate = part.fields("before", "gates")
            slope = f"sum * {before[HIDDEN]} * (reset * (1.0f - reset))"
            body = [f"let reset = {gate[_of('kept', 1)]};", *_product(part, call, 2, 3), "if (!is_over) {"]
            body += part.wanted(_of("gates", 1), dx=slope, dproduct=slope)
            _each_state(part, *body, "others[j] += sum * reset;", "}")
        _each_state(part, *_product(part, call, 0, gates), "states[j] = others[j] + sum;")


def _product(k: Kernel, call: calls.RecurrenceGradient, first: int, end: int) -> list[str]:
    """Statements for `sum`: the gradients of some gates times the weights."""
    is_linear = call.cell == CELL_GRU_LINEAR and call.dproduct is not None
    source, r = k.fields("dproduct" if is_linear else "dx", "r")
    term = f"{source['item * u.of_gates * u.hidden + n']} * {r['n * u.hidden + j']}"
    return ["var sum = 0.0f;", f"for (var n = {first}u * u.hidden; n < {end}u * u.hidden; n++) {{ sum += {term}; }}"]


def _gate_gradients(k: Kernel, call: calls.RecurrenceGradient) -> list[str]:
    """Statements for the gradients of the gates of a state; `others` is what goes past the products."""
    gates = k.operand("gates")
    lines = [f"let gate{n} = {gates[_of('kept', n)]};" for n in range(cell_kept(call.cell))]
    slope = f"let slope = states[j]{k.if_given('dy', ' + {}', HIDDEN)};"
    lines += [slope, "var direct = 0.0f;", "var cell = cells[j];"]
    if call.cell == CELL_LSTM:
        lines += [f"let old = {k.operand('cells')[HIDDEN]};"]
        lines += ["let y = tanh_(gate2 * old + gate0 * gate3);", "cell += slope * gate1 * (1.0f - y * y);"]
        values = ["cell * gate3 * (gate0 * (1.0f - gate0))", "slope * y * (gate1 * (1.0f - gate1))"]
        values += ["cell * old * (gate2 * (1.0f - gate2))", "cell * gate0 * (1.0f - gate3 * gate3)"]
    elif call.cell in (CELL_GRU, CELL_GRU_LINEAR):
        lines += [f"let old = {k.operand('before')[HIDDEN]};"]
        lines += ["let candidate = slope * (1.0f - gate0) * (1.0f - gate2 * gate2);", "direct = slope * gate0;"]
        values = ["slope * (old - gate2) * (gate0 * (1.0f - gate0))", "0.0f", "candidate"]
        if call.cell == CELL_GRU_LINEAR:
            values[1] = "candidate * gate3 * (gate1 * (1.0f - gate1))"
    else:
        slope = "select(0.0f, slope, gate0 > 0.0f)" if call.cell == CELL_RNN_RELU else "slope * (1.0f - gate0 * gate0)"
        values = [slope]
    products = values if call.cell != CELL_GRU_LINEAR else [*values[:2], "candidate * gate1"]
    for gate, (value, product) in enumerate(zip(values, products, strict=True)):
        over = {"dx": f"select({value}, 0.0f, is_over)", "dproduct": f"select({product}, 0.0f, is_over)"}
        lines += k.wanted(_of("gates", gate), **over)
    if call.cell == CELL_LSTM:
        lines.append("if (!is_over) { cells[j] = cell * gate2; }")
    return [*lines, "others[j] = select(direct, states[j], is_over);"]
