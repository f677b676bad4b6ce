"""Lowering: operators emit instructions on buffers through `Builder`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb.errors import UnsupportedError
from trainweb.ir.expr import Emitter, Expr
from trainweb.model.graph import ITEM_SIZE, STRUCT_FORMAT, Tensor

if TYPE_CHECKING:
    from trainweb.backend.wasm.engine.description import Description

ARENA, CONSTANTS, PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1, STATE, PREPARED = SEGMENTS = range(8)
"""Segments of kernel memory, in the order of a plan's segment table."""

STATE_WORDS = 16
KERNEL_DTYPES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u8": "uint8"}
LABEL_BYTES = {"int32": 4, "int64": 8}


@dataclass(eq=False, slots=True)
class Storage:
    """A run of bytes in a segment; the memory planner places those of the arena."""

    segment: int
    nbytes: int
    offset: int | None = None
    data: bytes | memoryview | None = None
    """Contents of a constant."""
    is_feed: bool = False
    is_output: bool = False


@dataclass(eq=False, slots=True)
class Buf:
    """A tensor in kernel memory: a shape and dtype over (part of) a storage."""

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    value: tuple[Any, ...] | None = None
    shift: int = 0
    """Byte offset in the storage."""
    name: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * ITEM_SIZE[self.dtype]

    def view(self, shape: Sequence[int], shift: int = 0) -> Buf:
        """The same bytes under another shape, from `shift` elements on."""
        start = self.shift + shift * ITEM_SIZE[self.dtype]
        return Buf(self.storage, self.dtype, tuple(shape), self.value if not shift else None, start, self.name)

    @property
    def is_given(self) -> bool:
        """Whether the contents are there before a step starts: a feed or a constant."""
        return self.storage.is_feed or self.storage.segment == CONSTANTS

    def same_place(self, other: Buf) -> bool:
        """Whether both are the same bytes."""
        return self.storage is other.storage and self.shift == other.shift and self.nbytes == other.nbytes

    def collides(self, other: Buf) -> bool:
        """Whether both share bytes without being the same bytes."""
        return (
            self.storage is other.storage
            and not self.same_place(other)
            and self.shift < other.shift + other.nbytes
            and other.shift < self.shift + self.nbytes
        )


@dataclass(eq=False, slots=True)
class BufSequence:
    """A sequence of tensors as the flat runs in which they lie (optimizer models)."""

    runs: list[Buf]
    dtype: str = "float32"


@dataclass(eq=False, slots=True)
class KernelCall:
    """One call of a kernel; `args` by the names of kernels.def."""

    kernel: str
    args: dict[str, Any]
    node: str
    reads: list[Buf] = field(default_factory=list)
    writes: list[Buf] = field(default_factory=list)


SUM, MEAN, MAX, MIN, PROD, SUM_SQUARES, SUM_ABS, LOG_SUM_EXP, NORM, LOG_SUM = range(10)
"""What reduce_f32 computes, as in wasm_kernels/reduce.h."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a generated function does with its last result: `op` of reduce.h over the middle axis of [-1, n, inner].

    A chunk of `elements` is whole planes of [n, inner]; where `n` is 0, it is one plane of [-1, inner].
    """

    op: int
    n: int
    inner: int
    elements: int

    @property
    def results(self) -> int:
        """Values per chunk."""
        return self.elements // self.n if self.n else self.inner


@dataclass(eq=False, slots=True)
class ElementwiseCall:
    """A generated function: outs[k] = roots[k](*ins), element by element over `shape`.

    All results of an element are computed before one is stored: an output may be an input's place.
    With a `reduction`, the last output holds that of the last root, which is stored only if it has an output, too.
    """

    shape: tuple[int, ...]
    ins: list[Buf]
    outs: list[Buf]
    roots: list[Expr]
    node: str
    reduction: Reduction | None = None

    @property
    def reads(self) -> list[Buf]:
        return self.ins

    @property
    def writes(self) -> list[Buf]:
        return self.outs

    def is_flat(self) -> bool:
        """Whether every input is a full tensor or one element."""
        size = prod(self.shape)
        return all(b.size in (1, size) for b in self.ins)


Instruction = KernelCall | ElementwiseCall


def index_uses(
    instructions: Sequence[Instruction], reads_of: Callable[[Instruction], Sequence[Buf]] = lambda i: i.reads
) -> tuple[dict[Storage, list[int]], dict[Storage, list[int]]]:
    """The instructions that read each storage and those that write it, in order, as often as they do."""
    readers: dict[Storage, list[int]] = {}
    writers: dict[Storage, list[int]] = {}
    for k, i in enumerate(instructions):
        for b in reads_of(i):
            readers.setdefault(b.storage, []).append(k)
        for b in i.writes:
            writers.setdefault(b.storage, []).append(k)
    return readers, writers


class Builder:
    """What `Op.lower` emits instructions through."""

    def __init__(self, description: Description, *, overwrite: bool = True) -> None:
        self.description = description
        self.overwrite = overwrite
        self.instructions: list[Instruction] = []
        self.emitter = Emitter()
        self.node = ""
        self.state = Buf(Storage(STATE, 4 * STATE_WORDS, 0), "int32", (STATE_WORDS,), name="state")
        self._constants: dict[tuple[str, bytes], Storage] = {}
        self._draws = 0

    # Buffers.

    def temp(self, dtype: str, shape: Sequence[int]) -> Buf:
        """Workspace that lives until its last use."""
        shape = tuple(shape)
        return Buf(Storage(ARENA, prod(shape) * ITEM_SIZE[dtype]), dtype, shape, name="temp")

    def result(self, kernel: str, name: str, **numbers: int) -> Buf:
        """Workspace for the result `name` of `kernel` for these integer arguments."""
        spec = self.description.kernels[kernel]
        arg = next(a for a in spec.args if a.name == name)
        return self.temp(KERNEL_DTYPES[arg.type], (spec.extent(arg, numbers),))

    def constant(self, dtype: str, shape: Sequence[int], values: Sequence[Any]) -> Buf:
        """A constant from Python numbers."""
        data = struct.pack(f"<{len(values)}{STRUCT_FORMAT[dtype]}", *values)
        return self.constant_bytes(dtype, shape, data, tuple(values))

    def constant_tensor(self, tensor: Tensor, value: tuple[Any, ...] | None = None) -> Buf:
        """A constant from a tensor; its data is not copied here."""
        storage = Storage(CONSTANTS, tensor.nbytes, data=memoryview(tensor.data))
        return Buf(storage, tensor.dtype, tensor.shape, value, name=tensor.name)

    def constant_bytes(
        self, dtype: str, shape: Sequence[int], data: bytes, value: tuple[Any, ...] | None = None
    ) -> Buf:
        """A constant from its bytes; equal ones are stored once."""
        storage = self._constants.setdefault((dtype, data), Storage(CONSTANTS, len(data), data=data))
        return Buf(storage, dtype, tuple(shape), value, name="constant")

    # Instructions.

    def maker(self, b: Buf) -> KernelCall | None:
        """The kernel call that wrote `b` last, if one did."""
        for i in reversed(self.instructions):
            if any(w.storage is b.storage for w in i.writes):
                return i if isinstance(i, KernelCall) else None
        return None

    def next_draw(self) -> int:
        """A number for a random kernel, other than that of any before in this step."""
        self._draws += 1
        return self._draws - 1

    def takes(self, kernel: str, /, **numbers: int | Sequence[int]) -> bool:
        """Whether `kernel` can work with these integer arguments."""
        return self.description.kernels[kernel].holds(numbers)

    def note_change(self) -> None:
        """Tell what was made of parameters that they have changed, if they have."""
        if any(b.storage.segment == PARAMETERS for i in self.instructions for b in i.writes):
            self.node = "parameters have changed"
            self.emit("note_change", state=self.state)

    def advance_random(self) -> None:
        """Let the next step draw other numbers; after all that draw."""
        if self._draws:
            self.node = "the random offset"
            self.emit("random_advance", state=self.state, n=self._draws)

    def emit(self, kernel: str, /, **args: Any) -> None:
        """Call `kernel`; scratch arguments are allocated here, absent optional ones are null."""
        spec = self.description.kernels.get(kernel)
        if spec is None:
            raise UnsupportedError(f"{self.node}: the kernels have no {kernel!r}.")
        call = KernelCall(kernel, {}, self.node)
        numbers = spec.numbers(args)
        for arg in spec.args:
            if arg.kind == "scratch":
                buf = self.temp(KERNEL_DTYPES[arg.type], (max(1, spec.extent(arg, numbers)),))
                call.args[arg.name] = buf
                call.writes.append(buf)
                continue
            value = args.pop(arg.name, None)
            if arg.kind in ("in", "out", "inout"):
                if value is None and not arg.optional:
                    raise KeyError(f"{kernel} needs {arg.name}")
                if value is not None:
                    if arg.kind != "out":
                        call.reads.append(value)
                    if arg.kind != "in":
                        call.writes.append(value)
            elif value is None:
                raise KeyError(f"{kernel} needs {arg.name}")
            call.args[arg.name] = value
        if args:
            raise KeyError(f"{kernel} has no argument {', '.join(args)}")
        self.instructions.append(call)

    def check_labels(self, labels: Buf, classes: int, ignore: int | None) -> None:
        """Fail with the first given label outside [0, classes) that is not `ignore`, before anything is computed."""
        self._check(labels, 0, classes, ignore, 1)

    def check_index(self, indices: Buf, size: int) -> None:
        """Fail with the first given index outside [-size, size), before anything is computed."""
        if indices.value is None:  # known ones were checked with the shapes
            self._check(indices, -size, size, None, 0)

    def _check(self, values: Buf, low: int, high: int, ignore: int | None, is_label: int) -> None:
        # What is computed in the step, the kernel that reads it checks.
        if values.size and values.is_given:
            self.emit(
                "check_indices",
                indices=values,
                n=values.size,
                index_size=LABEL_BYTES[values.dtype],
                lo=low,
                hi=high,
                has_ignore=int(ignore is not None),
                ignore=ignore or 0,
                label=is_label,
            )

    def copy(self, out: Buf, source: Buf) -> None:
        """Copy the bytes of `source` to `out`."""
        self.emit("copy", src=source, dst=out, n=source.nbytes)

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
        kept: list[Buf] = []
        for b in ins:
            if b.value is not None and b.size == 1:
                xs.append(e.const(b.value[0], b.dtype))
            else:
                xs.append(e.input(len(kept), b.dtype))
                kept.append(b)
        result = fn(e, *xs)
        roots = list(result) if isinstance(result, tuple) else [result]
        wanted = [(o, r) for o, r in zip(outs, roots, strict=True) if o is not None]
        if not wanted or wanted[0][0].size == 0:
            return
        for out, root in wanted:
            if out.dtype != root.dtype:
                raise UnsupportedError(f"{self.node}: {root.dtype} result for a {out.dtype} output.")
        self.instructions.append(
            ElementwiseCall(wanted[0][0].shape, kept, [o for o, _ in wanted], [r for _, r in wanted], self.node)
        )
