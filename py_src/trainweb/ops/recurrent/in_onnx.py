"""`Recurrence` and its gradient in operators of ONNX: what ONNX Runtime runs of artifacts with such nodes.

Each is a Scan over the steps, which needs no lengths ahead. trainweb has kernels for them and does not read these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainweb.model.graph import Graph, Node, Tensor, Value

FIRST_OPSET = 9
"""The first opset with Scan over the first axis, and with Where."""


class _Nodes:
    """The nodes of a body; names are counted."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[Node] = []

    def op(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Emit a node of one output."""
        name = f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(Node(op_type, list(inputs), [name], attrs, "", ""))
        return name

    def named(self, name: str, value: str) -> None:
        """Give a result the name that it must have."""
        self.nodes.append(Node("Identity", [value], [name], {}, "", ""))

    def constant(self, dtype: str, shape: tuple[int, ...], values: Sequence[float]) -> str:
        """A tensor."""
        return self.op("Constant", value=Tensor.of("", dtype, shape, list(values)))

    def integers(self, *values: int) -> str:
        """An int64 vector."""
        return self.constant("int64", (len(values),), values)

    def sum(self, *terms: str) -> str:
        """Return the sum of the terms that are not empty."""
        total, *rest = (term for term in terms if term)
        for term in rest:
            total = self.op("Add", total, term)
        return total

    def mul(self, first: str, *others: str) -> str:
        """The product of all."""
        for other in others:
            first = self.op("Mul", first, other)
        return first

    def gate(self, gates: str, k: int, count: int) -> str:
        """(batch, H) of (batch, count * H)."""
        if count == 1:
            return gates
        parts = self.op("Reshape", gates, self.integers(0, count, -1))
        return self.op("Gather", parts, self.constant("int64", (), [k]), axis=1)


class RecurrenceFunction:
    """The body of a node.

    Parameters
    ----------
    cell : str
        As of the node.
    reverse : bool
        True if the first step is the last row.
    given : set of str
        Names of the inputs that the node has.
    """

    def __init__(self, cell: str, reverse: bool, given: set[str]) -> None:
        self.cell, self.reverse, self.given = cell, reverse, given
        self.gates = {"lstm": 4, "gru": 3, "gru_linear": 3}.get(cell, 1)
        self.is_lstm = cell == "lstm"
        self.outer = _Nodes("outer_")
        self.step = _Nodes("step_")

    def _given(self, name: str) -> str:
        return name if name in self.given else ""

    def _first(self, name: str) -> str:
        """A state that was given, or zeros (batch, H)."""
        o = self.outer
        if self._given(name):
            return name
        rows = o.op("Gather", o.op("Shape", "x" if "x" in self.given else "before"), o.integers(1))
        shape = o.op("Concat", rows, self._hidden(), axis=0)
        return o.op("Expand", o.constant("float32", (1, 1), [0.0]), shape)

    def _hidden(self) -> str:
        return self.outer.op("Gather", self.outer.op("Shape", "r"), self.outer.integers(1))

    def _weights(self, start: int, end: int) -> str:
        """Rows of R of some gates: (gates * H, H)."""
        o = self.outer
        if (start, end) == (0, self.gates):
            return "r"
        hidden = self._hidden()
        parts = o.op("Reshape", "r", o.op("Concat", o.integers(self.gates), hidden, hidden, axis=0))
        chosen = o.op("Gather", parts, o.integers(*range(start, end)), axis=0)
        return o.op("Reshape", chosen, o.op("Concat", o.integers(-1), hidden, axis=0))

    def _runs(self) -> str:
        """Mask (batch, 1) of the items that a step belongs to; "" for all."""
        if not self._given("lengths"):
            return ""
        s = self.step
        lengths = s.op("Cast", "lengths", to=7)
        return s.op("Reshape", s.op("Less", "at", lengths), s.integers(-1, 1))

    def _chosen(self, runs: str, new: str, old: str) -> str:
        return self.step.op("Where", runs, new, old) if runs else new

    def _scan(
        self, states: dict[str, tuple[str, str]], rows: Sequence[str], outputs: dict[str, str], backwards: bool
    ) -> list[str]:
        """Emit the Scan.

        `states`: by their names in the body, what they are at first and after a step; `rows`: what the steps are given;
        `outputs`: the values kept of each step, by name. Returns the last states, then the kept values.
        """
        s, o = self.step, self.outer
        if self._given("lengths"):
            last = o.op("Gather", o.op("Shape", rows[0]), o.constant("int64", (), [0]))
            one = o.constant("int64", (), [1])
            first = o.op("Sub", last, one) if backwards else o.constant("int64", (), [0])
            after = s.op("Sub" if backwards else "Add", "at", s.constant("int64", (), [1]))
            states = {"at": (first, after), **states}
        body = Graph("step", s.nodes)
        types = {name: "int64" if name == "at" else "float32" for name in states}
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
        inputs = [*(first for first, _ in states.values()), *rows]
        o.nodes.append(Node("Scan", inputs, results, attrs, "", ""))
        return results[int("at" in states) :]

    # Forward.

    def forward(self) -> list[Node]:
        """The nodes that make y, h, c, gates, before and cells of x, r, bias, lengths, h0 and c0."""
        s = self.step
        h, c, gates = self._cell()
        runs = self._runs()
        zero = s.constant("float32", (), [0.0])
        states = {"state": (self._first("h0"), self._chosen(runs, h, "state"))}
        outputs = {"y": self._chosen(runs, h, zero), "gates": gates, "before": "state"}
        if self.is_lstm:
            states["memory"] = (self._first("c0"), self._chosen(runs, c, "memory"))
            outputs["cells"] = "memory"
        results = self._scan(states, ["x"], outputs, self.reverse)
        names = ["h", "c"][: len(states)] + list(outputs)
        for name, value in zip(names, results, strict=True):
            self.outer.named(name, value)
        if not self.is_lstm:
            # Nobody reads them; a function makes all of its outputs.
            self.outer.named("c", self._first("c0"))
            self.outer.named("cells", "before")
        return self.outer.nodes

    def _product(self, state: str, start: int, end: int) -> str:
        weights = self.outer.op("Transpose", self._weights(start, end), perm=[1, 0])
        return self.step.op("MatMul", state, weights)

    def _cell(self) -> tuple[str, str, str]:
        """The states after a step, and the gates for its gradient."""
        s, bias = self.step, self._given("bias")
        if self.gates == 1:
            total = s.sum("x_row", self._product("state", 0, 1), bias)
            h = s.op("Tanh" if self.cell == "rnn_tanh" else "Relu", total)
            return h, "", h
        if self.is_lstm:
            total = s.sum("x_row", self._product("state", 0, 4), bias)
            i, o, f = (s.op("Sigmoid", s.gate(total, k, 4)) for k in range(3))
            g = s.op("Tanh", s.gate(total, 3, 4))
            c = s.sum(s.mul(f, "memory"), s.mul(i, g))
            return s.mul(o, s.op("Tanh", c)), c, s.op("Concat", i, o, f, g, axis=1)
        return self._gru()

    def _gru(self) -> tuple[str, str, str]:
        s, bias = self.step, self._given("bias")
        biases = [
            s.op("Gather", self._bias_parts(), s.constant("int64", (), [k]), axis=0) if bias else "" for k in range(3)
        ]
        z, r = (
            s.op("Sigmoid", s.sum(s.gate("x_row", k, 3), self._product("state", k, k + 1), biases[k])) for k in range(2)
        )
        if self.cell == "gru_linear":
            last = s.sum(self._product("state", 2, 3), biases[2])
            memory = s.mul(r, last)
        else:
            last = s.mul(r, "state")
            memory = s.sum(self._product(last, 2, 3), biases[2])
        n = s.op("Tanh", s.sum(s.gate("x_row", 2, 3), memory))
        one = s.constant("float32", (), [1.0])
        h = s.sum(s.mul(s.op("Sub", one, z), n), s.mul(z, "state"))
        return h, "", s.op("Concat", z, r, n, last, axis=1)

    def _bias_parts(self) -> str:
        return self.outer.op("Reshape", "bias", self.outer.integers(3, -1))

    # Backward.

    def gradient(self) -> list[Node]:
        """The nodes that make dx, dproduct, dh0 and dc0 of r, gates, before, cells, lengths, dy, dh and dc."""
        s = self.step
        rows = ["gates", "before", *(name for name in ("cells", "dy") if self._given(name))]
        dh = s.sum("dstate", "dy_row" if self._given("dy") else "")
        dx, dproduct, dstate, dmemory = self._cell_gradient(dh)
        runs = self._runs()
        zero = s.constant("float32", (), [0.0])
        states = {"dstate": (self._first("dh"), self._chosen(runs, dstate, "dstate"))}
        if self.is_lstm:
            states["dmemory"] = (self._first("dc"), self._chosen(runs, dmemory, "dmemory"))
        outputs = {"dx": self._chosen(runs, dx, zero)}
        if dproduct != dx:
            outputs["dproduct"] = self._chosen(runs, dproduct, zero)
        results = self._scan(states, rows, outputs, not self.reverse)
        names = ["dh0", "dc0"][: len(states)] + list(outputs)
        for name, value in zip(names, results, strict=True):
            self.outer.named(name, value)
        if "dproduct" not in outputs:
            self.outer.named("dproduct", "dx")
        if not self.is_lstm:
            self.outer.named("dc0", "dh0")
        return self.outer.nodes

    def _before_sigmoid(self, gate: str, gradient: str) -> str:
        s = self.step
        return s.mul(gradient, gate, s.op("Sub", s.constant("float32", (), [1.0]), gate))

    def _before_tanh(self, value: str, gradient: str) -> str:
        s = self.step
        return s.mul(gradient, s.op("Sub", s.constant("float32", (), [1.0]), s.mul(value, value)))

    def _cell_gradient(self, dh: str) -> tuple[str, str, str, str]:
        """Gradients of a step: of the gates' inputs, of the products, and of the states before it."""
        s = self.step
        if self.gates == 1:
            dx = self._before_tanh("gates_row", dh) if self.cell == "rnn_tanh" else self._before_relu(dh)
            return dx, dx, s.op("MatMul", dx, "r"), ""
        if self.is_lstm:
            i, o, f, g = (s.gate("gates_row", k, 4) for k in range(4))
            squashed = s.op("Tanh", s.sum(s.mul(f, "cells_row"), s.mul(i, g)))
            dc = s.sum("dmemory", self._before_tanh(squashed, s.mul(dh, o)))
            parts = [self._before_sigmoid(i, s.mul(dc, g)), self._before_sigmoid(o, s.mul(dh, squashed))]
            parts += [self._before_sigmoid(f, s.mul(dc, "cells_row")), self._before_tanh(g, s.mul(dc, i))]
            dx = s.op("Concat", *parts, axis=1)
            return dx, dx, s.op("MatMul", dx, "r"), s.mul(dc, f)
        return self._gru_gradient(dh)

    def _before_relu(self, dh: str) -> str:
        s = self.step
        is_on = s.op("Greater", "gates_row", s.constant("float32", (), [0.0]))
        return s.op("Where", is_on, dh, s.constant("float32", (), [0.0]))

    def _gru_gradient(self, dh: str) -> tuple[str, str, str, str]:
        s = self.step
        z, r, n, last = (s.gate("gates_row", k, 4) for k in range(4))
        one = s.constant("float32", (), [1.0])
        dn = self._before_tanh(n, s.mul(dh, s.op("Sub", one, z)))
        dz = self._before_sigmoid(z, s.mul(dh, s.op("Sub", "before_row", n)))
        direct = s.mul(dh, z)
        if self.cell == "gru_linear":
            dr = self._before_sigmoid(r, s.mul(dn, last))
            dx = s.op("Concat", dz, dr, dn, axis=1)
            dproduct = s.op("Concat", dz, dr, s.mul(dn, r), axis=1)
            return dx, dproduct, s.sum(direct, s.op("MatMul", dproduct, "r")), ""
        dreset = s.op("MatMul", dn, self._weights(2, 3))
        dr = self._before_sigmoid(r, s.mul(dreset, "before_row"))
        dx = s.op("Concat", dz, dr, dn, axis=1)
        through = s.op("MatMul", s.op("Concat", dz, dr, axis=1), self._weights(0, 2))
        return dx, dx, s.sum(direct, s.mul(dreset, r), through), ""
