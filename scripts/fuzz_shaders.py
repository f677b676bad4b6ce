"""Run random graphs on a GPU, and compare them with the kernels and with numpy in float64.

    python scripts/fuzz_shaders.py [--minutes M] [--graphs N] [--seed S]

Graphs are chains of expressions, products, reductions, copies and norms, of small and of uneven sizes. All forms of
dispatches run, on the GPU of the package wgpu, such as Mesa's lavapipe (docs/architecture-webgpu.md). Ends after so
many minutes or graphs, whatever is first; with 1 where a result was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "py_src"), str(ROOT)]

from tests.ops.op_runner import run as run_on_kernels  # noqa: E402
from tests.python import random_graphs  # noqa: E402
from tests.webgpu import operators  # noqa: E402

from trainweb.errors import UnsupportedError  # noqa: E402

TOLERANCE = 1e-4
"""Of the largest number of a result."""
MAX_SIZE = 30_000


class UnevenGraph(random_graphs.RandomGraph):
    """A graph whose sizes are beside those of tiles and workgroups."""

    def shape(self) -> tuple[int, ...]:
        return tuple(self.pick((1, 3, 17, 33, 64, 67)) for _ in range(int(self.rng.integers(1, 3))))

    def matmul(self) -> None:
        a = self.tensor()
        if self.values[a].ndim > 1:
            width = self.pick((1, 2, 5, 33, 70))
            (product,) = self.node("MatMul", [a, self.feed((self.values[a].shape[-1], width))])
            self.node("Mul", [product, self.constant(self.values[a].shape[-1] ** -0.5, "float32")])


def differences(results: dict[str, np.ndarray], made: random_graphs.RandomGraph) -> list[str]:
    """Results that are not those of float64."""
    wrong = []
    for name, expected in made.expected().items():
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        error = np.abs(results[name].astype(np.float64) - expected).max(initial=0) / scale
        if not error < TOLERANCE:
            wrong.append(f"{name} is off by {error}")
    return wrong


def check(made: random_graphs.RandomGraph) -> list[str]:
    """What is wrong with a graph on the kernels, and on the GPU in each form; none: all is right."""
    wrong = [f"kernels: {text}" for text in differences(run_on_kernels(made.graph.copy(), made.feeds), made)]
    for found in operators.runs(made.graph.copy(), made.feeds):
        wrong += [f"GPU: {text}" for text in differences(found, made)]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--graphs", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first graph; the others follow")
    arguments = parser.parse_args()
    end, failures, refused, seed = time.monotonic() + 60 * arguments.minutes, 0, 0, arguments.seed
    random_graphs.MAX_SIZE = MAX_SIZE
    warnings.simplefilter("ignore")  # about the graphs, as a user should know of a model
    while time.monotonic() < end and seed < arguments.seed + arguments.graphs:
        made = (random_graphs.RandomGraph, UnevenGraph)[seed % 2](seed)
        try:
            wrong = check(made)
        except UnsupportedError as error:
            refused += 1
            wrong = [] if "there is no GPU kernel" in str(error) else [str(error)]
        for text in wrong:
            failures += 1
            print(f"seed {seed}: {text}", flush=True)
        seed += 1
    print(f"{seed - arguments.seed} graphs from seed {arguments.seed}: {failures} wrong results, {refused} refused")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
