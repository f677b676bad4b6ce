"""Choose the method of each convolution: Winograd's, products of columns, or direct sums.

Operators emit direct sums. `pays` in kernels.def says at which sizes another kernel is faster.
"""

from __future__ import annotations

from typing import cast

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.instructions import Buf
from trainweb.ir.program import Program
from trainweb.ir.windows import Ends, Sizes

Convolution = calls.Conv | calls.ConvDataGradient | calls.ConvWeightGradient


class Tiles(Ends):
    """Arguments of Winograd's kernels, with the window over height and width."""

    size: tuple[int, ...]
    out: tuple[int, ...]
    stride: int
    pad: tuple[int, ...]


def select_methods(program: Program, _: object) -> None:
    """Compute each convolution by the method that pays at its sizes."""
    for i in program:
        if not isinstance(i, Convolution) or i.groups > 1:
            continue
        builder = program.build(i.node)
        if isinstance(i, calls.Conv):
            _forward(builder, i)
        elif isinstance(i, calls.ConvDataGradient):
            _data_gradient(builder, i)
        else:
            _weight_gradient(builder, i)
        if builder.instructions:
            program.replace(i, *builder.instructions)


def _forward(b: Builder, i: calls.Conv) -> None:
    sizes, epilogue = _sizes(i), {"accumulate": i.accumulate, "activation": i.activation}
    tiles = _tiles(sizes)
    if tiles and calls.WinogradConv.pays(flipped=0, activation=i.activation, **tiles):
        u = _transformed(b, i.w, tiles, flipped=0)
        b.emit(calls.WinogradConv(x=i.x, u=u, bias=i.bias, y=i.y, flipped=0, **tiles, **epilogue))
    elif calls.ColumnsConv.pays(activation=i.activation, **sizes):
        b.emit(calls.ColumnsConv(x=i.x, w=i.w, bias=i.bias, y=i.y, **sizes, **epilogue))


def _data_gradient(b: Builder, i: calls.ConvDataGradient) -> None:
    sizes, epilogue = _sizes(i), {"accumulate": i.accumulate, "activation": i.activation}
    tiles = _tiles(sizes, back=True)
    if tiles and calls.WinogradConv.pays(flipped=1, activation=i.activation, **tiles):
        u = _transformed(b, i.w, tiles, flipped=1)
        b.emit(calls.WinogradConv(x=i.dy, u=u, bias=i.bias, y=i.dx, flipped=1, **tiles, **epilogue))
    elif calls.ColumnsDataGradient.pays(activation=i.activation, **sizes):
        b.emit(calls.ColumnsDataGradient(dy=i.dy, w=i.w, bias=i.bias, dx=i.dx, **sizes, **epilogue))


def _weight_gradient(b: Builder, i: calls.ConvWeightGradient) -> None:
    sizes = _sizes(i)
    tiles = _tiles(sizes)
    is_tiled = tiles is not None and calls.WinogradConv.pays(flipped=0, activation=0, **tiles)
    if tiles and is_tiled and calls.WinogradWeightGradient.pays(**tiles):
        b.emit(calls.WinogradWeightGradient(x=i.x, dy=i.dy, dw=i.dw, db=i.db, accumulate=i.accumulate, **tiles))
    elif calls.ColumnsWeightGradient.pays(**sizes):
        b.emit(calls.ColumnsWeightGradient(x=i.x, dy=i.dy, dw=i.dw, db=i.db, accumulate=i.accumulate, **sizes))


def _sizes(i: Convolution) -> Sizes:
    return cast(Sizes, {name: getattr(i, name) for name in Sizes.__annotations__})


def _tiles(s: Sizes, *, back: bool = False) -> Tiles | None:
    """Arguments of Winograd's kernels, which take windows of 3 x 3 with one stride; None for others.

    `back`: from the outputs of the window to its inputs.
    """
    is_flat = (s["size"][0], s["out"][0], s["pad"][0]) == (1, 1, 0)
    stride = s["stride"][1]
    if not is_flat or s["kernel"] != (1, 3, 3) or s["dilation"][1:] != (1, 1) or s["stride"][2] != stride:
        return None
    size, out, pad = (s[name][1:] for name in ("size", "out", "pad"))
    if back:
        return {"n": s["n"], "c": s["m"], "m": s["c"], "size": out, "out": size, "stride": stride, "pad": pad}
    return {"n": s["n"], "c": s["c"], "m": s["m"], "size": size, "out": out, "stride": stride, "pad": pad}


def _transformed(b: Builder, w: Buf, tiles: Tiles, *, flipped: int) -> Buf:
    """The transformed weights: a call of their own, which `hoist` takes out of the step where they are frozen."""
    m, c = tiles["m"], tiles["c"]
    u = b.temp("float32", (calls.winograd_planes(c, m),))
    b.emit(calls.WinogradWeights(w=w, u=u, m=m, c=c, stride=tiles["stride"], flipped=flipped))
    return u
