"""A kernel of a plan for the GPU: the text of a shader, and the numbers that one dispatch of it is given."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, update_wrapper
from math import ceil, prod
from typing import Any, TypeVar

from trainweb.backend.webgpu.functions import with_functions
from trainweb.backend.webgpu.windows import Window, windows_of
from trainweb.errors import UnsupportedError
from trainweb.ir.instructions import Buf, Instruction, Storage
from trainweb.ir.layout import ARENA, SEGMENT_NAMES, STATE

MOST_GROUPS = 65535
"""Workgroups along an axis of a grid that every device has."""
UNIFORM_BYTES = 256
"""Bytes of a dispatch's numbers: the alignment of dynamic offsets that every device has."""
UNIFORM_BINDING, STATUS_BINDING = 16, 17
"""The bindings of the numbers and of the status; a segment's binding is its number."""
LANES = 64
"""Invocations of a workgroup."""
FEWER = 16
"""Factor by which a software adapter gets fewer: it runs four at once, and pays for each four at a barrier."""
WORD = 4
NUMBER, OPERAND = re.compile(r"\bu\.(\w+)"), re.compile(r"@(at_\w+)")
SIGNED = ("center", "dst_offset", "dst_strides", "ignore_index", "pad", "pad_end", "src_offset", "src_strides")
"""Fields of calls that may be negative."""
LEAST = {"u32": 0, "i32": -(2**31), "f32": -(2**31)}
FORMATS = {"u32": "<I", "i32": "<i", "f32": "<f"}

HEAD = """@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u,
        @builtin(local_invocation_index) lane: u32) {{
  if (status.x != 0u) {{ return; }}
  let u = u;
  let block = group.x + group.y * groups.x;
"""

Number = tuple[str, float | Buf]
"""The type of a number in shaders, and its value; of a tensor, the place of its first word."""


class NoKernelError(UnsupportedError):
    """A call is beyond its template: `str(error)` says how."""


def grid_of(blocks: int) -> tuple[int, int, int]:
    """A grid of at least so many workgroups, which the shader counts as `block`."""
    rows = ceil(max(blocks, 1) / MOST_GROUPS)
    return ceil(max(blocks, 1) / rows), rows, 1


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a kernel: the name of the number that is its first word; `@NAME` is the array of words it lies in."""

    start: str
    dtype: str

    def word(self, at: str) -> str:
        """A word as bits."""
        return f"@{self.start}[u.{self.start} + {at}]"

    def __getitem__(self, at: str) -> str:
        """An element: f32, i32, u32 or bool."""
        if self.dtype == "float32":
            return f"bitcast<f32>({self.word(at)})"
        if self.dtype == "int64":
            return f"bitcast<i32>({self.word(f'2u * ({at})')})"
        if self.dtype in ("bool", "uint8", "int8"):
            byte = f"((u.{self.start} * 4u) + {at})"
            value = f"((@{self.start}[{byte} >> 2u] >> (8u * ({byte} & 3u))) & 255u)"
            texts = {"bool": f"({value} != 0u)", "int8": f"((bitcast<i32>({value}) << 24u) >> 24u)"}
            return texts.get(self.dtype, value)
        return self.word(at) if self.dtype == "uint32" else f"bitcast<i32>({self.word(at)})"

    def store(self, at: str, value: str) -> str:
        """The statement that stores an element of whole words."""
        if self.dtype == "int64":
            low = f"{self.word(f'2u * ({at})')} = bitcast<u32>({value});"
            return f"{low} {self.word(f'2u * ({at}) + 1u')} = bitcast<u32>(({value}) >> 31u);"
        return f"{self.word(at)} = bitcast<u32>({value});"


class Kernel:
    """One dispatch of a call, with so many lanes in a workgroup. `name` is the template, for `explain` and errors."""

    def __init__(self, name: str, call: Any, lanes: int = LANES, is_few: bool = False) -> None:
        self.name, self.call, self.whole, self.is_few = name, call, lanes, is_few
        self.lanes = lanes // FEWER if is_few else lanes
        self.grid, self.has_blocks = (1, 1, 1), False
        self.rooms: dict[str, Buf] = {}
        """Room in the arena for what the dispatches leave to each other."""
        self.shared: Kernel | None = None
        """The same for devices with fast workgroup memory."""
        self.few: Kernel | None = None
        """The same for software: fewer lanes."""
        self.dispatches = [self]
        self._numbers: dict[str, Number] = {}
        self._inherited: dict[str, Number] = {}
        self._declared: list[str] = []
        self._code: list[str] = []
        self._windows: tuple[Window, ...] = ()

    def then(self, name: str, lanes: int = LANES) -> Kernel:
        """A further dispatch of the call, which has the numbers and operands of this one."""
        k = self._twin(name, lanes)
        k.dispatches, k.rooms = self.dispatches, self.rooms
        self.dispatches.append(k)
        return k

    def share(self, name: str, lanes: int = LANES) -> Kernel:
        """The same for devices with fast workgroup memory, with what this one has declared so far."""
        self.shared = self._twin(name, lanes)
        self.shared._declared += self._declared
        return self.shared

    def _twin(self, name: str, lanes: int) -> Kernel:
        k = Kernel(f"{self.name} ({name})", self.call, lanes, self.is_few)
        k._inherited = self._inherited | self._numbers
        return k

    def finished(self) -> list[Kernel]:
        """The dispatches of the call that have code, with the numbers that it names."""
        kernels = [k for k in self.dispatches if k._code]
        for k in [*kernels, *(k.shared for k in kernels if k.shared)]:
            names = dict.fromkeys(NUMBER.findall("\n".join([*k._declared, *k._code])))
            k._numbers = {name: k._number(name) for name in names}
            if len(names) > UNIFORM_BYTES // WORD:
                raise NoKernelError(f"it takes more than {UNIFORM_BYTES // WORD} numbers")
        return kernels

    # Numbers and operands.

    @property
    def operands(self) -> list[Buf]:
        """The tensors that the kernel reads or writes."""
        return [value for _, value in self._numbers.values() if isinstance(value, Buf)]

    def count(self, name: str, value: float | Buf, kind: str = "u32") -> str:
        """A number of this dispatch; for a tensor, the place of its first word."""
        if isinstance(value, int) and not LEAST[kind] <= value < LEAST[kind] + 2**32:
            raise NoKernelError(f"the number {value}")
        known = self._numbers.setdefault(name, (kind, value))
        assert known == (kind, value)
        return f"u.{name}"

    def value(self, name: str) -> int:
        """The value of an integer of this dispatch."""
        value = self._number(name)[1]
        assert isinstance(value, int)
        return value

    def field(self, name: str) -> Any:
        """A field of the call, or one of several numbers of a field."""
        several = name.rstrip("0123456789")
        if hasattr(self.call, name):
            return getattr(self.call, name)
        return getattr(self.call, several)[int(name.removeprefix(several))]

    def _number(self, name: str) -> Number:
        if name in self._inherited:
            self._numbers.setdefault(name, self._inherited[name])
        if name not in self._numbers:
            value, is_signed = self.field(name), name.rstrip("0123456789") in SIGNED
            self.count(name, value, "f32" if isinstance(value, float) else "i32" if is_signed else "u32")
        return self._numbers[name]

    def operand(self, name: str, b: Buf | None = None, *, is_raw: bool = False) -> Operand:
        """A tensor that the kernel reads or writes, a field of the call by default. Of any type if it is raw."""
        b = b or getattr(self.call, name)
        assert isinstance(b, Buf)
        if not is_raw and b.dtype not in ("float32", "int64", "int32", "uint32", "bool", "uint8", "int8"):
            raise NoKernelError(f"a {b.dtype} tensor")
        if b.storage.segment == STATE:
            raise NoKernelError("a tensor of the session's state")
        if b.shift % WORD:
            raise NoKernelError("a tensor that starts within a word")
        start = f"at_{name}"
        self.count(start, b)
        return Operand(start, b.dtype)

    def fields(self, *names: str) -> list[Operand]:
        """Operands that are fields of the call."""
        return [self.operand(name) for name in names]

    def if_given(self, name: str, text: str, at: str) -> str:
        """The text with an element of an optional operand, or nothing."""
        return "" if getattr(self.call, name) is None else text.format(self.operand(name)[at])

    def wanted(self, at: str, /, **values: str) -> list[str]:
        """Statements that store values at a place, by field, where the call has a tensor for them."""
        names = [name for name in values if getattr(self.call, name) is not None]
        return [self.operand(name).store(at, values[name]) for name in names]

    def room(self, name: str, size: int) -> Operand:
        """Room in the arena for so many float32 numbers, for the dispatches of the call."""
        new = Buf(Storage(ARENA, WORD * size), "float32", (size,), name=name)
        return self.operand(name, self.rooms.setdefault(name, new))

    # Code.

    def declare(self, text: str) -> None:
        """Add a declaration before the main function, once."""
        if text not in self._declared:
            self._declared.append(text)

    def add(self, *lines: str) -> None:
        """Add lines to the main function."""
        self._code += lines

    def elements(self, **axes: str) -> None:
        """Run an invocation for each element `i` of some axes: its place along each, by the name of the axis' size."""
        count = prod(self.value(size) for size in axes.values())
        # Folds before this one have room for so many lanes only.
        self.lanes = self.lanes if self._declared else self.whole
        self.grid = grid_of(ceil(count / self.lanes))
        self.add(f"let i = block * {self.lanes}u + lane;", f"if (i >= {self.count('elements', count)}) {{ return; }}")
        self.add(*split("i", **axes))

    def blocks(self, **axes: str) -> None:
        """Run a workgroup for each `block` of some axes: its place along each, by the name of the axis' size."""
        count = prod(self.value(size) for size in axes.values())
        self.grid, self.has_blocks = grid_of(count), True
        self.add(f"if (block >= {self.count('blocks', count)}) {{ return; }}", *split("block", **axes))

    def each_step(self, end: str, *body: str, variable: str = "step", start: str = "lane") -> None:
        """Add a loop in which each lane takes its share of some steps."""
        self.add(f"for (var {variable} = {start}; {variable} < {end}; {variable} += {self.lanes}u) {{", *body, "}")

    def once(self, *lines: str, **results: str) -> None:
        """Run lines by the first lane only, and store results at `block`, by field, where they are wanted."""
        lines += (*self.wanted("block", **results),)
        self.add(*(["if (lane == 0u) {", *lines, "}"] if lines else []))

    def bind(self, sizes: Mapping[int, int]) -> tuple[Window, ...]:
        """Choose windows of segments that are large, once the operands are placed."""
        self._windows = windows_of(self.operands, sizes)
        return self._windows

    def _bound(self, b: Buf) -> tuple[int, int]:
        """The binding of a tensor, and its first word there."""
        segment, at = b.storage.segment, (b.storage.offset or 0) + b.shift
        for w in self._windows:
            if w.segment == segment and w.offset <= at < w.offset + w.nbytes:
                return w.binding, (at - w.offset) // WORD
        return segment, at // WORD

    def text(self) -> str:
        """The WGSL of the shader."""
        fields = ", ".join(f"{name}: {kind}" for name, (kind, _) in self._numbers.items())
        bound = {name: self._bound(b)[0] for name, (_, b) in self._numbers.items() if isinstance(b, Buf)}
        segments = "\n".join(
            f"@group(0) @binding({s}) var<storage, read_write> {SEGMENT_NAMES[s]}: array<u32>;"
            for s in sorted({*bound.values()})
        )
        body = "\n".join(f"  {line}" for line in self._code)
        text = "\n".join([*self._declared, HEAD.format(lanes=self.lanes) + body + "\n}\n"])
        text = OPERAND.sub(lambda operand: SEGMENT_NAMES[bound[operand[1]]], text)
        block = (
            f"struct Numbers {{ {fields} }}\n@group(0) @binding({UNIFORM_BINDING}) var<uniform> u: Numbers;\n"
            f"@group(0) @binding({STATUS_BINDING}) var<uniform> status: vec4u;"
        )
        return f"// {self.name.split()[0]}\n{block}\n{segments}\n{with_functions(text)}"

    def uniforms(self) -> bytes:
        """The numbers, once the operands are placed."""
        numbers = [(kind, self._bound(x)[1] if isinstance(x, Buf) else x) for kind, x in self._numbers.values()]
        return b"".join(struct.pack(FORMATS[kind], value) for kind, value in numbers).ljust(UNIFORM_BYTES, b"\0")


def split(number: str, /, **axes: str) -> list[str]:
    """Statements for the place of an element or a block along each axis, by the name of the axis' size."""
    lines, (first, *others) = [], axes
    for place in reversed(others):
        lines += [f"let {place} = {number} % u.{axes[place]};", f"let {place}_rest = {number} / u.{axes[place]};"]
        number = f"{place}_rest"
    return [*lines, f"let {first} = {number};"]


Fill = TypeVar("Fill", bound=Callable[..., None])
TEMPLATES: dict[type[Instruction], Callable[..., list[Kernel]]] = {}
"""By the kind of a call: it makes the dispatches."""


def template(*kinds: type[Instruction], lanes: int = LANES) -> Callable[[Fill], Fill]:
    """Register a template of some calls: a function that fills a call's first kernel, and adds others by `then`."""

    def register(fill: Fill) -> Fill:
        TEMPLATES.update(dict.fromkeys(kinds, update_wrapper(partial(_kernels, fill, lanes), fill)))
        return fill

    return register


def _kernels(fill: Callable[..., None], lanes: int, call: Instruction) -> list[Kernel]:
    k, few = Kernel(fill.__name__, call, lanes), Kernel(fill.__name__, call, lanes, is_few=True)
    fill(k, call)
    kernels, few.rooms = k.finished(), k.rooms
    if k.rooms or any(one.has_blocks for one in kernels):
        with suppress(NoKernelError):
            fill(few, call)
            for one, other in zip(kernels, few.finished(), strict=True):
                one.few = other
    return kernels
