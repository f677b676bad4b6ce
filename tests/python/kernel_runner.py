"""Run one kernel on numpy arrays: a plan of one instruction, operands walled in by canaries.

Inputs lie between NaN-filled walls, so that a value read from outside reaches the result; walls are checked then, and
the operand named by `last` ends where the memory ends, so that any read or write past it traps.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import wasmtime

PAGE = 65536
MEMORY_BYTES = 48 << 20
PLAN_BYTES = 4096
WALL = 64
NO_BUFFER = 0xFFFFFFFF
DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8}


class KernelRunner:
    """An instance of one build of the kernels."""

    def __init__(self, path: Path) -> None:
        config = wasmtime.Config()
        config.wasm_relaxed_simd = True
        self.store = wasmtime.Store(wasmtime.Engine(config))
        module = wasmtime.Module.from_file(self.store.engine, str(path))
        limits = next(i.type.limits for i in module.imports if i.name == "memory")
        self.memory = wasmtime.Memory(self.store, wasmtime.MemoryType(limits))
        self.memory.grow(self.store, MEMORY_BYTES // PAGE)
        now = wasmtime.Func(self.store, wasmtime.FuncType([], [wasmtime.ValType.f64()]), lambda: 0.0)
        provided = {"memory": self.memory, "now": now}
        instance = wasmtime.Instance(self.store, module, [provided[i.name] for i in module.imports])
        self.exports = instance.exports(self.store)
        at, size = self.call("tw_description"), self.call("tw_description_size")
        self.description = json.loads(self.memory.read(self.store, at, at + size))
        self.kernels = {k["name"]: k for k in self.description["kernels"]}

    def call(self, name: str, *args: int) -> Any:
        return self.exports[name](self.store, *args)

    def alloc(self, nbytes: int) -> int:
        ptr = self.call("tw_alloc", nbytes) & 0xFFFFFFFF
        assert ptr, "out of memory"
        return ptr

    def run(self, name: str, args: dict[str, Any], last: str = "") -> dict[str, np.ndarray]:
        """Run kernel `name`; returns the operands it may write. `args` has every argument but scratch."""
        kernel = self.kernels[name]
        sizes = {a["name"]: a for a in kernel["args"]}
        scalars = {
            k: (list(v) if isinstance(v, (list, tuple)) else v)
            for k, v in args.items()
            if sizes[k]["kind"] in ("i32", "s32", "f32")
        }
        arrays: dict[str, np.ndarray | None] = {}
        for a in kernel["args"]:
            if a["kind"] == "scratch":
                arrays[a["name"]] = np.full(evaluate(a["extent"], scalars), np.nan, DTYPES[a["type"]])
            elif a["kind"] in ("in", "out", "inout"):
                arrays[a["name"]] = args.get(a["name"])
        order = [n for n, x in arrays.items() if x is not None and n != last] + ([last] if last else [])
        plan = self.alloc(PLAN_BYTES)
        block, where = self.place({n: arrays[n] for n in order}, wall_at_end=not last)
        self.plan(plan, kernel, scalars, arrays, block, where)
        status = self.call("tw_run", plan)
        header = struct.unpack("<13I2q3I", self.memory.read(self.store, plan, plan + 80))
        self.call("tw_free", plan)
        self.call("tw_free", block[0])
        results = self.collect(kernel, arrays, where)
        if status:
            names = {code: text for text, code in self.description["status"].items()}
            raise KernelError(f"{names[status]}: instruction {header[12]}, value {header[13]}, at {header[14]}")
        return results

    def place(self, arrays: dict[str, np.ndarray], wall_at_end: bool) -> tuple[tuple[int, int], dict[str, int]]:
        """Write the arrays to the end of memory with walls between them; returns the block and their addresses."""
        ptr = self.alloc(64)
        self.call("tw_free", ptr)
        end = self.memory.data_len(self.store)
        block = (self.alloc(end - ptr), end - ptr)
        assert sum(block) == end
        at = end - (WALL if wall_at_end else 0)
        where = {}
        for n, x in reversed(arrays.items()):
            at = (at - x.nbytes) & ~3
            where[n] = at
            at -= WALL
        assert at > ptr, "raise MEMORY_BYTES"
        self.low = at
        self.memory.write(self.store, b"\xff" * (end - at), at)
        for n, x in arrays.items():
            if x.nbytes:
                self.memory.write(self.store, np.ascontiguousarray(x).tobytes(), where[n])
        return block, where

    def plan(self, plan: int, kernel: Any, scalars: Any, arrays: Any, block: Any, where: Any) -> None:
        words: list[int] = []
        buffers: list[int] = []
        for a in kernel["args"]:
            n = a["name"]
            if n in arrays:
                if arrays[n] is None:
                    words.append(NO_BUFFER)
                    continue
                words.append(len(buffers) // 3)
                buffers += [0, where[n] - block[0], arrays[n].nbytes]
            else:
                values = scalars[n] if a["count"] > 1 else [scalars[n]]
                assert len(values) == a["count"], n
                kind = "f" if a["kind"] == "f32" else "i"
                words += struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}{kind}", *values))
        code = [kernel["opcode"] | len(words) << 16, *words]
        total = 20 + 3 + len(buffers) + 2 * len(code)
        fingerprint = self.description["fingerprint"]
        header = [0x4C505754, 1, total, fingerprint, 0, 1, len(buffers) // 3, len(code), 1, *[0] * 11]
        data = [*header, block[0], block[1], 1, *buffers, *code, *[0] * len(code)]
        assert 4 * total <= PLAN_BYTES
        self.memory.write(self.store, struct.pack(f"<{total}I", *data), plan)
        self.memory.write(self.store, struct.pack("<2I", *block), self.call("tw_place_table", 1))
        assert self.call("tw_place", plan, 1, 0) == 0

    def collect(self, kernel: Any, arrays: Any, where: Any) -> dict[str, np.ndarray]:
        raw = np.frombuffer(self.memory.read(self.store, self.low, self.memory.data_len(self.store)), np.uint8)
        outside = np.ones(len(raw), bool)
        results = {}
        for a in kernel["args"]:
            x = arrays.get(a["name"])
            if x is None:
                continue
            lo = where[a["name"]] - self.low
            outside[lo : lo + x.nbytes] = False
            got = raw[lo : lo + x.nbytes].view(x.dtype).reshape(x.shape).copy()
            if a["kind"] == "in":
                assert got.tobytes() == np.ascontiguousarray(x).tobytes(), f"{a['name']} was overwritten"
            elif a["kind"] != "scratch":
                results[a["name"]] = got
        assert (raw[outside] == 0xFF).all(), "a wall was overwritten"
        return results


class KernelError(Exception):
    """A kernel or the verifier refused."""


def evaluate(extent: str, scalars: dict[str, Any]) -> int:
    """The extent expression of kernels.def, as the description holds it."""

    def prod(x):
        return int(np.prod(x, dtype=object))

    names = {"max": max, "min": min, "ceil4": lambda n: -(-n // 4) * 4, "prod": prod}
    return int(eval(extent, {"__builtins__": {}}, {**names, **scalars}))
