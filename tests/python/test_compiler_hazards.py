"""Random instructions that share and overwrite memory: passes and placement keep what they compute.

Operators emit tidier code than this; what no operator emits today, one may tomorrow.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.python import hazard_motifs, pipelines
from tests.python.hazard_motifs import MOTIFS, Motif, MotifKernels, accumulation, attention, pooling, rotary
from tests.python.products import product
from tests.python.test_program import check_index
from tests.python.test_recompute import Restless

from trainweb.backend.base import N_SEGMENTS
from trainweb.backend.memory import place
from trainweb.backend.wasm.compile import compile_program
from trainweb.backend.wasm.engine import get_engine
from trainweb.backend.wasm.host import PlanHost
from trainweb.compiler.context import Cache
from trainweb.compiler.passes.strided import absorb_copies
from trainweb.compiler.pipeline import PASSES, Pass
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA, GRADIENTS, PARAMETERS
from trainweb.ir.program import Program
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.ops.copies import strided_copy, transpose

N_PROGRAMS = 40
"""Per pass."""
N_KINDS = 9
"""Motifs and single instructions of a program, some 20 to 30 instructions in all."""
DIMS = ((6, 4), (4, 6), (24,), (2, 3, 4), (4, 4), (16,), (6, 6), (6,), (4,))
STATE_ELEMENTS = 24
N_PATTERNS = 3
"""Of each kind, in which every place and buffer is tried."""


class RandomProgram:
    """Random instructions over feeds, workspace and state; or one motif, all of whose results are outputs."""

    def __init__(self, seed: int, only: Motif | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = Builder()
        self.builder.node = "random"
        self.feeds = [self.new((6, 4), is_feed=True), self.new((4, 4), is_feed=True), self.new((4,), is_feed=True)]
        self.state = [
            Buf(Storage(segment, 4 * STATE_ELEMENTS, 128 * k), "float32", (STATE_ELEMENTS,), name=f"state{segment}.{k}")
            for segment in (PARAMETERS, GRADIENTS)
            for k in range(2)
        ]
        self.bufs = [*self.feeds, *self.state]
        kinds = 3 * [self.compute] + 2 * [self.product] + [self.move, self.widen, self.total]
        kinds += 2 * [partial(motif, self) for motif in MOTIFS]
        for _ in range(N_KINDS if only is None else 0):
            self.pick(kinds)()
        if only is not None:
            only(self)
        made = [b for b in self.bufs if b.storage.segment == ARENA and not b.storage.is_feed]
        outputs = made if only is not None else [self.pick(made) for _ in range(2)] if made else []
        self.outputs: list[Buf] = []
        for b in outputs:
            self.output(b)

    def output(self, b: Buf) -> None:
        """Let the program return `b`."""
        self.outputs.append(Buf(b.storage, b.dtype, b.shape, None, b.shift, f"out{len(self.outputs)}"))

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def recent(self, items: Sequence[Any]) -> Any:
        return self.pick(items[-3:] if self.rng.random() < 0.6 else items)

    def new(self, shape: tuple[int, ...], is_feed: bool = False) -> Buf:
        storage = Storage(ARENA, 4 * int(np.prod(shape)), is_feed=is_feed)
        return Buf(storage, "float32", shape, name=f"b{int(self.rng.integers(1 << 40))}")

    def part(self, b: Buf, size: int) -> Buf:
        return b.view((size,), int(self.rng.integers(b.size - size + 1)))

    def target(self, shape: tuple[int, ...]) -> Buf:
        """Fresh memory, or some that was used before."""
        size = int(np.prod(shape))
        old = [b for b in self.bufs if not b.storage.is_feed and b.size >= size]
        if old and self.rng.random() < 0.4:
            return self.part(self.recent(old), size).view(shape)
        return self.new(shape)

    def done(self, *written: Buf) -> None:
        """From now on these may be read."""
        known = {b.storage for b in self.bufs}
        self.bufs += [b for b in written if b.storage not in known]

    def compute(self) -> None:
        """An elementwise call; its outputs are its inputs' places or lie clear of them."""
        shape = self.pick(DIMS)
        size = int(np.prod(shape))
        ins: list[Buf] = []
        for _ in range(int(self.rng.integers(1, 4))):
            b = self.recent(self.bufs)
            if b.size >= size and self.rng.random() < 0.8:
                ins.append((b if b.size == size else self.part(b, size)).view(shape))
            elif b.size >= shape[-1]:
                ins.append(self.part(b, shape[-1]))
        if not ins:
            return
        outs: list[Buf] = []
        for _ in range(int(self.rng.integers(1, 4))):
            out = self.pick(ins) if self.rng.random() < 0.2 else self.target(shape)
            clear = all(not out.collides(b) for b in (*ins, *outs)) and not any(out.same_place(o) for o in outs)
            if clear and out.size == size and not out.storage.is_feed:
                outs.append(out.view(shape))
        if outs:
            self.builder.elementwise(outs, ins, lambda e, *xs: tuple(self.expression(e, xs) for _ in outs))
            self.done(*outs)

    def expression(self, e: Emitter, xs: tuple[Expr, ...]) -> Expr:
        pool = list(xs)
        choices: tuple[Callable[[Expr, Expr], Expr], ...] = (
            e.add,
            e.sub,
            e.max,
            lambda a, _: e.pmax(a, e.const(0)),
            lambda a, _: e.mul(a, e.const(0.5)),
            lambda a, _: e.neg(a),
            lambda a, _: e.tanh(a),
        )
        for _ in range(int(self.rng.integers(1, 4))):
            pool.append(self.pick(choices)(self.pick(pool), self.pick(pool)))
        return pool[-1]

    def product(self) -> None:
        m, n, k = self.pick(((6, 4, 4), (4, 4, 6), (1, 4, 6), (4, 6, 4), (6, 6, 1)))
        fitting = [[b for b in self.bufs if b.size >= s] for s in (m * k, k * n, n)]
        a, w = (self.part(self.recent(f), s) for f, s in zip(fitting[:2], (m * k, k * n), strict=True))
        if self.rng.random() < 0.3:
            a = self.scaled(a)
        c = self.target((m, n))
        if c.storage in (a.storage, w.storage):
            return
        bias = self.part(self.pick(fitting[2]), n) if self.rng.random() < 0.2 else None
        if bias is not None and bias.storage is c.storage:
            bias = None
        turned_a, turned_b = self.rng.random(2) < 0.3
        self.emit_product(a, w, c, m, n, k, bias=bias, turned=(bool(turned_a), bool(turned_b)))
        self.done(c)
        if self.rng.random() < 0.6:
            self.follow(c, n)

    def emit_product(
        self, a: Buf, b: Buf, c: Buf, m: int, n: int, k: int, *, bias: Buf | None = None, turned: tuple[bool, bool]
    ) -> None:
        """c[m, n] = a[m, k] b[k, n] + bias[n]; an operand that is turned is stored transposed."""
        self.builder.emit(product(a, b, c, (m, n, k), bias=bias, turned=turned))

    def scaled(self, b: Buf) -> Buf:
        y = self.target(b.shape)
        if y.collides(b):
            return b
        self.builder.elementwise([y], [b], lambda e, x: e.mul(x, e.const(0.5)))
        self.done(y)
        return y

    def follow(self, c: Buf, n: int) -> None:
        """An operation that an epilogue may absorb."""
        y = self.target(c.shape)
        if y.collides(c):
            return
        bias = self.part(self.recent([b for b in self.bufs if b.size >= n]), n)
        if bias.storage is y.storage or bias.storage is c.storage:
            return
        if self.rng.random() < 0.5:
            self.builder.elementwise([y], [c, bias], lambda e, a, b: e.add(a, b))
        else:
            self.builder.elementwise([y], [c], lambda e, a: e.pmax(a, e.const(0)))
        self.done(y)

    def move(self) -> None:
        """A transposed copy."""
        b = self.recent([b for b in self.bufs if b.size in (24, 16)])
        rows = 6 if b.size == 24 else 4
        y = self.target((b.size // rows, rows))
        if y.storage is not b.storage:
            transpose(self.builder, y, b.view((rows, b.size // rows)), (1, 0))
            self.done(y)

    def total(self) -> None:
        """A sum or mean along an axis."""
        b = self.recent([b for b in self.bufs if b.size in (24, 16)])
        outer, n, inner = self.pick(((1, b.size, 1), (4, b.size // 4, 1), (1, 4, b.size // 4), (2, b.size // 4, 2)))
        y = self.target((outer * inner,))
        if y.storage is not b.storage:
            self.builder.emit(calls.Reduce(x=b, y=y, outer=outer, n=n, inner=inner, op=int(self.rng.integers(2))))
            self.done(y)

    def widen(self) -> None:
        """A copy into columns of something that was filled before (or after all, is another part of it)."""
        b = self.recent([b for b in self.bufs if b.size in (24, 16)])
        rows = b.size // 4
        y = self.target((rows, 6))
        if y.storage is b.storage:
            return
        if self.rng.random() < 0.5 or all(y.storage is not known.storage for known in self.bufs):
            self.builder.fill(y, 1.0)
        strided_copy(self.builder, y, b, (rows, 4), (6, 1), (4, 1), out_start=int(self.rng.integers(3)))
        self.done(y)


class Interpreter(MotifKernels):
    """Runs instructions one after the other in float64."""

    def __init__(self, contents: dict[Storage, np.ndarray]) -> None:
        self.contents = contents

    def memory(self, b: Buf) -> np.ndarray:
        item = ITEM_SIZE[b.dtype]
        if b.storage not in self.contents:
            self.contents[b.storage] = np.zeros(b.storage.nbytes // item)
        return self.contents[b.storage][b.shift // item : b.shift // item + b.size]

    def read(self, b: Buf) -> np.ndarray:
        if b.value is not None:
            return np.full(b.shape, b.value[0], np.float64)
        return self.memory(b).reshape(b.shape).copy()

    def run(self, instructions: Sequence[Instruction]) -> None:
        for i in instructions:
            if isinstance(i, ElementwiseCall):
                ins = [self.read(b) for b in i.ins]
                for out, value in [(o, evaluate(r, ins)) for o, r in zip(i.outs, i.roots, strict=True)]:
                    self.memory(out)[:] = np.broadcast_to(value, i.shape).ravel()
            else:
                getattr(self, i.KERNEL)(i)

    def copy(self, g: calls.Copy) -> None:
        self.memory(g.dst)[:] = self.read(g.src).ravel()

    def strided_copy(self, g: calls.StridedCopy) -> None:
        src, dst = self.memory(g.src), self.memory(g.dst)
        for index in np.ndindex(*g.dims):
            dst[g.dst_offset + np.dot(index, g.dst_strides)] = src[g.src_offset + np.dot(index, g.src_strides)]

    def reduce_f32(self, g: calls.Reduce) -> None:
        x = self.memory(g.x).reshape(g.outer, g.n, g.inner)
        self.memory(g.y)[:] = (x.mean(1) if g.op else x.sum(1)).ravel()

    def gemm_f32(self, g: calls.Gemm) -> None:
        m, n, k = np.ogrid[: g.m, : g.n, : g.k]
        for item in np.ndindex(*g.batch):
            a_at, b_at, c_at = (np.dot(item, strides) for strides in (g.a_batch, g.b_batch, g.c_batch))
            a = self.memory(g.a)[a_at + m * g.a_row + k * g.a_col]
            b = self.memory(g.b)[b_at + k * g.b_row + n * g.b_col]
            c = (a * b).sum(-1)
            if g.bias is not None:
                c = c + self.memory(g.bias)[(n * g.bias_col + m * g.bias_row)[..., 0]]
            self.memory(g.c)[c_at + (m * g.c_row + n)[..., 0]] = c


def evaluate(x: Expr, ins: list[np.ndarray]) -> Any:
    if x.op == "input":
        return ins[int(x.imm or 0)]
    if x.op == "const":
        return np.float64(x.imm)
    functions: dict[str, Any] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "max": np.maximum,
        "pmax": np.maximum,
        "neg": np.negative,
        "tanh": np.tanh,
        "gt": np.greater,
        "select": np.where,
    }
    return functions[x.op](*(evaluate(a, ins) for a in x.args))


def check(made: RandomProgram, passes: Sequence[Pass], what: str) -> Program:
    """Compare what the program computes after these passes with what it says; returns what they made of it."""
    rng = np.random.default_rng(0)
    given = {b.storage: rng.standard_normal(b.size).astype(np.float32) for b in (*made.feeds, *made.state)}
    interpreter = Interpreter({s: x.astype(np.float64) for s, x in given.items()})
    interpreter.run(made.builder.instructions)
    expected = [interpreter.memory(b).copy() for b in (*made.outputs, *made.state)]
    program = Program(made.builder, made.feeds, made.outputs, made.builder.instructions)
    context = pipelines.context()
    # Any parameter may be frozen: parameters that the program writes are not hoisted.
    context.cache = Cache({b.storage.offset or 0 for b in made.state})
    for each in passes:
        if each.name == "rematerialise":
            program.rebuild(Restless.of(program).instructions)
        else:
            each.run(program, context)
        check_index(program)
    for got, want in zip(execute(made, program, context.cache, given), expected, strict=True):
        error = np.abs(got - want).max() / max(1.0, np.abs(want).max())
        assert error < 1e-4, f"{what}: off by {error}"
    return program


def execute(made: RandomProgram, program: Program, cache: Cache, given: dict[Storage, np.ndarray]) -> list[np.ndarray]:
    sizes = [0] * N_SEGMENTS
    sizes[PARAMETERS] = sizes[GRADIENTS] = 128 + 4 * STATE_ELEMENTS
    engine = get_engine(reproducible=True)
    plan = compile_program(program, sizes, 1 << 30)
    plan.prepared_bytes = cache.nbytes
    host = PlanHost(engine, sizes)
    try:
        loaded = host.load(plan)
        for b in made.state:
            host.write_segment(b.storage.segment, b.storage.offset or 0, given[b.storage].tobytes())
        host.write_feeds(
            loaded, {b.name: Tensor(b.name, "float32", b.shape, given[b.storage].tobytes()) for b in made.feeds}
        )
        host.run(loaded)
        results = [t.data for t in host.read_outputs(loaded, [b.name for b in made.outputs]).values()]
        results += [host.read_segment(b.storage.segment, b.storage.offset or 0, b.nbytes) for b in made.state]
        return [np.frombuffer(data, np.float32) for data in results]
    finally:
        host.release()


@pytest.mark.parametrize("name", ["none", *pipelines.NAMES, "all"])
def test_random_programs_compute_the_same_after_every_pass(name: str) -> None:
    some = PASSES if name == "all" else pipelines.alone(name)
    for seed in range(N_PROGRAMS):
        check(RandomProgram(seed), some, f"seed {seed}")


def add_meddler(made: RandomProgram, b: Buf, position: int, *, writes: bool) -> None:
    """One more instruction, before the one at `position`, that overwrites `b` or lets an output see it."""
    if writes:
        made.builder.elementwise([b], [made.feeds[2].view((1,))], lambda e, x: e.sub(x, e.const(3)))
    else:
        seen = made.new(b.shape)
        made.builder.elementwise([seen], [b], lambda e, x: e.sub(x, e.const(3)))
        made.output(seen)
    made.builder.instructions.insert(position, made.builder.instructions.pop())


@pytest.mark.parametrize("writes", [True, False], ids=["written", "read"])
@pytest.mark.parametrize(
    ("motif", "name"),
    [
        (attention, "fuse_attention"),
        (pooling, "mask_maxima"),
        (accumulation, "accumulate_in_place"),
        (rotary, "fuse_rotary"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_somebody_at_any_place_sees_or_changes_any_buffer_of_a_pattern(
    motif: Motif, name: str, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hazard_motifs, "MEDDLING", 0)
    some, found = pipelines.alone(name), 0
    for seed in itertools.count():
        made = RandomProgram(seed, motif)
        instructions = list(made.builder.instructions)
        if check(made, some, f"seed {seed}").instructions == instructions:
            continue  # results on top of each other, or of operands
        for position, k in itertools.product(range(1, len(instructions)), range(len(buffers(instructions)))):
            made = RandomProgram(seed, motif)
            b = buffers(made.builder.instructions)[k]
            earlier, later = made.builder.instructions[:position], made.builder.instructions[position:]
            whole = {w.storage for i in earlier for w in i.writes}
            whole -= {i.dst.storage for i in later if isinstance(i, calls.StridedCopy)}
            if not writes and b.storage.segment == ARENA and b.storage not in whole:
                continue  # nothing is in it yet, or only a half
            add_meddler(made, b, position, writes=writes)
            check(made, some, f"seed {seed}, at {position} buffer {k}")
        found += 1
        if found == N_PATTERNS:
            return


def buffers(instructions: Sequence[Instruction]) -> list[Buf]:
    """The float buffers of some instructions that may be written, each place once."""
    found: dict[tuple[Storage, int, int], Buf] = {}
    for i in instructions:
        for b in (*i.reads, *i.writes):
            if b.dtype == "float32" and not b.storage.is_feed:
                found.setdefault((b.storage, b.shift, b.nbytes), b)
    return list(found.values())


def test_results_of_attention_that_lie_on_top_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored in their order, which one kernel does not keep."""
    monkeypatch.setattr(hazard_motifs, "MEDDLING", 0)
    monkeypatch.setattr(RandomProgram, "target", crowded)
    for seed in range(N_PROGRAMS):
        check(RandomProgram(seed, attention), pipelines.alone("fuse_attention"), f"seed {seed}")


def crowded(made: RandomProgram, shape: tuple[int, ...]) -> Buf:
    """Somewhere in one and the same storage."""
    return made.part(made.state[-1], int(np.prod(shape))).view(shape)


def test_a_result_does_not_take_the_place_of_an_operand_that_another_result_replaces() -> None:
    builder = Builder()
    x = Buf(Storage(ARENA, 32, is_feed=True), "float32", (8,), name="x")
    y, z = (Buf(Storage(ARENA, 32), "float32", (8,), name=name) for name in "yz")
    builder.elementwise([y], [x], lambda e, a: e.tanh(a))
    builder.elementwise([z, y], [y], lambda e, a: (e.neg(a), e.pmax(a, e.const(0))))
    place(builder.instructions, [x], [z])
    assert y.storage.offset != z.storage.offset


class Touch(KernelCall):
    """A call of no kernel, for the memory planner."""

    __slots__ = ("ins", "outs")

    def __init__(self, ins: list[Buf], outs: list[Buf]) -> None:
        self.node, self.ins, self.outs = "", ins, outs

    @property
    def reads(self) -> list[Buf]:
        return self.ins

    @property
    def writes(self) -> list[Buf]:
        return self.outs


def test_a_large_value_takes_the_place_of_a_smaller_one_before_it() -> None:
    builder = Builder()
    small, lasting, large = (builder.temp("float32", (n,)) for n in (32, 16, 48))
    for outs, ins in (([small], []), ([lasting], [small]), ([large], []), ([], [lasting, large])):
        builder.instructions.append(Touch(ins, outs))
    arena = place(builder.instructions, [], [])
    # As they come, `lasting` would lie right behind `small` and leave `large` no room there.
    assert arena == lasting.nbytes + large.nbytes


def test_a_product_reads_across_the_rows_of_a_transposed_tensor_from_a_copy() -> None:
    builder = Builder()
    x = Buf(Storage(ARENA, 4 * 12, is_feed=True), "float32", (3, 4), name="x")
    t, c = Buf(Storage(ARENA, 4 * 12), "float32", (4, 3)), Buf(Storage(ARENA, 16), "float32", (1, 4))
    transpose(builder, t, x, (1, 0))
    # One row of 4 elements from the middle of a row of 3 on.
    builder.emit(product(t.view((4,), 1), x.view((12,)), c, (1, 3, 4), beta=0.0))
    program = Program(builder, [x], [c], builder.instructions)
    absorb_copies(program, pipelines.context())
    copy, found = program
    assert isinstance(copy, calls.StridedCopy)
    assert isinstance(found, calls.Gemm)
    assert found.a.storage is t.storage


@pytest.mark.parametrize(("rows", "kept"), [(3, ["Gemm"]), (6, ["Gemm", "Copy", "StridedCopy"])])
def test_a_product_is_not_stored_before_what_fills_its_target(rows: int, kept: list[str]) -> None:
    """As the state that a step keeps until it has succeeded: a fill is left out if all of it is replaced."""
    builder = Builder()
    a, b, old = (
        Buf(Storage(ARENA, 4 * r * c, is_feed=True), "float32", (r, c)) for r, c in ((4, 2), (2, 3), (rows, 4))
    )
    t, target = Buf(Storage(ARENA, 4 * 12), "float32", (4, 3)), Buf(Storage(ARENA, 16 * rows), "float32", (rows, 4))
    builder.emit(product(a, b, t, (4, 3, 2), beta=0.0))
    builder.copy(target, old)
    transpose(builder, target.view((3, 4)), t, (1, 0))
    program = Program(builder, [a, b, old], [target], builder.instructions)
    absorb_copies(program, pipelines.context())
    assert [type(i).__name__ for i in program] == kept
