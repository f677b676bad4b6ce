"""Random calls of any kernel: arguments that it accepts, and buffers of exactly the extents it asks for."""

import random
from typing import Any

import numpy as np
from tests.python.kernel_description import Kernel
from tests.python.plan_builder import DTYPES

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 16)


class Call:
    """Random arguments of a kernel, with buffers of exactly the extents it asks for."""

    def __init__(self, kernel: Kernel, rng: random.Random) -> None:
        self.kernel = kernel
        self.args: dict[str, Any] = {}
        self.valid = False
        for _ in range(400):
            self.args = {a.name: self.scalar(a.name, a.kind, a.count, rng) for a in kernel.args if not a.is_pointer}
            if self.acceptable():
                self.valid = True
                break
        noise = np.random.default_rng(rng.getrandbits(32))
        self.buffers: dict[str, np.ndarray] = {}
        if not self.valid:
            return
        for arg in kernel.args:
            if arg.is_pointer and not (arg.optional and rng.random() < 0.3):
                n, dtype = kernel.extent(arg, self.args), DTYPES[arg.type]
                if arg.type in ("f32", "f64"):
                    self.buffers[arg.name] = noise.standard_normal(n).astype(dtype)
                else:
                    self.buffers[arg.name] = noise.integers(0, 2, n).astype(dtype) * (rng.random() < 0.3)

    @staticmethod
    def scalar(name: str, kind: str, count: int, rng: random.Random) -> Any:
        if kind == "f32":
            return rng.choice([0.0, 0.5, 1.0, 1e-5])
        if name.endswith(("index_size", "label_size")):
            return rng.choice([4, 8])
        if name == "size" and count == 1 and rng.random() < 0.7:
            return rng.choice([1, 4, 8])
        values = [rng.choice(SIZES) if kind == "i32" else rng.randint(-5, 5) for _ in range(count)]
        if count == 8:
            values = [v if rng.random() < 0.3 else 1 for v in values]
        elif count > 1:
            values = [max(v, rng.choice([0, 1, 1, 1])) for v in values]
        return values if count > 1 else values[0]

    def acceptable(self) -> bool:
        try:
            if not self.kernel.holds(self.args):
                return False
            extents = [self.kernel.extent(a, self.args) for a in self.kernel.args if a.is_pointer]
        except ZeroDivisionError:
            return False
        return all(0 <= n <= 20_000 for n in extents)
