"""One call on the GPU: feeds in, a result between canaries out."""

import struct
from collections.abc import Iterator

import numpy as np
from tests.webgpu.host import GpuHost, forms_of, no_segments

from trainweb.backend.base import STATE_BYTES
from trainweb.backend.chosen import RUNTIME, WASM, WEBGPU, target_of
from trainweb.ir.builder import Builder
from trainweb.ir.instructions import Buf, Storage
from trainweb.ir.layout import ARENA, STATE, STATE_WORDS
from trainweb.ir.program import Program
from trainweb.model.graph import Tensor
from trainweb.training.arrays import from_numpy, to_numpy

CANARY = 256
"""Bytes before and behind a result that no kernel may change."""


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float = 2e-6) -> None:
    """Equal within a part of the largest element, and NaN and infinities in the same places."""
    wanted = np.asarray(wanted)
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
    scale = max(1.0, float(np.abs(wanted[finite]).max(initial=0)))
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=0, atol=tolerance * scale)


class Case:
    """Operands of calls, and what they hold before."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = Builder()
        self.builder.node = "node"
        self.state = struct.pack(f"<{STATE_WORDS}I", *range(STATE_WORDS))
        self._feeds: dict[str, tuple[Buf, np.ndarray]] = {}
        self._results: dict[str, Buf] = {}

    def feed(self, array: np.ndarray) -> Buf:
        """A tensor with these values."""
        array = np.ascontiguousarray(array)
        name = f"feed{len(self._feeds)}"
        b = Buf(Storage(ARENA, array.nbytes, is_feed=True), str(array.dtype), array.shape, name=name)
        self._feeds[name] = b, array
        return b

    def normal(self, *shape: int) -> Buf:
        """A tensor of normal numbers."""
        return self.feed(self.rng.standard_normal(shape).astype(np.float32))

    def integers(self, low: int, high: int, *shape: int) -> Buf:
        """A tensor of integers in [low, high)."""
        return self.feed(self.rng.integers(low, high, shape))

    def results(self, *shapes: tuple[int, ...]) -> list[Buf]:
        """Float32 tensors between canaries, which hold normal numbers before."""
        return [self.result(shape, self.rng.standard_normal(shape)) for shape in shapes]

    def result(self, shape: tuple[int, ...], before: np.ndarray | None = None) -> Buf:
        """A float32 tensor between canaries; `before` is what it holds."""
        size = int(np.prod(shape))
        whole = self.rng.integers(0, 255, 2 * CANARY + 4 * size, np.uint8)
        if before is not None:
            whole[CANARY : CANARY + 4 * size] = np.ascontiguousarray(before, np.float32).reshape(-1).view(np.uint8)
        name = f"result{len(self._results)}"
        storage = Storage(ARENA, whole.nbytes, is_feed=True)
        self._feeds[name] = Buf(storage, "uint8", whole.shape, name=name), whole
        self._results[name] = Buf(storage, "float32", shape, shift=CANARY, name=name)
        return self._results[name]

    def other(self, dtype: str, shape: tuple[int, ...]) -> Buf:
        """A tensor of another type, without canaries."""
        name = f"result{len(self._results)}"
        b = Buf(self.builder.temp(dtype, shape).storage, dtype, shape, name=name)
        self._results[name] = b
        return b

    def compare(self, tolerance: float = 2e-6) -> list[np.ndarray]:
        """The results on the GPU, which are those of the kernels; other tests compare these with float64 numpy."""
        program, tensors, sizes = self._program()
        kernels = RUNTIME.open_host(RUNTIME.get_engine(), sizes)
        kernels.write_segment(STATE, 0, self.state)
        loaded = kernels.load(target_of(WASM).compile_program(program, sizes, 1 << 30))
        kernels.write_feeds(loaded, tensors)
        kernels.run(loaded)
        wanted = [self._checked(n, to_numpy(t)) for n, t in kernels.read_outputs(loaded, self._results).items()]
        kernels.release()
        for results in self._runs():
            for found, expected in zip(results, wanted, strict=True):
                close(found, expected, tolerance)
        return results

    def run(self) -> list[np.ndarray]:
        """The results on the GPU."""
        return next(self._runs())

    def _program(self) -> tuple[Program, dict[str, Tensor], list[int]]:
        """The calls, their feeds, and the sizes of segments."""
        feeds = [b for b, _ in self._feeds.values()]
        wholes = [self._feeds[name][0] if name in self._feeds else b for name, b in self._results.items()]
        sizes = no_segments()
        sizes[STATE] = STATE_BYTES
        program = Program(self.builder, feeds, wholes, self.builder.instructions)
        return program, {n: from_numpy(n, a) for n, (_, a) in self._feeds.items()}, sizes

    def _runs(self) -> Iterator[list[np.ndarray]]:
        """The results on the GPU, by each form of dispatches."""
        program, tensors, sizes = self._program()
        plan = target_of(WEBGPU).compile_program(program, sizes, 1 << 30)
        for form in forms_of(plan):
            host = GpuHost(sizes, form)
            host.head.write_segment(STATE, 0, self.state)
            try:
                loaded = host.load(plan)
                host.run(loaded, tensors)
                yield [self._checked(name, host.output(loaded, name)) for name in self._results]
            finally:
                host.release()

    def _checked(self, name: str, found: np.ndarray) -> np.ndarray:
        if name not in self._feeds:
            return found
        b, before = self._results[name], self._feeds[name][1]
        for part in (slice(0, CANARY), slice(-CANARY, None)):
            assert np.array_equal(found[part], before[part]), "a kernel wrote beside its result"
        return found[CANARY:-CANARY].view(np.float32).reshape(b.shape)
