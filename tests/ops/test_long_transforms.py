"""Fourier transforms of more numbers than one matrix is for: against numpy's in float64."""

from typing import Any

import numpy as np
import pytest
from tests.ops.op_runner import gradients, run, single_node, with_loss

from trainweb.errors import UnsupportedError
from trainweb.model.graph import Graph
from trainweb.ops.frame.op import find

RNG = np.random.default_rng(3)


def split(z: np.ndarray) -> np.ndarray:
    """Real and imaginary parts as the last dim."""
    return np.stack([z.real, z.imag], -1)


def joined(x: np.ndarray) -> np.ndarray:
    """The complex numbers of a last dim of one or two."""
    x = x.astype(np.float64)
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


def transform(op_type: str, *inputs: Any, **attrs: Any) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of one node whose first input is fed, and what is fed."""
    cls = find("", op_type)
    assert cls is not None
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    constants = [k for k, x in enumerate(arrays) if k and x is not None]
    return single_node(cls, arrays, attrs, 20, constants=constants), {"x0": inputs[0]}


def check(graph: Graph, feeds: dict[str, np.ndarray], expected: np.ndarray) -> None:
    """Results are those expected; the gradient of a linear map: the change of the output by a change of x."""
    y = run(graph, feeds)["y0"]
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, atol=2e-6 * np.abs(expected).max())
    weights = RNG.standard_normal(y.shape).astype(np.float32)
    found = gradients(with_loss(graph, [("y0", weights)]), ["x0"], {**feeds, "w0": weights})["x0"]
    change = RNG.standard_normal(feeds["x0"].shape).astype(np.float32)
    changed = run(graph, {"x0": change})["y0"].astype(np.float64)
    assert float((found.astype(np.float64) * change).sum()) == pytest.approx(float((changed * weights).sum()), rel=1e-4)


@pytest.mark.parametrize(("n", "parts"), [(2048, 1), (2048, 2), (3000, 2), (1600, 1)])
@pytest.mark.parametrize("inverse", [0, 1])
def test_whole(n: int, parts: int, inverse: int) -> None:
    x = RNG.standard_normal((2, n, parts)).astype(np.float32)
    function = np.fft.ifft if inverse else np.fft.fft
    check(*transform("DFT", x, inverse=inverse), split(function(joined(x), axis=1)))


@pytest.mark.parametrize("size", [2100, 4096, 5000])
def test_half_of_a_padded_or_cut_signal(size: int) -> None:
    """Along the first axis, of 4,096 numbers."""
    x = RNG.standard_normal((size, 2, 1)).astype(np.float32)
    graph, feeds = transform("DFT", x, np.int64(4096), np.int64(0), onesided=1)
    check(graph, feeds, split(np.fft.rfft(joined(x), 4096, axis=0)))


@pytest.mark.parametrize(("size", "n"), [(1501, 3000), (1700, 3001), (2000, 3000)])
def test_back_to_a_real_signal(size: int, n: int) -> None:
    """3001 is 3001 times 1: only a product of two numbers up to 1,024 is taken apart."""
    x = RNG.standard_normal((2, size, 2)).astype(np.float32)
    graph, feeds = transform("DFT", x, np.int64(n), onesided=1, inverse=1)
    if n == 3001:
        with pytest.raises(UnsupportedError, match=r"3001 numbers.*power of two"):
            run(graph, feeds)
        return
    check(graph, feeds, np.fft.irfft(joined(x), n, axis=1)[..., None])


@pytest.mark.parametrize(("parts", "onesided"), [(1, 1), (1, 0), (2, 0)])
def test_frames(parts: int, onesided: int) -> None:
    x = RNG.standard_normal((2, 5000, parts)).astype(np.float32)
    window = np.hanning(2048).astype(np.float32)
    graph, feeds = transform("STFT", x, np.int64(700), window, onesided=onesided)
    frames = np.stack([joined(x)[:, k : k + 2048] for k in range(0, 5000 - 2047, 700)], 1) * window.astype(np.float64)
    expected = np.fft.fft(frames, axis=-1)
    check(graph, feeds, split(expected[..., :1025] if onesided else expected))
