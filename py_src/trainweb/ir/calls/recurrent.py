"""Calls of recurrent. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable

from trainweb.ir.calls.sizes import cell_gates, panels
from trainweb.ir.instructions import Buf, KernelCall


class Recurrence(KernelCall):
    """A call of `recurrence_f32`.

    All steps of a layer in one direction, of x, the inputs of the gates with their biases; `bias` is added to the
    products with r. Where step t is not below an item's length, y is zero and the states stay. h and c are the last
    states; `before` and `cells` are the states that each step started from.
    """

    __slots__ = (
        "x",
        "r",
        "bias",
        "lengths",
        "h0",
        "c0",
        "y",
        "h",
        "c",
        "gates",
        "before",
        "cells",
        "packed",
        "states",
        "steps",
        "batch",
        "hidden",
        "cell",
        "reverse",
    )
    KERNEL = "recurrence_f32"
    OPCODE = 64
    WORDS = 19
    ARGUMENTS = __slots__
    OPERANDS = ("x", "r", "bias", "lengths", "h0", "c0", "y", "h", "c", "gates", "before", "cells", "packed", "states")
    OPTIONAL_RESULTS = ("h", "c", "gates", "before", "cells")

    def __init__(
        self,
        *,
        x: Buf,
        r: Buf,
        bias: Buf | None = None,
        lengths: Buf | None = None,
        h0: Buf | None = None,
        c0: Buf | None = None,
        y: Buf,
        h: Buf | None = None,
        c: Buf | None = None,
        gates: Buf | None = None,
        before: Buf | None = None,
        cells: Buf | None = None,
        steps: int,
        batch: int,
        hidden: int,
        cell: int,
        reverse: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.r = r
        self.bias = bias
        self.lengths = lengths
        self.h0 = h0
        self.c0 = c0
        self.y = y
        self.h = h
        self.c = c
        self.gates = gates
        self.before = before
        self.cells = cells
        self.packed: Buf
        self.states: Buf
        self.steps = steps
        self.batch = batch
        self.hidden = hidden
        self.cell = cell
        self.reverse = reverse

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.r]
        if self.bias is not None:
            found.append(self.bias)
        if self.lengths is not None:
            found.append(self.lengths)
        if self.h0 is not None:
            found.append(self.h0)
        if self.c0 is not None:
            found.append(self.c0)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.h is not None:
            found.append(self.h)
        if self.c is not None:
            found.append(self.c)
        if self.gates is not None:
            found.append(self.gates)
        if self.before is not None:
            found.append(self.before)
        if self.cells is not None:
            found.append(self.cells)
        found.append(self.packed)
        found.append(self.states)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.packed = temp("float32", (max(1, cell_gates(self.cell) * self.hidden * panels(self.hidden)),))
        self.states = temp("float32", (max(1, 5 * self.batch * self.hidden),))

    def flops(self) -> int:
        return 2 * self.steps * self.batch * self.hidden * cell_gates(self.cell) * self.hidden


class RecurrenceGradient(KernelCall):
    """A call of `recurrence_gradient_f32`.

    Gradients of x, of the products (a linear GRU must have them; of other cells they are those of x) and of the first
    states, from those of y and of the last states. An LSTM must have `cells`.
    """

    __slots__ = (
        "dy",
        "dh",
        "dc",
        "r",
        "lengths",
        "gates",
        "before",
        "cells",
        "dx",
        "dproduct",
        "dh0",
        "dc0",
        "packed",
        "states",
        "steps",
        "batch",
        "hidden",
        "cell",
        "reverse",
    )
    KERNEL = "recurrence_gradient_f32"
    OPCODE = 65
    WORDS = 19
    ARGUMENTS = __slots__
    OPERANDS = (
        "dy",
        "dh",
        "dc",
        "r",
        "lengths",
        "gates",
        "before",
        "cells",
        "dx",
        "dproduct",
        "dh0",
        "dc0",
        "packed",
        "states",
    )
    OPTIONAL_RESULTS = ("dproduct", "dh0", "dc0")

    def __init__(
        self,
        *,
        dy: Buf | None = None,
        dh: Buf | None = None,
        dc: Buf | None = None,
        r: Buf,
        lengths: Buf | None = None,
        gates: Buf,
        before: Buf,
        cells: Buf | None = None,
        dx: Buf,
        dproduct: Buf | None = None,
        dh0: Buf | None = None,
        dc0: Buf | None = None,
        steps: int,
        batch: int,
        hidden: int,
        cell: int,
        reverse: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.dh = dh
        self.dc = dc
        self.r = r
        self.lengths = lengths
        self.gates = gates
        self.before = before
        self.cells = cells
        self.dx = dx
        self.dproduct = dproduct
        self.dh0 = dh0
        self.dc0 = dc0
        self.packed: Buf
        self.states: Buf
        self.steps = steps
        self.batch = batch
        self.hidden = hidden
        self.cell = cell
        self.reverse = reverse

    @property
    def reads(self) -> list[Buf]:
        found: list[Buf] = []
        if self.dy is not None:
            found.append(self.dy)
        if self.dh is not None:
            found.append(self.dh)
        if self.dc is not None:
            found.append(self.dc)
        found.append(self.r)
        if self.lengths is not None:
            found.append(self.lengths)
        found.append(self.gates)
        found.append(self.before)
        if self.cells is not None:
            found.append(self.cells)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.dx]
        if self.dproduct is not None:
            found.append(self.dproduct)
        if self.dh0 is not None:
            found.append(self.dh0)
        if self.dc0 is not None:
            found.append(self.dc0)
        found.append(self.packed)
        found.append(self.states)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.packed = temp("float32", (max(1, cell_gates(self.cell) * self.hidden * panels(self.hidden)),))
        self.states = temp("float32", (max(1, 3 * self.batch * self.hidden),))

    def flops(self) -> int:
        return 2 * self.steps * self.batch * self.hidden * cell_gates(self.cell) * self.hidden
