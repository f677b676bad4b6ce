"""Plans: what a back end makes of a program, and its engine loads and runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trainweb.ir.program import Recomputation
from trainweb.model.lazy import LazyTensor, Place, nbytes_of, pieces_of

SEEN = "seen"
"""Prefix of the words that tell for which parameters results were cached. New words are zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class LargeConstants:
    """The segment of large constants: bytes, or tensors that lie in files, at their offsets.

    Their order depends only on their names, so that plans with the same constants have equal segments.
    """

    parts: tuple[tuple[int, bytes | memoryview | LazyTensor], ...] = ()

    def __len__(self) -> int:
        return max((offset + nbytes_of(part) for offset, part in self.parts), default=0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LargeConstants) or len(self.parts) != len(other.parts):
            return False
        pairs = zip(self.parts, other.parts, strict=True)
        return all(at == its and _contents(a) == _contents(b) for (at, a), (its, b) in pairs)

    __hash__ = None  # type: ignore[assignment]

    def pieces(self) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """All that is to be written, with its offsets."""
        for start, part in self.parts:
            if isinstance(part, LazyTensor):
                yield from ((start + at, piece) for at, piece in pieces_of(part))
            else:
                yield start, part


def _contents(part: bytes | memoryview | LazyTensor) -> bytes | memoryview | Place | None:
    return part.place if isinstance(part, LazyTensor) else part


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Place of a named tensor in a plan's segments."""

    name: str
    segment: int
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """A node of a plan that keeps every float tensor."""

    name: str
    op: str
    """The node as errors name it, and its operator."""
    inputs: list[str]
    outputs: list[str]
    """Its float tensors, which are among the plan's outputs."""
    is_chosen: bool
    """True if one of its attributes is infinite, which makes its results intended."""
    is_state: bool
    """True if it updates gradients or parameters."""
    chooses: bool
    """True if it may leave out NaN and infinities on purpose."""
    is_rectifier: bool
    """True if its result is zero where a unit does not fire."""
    unit_axis: int | None
    """The axis of its result that counts units, where the operator says so."""


@dataclass(slots=True)
class GpuBody:
    """The part of a plan that runs on a GPU; docs/architecture-webgpu.md describes the format."""

    texts: list[str]
    """The WGSL of each pipeline."""
    uniforms: bytes
    """Blocks of 256 bytes: the numbers of dispatches, equal ones once."""
    windows: list[tuple[tuple[int, int, int, int, str], ...]]
    """The windows of dispatches, equal ones once: binding, segment, offset, bytes, name of the largest tensor."""
    dispatches: bytes
    """Six uint32 of each: pipeline, grid x, y and z, block of numbers, windows."""
    tiled: bytes
    """The same dispatches for devices with fast workgroup memory."""
    few: bytes
    """The same dispatches for software: workgroups of few invocations."""
    arena_bytes: int
    """Size of the GPU's arena."""
    constants: bytes
    large: LargeConstants
    """Contents of the segments of constants on the GPU."""
    inputs: dict[str, TensorPlace]
    outputs: dict[str, TensorPlace]
    """Places of feeds and results on the GPU."""
    uploads: list[tuple[int, int, int]]
    """What the head makes for the body: offset in the head's arena, offset in the GPU's arena, bytes."""
    downloads: list[tuple[int, int, int]]
    """What the body makes for the tail: offset in the GPU's arena, offset in the head's arena, bytes. Without any there
    is no tail.
    """
    nodes: list[str]
    text: list[str]
    """By dispatch, the node it came from, and a line of `explain`."""
    work: list[int]
    """By dispatch, its operations, roughly: a page submits many of them apart."""
    turns: int = 0
    """Offset in the head's arena of two bytes: whether the head runs, and whether the tail does."""


@dataclass(slots=True)
class Plan:
    """A compiled graph for one input signature: relocatable and free of Python objects.

    Only the back end reads `words` and `code`. Of backend/wasm, `words` has segment bases 0, which a session fills in,
    and `code` is the module of generated functions (empty without any).
    """

    words: bytes
    constants: bytes
    large: LargeConstants
    code: bytes
    n_functions: int
    arena_bytes: int
    inputs: dict[str, TensorPlace]
    outputs: dict[str, TensorPlace]
    nodes: list[str] = field(default_factory=list)
    """Per instruction, the node it came from."""
    text: list[str] = field(default_factory=list)
    flops: int = 0
    """Operations of products and convolutions, two for each multiplication."""
    recomputation: Recomputation = field(default_factory=lambda: Recomputation(0))
    prepared_bytes: int = 0
    """Size of the segment of kept values; new, it holds zeros."""
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Values that the plan keeps in that segment: offset and bytes by key."""
    inspected_nodes: list[InspectedNode] = field(default_factory=list)
    """The results in order, for a plan that keeps all."""
    target: str = "wasm"
    """The back end that runs it."""
    body: GpuBody | None = None
    """The GPU's part of a plan; `words` are the head that runs before it."""

    def disassemble(self) -> str:
        """One line per instruction: number, kernel, operands as segment+offset, node."""
        return "\n".join(f"{k:4d}  {line}" for k, line in enumerate(self.text))


@dataclass(eq=False, slots=True)
class LoadedPlan:
    """A plan in a host's memory. Only the back end reads the addresses."""

    plan: Plan
    ptr: int
    constants: int
    large: int
    code_base: int
