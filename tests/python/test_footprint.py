"""Parts of a storage that calls write: told apart only where they are."""

import itertools

import numpy as np

from trainweb.compiler.footprint import Footprint
from trainweb.ir.instructions import Storage
from trainweb.ir.layout import ARENA


def elements(f: Footprint) -> set[int]:
    starts = [f.start + sum(i) for i in itertools.product(*(range(0, n * s, s) for n, s in f.steps))]
    return {start + k for start in starts for k in range(f.width)}


def test_what_is_apart_shares_no_byte() -> None:
    rng = np.random.default_rng(0)
    storage, apart = Storage(ARENA, 1 << 12), 0
    for _ in range(3000):
        pitch = int(rng.integers(2, 25))
        pair = []
        for _ in range(2):
            strides = (pitch * int(rng.integers(1, 5)), int(rng.integers(1, 9)), pitch)
            steps = tuple((int(rng.integers(1, 4)), s) for s in strides[: int(rng.integers(4))])
            pair.append(Footprint(storage, int(rng.integers(60)), steps, int(rng.integers(5))))
        a, b = pair
        assert a.is_apart(b) == b.is_apart(a)
        if a.is_apart(b):
            apart += 1
            assert not elements(a) & elements(b), pair
    assert apart > 500


def test_gradients_of_joined_operands_are_apart() -> None:
    """[batch, n, 3, heads, d]: q, k and v are columns of rows that all of them have."""
    batch, n, heads, d = 2, 5, 3, 4
    storage = Storage(ARENA, 4 * batch * n * 3 * heads * d)
    row = 12 * heads * d
    parts = [
        Footprint(storage, 4 * k * heads * d, ((batch, n * row), (heads, 4 * d), (n, row)), 4 * d) for k in range(3)
    ]
    for a, b in itertools.combinations(parts, 2):
        assert a.is_apart(b) and not elements(a) & elements(b)
        assert not a.is_apart(a)
    assert parts[0].is_apart(Footprint(Storage(ARENA, 64), 0, (), 64))
