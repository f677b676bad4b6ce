"""The threads build under Node: the same bytes for any number of threads, and as on one thread natively."""

import base64
import hashlib
import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wasmtime
from tests.python.kernel_description import kernels_of
from tests.python.plan_builder import RawPlan, flat, instruction, stating, words_of

from trainweb.backend.wasm.codegen import assembler
from trainweb.backend.wasm.engine import Engine, get_engine
from trainweb.compiler import compile_model
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node runs the shared memory")
SCRIPT = Path(__file__).with_name("threads.mjs")

FILL = """(func (export "f0") (param i32 i32 i32)
    (loop $next
      (f32.store (i32.add (i32.load (local.get 0)) (i32.shl (local.get 1) (i32.const 2)))
        (f32.convert_i32_s (local.get 1)))
      (local.set 1 (i32.add (local.get 1) (i32.const 1)))
      (br_if $next (i32.lt_s (local.get 1) (local.get 2)))))"""
MODULE = '(module (import "env" "memory" (memory 0 65536 shared)) {body})'
TRAP = '(func (export "f0") (param i32 i32 i32) unreachable)'


class Job:
    """A plan over one block of float32 operands."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.arrays: list[np.ndarray] = []
        self.plan = RawPlan(engine.description.fingerprint)
        self.code: bytes | None = None

    def buffer(self, array: np.ndarray) -> int:
        self.arrays.append(array)
        self.plan.segments.append([0, array.nbytes, 1])
        self.plan.buffers.append([len(self.arrays) - 1, 0, array.nbytes])
        return len(self.arrays) - 1

    def call(self, name: str, **args: Any) -> None:
        kernel = kernels_of(self.engine)[name]
        for arg in kernel.args:
            if arg.kind == "scratch":
                args[arg.name] = np.zeros(kernel.extent(arg, args), np.float32)
        buffers = {
            a.name: self.buffer(args[a.name]) if isinstance(args[a.name], np.ndarray) else args[a.name]
            for a in kernel.args
            if a.is_pointer and args.get(a.name) is not None
        }
        self.plan.code.append(instruction(kernel, words_of(kernel, args, buffers)))

    def run_threads(self, *threads: int, repeat: int = 1) -> list[dict[str, Any]]:
        """The results with each number of threads, one after the other in one process."""
        job = {
            "wasm": str(resources.files("trainweb.backend.wasm.engine") / "kernels.threads.wasm"),
            "threads": threads,
            "repeat": repeat,
            "blocks": [base64.b64encode(a.tobytes()).decode() for a in self.arrays],
            "plan": base64.b64encode(self.plan.encode().tobytes()).decode(),
            "code": base64.b64encode(self.code).decode() if self.code else None,
            "functions": self.plan.n_functions,
        }
        assert NODE is not None
        done = subprocess.run(
            [NODE, str(SCRIPT)], input=json.dumps(job), capture_output=True, text=True, timeout=120, check=True
        )
        return json.loads(done.stdout)

    def run_natively(self) -> str:
        """Digest of all operands after a run on the single-threaded build."""
        blocks = [self.engine.alloc(a.nbytes) for a in self.arrays]
        for k, (block, array) in enumerate(zip(blocks, self.arrays, strict=True)):
            self.engine.write(block, array)
            self.plan.segments[k][0] = block
        words = self.plan.encode()
        address = self.engine.alloc(words.nbytes)
        self.engine.write(address, words)
        self.plan.place(self.engine, address)
        assert self.engine.run(address) == 0
        digest = hashlib.sha256()
        for block, array in zip(blocks, self.arrays, strict=True):
            digest.update(self.engine.read(block, array.nbytes))
            self.engine.free(block)
        self.engine.free(address)
        return digest.hexdigest()


@pytest.fixture
def job() -> Job:
    return Job(get_engine(reproducible=True))


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def big_kernels(job: Job) -> None:
    rows, n = 700, 96
    x, dy = draw(rows, n), draw(rows, n + 0)
    state = np.zeros(18, np.int32)
    state[1] = 0x3A83126F  # learning rate 1e-3
    state[10] = 77
    flat = {"n": rows * n}
    job.call("softmax_f32", x=x, y=np.zeros_like(x), outer=rows, n=n, inner=1, log=0)
    job.call(
        "layer_norm_grad_f32",
        dy=dy,
        x=x,
        scale=draw(n),
        mean=draw(rows),
        inv_std=np.abs(draw(rows)),
        dx=np.zeros_like(x),
        dscale=np.zeros(n, np.float32),
        dbias=np.zeros(n, np.float32),
        rows=rows,
        n=n,
        rms=0,
    )
    job.call("reduce_f32", x=x, y=np.zeros(n, np.float32), outer=1, n=rows, inner=n, op=0)
    job.call("reduce_f32", x=x, y=np.zeros(rows, np.float32), outer=rows, n=n, inner=1, op=7)
    job.call("clip_grad_norm_f32", g=draw(rows, n), max_norm=1.0, **flat)
    job.call(
        "dropout_f32",
        x=x,
        y=np.zeros_like(x),
        mask=np.zeros(x.size, np.uint8),
        state=state,
        ratio=0.4,
        salt=3,
        draw=1,
        **flat,
    )
    job.call(
        "strided_copy",
        src=x,
        dst=np.zeros_like(x),
        size=4,
        dims=[1] * 6 + [n, rows],
        src_offset=0,
        src_strides=[0] * 6 + [1, n],
        dst_offset=0,
        dst_strides=[0] * 6 + [rows, 1],
    )
    indices = np.random.default_rng(0).integers(0, 50, rows)
    job.call(
        "gather_grad_f32",
        indices=indices,
        dy=dy,
        dx=np.zeros((50, n), np.float32),
        outer=1,
        dim=50,
        n=rows,
        inner=n,
        index_size=8,
    )
    job.call(
        "batch_norm_train_f32",
        x=draw(16, 12, 400),
        scale=draw(12),
        bias=draw(12),
        y=np.zeros((16, 12, 400), np.float32),
        mean=np.zeros(12, np.float32),
        inv_std=np.zeros(12, np.float32),
        batch=16,
        channels=12,
        size=400,
        epsilon=1e-5,
        momentum=0.9,
    )
    job.call(
        "group_norm_grad_f32",
        dy=draw(16, 12, 401),
        x=draw(16, 12, 401),
        scale=draw(12),
        dx=np.zeros((16, 12, 401), np.float32),
        dscale=np.zeros(12, np.float32),
        dbias=np.zeros(12, np.float32),
        batch=16,
        channels=12,
        size=401,
        groups=3,
        epsilon=1e-5,
    )


def test_same_bytes_for_any_number_of_threads(job: Job) -> None:
    big_kernels(job)
    expected = job.run_natively()
    for threads, result in enumerate(job.run_threads(*range(1, 9)), 1):
        assert result["statuses"] == [0]
        assert result["ready"] == threads - 1
        assert result["digests"] == [expected], f"{threads} threads"


@pytest.mark.parametrize(("axes", "n_calls"), [((1,), 1), ((0,), 2), ((0, 1), 2)])
def test_generated_reductions(job: Job, monkeypatch: pytest.MonkeyPatch, axes: tuple[int, ...], n_calls: int) -> None:
    """Chunks of a chain in the scratch memory of their threads, behind the strips of a function."""
    graph = Graph("chain", opsets={"": 17})
    graph.nodes = [
        Node("Exp", ["x"], ["e"]),
        Node("Sub", ["e", "x"], ["d"]),
        Node("ReduceSum", ["d", "axes"], ["s"], {}),
    ]
    x = draw(3000, 90)
    graph.inputs, graph.initializers = [Value("x", "float32", x.shape)], {"axes": from_numpy("axes", np.array(axes))}
    monkeypatch.setattr(assembler, "MEMORY_LIMITS", b"\x03\x00\x80\x80\x04")  # shared, 0 to 65536 pages
    plan = compile_model(graph, {"x": TensorType("float32", x.shape)}, ["s"])
    assert len(plan.text) == n_calls and " -> " in plan.text[0]
    memory = np.zeros(plan.arena_bytes // 4, np.float32)
    memory[plan.inputs["x"].offset // 4 :][: x.size] = x.ravel()
    job.plan.n_functions = plan.n_functions
    monkeypatch.setattr(job.plan, "encode", lambda: np.frombuffer(plan.words, np.uint32))
    job.code, job.arrays = plan.code, [memory, np.frombuffer(plan.constants, np.uint8), *[np.zeros(0)] * 6]
    one, *others = (result["digests"] for result in job.run_threads(1, 2, 5, repeat=3))
    assert len(one) == 1 and others == [one, one]
    assert one != [hashlib.sha256(b"".join(a.tobytes() for a in job.arrays)).hexdigest()]


def test_many_small_forks(job: Job) -> None:
    """Thousands of jobs right after each other: late wakers must not disturb the next one."""
    for _ in range(15):
        job.call("reduce_f32", x=draw(400, 100), y=np.zeros(400, np.float32), outer=400, n=100, inner=1, op=7)
    (result,) = job.run_threads(4, repeat=250)
    assert result["statuses"] == [0]
    assert result["digests"] == [job.run_natively()]


def generated(job: Job, body: str, n: int) -> None:
    job.code = bytes(wasmtime.wat2wasm(MODULE.format(body=body + stating(flat(0)))))
    job.plan.n_functions = 1
    y = job.buffer(np.zeros(n, np.float32))
    words = [0, n, 1000, 1, 0, y, 4 * n, 1]
    job.plan.code = [[len(words) << 16, *words]]


def test_workers_load_generated_code(job: Job) -> None:
    generated(job, FILL, 100_000)
    expected = hashlib.sha256(np.arange(100_000, dtype=np.float32).tobytes()).hexdigest()
    (result,) = job.run_threads(3, repeat=20)
    assert (result["statuses"], result["digests"]) == ([0], [expected])


def test_a_trap_in_a_task_ends_the_run(job: Job) -> None:
    generated(job, TRAP, 100_000)
    with pytest.raises(subprocess.CalledProcessError) as failure:
        job.run_threads(1)
    assert "unreachable" in failure.value.stderr
    try:
        trapped = engine_status(job, "TW_TRAPPED")
        assert job.run_threads(3)[0]["statuses"] == [trapped]
    except subprocess.CalledProcessError as error:  # the coordinator took the first chunk
        assert "unreachable" in error.stderr


def engine_status(job: Job, name: str) -> int:
    return job.engine.description.status[name]
