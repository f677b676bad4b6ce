"""A kernel of a plan for the GPU: the text of a shader, and the numbers that one dispatch of it is given.

Two dispatches with one text share a pipeline. Sizes, strides and offsets are numbers of a uniform block. The text has
only what changes the form of the code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, prod

from trainweb.backend.webgpu.functions import with_functions
from trainweb.errors import UnsupportedError
from trainweb.ir.instructions import Buf, Storage
from trainweb.ir.layout import ARENA, SEGMENT_NAMES, STATE
from trainweb.model.graph import ITEM_SIZE

MOST_GROUPS = 65535
"""Workgroups along an axis of a grid that every device has."""
UNIFORM_BYTES = 256
"""Bytes of a dispatch's numbers: the alignment of dynamic offsets that every device has."""
UNIFORM_BINDING, STATUS_BINDING = 16, 17
"""The bindings of the numbers and of the status; a segment's binding is its number."""
LANES = 64
"""Invocations of a workgroup."""
WORD = 4

HEAD = """@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u,
        @builtin(local_invocation_index) lane: u32) {{
  if (status.x != 0u) {{ return; }}
  let block = group.x + group.y * groups.x;
"""


class NoKernelError(UnsupportedError):
    """A call is beyond its template: `str(error)` says how."""


def grid_of(blocks: int) -> tuple[int, int, int]:
    """A grid of at least so many workgroups, which the shader counts as `block`."""
    if blocks <= MOST_GROUPS:
        return max(blocks, 1), 1, 1
    rows = ceil(blocks / MOST_GROUPS)
    return ceil(blocks / rows), rows, 1


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a kernel: its segment as an array of words, and the name of the number that is its first word."""

    segment: str
    start: str
    dtype: str

    def word(self, at: str) -> str:
        """A word as bits."""
        return f"{self.segment}[u.{self.start} + {at}]"

    def load(self, at: str) -> str:
        """An element: f32, i32, u32 or bool."""
        if self.dtype == "float32":
            return f"bitcast<f32>({self.word(at)})"
        if self.dtype == "int64":
            return f"bitcast<i32>({self.word(f'2u * ({at})')})"
        if self.dtype in ("bool", "uint8"):
            byte = f"((u.{self.start} * 4u) + {at})"
            value = f"(({self.segment}[{byte} >> 2u] >> (8u * ({byte} & 3u))) & 255u)"
            return f"({value} != 0u)" if self.dtype == "bool" else value
        return self.word(at) if self.dtype == "uint32" else f"bitcast<i32>({self.word(at)})"

    def store(self, at: str, value: str) -> str:
        """The statement that stores an element of whole words."""
        if self.dtype == "int64":
            low = f"{self.word(f'2u * ({at})')} = bitcast<u32>({value});"
            return f"{low} {self.word(f'2u * ({at}) + 1u')} = bitcast<u32>(({value}) >> 31u);"
        return f"{self.word(at)} = bitcast<u32>({value});"


class Kernel:
    """One dispatch.

    Parameters
    ----------
    name
        The template, for `explain` and for errors.
    lanes
        Invocations of a workgroup.
    """

    def __init__(self, name: str, lanes: int = LANES) -> None:
        self.name, self.lanes = name, lanes
        self.grid = (1, 1, 1)
        self.scratch: list[Storage] = []
        self.shared: Kernel | None = None
        """The same for devices with fast workgroup memory."""
        self._numbers: dict[str, tuple[str, float | Buf]] = {}
        self._segments: set[int] = set()
        self.operands: list[Buf] = []
        self._declared: list[str] = []
        self._code: list[str] = []

    # Numbers and operands.

    def count(self, name: str, value: int) -> str:
        """A number >= 0 of this dispatch."""
        return self._number(name, "u32", value)

    def signed(self, name: str, value: int) -> str:
        """An integer of this dispatch."""
        return self._number(name, "i32", value)

    def real(self, name: str, value: float) -> str:
        """A float32 of this dispatch."""
        return self._number(name, "f32", value)

    def _number(self, name: str, kind: str, value: float) -> str:
        self._numbers[name] = (kind, value)
        if len(self._numbers) > UNIFORM_BYTES // WORD:
            raise NoKernelError(f"it takes more than {UNIFORM_BYTES // WORD} numbers")
        return f"u.{name}"

    def operand(self, name: str, b: Buf, *, is_raw: bool = False) -> Operand:
        """A tensor that the kernel reads or writes; of any type if only its words are read."""
        if not is_raw and b.dtype not in ("float32", "int64", "int32", "uint32", "bool", "uint8"):
            raise NoKernelError(f"a {b.dtype} tensor")
        if b.storage.segment == STATE:
            raise NoKernelError("a tensor of the session's state")
        if b.shift % WORD:
            raise NoKernelError("a tensor that starts within a word")
        self._number(name, "u32", 0)
        self._numbers[name] = ("u32", b)
        self._segments.add(b.storage.segment)
        self.operands.append(b)
        return Operand(SEGMENT_NAMES[b.storage.segment], name, b.dtype)

    def partial(self, name: str, size: int) -> tuple[Operand, Buf]:
        """Room in the arena for so many float32 numbers, which no other kernel overwrites meanwhile."""
        b = Buf(Storage(ARENA, WORD * size), "float32", (size,), name="temp")
        self.scratch.append(b.storage)
        return self.operand(name, b), b

    # Code.

    def declare(self, text: str) -> None:
        """Add a declaration before the main function, once."""
        if text not in self._declared:
            self._declared.append(text)

    def add(self, *lines: str) -> None:
        """Add lines to the main function."""
        self._code += lines

    def elements(self, count: int, name: str = "elements") -> None:
        """Run an invocation for each of so many elements: `i` is its number."""
        self.grid = grid_of(ceil(count / self.lanes))
        self.add(f"let i = block * {self.lanes}u + lane;", f"if (i >= {self.count(name, count)}) {{ return; }}")

    def blocks(self, count: int, name: str = "blocks") -> None:
        """Run a workgroup for each of so many blocks: `block` is its number."""
        self.grid = grid_of(count)
        self.add(f"if (block >= {self.count(name, count)}) {{ return; }}")

    def text(self) -> str:
        """The WGSL of the shader."""
        fields = ", ".join(f"{name}: {kind}" for name, (kind, _) in self._numbers.items())
        segments = "\n".join(
            f"@group(0) @binding({s}) var<storage, read_write> {SEGMENT_NAMES[s]}: array<u32>;"
            for s in sorted(self._segments)
        )
        body = "\n".join(f"  {line}" for line in self._code)
        text = "\n".join([*self._declared, HEAD.format(lanes=self.lanes) + body + "\n}\n"])
        block = (
            f"struct Numbers {{ {fields} }}\n@group(0) @binding({UNIFORM_BINDING}) var<uniform> u: Numbers;\n"
            f"@group(0) @binding({STATUS_BINDING}) var<uniform> status: vec4u;"
        )
        return f"{block}\n{segments}\n{with_functions(text)}"

    def uniforms(self) -> bytes:
        """The numbers, once the operands are placed."""
        data = b"".join(_packed(kind, value) for kind, value in self._numbers.values())
        return data.ljust(UNIFORM_BYTES, b"\0")


def _packed(kind: str, value: float | Buf) -> bytes:
    if isinstance(value, Buf):
        value = ((value.storage.offset or 0) + value.shift) // WORD
    return struct.pack({"u32": "<I", "i32": "<i", "f32": "<f"}[kind], value)


def position_in(k: Kernel, dims: Iterable[int], prefix: str = "d") -> Callable[[str], list[str]]:
    """Statements that split the number of an element into its place along each axis: `d0`, `d1` and so on."""
    sizes = [k.count(f"{prefix}_size{axis}", n) for axis, n in enumerate(dims)]

    def split(i: str) -> list[str]:
        lines = [f"var {prefix}_rest = {i};"]
        for axis in range(len(sizes) - 1, 0, -1):
            lines += [
                f"let {prefix}{axis} = {prefix}_rest % {sizes[axis]};",
                f"{prefix}_rest = {prefix}_rest / {sizes[axis]};",
            ]
        return [*lines, f"let {prefix}0 = {prefix}_rest;"]

    return split


def elements_of(b: Buf) -> int:
    """Number of elements of a tensor."""
    return prod(b.shape)


def words_of(b: Buf) -> int:
    """Words that a tensor takes, the last one perhaps in part."""
    return ceil(b.size * ITEM_SIZE[b.dtype] / WORD)
