"""The Python engine in a notebook: the script and the kernels come out of the wheel."""

import pytest
from playwright.sync_api import Browser

from .conftest import open_kernel
from .kernel import Kernel, PythonError
from .server import Site

PLAN = """
import struct
from trainweb.ir import calls

def copy_plan(engine, x, y, nbytes, writable=1):
    opcode = calls.Copy.OPCODE
    segments = [x, nbytes, 0, y, nbytes, writable]
    buffers = [0, 0, nbytes, 1, 0, nbytes]
    code = [opcode | 3 << 16, 0, 1, nbytes]
    total = 20 + len(segments) + len(buffers) + 2 * len(code)
    header = [0x4C505754, 1, total, engine.description.fingerprint, 0, 2, 2, len(code), 1] + [0] * 11
    words = header + segments + buffers + code + [0] * len(code)
    plan = engine.alloc(4 * len(words))
    engine.write(plan, struct.pack(f"<{len(words)}I", *words))
    engine.write(engine.call("tw_place_table", 2), struct.pack("<4I", x, nbytes, y, nbytes))
    assert engine.call("tw_place", plan, 2, 0) == 0
    return plan
"""

SETUP = f"""
from trainweb.backend.wasm.engine import get_engine
from trainweb.errors import EngineError
engine = get_engine(reproducible=True)
{PLAN}
"""


@pytest.fixture(scope="module")
def kernel(pyodide_page: Kernel) -> Kernel:
    return pyodide_page


def test_builds(kernel: Kernel) -> None:
    assert kernel.run(f"{SETUP}\n[engine.build, engine.threads]") == ["kernels", 1]
    assert kernel.run(f"{SETUP}\nget_engine().build") == "kernels.relaxed"


@pytest.mark.parametrize(
    "data",
    [
        "b'0123456789abcdef'",
        "bytearray(b'0123456789abcdef')",
        "memoryview(b'..0123456789abcdef')[2:]",
        "__import__('array').array('d', [1.5, -2.5])",
        "__import__('numpy').arange(4, dtype='float32').reshape(2, 2)",
        "memoryview(__import__('numpy').arange(2, dtype='int64'))",
    ],
)
def test_any_contiguous_buffer_is_written_and_read_back(kernel: Kernel, data: str) -> None:
    result = kernel.run(
        f"""{SETUP}
data = {data}
ptr = engine.alloc(16)
engine.write(ptr, data)
out = bytearray(16)
engine.read_into(ptr, out)
half = memoryview(bytearray(20))[2:10]
engine.read_into(ptr + 8, half)
floats = __import__("array").array("f", [0.0] * 4)
engine.read_into(ptr, floats)
same = engine.read(ptr, 16) == bytes(memoryview(data).cast("B")) == bytes(out)
engine.free(ptr)
same and bytes(half) == bytes(out[8:]) and floats.tobytes() == bytes(out)
"""
    )
    assert result is True


def test_a_plan_runs(kernel: Kernel) -> None:
    assert kernel.run(
        f"""{SETUP}
x, y = engine.alloc(32), engine.alloc(32)
engine.write(x, bytes(range(32)))
status = engine.run(copy_plan(engine, x, y, 32))
[status, engine.read(y, 32) == bytes(range(32)), engine.bytes_in_use() > 0, engine.memory_size() > 65536]
"""
    ) == [0, True, True, True]


def test_status_of_a_plan_that_does_not_verify(kernel: Kernel) -> None:
    assert kernel.run(
        f"""{SETUP}
x = engine.alloc(32)
plan = copy_plan(engine, x, x, 32, writable=0)
status = engine.run(plan)
[engine.description.status_name(status), engine.plan_status(plan).instruction]
"""
    ) == ["TW_READ_ONLY", 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("engine.alloc(2**32 - 100_000)", "out of memory"),
        ("engine.alloc(2**40)", "out of memory"),
        ("engine.free(12345)", "not an allocated block"),
        ("engine.write(engine.memory_size() - 4, bytes(8))", "outside the memory"),
        ("engine.read(engine.memory_size() - 4, 8)", "outside the memory"),
        ("engine.write(engine.alloc(8), memoryview(bytes(16))[::2])", "C-contiguous"),
        ("engine.read_into(engine.alloc(8), bytes(8))", "writable"),
        ("engine.load_code(b'\\0asm\\1\\0\\0')", "generated code does not load"),
    ],
)
def test_refusals_are_engine_errors(kernel: Kernel, call: str, text: str) -> None:
    message = kernel.run(
        f"""{SETUP}
try:
    {call}
    message = None
except EngineError as e:
    message = str(e)
message
"""
    )
    assert message is not None
    assert text in message


def test_memory_grows_under_python(kernel: Kernel) -> None:
    assert kernel.run(
        f"""{SETUP}
ptrs = [engine.alloc(3_000_000) for _ in range(8)]
for k, ptr in enumerate(ptrs):
    engine.write(ptr, bytes([k]) * 3_000_000)
kept = all(engine.read(ptr, 3_000_000) == bytes([k]) * 3_000_000 for k, ptr in enumerate(ptrs))
for ptr in ptrs:
    engine.free(ptr)
kept
"""
    )


def test_no_proxy_is_left_behind(kernel: Kernel) -> None:
    """Every buffer lent to the script is given back: thousands of writes leave the heap as it was."""
    assert kernel.run(
        f"""{SETUP}
import gc, sys
ptr = engine.alloc(1000)
data = bytearray(1000)
for _ in range(2000):
    engine.write(ptr, data)
    engine.read(ptr, 1000)
data.append(1)  # a BufferError while anyone holds the buffer
gc.collect()
sys.getrefcount(data)
"""
    ) == kernel.run("import sys\ndata = bytearray(1000)\nsys.getrefcount(data)")


def test_errors_in_python_are_reported(kernel: Kernel) -> None:
    with pytest.raises(PythonError, match="EngineError"):
        kernel.run(f"{SETUP}\nengine.free(7)")


def test_beyond_2_gib_nothing_is_copied_from_or_to_a_wrong_place(browser: Browser, plain_site: Site) -> None:
    """A notebook's Python may grow to 4 GiB; Pyodide copies wrong bytes from there, and without an error."""
    with open_kernel(browser, plain_site) as opened:
        opened.install()
        found = opened.run(
            f"""{SETUP}
import numpy as np
from trainweb.errors import LimitError

def refused(call, *arguments):
    try:
        call(*arguments)
        return False
    except LimitError as e:
        return "beyond 2 GiB" in str(e)

size = 2**22
low = bytes(range(256)) * (size // 256)
low_array = np.frombuffer(bytearray(low), np.uint8)
ptr = engine.alloc(size)
engine.write(ptr, low)
held = []
while not held or id(held[-1]) < 2**31:
    held.append(bytes(2**26))
high = bytes([7]) * size
high_array = np.full(size, 7, np.uint8)
assert id(high) > 2**31 and high_array.ctypes.data > 2**31
outcome = [
    refused(engine.write, ptr, high), refused(engine.write, ptr, memoryview(high)[5:]),
    refused(engine.write, ptr, high_array), refused(engine.write, ptr, bytearray(high)),
    refused(engine.read, ptr, size), refused(engine.read_into, ptr, high_array),
    int(high_array.min()) == int(high_array.max()) == 7,
]
del held, high, high_array
outcome.append(engine.read(ptr, size) == low)
engine.write(ptr, low_array[::-1].copy())
outcome.append(engine.read(ptr, size) == low[::-1])
engine.free(ptr)
outcome
"""
        )
    assert found == [True] * 9
