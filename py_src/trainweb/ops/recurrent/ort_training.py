"""Recurrent layers of onnxruntime-training's artifacts: com.microsoft nodes that keep what their gradients need.

https://github.com/microsoft/onnxruntime/tree/v1.19.2/orttraining/orttraining/training_ops/cpu/rnn. The peer runs them
forward with the usual gates alone, and so they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, TRAINWEB
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.symbolic import Var
from trainweb.ops.matmul import matrix_of_rows, matrix_product
from trainweb.ops.recurrent.cell import CELLS, weight_gradient
from trainweb.ops.recurrent.layers import GRU, LSTM, RecurrentLayer, zero_state

ALL = 2**31 - 1
"""End of a part that reaches to the end of its axis."""


def squeeze(x: Var | None, axis: int) -> Var | None:
    """`x` without the axis of directions."""
    return None if x is None else x.squeeze(axis)


def shifted(every: Var, first: Var) -> Var:
    """Return the state before each step, from the states after every step and the first one: (steps, batch, H)."""
    return first.unsqueeze(0).op("Concat", every.part(0, 0, -1), axis=0)


class _Training(RecurrentLayer, abstract=True):
    """A layer that gives out more than its states."""

    domain = MS
    differentiable: ClassVar[Sequence[int]] = ()

    def layer(self, g: Emission, ins: Sequence[Var | None]) -> list[Var]:
        """Outputs of the `Recurrence`: y, h, c of an LSTM, the gates, the cells before each step of an LSTM."""
        x, w, r, bias, lengths, *states = ins
        assert x is not None
        if len(states) > self.n_states and states.pop() is not None:
            raise self.unsupported("peepholes")
        parameters = [*(squeeze(t, 0) for t in (w, r, bias)), None, *(squeeze(t, 0) for t in states)]
        has_cells = self.n_states > 1
        wanted = [True, True, has_cells, True, False, has_cells]
        return self.at_once(g, x, parameters, self.forward_cell(), lengths, wanted, reverse=False)


class LSTMTraining(_Training, LSTM):
    """LSTM; further outputs are the cells after each step and the gates in the order i, o, f, c (com.microsoft)."""

    versions = (1,)
    n_outputs = 5

    def infer(self, x: TensorType, w: TensorType, r: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        y, h, c = super().infer(x, w, r, *others)
        self.forward_cell()
        return y, h, c, y, TensorType("float32", (*y.shape[:3], 4 * r.shape[2]))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        y, h, c, gates, before = self.layer(g, ins)
        after = before.part(0, 1, ALL).op("Concat", c.unsqueeze(0), axis=0)
        return [y.unsqueeze(1), h.unsqueeze(0), c.unsqueeze(0), after.unsqueeze(1), gates.unsqueeze(1)]


class GRUTraining(_Training, GRU):
    """GRU; a further output are the gates in the order z, r, h (com.microsoft)."""

    versions = (1,)
    n_outputs = 3

    def infer(self, x: TensorType, w: TensorType, r: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        y, h = super().infer(x, w, r, *others)
        self.forward_cell()
        return y, h, TensorType("float32", (*y.shape[:3], 3 * r.shape[2]))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        y, h, gates = self.layer(g, ins)
        hidden = y.shape[2]
        return [y.unsqueeze(1), h.unsqueeze(0), gates.part(2, 0, 3 * hidden).unsqueeze(1)]


class _Grad(Composite, abstract=True):
    """Gradients of X, W, R, B and the first states.

    Between the first states and the gradients of the outputs stand the states of all steps and what the layer kept.
    """

    domain = MS
    attrs = dict(LSTM.attrs)
    forward: ClassVar[type[RecurrentLayer]]

    def forward_cell(self) -> str:
        """The cell of the forward node."""
        return self.forward(replace(self.node, inputs=self.node.inputs[:3]), self.opset).forward_cell()

    def gradient_types(
        self, x: TensorType, w: TensorType, r: TensorType, saved: TensorType, width: int
    ) -> tuple[TensorType, ...]:
        """Return the types of all gradients, of first states last. The saved tensor is `width` states wide."""
        self.need_float32(x, w, r, saved)
        self.forward_cell()
        if (x.rank, w.rank, r.rank) != (3, 3, 3):
            raise self.error(f"X, W, R have the shapes {list(x.shape)}, {list(w.shape)}, {list(r.shape)}: not 3-D.")
        hidden = r.shape[2]
        self.need_shape("the saved output", saved, (*x.shape[:1], 1, x.shape[1], width * hidden))
        bias, state = (1, 2 * r.shape[1]), (1, x.shape[1], hidden)
        return tuple(TensorType("float32", shape) for shape in (x.shape, w.shape, r.shape, bias, state))

    def gradients(
        self, g: Emission, x: Var, w: Var, r: Var, gates: Var, before: Var, others: Sequence[Var | None]
    ) -> list[Var | None]:
        """Return the gradients of X, W, R, B and h, and c of an LSTM.

        `others` are the cells before each step, lengths, dY, dH and dC. Nothing given has an axis of directions.
        """
        cell = self.forward_cell()
        inputs = ["" if t is None else t.name for t in (r, gates, before, *others)]
        n_states = self.forward.n_states
        wanted = [
            True,
            cell == "gru_linear",
            *(self.wants_output(4 + k) for k in range(n_states)),
            *[False] * (2 - n_states),
        ]
        names = g.ops("RecurrenceGrad", inputs, wanted, domain=TRAINWEB, cell=cell, reverse=0)
        dx, dproduct, *states = (Var(g, name, x.dtype) if name else None for name in names)
        assert dx is not None
        flow = dproduct or dx
        rows = [matrix_of_rows(g, t.name) for t in (dx, x)]
        dw = Var(g, matrix_product(g, rows, (1, 0)), x.dtype)
        dr = Var(g, weight_gradient(g, CELLS[cell], flow.name, gates.name, before.name, r.name), x.dtype)
        biases = [t.sum([0, 1], keepdims=False) for t in (dx, flow)]
        db = biases[0].op("Concat", biases[1], axis=0)
        results = [dx.op("MatMul", w), *(t.unsqueeze(0) for t in (dw, dr, db))]
        return [*results, *(None if t is None else t.unsqueeze(0) for t in states[:n_states])]


class LSTMGrad(_Grad):
    """Gradients of LSTMTraining from (X, W, R, lengths, H, C, Y, cells, gates, dY, dH, dC) (com.microsoft)."""

    min_inputs, max_inputs, n_outputs = 10, 12, 7
    forward = LSTMTraining

    def infer(self, x: TensorType, w: TensorType, r: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        y, cells, gates = others[3:6]
        if y is None or cells is None or gates is None:
            raise self.error("the states, the cells or the gates of the forward node are left out.")
        types = self.gradient_types(x, w, r, gates, 4)
        return *types, types[-1], TensorType("float32", (1, 3 * r.shape[2]))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, w, r, lengths, h, c, y, cells, gates, dy, dh, dc = ins
        w, r, h, c, dh, dc = (squeeze(t, 0) for t in (w, r, h, c, dh, dc))
        y, cells, gates, dy = (squeeze(t, 1) for t in (y, cells, gates, dy))
        assert x is not None and w is not None and r is not None
        assert y is not None and cells is not None and gates is not None
        if self.wants_output(6):
            raise self.unsupported("a gradient of peepholes")
        hidden = r.shape[1]
        before, cells_before = (shifted(t, first or zero_state(x, hidden)) for t, first in ((y, h), (cells, c)))
        return self.gradients(g, x, w, r, gates, before, [cells_before, lengths, dy, dh, dc])


class GRUGrad(_Grad):
    """Gradients of GRUTraining from (X, W, R, B, lengths, H, Y, gates, dY, dH) (com.microsoft)."""

    min_inputs, max_inputs, n_outputs = 9, 10, 5
    attrs = dict(GRU.attrs)
    forward = GRUTraining

    def infer(self, x: TensorType, w: TensorType, r: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        y, gates = others[3:5]
        if y is None or gates is None:
            raise self.error("the states or the gates of the forward node are left out.")
        return self.gradient_types(x, w, r, gates, 3)

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, w, r, bias, lengths, h, y, gates, dy, dh = ins
        w, r, bias, h, dh = (squeeze(t, 0) for t in (w, r, bias, h, dh))
        y, gates, dy = (squeeze(t, 1) for t in (y, gates, dy))
        assert x is not None and w is not None and r is not None and y is not None and gates is not None
        hidden = r.shape[1]
        before = shifted(y, h or zero_state(x, hidden))
        saved = gates.op("Concat", self._last(before, gates, r, bias, hidden), axis=2)
        return self.gradients(g, x, w, r, saved, before, [None, lengths, dy, dh])

    def _last(self, before: Var, gates: Var, r: Var, bias: Var | None, hidden: int) -> Var:
        """Return the value that the kernel keeps of the candidate: its product, or the states behind the reset gate."""
        if not self.linear_before_reset:
            return gates.part(2, hidden, 2 * hidden) * before
        product = before.op("MatMul", r.part(0, 2 * hidden, 3 * hidden).op("Transpose", perm=[1, 0]))
        return product if bias is None else product + bias.part(0, 5 * hidden, 6 * hidden)
