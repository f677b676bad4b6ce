"""Write small plans by hand: run single kernels on numpy arrays, below the compiler."""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.python.kernel_description import Kernel, kernels_of

from trainweb.backend.wasm.engine import Engine
from trainweb.errors import EngineError

MAGIC, VERSION, HEADER_WORDS, NO_BUFFER = 0x4C505754, 1, 20, 0xFFFFFFFF
DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8}
GUARD = 0xA5


class PlanFailed(Exception):
    """A run that returned a status."""

    def __init__(self, name: str, instruction: int | None, value: int, position: int) -> None:
        super().__init__(f"{name} in instruction {instruction}: value {value} at {position}")
        self.name, self.instruction, self.value, self.position = name, instruction, value, position


def words_of(kernel: Kernel, args: dict[str, Any], buffers: dict[str, int]) -> list[int]:
    """The argument words of one instruction; `buffers` maps pointer arguments to buffer indices."""
    words: list[int] = []
    for arg in kernel.args:
        if arg.is_pointer:
            words.append(buffers.get(arg.name, NO_BUFFER))
        elif arg.kind == "f32":
            words.append(struct.unpack("<I", struct.pack("<f", args[arg.name]))[0])
        else:
            value = args[arg.name]
            values = list(value) if arg.count > 1 else [value]
            assert len(values) == arg.count, (kernel.name, arg.name)
            words += [int(v) & 0xFFFFFFFF for v in values]
    return words


@dataclass
class RawPlan:
    """A plan as lists, which tests may spoil before encoding."""

    fingerprint: int
    segments: list[list[int]] = field(default_factory=list)
    buffers: list[list[int]] = field(default_factory=list)
    code: list[list[int]] = field(default_factory=list)
    code_base: int = 0
    n_functions: int = 0

    def encode(self) -> np.ndarray:
        code = [word for instruction in self.code for word in instruction]
        segments, buffers = (
            functools.reduce(operator.iadd, self.segments, []),
            functools.reduce(operator.iadd, self.buffers, []),
        )
        total = HEADER_WORDS + len(segments) + len(buffers) + 2 * len(code)
        header = [
            MAGIC,
            VERSION,
            total,
            self.fingerprint,
            0,
            len(self.segments),
            len(self.buffers),
            len(code),
            len(self.code),
            self.code_base,
            self.n_functions,
        ] + [0] * 9
        words = header + segments + buffers + code + [0] * len(code)
        return np.array([w & 0xFFFFFFFF for w in words], np.uint32)

    def place(self, engine: Engine, address: int) -> None:
        """Give the plan written to `address` its segments and functions."""
        place(engine, address, [(base, nbytes) for base, nbytes, _ in self.segments], self.code_base)


def place(engine: Engine, plan: int, segments: Sequence[tuple[int, int]], code_base: int) -> None:
    """Place a plan on segments that are no session's: address and size of each."""
    table = engine.call("tw_place_table", len(segments))
    if not table:
        raise EngineError(f"No plan can have {len(segments)} segments.")
    engine.write(table, np.array(segments, np.uint32).data)
    status = engine.call("tw_place", plan, len(segments), code_base)
    if status:
        raise EngineError(f"No plan can be placed at {plan:#x}: {engine.description.status_name(status)}.")


def stating(*functions: Sequence[int]) -> str:
    """In the text format the section in which hand-written functions state what they access (`FunctionSpec.access`)."""
    content = "".join(f"\\{byte:02x}" for function in functions for byte in function)
    return f'(@custom "trainweb.access" "{content}")'


def flat(n_in: int, item: int = 4) -> list[int]:
    """The statement of a function with one result that reads its inputs element by element."""
    return [n_in, *[item, 1] * n_in, 1, item, 0, 0, 1, 0]


def instruction(kernel: Kernel, words: list[int]) -> list[int]:
    """Opcode word and arguments."""
    return [kernel.opcode | len(words) << 16, *words]


def check_status(engine: Engine, plan: int, status: int) -> None:
    """Raise PlanFailed unless the run succeeded."""
    if status:
        outcome = engine.plan_status(plan)
        raise PlanFailed(
            engine.description.status_name(status),
            outcome.instruction,
            outcome.value,
            outcome.position,
        )


def run_kernel(engine: Engine, name: str, repeat: int = 1, **args: Any) -> dict[str, np.ndarray]:
    """Run one kernel on arrays; returns the contents of its out and inout arguments.

    Every array is in a separate segment that ends with it, between guard bytes that must survive. An
    absent optional pointer is left out or None; scratch is made here, full of NaN.
    """
    kernel = kernels_of(engine)[name]
    numbers = kernel.numbers(args)
    plan = RawPlan(engine.description.fingerprint)
    buffers: dict[str, int] = {}
    blocks: dict[str, tuple[int, np.ndarray, int]] = {}
    for arg in kernel.args:
        if not arg.is_pointer:
            continue
        if arg.kind == "scratch":
            array = np.full(kernel.extent(arg, numbers), np.nan if arg.type[0] == "f" else 77, DTYPES[arg.type])
        elif args.get(arg.name) is None:
            continue
        else:
            array = np.ascontiguousarray(args[arg.name])
        nbytes = array.nbytes
        block = engine.alloc(nbytes + 128)
        engine.write(block, bytes([GUARD]) * (nbytes + 128))
        engine.write(block + 64, array.tobytes())
        buffers[arg.name] = len(plan.segments)
        plan.segments.append([block + 64, nbytes, int(arg.kind != "in")])
        plan.buffers.append([buffers[arg.name], 0, nbytes])
        blocks[arg.name] = (block, array, nbytes)
    plan.code = [instruction(kernel, words_of(kernel, args, buffers))] * repeat
    encoded = plan.encode()
    address = engine.alloc(encoded.nbytes)
    engine.write(address, encoded.data)
    results = {}
    try:
        plan.place(engine, address)
        check_status(engine, address, engine.run(address))
        for arg in kernel.args:
            if arg.name in blocks:
                block, array, nbytes = blocks[arg.name]
                data = engine.read(block, nbytes + 128)
                assert set(data[:64] + data[64 + nbytes :]) == {GUARD}, f"{name} wrote beyond {arg.name}"
                if arg.kind in ("out", "inout"):
                    results[arg.name] = np.frombuffer(data[64 : 64 + nbytes], array.dtype).reshape(array.shape)
                elif arg.kind == "in":
                    assert data[64 : 64 + nbytes] == array.tobytes(), f"{name} changed its input {arg.name}"
    finally:
        engine.free(address)
        for block, _, _ in blocks.values():
            engine.free(block)
    return results


def ulp_error(actual: np.ndarray, exact: np.ndarray) -> float:
    """Largest error of float32 results in units of the last place of the exact (float64) ones."""
    exact = np.asarray(exact, np.float64)
    finite = np.isfinite(exact) & (np.abs(exact) <= np.finfo(np.float32).max)
    spacing = np.spacing(np.maximum(np.abs(exact[finite]), np.finfo(np.float32).tiny).astype(np.float32))
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(actual[finite].astype(np.float64) - exact[finite]) / spacing))
