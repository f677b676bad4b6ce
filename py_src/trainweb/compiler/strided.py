"""Products read and write transposed, split and joined tensors where they lie, instead of copies of them.

A `gemm_f32` takes any strides: the copy that a Transpose, Split or Concat makes is left out where only products
read its result, or where a product makes what it moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from trainweb.compiler.lower import ARENA, Buf, Instruction, KernelCall, Storage
from trainweb.model.graph import ITEM_SIZE
from trainweb.ops.op import contiguous_strides

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
        old = g[p]
        g[f"{p}_batch"], g[f"{p}_row"] = strides[:2], strides[2]
        if p != "c":
            g[f"{p}_col"] = strides[3]
        g[p] = place
        call.reads = [place if r is old else r for r in call.reads]
        call.writes = [place if w is old else w for w in call.writes]


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

    def strides_of(self, loops: tuple[tuple[int, int], ...]) -> list[int] | None:
        """Strides in the sparse tensor for loops over the dense one; None where a loop does not map to a stride."""
        spans = contiguous_strides(self.dims)
        result = []
        for size, stride in loops:
            if size == 1 or stride == 0:
                result.append(0)
                continue
            for dim, span, target in zip(self.dims, spans, self.strides, strict=True):
                if stride % span == 0 and stride * (size - 1) < span * dim:
                    result.append(stride // span * target)
                    break
            else:
                return None
        return result

    def offset_of(self, index: int) -> int:
        """Element of the sparse tensor where element `index` of the dense one lies."""
        at = self.offset
        for dim, target in zip(reversed(self.dims), reversed(self.strides), strict=True):
            at += index % dim * target
            index //= dim
        return at

    def place(self, b: Buf) -> Buf:
        """Where `b`, a part of the dense tensor from some element on, lies in the sparse one."""
        at = self.offset_of((b.shift - self.dense.shift) // FLOAT)
        rest = self.sparse.size - at
        return Buf(self.sparse.storage, "float32", (rest,), None, self.sparse.shift + FLOAT * at, self.sparse.name)


def absorb_copies(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    """Let products use strided tensors directly; copies that nobody reads any more are dropped."""
    slots: list[Instruction | None] = list(instructions)
    kept = {b.storage for b in outputs}
    _read_sources(slots)
    _write_targets(slots, kept)
    _drop_unread(slots, kept)
    return [i for i in slots if i is not None]


def _writers(slots: list[Instruction | None]) -> dict[Storage, list[int]]:
    found: dict[Storage, list[int]] = {}
    for k, i in enumerate(slots):
        for b in i.writes if i is not None else ():
            found.setdefault(b.storage, []).append(k)
    return found


def _readers(slots: list[Instruction | None]) -> dict[Storage, list[int]]:
    found: dict[Storage, list[int]] = {}
    for k, i in enumerate(slots):
        for b in i.reads if i is not None else ():
            found.setdefault(b.storage, []).append(k)
    return found


def _is(i: Instruction | None, kernel: str) -> bool:
    return isinstance(i, KernelCall) and i.kernel == kernel


def _read_sources(slots: list[Instruction | None]) -> None:
    """Products read what a copy was made of, through any number of copies."""
    writers = _writers(slots)
    for k, call in enumerate(slots):
        if not isinstance(call, KernelCall) or call.kernel != GEMM:
            continue
        for pointer in ("a", "b"):
            while True:
                b = call.args[pointer]
                made = writers.get(b.storage, [])
                if len(made) != 1 or made[0] >= k or not _is(slots[made[0]], COPY):
                    break
                copy: Any = slots[made[0]]
                move = Move.of(copy, "dst", "src")
                if move is None or any(made[0] < w < k for w in writers.get(move.sparse.storage, [])):
                    break
                operand = Operand.of(call, pointer)
                strides = move.strides_of(operand.loops)
                # Packing needs one direction in order.
                if strides is None or (1 not in strides[2:] and min(size for size, _ in operand.loops[2:]) > 1):
                    break
                operand.store(call, strides, move.place(b))


def _write_targets(slots: list[Instruction | None], kept: set[Storage]) -> None:
    """A product whose result is only copied elsewhere is stored there."""
    for k, call in enumerate(slots):
        if not isinstance(call, KernelCall) or call.kernel != GEMM or call.args["accumulate"]:
            continue
        while True:
            writers, readers = _writers(slots), _readers(slots)
            c = call.args["c"]
            after = [r for r in readers.get(c.storage, []) if r > k]
            if (
                c.storage in kept or c.storage.segment != ARENA or len(after) != 1
                or writers[c.storage] != [k] or not _is(slots[after[0]], COPY)
            ):  # fmt: skip
                break
            copy: Any = slots[after[0]]
            move = Move.of(copy, "src", "dst")
            if move is None or not move.dense.same_place(Buf(c.storage, "float32", (c.size,), None, c.shift)):
                break
            target = move.sparse.storage
            early = [x for x in (*readers.get(target, []), *writers.get(target, [])) if x < after[0] and x != k]
            operand = Operand.of(call, "c")
            strides = move.strides_of(operand.loops)
            unread = all(not any(r.storage is target for r in slots[x].reads) for x in early if slots[x])  # type: ignore[union-attr]
            if strides is None or not unread or target.segment != ARENA:
                break
            if strides[3] != 1 and call.args["n"] > 1:
                if strides[2] != 1:
                    break
                _transpose(call)
                strides[2], strides[3] = strides[3], strides[2]
            operand.store(call, strides, move.place(c))
            slots[after[0]] = None


def _transpose(call: KernelCall) -> None:
    """Compute the transposed product: c' = b' a'."""
    g = call.args
    g["m"], g["n"] = g["n"], g["m"]
    g["a"], g["b"], g["a_batch"], g["b_batch"] = g["b"], g["a"], g["b_batch"], g["a_batch"]
    a, b = (g["a_row"], g["a_col"]), (g["b_row"], g["b_col"])
    (g["a_col"], g["a_row"]), (g["b_col"], g["b_row"]) = b, a
    g["bias_row"], g["bias_col"] = g["bias_col"], g["bias_row"]


def _drop_unread(slots: list[Instruction | None], kept: set[Storage]) -> None:
    while True:
        readers = _readers(slots)
        dead = [
            k for k, i in enumerate(slots)
            if _is(i, COPY) and i is not None and i.writes[0].storage.segment == ARENA
            and i.writes[0].storage not in kept and i.writes[0].storage not in readers
        ]  # fmt: skip
        if not dead:
            return
        for k in dead:
            slots[k] = None
