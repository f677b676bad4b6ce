"""`Recurrence` and its gradient in operators of ONNX: what ONNX Runtime runs of artifacts with such nodes.

Each is a Scan over the steps, which needs no lengths ahead. trainweb has kernels for them and does not read these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.symbolic import Var, constant, integers

FIRST_OPSET = 9
"""The first opset with Scan over the first axis, and with Where."""


class _Nodes(Emission):
    """The nodes of a body; names are counted."""

    @property
    def opset(self) -> int:
        return FIRST_OPSET

    def type(self, name: str) -> TensorType:
        raise KeyError(name)  # a body is the same for all types and shapes

    def fresh(self, base: str) -> str:
        return f"{self.prefix}_{len(self.nodes)}"

    def constant(self, dtype: str, shape: Sequence[int], values: Iterable[Any]) -> str:
        return self.op("Constant", [], value=Tensor.of("", dtype, tuple(shape), list(values)))

    def tensor(self, name: str) -> Var:
        """A tensor of float32 by its name."""
        return Var(self, name, "float32")

    def named(self, name: str, value: Var) -> None:
        """Give a result the name that it must have."""
        self.nodes.append(Node("Identity", [value.name], [name], {}, "", ""))


def _gate(gates: Var, k: int, count: int) -> Var:
    """(batch, H) of (batch, count * H)."""
    if count == 1:
        return gates
    return gates.reshape(0, count, -1).op("Gather", constant(gates.g, "int64", (), [k]), axis=1)


def _chosen(runs: Var | None, value: Var, other: Var | float) -> Var:
    """A value of the items that a step belongs to, and another of the rest."""
    return value if runs is None else runs.where(value, other)


def _before_sigmoid(gate: Var, gradient: Var) -> Var:
    return gradient * gate * (1.0 - gate)


def _before_tanh(value: Var, gradient: Var) -> Var:
    return gradient * (1.0 - value * value)


class RecurrenceFunction:
    """The body of a node with the attribute `cell` and the inputs `inputs`.

    If `reverse`, the first step is the last row.
    """

    def __init__(self, cell: str, reverse: bool, inputs: set[str]) -> None:
        self.cell, self.reverse, self.inputs = cell, reverse, inputs
        self.gates = {"lstm": 4, "gru": 3, "gru_linear": 3}.get(cell, 1)
        self.is_lstm = cell == "lstm"
        self.outer = _Nodes("outer")
        self.step = _Nodes("step")

    def _first(self, name: str) -> Var:
        """A state that is an input, or zeros (batch, H)."""
        o = self.outer
        if name in self.inputs:
            return o.tensor(name)
        rows = o.tensor("x" if "x" in self.inputs else "before").sizes().op("Gather", integers(o, [1]))
        shape = rows.op("Concat", self._hidden(), axis=0)
        return constant(o, "float32", (1, 1), [0.0]).op("Expand", shape)

    def _hidden(self) -> Var:
        return self.outer.tensor("r").sizes().op("Gather", integers(self.outer, [1]))

    def _weights(self, start: int, end: int) -> Var:
        """Rows of R of some gates: (gates * H, H)."""
        o = self.outer
        weights = o.tensor("r")
        if (start, end) == (0, self.gates):
            return weights
        hidden = self._hidden()
        parts = weights.op("Reshape", integers(o, [self.gates]).op("Concat", hidden, hidden, axis=0))
        chosen = parts.op("Gather", integers(o, range(start, end)), axis=0)
        return chosen.op("Reshape", integers(o, [-1]).op("Concat", hidden, axis=0))

    def _runs(self) -> Var | None:
        """Mask (batch, 1) of the items that a step belongs to; None for all."""
        if "lengths" not in self.inputs:
            return None
        lengths = Var(self.step, "lengths", "int32").cast("int64")
        return (Var(self.step, "at", "int64") < lengths).reshape(-1, 1)

    def _scan(
        self, states: dict[str, tuple[Var, Var]], rows: Sequence[str], outputs: dict[str, Var], backwards: bool
    ) -> list[Var]:
        """Emit the Scan.

        `states`: by their names in the body, their values at first and after a step; `rows`: the inputs of steps;
        `outputs`: the values kept of each step, by name. Returns the last states, then the kept values.
        """
        s, o = self.step, self.outer
        if "lengths" in self.inputs:
            last = o.tensor(rows[0]).sizes().op("Gather", constant(o, "int64", (), [0]))
            at = Var(s, "at", "int64")
            step = (last - 1, at - 1) if backwards else (constant(o, "int64", (), [0]), at + 1)
            states = {"at": step, **states}
        body = Graph("step", s.nodes)
        types = {name: first.dtype for name, (first, _) in states.items()}
        body.inputs = [Value(name, types[name], None) for name in states]
        body.inputs += [Value(f"{name}_row", "float32", None) for name in rows]
        for name, (_, value) in states.items():
            s.named(f"{name}_next", value)
        for name, value in outputs.items():
            s.named(f"{name}_kept", value)
        body.outputs = [Value(f"{name}_next", types[name], None) for name in states]
        body.outputs += [Value(f"{name}_kept", "float32", None) for name in outputs]
        results = [f"{name}_last" for name in states] + [f"{name}_all" for name in outputs]
        attrs = {
            "body": body,
            "num_scan_inputs": len(rows),
            "scan_input_directions": [int(backwards)] * len(rows),
            "scan_output_directions": [int(backwards)] * len(outputs),
        }
        inputs = [*(first.name for first, _ in states.values()), *rows]
        o.nodes.append(Node("Scan", inputs, results, attrs, "", ""))
        return [o.tensor(name) for name in results if name != "at_last"]

    # Forward.

    def forward(self) -> list[Node]:
        """The nodes that make y, h, c, gates, before and cells of x, r, bias, lengths, h0 and c0."""
        state, memory = (self.step.tensor(name) for name in ("state", "memory"))
        h, c, gates = self._cell(state, memory)
        runs = self._runs()
        states = {"state": (self._first("h0"), _chosen(runs, h, state))}
        outputs = {"y": _chosen(runs, h, 0.0), "gates": gates, "before": state}
        if self.is_lstm:
            states["memory"] = (self._first("c0"), _chosen(runs, c, memory))
            outputs["cells"] = memory
        results = self._scan(states, ["x"], outputs, self.reverse)
        names = ["h", "c"][: len(states)] + list(outputs)
        for name, value in zip(names, results, strict=True):
            self.outer.named(name, value)
        if not self.is_lstm:
            # Nobody reads them; a function makes all of its outputs.
            self.outer.named("c", self._first("c0"))
            self.outer.named("cells", self.outer.tensor("before"))
        return self.outer.nodes

    def _product(self, state: Var, start: int, end: int, bias: Var | None) -> Var:
        product = state.op("MatMul", self._weights(start, end).op("Transpose", perm=[1, 0]))
        return product if bias is None else product + bias

    def _cell(self, state: Var, memory: Var) -> tuple[Var, Var, Var]:
        """The states after a step, and the gates for its gradient."""
        x = self.step.tensor("x_row")
        bias = self.step.tensor("bias") if "bias" in self.inputs else None
        if self.gates == 3:
            return self._gru(state, x)
        gates = x + self._product(state, 0, self.gates, bias)
        if not self.is_lstm:
            h = gates.op("Tanh" if self.cell == "rnn_tanh" else "Relu")
            return h, memory, h
        i, o, f = (_gate(gates, k, 4).op("Sigmoid") for k in range(3))
        g = _gate(gates, 3, 4).op("Tanh")
        c = f * memory + i * g
        return o * c.op("Tanh"), c, i.op("Concat", o, f, g, axis=1)

    def _gru(self, state: Var, x: Var) -> tuple[Var, Var, Var]:
        outer = self.outer
        biases: list[Var | None] = [None] * 3
        if "bias" in self.inputs:
            parts = outer.tensor("bias").reshape(3, -1)
            biases = [Var(self.step, parts.name, "float32").op("Gather", self._number(k), axis=0) for k in range(3)]
        z, r = ((_gate(x, k, 3) + self._product(state, k, k + 1, biases[k])).op("Sigmoid") for k in range(2))
        if self.cell == "gru_linear":
            last = self._product(state, 2, 3, biases[2])
            memory = r * last
        else:
            last = r * state
            memory = self._product(last, 2, 3, biases[2])
        n = (_gate(x, 2, 3) + memory).op("Tanh")
        return (1.0 - z) * n + z * state, state, z.op("Concat", r, n, last, axis=1)

    def _number(self, k: int) -> Var:
        return constant(self.step, "int64", (), [k])

    # Backward.

    def gradient(self) -> list[Node]:
        """The nodes that make dx, dproduct, dh0 and dc0 of r, gates, before, cells, lengths, dy, dh and dc."""
        s = self.step
        rows = ["gates", "before", *(name for name in ("cells", "dy") if name in self.inputs)]
        state, memory = s.tensor("dstate"), s.tensor("dmemory")
        dh = state + s.tensor("dy_row") if "dy" in self.inputs else state
        dx, dproduct, dstate, dmemory = self._cell_gradient(dh, memory)
        runs = self._runs()
        states = {"dstate": (self._first("dh"), _chosen(runs, dstate, state))}
        if self.is_lstm:
            states["dmemory"] = (self._first("dc"), _chosen(runs, dmemory, memory))
        outputs = {"dx": dx} if dproduct is dx else {"dx": dx, "dproduct": dproduct}
        outputs = {name: _chosen(runs, value, 0.0) for name, value in outputs.items()}
        results = self._scan(states, rows, outputs, not self.reverse)
        names = ["dh0", "dc0"][: len(states)] + list(outputs)
        for name, value in zip(names, results, strict=True):
            self.outer.named(name, value)
        if "dproduct" not in outputs:
            self.outer.named("dproduct", self.outer.tensor("dx"))
        if not self.is_lstm:
            self.outer.named("dc0", self.outer.tensor("dh0"))
        return self.outer.nodes

    def _cell_gradient(self, dh: Var, dmemory: Var) -> tuple[Var, Var, Var, Var]:
        """Gradients of a step: of the gates' inputs, of the products, and of the states before it."""
        s = self.step
        gates, r = s.tensor("gates_row"), s.tensor("r")
        if self.gates == 3:
            return self._gru_gradient(dh, dmemory)
        if not self.is_lstm:
            dx = _before_tanh(gates, dh) if self.cell == "rnn_tanh" else (gates > 0.0).where(dh, 0.0)
            return dx, dx, dx.op("MatMul", r), dmemory
        cells = s.tensor("cells_row")
        i, o, f, g = (_gate(gates, k, 4) for k in range(4))
        squashed = (f * cells + i * g).op("Tanh")
        dc = dmemory + _before_tanh(squashed, dh * o)
        parts = [_before_sigmoid(i, dc * g), _before_sigmoid(o, dh * squashed)]
        parts += [_before_sigmoid(f, dc * cells), _before_tanh(g, dc * i)]
        dx = parts[0].op("Concat", *parts[1:], axis=1)
        return dx, dx, dx.op("MatMul", r), dc * f

    def _gru_gradient(self, dh: Var, dmemory: Var) -> tuple[Var, Var, Var, Var]:
        s = self.step
        before = s.tensor("before_row")
        z, r, n, last = (_gate(s.tensor("gates_row"), k, 4) for k in range(4))
        dn = _before_tanh(n, dh * (1.0 - z))
        dz = _before_sigmoid(z, dh * (before - n))
        direct = dh * z
        if self.cell == "gru_linear":
            dr = _before_sigmoid(r, dn * last)
            dx = dz.op("Concat", dr, dn, axis=1)
            dproduct = dz.op("Concat", dr, dn * r, axis=1)
            return dx, dproduct, direct + dproduct.op("MatMul", s.tensor("r")), dmemory
        dreset = dn.op("MatMul", self._weights(2, 3))
        dr = _before_sigmoid(r, dreset * before)
        dx = dz.op("Concat", dr, dn, axis=1)
        through = dz.op("Concat", dr, axis=1).op("MatMul", self._weights(0, 2))
        return dx, dx, direct + dreset * r + through, dmemory
