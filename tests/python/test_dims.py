"""Arithmetic with symbolic dims against plain ints, and what follows from equations."""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from math import gcd
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.each import run_each

from trainweb.errors import ModelError
from trainweb.ir.dims import SymbolicDim, UndecidedError, at_most, equal, maximum, minimum, static
from trainweb.ir.expr import Emitter
from trainweb.ir.shapes import broadcast_shapes
from trainweb.ir.symbols import SymbolTable
from trainweb.ops.frame.evaluate import evaluate

NAMES = ("a", "b", "c")
Tree = Any
"""An int, a name, or (operation, left, right)."""

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "max": maximum,
    "min": minimum,
}
ON_INTS = {**OPERATIONS, "max": max, "min": min}

SEEDS = range(1000)
"""Of random trees."""


def tree_of(rng: Random, depth: int = 3) -> Tree:
    """A tree of at most eight leaves."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([rng.randint(-6, 9), rng.choice(NAMES)])
    return (rng.choice(sorted(OPERATIONS)), tree_of(rng, depth - 1), tree_of(rng, depth - 1))


def sizes_of(rng: Random) -> dict[str, int]:
    return {name: rng.randint(1, 40) for name in NAMES}


def computed(tree: Tree, leaf: Callable[[Any], Any], operations: dict[str, Callable[[Any, Any], Any]]) -> Any:
    if not isinstance(tree, tuple):
        return leaf(tree)
    return operations[tree[0]](*(computed(part, leaf, operations) for part in tree[1:]))


def on_ints(tree: Tree, values: dict[str, int]) -> int:
    result: int = computed(tree, lambda x: values[x] if isinstance(x, str) else x, ON_INTS)
    return result


class Symbols:
    """A table with the symbols `NAMES`."""

    def __init__(self) -> None:
        self.table = SymbolTable()
        self.dims = {name: self.table.declared(name, "x", k) for k, name in enumerate(NAMES)}

    def of(self, tree: Tree) -> int:
        result: int = computed(tree, lambda x: self.dims[x] if isinstance(x, str) else x, OPERATIONS)
        return result


def test_expressions_have_the_values_that_ints_have() -> None:
    run_each(SEEDS, check_values)


def check_values(seed: int) -> None:
    rng, symbols = Random(seed), Symbols()
    tree, values = tree_of(rng), sizes_of(rng)
    try:
        expected = on_ints(tree, values)
        dim = symbols.of(tree)
    except (ZeroDivisionError, UndecidedError):
        return
    assert symbols.table.evaluated(dim, values) == expected
    text = symbols.table.text(dim)
    if text is not None:
        again = symbols.table.declared(text, "y", 0)
        assert symbols.table.evaluated(again, values) == expected
    if static(dim):
        assert type(dim) is int


def test_equations_that_hold_for_some_sizes_are_solved_without_losing_them() -> None:
    run_each(SEEDS, check_equations)


def check_equations(seed: int) -> None:
    rng, symbols = Random(seed), Symbols()
    equations = [(tree_of(rng, 2), tree_of(rng, 2)) for _ in range(rng.randint(1, 3))]
    tree, values = tree_of(rng), sizes_of(rng)
    try:
        expected, dim = on_ints(tree, values), symbols.of(tree)
        # The difference of both sides makes an equation that these sizes fulfil.
        missing = [on_ints(left, values) - on_ints(right, values) for left, right in equations]
        pairs = [
            (symbols.of(left), symbols.of(right) + rest) for (left, right), rest in zip(equations, missing, strict=True)
        ]
        for left, right in pairs:
            assert equal(left, right)
    except (ZeroDivisionError, UndecidedError):
        return
    assert symbols.table.evaluated(dim, values) == expected
    for left, right in pairs:
        assert symbols.table.evaluated(left, values) == symbols.table.evaluated(right, values)


@pytest.mark.parametrize("known", [False, True], ids=["asked for later", "asked for before"])
def test_chains_of_quotients_without_remainder_have_the_values_that_ints_have(known: bool) -> None:
    """W is 3 (W // 3), W // 3 is 2 (W // 3 // 2) and so on: all chains of two steps. Sizes go up to 60."""
    for first, second, multiplied in product(range(2, 6), range(2, 6), (False, True)):
        table = SymbolTable()
        w = table.declared("W", "x", 0)
        early = (w // first, w // first // second, w // (first * second)) if known else ()
        assert equal(first * (w // first), w) if multiplied else equal(w % first, 0)
        part = w // first
        assert equal(second * (part // second), part) if multiplied else equal(part % second, 0)
        dims = early or (w // first, w // first // second, w // (first * second))
        for size in range(first * second, 61, first * second):
            ints = (size // first, size // first // second, size // (first * second))
            assert tuple(table.evaluated(dim, {"W": size}) for dim in dims) == ints, (first, second, size)
        for size in (size for size in range(1, 61) if size % (first * second)):
            with pytest.raises(ModelError, match="'W' cannot be"):
                table.fix({"W": size})


def test_what_is_said_of_expressions_holds_for_all_sizes() -> None:
    run_each(SEEDS, check_comparisons)


def check_comparisons(seed: int) -> None:
    rng, symbols = Random(seed), Symbols()
    left, right, values = tree_of(rng, 2), tree_of(rng, 2), sizes_of(rng)
    try:
        a, b = symbols.of(left), symbols.of(right)
        x, y = on_ints(left, values), on_ints(right, values)
    except (ZeroDivisionError, UndecidedError):
        return
    if a == b:
        assert x == y and hash(a) == hash(b)
    for certain, true in ((lambda: a < b, x < y), (lambda: a >= b, x >= y)):
        with suppress(UndecidedError):
            assert certain() is true
    if x <= y:
        assert at_most(a, b)


def dims(*texts: str) -> list[int]:
    table = SymbolTable()
    return [table.declared(text, "x", k) for k, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2*n // 2", "n"),
        ("(n*m*6) // (n*m)", "6"),
        ("((n - 1)//2 + 1 - 1)//2 + 1", "(n + 3)//4"),
        ("(n*m + n) // (m + 1)", "n"),
        ("max(n, 1)", "n"),
        ("min(n, 40)", "min(n, 40)"),
        ("max(n, min(n, 512))", "n"),
        ("max(0, n - 1)", "n - 1"),
        ("n//2 + n//2", "2*(n//2)"),
        ("past_length + 1", "past_length + 1"),
        ("batch-size", "batch-size"),
        ("2*", "2*"),
    ],
)
def test_expressions_are_canonical_and_print_as_they_are_read(text: str, shown: str) -> None:
    (dim,) = dims(text)
    assert str(dim) == shown


def test_a_part_of_a_part_follows_the_size_of_the_whole() -> None:
    table = SymbolTable()
    w = table.symbol("W", "x")
    third = w // 3
    assert table.unify(3 * third, w) and table.unify(2 * (third // 2), third)  # W is a multiple of 6
    for size in (6, 24, 60):
        assert [table.evaluated(dim, {"W": size}) for dim in (w, third, third // 2)] == [size, size // 3, size // 6]


def test_ints_stay_ints() -> None:
    (n,) = dims("n")
    for result in (n - n, n // n, n * 0 + 3, (n * 4) // n, maximum(3, 4), broadcast_shapes((1,), (3,))[0]):
        assert type(result) is int


def test_what_an_operator_needs_refines_symbols() -> None:
    n, m, h = dims("n", "m", "h")
    assert equal(n * 8, m * 24) and str(n) == "3*m"
    assert equal(m, 4) and n == 12
    assert equal(2 * (h // 2), h) and str(h // 2) == "h//2" and str(4 * (h // 2)) == "2*h"
    assert equal(2 * (h // 4), h // 2) and str(h // 2) == "h//2" and (h // 4) * 4 == h
    assert not equal(h + 1, 2 * (h // 2 + 1))


def test_a_contradiction_says_what_is_known() -> None:
    (n,) = dims("n")
    assert isinstance(n, SymbolicDim)
    table = n.table
    table.node = "MatMul node 'first'"
    assert equal(n, 4)
    assert not equal(n + 1, 4)
    assert table.explain([n]) == ["n = 4, as MatMul node 'first' needs n = 4"]
    assert not equal(dims("k")[0] * 2, 7)


def test_symbols_that_meet_are_not_taken_for_equal() -> None:
    n, m = dims("n", "m")
    (met,) = broadcast_shapes((n,), (m,))
    assert str(met) == "max(m, n)" and n != m and met != n
    assert broadcast_shapes((n,), (5,)) == (5,) and n != 5


def test_sizes_that_are_larger_than_one_must_be_equal_to_broadcast() -> None:
    n, m = dims("n", "m")
    assert broadcast_shapes((n + 1,), (m + 1,)) == (n + 1,) and n == m
    with pytest.raises(ValueError):
        broadcast_shapes((2 * n,), (7,))


def test_rows_cut_from_a_table_are_as_many_as_they_are_added_to() -> None:
    (n,) = dims("n")
    rows = minimum(n, 512)
    assert broadcast_shapes((rows, 8), (n, 8)) == (n, 8) and rows == n


def test_a_decision_on_an_unknown_size_is_refused() -> None:
    (n,) = dims("n")
    assert n > 0 and not n < 1 and bool(n)
    for decide in (lambda: n < 5, lambda: range(n), lambda: int(n), lambda: float(n), lambda: n * 0.1):
        with pytest.raises(UndecidedError):
            decide()


def test_dims_without_a_name_are_dims_of_their_own() -> None:
    table = SymbolTable()
    a, b, n = (table.declared(name, "x", k) for k, name in enumerate((None, None, "n")))
    assert len({a, b, n}) == 3
    assert [table.text(x) for x in (a, b + 1, a * n, n)] == [None, None, None, "n"]


@pytest.mark.parametrize("remainder", range(5))
def test_remainders_are_those_there_are(remainder: int) -> None:
    (n,) = dims("n")
    assert equal(n - 4 * (n // 4), remainder) is (remainder < 4)
    if remainder < 4:
        assert n % 4 == remainder


def test_a_size_is_at_least_what_must_fit() -> None:
    (n,) = dims("n")
    assert at_most(7, 2 * n) and at_most(3, n)
    assert isinstance(n, SymbolicDim) and n.table.evaluated(n, {}) == 4
    assert not equal(n, 3)


@pytest.mark.parametrize(("factor", "k"), [(2, 3), (3, 7), (5, 8), (4, 6)])
def test_remainders_of_multiples_are_those_there_are(factor: int, k: int) -> None:
    for remainder in range(k):
        (n,) = dims("n")
        found = [size for size in range(1, 2 * k) if factor * size % k == remainder]
        assert equal(factor * n - k * ((factor * n) // k), remainder) is bool(found)
        step = k // gcd(factor, k)
        assert not found or n % step == found[0] % step


def test_what_could_not_be_solved_is_tried_again() -> None:
    n, m, h = dims("n", "m", "h")
    assert equal(n * m, 12) and equal(n, 3) and m == 4
    assert equal(h // 2, 16) and not equal(h, 40)
    a, b = dims("a", "b")
    assert equal(a * b, 12) and not equal(a, 5)
    x, y = dims("x", "y")
    assert equal(x // 3, y) and equal(x, 7) and y == 2


def test_tiles_cover_an_image_whole() -> None:
    n, h, w = dims("n", "h", "w")
    assert equal(n * (h // 4) * 4 * (w // 8) * 8, n * h * w)
    assert h % 4 == 0 and w % 8 == 0 and not equal(h, 6)


def test_elements_of_constants_may_be_symbolic() -> None:
    n, e = SymbolTable().symbol("n", "here"), Emitter()
    x, flag = e.input(0, "int64"), e.input(1, "bool")
    more, is_five = e.add(x, e.like(x, 1)), e.compare("eq", x, e.like(x, 5))
    assert evaluate(more, [[n, 2]]) == (n + 1, 3)
    # One operand decides, whatever n is.
    assert evaluate(e.or_(is_five, flag), [[n, 5, 6], [True, False, False]]) == (True, True, False)
    with pytest.raises(UndecidedError):
        evaluate(e.or_(is_five, flag), [[n], [False]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint64", "float16", "float32", "bool"])
def test_elements_of_constants_are_as_numpy_holds_them(dtype: str) -> None:
    numbers = [0, 1, -1, 127, 128, 255, 256, -129, 1000, 1025]
    e = Emitter()
    assert [*evaluate(e.cast(e.input(0, "int64"), dtype), [numbers])] == np.array(numbers).astype(dtype).tolist()


def test_an_integer_that_no_half_holds_is_left_to_the_engine() -> None:
    e = Emitter()
    with pytest.raises(ArithmeticError):
        evaluate(e.cast(e.input(0, "int64"), "float16"), [[70000]])
