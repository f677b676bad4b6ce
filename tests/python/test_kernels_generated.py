"""Generated functions state what they access; the verifier holds every call of them to it."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pytest
import wasmtime
from tests.each import over
from tests.python.plan_builder import RawPlan, flat, stating

from trainweb.backend.wasm.codegen import FunctionSpec, emit_module
from trainweb.backend.wasm.engine import Engine
from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
from trainweb.errors import EngineError
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.layout import GENERATED_GRAIN, GENERATED_N, GENERATED_WORDS, POINTER_WORDS, REDUCTION_WORDS

GUARD = 0xA5
SUM, MEAN, SUM_SQUARES = 0, 1, 5
REDUCTIONS = ("grain", "unit", "results", "n", "inner", "op")


def added(e: Emitter, signature_inputs: Sequence[str]) -> Expr:
    """x0 + x1 + ..."""
    return reduce(e.add, (e.input(k, dtype) for k, dtype in enumerate(signature_inputs)))


@dataclass
class Call:
    """One call of a function that adds its inputs: `dims` from the outermost on, the last one the row."""

    dtype: str
    dims: list[int]
    steps: list[int]
    strides: list[list[int]]
    """Of each input along the outer dims."""
    grain: int = 1000
    reduction: dict[str, int] | None = None
    stored: bool = True

    @property
    def signature(self) -> FunctionSpec:
        dtypes = (self.dtype,) * len(self.steps)
        root = added(Emitter(), dtypes)
        return FunctionSpec(
            dtypes, tuple(self.steps), (root,), len(self.dims) - 1, self.reduction is not None, self.stored
        )

    @property
    def n(self) -> int:
        return int(np.prod(self.dims[:-1])) if len(self.dims) > 1 else self.dims[0]

    def words(self) -> list[int]:
        """The words that follow the pointers."""
        words = [self.dims[-1], *self.dims[1:-1], *itertools.chain(*self.strides)] if len(self.dims) > 1 else []
        return words + [self.reduction[name] for name in REDUCTIONS] if self.reduction else words

    def positions(self, k: int) -> np.ndarray:
        """Which element of input k each element of the result is made of, by the definition of strides."""
        at = np.zeros(self.dims, np.int64)
        for axis, stride in enumerate([*self.strides[k], self.steps[k]]):
            shape = [1] * len(self.dims)
            shape[axis] = -1
            at = at + stride * np.arange(self.dims[axis]).reshape(shape)
        return at

    def extents(self) -> list[int]:
        """Elements that each pointer needs."""
        size = int(np.prod(self.dims))
        extents = [int(self.positions(k).max()) + 1 if size else 0 for k in range(len(self.steps))]
        extents += [size] * self.stored
        if r := self.reduction:
            extents.append(size // r["n"] if r["n"] else -(-self.n // self.grain) * r["inner"])
        return extents


class Runner:
    """Runs calls with each operand in a separate segment, between guard bytes."""

    def __init__(self, engine: Engine, call: Call, seed: int = 0) -> None:
        self.engine, self.call = engine, call
        self.base = engine.load_code(emit_module([call.signature]))
        self.item = np.dtype(call.dtype).itemsize
        rng = np.random.default_rng(seed)
        self.arrays = [rng.integers(0, 50, n).astype(call.dtype) for n in call.extents()]
        self.blocks = [engine.alloc(a.nbytes + 128) for a in self.arrays]

    def close(self) -> None:
        for block in self.blocks:
            self.engine.free(block)
        self.engine.unload_code(self.base)

    def plan(self, short: int | None = None) -> RawPlan:
        """The plan; the segment of operand `short` lacks one byte, and the plan says so."""
        plan = RawPlan(self.engine.description.fingerprint, code_base=self.base, n_functions=1)
        pointers = []
        for k, (block, array) in enumerate(zip(self.blocks, self.arrays, strict=True)):
            nbytes = array.nbytes - (k == short)
            plan.segments.append([block + 64, nbytes, 1])
            plan.buffers.append([k, 0, nbytes])
            pointers += [k, nbytes, int(k >= len(self.call.steps))]
        words = self.call.words()
        args = [0, self.call.n, self.call.grain, len(self.blocks), len(words), *pointers, *words]
        plan.code = [[len(args) << 16, *args]]
        return plan

    def run(self, plan: RawPlan) -> tuple[str, list[np.ndarray]]:
        """Status, and the operands after the run."""
        for block, array in zip(self.blocks, self.arrays, strict=True):
            self.engine.write(block, bytes([GUARD]) * (array.nbytes + 128))
            self.engine.write(block + 64, array.view(np.uint8))
        encoded = plan.encode()
        address = self.engine.alloc(encoded.nbytes)
        self.engine.write(address, encoded)
        plan.place(self.engine, address)
        status = self.engine.description.status_name(self.engine.run(address))
        self.engine.free(address)
        found = []
        for block, array in zip(self.blocks, self.arrays, strict=True):
            data = self.engine.read(block, array.nbytes + 128)
            assert set(data[:64] + data[64 + array.nbytes :]) == {GUARD}, "wrote outside its operand"
            found.append(np.frombuffer(data[64 : 64 + array.nbytes], array.dtype))
        return status, found


def check(engine: Engine, call: Call) -> None:
    """Right results with exactly the extents needed, and a refusal with one byte less."""
    runner = Runner(engine, call)
    try:
        status, found = runner.run(runner.plan())
        assert status == "TW_OK"
        inputs = [runner.arrays[k][call.positions(k)] for k in range(len(call.steps))]
        result = reduce(np.add, inputs).astype(call.dtype).reshape(-1)
        if call.stored:
            np.testing.assert_array_equal(found[len(inputs)], result)
        if r := call.reduction:
            unit = call.dims[-1] if len(call.dims) > 1 else 1
            chunks = [result] if r["n"] else np.split(result, range(call.grain * unit, result.size, call.grain * unit))
            terms = [np.square(c) if r["op"] == SUM_SQUARES else c for c in chunks]
            reduced = [c.reshape(-1, r["n"] or c.size // r["inner"], r["inner"]).sum(1).reshape(-1) for c in terms]
            expected = np.concatenate(reduced) / (r["n"] if r["op"] == MEAN else 1)
            np.testing.assert_allclose(found[-1], expected, rtol=1e-5)
        for k, array in enumerate(runner.arrays):
            if array.size:
                assert runner.run(runner.plan(short=k))[0] == "TW_BAD_EXTENT", f"operand {k}"
    finally:
        runner.close()


@over("seed", range(120))
def test_calls_get_what_they_touch_and_no_byte_less(engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    n_in, n_outer = rng.randint(1, 3), rng.choice([0, 0, 1, 1, 2, 3])
    dims = [rng.choice([1, 2, 3, 5]) for _ in range(n_outer)] + [rng.choice([1, 3, 4, 7, 16, 21, 40])]
    if seed % 20 == 0:
        dims[0] = 0
    check(
        engine,
        Call(
            rng.choice(["float32", "int32", "int64", "uint8", "float64"]),
            dims,
            [rng.choice([0, 1, 1]) for _ in range(n_in)],
            [[rng.choice([0, 1, 2, 5, 30]) for _ in range(n_outer)] for _ in range(n_in)],
            grain=rng.choice([1, 2, 7, 1000]),
        ),
    )


def reducing(rows: int, row: int, n: int, inner: int, grain: int, op: int = SUM, **more: Any) -> Call:
    unit = row if rows else 1
    results = grain * unit // n if n else inner
    numbers = {"grain": grain, "unit": unit, "results": results, "n": n, "inner": inner, "op": op}
    dims = [rows, row] if rows else [row]
    return Call("float32", dims, [1, 1], [[row], [0]] if rows else [[], []], grain, numbers, **more)


REDUCING: list[Callable[[bool], Call]] = [
    lambda stored: reducing(0, 60, 5, 1, 20, stored=stored),
    lambda stored: reducing(0, 60, 5, 3, 15, stored=stored),
    lambda stored: reducing(0, 60, 0, 4, 16, stored=stored),
    lambda stored: reducing(6, 8, 8, 1, 4, stored=stored),
    lambda stored: reducing(6, 8, 4, 4, 2, stored=stored),
    lambda stored: reducing(7, 8, 0, 8, 3, stored=stored),
    lambda stored: reducing(6, 8, 4, 4, 2, SUM_SQUARES, stored=stored),
]


@pytest.mark.parametrize("stored", [True, False])
@over("made", range(len(REDUCING)))
def test_reductions_get_what_they_touch_and_no_byte_less(engine: Engine, made: int, stored: bool) -> None:
    check(engine, REDUCING[made](stored))


@pytest.fixture
def runner(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Runner]:
    runner = Runner(engine, request.param)
    yield runner
    runner.close()


ROWS = Call("float32", [3, 4, 5], [1, 0], [[20, 5], [4, 1]])


def place_of(call: Call, name: str) -> int:
    """Index of a word of the only instruction of `call`, by what it is."""
    n_pointers = len(call.extents())
    first = 1 + GENERATED_WORDS + POINTER_WORDS * n_pointers
    if name in REDUCTIONS:
        return first + len(call.words()) - REDUCTION_WORDS + REDUCTIONS.index(name)
    names = {"n of the call": 1 + GENERATED_N, "grain of the call": 1 + GENERATED_GRAIN, "row": first}
    names |= {f"dim {d}": first + d for d in range(1, len(call.dims) - 1)}
    outer = len(call.dims) - 1
    names |= {f"stride {k} {d}": first + outer * (k + 1) + d for k in range(len(call.steps)) for d in range(outer)}
    names |= {f"pointer {k}": 1 + GENERATED_WORDS + POINTER_WORDS * k for k in range(n_pointers)}
    return names[name]


BAD_ROWS = [
    ("n of the call", 13, "TW_BAD_EXTENT"),
    ("n of the call", 0x7FFFFFFF, "TW_BAD_ARGUMENT"),
    ("n of the call", 0xFFFFFFFF, "TW_BAD_ARGUMENT"),
    ("n of the call", 0x7FFFFFBF, "TW_BAD_EXTENT"),
    ("grain of the call", 0, "TW_BAD_ARGUMENT"),
    ("grain of the call", 0xFFFFFFFF, "TW_BAD_ARGUMENT"),
    ("row", 6, "TW_BAD_EXTENT"),
    ("row", 0, "TW_BAD_ARGUMENT"),
    ("row", 0x7FFFFFFF, "TW_BAD_ARGUMENT"),
    ("row", 0xFFFFFFFB, "TW_BAD_ARGUMENT"),
    ("dim 1", 0, "TW_BAD_ARGUMENT"),
    ("dim 1", 5, "TW_BAD_EXTENT"),
    ("dim 1", 3, "TW_BAD_EXTENT"),
    ("dim 1", 0x80000000, "TW_BAD_ARGUMENT"),
    ("stride 0 0", 21, "TW_BAD_EXTENT"),
    ("stride 0 1", 6, "TW_BAD_EXTENT"),
    ("stride 1 0", 5, "TW_BAD_EXTENT"),
    ("stride 1 1", 0x7FFFFFFF, "TW_BAD_EXTENT"),
    ("stride 1 1", 0xFFFFFFFF, "TW_BAD_ARGUMENT"),
    ("pointer 0", 5, "TW_BAD_ARGUMENT"),
    ("pointer 0", 0xFFFFFFFF, "TW_BAD_ARGUMENT"),
]


@pytest.mark.parametrize("runner", [ROWS], indirect=True, ids=["rows"])
@pytest.mark.parametrize(("name", "value", "status"), BAD_ROWS)
def test_words_that_lead_outside_are_refused(runner: Runner, name: str, value: int, status: str) -> None:
    plan = runner.plan()
    assert runner.run(plan)[0] == "TW_OK"
    plan.code[0][place_of(runner.call, name)] = value
    assert runner.run(plan)[0] == status


BAD_REDUCTIONS = [
    ("grain", 4, "TW_BAD_EXTENT"),
    ("unit", 7, "TW_BAD_EXTENT"),
    ("results", 5, "TW_BAD_EXTENT"),
    ("results", 3, "TW_BAD_EXTENT"),
    ("n", 2, "TW_BAD_EXTENT"),
    ("n", 3, "TW_BAD_EXTENT"),
    ("n", 0x40000000, "TW_BAD_EXTENT"),
    ("n", 0xFFFFFFFC, "TW_BAD_ARGUMENT"),
    ("inner", 0, "TW_BAD_EXTENT"),
    ("inner", 8, "TW_BAD_EXTENT"),
    ("inner", 0x10000000, "TW_BAD_EXTENT"),
    ("op", 2, "TW_BAD_EXTENT"),
    ("grain of the call", 3, "TW_BAD_EXTENT"),
    ("grain of the call", 4, "TW_BAD_EXTENT"),
    ("row", 4, "TW_BAD_EXTENT"),
]


@pytest.mark.parametrize("runner", [REDUCING[4](True)], indirect=True, ids=["reducing"])
@pytest.mark.parametrize(("name", "value", "status"), BAD_REDUCTIONS)
def test_words_of_reductions_are_held_to_each_other(runner: Runner, name: str, value: int, status: str) -> None:
    plan = runner.plan()
    assert runner.run(plan)[0] == "TW_OK"
    plan.code[0][place_of(runner.call, name)] = value
    assert runner.run(plan)[0] == status


def test_chunks_that_do_not_fit_the_scratch_memory_are_refused(engine: Engine) -> None:
    """4 bytes an element behind the strips of exp: 1 MiB is there."""
    e = Emitter()
    root = e.exp(e.input(0, "float32"))
    rows = 1 << 18
    base = engine.load_code(emit_module([FunctionSpec(("float32",), (1,), (root,), 0, reduces=True, stored=False)]))
    x, y = engine.alloc(4 * rows), engine.alloc(4)
    engine.write(x, bytes(4 * rows))
    plan = RawPlan(engine.description.fingerprint, code_base=base, n_functions=1)
    plan.segments, plan.buffers = [[x, 4 * rows, 1], [y, 4, 1]], [[0, 0, 4 * rows], [1, 0, 4]]
    statuses = []
    for n in (rows, rows - 256, rows - 255):
        args = [0, n, n, 2, REDUCTION_WORDS, 0, 4 * rows, 0, 1, 4, 1, n, 1, 1, n, 1, SUM]
        plan.code = [[len(args) << 16, *args]]
        encoded = plan.encode()
        address = engine.alloc(encoded.nbytes)
        engine.write(address, encoded)
        plan.place(engine, address)
        statuses.append(engine.description.status_name(engine.run(address)))
        engine.free(address)
    engine.free(x)
    engine.free(y)
    engine.unload_code(base)
    assert statuses == ["TW_BAD_EXTENT", "TW_OK", "TW_BAD_EXTENT"]


@pytest.mark.parametrize("runner", [ROWS], indirect=True, ids=["rows"])
def test_plans_say_what_is_written_and_how_many_words_there_are(runner: Runner) -> None:
    plan = runner.plan()
    for k, (at, value, status) in enumerate(
        [
            (1 + GENERATED_WORDS + 2, 1, "TW_BAD_ARGUMENT"),  # an input is written
            (1 + GENERATED_WORDS + 2 * POINTER_WORDS + 2, 0, "TW_BAD_ARGUMENT"),  # a result is not
            (1 + GENERATED_WORDS + 1, 8, "TW_BAD_EXTENT"),  # needs less than it touches
            (1 + GENERATED_WORDS + 1, 4000, "TW_BAD_EXTENT"),  # more than there is
            (4, 2, "TW_BAD_ARGUMENT"),
            (5, 5, "TW_BAD_ARGUMENT"),
            (4, 0x55555557, "TW_BAD_ARGUMENT"),
            (1, 1, "TW_BAD_FUNCTION"),
            (1, 0xFFFFFFFF, "TW_BAD_FUNCTION"),
        ]
    ):
        spoiled = runner.plan()
        spoiled.code[0][at] = value
        assert runner.run(spoiled)[0] == status, k
    for count in (0, 4, len(plan.code[0]) - 2):
        spoiled = runner.plan()
        spoiled.code = [[count << 16, *plan.code[0][1 : 1 + count]]]
        assert runner.run(spoiled)[0] == "TW_BAD_ARGUMENT"
    read_only = runner.plan()
    read_only.segments[2][2] = 0
    assert runner.run(read_only)[0] == "TW_READ_ONLY"


# ---- what modules say


def module(sections: str, n: int = 1) -> bytes:
    functions = " ".join(f'(func (export "f{k}") (param i32 i32 i32))' for k in range(n))
    return bytes(wasmtime.wat2wasm(f'(module (import "env" "memory" (memory 0)) {functions} {sections})'))


GOOD = flat(2)
BAD_SECTIONS = {
    "nothing": "",
    "another name": stating(GOOD).replace("trainweb", "trainwab"),
    "a longer name": stating(GOOD).replace("access", "accesses"),
    "a shorter name": stating(GOOD).replace("access", "acces"),
    "empty": stating([]),
    "too few functions": stating(GOOD[:-1]),
    "too many functions": stating(GOOD, GOOD),
    "elements of 3 bytes": stating([1, 3, 1, 1, 4, 0, 0, 1, 0]),
    "a step of 2": stating([1, 4, 2, 1, 4, 0, 0, 1, 0]),
    "no result": stating([1, 4, 1, 0, 0, 0, 1, 0]),
    "results of 3 bytes": stating([1, 4, 1, 1, 3, 0, 0, 1, 0]),
    "65 outer dims": stating([1, 4, 1, 1, 4, 65, 0, 1, 0]),
    "a flag of 2": stating([1, 4, 1, 1, 4, 0, 2, 1, 0]),
    "a result that goes nowhere": stating([1, 4, 1, 1, 4, 0, 0, 0, 0]),
    "a sum of bytes": stating([1, 4, 1, 1, 1, 0, 1, 1, 0]),
    "more scratch memory than there is": stating([1, 4, 1, 1, 4, 0, 0, 1, 0x81, 0x80, 0x40]),
    "a number that does not end": stating([1, 4, 1, 1, 4, 0, 0, 1, 0x80]),
    "a number of six bytes": stating([0x81, 0x80, 0x80, 0x80, 0x80, 0, 4, 1, 1, 4, 0, 0, 1, 0]),
    "inputs beyond the section": stating([0xFF, 0xFF, 0xFF, 0xFF, 0x07, 4, 1]),
}


@pytest.mark.parametrize("what", BAD_SECTIONS)
def test_code_that_does_not_say_what_it_accesses_is_refused(what: str) -> None:
    engine = WasmtimeEngine()
    size = engine._table.size(engine._store)
    for _ in range(3):
        with pytest.raises(EngineError, match="refused the generated code: TW_BAD_FUNCTION"):
            engine.load_code(module(BAD_SECTIONS[what]))
    assert engine.bytes_in_use() == 0
    assert engine.load_code(module(stating(GOOD))) == size, "its slots are free again"


@pytest.mark.parametrize("section", ["other", "trainweb.acces", "trainweb.accesses", ""])
def test_other_sections_do_not_matter(section: str) -> None:
    engine = WasmtimeEngine()
    before = f'(@custom "{section}" "\\00\\01\\02") '
    slot = engine.load_code(module(before + stating([1, 4, 1, 1, 4, 0, 0, 1, 0x80, 0x80, 0x40])))
    engine.unload_code(slot)
    assert engine.bytes_in_use() == 0


def test_plans_call_functions_of_their_own_module(engine: Engine) -> None:
    """Neither functions of another module, nor a part of those in the same one."""
    first = engine.load_code(module(stating(flat(0), flat(0)), 2))
    second = engine.load_code(module(stating(flat(0), flat(0), flat(0)), 3))
    y = engine.alloc(16)
    statuses = {}
    for base, count in itertools.product((0, 1, first, first + 1, second, second + 1, 0xFFFFFFFF), (1, 2, 3, 5, 2**31)):
        plan = RawPlan(engine.description.fingerprint, code_base=base, n_functions=count)
        plan.segments, plan.buffers = [[y, 16, 1]], [[0, 0, 16]]
        plan.code = [[8 << 16, 0, 4, 4, 1, 0, 0, 16, 1]]
        encoded = plan.encode()
        address = engine.alloc(encoded.nbytes)
        engine.write(address, encoded)
        plan.place(engine, address)
        statuses[base, count] = engine.description.status_name(engine.run(address))
        engine.free(address)
    for slot in (first, second):
        engine.unload_code(slot)
    engine.free(y)
    assert {key for key, status in statuses.items() if status == "TW_OK"} == {(first, 2), (second, 3)}
    assert set(statuses.values()) == {"TW_OK", "TW_BAD_FUNCTION"}


def test_a_plan_outlives_its_functions_as_a_plan_that_is_refused(engine: Engine) -> None:
    """Also where other functions have the slots by then."""
    runner = Runner(engine, ROWS)
    plan = runner.plan()
    encoded = plan.encode()
    address = engine.alloc(encoded.nbytes)
    engine.write(address, encoded)
    plan.place(engine, address)
    statuses = [engine.run(address)]
    engine.unload_code(runner.base)
    statuses.append(engine.run(address))
    other = engine.load_code(module(stating(flat(2))))
    assert other == runner.base
    statuses.append(engine.run(address))
    assert list(map(engine.description.status_name, statuses)) == ["TW_OK", "TW_BAD_FUNCTION", "TW_BAD_ARGUMENT"]
    runner.close()
    engine.free(address)
