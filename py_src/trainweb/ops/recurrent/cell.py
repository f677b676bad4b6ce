"""All steps of an RNN, GRU or LSTM with the usual gates as one node, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import static
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import CELL_GRU, CELL_GRU_LINEAR, CELL_LSTM, CELL_RNN_RELU, CELL_RNN_TANH
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import TRAINWEB, Node
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Body, Int, Names, Op, Str
from trainweb.ops.frame.symbolic import Var, integers
from trainweb.ops.matmul import matrix_of_rows, matrix_product
from trainweb.ops.recurrent.in_onnx import FIRST_OPSET, RecurrenceFunction

CELLS = {
    "rnn_tanh": CELL_RNN_TANH,
    "rnn_relu": CELL_RNN_RELU,
    "lstm": CELL_LSTM,
    "gru": CELL_GRU,
    "gru_linear": CELL_GRU_LINEAR,
}
"""Cells by the attribute `cell`: of the RNN by its activation, of the GRU by `linear_before_reset`."""


def weight_gradient(g: Emission, kind: int, flow: str, gates: str, before: str, r: str) -> str:
    """Return the gradient of R from the products' gradients: one product over all steps, one for a GRU's candidate."""
    rows, states = matrix_of_rows(g, flow), matrix_of_rows(g, before)
    if kind != CELL_GRU:
        return matrix_product(g, [rows, states], (1, 0))
    reset = gate_columns(g, matrix_of_rows(g, gates), 3, 4, r)
    both = matrix_product(g, [gate_columns(g, rows, 0, 2, r), states], (1, 0))
    candidate = matrix_product(g, [gate_columns(g, rows, 2, 3, r), reset], (1, 0))
    return g.op("Concat", [both, candidate], axis=0)


def gate_columns(g: Emission, rows: str, start: int, end: int, r: str) -> str:
    """The columns of some gates of a matrix; H is that of R."""
    hidden = g.shape(r)[1]
    if static(hidden):
        return g.slice(rows, 1, start * hidden, end * hidden)
    size = Var(g, r, "float32").extent(1).unsqueeze(0)
    bounds = [(size * n).name for n in (start, end)]
    return g.op("Slice", [rows, *bounds, integers(g, [1]).name])


class _Recurrence(Op, abstract=True):
    domain = TRAINWEB
    attrs = {"cell": Str(required=True), "reverse": Int(0)}

    @property
    def kind(self) -> int:
        """The cell's number in kernels."""
        if self.cell not in CELLS:
            raise self.error(f"cell is {self.cell!r}, not one of {', '.join(CELLS)}.")
        return CELLS[self.cell]

    @property
    def gates(self) -> int:
        """Rows of the weights for each state."""
        return calls.cell_gates(self.kind)

    function_inputs: ClassVar[tuple[str, ...]]
    function_outputs: ClassVar[tuple[str, ...]]

    def function(self, opset: int) -> Body | None:
        if opset < FIRST_OPSET:
            return None
        names = {name for name, edge in zip(self.function_inputs, self.node.inputs, strict=False) if edge}
        body = RecurrenceFunction(self.cell, bool(self.reverse), names)
        return Body([*self.function_inputs], [*self.function_outputs], self.body_nodes(body))

    def body_nodes(self, body: RecurrenceFunction) -> list[Node]:
        """Return the nodes of this direction."""
        raise NotImplementedError

    def named(self, ins: tuple[Buf | None, ...], outs: list[Buf | None]) -> dict[str, Any]:
        """The buffers by name, which are also the names of the kernels' arguments."""
        names = (*self.function_inputs, *self.function_outputs)
        return dict(zip(names, (*ins, *outs), strict=True))

    def sizes(self, y: Buf) -> dict[str, Any]:
        """The other arguments of both kernels; `y` is [steps, batch, hidden]."""
        steps, batch, hidden = y.shape
        return {"steps": steps, "batch": batch, "hidden": hidden, "cell": self.kind, "reverse": self.reverse}


class Recurrence(_Recurrence):
    """All steps of a recurrent layer in one direction (ai.trainweb).

    Inputs are the gates' inputs (steps, batch, gates * H), and the weights of the states (gates * H, H). The bias of
    their products (gates * H), sequence_lens (batch) and the first states (batch, H) follow: h and, of an LSTM, c.
    Outputs are the states of all steps (steps, batch, H) and the last ones; for the gradient: the gates, and the states
    that each step started from.
    """

    min_inputs, max_inputs, n_outputs = 2, 6, 6
    differentiable = (0, 1, 2, 4, 5)
    function_inputs = ("x", "r", "bias", "lengths", "h0", "c0")
    function_outputs = ("y", "h", "c", "gates", "before", "cells")

    def body_nodes(self, body: RecurrenceFunction) -> list[Node]:
        return body.forward()

    def infer(
        self,
        x: TensorType,
        r: TensorType,
        bias: TensorType | None,
        lengths: TensorType | None,
        *states: TensorType | None,
    ) -> tuple[TensorType, ...]:
        self.need_float32(x, r, bias, *states)
        if x.rank != 3 or r.rank != 2:
            raise self.error(f"X and R have shapes {list(x.shape)} and {list(r.shape)}: not 3-D and 2-D.")
        steps, batch, rows = x.shape
        hidden = r.shape[1]
        self.need_shape("X", x, (steps, batch, self.gates * hidden))
        self.need_shape("R", r, (rows, hidden))
        self.need_shape("the bias", bias, (rows,))
        self.need_shape("sequence_lens", lengths, (batch,))
        for t in states:
            self.need_shape("an initial state", t, (batch, hidden))
        every, last = TensorType("float32", (steps, batch, hidden)), TensorType("float32", (batch, hidden))
        gates = TensorType("float32", (steps, batch, calls.cell_kept(self.kind) * hidden))
        return every, last, last, gates, every, every

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        bufs = self.named(ins, outs)
        x = bufs["x"]
        y = bufs["y"] or b.temp("float32", (*x.shape[:2], bufs["r"].shape[1]))
        if not x.size:
            self._lower_empty(b, [(bufs["h"], bufs["h0"]), (bufs["c"], bufs["c0"])])
            return
        b.emit(calls.Recurrence(**bufs | {"y": y}, **self.sizes(y)))

    @staticmethod
    def _lower_empty(b: Builder, lasts: Iterable[tuple[Buf | None, Buf | None]]) -> None:
        """No steps or no items: the last states are the first."""
        for out, first in lasts:
            if out is not None and out.size:
                if first is None:
                    b.fill(out, 0.0)
                else:
                    b.copy(out, first)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        _, r, bias, lengths, h0, c0 = [*ins, *[""] * (6 - len(ins))]
        dy, dh, dc = [*(name or "" for name in douts), "", ""][:3]
        gates, before = g.extra_output(3, "_gates"), g.extra_output(4, "_before")
        cells = g.extra_output(5, "_cells") if self.kind == CELL_LSTM else ""
        linear = self.kind == CELL_GRU_LINEAR
        wanted = [True, linear, bool(h0) and g.wants(h0), bool(c0) and g.wants(c0)]
        inputs = [r, gates, before, cells, lengths, dy, dh, dc]
        attrs = {"cell": self.cell, "reverse": self.reverse}
        dx, dproduct, dh0, dc0 = g.ops("RecurrenceGrad", inputs, wanted, domain=TRAINWEB, **attrs)
        flow = dproduct if linear else dx
        dr = weight_gradient(g, self.kind, flow, gates, before, r) if g.wants(r) else None
        dbias = g.reduce_sum(flow, [0, 1], False) if bias and g.wants(bias) else None
        return [dx, dr, dbias, None, dh0 or None, dc0 or None][: len(ins)]


class RecurrenceGrad(_Recurrence):
    """Gradients of Recurrence from (R, gates, states before, cells before, sequence_lens, dY, dH, dC) (ai.trainweb).

    They are the gradients of the gates' inputs, of the products (of the cell `gru_linear`) and of the first states.
    """

    min_inputs, max_inputs, n_outputs = 3, 8, 4
    function_inputs = ("r", "gates", "before", "cells", "lengths", "dy", "dh", "dc")
    function_outputs = ("dx", "dproduct", "dh0", "dc0")

    def body_nodes(self, body: RecurrenceFunction) -> list[Node]:
        return body.gradient()

    def infer(
        self, r: TensorType, gates: TensorType, before: TensorType, *others: TensorType | None
    ) -> tuple[TensorType, ...]:
        rest: list[TensorType | None] = [*others, *[None] * (5 - len(others))]
        cells, lengths, dy, dh, dc = rest
        self.need_float32(r, gates, before, cells, dy, dh, dc)
        if before.rank != 3:
            raise self.error(f"the states have shape {list(before.shape)}: not 3-D.")
        steps, batch, hidden = before.shape
        rows = self.gates * hidden
        self.need_shape("R", r, (rows, hidden))
        self.need_shape("gates", gates, (steps, batch, calls.cell_kept(self.kind) * hidden))
        self.need_shape("sequence_lens", lengths, (batch,))
        for what, t in (("dH", dh), ("dC", dc)):
            self.need_shape(what, t, (batch, hidden))
        for what, t in (("dY", dy), ("a tensor of cell states", cells)):
            self.need_shape(what, t, before.shape)
        if self.kind == CELL_LSTM and cells is None:
            raise self.error("the cell states are left out.")
        dx, state = TensorType("float32", (steps, batch, rows)), TensorType("float32", (batch, hidden))
        return dx, dx, state, state

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        bufs = self.named(ins, outs)
        before = bufs["before"]
        if not before.size:
            Recurrence._lower_empty(b, [(bufs["dh0"], bufs["dh"]), (bufs["dc0"], bufs["dc"])])
            return
        shape = (*before.shape[:2], self.gates * before.shape[2])
        dx = bufs["dx"] or b.temp("float32", shape)
        dproduct = (bufs["dproduct"] or b.temp("float32", shape)) if self.kind == CELL_GRU_LINEAR else None
        b.emit(calls.RecurrenceGradient(**bufs | {"dx": dx, "dproduct": dproduct}, **self.sizes(before)))
