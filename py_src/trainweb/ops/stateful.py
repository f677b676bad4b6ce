"""Parts of language models that keep a state: caches, causal convolutions, gates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import UndecidedError, equal, equal_shapes, static
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import SCATTER_F32, SCATTER_SET
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import ITEM_SIZE, TRAINWEB
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Float, Int, Op, Str
from trainweb.ops.frame.symbolic import Var, integers
from trainweb.ops.index import check_range

BEYOND = 2**40
"""No index of any tensor: kernels refuse it."""


class SwiGLU(Composite):
    """A sigmoid(alpha A) B. https://onnx.ai/onnx/operators/onnx__SwiGLU.html"""

    versions = (28,)
    attrs = {"alpha": Float(1.0)}
    differentiable = (0, 1)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.need_float32(a, b)
        self.need_shape("B", b, a.shape)
        return a

    def expand(self, g: Emission, a: Var, b: Var) -> Sequence[Var | None]:
        return [a * (a if self.alpha == 1 else a * self.alpha).op("Sigmoid") * b]


class CausalConvWithState(Composite):
    """Depthwise convolution of the past and the present. https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html

    X is (batch, channels, length), the weights (channels, 1, k), the state (batch, channels, k - 1).
    """

    versions = (27,)
    attrs = {"activation": Str("none", among=("none", "silu", "swish"))}
    n_outputs = 2
    differentiable = (0, 1, 2, 3)

    def infer(
        self, x: TensorType, w: TensorType, bias: TensorType | None = None, past: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        self.need_float32(x, w, bias, past)
        if x.rank != 3 or w.rank != 3 or not equal_shapes(w.shape[:2], (x.shape[1], 1)):
            raise self.error(f"X and the weights have the shapes {list(x.shape)} and {list(w.shape)}.")
        state = (*x.shape[:2], w.shape[2] - 1)
        self.need_shape("the bias", bias, x.shape[1:2])
        self.need_shape("the state", past, state)
        return x, TensorType("float32", state)

    def expand(self, g: Emission, x: Var, w: Var, bias: Var | None, past: Var | None) -> Sequence[Var | None]:
        channels, _, k = w.shape
        if not static(channels, k):
            raise UndecidedError("the channels or the width of the kernel")
        before = x.op("Pad", integers(g, [0, 0, k - 1, 0, 0, 0])) if past is None else past.op("Concat", x, axis=2)
        y = before.op("Conv", w, *([] if bias is None else [bias]), group=channels)
        y = y if self.activation == "none" else y * y.op("Sigmoid")
        length = before.extent(2)
        ends = (integers(g, [0]) + (length - (k - 1)), integers(g, [0]) + length)
        return [y, before.op("Slice", *ends, integers(g, [2]))]


class TensorScatter(Composite):
    """A cache with an update written into it. https://onnx.ai/onnx/operators/onnx__TensorScatter.html

    Both are (batch, ..., length, ...), the length at `axis`; item b is written from write_indices[b] on.
    """

    versions = (24,)
    attrs = {"axis": Int(-2), "mode": Str("linear", among=("linear", "circular"))}
    differentiable = (0, 1)

    def infer(self, past: TensorType, update: TensorType, at: TensorType | None = None) -> TensorType:
        self.need_float32(past, update)
        axis = self.axis_of(self.axis, past.rank)
        if axis == 0:
            raise self.error(f"axis is {self.axis}: the cache is written along an axis after the first.")
        wanted = list(past.shape)
        if update.rank == past.rank:
            wanted[axis] = update.shape[axis]
        longer = static(update.size, past.size) and update.rank == past.rank and update.shape[axis] > past.shape[axis]
        if longer or not equal_shapes(update.shape, wanted):
            raise self.error(f"an update of shape {list(update.shape)} is none for a cache of {list(past.shape)}.")
        if at is not None and (at.dtype != "int64" or at.rank != 1 or not equal(at.size, past.shape[0])):
            raise self.error(f"write_indices are {at.dtype} {list(at.shape)}, not int64 {[past.shape[0]]}.")
        return past

    def expand(self, g: Emission, past: Var, update: Var, at: Var | None) -> Sequence[Var | None]:
        rank = past.rank
        axis = self.axis % rank
        size, count = past.extent(axis), update.extent(axis)
        place = past.places(axis).unsqueeze(0)
        if at is not None:
            start = at.unsqueeze(1)
            place = place - start
            if self.mode == "circular":
                place = place.op("Mod", size)
            else:
                # A write beyond the end fails, as an index out of range does.
                place = (start + count > size).where(place - place + BEYOND, place)
        written = (place < 0).not_().and_((place < count).or_(place > BEYOND - 1))
        source = written.where(place, 0)
        between = [k for k in range(1, rank) if k != axis]
        shape = past.sizes()
        rows = update.op("GatherElements", source.unsqueeze(*between).op("Expand", shape), axis=axis)
        return [written.unsqueeze(*between).where(rows, past)]


class CacheRows(Op):
    """Write rows into a cache that the session keeps, at these positions along an axis (ai.trainweb).

    The cache is (..., length, ...), the rows are (..., n, ...) and the positions n int64. The output is the cache.
    """

    domain = TRAINWEB
    attrs = {"axis": Int(required=True)}
    state_inputs = (0,)

    def infer(self, cache: TensorType, rows: TensorType, positions: TensorType) -> TensorType:
        axis = self.axis_of(self.axis, cache.rank)
        wanted = (*cache.shape[:axis], *positions.shape, *cache.shape[axis + 1 :])
        if rows.dtype != cache.dtype or positions.dtype != "int64" or not equal_shapes(rows.shape, wanted):
            raise self.error(
                f"rows are {rows.dtype} {list(rows.shape)} at {positions.dtype} {list(positions.shape)} positions of a "
                f"cache that is {cache.dtype} {list(cache.shape)}."
            )
        check_range(self, positions, cache.shape[axis])
        return cache

    def lower(self, b: Builder, outs: list[Buf | None], cache: Buf, rows: Buf, positions: Buf) -> None:
        length, n, inner = cache.shape[self.axis], rows.shape[self.axis], prod(cache.shape[self.axis + 1 :])
        b.check_index(positions, length)
        for k in range(prod(cache.shape[: self.axis])):
            call = calls.ScatterNd(
                updates=rows.view((n, inner), k * n * inner),
                indices=positions,
                y=cache.view((length, inner), k * length * inner),
                batch=1,
                n=n,
                k=1,
                dims=(length,) + (1,) * 7,
                slice=inner * ITEM_SIZE[cache.dtype],
                index_size=ITEM_SIZE[positions.dtype],
                reduction=SCATTER_SET,
                type=SCATTER_F32,
            )
            b.emit(call)
        if outs[0] is not None:
            b.copy(outs[0], cache)
