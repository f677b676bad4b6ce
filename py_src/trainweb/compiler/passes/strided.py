"""Products read and write transposed, split and joined tensors where they lie, instead of copies of them.

A `gemm_f32` takes any strides: the copy that a Transpose, Split or Concat makes is left out where only products
read its result, or where a product makes what it moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from trainweb.ir.layout import ARENA
from trainweb.ir.program import Buf, Instruction, KernelCall, Storage
from trainweb.ir.shapes import contiguous_strides
from trainweb.model.graph import ITEM_SIZE

GEMM, COPY = "gemm_f32", "strided_copy"
FLOAT = ITEM_SIZE["float32"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A product's operand as (size, stride) per loop; `names` are where the strides stand in the arguments."""

    pointer: str
    loops: tuple[tuple[int, int], ...]

    @staticmethod
    def of(call: KernelCall, pointer: str) -> Operand:
        """Operand `a`, `b` or `c` of a call."""
        g = call.args
        rows = {"a": (g["m"], g["a_row"]), "b": (g["k"], g["b_row"]), "c": (g["m"], g["c_row"])}[pointer]
        columns = {"a": (g["k"], g["a_col"]), "b": (g["n"], g["b_col"]), "c": (g["n"], 1)}[pointer]
        batch = zip(g["batch"], g[f"{pointer}_batch"], strict=True)
        return Operand(pointer, (*batch, rows, columns))

    def store(self, call: KernelCall, strides: list[int], place: Buf) -> None:
        """Let the operand of `call` be `place` with these strides."""
        p, g = self.pointer, call.args
        g[f"{p}_batch"], g[f"{p}_row"] = tuple(strides[:2]), strides[2]
        if p != "c":
            g[f"{p}_col"] = strides[3]
        g[p] = place


@dataclass(frozen=True, slots=True)
class Move:
    """A strided copy between a tensor that lies in order (`dense`) and one that does not (`sparse`)."""

    dense: Buf
    sparse: Buf
    dims: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @staticmethod
    def of(call: KernelCall, dense: str, sparse: str) -> Move | None:
        """The move of a strided copy whose side `dense` ("src" or "dst") is complete and in order, or None."""
        g = call.args
        kept = [k for k, d in enumerate(g["dims"]) if d != 1]
        kept.sort(key=lambda k: -g[f"{dense}_strides"][k])
        dims = tuple(g["dims"][k] for k in kept)
        if g["size"] != FLOAT or g[f"{dense}_offset"] or prod(dims) != g[dense].size:
            return None
        if tuple(g[f"{dense}_strides"][k] for k in kept) != contiguous_strides(dims):
            return None
        strides = tuple(g[f"{sparse}_strides"][k] for k in kept)
        if any(s < 0 for s in strides):
            return None
        return Move(g[dense], g[sparse], dims, g[f"{sparse}_offset"], strides)

    def strides_of(self, loops: tuple[tuple[int, int], ...], b: Buf) -> list[int] | None:
        """Strides in the sparse tensor for loops over the dense one from where `b` starts, or None.

        Each loop must go along one dim, and all of them together must stay within every dim.
        """
        spans = contiguous_strides(self.dims)
        room = [dim - 1 - at for dim, at in zip(self.dims, self._coordinates(b), strict=True)]
        result = []
        for size, stride in loops:
            if size == 1 or stride == 0:
                result.append(0)
                continue
            for k, (span, target) in enumerate(zip(spans, self.strides, strict=True)):
                if stride % span == 0 and stride // span * (size - 1) <= room[k]:
                    room[k] -= stride // span * (size - 1)
                    result.append(stride // span * target)
                    break
            else:
                return None
        return result

    def _coordinates(self, b: Buf) -> list[int]:
        """Where in the dense tensor its part `b` starts."""
        index = (b.shift - self.dense.shift) // FLOAT
        return [index // span % dim for span, dim in zip(contiguous_strides(self.dims), self.dims, strict=True)]

    def place(self, b: Buf) -> Buf:
        """Where `b`, a part of the dense tensor from some element on, lies in the sparse one."""
        at = self.offset + sum(c * s for c, s in zip(self._coordinates(b), self.strides, strict=True))
        rest = self.sparse.size - at
        return Buf(self.sparse.storage, "float32", (rest,), None, self.sparse.shift + FLOAT * at, self.sparse.name)


def absorb_copies(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    """Let products use strided tensors directly; copies that nobody reads any more are dropped."""
    return _Absorber(instructions, outputs).run()


class _Absorber:
    def __init__(self, instructions: list[Instruction], outputs: list[Buf]) -> None:
        self.slots: list[Instruction | None] = list(instructions)
        self.kept = {b.storage for b in outputs}
        self.readers: dict[Storage, set[int]] = {}
        self.writers: dict[Storage, set[int]] = {}
        for k in range(len(instructions)):
            self._note(k)

    def _note(self, k: int) -> None:
        i = self.slots[k]
        assert i is not None
        for b in i.reads:
            self.readers.setdefault(b.storage, set()).add(k)
        for b in i.writes:
            self.writers.setdefault(b.storage, set()).add(k)

    def _forget(self, k: int) -> None:
        i = self.slots[k]
        assert i is not None
        for b in i.reads:
            self.readers[b.storage].discard(k)
        for b in i.writes:
            self.writers[b.storage].discard(k)

    def _store(self, k: int, call: KernelCall, operand: Operand, strides: list[int], place: Buf) -> None:
        self._forget(k)
        operand.store(call, strides, place)
        self._note(k)

    def _remove(self, k: int) -> None:
        self._forget(k)
        self.slots[k] = None

    def _is(self, k: int, kernel: str) -> bool:
        i = self.slots[k]
        return isinstance(i, KernelCall) and kernel == i.KERNEL

    def run(self) -> list[Instruction]:
        """The instructions that are left."""
        products = [k for k in range(len(self.slots)) if self._is(k, GEMM)]
        for k in products:
            for pointer in ("a", "b"):
                while self._read_source(k, pointer):
                    pass
        for k in products:
            while self._write_target(k):
                pass
        self._drop_unread()
        return [i for i in self.slots if i is not None]

    def _read_source(self, k: int, pointer: str) -> bool:
        """Let product `k` read what the copy before it was made of; False where it cannot."""
        call: Any = self.slots[k]
        made = self.writers.get(call.args[pointer].storage, set())
        if len(made) != 1 or min(made) >= k or not self._is(min(made), COPY):
            return False
        at = min(made)
        copy: Any = self.slots[at]
        move = Move.of(copy, "dst", "src")
        if move is None or any(at < w < k for w in self.writers.get(move.sparse.storage, ())):
            return False
        operand = Operand.of(call, pointer)
        strides = move.strides_of(operand.loops, call.args[pointer])
        # Packing needs one direction in order.
        if strides is None or (1 not in strides[2:] and min(size for size, _ in operand.loops[2:]) > 1):
            return False
        self._store(k, call, operand, strides, move.place(call.args[pointer]))
        return True

    def _write_target(self, k: int) -> bool:
        """Let product `k` store its result where the only reader, a copy, would move it; False where it cannot."""
        call: Any = self.slots[k]
        c = call.args["c"]
        after = [r for r in self.readers.get(c.storage, ()) if r > k]
        if (
            call.args["accumulate"]
            or c.storage in self.kept
            or c.storage.segment != ARENA
            or len(after) != 1
            or self.writers[c.storage] != {k}
            or not self._is(after[0], COPY)
        ):
            return False
        copy: Any = self.slots[after[0]]
        move = Move.of(copy, "src", "dst")
        if move is None or not move.dense.same_place(Buf(c.storage, "float32", (c.size,), None, c.shift)):
            return False
        target = move.sparse.storage
        operand = Operand.of(call, "c")
        strides = move.strides_of(operand.loops, c)
        if strides is None or target.segment != ARENA or self._read_before(target, after[0]):
            return False
        if self._overwritten(target, k, after[0]):
            return False
        if strides[3] != 1 and call.args["n"] > 1:
            if strides[2] != 1:
                return False
            _transpose(call)
            strides[2], strides[3] = strides[3], strides[2]
        self._store(k, call, operand, strides, move.place(c))
        self._remove(after[0])
        return True

    def _read_before(self, target: Storage, k: int) -> bool:
        # A product names its result among its reads, though it only writes it.
        for r in self.readers.get(target, ()):
            i = self.slots[r]
            if r < k and not (isinstance(i, KernelCall) and i.KERNEL == GEMM and i.args["c"].storage is target):
                return True
        return False

    def _overwritten(self, target: Storage, k: int, at: int) -> bool:
        # Parts that other copies and products put beside this one are disjoint; a fill of the whole is not.
        between = [w for w in self.writers.get(target, ()) if k < w < at]
        return not all(any(self._is(w, part) for part in (GEMM, COPY, "copy")) for w in between)

    def _drop_unread(self) -> None:
        for k in range(len(self.slots) - 1, -1, -1):
            i = self.slots[k]
            if i is not None and self._is(k, COPY):
                out = i.writes[0].storage
                if out.segment == ARENA and out not in self.kept and not self.readers.get(out):
                    self._remove(k)


def _transpose(call: KernelCall) -> None:
    """Compute the transposed product: c' = b' a'."""
    g = call.args
    g["m"], g["n"] = g["n"], g["m"]
    g["a"], g["b"], g["a_batch"], g["b_batch"] = g["b"], g["a"], g["b_batch"], g["a_batch"]
    a, b = (g["a_row"], g["a_col"]), (g["b_row"], g["b_col"])
    (g["a_col"], g["a_row"]), (g["b_col"], g["b_row"]) = b, a
    g["bias_row"], g["bias_col"] = g["bias_col"], g["bias_row"]
