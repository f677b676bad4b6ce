"""Write small plans by hand: below the compiler."""

import functools
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.python.kernel_description import Kernel

from trainweb.backend.wasm.engine import Engine
from trainweb.errors import EngineError

MAGIC, VERSION, HEADER_WORDS, NO_BUFFER = 0x4C505754, 1, 20, 0xFFFFFFFF
DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8}


class PlanFailed(Exception):
    """A run that returned a status."""

    def __init__(self, name: str, instruction: int | None, value: int, position: int, classes: int) -> None:
        super().__init__(f"{name} in instruction {instruction}: value {value} at {position}")
        self.name, self.instruction, self.value, self.position = name, instruction, value, position
        self.classes = classes


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
            outcome.classes,
        )


def ulp_error(actual: np.ndarray, exact: np.ndarray) -> float:
    """Largest error of float32 results in units of the last place of the exact (float64) ones."""
    exact = np.asarray(exact, np.float64)
    finite = np.isfinite(exact) & (np.abs(exact) <= np.finfo(np.float32).max)
    spacing = np.spacing(np.maximum(np.abs(exact[finite]), np.finfo(np.float32).tiny).astype(np.float32))
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(actual[finite].astype(np.float64) - exact[finite]) / spacing))
