"""Passes of the compiler change no result: random graphs with all of them, without each, and in numpy float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ops.op_runner import run
from tests.python.random_graphs import RandomGraph
from trainweb.compiler import compile as compiler
from trainweb.compiler import memory

N_GRAPHS = 60
"""Per variant; a graph takes some 20 ms."""

WITHOUT: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "absorb_copies": (compiler, "absorb_copies", lambda instructions, outputs: instructions),
    "fuse_epilogues": (compiler, "fuse_epilogues", lambda instructions, outputs: instructions),
    "fuse_elementwise": (compiler, "fuse_elementwise", lambda instructions, outputs, emitter: instructions),
    "in_place": (memory, "_in_place_donor", lambda *args: None),
}


def check(seed: int, zero_sizes: bool = False) -> None:
    made = RandomGraph(seed, zero_sizes=zero_sizes)
    results = run(made.graph, made.feeds)
    for name, expected in made.expected().items():
        assert results[name].shape == expected.shape, f"seed {seed}: {name}"
        expected = expected.astype(np.float64)
        scale = max(1.0, np.abs(expected).max(initial=0))
        error = np.abs(results[name].astype(np.float64) - expected).max(initial=0) / scale
        assert error < 1e-4, f"seed {seed}: {name} is off by {error}"


@pytest.mark.parametrize("without", ["nothing", *WITHOUT])
def test_random_graphs_compute_what_numpy_computes(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if without != "nothing":
        monkeypatch.setattr(*WITHOUT[without])
    for seed in range(N_GRAPHS):
        check(seed)


def test_random_graphs_with_empty_tensors() -> None:
    for seed in range(N_GRAPHS):
        check(1000 + seed, zero_sizes=True)
