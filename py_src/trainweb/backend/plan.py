"""Plans: what a back end makes of a program, and its engine loads and runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trainweb.ir.program import Recomputation
from trainweb.model.lazy import LazyTensor, Place, pieces_of


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """The segment of constants: bytes, and behind them, at their offsets, tensors that lie in files."""

    data: bytes
    large: tuple[tuple[int, LazyTensor], ...]

    def __len__(self) -> int:
        return max((offset + tensor.nbytes for offset, tensor in self.large), default=len(self.data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and (self.data, self._places()) == (other.data, other._places())

    def __hash__(self) -> int:
        return hash((self.data, tuple(self._places())))

    def _places(self) -> list[tuple[int, Place | None]]:
        return [(offset, tensor.place) for offset, tensor in self.large]

    def pieces(self) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """All that is to be written, with its offsets."""
        if self.data:
            yield 0, self.data
        for start, tensor in self.large:
            yield from ((start + at, piece) for at, piece in pieces_of(tensor))


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
    """A node of a plan that keeps every float tensor.

    Attributes
    ----------
    name, op : str
        The node as errors name it, and its operator.
    inputs, outputs : list of str
        Its float tensors, which are among the plan's outputs.
    is_chosen : bool
        True if one of its attributes is infinite, which makes its results intended.
    is_state : bool
        True if it updates gradients or parameters.
    chooses : bool
        True if it may leave out NaN and infinities on purpose.
    is_rectifier : bool
        True if its result is zero where a unit does not fire.
    unit_axis : int or None
        The axis of its result that counts units, where the operator says so.
    """

    name: str
    op: str
    inputs: list[str]
    outputs: list[str]
    is_chosen: bool
    is_state: bool
    chooses: bool
    is_rectifier: bool
    unit_axis: int | None


@dataclass(slots=True)
class Plan:
    """A compiled graph for one input signature: relocatable and free of Python objects.

    Only the back end reads `words` and `code`. Of backend/wasm, `words` has segment bases 0, which a session fills in,
    and `code` is the module of generated functions (empty without any).
    """

    words: bytes
    constants: Constants
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
    """Of a plan that keeps all: what it computes, in order."""

    def disassemble(self) -> str:
        """One line per instruction: number, kernel, operands as segment+offset, node."""
        return "\n".join(f"{k:4d}  {line}" for k, line in enumerate(self.text))
