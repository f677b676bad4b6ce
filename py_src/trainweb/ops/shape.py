"""Operators that reorder, repeat or mask elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, equal, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType, broadcast_shapes, contiguous_strides
from trainweb.model.graph import MS
from trainweb.ops.copies import transpose
from trainweb.ops.frame.arguments import checked, integers
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Ints, Names, Op, Str
from trainweb.ops.frame.pointwise import spread


class Transpose(Op):
    """Dims in another order. https://onnx.ai/onnx/operators/onnx__Transpose.html"""

    versions = (1, 13, 21, 23, 24, 25)
    attrs = {"perm": Ints()}
    differentiable = (0,)

    def _perm(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank))[::-1] if self.perm is None else self.perm

    def infer(self, x: TensorType) -> TensorType:
        perm = self._perm(x.rank)
        if sorted(perm) != list(range(x.rank)):
            raise self.error(f"perm {list(perm)} is not a permutation of the {x.rank} dimensions.")
        longer = [k for k in perm if x.shape[k] != 1]
        self.is_view = longer == sorted(longer)
        return TensorType(x.dtype, tuple(x.shape[k] for k in perm))

    def evaluate(self, x: TensorType) -> tuple[Any, ...]:
        steps = contiguous_strides(x.shape)
        perm = self._perm(x.rank)
        index = [0]
        for k in perm:
            offsets = [j * steps[k] for j in range(x.shape[k])]
            index = [i + offset for i in index for offset in offsets]
        return tuple(map(x.value.__getitem__, index)) if x.value else ()

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        perm = self._perm(g.rank(ins[0]))
        return [g.op("Transpose", [douts[0]], perm=[perm.index(k) for k in range(len(perm))])]

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        transpose(b, outs[0], x, self._perm(len(x.shape)))


class Expand(Op):
    """x broadcast with a shape. https://onnx.ai/onnx/operators/onnx__Expand.html"""

    versions = (8, 13)
    differentiable = (0,)
    static_inputs = (1,)

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        target = tuple(integers(self, shape, "shape"))
        if not all(at_most(0, dim) for dim in target):
            raise self.error(f"shape {list(target)} has a negative dimension.")
        try:
            return checked(self, x.dtype, broadcast_shapes(x.shape, target))
        except ValueError:
            raise self.error(f"shape {list(x.shape)} does not broadcast with {list(target)}.") from None

    def evaluate(self, x: TensorType, shape: TensorType) -> tuple[Any, ...]:
        target = self.infer(x, shape).shape
        return tuple(spread(x.value or (), x.shape, target))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [g.reduce_to(douts[0], ins[0], outs[0]), None]

    def lower(self, b: Builder, outs: list[Buf], x: Buf, shape: Buf) -> None:
        b.elementwise(outs, [x], lambda e, v: v)


class Tile(Op):
    """x repeated along each dimension. https://onnx.ai/onnx/operators/onnx__Tile.html"""

    versions = (6, 13)
    differentiable = (0,)
    static_inputs = (1,)

    def infer(self, x: TensorType, repeats: TensorType) -> TensorType:
        times = integers(self, repeats, "repeats")
        if len(times) != x.rank or not all(at_most(0, n) for n in times):
            raise self.error(f"repeats {list(times)} are not one count for each of {x.rank} dimensions.")
        return checked(self, x.dtype, [d * r for d, r in zip(x.shape, times, strict=True)])

    def evaluate(self, x: TensorType, repeats: TensorType) -> tuple[Any, ...]:
        return tuple(spread(x.value or (), *self._interleaved(x.shape, repeats.value or ())))

    def _interleaved(self, shape: Any, times: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Dims as pairs (repeat, dim): of the source, whose repeats are 1, and of the result."""
        pairs = list(zip(times, shape, strict=True))
        return tuple(d for _, dim in pairs for d in (1, dim)), tuple(d for pair in pairs for d in pair)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, repeats: Buf) -> None:
        source, target = self._interleaved(x.shape, repeats.value)
        b.elementwise([outs[0].view(target)], [x.view(source)], lambda e, v: v)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        rank = g.rank(ins[0])
        axis = g.constant("int64", (1,), [1])
        columns = [
            g.op("Unsqueeze", [name, axis]) if g.opset >= 13 else g.op("Unsqueeze", [name], axes=[1])
            for name in (ins[1], g.op("Shape", [ins[0]]))
        ]
        pairs = g.op("Concat", columns, axis=1)
        shape = g.op("Reshape", [pairs, g.constant("int64", (1,), [-1])])
        parts = g.op("Reshape", [douts[0], shape])
        return [g.reduce_sum(parts, [2 * k for k in range(rank)], keepdims=False), None]


# ---- triangles and blocks


class TriangleBase(Op, abstract=True):
    """The upper or lower triangle of the matrices in x, beyond diagonal k; zeros elsewhere."""

    attrs = {"upper": Int(1)}
    differentiable = (0,)

    def infer(self, x: TensorType, k: TensorType | None = None) -> TensorType:
        if x.rank < 2:
            raise self.error(f"x of shape {list(x.shape)} is not a matrix.")
        if k is not None and (k.dtype != "int64" or not equal(k.size, 1)):
            raise self.error(f"k is {k.dtype}{list(k.shape)}; it must be one int64.")
        return TensorType(x.dtype, x.shape)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, k: Buf | None) -> None:
        n, m = x.shape[-2:]
        row = b.constant("int64", (n, 1), range(n))
        column = b.constant("int64", (m,), range(m))
        diagonal = k.view(()) if k is not None else b.constant("int64", (), (0,))
        how = "ge" if self.upper else "le"
        mask = b.temp("bool", (n, m))
        b.elementwise([mask], [column, row, diagonal], lambda e, c, r, d: e.compare(how, e.sub(c, r), d))
        b.elementwise(outs[:1], [mask, x], lambda e, inside, v: e.select(inside, v, e.like(v, 0)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [g.op("Trilu", [douts[0], *ins[1:]], domain=MS, upper=self.upper), *[None] * (len(ins) - 1)]


class Trilu(TriangleBase):
    """The upper or lower triangle of matrices. https://onnx.ai/onnx/operators/onnx__Trilu.html"""

    versions = (14,)


class MicrosoftTrilu(TriangleBase):
    """The upper or lower triangle of matrices, before it came into ai.onnx."""

    name = "Trilu"
    domain = MS


class Blocks(Op, abstract=True):
    """Channels into blocks of pixels or back, by transposing the 6-D view; `mode` is the order of channels."""

    attrs = {"blocksize": Int(required=True), "mode": Str("DCR", among=("DCR", "CRD"))}
    differentiable = (0,)
    inverse: str

    def result(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the output."""
        raise NotImplementedError

    def blocks(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The 6-D view of the input, and the order of its dims in the output."""
        raise NotImplementedError

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 4:
            raise self.error(f"x of shape {list(x.shape)} is not (N, C, H, W).")
        if self.blocksize < 1:
            raise self.error(f"blocksize is {self.blocksize}.")
        return checked(self, x.dtype, self.result(x.shape))

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        view, perm = self.blocks(x.shape)
        transpose(b, outs[0], x.view(view), perm)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        if self.mode == "DCR":
            return [g.op(self.inverse, douts[:1], blocksize=self.blocksize)]
        batch, *sizes = g.shape(ins[0])
        if static(*sizes):
            view, perm = self.blocks((batch, *sizes))
            moved = g.constant("int64", (6,), [-1, *(view[k] for k in perm[1:])])
        else:
            # Only the order counts here; which sizes these are is found out at run time.
            block = self.blocksize
            view, perm = self.blocks((1, block * block, block, block))
            moved = self._moved_sizes(g, ins[0], outs[0])
        parts = g.op("Reshape", [douts[0], moved])
        back = g.op("Transpose", [parts], perm=[perm.index(k) for k in range(6)])
        return [g.reshape_like(back, ins[0])]

    def _moved_sizes(self, g: GradientBuilder, x: str, y: str) -> str:
        """The 6-D view of the output of mode CRD, as a tensor."""
        # The side of depth has the small image, the side of space the few channels.
        fewest, coarse = (y, x) if self.inverse == "SpaceToDepth" else (x, y)
        n, c, h, w = (g.size_of(of, axis) for axis, of in enumerate((x, fewest, coarse, coarse)))
        block = g.constant("int64", (1,), [self.blocksize])
        order = [n, c, h, block, w, block] if self.inverse == "SpaceToDepth" else [n, c, block, block, h, w]
        return g.op("Concat", order, axis=0)


class DepthToSpace(Blocks):
    """Channels become blocks of pixels. https://onnx.ai/onnx/operators/onnx__DepthToSpace.html"""

    versions = (1, 11, 13, 28)
    inverse = "SpaceToDepth"

    def result(self, shape: Sequence[int]) -> tuple[int, ...]:
        n, c, h, w = shape
        size = self.blocksize
        if not equal(c % (size * size), 0):
            raise self.error(f"{c} channels are not a multiple of {size * size}.")
        return (n, c // (size * size), h * size, w * size)

    def blocks(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n, c, h, w = shape
        size = self.blocksize
        if self.mode == "DCR":
            return (n, size, size, c // (size * size), h, w), (0, 3, 4, 1, 5, 2)
        return (n, c // (size * size), size, size, h, w), (0, 1, 4, 2, 5, 3)


class SpaceToDepth(Blocks):
    """Blocks of pixels become channels. https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html"""

    versions = (1, 13, 28)
    inverse = "DepthToSpace"

    def result(self, shape: Sequence[int]) -> tuple[int, ...]:
        n, c, h, w = shape
        size = self.blocksize
        if not equal(h % size, 0) or not equal(w % size, 0):
            raise self.error(f"an image of {h} by {w} has no whole blocks of {size}.")
        return (n, c * size * size, h // size, w // size)

    def blocks(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n, c, h, w = shape
        size = self.blocksize
        view = (n, c, h // size, size, w // size, size)
        return view, (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)
