"""What operators emit: buffers in kernel memory, calls of kernels and of generated functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, Self

from trainweb.ir.expr import Expr
from trainweb.ir.layout import CONSTANTS
from trainweb.model.graph import ITEM_SIZE
from trainweb.model.lazy import LazyTensor


@dataclass(eq=False, slots=True)
class Storage:
    """A run of bytes in a segment; the memory planner places those of the arena."""

    segment: int
    nbytes: int
    offset: int | None = None
    data: bytes | memoryview | LazyTensor | None = None
    """Contents of a constant; a large one may stay in its file."""
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
        return prod(self.shape) * ITEM_SIZE[self.dtype]

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
    """A sequence of tensors in kernel memory (optimizer models): those of one segment share its storage."""

    items: list[Buf]
    dtype: str = "float32"


def flat_runs(*sequences: BufSequence) -> list[tuple[Buf, ...]]:
    """The items of equally long sequences, one of each; those that follow each other in all of them become one."""
    runs: list[tuple[Buf, ...]] = []
    for items in zip(*(s.items for s in sequences), strict=True):
        if not items[0].size:
            continue
        ends = [b.shift + b.nbytes for b in runs[-1]] if runs else []
        stores = [b.storage for b in runs[-1]] if runs else []
        follows = ends == [b.shift for b in items] and all(s is b.storage for s, b in zip(stores, items, strict=True))
        if runs and follows:
            runs[-1] = tuple(run.view((run.size + b.size,)) for run, b in zip(runs[-1], items, strict=True))
        else:
            runs.append(tuple(b.view((b.size,)) for b in items))
    return runs


class KernelCall:
    """One call of a kernel; the classes in ir/calls have its arguments as fields, by the names of kernels.def.

    Attributes
    ----------
    KERNEL : str
        Name of the kernel.
    OPCODE, WORDS : int
        Its number in plans, and how many words its arguments take there.
    ARGUMENTS, OPERANDS, FLOATS, OPTIONAL_RESULTS : tuple of str
        All fields in the order of kernels.def; those that are buffers; those that are floats; those among the buffers
        that are only written and may be None.
    ACCUMULATED : tuple of str
        Results that are added to where `accumulate` says so.
    UPDATES : tuple of str
        State that is brought up to date and that no result depends on.
    FAILS : tuple of str
        Inputs whose contents may make the call fail, wherever they come from.
    PARTS : tuple of str
        Results that may be a part of a tensor: the call leaves the rest alone, which others write.
    node : str
        Where the call comes from, for errors.
    position : int
        Where it stands in its `Program`, which alone sets it.
    """

    __slots__ = ("node", "position")
    KERNEL: ClassVar[str]
    OPCODE: ClassVar[int]
    WORDS: ClassVar[int]
    ARGUMENTS: ClassVar[tuple[str, ...]]
    OPERANDS: ClassVar[tuple[str, ...]]
    FLOATS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL_RESULTS: ClassVar[tuple[str, ...]] = ()
    ACCUMULATED: ClassVar[tuple[str, ...]] = ()
    UPDATES: ClassVar[tuple[str, ...]] = ()
    FAILS: ClassVar[tuple[str, ...]] = ()
    PARTS: ClassVar[tuple[str, ...]] = ()
    node: str
    position: int

    @property
    def reads(self) -> list[Buf]:
        """The buffers whose contents the call reads."""
        raise NotImplementedError

    @property
    def writes(self) -> list[Buf]:
        """The buffers that the call writes: results and scratch."""
        raise NotImplementedError

    @property
    def accumulated(self) -> list[Buf]:
        """The results that `accumulate` concerns."""
        return [b for name in self.ACCUMULATED if (b := getattr(self, name)) is not None]

    @property
    def checked(self) -> list[Buf]:
        """The inputs whose contents may make the call fail."""
        return [b for name in self.FAILS if (b := getattr(self, name)) is not None]

    def flops(self) -> int:
        """Operations of its products, two for each multiplication."""
        return 0

    def without_updates(self) -> Self:
        """The call as it is made again: it makes the same results and leaves state alone."""
        return self.without(self.UPDATES) if self.UPDATES else self

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        """Set the scratch fields to buffers that `temp` makes of a dtype and a shape."""

    def operands(self) -> Iterator[tuple[str, Buf]]:
        """Names and buffers of the operands that are there."""
        for name in self.OPERANDS:
            b = getattr(self, name)
            if b is not None:
                yield name, b

    def arguments(self) -> Iterator[tuple[str, Any]]:
        """Names and values of all arguments, in the order of kernels.def."""
        return ((name, getattr(self, name)) for name in self.ARGUMENTS)

    def map_operands(self, change: Callable[[Buf], Buf]) -> None:
        """Put `change(b)` in the place of each operand `b`."""
        for name, b in self.operands():
            setattr(self, name, change(b))

    def replace_operand(self, old: Buf, new: Buf) -> None:
        """Put `new` wherever the very buffer `old` stands."""
        for name, b in self.operands():
            if b is old:
                setattr(self, name, new)

    def __copy__(self) -> Self:
        call = object.__new__(type(self))
        call.node = self.node
        for name in self.ARGUMENTS:
            setattr(call, name, getattr(self, name))
        return call

    def moved(self, change: Callable[[Buf], Buf], node: str) -> Self:
        """A copy for `node` that has `change(b)` in the place of each operand `b`."""
        call = copy(self)
        call.node = node
        call.map_operands(change)
        return call

    def optional_results(self) -> Iterator[tuple[str, Buf]]:
        """Names and buffers of the results that are there and need not be."""
        return ((name, b) for name, b in self.operands() if name in self.OPTIONAL_RESULTS)

    def without(self, names: Iterable[str]) -> Self:
        """A copy without these optional operands."""
        call = copy(self)
        for name in names:
            setattr(call, name, None)
        return call

    def __repr__(self) -> str:
        return f"{self.KERNEL}({', '.join(f'{name}={getattr(self, name, None)!r}' for name in self.ARGUMENTS)})"


GRAIN_ELEMENTS = 16384
"""Elements a chunk of an elementwise call works on: 64 KiB of float32, which the second-level cache holds."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a generated function does with its last result: `op` (REDUCE_...) over the middle axis of [-1, n, inner].

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
    position: int = field(default=-1, init=False, repr=False)
    """As of a `KernelCall`."""

    @property
    def reads(self) -> list[Buf]:
        return self.ins

    @property
    def writes(self) -> list[Buf]:
        return self.outs

    def moved(self, change: Callable[[Buf], Buf], node: str) -> ElementwiseCall:
        """A copy for `node` that has `change(b)` in the place of each operand `b`."""
        return replace(self, ins=[change(b) for b in self.ins], outs=[change(b) for b in self.outs], node=node)


Instruction = KernelCall | ElementwiseCall
