"""Places in the arena: against the greedy placement written down plainly, and no two at the same time in one place.

And what a compilation holds in Python's memory, which a page never gives back.
"""

import gc
import random
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from trainweb.backend import memory
from trainweb.compiler.compile import _Compilation, compile_model
from trainweb.ir.arena import Arena
from trainweb.ir.instructions import Buf, Storage
from trainweb.ir.layout import CONSTANTS
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy

STEPS = 300


def training(chance: random.Random, count: int) -> list[memory._Allocation]:
    """Lifetimes as of a training step: activations from forward to backward, and what lives for a few instructions."""
    found = []
    for _ in range(count):
        first = chance.randrange(STEPS)
        last = STEPS - first if chance.random() < 0.5 else first + chance.choice([0, 1, 2, 5, 60])
        nbytes = 64 * chance.choice([1, 2, 3, 10, 10, 10, 100, chance.randint(1, 500)])
        found.append(memory._Allocation([], nbytes, *sorted((first, last))))
    return found


def greedy(allocations: list[memory._Allocation]) -> list[int]:
    """Offsets by the definition: the largest first, each at the lowest place that is free all its life."""
    offsets: dict[int, int] = {}
    order = sorted(range(len(allocations)), key=lambda k: -allocations[k].nbytes)
    for k in order:
        t = allocations[k]
        taken = [
            (offsets[j], offsets[j] + allocations[j].nbytes)
            for j in offsets
            if allocations[j].first <= t.last and t.first <= allocations[j].last
        ]
        starts = sorted({0, *(end for _, end in taken)})
        offsets[k] = next(
            start for start in starts if all(start + t.nbytes <= low or high <= start for low, high in taken)
        )
    return [offsets[k] for k in range(len(allocations))]


@pytest.mark.parametrize("seed", range(12))
def test_the_largest_first_each_as_low_as_it_can(seed: int) -> None:
    allocations = training(random.Random(seed), 5 + 20 * seed)
    expected = greedy(allocations)
    size = max(offset + t.nbytes for offset, t in zip(expected, allocations, strict=True))
    assert memory._place_by_size(allocations, 2**40) == size
    assert [t.offset for t in allocations] == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_placement_that_is_not_smaller_is_given_up(seed: int) -> None:
    allocations = training(random.Random(seed), 80)
    size = memory._place_by_size(allocations, 2**40)
    assert memory._place_by_size(allocations, size + 1) == size
    for limit in (size, size // 2, 64):
        assert memory._place_by_size(allocations, limit) >= limit


def test_runs_that_are_given_back_join_their_neighbours() -> None:
    chance = random.Random(1)
    for _ in range(200):
        n = chance.randint(1, 12)
        edges = sorted(chance.sample(range(1000), n + 1))
        runs = [(a, b - a) for a, b in pairwise(edges) if chance.random() < 0.8]
        arena, free = Arena(), set()
        for start, nbytes in chance.sample(runs, len(runs)):
            arena.give(start, nbytes)
            free.update(range(start, start + nbytes))
        assert {k for start, n in arena.free for k in range(start, start + n)} == free
        assert arena.free == sorted(arena.free)
        # Each is as long as it can be.
        assert all(start - 1 not in free and start + n not in free for start, n in arena.free)


def test_constants_are_in_order_and_joined_once() -> None:
    values = [bytes([k % 251]) * (4001 + 13 * k) for k in range(500)]
    storages = [Storage(CONSTANTS, len(value), data=value) for value in values]
    tracemalloc.start()
    try:
        blob, large = memory.place_constants([], [Buf(s, "uint8", (s.nbytes,)) for s in storages])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not large
    assert [blob[s.offset : s.offset + s.nbytes] for s in storages] == values
    assert all(s.offset % 64 == 0 for s in storages)
    assert peak < 1.2 * len(blob)


def test_passes_run_without_the_model_that_was_lowered() -> None:
    graph = Graph(
        "scaled", nodes=[Node("Mul", ["x", "w"], ["y"])], opsets={"": 17}, inputs=[Value("x", "float32", (2,))]
    )
    graph.initializers = {"w": from_numpy("w", np.ones(2, np.float32))}
    held = set()

    def observe(name: str, _: object) -> None:
        held.update(name for each in gc.get_objects() if isinstance(each, _Compilation))

    compile_model(graph, {"x": TensorType("float32", (2,))}, ["y"], observe=observe)
    assert not held
