"""What operators emit and passes rewrite: buffers in kernel memory, calls of kernels and generated functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

from trainweb.ir.expr import Expr
from trainweb.ir.layout import CONSTANTS
from trainweb.model.graph import ITEM_SIZE


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


class KernelCall:
    """One call of a kernel; the classes in ir/calls.py have its arguments as fields, by the names of kernels.def.

    Attributes
    ----------
    KERNEL : str
        Name of the kernel.
    ARGUMENTS, OPERANDS, OPTIONAL_RESULTS : tuple of str
        All fields in the order of kernels.def; those that are buffers; those among these that are only written and
        may be None.
    ACCUMULATED : tuple of str
        Results that are added to where `accumulate` says so.
    UPDATES : tuple of str
        State that is brought up to date and that no result depends on.
    FAILS : tuple of str
        Inputs whose contents may make the call fail, wherever they come from.
    IS_PART : bool
        Whether the result may be a part of a tensor whose other parts other such calls write.
    node : str
        Where the call comes from, for errors.
    """

    __slots__ = ("node",)
    KERNEL: ClassVar[str]
    ARGUMENTS: ClassVar[tuple[str, ...]]
    OPERANDS: ClassVar[tuple[str, ...]]
    OPTIONAL_RESULTS: ClassVar[tuple[str, ...]] = ()
    ACCUMULATED: ClassVar[tuple[str, ...]] = ()
    UPDATES: ClassVar[tuple[str, ...]] = ()
    FAILS: ClassVar[tuple[str, ...]] = ()
    IS_PART: ClassVar[bool] = False
    node: str

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

    def flops(self) -> int:
        """Operations of its products, two for each multiplication."""
        return 0

    def without_updates(self) -> Self:
        """The call as it is made again: it makes the same results and leaves state alone."""
        if not self.UPDATES:
            return self
        call = copy(self)
        for name in self.UPDATES:
            setattr(call, name, None)
        return call

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        """Set the scratch fields to buffers that `temp` makes of a dtype and a shape."""

    def operands(self) -> Iterator[tuple[str, Buf]]:
        """Names and buffers of the operands that are there."""
        for name in self.OPERANDS:
            b = getattr(self, name)
            if b is not None:
                yield name, b

    def map_operands(self, change: Callable[[Buf], Buf]) -> None:
        """Put `change(b)` in the place of each operand `b`."""
        for name, b in self.operands():
            setattr(self, name, change(b))

    def replace_operand(self, old: Buf, new: Buf) -> None:
        """Put `new` wherever the very buffer `old` stands."""
        for name, b in self.operands():
            if b is old:
                setattr(self, name, new)

    def moved(self, change: Callable[[Buf], Buf], node: str) -> Self:
        """A copy for `node` that has `change(b)` in the place of each operand `b`."""
        call = copy(self)
        call.node = node
        call.map_operands(change)
        return call

    @property
    def args(self) -> _Arguments:
        """The fields by name, until all passes take them by attribute."""
        return _Arguments(self)

    def __repr__(self) -> str:
        return f"{self.KERNEL}({', '.join(f'{name}={getattr(self, name, None)!r}' for name in self.ARGUMENTS)})"


class _Arguments(MutableMapping[str, Any]):
    __slots__ = ("call",)

    def __init__(self, call: KernelCall) -> None:
        self.call = call

    def __getitem__(self, name: str) -> Any:
        if name not in self.call.ARGUMENTS:
            raise KeyError(name)
        return getattr(self.call, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.call, name, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{self.call.KERNEL} must have {name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.call.ARGUMENTS)

    def __len__(self) -> int:
        return len(self.call.ARGUMENTS)


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
