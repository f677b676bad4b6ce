"""WebAssembly functions for elementwise expressions: a small assembler and a code generator.

A generated function is `(args: i32, lo: i32, hi: i32) -> ()`. `args` is the address of 32-bit words:
addresses of the inputs, then of the outputs, then `inner`, then the outer dims (all but the first), then
for each input its strides (in elements) along the outer dims. The function computes rows [lo, hi); a row is
`inner` elements. Without outer dims ("flat") [lo, hi) are elements and `inner` is not used.

A function that reduces has one chunk of the executor in [lo, hi) and, last, the words of `REDUCTION`. It hands its last
result, which is in the thread's scratch memory if it is not stored, to kernels.v_reduce.

float32, int32 and bool are computed four lanes at a time; expressions with other dtypes one element at a time.
Functions such as exp are computed for a strip of a row at a time, in place in the thread's scratch memory: first the
arguments of all that read inputs alone, then those functions, then the arguments of the next, and last the results.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trainweb.ir.expr import COMPARISONS, MATH, UNARY_MATH, Expr, size_of, walk

I32, I64, F32, F64, V128 = 0x7F, 0x7E, 0x7D, 0x7C, 0x7B
ITEM = {"float32": 4, "int32": 4, "int64": 8, "float64": 8, "bool": 1, "uint8": 1}
SCALAR_TYPE = {"float32": F32, "int32": I32, "bool": I32, "uint8": I32, "int64": I64, "float64": F64}
STRIP = 256
"""Elements whose functions are computed together: strips of a few of them stay in the first cache."""
REDUCTION = ("grain", "unit", "results", "n", "inner", "op")
"""Rows in a chunk, elements of a row, values that a chunk is reduced to, and the numbers of `Reduction`."""
UNROLL_BELOW = 8
"""Bodies with fewer operations than this are unrolled four times: more would spill registers."""

_F32 = {
    "add": 0x92,
    "sub": 0x93,
    "mul": 0x94,
    "div": 0x95,
    "min": 0x96,
    "max": 0x97,
    "abs": 0x8B,
    "neg": 0x8C,
    "ceil": 0x8D,
    "floor": 0x8E,
    "nearest": 0x90,
    "sqrt": 0x91,
    "eq": 0x5B,
    "ne": 0x5C,
    "lt": 0x5D,
    "gt": 0x5E,
    "le": 0x5F,
    "ge": 0x60,
}
_F64 = {
    "add": 0xA0,
    "sub": 0xA1,
    "mul": 0xA2,
    "div": 0xA3,
    "min": 0xA4,
    "max": 0xA5,
    "abs": 0x99,
    "neg": 0x9A,
    "ceil": 0x9B,
    "floor": 0x9C,
    "nearest": 0x9E,
    "sqrt": 0x9F,
    "eq": 0x61,
    "ne": 0x62,
    "lt": 0x63,
    "gt": 0x64,
    "le": 0x65,
    "ge": 0x66,
}
_I32 = {
    "add": 0x6A,
    "sub": 0x6B,
    "mul": 0x6C,
    "and": 0x71,
    "or": 0x72,
    "xor": 0x73,
    "eq": 0x46,
    "ne": 0x47,
    "lt": 0x48,
    "gt": 0x4A,
    "le": 0x4C,
    "ge": 0x4E,
}
_I64 = {
    "add": 0x7C,
    "sub": 0x7D,
    "mul": 0x7E,
    "eq": 0x51,
    "ne": 0x52,
    "lt": 0x53,
    "gt": 0x55,
    "le": 0x57,
    "ge": 0x59,
}
_SCALAR = {"float32": _F32, "float64": _F64, "int32": _I32, "bool": _I32, "uint8": _I32, "int64": _I64}
_VF32 = {
    "add": 228,
    "sub": 229,
    "mul": 230,
    "div": 231,
    "min": 232,
    "max": 233,
    "abs": 224,
    "neg": 225,
    "sqrt": 227,
    "ceil": 103,
    "floor": 104,
    "nearest": 106,
    "eq": 65,
    "ne": 66,
    "lt": 67,
    "gt": 68,
    "le": 69,
    "ge": 70,
}
_VI32 = {
    "add": 174,
    "sub": 177,
    "mul": 181,
    "min": 182,
    "max": 184,
    "abs": 160,
    "neg": 161,
    "eq": 55,
    "ne": 56,
    "lt": 57,
    "gt": 59,
    "le": 61,
    "ge": 63,
}
_VMASK = {"and": 78, "or": 80, "xor": 81, "not": 77, "eq": 55, "ne": 56}


def leb(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    """Signed LEB128."""
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        done = (value == 0 and not byte & 0x40) or (value == -1 and byte & 0x40)
        out.append(byte if done else byte | 0x80)
        if done:
            return bytes(out)


@dataclass(frozen=True, slots=True)
class Signature:
    """What one generated function computes; equal signatures share one function.

    `steps[i]` is 1 where input i advances along a row and 0 where it is one value per row (or, flat, one value in all).
    """

    in_dtypes: tuple[str, ...]
    steps: tuple[int, ...]
    out_dtypes: tuple[str, ...]
    roots: tuple[Expr, ...]
    n_outer: int
    reduces: bool = False
    stored: bool = True
    """Whether the last root has an output; that of a reduction follows."""

    def n_words(self) -> int:
        """Words after the addresses, but for those of a reduction."""
        if self.n_outer == 0:
            return 0
        return 1 + (self.n_outer - 1) + self.n_outer * len(self.in_dtypes)


class _Body:
    """Instructions and locals of one function."""

    def __init__(self, n_params: int) -> None:
        self.code = bytearray()
        self.n_params = n_params
        self.local_types: list[int] = []

    def local(self, kind: int) -> int:
        self.local_types.append(kind)
        return self.n_params + len(self.local_types) - 1

    def op(self, *parts: int | bytes) -> None:
        for part in parts:
            self.code += part if isinstance(part, bytes) else bytes([part])

    def simd(self, opcode: int, *parts: int | bytes) -> None:
        self.op(0xFD, leb(opcode), *parts)

    def get(self, index: int) -> None:
        self.op(0x20, leb(index))

    def set(self, index: int) -> None:
        self.op(0x21, leb(index))

    def tee(self, index: int) -> None:
        self.op(0x22, leb(index))

    def i32(self, value: int) -> None:
        self.op(0x41, sleb(value))

    def load_word(self, base: int, word: int) -> None:
        self.get(base)
        self.op(0x28, 2, leb(4 * word))

    def encode(self) -> bytes:
        groups: list[tuple[int, int]] = []
        for kind in self.local_types:
            if groups and groups[-1][1] == kind:
                groups[-1] = (groups[-1][0] + 1, kind)
            else:
                groups.append((1, kind))
        head = leb(len(groups)) + b"".join(leb(n) + bytes([k]) for n, k in groups)
        body = head + bytes(self.code) + b"\x0b"
        return leb(len(body)) + body


def emit_module(signatures: Sequence[Signature]) -> bytes:
    """A module that exports `f0, f1, ...`, one per signature.

    It imports `env.memory` as a private one; an engine with shared memory rewrites the import.
    """
    found = {x.op for s in signatures for x in walk(s.roots)}
    used = [m for m in MATH if m in found]
    types = (
        b"\x60\x03\x7f\x7f\x7f\x00",
        b"\x60\x01\x7b\x01\x7b",
        b"\x60\x02\x7b\x7b\x01\x7b",
        b"\x60\x02\x7f\x7f\x00",
        b"\x60\x00\x01\x7f",
        b"\x60\x06" + 6 * b"\x7f" + b"\x00",
    )
    kinds = {m: (1, 3) if m in UNARY_MATH else (2, 0) for m in used}
    imports = {m: kinds[m][0] for m in used} | {f"{m}_n": kinds[m][1] for m in used}
    if any(s.reduces for s in signatures):
        imports["reduce"] = 5
    if imports:
        imports["scratch"] = 4
    entries = [_name("env") + _name("memory") + b"\x02\x00\x00"]
    entries += [_name("kernels") + _name(f"v_{name}") + b"\x00" + leb(kind) for name, kind in imports.items()]
    functions = b"".join(leb(0) for _ in signatures)
    exports = b"".join(_name(f"f{k}") + b"\x00" + leb(len(imports) + k) for k in range(len(signatures)))
    numbers = {name: k for k, name in enumerate(imports)}
    code = b"".join(_function(s, numbers) for s in signatures)
    return (
        b"\x00asm\x01\x00\x00\x00"
        + _section(1, leb(len(types)) + b"".join(types))
        + _section(2, leb(len(entries)) + b"".join(entries))
        + _section(3, leb(len(signatures)) + functions)
        + _section(7, leb(len(signatures)) + exports)
        + _section(10, leb(len(signatures)) + code)
    )


def _name(text: str) -> bytes:
    raw = text.encode()
    return leb(len(raw)) + raw


def _section(number: int, content: bytes) -> bytes:
    return bytes([number]) + leb(len(content)) + content


def vectorizable(signature: Signature) -> bool:
    """Whether every operation has a four-lane form."""
    dtypes = {"float32", "int32", "bool", "uint8"}
    return all(x.dtype in dtypes and (x.op != "div" or x.dtype == "float32") for x in walk(signature.roots))


def _stages(roots: Sequence[Expr]) -> list[list[Expr]]:
    """The functions in `roots`: those whose arguments need no other, then those that need only these, and so on."""
    depth: dict[int, int] = {}
    stages: list[list[Expr]] = []
    stack = list(roots)
    while stack:
        x = stack[-1]
        waits = [a for a in x.args if id(a) not in depth]
        stack += waits
        if waits:
            continue
        stack.pop()
        if id(x) in depth:
            continue
        below = max((depth[id(a)] for a in x.args), default=0)
        depth[id(x)] = below + (x.op in MATH)
        if x.op in MATH:
            stages.extend([] for _ in range(below + 1 - len(stages)))
            stages[below].append(x)
    return stages


class _Generator:
    """Emits the loops of one function."""

    def __init__(self, s: Signature, imports: dict[str, int]) -> None:
        self.s, self.imports = s, imports
        self.b = _Body(3)
        self.n_in = len(s.in_dtypes)
        self.n_addresses = self.n_in + len(s.roots) - (not s.stored) + s.reduces
        self.rows = [self.b.local(I32) for _ in range(self.n_in + len(s.roots))]
        self.bases = self.rows if s.n_outer == 0 else [self.b.local(I32) for _ in self.rows]
        self.index = self.b.local(I32)
        self.end = self.b.local(I32)
        self.uses = self._count_uses()
        self.vector_locals: dict[int, int] = {}
        self.scalar_locals: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.held_vectors: dict[int, int] = {}
        self.constants: dict[int, int] = {}
        self.strips: dict[int, int] = {}
        self.stages = _stages(s.roots) if vectorizable(s) else []
        self.origin = 0
        self.splats: dict[int, int] = {}
        self.scalars: dict[int, int] = {}

    def _count_uses(self) -> dict[int, int]:
        uses: dict[int, int] = {}
        stack = list(self.s.roots)
        while stack:
            x = stack.pop()
            uses[id(x)] = uses.get(id(x), 0) + 1
            if uses[id(x)] == 1:
                stack.extend(x.args)
        return uses

    def function(self) -> bytes:
        for k, base in enumerate(self.bases):
            self.b.load_word(0, k)
            self.b.set(base)
        if self.s.reduces:
            self._find_block()
        if vectorizable(self.s):
            self._hold_constants()
        if self.s.n_outer == 0:
            self._flat()
        else:
            self._row_loop()
        if self.s.reduces:
            self._reduce()
        return self.b.encode()

    def _hold_constants(self) -> None:
        """In locals: V8 takes three instructions for a v128.const wherever one stands."""
        for x in walk(self.s.roots):
            if x.op == "const":
                pattern = "<4f" if x.dtype == "float32" else "<4i"
                value = x.imm if x.dtype != "bool" else -int(bool(x.imm))
                self.b.simd(12, struct.pack(pattern, *([value] * 4)))
                self.b.set(self._local(self.constants, id(x), V128))

    def _word(self, name: str) -> None:
        self.b.load_word(0, self.n_addresses + self.s.n_words() + REDUCTION.index(name))

    def _skipped(self) -> None:
        """Bytes of the last result before the chunk."""
        self.b.get(1)
        self._word("unit")
        self.b.op(0x6C)
        self.b.i32(2)
        self.b.op(0x74)

    def _find_block(self) -> None:
        """Where the last result of the chunk is to lie."""
        b, base = self.b, self.bases[-1]
        self.block = b.local(I32)
        if self.s.stored:
            b.get(base)
            self._skipped()
            b.op(0x6A)
            b.set(self.block)
        else:
            b.op(0x10, leb(self.imports["scratch"]))
            b.i32(4 * STRIP * sum(len(x.args) for stage in self.stages for x in stage))  # the strips lie before
            b.op(0x6A)
            b.tee(self.block)
            self._skipped()
            b.op(0x6B)
            b.set(base)

    def _reduce(self) -> None:
        """v_reduce(block, y + 4 * results * (lo / grain), (hi - lo) * unit, n, inner, op)."""
        b = self.b
        b.get(self.block)
        b.load_word(0, self.n_addresses - 1)
        b.get(1)
        self._word("grain")
        b.op(0x6E)
        self._word("results")
        b.op(0x6C)
        b.i32(2)
        b.op(0x74, 0x6A)
        b.get(2)
        b.get(1)
        b.op(0x6B)
        self._word("unit")
        b.op(0x6C)
        for name in ("n", "inner", "op"):
            self._word(name)
        b.op(0x10, leb(self.imports["reduce"]))

    def _flat(self) -> None:
        self._hoist()
        self.b.get(1)
        self.b.set(self.index)
        self.b.get(2)
        self.b.set(self.end)
        self._loops()

    def _row_loop(self) -> None:
        b, s = self.b, self.s
        row, rest, coordinate, inner = (b.local(I32) for _ in range(4))
        first = self.n_addresses
        b.load_word(0, first)
        b.set(inner)
        b.get(1)
        b.set(row)
        b.op(0x02, 0x40, 0x03, 0x40)
        b.get(row)
        b.get(2)
        b.op(0x4F, 0x0D, 1)
        for k in range(len(self.rows)):
            b.get(self.bases[k])
            if k >= self.n_in:
                b.get(row)
                b.get(inner)
                b.op(0x6C)
                b.i32(ITEM[s.out_dtypes[k - self.n_in]])
                b.op(0x6C, 0x6A)
            b.set(self.rows[k])
        b.get(row)
        b.set(rest)
        for d in range(s.n_outer - 1, -1, -1):
            b.get(rest)
            if d > 0:
                b.load_word(0, first + d)
                b.op(0x70)
                b.set(coordinate)
                b.get(rest)
                b.load_word(0, first + d)
                b.op(0x6E)
                b.set(rest)
            else:
                b.set(coordinate)
            for k in range(self.n_in):
                b.get(self.rows[k])
                b.get(coordinate)
                b.load_word(0, first + 1 + (s.n_outer - 1) + k * s.n_outer + d)
                b.op(0x6C)
                b.i32(ITEM[s.in_dtypes[k]])
                b.op(0x6C, 0x6A)
                b.set(self.rows[k])
        self._hoist()
        b.i32(0)
        b.set(self.index)
        b.get(inner)
        b.set(self.end)
        self._loops()
        b.get(row)
        b.i32(1)
        b.op(0x6A)
        b.set(row)
        b.op(0x0C, 0, 0x0B, 0x0B)

    def _hoist(self) -> None:
        # An input that does not advance is loaded once per row.
        for k in range(self.n_in):
            if self.s.steps[k] == 0:
                kind = SCALAR_TYPE[self.s.in_dtypes[k]]
                if k not in self.scalars:
                    self.scalars[k] = self.b.local(kind)
                self.b.get(self.rows[k])
                self._load_scalar(self.s.in_dtypes[k])
                self.b.set(self.scalars[k])
                if vectorizable(self.s):
                    if k not in self.splats:
                        self.splats[k] = self.b.local(V128)
                    self.b.get(self.scalars[k])
                    if self.s.in_dtypes[k] == "bool":
                        self.b.i32(0)
                        self.b.op(0x47)
                        self.b.i32(-1)
                        self.b.op(0x6C)
                    self.b.simd(19 if self.s.in_dtypes[k] == "float32" else 17)
                    self.b.set(self.splats[k])

    def _loops(self) -> None:
        if self.stages:
            self._strips()
        elif vectorizable(self.s):
            self._vector_loops(self.s.roots, self._vector_body)
        self._loop(1, self._scalar_body)

    def _vector_loops(self, roots: Sequence[Expr], body: Callable[[int], None]) -> None:
        """Loops over four vectors at a time, if that does not spill registers, and over what is left."""
        if size_of(roots, self.strips) < UNROLL_BELOW:

            def four() -> None:
                for unroll in range(4):
                    body(unroll)

            self._loop(16, four)
        self._loop(4, lambda: body(0))

    def _strips(self) -> None:
        b = self.b
        scratch, start, last, count = (b.local(I32) for _ in range(4))
        self.origin = b.local(I32)
        b.op(0x10, leb(self.imports["scratch"]))
        b.set(scratch)
        b.get(self.end)
        b.set(last)
        b.op(0x02, 0x40, 0x03, 0x40)
        b.get(self.index)
        b.tee(start)
        b.i32(4)
        b.op(0x6A)
        b.get(last)
        b.op(0x4A, 0x0D, 1)  # start + 4 > last: leave
        b.get(last)
        b.get(start)
        b.op(0x6B)
        b.i32(-4)
        b.op(0x71)
        b.tee(count)
        b.i32(STRIP)
        b.get(count)
        b.i32(STRIP)
        b.op(0x48, 0x1B)  # the smaller one
        b.tee(count)
        b.get(start)
        b.op(0x6A)
        b.set(self.end)
        b.get(scratch)
        b.get(start)
        b.i32(2)
        b.op(0x74, 0x6B)
        b.set(self.origin)
        n_strips = 0
        for stage in self.stages:
            at = {id(x): n_strips + sum(len(y.args) for y in stage[:k]) for k, x in enumerate(stage)}
            arguments = [argument for x in stage for argument in x.args]
            self._vector_loops(arguments, partial(self._arguments, stage, at))
            for x in stage:
                for k in range(len(x.args)):
                    b.get(scratch)
                    b.i32(4 * STRIP * (at[id(x)] + k))
                    b.op(0x6A)
                b.get(count)
                b.op(0x10, leb(self.imports[f"{x.op}_n"]))
            self.strips |= at
            n_strips += sum(len(x.args) for x in stage)
            b.get(start)
            b.set(self.index)
        self._vector_loops(self.s.roots, self._vector_body)
        b.op(0x0C, 0, 0x0B, 0x0B)
        b.get(last)
        b.set(self.end)
        self.strips = {}

    def _arguments(self, stage: Sequence[Expr], at: dict[int, int], unroll: int) -> None:
        done: set[int] = set()
        for x in stage:
            for k, argument in enumerate(x.args):
                self._strip_address()
                self._vector(argument, unroll, done)
                self.b.simd(11, 2, leb(4 * STRIP * (at[id(x)] + k) + 16 * unroll))

    def _strip_address(self) -> None:
        self.b.get(self.origin)
        self.b.get(self.index)
        self.b.i32(2)
        self.b.op(0x74, 0x6A)

    def _loop(self, step: int, body: Callable[[], None]) -> None:
        b = self.b
        b.op(0x02, 0x40, 0x03, 0x40)
        b.get(self.index)
        b.i32(step)
        b.op(0x6A)
        b.get(self.end)
        b.op(0x4A, 0x0D, 1)  # index + step > end: leave
        body()
        b.get(self.index)
        b.i32(step)
        b.op(0x6A)
        b.set(self.index)
        b.op(0x0C, 0, 0x0B, 0x0B)

    def _address(self, buffer: int, dtype: str) -> None:
        self.b.get(self.rows[buffer])
        self.b.get(self.index)
        if ITEM[dtype] > 1:
            self.b.i32({4: 2, 8: 3}[ITEM[dtype]])
            self.b.op(0x74)
        self.b.op(0x6A)

    # Four lanes.

    def _vector_body(self, unroll: int) -> None:
        done: set[int] = set()
        self._results(
            lambda root: self._vector(root, unroll, done),
            lambda k: self._local(self.held_vectors, k, V128),
            lambda root, dtype: self._vector_store(root, dtype, unroll),
        )

    def _results(
        self, compute: Callable[[Expr], None], local: Callable[[int], int], store: Callable[[Expr, str], None]
    ) -> None:
        """Compute every result, and only then store: one may take the place of an operand of another."""
        *first, last = range(len(self.s.roots))
        for k in first:
            compute(self.s.roots[k])
            self.b.set(local(k))
        for k in (last, *first):
            self._address(self.n_in + k, self.s.out_dtypes[k])
            if k == last:
                compute(self.s.roots[k])
            else:
                self.b.get(local(k))
            store(self.s.roots[k], self.s.out_dtypes[k])

    def _vector_store(self, root: Expr, dtype: str, unroll: int) -> None:
        if ITEM[dtype] == 4:
            self.b.simd(11, 2, leb(16 * unroll))
            return
        if root.dtype == "bool":
            self.b.simd(12, struct.pack("<4i", 1, 1, 1, 1))
            self.b.simd(78)
        # Byte 0 of each lane, gathered in the low 32 bits.
        spare = self._local(self.vector_locals, -1, V128)
        self.b.tee(spare)
        self.b.get(spare)
        self.b.simd(13, bytes([0, 4, 8, 12, *([0] * 12)]))
        self.b.simd(90, 0, leb(4 * unroll), 0)

    def _local(self, table: dict[int, int], key: int, kind: int) -> int:
        if key not in table:
            table[key] = self.b.local(kind)
        return table[key]

    def _vector(self, x: Expr, unroll: int, done: set[int]) -> None:
        b = self.b
        if x.op == "const":
            b.get(self.constants[id(x)])
            return
        if x.op == "input" and self.s.steps[int(x.imm or 0)] == 0:
            b.get(self.splats[int(x.imm or 0)])
            return
        if id(x) in done:
            b.get(self.vector_locals[id(x)])
            return
        if id(x) in self.strips:
            self._strip_address()
            b.simd(0, 2, leb(4 * STRIP * self.strips[id(x)] + 16 * unroll))
            return
        self._vector_op(x, unroll, done)
        if self.uses[id(x)] > 1:
            b.tee(self._local(self.vector_locals, id(x), V128))
            done.add(id(x))

    def _vector_op(self, x: Expr, unroll: int, done: set[int]) -> None:
        b = self.b
        if x.op == "input":
            self._vector_load(int(x.imm or 0), x.dtype, unroll)
            return
        if x.op == "select":
            for a in (x.args[1], x.args[2], x.args[0]):
                self._vector(a, unroll, done)
            b.simd(82)
            return
        if x.op in ("pmin", "pmax") and x.dtype == "float32":
            # pmin(a, b) = b < a ? b : a and pmax(a, b) = a < b ? b : a.
            for a in x.args:
                self._vector(a, unroll, done)
            b.simd(234 if x.op == "pmin" else 235)
            return
        for a in x.args:
            self._vector(a, unroll, done)
        if x.op == "cast":
            self._vector_cast(x.args[0].dtype, x.dtype)
        else:
            op = {"pmin": "min", "pmax": "max"}.get(x.op, x.op)
            source = x.args[0].dtype
            table = _VF32 if source == "float32" else _VMASK if source == "bool" else _VI32
            b.simd(table[op])
            if x.dtype == "uint8" and x.op in ("add", "sub", "mul", "neg"):
                b.simd(12, struct.pack("<4i", 255, 255, 255, 255))
                b.simd(78)

    def _vector_load(self, k: int, dtype: str, unroll: int) -> None:
        b = self.b
        self._address(k, dtype)
        if ITEM[dtype] == 4:
            b.simd(0, 2, leb(16 * unroll))
            return
        b.simd(92, 0, leb(4 * unroll))
        b.simd(137)
        b.simd(169)
        if dtype == "bool":
            b.simd(12, bytes(16))
            b.simd(56)

    def _vector_cast(self, source: str, target: str) -> None:
        b = self.b
        if target == "bool":
            b.simd(12, bytes(16))
            b.simd(66 if source == "float32" else 56)
        elif source == "bool":
            one = struct.pack("<4f", 1, 1, 1, 1) if target == "float32" else struct.pack("<4i", 1, 1, 1, 1)
            b.simd(12, one)
            b.simd(78)
        elif target == "float32":
            b.simd(250)
        else:
            if source == "float32":
                b.simd(248)
            if target == "uint8":
                b.simd(12, struct.pack("<4i", 255, 255, 255, 255))
                b.simd(78)

    # One element.

    def _load_scalar(self, dtype: str) -> None:
        opcode, align = {
            "float32": (0x2A, 2),
            "int32": (0x28, 2),
            "int64": (0x29, 3),
            "float64": (0x2B, 3),
            "bool": (0x2D, 0),
            "uint8": (0x2D, 0),
        }[dtype]
        self.b.op(opcode, align, 0)
        if dtype == "bool":
            self.b.i32(0)
            self.b.op(0x47)

    def _scalar_body(self) -> None:
        done: set[int] = set()
        self._results(
            lambda root: self._scalar(root, done),
            lambda k: self._local(self.held, k, SCALAR_TYPE[self.s.out_dtypes[k]]),
            lambda _, dtype: self._scalar_store(dtype),
        )

    def _scalar_store(self, dtype: str) -> None:
        opcode, align = {4: (0x36, 2), 8: (0x37, 3), 1: (0x3A, 0)}[ITEM[dtype]]
        self.b.op(opcode + 2 * dtype.startswith("float"), align, 0)

    def _scalar(self, x: Expr, done: set[int]) -> None:
        b = self.b
        if x.op == "const":
            self._scalar_const(x)
            return
        if x.op == "input" and self.s.steps[int(x.imm or 0)] == 0:
            b.get(self.scalars[int(x.imm or 0)])
            return
        if id(x) in done:
            b.get(self.scalar_locals[id(x)])
            return
        self._scalar_op(x, done)
        if self.uses[id(x)] > 1:
            b.tee(self._local(self.scalar_locals, id(x), SCALAR_TYPE[x.dtype]))
            done.add(id(x))

    def _scalar_const(self, x: Expr) -> None:
        assert x.imm is not None
        value = x.imm  # which may be -0.0
        if x.dtype == "float32":
            self.b.op(0x43, struct.pack("<f", value))
        elif x.dtype == "float64":
            self.b.op(0x44, struct.pack("<d", value))
        elif x.dtype == "int64":
            self.b.op(0x42, sleb(int(value)))
        else:
            self.b.i32(int(value))

    def _scalar_op(self, x: Expr, done: set[int]) -> None:
        b = self.b
        if x.op == "input":
            self._address(int(x.imm or 0), x.dtype)
            self._load_scalar(x.dtype)
            return
        if x.op == "select":
            for a in (x.args[1], x.args[2], x.args[0]):
                self._scalar(a, done)
            b.op(0x1B)
            return
        if x.op in MATH:
            for a in x.args:
                self._scalar(a, done)
                b.simd(19)
            b.op(0x10, leb(self.imports[x.op]))
            b.simd(31, 0)
            return
        integer = x.args[0].dtype not in ("float32", "float64")
        if x.op in ("pmin", "pmax") or (integer and x.op in ("min", "max")):
            self._scalar_choice(x, done)
            return
        if integer and x.op in ("div", "neg", "abs", "not"):
            self._scalar_integer(x, done)
            return
        for a in x.args:
            self._scalar(a, done)
        if x.op == "cast":
            self._scalar_cast(x.args[0].dtype, x.dtype)
            return
        b.op(_SCALAR[x.args[0].dtype][x.op])
        self._wrap_byte(x)

    def _wrap_byte(self, x: Expr) -> None:
        if x.dtype == "uint8" and x.op not in COMPARISONS:
            self.b.i32(255)
            self.b.op(0x71)

    def _operands(self, x: Expr, done: set[int]) -> list[int]:
        """Locals that hold the operands of `x`."""
        locals_ = []
        for k, a in enumerate(x.args):
            self._scalar(a, done)
            local = self._local(self.scalar_locals, -((id(x) << 2) + k + 1), SCALAR_TYPE[a.dtype])
            self.b.set(local)
            locals_.append(local)
        return locals_

    def _scalar_choice(self, x: Expr, done: set[int]) -> None:
        a, c = self._operands(x, done)
        b, table = self.b, _SCALAR[x.dtype]
        b.get(c)
        b.get(a)
        if x.op.endswith("min"):
            b.get(c)
            b.get(a)
        else:
            b.get(a)
            b.get(c)
        b.op(table["lt"], 0x1B)

    def _scalar_integer(self, x: Expr, done: set[int]) -> None:
        b, wide = self.b, x.args[0].dtype == "int64"
        zero = bytes([0x42, 0]) if wide else bytes([0x41, 0])
        sub, lt, div, eqz = (0x7D, 0x53, 0x7F, 0x50) if wide else (0x6B, 0x48, 0x6D, 0x45)
        if x.op == "not":
            self._scalar(x.args[0], done)
            b.op(0x45)
            return
        if x.op == "neg":
            b.op(zero)
            self._scalar(x.args[0], done)
            b.op(sub)
            self._wrap_byte(x)
            return
        operands = self._operands(x, done)
        if x.op == "abs":
            b.op(zero)
            b.get(operands[0])
            b.op(sub)
            b.get(operands[0])
            b.get(operands[0])
            b.op(zero, lt, 0x1B)
            return
        # Division by 0 and MIN / -1 would trap: x / 0 is 0 and x / -1 is 0 - x.
        kind = I64 if wide else I32
        minus_one = bytes([0x42, 0x7F]) if wide else bytes([0x41, 0x7F])
        b.get(operands[1])
        b.op(eqz, 0x04, kind, zero, 0x05)
        b.get(operands[1])
        b.op(minus_one, 0x51 if wide else 0x46, 0x04, kind, zero)
        b.get(operands[0])
        b.op(sub, 0x05)
        b.get(operands[0])
        b.get(operands[1])
        b.op(div, 0x0B, 0x0B)
        self._wrap_byte(x)

    def _scalar_cast(self, source: str, target: str) -> None:
        b = self.b
        if target == "bool":
            zero = {
                "float32": b"\x43" + bytes(4),
                "float64": b"\x44" + bytes(8),
                "int64": b"\x42\x00",
            }.get(source, b"\x41\x00")
            b.op(zero, _SCALAR[source]["ne"])
            return
        kinds = (SCALAR_TYPE[source], SCALAR_TYPE[target])
        conversions: dict[tuple[int, int], bytes] = {
            (F32, F64): b"\xbb",
            (F64, F32): b"\xb6",
            (I32, F32): b"\xb2",
            (I64, F32): b"\xb4",
            (I32, F64): b"\xb7",
            (I64, F64): b"\xb9",
            (I32, I64): b"\xac",
            (I64, I32): b"\xa7",
            (F32, I32): b"\xfc\x00",
            (F64, I32): b"\xfc\x02",
            (F32, I64): b"\xfc\x04",
            (F64, I64): b"\xfc\x06",
        }
        if kinds[0] != kinds[1]:
            b.op(conversions[kinds])
        if target == "uint8":
            b.i32(255)
            b.op(0x71)


def _function(signature: Signature, imports: dict[str, int]) -> bytes:
    return _Generator(signature, imports).function()
