"""Fourier transforms of signals as products with matrices of cosines, and the filters that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, floor, isqrt, log10, pi, sin
from typing import Any

from trainweb.ir.dims import UndecidedError, at_most, minimum, static
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import DTYPE_CODES
from trainweb.ops.frame.arguments import by_unknown_axes, checked, is_fed, scalar, unknown
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Int
from trainweb.ops.frame.symbolic import Var, constant, integers

MAX_MATRIX = 1 << 22
"""Elements of a transform's matrix: 16 MiB, as of 1,024 complex numbers. Longer transforms are two, one by one."""
MAX_FACTOR = 1024
"""Numbers that one of these two goes over at most."""


def fourier_matrix(rows: int, parts: int, n: int, columns: int, *, inverse: bool) -> list[float]:
    """Return [rows, parts, columns, 2]: the shares of element j (real, imaginary) in frequency k of n."""
    sign, scale = (1.0, 1.0 / n) if inverse else (-1.0, 1.0)
    cosines = [scale * cos(2 * pi * t / n) for t in range(n)]
    sines = [sign * scale * sin(2 * pi * t / n) for t in range(n)]
    matrix: list[float] = []
    for j in range(rows):
        turns = [j * k % n for k in range(columns)]
        for part_of in range(parts):
            for t in turns:
                matrix += (cosines[t], sines[t]) if part_of == 0 else (-sines[t], cosines[t])
    return matrix


def real_inverse_matrix(rows: int, n: int) -> list[float]:
    """[rows, 2, n]: what (real, imaginary) of frequency k gives to the n real elements; the others are conjugates."""
    matrix: list[float] = []
    for k in range(rows):
        twice = 1.0 if k == 0 or 2 * k == n else 2.0
        matrix += [twice / n * cos(2 * pi * j * k / n) for j in range(n)]
        matrix += [-twice / n * sin(2 * pi * j * k / n) for j in range(n)]
    return matrix


def factors(n: int) -> tuple[int, int] | None:
    """Two numbers that make a transform of n numbers, as near to each other as can be; None where one is too large."""
    small = next(a for a in range(isqrt(n), 0, -1) if n % a == 0)
    return (small, n // small) if n // small <= MAX_FACTOR else None


def too_long(n: int) -> str:
    """Describe a transform that is not supported, neither as one product nor as two."""
    return (
        f"a transform of {n} numbers, which are more than 1024 and no product of two numbers up to {MAX_FACTOR} "
        "(take a power of two):"
    )


def in_two_steps(x: Var, n: int, parts: int, *, inverse: bool) -> Var:
    """The transform of [..., n, parts], n being a b: of every b-th number, turned, then of what these have in common.

    Cooley and Tukey, https://doi.org/10.1090/S0025-5718-1965-0178586-1.
    """
    a, b = factors(n) or (1, n)
    g, lead = x.g, x.rank - 2
    keep, axes, sign = [0] * lead, range(lead), 1.0 if inverse else -1.0

    def floats(values: list[float], *shape: int) -> Var:
        return constant(g, "float32", shape, values)

    def exchanged(v: Var) -> Var:
        return v.op("Transpose", perm=[*axes, lead + 1, lead, lead + 2])

    def product(v: Var, rows: int, size: int, of: int) -> Var:
        matrix = floats(fourier_matrix(size, of, size, size, inverse=inverse), size * of, 2 * size)
        return v.reshape(*keep, rows, size * of).op("MatMul", matrix).reshape(*keep, rows, size, 2)

    turns = [2 * pi * (j * k % n) / n for j in range(b) for k in range(a)]
    by_itself = floats([cos(t) for t in turns for _ in range(2)], b, a, 2)
    by_other = floats([s * sign * sin(t) for t in turns for s in (-1.0, 1.0)], b, a, 2)
    z = product(exchanged(x.reshape(*keep, a, b, parts)), b, a, parts)
    other = z.op("Gather", constant(g, "int64", (2,), [1, 0]), axis=lead + 2)
    z = product(exchanged(z * by_itself + other * by_other), a, b, 2)
    return exchanged(z).reshape(*keep, n, 2)


def _is_number(parts: int) -> bool:
    """Return whether a dim may hold a real or a complex number."""
    return not static(parts) or parts in (1, 2)


def _is_complex(parts: int) -> bool:
    return static(parts) and parts == 2


class DFT(Composite):
    """The discrete Fourier transform along an axis. https://onnx.ai/onnx/operators/onnx__DFT.html

    The last dim is the real and, where it has two, the imaginary part. It is a product with a matrix, or two of them.
    """

    versions = (17, 20)
    attrs = {"axis": Int(), "inverse": Int(0), "onesided": Int(0)}
    differentiable = (0,)
    static_inputs = (1, 2)

    def _plan(self, x: TensorType, length: TensorType | None, axis: TensorType | None) -> tuple[int, int, int, int]:
        """Axis, length of the transform, elements that go in, and that come out."""
        number = scalar(self, axis, "axis") if axis is not None else self.axis
        default = 1 if self.opset < 20 else -2
        along = self.axis_of(default if number is None else number, x.rank)
        if x.rank < 2 or along == x.rank - 1 or not _is_number(x.shape[-1]):
            raise self.error(f"X has shape {list(x.shape)} and axis is {along}: real or complex numbers come last.")
        size = x.shape[along]
        halved = bool(self.onesided)
        if halved and not self.inverse and _is_complex(x.shape[-1]):
            raise self.error("onesided is for real signals.")
        n = (
            scalar(self, length, "dft_length")
            if length is not None
            else 2 * (size - 1)
            if halved and self.inverse
            else size
        )
        if not at_most(1, n):
            raise self.error(f"the transform has length {n}.")
        there = n // 2 + 1 if halved and self.inverse else n
        out = n // 2 + 1 if halved and not self.inverse else n
        return along, n, minimum(size, there), out

    def infer(self, x: TensorType, length: TensorType | None = None, axis: TensorType | None = None) -> TensorType:
        self.need_float32(x)
        if is_fed(axis):
            assert axis is not None
            return TensorType("float32", by_unknown_axes(self, x.rank, axis))
        along, n, rows, out = self._plan(x, length, axis)
        if static(n, rows, out, x.shape[-1]) and self._is_long(rows, x.shape[-1], out) and factors(n) is None:
            raise self.unsupported(too_long(n))
        parts = 1 if self.onesided and self.inverse else 2
        return checked(self, "float32", (*x.shape[:along], out, *x.shape[along + 1 : -1], parts))

    @staticmethod
    def _is_long(rows: int, parts: int, out: int) -> bool:
        """Return whether the matrix between these sizes would be too large."""
        return rows * parts * out * 2 > MAX_MATRIX

    def _of_long(self, signal: Var, n: int, rows: int, parts: int) -> Var:
        """The transform of [..., rows, parts] in two steps."""
        g, at = signal.g, signal.rank - 2
        there = n // 2 + 1 if self.onesided and self.inverse else n
        if rows < there:
            margin = [0] * (2 * at + 4)
            margin[2 * at + 2] = there - rows
            signal = signal.op("Pad", integers(g, margin))
        if there < n:
            # The other half is that of conjugates.
            mirrored = constant(g, "int64", (n,), [min(k, n - k) for k in range(n)])
            signs = [1.0 if part_of == 0 or k < there else -1.0 for k in range(n) for part_of in range(parts)]
            signal = signal.op("Gather", mirrored, axis=at) * constant(g, "float32", (n, parts), signs)
        transform = in_two_steps(signal, n, parts, inverse=bool(self.inverse))
        if not self.onesided:
            return transform
        return transform.part(at + 1, 0, 1) if self.inverse else transform.part(at, 0, n // 2 + 1)

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, *inputs = (*ins, None, None)[:3]
        assert x is not None
        rank = x.rank
        types = [None if v is None else v.type for v in inputs]
        axis, n, rows, out = self._plan(x.type, *types)
        if not static(n, rows, x.shape[-1]):
            raise UndecidedError("the length of a signal")
        signal = x.part(axis, 0, rows)
        order = [*[k for k in range(rank) if k not in (axis, rank - 1)], axis, rank - 1]
        parts = x.shape[-1]
        back = sorted(range(rank), key=lambda k: order[k])
        if self._is_long(rows, parts, out):
            return [self._of_long(signal.op("Transpose", perm=order), n, rows, parts).op("Transpose", perm=back)]
        real = bool(self.onesided and self.inverse)
        values = (
            real_inverse_matrix(rows, n) if real else fourier_matrix(rows, parts, n, out, inverse=bool(self.inverse))
        )
        columns = out if real else 2 * out
        matrix = constant(g, "float32", (rows * parts, columns), values)
        keep = [0] * (rank - 2)
        flat = signal.op("Transpose", perm=order).reshape(*keep, rows * parts)
        y = flat.op("MatMul", matrix).reshape(*keep, out, 1 if real else 2)
        return [y.op("Transpose", perm=back)]


class STFT(Composite):
    """Fourier transforms of frames of a signal. https://onnx.ai/onnx/operators/onnx__STFT.html"""

    versions = (17,)
    attrs = {"onesided": Int(1)}
    differentiable = (0, 2)
    static_inputs = (1, 3)

    def _plan(
        self, x: TensorType, step: TensorType, window: TensorType | None, length: TensorType | None
    ) -> tuple[int, int, int, int]:
        """Step, length and number of the frames, and frequencies."""
        if x.rank not in (2, 3) or (x.rank == 3 and not _is_number(x.shape[2])):
            raise self.error(f"the signal has shape {list(x.shape)}, not [batch, length, 1 or 2].")
        size, every = x.shape[1], scalar(self, step, "frame_step")
        n = scalar(self, length, "frame_length") if length is not None else window.shape[0] if window is not None else 0
        if not at_most(1, every) or not at_most(1, n) or not at_most(n, size):
            raise self.error(f"frames of {n} every {every} of a signal of {size}.")
        self.need_shape("the window", window, (n,))
        if self.onesided and x.rank == 3 and _is_complex(x.shape[2]):
            raise self.error("onesided is for real signals.")
        frames = 1 + (size - n) // every if static(every) else unknown(self, 1, every)
        return every, n, frames, n // 2 + 1 if self.onesided else n

    def infer(
        self, x: TensorType, step: TensorType, window: TensorType | None = None, length: TensorType | None = None
    ) -> TensorType:
        self.need_float32(x, window)
        _, n, frames, out = self._plan(x, step, window, length)
        if static(n) and 4 * n * out > MAX_MATRIX and factors(n) is None:
            raise self.unsupported(too_long(n))
        return checked(self, "float32", (x.shape[0], frames, out, 2))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, step, window, length = (*ins, None, None)[:4]
        assert x is not None and step is not None
        types = [None if v is None else v.type for v in (window, length)]
        every, n, frames, out = self._plan(x.type, step.type, *types)
        if not static(every, n, frames, *x.shape[2:]):
            raise UndecidedError("the length of a signal")
        x = x if x.rank == 3 else x.unsqueeze(2)
        parts = x.shape[2]
        places = [every * f + k for f in range(frames) for k in range(n)]
        framed = x.op("Gather", constant(g, "int64", (frames, n), places), axis=1)
        if window is not None:
            framed = framed * window.unsqueeze(1)
        if 4 * n * out > MAX_MATRIX:
            return [in_two_steps(framed, n, parts, inverse=False).part(2, 0, out)]
        values = fourier_matrix(n, parts, n, out, inverse=False)
        matrix = constant(g, "float32", (n * parts, 2 * out), values)
        return [framed.reshape(0, 0, n * parts).op("MatMul", matrix).reshape(0, 0, out, 2)]


class MelWeightMatrix(Composite):
    """Triangular filters from frequencies to mels. https://onnx.ai/onnx/operators/onnx__MelWeightMatrix.html"""

    versions = (17,)
    attrs = {"output_datatype": Int(1)}
    min_inputs = max_inputs = 5
    static_inputs = (0, 1, 2, 3, 4)

    def infer(self, *inputs: TensorType | None) -> TensorType:
        if self.output_datatype != DTYPE_CODES["float32"]:
            raise self.unsupported(f"output_datatype {self.output_datatype}")
        bins, length, *_ = self._numbers(inputs)
        return checked(self, "float32", (length // 2 + 1, bins))

    def _numbers(self, inputs: Sequence[TensorType | None]) -> tuple[Any, ...]:
        words = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
        values = tuple(scalar(self, t, word) for t, word in zip(inputs, words, strict=True) if t is not None)
        bins, length, rate, low, high = values
        if min(bins, length, rate) < 1 or not 0 <= low < high <= rate / 2:
            raise self.error(f"{bins} bins of {length} frequencies from {low} to {high} Hz at {rate} Hz.")
        return values

    def _edges(self, bins: int, length: int, rate: int, low: float, high: float) -> list[int]:
        """The frequencies at which the filters begin, peak and end."""
        first, last = (2595 * log10(1 + hertz / 700) for hertz in (low, high))
        step = (last - first) / (bins + 2)
        hertz = [700 * (10 ** ((first + k * step) / 2595) - 1) for k in range(bins + 2)]
        return [floor((length + 1) * h / rate) for h in hertz]

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        bins, length, *rest = self._numbers([v.type if v is not None else None for v in ins])
        edges = self._edges(bins, length, *rest)
        rows, values = length // 2 + 1, [0.0] * ((length // 2 + 1) * bins)
        for i in range(bins):
            start, peak, end = edges[i : i + 3]
            for j in range(start, min(end + 1, rows)):
                rising = (j - start) / (peak - start) if peak > start else 1.0
                values[j * bins + i] = rising if j <= peak else (end - j) / (end - peak)
        return [constant(g, "float32", (rows, bins), values)]
