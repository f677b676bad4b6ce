"""Run one kernel on numpy arrays: a plan of one instruction, operands walled in by canaries.

Inputs lie between NaN-filled walls, so that a value read from outside reaches the result; walls are checked then, and
the operand named by `last` ends where the memory ends, so that any read or write past it traps.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from tests.python.kernel_description import Kernel, kernels_of
from tests.python.plan_builder import DTYPES, RawPlan, check_status, instruction, words_of

from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine

BUILDS = ("kernels", "kernels.relaxed")
MEMORY_BYTES = 48 << 20
PLAN_BYTES = 4096
WALL = 64
Arrays = dict[str, np.ndarray]


class KernelRunner:
    """An instance of one build of the kernels."""

    def __init__(self, build: str) -> None:
        self.engine = WasmtimeEngine(build)
        self.engine.free(self.engine.alloc(MEMORY_BYTES))
        self.kernels = kernels_of(self.engine)

    def run(self, name: str, by_name: Mapping[str, Any] = MappingProxyType({}), last: str = "", **args: Any) -> Arrays:
        """Run kernel `name`; returns the operands it may write. The arguments are all but scratch."""
        kernel, args = self.kernels[name], {**by_name, **args}
        arrays = operands(kernel, args)
        order = sorted(arrays, key=lambda n: n == last)
        address = self.engine.alloc(PLAN_BYTES)
        block, where = self.place({n: arrays[n] for n in order}, wall_at_end=not last)
        plan = RawPlan(self.engine.description.fingerprint, [[*block, 1]])
        plan.buffers = [[0, where[n] - block[0], x.nbytes] for n, x in arrays.items()]
        plan.code = [instruction(kernel, words_of(kernel, args, {n: k for k, n in enumerate(arrays)}))]
        try:
            words = plan.encode()
            assert words.nbytes <= PLAN_BYTES
            self.engine.write(address, words)
            plan.place(self.engine, address)
            check_status(self.engine, address, self.engine.run(address))
            return self.collect(kernel, arrays, where)
        finally:
            self.engine.free(address)
            self.engine.free(block[0])

    def place(self, arrays: Arrays, wall_at_end: bool) -> tuple[tuple[int, int], dict[str, int]]:
        """Write the arrays to the end of memory with walls between them; returns the block and their addresses."""
        ptr = self.engine.alloc(64)
        self.engine.free(ptr)
        end = self.engine.memory_size()
        block = (self.engine.alloc(end - ptr), end - ptr)
        assert sum(block) == end
        at = end - (WALL if wall_at_end else 0)
        where = {}
        for n, x in reversed(arrays.items()):
            where[n] = at = (at - x.nbytes) & ~3
            at -= WALL
        assert at > ptr, "raise MEMORY_BYTES"
        self.low = at
        self.engine.write(at, b"\xff" * (end - at))
        for n, x in arrays.items():
            self.engine.write(where[n], x.tobytes())
        return block, where

    def collect(self, kernel: Kernel, arrays: Arrays, where: dict[str, int]) -> Arrays:
        """The operands that the kernel may write; no other, and no wall, has changed."""
        raw = np.frombuffer(self.engine.read(self.low, self.engine.memory_size() - self.low), np.uint8)
        outside = np.ones(len(raw), bool)
        results = {}
        for arg in kernel.args:
            if (x := arrays.get(arg.name)) is None:
                continue
            part = slice(where[arg.name] - self.low, where[arg.name] - self.low + x.nbytes)
            outside[part] = False
            data = raw[part].tobytes()
            assert arg.kind != "in" or data == x.tobytes(), f"{arg.name} was overwritten"
            if arg.kind in ("out", "inout"):
                results[arg.name] = np.frombuffer(data, x.dtype).reshape(x.shape)
        assert (raw[outside] == 0xFF).all(), "a wall was overwritten"
        return results


@cache
def runner(build: str) -> KernelRunner:
    """One instance per build for the whole test run."""
    return KernelRunner(build)


def operands(kernel: Kernel, args: dict[str, Any]) -> Arrays:
    """The arrays among the arguments, and scratch that is not among them."""
    arrays = {}
    for arg in kernel.args:
        if arg.is_pointer and args.get(arg.name) is not None:
            arrays[arg.name] = np.ascontiguousarray(args[arg.name])
        elif arg.kind == "scratch":
            garbage = np.nan if arg.type[0] == "f" else 77
            arrays[arg.name] = np.full(kernel.extent(arg, kernel.numbers(args)), garbage, DTYPES[arg.type])
    return arrays
