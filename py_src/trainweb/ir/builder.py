"""Lowering: operators emit instructions on buffers through `Builder`."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from trainweb.errors import UnsupportedError
from trainweb.ir import calls
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, PARAMETERS, STATE, STATE_WORDS
from trainweb.model.graph import ITEM_SIZE, STRUCT_FORMAT, Tensor
from trainweb.model.lazy import stays_outside


@dataclass(frozen=True, slots=True)
class Iterations:
    """The roles of the inputs and outputs of a body in its loop."""

    trips: int
    """How often it runs, or, with an `Ending`, at most."""
    carried: int
    """Inputs, the first ones, that are the outputs of the iteration before."""
    scanned: tuple[bool, ...]
    """The next inputs, of which an iteration has its element along axis 0: true if from the end."""
    stacked: tuple[bool, ...]
    """Outputs after the carried ones, which are put together along axis 0, and whether from the end."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a loop whose number of iterations is known only at run time."""

    count: Buf | None
    """How often it runs at most, an int64."""
    conditional: bool = False
    """True if the first carried tensor is the condition of the next iteration."""
    steps: Buf | None = None
    """The number of iterations that ran, an int64."""
    may_fail: bool = False
    """True if the loop could go on beyond its largest number of iterations, which is an error."""


class Builder:
    """The target of `Op.lower`, which emits instructions through it."""

    loops: Any
    """The compiler's `LoopCompiler` (`compiler/loops.py`), which stands above operators."""

    def __init__(self, *, overwrite: bool = True) -> None:
        self.overwrite = overwrite
        self.instructions: list[Instruction] = []
        self.emitter = Emitter()
        self.node = ""
        self.state = Buf(Storage(STATE, 4 * STATE_WORDS, 0), "int32", (STATE_WORDS,), name="state")
        self._constants: dict[tuple[str, bytes], Storage] = {}
        self._draws = 0
        self.takes_step = False
        """True if an optimizer updates parameters here; however many do, it is one step."""

    def fresh(self, node: str) -> Builder:
        """A builder with no instructions, on the same state and constants."""
        new = copy.copy(self)
        new.node, new.instructions = node, []
        return new

    # Buffers.

    def temp(self, dtype: str, shape: Sequence[int]) -> Buf:
        """Workspace that lives until its last use."""
        shape = tuple(shape)
        return Buf(Storage(ARENA, prod(shape) * ITEM_SIZE[dtype]), dtype, shape, name="temp")

    def constant(self, dtype: str, shape: Sequence[int], values: Sequence[Any]) -> Buf:
        """A constant from Python numbers; equal ones are stored once."""
        data = struct.pack(f"<{len(values)}{STRUCT_FORMAT[dtype]}", *values)
        storage = self._constants.setdefault((dtype, data), Storage(CONSTANTS, len(data), data=data))
        return Buf(storage, dtype, tuple(shape), tuple(values), name="constant")

    def constant_tensor(self, tensor: Tensor, value: tuple[Any, ...] | None = None) -> Buf:
        """A constant from a tensor; its data is not copied here, and stays in its file if it is large."""
        data = tensor if stays_outside(tensor) else memoryview(tensor.data).cast("B")
        storage = Storage(CONSTANTS, tensor.nbytes, data=data, name=tensor.name)
        return Buf(storage, tensor.dtype, tensor.shape, value, name=tensor.name)

    # Instructions.

    def maker(self, b: Buf) -> KernelCall | None:
        """The kernel call that wrote `b` last, if one did."""
        for i in reversed(self.instructions):
            if any(w.storage is b.storage for w in i.writes):
                return i if isinstance(i, KernelCall) else None
        return None

    def next_draw(self) -> int:
        """A number for a random kernel, unique in this step."""
        self._draws += 1
        return self._draws - 1

    def advance(self) -> None:
        """After all nodes, count the step, let the next one draw other numbers, and note that parameters changed."""
        if self.takes_step:
            self.emit(calls.OptimizerAdvance(state=self.state))
        if self._draws:
            self.node = "the random offset"
            self.emit(calls.RandomAdvance(state=self.state, n=self._draws))
        if any(b.storage.segment == PARAMETERS for i in self.instructions for b in i.writes):
            self.node = "parameters have changed"
            self.emit(calls.NoteChange(state=self.state))

    def emit(self, call: KernelCall) -> None:
        """Add a call of the node that is lowered; its scratch is made here."""
        call.node = self.node
        call.make_scratch(self.temp)
        self.instructions.append(call)

    def check_labels(self, labels: Buf, classes: int, ignore: int | None) -> None:
        """Fail with the first given label outside [0, classes) that is not `ignore`, before anything is computed."""
        self._check(labels, 0, classes, ignore, 1)

    def check_index(self, indices: Buf, size: int) -> None:
        """Fail with the first given index outside [-size, size), before anything is computed."""
        if indices.value is None:  # known ones were checked with the shapes
            self._check(indices, -size, size, None, 0)

    def check_range(self, values: Buf, size: int) -> None:
        """Fail with the first given number outside [0, size), before anything is computed."""
        self._check(values, 0, size, None, 0)

    def _check(self, values: Buf, low: int, high: int, ignore: int | None, is_label: int) -> None:
        # The kernel that reads computed indices checks them.
        if values.size and values.is_initial:
            self.emit(index_check(values, low, high, ignore, is_label))

    def copy(self, out: Buf, source: Buf) -> None:
        """Copy the bytes of `source` to `out`."""
        self.emit(calls.Copy(src=source, dst=out, n=source.nbytes))

    def fill(self, out: Buf | None, value: float) -> None:
        """Set every element."""
        if out is not None:
            self.elementwise([out], [], lambda e: e.const(value, out.dtype))

    def accumulate(self, buffer: Buf, value: Buf, overwrite: bool) -> None:
        """buffer = value or buffer += value."""
        if not overwrite:
            self.elementwise([buffer], [buffer, value.view(buffer.shape)], lambda e, a, b: e.add(a, b))
        elif not buffer.same_place(value):
            self.copy(buffer, value)

    def elementwise(
        self,
        outs: Sequence[Buf | None],
        ins: Sequence[Buf],
        fn: Callable[..., Expr | tuple[Expr, ...]],
    ) -> None:
        """outs = fn(emitter, *ins) element by element; `ins` broadcast to the shape of the outputs."""
        e = self.emitter
        xs: list[Expr] = []
        operands: list[Buf] = []
        for b in ins:
            if b.value is not None and b.size == 1:
                xs.append(e.const(b.value[0], b.dtype))
            else:
                xs.append(e.input(len(operands), b.dtype))
                operands.append(b)
        result = fn(e, *xs)
        roots = list(result) if isinstance(result, tuple) else [result]
        wanted = [(o, r) for o, r in zip(outs, roots, strict=True) if o is not None]
        if not wanted or wanted[0][0].size == 0:
            return
        for out, root in wanted:
            if out.dtype != root.dtype:
                raise UnsupportedError(f"{self.node}: {root.dtype} result for a {out.dtype} output.")
        self.instructions.append(
            ElementwiseCall(wanted[0][0].shape, operands, [o for o, _ in wanted], [r for _, r in wanted], self.node)
        )


def index_check(values: Buf, low: int, high: int, ignore: int | None, is_label: int) -> calls.CheckIndices:
    """The call that fails with the first number outside [low, high) which is not `ignore`."""
    return calls.CheckIndices(
        indices=values,
        n=values.size,
        index_size=ITEM_SIZE[values.dtype],
        lo=low,
        hi=high,
        has_ignore=int(ignore is not None),
        ignore=ignore or 0,
        label=is_label,
    )
