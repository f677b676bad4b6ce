"""Compiles specs into functions: loops over rows, over strips of a row, over four elements and over one.

Functions such as exp are computed for a strip of a row at a time, in place in the thread's scratch memory. The
arguments of functions that read only inputs come first, then those functions, then the arguments of the next, and last
the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trainweb.backend.wasm.codegen.assembler import I32, Callee, Function, Module
from trainweb.backend.wasm.codegen.expressions import STRIP, Position, Scalar, Vector
from trainweb.backend.wasm.codegen.function_spec import ACCESS_SECTION, FunctionSpec
from trainweb.ir import layout
from trainweb.ir.expr import MATH, UNARY_MATH, Expr, size_of, walk
from trainweb.model.graph import ITEM_SIZE

UNROLL_BELOW = 8
"""Bodies with fewer operations than this are unrolled four times: more would spill registers."""

_GENERATED, _UNARY, _BINARY, _STRIP_OF, _SCRATCH, _REDUCE = (
    ("iii", ""),
    ("v", "v"),
    ("vv", "v"),
    ("ii", ""),
    ("", "i"),
    ("iiiiii", ""),
)
"""Types of functions, operands and results: generated ones; of the kernels those for a vector, for two and for a strip
in place, v_scratch, and v_reduce."""

_ARGS, _LO, _HI = range(3)
"""Parameters of a generated function."""


def emit_module(specs: Sequence[FunctionSpec]) -> bytes:
    """A module that exports `f0, f1, ...`, one per spec.

    It imports `env.memory` as a private one; an engine with shared memory sets the flag for it.
    """
    module = Module()
    for kind in (_GENERATED, _UNARY, _BINARY, _STRIP_OF, _SCRATCH, _REDUCE):
        module.type_index(*kind)
    module.import_memory("env", "memory")
    operations = {x.op for s in specs for x in walk(s.roots)}
    used = [m for m in MATH if m in operations]
    kinds = {m: _UNARY if m in UNARY_MATH else _BINARY for m in used}
    kinds |= {f"{m}_n": _STRIP_OF if m in UNARY_MATH else _GENERATED for m in used}
    if any(s.reduces for s in specs):
        kinds["reduce"] = _REDUCE
    if kinds:
        kinds["scratch"] = _SCRATCH
    functions = {name: module.import_function("kernels", f"v_{name}", *kind) for name, kind in kinds.items()}
    access = b""
    for k, spec in enumerate(specs):
        loops = _Loops(spec, functions)
        module.export(f"f{k}", loops.function())
        access += spec.access(loops.strip_bytes)
    module.custom(ACCESS_SECTION, access)
    return module.encode()


class _Loops:
    """Emits the loops of one function."""

    def __init__(self, s: FunctionSpec, functions: dict[str, Callee]) -> None:
        self.s, self.functions = s, functions
        self.f = f = Function(*_GENERATED)
        self.n_in = len(s.in_dtypes)
        rows = [f.local(I32) for _ in range(self.n_in + len(s.roots))]
        self.bases = rows if s.n_outer == 0 else [f.local(I32) for _ in rows]
        self.at = Position(rows, index=f.local(I32))
        self.end = f.local(I32)
        self.scalar = Scalar(f, s, self.at, functions)
        self.vector = Vector(f, s, self.at, functions, self.scalar) if s.is_vector else None
        self.stages = _stages(s.roots) if self.vector else []
        self.strip_bytes = 4 * STRIP * sum(len(x.args) for stage in self.stages for x in stage)
        self.block = 0

    def function(self) -> Function:
        f = self.f
        for k, base in enumerate(self.bases):
            self._load_word(k)
            f.set(base)
        if self.s.reduces:
            self._find_block()
        if self.vector:
            self.vector.hold_constants()
        if self.s.n_outer == 0:
            self._flat()
        else:
            self._row_loop()
        if self.s.reduces:
            self._reduce()
        return f

    def _load_word(self, word: int) -> None:
        self.f.get(_ARGS)
        self.f.memory("i32.load", 4, 4 * word)

    # Reductions.

    def _load_reduction(self, word: int) -> None:
        self._load_word(self.s.n_addresses + self.s.n_words + word)

    def _skipped(self) -> None:
        """Bytes of the last result before the chunk."""
        self.f.get(_LO)
        self._load_reduction(layout.REDUCTION_UNIT)
        self.f.op("i32.mul")
        self.f.i32_const(2)
        self.f.op("i32.shl")

    def _find_block(self) -> None:
        """Find the place of the chunk's last result."""
        f, base = self.f, self.bases[-1]
        self.block = f.local(I32)
        if self.s.stored:
            f.get(base)
            self._skipped()
            f.op("i32.add")
            f.set(self.block)
        else:
            f.call(self.functions["scratch"])
            f.i32_const(self.strip_bytes)  # the strips lie before
            f.op("i32.add")
            f.tee(self.block)
            self._skipped()
            f.op("i32.sub")
            f.set(base)

    def _reduce(self) -> None:
        """v_reduce(block, y + 4 * results * (lo / grain), (hi - lo) * unit, n, inner, op)."""
        f = self.f
        f.get(self.block)
        self._load_word(self.s.n_addresses - 1)
        f.get(_LO)
        self._load_reduction(layout.REDUCTION_GRAIN)
        f.op("i32.div_u")
        self._load_reduction(layout.REDUCTION_RESULTS)
        f.op("i32.mul")
        f.i32_const(2)
        f.op("i32.shl", "i32.add")
        f.get(_HI, _LO)
        f.op("i32.sub")
        self._load_reduction(layout.REDUCTION_UNIT)
        f.op("i32.mul")
        for word in (layout.REDUCTION_N, layout.REDUCTION_INNER, layout.REDUCTION_OP):
            self._load_reduction(word)
        f.call(self.functions["reduce"])

    # Rows.

    def _flat(self) -> None:
        self._hold()
        self.f.get(_LO)
        self.f.set(self.at.index)
        self.f.get(_HI)
        self.f.set(self.end)
        self._row()

    def _row_loop(self) -> None:
        f, first = self.f, self.s.n_addresses
        row, rest, coordinate, inner = (f.local(I32) for _ in range(4))
        self._load_word(first)
        f.set(inner)
        f.get(_LO)
        f.set(row)
        with f.block() as done, f.loop() as again:
            f.get(row, _HI)
            f.op("i32.ge_u")
            f.br_if(done)
            self._result_rows(row, inner)
            self._operand_rows(row, rest, coordinate)
            self._hold()
            f.i32_const(0)
            f.set(self.at.index)
            f.get(inner)
            f.set(self.end)
            self._row()
            f.get(row)
            f.i32_const(1)
            f.op("i32.add")
            f.set(row)
            f.br(again)

    def _result_rows(self, row: int, inner: int) -> None:
        """Addresses of the row of each result, and of the first row of each input."""
        f = self.f
        for k, address in enumerate(self.at.rows):
            f.get(self.bases[k])
            if k >= self.n_in:
                f.get(row, inner)
                f.op("i32.mul")
                f.i32_const(ITEM_SIZE[self.s.roots[k - self.n_in].dtype])
                f.op("i32.mul", "i32.add")
            f.set(address)

    def _operand_rows(self, row: int, rest: int, coordinate: int) -> None:
        """Move the address of each input to the row, whose coordinates are `row` written in the outer dims."""
        f, n_outer, first = self.f, self.s.n_outer, self.s.n_addresses
        f.get(row)
        f.set(rest)
        for d in range(n_outer - 1, -1, -1):
            f.get(rest)
            if d > 0:
                self._load_word(first + d)
                f.op("i32.rem_u")
                f.set(coordinate)
                f.get(rest)
                self._load_word(first + d)
                f.op("i32.div_u")
                f.set(rest)
            else:
                f.set(coordinate)
            for k in range(self.n_in):
                f.get(self.at.rows[k], coordinate)
                self._load_word(first + n_outer + k * n_outer + d)
                f.op("i32.mul")
                f.i32_const(ITEM_SIZE[self.s.in_dtypes[k]])
                f.op("i32.mul", "i32.add")
                f.set(self.at.rows[k])

    def _hold(self) -> None:
        """Load once per row each input that does not advance along it."""
        for k, step in enumerate(self.s.steps):
            if step == 0:
                self.scalar.hold(k)
                if self.vector:
                    self.vector.hold(k)

    # Elements.

    def _row(self) -> None:
        """Elements [index, end) of the current row."""
        if self.vector:
            if self.stages:
                self._strips(self.vector)
            else:
                self._vector_loops(self.vector, self.s.roots, self.vector.results)
        self._loop(1, self.scalar.results)

    def _vector_loops(self, vector: Vector, roots: Sequence[Expr], body: Callable[[int], None]) -> None:
        """Emit loops over four vectors at a time, if that does not spill registers, and over the rest."""
        if size_of(roots, vector.strips) < UNROLL_BELOW:

            def four() -> None:
                for unroll in range(4):
                    body(unroll)

            self._loop(16, four)
        self._loop(4, lambda: body(0))

    def _loop(self, step: int, body: Callable[[], None]) -> None:
        f, index = self.f, self.at.index
        with f.block() as done, f.loop() as again:
            f.get(index)
            f.i32_const(step)
            f.op("i32.add")
            f.get(self.end)
            f.op("i32.gt_s")
            f.br_if(done)
            body()
            f.get(index)
            f.i32_const(step)
            f.op("i32.add")
            f.set(index)
            f.br(again)

    # Strips.

    def _strips(self, vector: Vector) -> None:
        f, index = self.f, self.at.index
        scratch, start, last, count = (f.local(I32) for _ in range(4))
        vector.origin = f.local(I32)
        f.call(self.functions["scratch"])
        f.set(scratch)
        f.get(self.end)
        f.set(last)
        with f.block() as done, f.loop() as again:
            f.get(index)
            f.tee(start)
            f.i32_const(4)
            f.op("i32.add")
            f.get(last)
            f.op("i32.gt_s")
            f.br_if(done)
            self._begin_strip(vector, scratch, start, last, count)
            n_strips = 0
            for stage in self.stages:
                n_strips += self._stage(vector, stage, n_strips, scratch, count)
                f.get(start)
                f.set(index)
            self._vector_loops(vector, self.s.roots, vector.results)
            f.br(again)
        f.get(last)
        f.set(self.end)
        vector.strips = {}

    def _begin_strip(self, vector: Vector, scratch: int, start: int, last: int, count: int) -> None:
        """count = min(last - start, STRIP), in whole vectors; end = start + count; origin = scratch - 4 * start."""
        f = self.f
        f.get(last, start)
        f.op("i32.sub")
        f.i32_const(-4)
        f.op("i32.and")
        f.tee(count)
        f.i32_const(STRIP)
        f.get(count)
        f.i32_const(STRIP)
        f.op("i32.lt_s")
        f.select()
        f.tee(count)
        f.get(start)
        f.op("i32.add")
        f.set(self.end)
        f.get(scratch, start)
        f.i32_const(2)
        f.op("i32.shl", "i32.sub")
        f.set(vector.origin)

    def _stage(self, vector: Vector, stage: Sequence[Expr], first: int, scratch: int, count: int) -> int:
        """Arguments of the functions of a stage, from strip `first` on, then the functions; returns how many strips."""
        f = self.f
        strips: dict[int, int] = {}
        arguments: list[Expr] = []
        for x in stage:
            strips[id(x)] = first + len(arguments)
            arguments += x.args
        self._vector_loops(vector, arguments, partial(self._arguments, vector, arguments, first))
        for x in stage:
            for k in range(len(x.args)):
                f.get(scratch)
                f.i32_const(4 * STRIP * (strips[id(x)] + k))
                f.op("i32.add")
            f.get(count)
            f.call(self.functions[f"{x.op}_n"])
        vector.strips |= strips
        return len(arguments)

    @staticmethod
    def _arguments(vector: Vector, arguments: Sequence[Expr], first: int, unroll: int) -> None:
        vector.begin(unroll)
        for k, argument in enumerate(arguments):
            vector.store_strip(argument, first + k)


def _stages(roots: Sequence[Expr]) -> list[list[Expr]]:
    """Return the functions in `roots` by stage.

    The arguments of the first stage need no other function, each later stage only needs earlier ones.
    """
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
