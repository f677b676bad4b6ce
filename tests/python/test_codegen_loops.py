"""Generated functions against numpy: every operation of every dtype, in vectors and in the rest of a row."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.python.plan_builder import RawPlan, check_status

from trainweb.backend.wasm.codegen import FunctionSpec, emit_module
from trainweb.backend.wasm.engine import Engine
from trainweb.ir.expr import Emitter, Expr

N = 23
"""A round of four vectors, one of one, and three elements."""
FLOATS, INTEGERS = ("float32", "float64"), ("int32", "int64", "uint8")
VALUES: dict[str, list[Any]] = {
    "float32": [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, -2.5, 1e30, -1e30, np.inf, -np.inf, np.nan, 0.5, -0.5, 7.0, 300.0],
    "int32": [0, 1, -1, 2, -7, 7, 255, 256, 2**31 - 1, -(2**31), 100, -100],
    "int64": [0, 1, -1, 2, -7, 7, 255, 256, 2**63 - 1, -(2**63), 2**31, 100],
    "uint8": [0, 1, 2, 3, 127, 128, 200, 254, 255],
    "bool": [False, True],
}
VALUES["float64"] = VALUES["float32"]


@contextmanager
def loaded(engine: Engine, roots: Sequence[Expr], dtypes: Sequence[str], step: int = 1) -> Iterator[int]:
    """The table slot of the flat function of these results."""
    code = emit_module([FunctionSpec(tuple(dtypes), (step,) * len(dtypes), tuple(roots), 0)])
    base = engine.load_code(code)
    try:
        yield base
    finally:
        engine.unload_code(base)


def compute(engine: Engine, base: int, inputs: Sequence[np.ndarray], results: Sequence[str]) -> list[np.ndarray]:
    """Results of a loaded function for N elements; the segment of each operand lies between guard bytes."""
    plan = RawPlan(engine.description.fingerprint, code_base=base, n_functions=1)
    outputs = [np.zeros(N, dtype) for dtype in results]
    blocks, pointers = [], []
    for k, array in enumerate((*inputs, *outputs)):
        block = engine.alloc(array.nbytes + 128)
        engine.write(block, b"\xa5" * (array.nbytes + 128))
        engine.write(block + 64, array.reshape(-1).view(np.uint8))
        blocks.append(block)
        plan.segments.append([block + 64, array.nbytes, int(k >= len(inputs))])
        plan.buffers.append([k, 0, array.nbytes])
        pointers += [k, array.nbytes, int(k >= len(inputs))]
    words = [0, N, 1000, len(blocks), 0, *pointers]
    plan.code = [[len(words) << 16, *words]]
    encoded = plan.encode()
    address = engine.alloc(encoded.nbytes)
    engine.write(address, encoded)
    try:
        plan.place(engine, address)
        check_status(engine, address, engine.run(address))
        found = []
        for block, array in zip(blocks[len(inputs) :], outputs, strict=True):
            data = engine.read(block, array.nbytes + 128)
            assert set(data[:64] + data[-64:]) == {0xA5}, "wrote outside its operand"
            found.append(np.frombuffer(data[64:-64], array.dtype))
        return found
    finally:
        for block in (*blocks, address):
            engine.free(block)


def operands(dtypes: Sequence[str]) -> list[np.ndarray]:
    """All combinations of values of these dtypes, in runs of N."""
    grid = np.meshgrid(*(np.array(VALUES[d], d) for d in dtypes), indexing="ij")
    rounds = -(-grid[0].size // N)
    return [np.resize(column, rounds * N) for column in grid]


def check(engine: Engine, root: Callable[..., Expr], expected: Callable[..., Any], *dtypes: str) -> None:
    """Compare the results, and what a cast sees of them, which no store of a byte has cut."""
    e = Emitter()
    expression = root(e, *(e.input(k, d) for k, d in enumerate(dtypes)))
    results = [expression, e.cast(expression, "float32")] if expression.dtype == "uint8" else [expression]
    columns = operands(dtypes)
    batches = [[np.ascontiguousarray(c[k : k + N]) for c in columns] for k in range(0, len(columns[0]), N)]
    with loaded(engine, results, dtypes) as base:
        found = [compute(engine, base, arrays, [x.dtype for x in results]) for arrays in batches]
    for arrays, (actual, *cast) in zip(batches, found, strict=True):
        with np.errstate(all="ignore"):
            exact = np.asarray(expected(*arrays)).astype(expression.dtype)
        np.testing.assert_array_equal(actual, exact, err_msg=f"{[a.tolist() for a in arrays]}")
        for wide in cast:
            np.testing.assert_array_equal(wide, exact.astype(np.float32))
        if expression.dtype in FLOATS:
            known = ~np.isnan(exact)
            np.testing.assert_array_equal(np.signbit(actual)[known], np.signbit(exact)[known])


def truncated(a: np.ndarray, b: np.ndarray) -> list[int]:
    """Division of integers towards zero; 0 where b is 0."""
    bits = 8 * a.dtype.itemsize
    quotients = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        q = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        quotients.append((q + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) if a.dtype != np.uint8 else q)
    return quotients


BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "pmax": lambda a, b: np.where(a < b, b, a),
}
COMPARED: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("op", [*BINARY, *COMPARED])
def test_of_two(engine: Engine, op: str, dtype: str) -> None:
    if op in BINARY:
        check(engine, lambda e, a, b: e.make(op, dtype, a, b), BINARY[op], dtype, dtype)
    else:
        check(engine, lambda e, a, b: e.compare(op, a, b), COMPARED[op], dtype, dtype)


def zeros_apart(smaller: bool) -> Callable[..., np.ndarray]:
    """Minimum (maximum) that is NaN if either is, and for which -0.0 is smaller than 0.0."""

    def choose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found = np.minimum(a, b) if smaller else np.maximum(a, b)
        zeros = (a == 0) & (b == 0)
        negative = np.signbit(a) | np.signbit(b) if smaller else np.signbit(a) & np.signbit(b)
        return np.where(zeros, np.where(negative, -0.0, 0.0), found)

    return choose


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("op", ["min", "max", "div", "neg", "abs"])
def test_what_dtypes_do_in_different_ways(engine: Engine, op: str, dtype: str) -> None:
    floats = dtype in FLOATS
    if op in ("min", "max"):
        plain = np.minimum if op == "min" else np.maximum
        check(
            engine,
            lambda e, a, b: e.make(op, dtype, a, b),
            zeros_apart(op == "min") if floats else plain,
            dtype,
            dtype,
        )
    elif op == "div":
        check(engine, lambda e, a, b: e.div(a, b), np.divide if floats else truncated, dtype, dtype)
    elif op == "neg":
        check(engine, lambda e, a: e.neg(a), np.negative, dtype)
    elif dtype != "uint8":  # no operator takes its magnitude
        check(engine, lambda e, a: e.abs(a), np.abs, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_of_one_float(engine: Engine, dtype: str) -> None:
    check(engine, lambda e, a: e.sqrt(a), np.sqrt, dtype)
    check(engine, lambda e, a: e.floor(a), np.floor, dtype)
    check(engine, lambda e, a: e.ceil(a), np.ceil, dtype)
    check(engine, lambda e, a: e.round(a), np.rint, dtype)


def test_bool(engine: Engine) -> None:
    check(engine, lambda e, a, b: e.and_(a, b), np.logical_and, "bool", "bool")
    check(engine, lambda e, a, b: e.or_(a, b), np.logical_or, "bool", "bool")
    check(engine, lambda e, a, b: e.xor(a, b), np.logical_xor, "bool", "bool")
    check(engine, lambda e, a, b: e.compare("eq", a, b), np.equal, "bool", "bool")
    check(engine, lambda e, a, b: e.compare("ne", a, b), np.not_equal, "bool", "bool")
    check(engine, lambda e, a: e.not_(a), np.logical_not, "bool")


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_select(engine: Engine, dtype: str) -> None:
    check(engine, lambda e, c, a: e.select(c, a, e.like(a, 1)), lambda c, a: np.where(c, a, 1), "bool", dtype)


def saturated(values: np.ndarray, dtype: str) -> np.ndarray:
    """The result of a cast: NaN is 0, floats stay in the range of the integer, uint8 is the low byte of an int32."""
    if dtype == "bool":
        return values != 0
    if dtype in FLOATS or values.dtype.kind != "f":
        return values.astype(dtype)
    info = np.iinfo("int32" if dtype == "uint8" else dtype)
    whole = [0 if np.isnan(v) else int(min(max(float(v), info.min), info.max)) for v in values]
    clipped = np.array([min(v, info.max) for v in whole], np.int64)
    return clipped.astype(dtype)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, "bool"])
def test_cast(engine: Engine, source: str, target: str) -> None:
    check(engine, lambda e, a: e.cast(a, target), lambda a: saturated(a, target), source)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("step", [0, 1])
def test_constants_and_inputs_that_do_not_advance(engine: Engine, dtype: str, step: int) -> None:
    """Copies of an input and of every constant: equal to the last bit in vectors and in the rest."""
    e = Emitter()
    for value in VALUES[dtype]:
        array = np.full(N if step else 1, value, dtype)
        with loaded(engine, [e.input(0, dtype), e.const(value, dtype)], [dtype], step) as base:
            copied, made = compute(engine, base, [array], [dtype, dtype])
        assert copied.tobytes() == np.full(N, value, dtype).tobytes()
        assert made.tobytes() == np.full(N, value, dtype).tobytes(), value
