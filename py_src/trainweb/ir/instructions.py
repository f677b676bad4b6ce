"""Buffers in kernel memory, and calls of kernels and of generated functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from operator import attrgetter
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast, dataclass_transform

from trainweb.ir.expr import Expr
from trainweb.ir.layout import CONSTANTS
from trainweb.model.graph import ITEM_SIZE, data_bytes
from trainweb.model.lazy import LazyTensor

AxisPart: TypeAlias = tuple[int, int]
"""A part of an axis: its size, and the rows of the loss from one element to the next; 0 for other axes, or KEYS."""
KEYS = -1
"""An axis of keys, along which softmax makes probabilities of attention."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of the loss in a tensor that is read only by rows (compiler/rows.py)."""

    parts: tuple[AxisPart, ...]
    """The axes in row-major order."""
    level: int
    """The most attentions on a way to the loss: which rows are wanted depends on their masks."""

    def of_loop(self, n: int, stride: int) -> int | None:
        """Return the rows from one step of a loop of `n` steps to the next; None if it leaves a part of the axes."""
        inner = 1
        for size, step in reversed(self.parts):
            if n == 1 or stride < inner * size:
                steps = stride // inner
                return None if n > 1 and (stride % inner or (n - 1) * steps >= size) else step * steps * (n > 1)
            inner *= size
        return 0 if n == 1 else None


@dataclass(eq=False, slots=True)
class Storage:
    """A run of bytes in a segment; the memory planner places storages of the arena."""

    segment: int
    nbytes: int
    offset: int | None = None
    data: bytes | memoryview | LazyTensor | None = None
    """Contents of a constant; a large one may stay in its file."""
    is_feed: bool = False
    name: str = ""
    """The tensor of the graph that a constant is; none if it may depend on the feeds."""
    rows: Rows | None = None
    """The rows of a loss, if only rows of the tensor are read."""
    whole: str = ""
    """Why more is read."""
    is_slope: bool = False
    """A gradient of this loss, which is zero in the other rows."""


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
        return data_bytes(self.dtype, prod(self.shape))

    def view(self, shape: Sequence[int], shift: int = 0) -> Buf:
        """The same bytes under another shape, from `shift` elements on."""
        start = self.shift + shift * ITEM_SIZE[self.dtype]
        return Buf(self.storage, self.dtype, tuple(shape), self.value if not shift else None, start, self.name)

    def among(self, places: Mapping[Storage, Storage]) -> Buf:
        """Return the tensor on the storage that replaces its own in `places`, if one does."""
        storage = places.get(self.storage)
        return self if storage is None else Buf(storage, self.dtype, self.shape, self.value, self.shift, self.name)

    @property
    def is_initial(self) -> bool:
        """Return whether the contents are there before a step starts: a feed or a constant."""
        return self.storage.is_feed or self.storage.segment == CONSTANTS

    def same_place(self, other: Buf) -> bool:
        """Return whether both are the same bytes."""
        return self.storage is other.storage and self.shift == other.shift and self.nbytes == other.nbytes

    def collides(self, other: Buf) -> bool:
        """Return whether both share bytes without being the same bytes."""
        return (
            self.storage is other.storage
            and not self.same_place(other)
            and self.shift < other.shift + other.nbytes
            and other.shift < self.shift + self.nbytes
        )


@dataclass(eq=False, slots=True)
class BufSequence:
    """A sequence of tensors in kernel memory (optimizer models); items of one segment share its storage."""

    items: list[Buf]
    dtype: str = "float32"


def flat_runs(*sequences: BufSequence) -> list[tuple[Buf, ...]]:
    """Return the items of equally long sequences, one of each. Adjacent items of all sequences become one."""
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


# The annotations of arguments, whose names tell what a call does with an operand.
In: TypeAlias = Buf
Out: TypeAlias = Buf
InOut: TypeAlias = Buf
Sum: TypeAlias = Buf  # a result; also read where `accumulate` is 1
Scratch: TypeAlias = Buf
OptionalIn: TypeAlias = Buf | None
OptionalOut: TypeAlias = Buf | None
OptionalInOut: TypeAlias = Buf | None
OptionalSum: TypeAlias = Buf | None
Ints: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScratchSize:
    """Dtype and number of elements of a scratch buffer."""

    dtype: str
    size: Callable[[Any], int]


def scratch(dtype: str, size: Callable[[Any], int], *, init: Literal[False] = False) -> Any:
    """Declare a scratch field of `size(call)` elements, which `KernelCall.make_scratch` sets."""
    return ScratchSize(dtype, size)


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Buf | None, ...]]:
    """The values of fields; `attrgetter` returns no tuple of a single one."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda call: tuple(getattr(call, name) for name in names)


@dataclass_transform(kw_only_default=True, field_specifiers=(scratch,))
class KernelCall:
    """One call of a kernel; the classes in ir/calls.py have its arguments as fields, by the names of kernels.def.

    A class with the keyword `kernel` is a call of a kernel. Its annotated fields are the arguments, and its place among
    these classes is the opcode. All else follows from them and from the other keywords.
    """

    KERNEL: ClassVar[str]
    """Name of the kernel."""
    OPCODE: ClassVar[int]
    WORDS: ClassVar[int]
    """Its number in plans, and the number of words of its arguments there."""
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()
    OPERANDS: ClassVar[tuple[str, ...]] = ()
    FLOATS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL_RESULTS: ClassVar[tuple[str, ...]] = ()
    """All fields in the order of kernels.def; the buffers; the floats; the buffers that are only written and may be
    None.
    """
    ACCUMULATED: ClassVar[tuple[str, ...]] = ()
    """Results that the call adds to where `accumulate` is 1."""
    RESULT: ClassVar[str] = ""
    """The result that goes through the epilogue, if there is one."""
    UPDATES: ClassVar[tuple[str, ...]] = ()
    """State that the call updates and that no result depends on."""
    FAILS: ClassVar[tuple[str, ...]] = ()
    """Inputs whose contents may make the call fail, wherever they come from."""
    PARTS: ClassVar[tuple[str, ...]] = ()
    """Results that may be a part of a tensor: the call leaves the rest of it unchanged."""
    KERNELS: ClassVar[list[type[KernelCall]]] = []
    """The classes of kernels in the order of their opcodes."""
    _SCRATCH: ClassVar[dict[str, ScratchSize]] = {}
    _GIVEN: ClassVar[frozenset[str]]
    _REQUIRED: ClassVar[frozenset[str]]
    _READS: ClassVar[tuple[Callable[[Any], tuple[Buf | None, ...]], Callable[[Any], tuple[Buf | None, ...]]]]
    """Getters of what the call reads: where it only writes its results, and where it accumulates."""
    _WRITES: ClassVar[Callable[[Any], tuple[Buf | None, ...]]]
    node: str
    """The node that the call comes from, for errors."""
    position: int
    """Its position in its `Program`, which alone sets it."""

    def __init_subclass__(
        cls,
        *,
        kernel: str = "",
        words: int = 0,
        result: str = "",
        updates: tuple[str, ...] = (),
        fails: tuple[str, ...] = (),
        parts: tuple[str, ...] = (),
    ) -> None:
        super().__init_subclass__()
        if not kernel:
            return
        kinds: dict[str, str] = cls.__annotations__
        pointers = {name: kind for name, kind in kinds.items() if kind not in ("int", "float", "Ints")}
        plain = {name: kind.removeprefix("Optional") for name, kind in pointers.items()}
        cls.KERNEL, cls.WORDS, cls.RESULT = kernel, words, result
        cls.UPDATES, cls.FAILS, cls.PARTS = updates, fails, parts
        cls.ARGUMENTS, cls.OPERANDS = tuple(kinds), tuple(pointers)
        cls.FLOATS = tuple(name for name, kind in kinds.items() if kind == "float")
        cls.OPTIONAL_RESULTS = tuple(name for name, kind in kinds.items() if kind == "OptionalOut")
        cls.ACCUMULATED = tuple(name for name, kind in plain.items() if kind == "Sum")
        cls._SCRATCH = {name: vars(cls)[name] for name, kind in kinds.items() if kind == "Scratch"}
        for name in cls._SCRATCH:
            delattr(cls, name)
        cls._GIVEN = frozenset(kinds.keys() - cls._SCRATCH.keys())
        cls._REQUIRED = frozenset(name for name in cls._GIVEN if name not in vars(cls))
        read = [name for name, kind in plain.items() if kind in ("In", "InOut", "Sum")]
        cls._READS = (_getter([name for name in read if name not in cls.ACCUMULATED]), _getter(read))
        cls._WRITES = _getter([name for name, kind in plain.items() if kind != "In"])
        KernelCall.KERNELS.append(cls)
        cls.OPCODE = len(KernelCall.KERNELS)

    def __init__(self, **arguments: Any) -> None:
        if not self._REQUIRED <= arguments.keys() <= self._GIVEN:
            wrong = sorted((self._REQUIRED - arguments.keys()) | (arguments.keys() - self._GIVEN))
            raise TypeError(f"{type(self).__name__}: missing or unknown arguments: {', '.join(wrong)}")
        self.__dict__.update(arguments, node="")

    @property
    def reads(self) -> list[Buf]:
        """The buffers whose contents the call reads."""
        accumulates = bool(self.ACCUMULATED) and bool(self.__dict__["accumulate"])
        return [b for b in self._READS[accumulates](self) if b is not None]

    @property
    def writes(self) -> list[Buf]:
        """The buffers that the call writes: results and scratch."""
        return [b for b in type(self)._WRITES(self) if b is not None]

    @property
    def result(self) -> Buf:
        """The result that goes through the epilogue."""
        return cast(Buf, self.__dict__[self.RESULT])

    @result.setter
    def result(self, b: Buf) -> None:
        setattr(self, self.RESULT, b)

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

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        """Set the scratch fields to buffers that `temp` makes of a dtype and a shape."""
        for name, needed in self._SCRATCH.items():
            setattr(self, name, temp(needed.dtype, (max(1, needed.size(self)),)))

    def operands(self) -> Iterator[tuple[str, Buf]]:
        """Names and buffers of the operands that are there."""
        for name in self.OPERANDS:
            b = getattr(self, name)
            if b is not None:
                yield name, b

    def arguments(self) -> Iterator[tuple[str, Any]]:
        """Names and values of all arguments, in the order of kernels.def."""
        return ((name, getattr(self, name)) for name in self.ARGUMENTS)

    def shared(self, kind: type[KernelCall]) -> dict[str, Any]:
        """The arguments with names that arguments of `kind` have, too, but for its scratch."""
        return {name: value for name, value in self.arguments() if name in kind._GIVEN}

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
        call.__dict__.update(self.__dict__)
        call.__dict__.pop("position", None)
        return call

    def moved(self, change: Callable[[Buf], Buf], node: str) -> Self:
        """A copy for `node` that has `change(b)` in the place of each operand `b`."""
        call = copy(self)
        call.node = node
        call.map_operands(change)
        return call

    def without(self, names: Iterable[str]) -> Self:
        """A copy without these optional operands."""
        call = copy(self)
        for name in names:
            setattr(call, name, None)
        return call

    def __repr__(self) -> str:
        return f"{self.KERNEL}({', '.join(f'{name}={getattr(self, name, None)!r}' for name in self.ARGUMENTS)})"


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction of a generated function's last result: `op` (REDUCE_...) over the middle axis of [-1, n, inner].

    The back end computes it in chunks. A chunk is whole planes of [n, inner]. If `n` is 0, a chunk's rows of [inner]
    make one partial sum.
    """

    op: int
    n: int
    inner: int


@dataclass(eq=False, slots=True)
class ElementwiseCall:
    """A generated function: outs[k] = roots[k](*ins), element by element over `shape`.

    All results of an element are computed before one is stored: an output may be an input's place. With a `reduction`,
    the last output holds the reduced last root. The root itself is stored only if it has an output, too.
    """

    shape: tuple[int, ...]
    ins: list[Buf]
    outs: list[Buf]
    roots: list[Expr]
    node: str
    reduction: Reduction | None = None
    checked: ClassVar[Sequence[Buf]] = ()
    position: int = field(default=-1, init=False, repr=False)
    """Position in the `Program`, as of a `KernelCall`."""

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
