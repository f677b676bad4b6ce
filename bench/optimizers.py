"""A step of every optimizer on matrices, natively on one thread, in turns with a copy of as many bytes.

.venv/bin/python bench/optimizers.py [--rounds 20] [--size 512] [--count 16]

Needed is the time in which the copy moves the words of `traffic.py`; measured/needed above 1.15 misses the bar. Muon's
steps are products: their operations a second, beside a single product of 256 x 256 matrices in the same engine.
`bench/kernels/bench_kernels.py memory` times single kernels in Chromium.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from step_profile import fastest
from traffic import TRAFFIC

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.python.kernel_description import kernels_of
from tests.python.plan_builder import RawPlan, instruction, words_of

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.backend.wasm.engine import Engine

OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{name: {"type": name} for name in TRAFFIC if name != "Momentum"},
    "Momentum": {"type": "SGD", "momentum": 0.9},
    "Muon": {"type": "Muon"},
}
PRODUCT = 256
PROFILED = 5
"""Steps of Muon whose products are timed one by one."""


def model(size: int, count: int) -> Any:
    """x W1 + x W2 + ..., all square: gradients are of one size, none so small that its square is subnormal."""
    names = [f"w{k}" for k in range(count)]
    nodes = [helper.make_node("MatMul", ["x", name], [f"y{k}"]) for k, name in enumerate(names)]
    nodes.append(helper.make_node("Sum", [f"y{k}" for k in range(count)], ["y"]))
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((size, size)).astype(np.float32) / size**0.5 for _ in names]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [numpy_helper.from_array(w, name) for w, name in zip(weights, names, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session_of(made: Any, optimizer: dict[str, Any], **settings: Any) -> trainweb.TrainingSession:
    """A session with gradients."""
    files = build_artifacts(made, loss="MSELoss", optimizer=optimizer, **settings)
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    session = trainweb.TrainingSession(state, files.training_model, None, files.optimizer_model)
    session.train_step({n: np.ones(session.input_metadata()[0].shape, np.float32) for n in session.input_names()}, [])
    return session


def one_call(engine: Engine, name: str, buffers: dict[str, int], **args: Any) -> Callable[[], None]:
    """Runs a kernel on buffers of so many bytes, filled with ones."""
    kernel = kernels_of(engine)[name]
    plan = RawPlan(engine.description.fingerprint)
    for nbytes in buffers.values():
        address = engine.alloc(nbytes)
        engine.write(address, np.ones(nbytes // 4, np.float32).data)
        plan.buffers.append([len(plan.segments), 0, nbytes])
        plan.segments.append([address, nbytes, 1])
    plan.code = [instruction(kernel, words_of(kernel, args, {n: k for k, n in enumerate(buffers)}))]
    encoded = plan.encode()
    address = engine.alloc(encoded.nbytes)
    engine.write(address, encoded.data)
    plan.place(engine, address)

    def run() -> None:
        if status := engine.run(address):
            raise RuntimeError(f"{name} failed with status {status}.")

    return run


def product(engine: Engine) -> Callable[[], None]:
    """A product of square matrices."""
    n = PRODUCT
    strides = dict.fromkeys(("a_row", "b_row", "c_row"), n) | dict.fromkeys(("a_col", "b_col"), 1)
    pairs = dict.fromkeys(("a_batch", "b_batch", "c_batch", "bias_batch"), (0, 0)) | {"batch": (1, 1)}
    zeros = dict.fromkeys(("bias_row", "bias_col", "accumulate", "activation", "clears"), 0)
    sizes = {"m": n, "n": n, "k": n, "alpha": 1.0, "beta": 0.0}
    return one_call(engine, "gemm_f32", dict.fromkeys("abc", 4 * n * n), **strides, **pairs, **zeros, **sizes)


def products_of(session: trainweb.TrainingSession, runs: int) -> tuple[float, float]:
    """Operations of the products of an optimizer step, and milliseconds that they take, each its fastest."""
    core = session._core
    plan = core.optimizer_plan()
    flops = milliseconds = 0.0
    for text, took in zip(plan.plan.text, fastest(core, plan, {}, runs), strict=True):
        if found := re.search(r"gemm_f32\(.*\bm=(\d+), n=(\d+), k=(\d+)", text):
            m, n, k = map(int, found.groups())
            flops += 2 * m * n * k
            milliseconds += took
    return flops, milliseconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--count", type=int, default=16)
    given = parser.parse_args()
    made = model(given.size, given.count)
    elements = given.count * given.size**2
    words = {name: given.count * traffic.words(given.size**2) for name, traffic in TRAFFIC.items()}
    sessions = {name: session_of(made, settings) for name, settings in OPTIMIZERS.items()}
    sessions["AdamW, ema"] = session_of(made, {"type": "AdamW"}, ema={"decay": 0.999})
    words["AdamW, ema"] = words["AdamW"] + 3 * given.count
    engine = sessions["SGD"]._core.engine
    nbytes = 4 * elements
    jobs: dict[str, Callable[[], Any]] = {
        "copy": one_call(engine, "copy", {"src": nbytes, "dst": nbytes}, n=nbytes),
        "product": product(engine),
        **{name: session.optimizer_step for name, session in sessions.items()},
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(given.rounds):
        for name, job in jobs.items():
            start = perf_counter()
            job()
            times[name].append(perf_counter() - start)
    report(given, {name: min(t) for name, t in times.items()}, words)
    flops, milliseconds = products_of(sessions["Muon"], min(given.rounds, PROFILED))
    rate, best = flops / milliseconds / 1e6, 2 * PRODUCT**3 / min(times["product"]) / 1e9
    share = milliseconds / (1e3 * min(times["Muon"]))
    print(
        f"{'Muon':12} {1e3 * min(times['Muon']):8.2f} ms, {100 * share:.0f} % products: {flops / 1e9:.2f} GFLOP at"
        f" {rate:.1f} GFLOP/s, {rate / best:.2f} of a product of {PRODUCT} x {PRODUCT} ({best:.1f})"
    )


def report(given: argparse.Namespace, times: dict[str, float], words: dict[str, int]) -> None:
    """A line for each optimizer that memory limits."""
    nbytes = 4 * given.size**2
    copied = 2 * given.count * nbytes / times["copy"]
    print(f"{given.count} matrices of {given.size} x {given.size}; a copy moves {copied / 1e9:.1f} GB/s")
    for name, count in words.items():
        needed = nbytes * count / copied
        print(
            f"{name:12} {1e3 * times[name]:8.2f} ms {count // given.count:2} words"
            f" {nbytes * count / times[name] / 1e9:5.1f} GB/s, measured/needed {times[name] / needed:5.2f}"
        )


if __name__ == "__main__":
    main()
