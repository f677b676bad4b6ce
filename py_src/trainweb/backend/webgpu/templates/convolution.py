"""Convolutions as products whose operand is read through the window, and both gradients; groups are the batch."""

from __future__ import annotations

from functools import partial
from math import ceil, prod

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates import products
from trainweb.backend.webgpu.templates.products import Offsets, Product, Side, Store, finished, linear
from trainweb.backend.webgpu.templates.tools import fold_steps
from trainweb.ir import calls

MOST_COLUMNS = 9
"""Weights of a window at most that a tile of the weights' gradient has."""


def _declare(k: Kernel) -> list[int]:
    """Declare sizes of windows and groups; returns the axes of the images: without the depth where it is 1."""
    call = k.call
    for name, value in (("window", prod(call.kernel)), ("plane", prod(call.size)), ("positions", prod(call.out))):
        k.count(name, value)
    k.count("group_inputs", call.c // call.groups)
    k.count("group_outputs", call.m // call.groups)
    return [1, 2] if (call.size[0], call.kernel[0], call.out[0], call.pad[0]) == (1, 1, 1, 0) else [0, 1, 2]


def _axes(k: Kernel, first: str, count: str, name: str, size: str) -> products.Axes:
    """Channels or images, and the axes of images, results or windows."""
    return {first: count, **{f"{name}{axis}": f"{size}{axis}" for axis in _declare(k)}}


def _row_major(axes: products.Axes, start: str) -> dict[str, str]:
    """Parts of an element's number, for `linear`."""
    first, *others = axes
    return {first: start, **{axis: f"{{before}} * u.{axes[axis]} + {{at}}" for axis in others}}


def _line_tile(size: int) -> int:
    """Elements of a tile along a line of so many: the tiles are as equal as can be."""
    return ceil(size / ceil(size / products.MOST_UNROLLED))


class _Images:
    """Images that are read through the window, as a side of a product.

    `first` is the first axis of the steps. `plane` is the number of the plane; `{c}` is the channel if it belongs to a
    column. `near` and `far` are variables of the places along the axes that columns and steps have, and the fields that
    are their factors. If `is_back`, places go back through the stride: `far` is subtracted, and a place must be a
    multiple.
    """

    def __init__(
        self, k: Kernel, name: str, first: str, plane: str, near: tuple[str, str], far: tuple[str, str], is_back: bool
    ) -> None:
        self.x, self.axes, self.size = k.operand(name), _declare(k), "out" if is_back else "size"
        self.plane, self.near, self.far, self.is_back = plane, near[0], far[0], is_back
        self.factors = {axis: [k.field(f"{of}{axis}") if of else 1 for of in (near[1], far[1])] for axis in self.axes}
        self.strides = {axis: k.field(f"stride{axis}") if is_back else 1 for axis in self.axes}
        steps: dict[str, products.Statements] = {first: self._start}
        steps |= {f"{self.far}{axis}": partial(self._place, axis) for axis in self.axes}
        self.side = Side(self._outer, steps, lambda at: f"value_{self._name(at, 2)}")

    def _offset(self, at: Offsets, axis: int) -> int:
        near, far = (at[f"{name}{axis}"] for name in (self.near, self.far))
        return near * self.factors[axis][0] + far * self.factors[axis][1] * (-1 if self.is_back else 1)

    def _name(self, at: Offsets, last: int) -> str:
        """The offsets along all axes up to the last one: equal places have equal names."""
        offsets = [at["c"], *(self._offset(at, axis) for axis in self.axes if axis <= last)]
        return "_".join(map(str, offsets)).replace("-", "n")

    def _outer(self, _: Offsets) -> list[str]:
        place = f"let near{{0}} = {self.near}{{0}} * {{1}}u {'+' if self.is_back else '-'} u32(u.pad{{0}});"
        return [place.format(axis, self.factors[axis][0]) for axis in self.axes]

    def _start(self, at: Offsets) -> list[str]:
        plane = self.plane.format(c=f"(c + {at['c']}u)")
        return [f"let start{self.axes[0]}_{at['c']} = ({plane}) * u.{self.size}{self.axes[0]};"]

    def _place(self, axis: int, at: Offsets) -> list[str]:
        """The place along an axis, whether it is inside, and the start of its line, or the element."""
        name, before, offset = self._name(at, axis), self._name(at, axis - 1), self._offset(at, axis)
        far = f"{self.far}{axis} * {self.factors[axis][1]}u"
        place = f"near{axis} {'-' if self.is_back else '+'} {far} {'-' if offset < 0 else '+'} {abs(offset)}u"
        is_in = "" if axis == self.axes[0] else f"is_in{axis - 1}_{before} & "
        if self.strides[axis] > 1:
            is_in += f"(place{axis}_{name} * {self.strides[axis]}u == {place}) & "
            place = f"({place}) / {self.strides[axis]}u"
        is_in += f"(place{axis}_{name} < u.{self.size}{axis})"
        lines = [f"let place{axis}_{name} = {place};", f"let is_in{axis}_{name} = {is_in};"]
        element = f"start{axis}_{before} + place{axis}_{name}"
        if axis == 2:
            return [*lines, f"let value_{name} = select(0.0f, {self.x[element]}, is_in{axis}_{name});"]
        return [*lines, f"let start{axis + 1}_{name} = ({element}) * u.{self.size}{axis + 1};"]


def _images(k: Kernel, image: str, group: str, channels: str, positions: str) -> Store:
    """Results as images: a row is a channel of the group, a column a position of all images."""
    y, bias = k.operand(image), k.if_given("bias", " + {}", "{at}")

    def store(row: str, column: str, value: str) -> list[str]:
        channel = f"(batch * {group} + {row})"
        at = f"(image * ({channels} - 1u) + {channel}) * {positions} + {column}"
        return finished(k, value + bias.format(at=channel), y, at)

    return store


@template(calls.Conv)
def conv(k: Kernel, call: calls.Conv) -> None:
    """y[image, group m](position) = sum over c and the window of w x."""
    columns, steps = _axes(k, "image", "n", "o", "out"), _axes(k, "c", "group_inputs", "k", "kernel")
    start = "(batch * u.group_outputs + {at}) * u.group_inputs * u.window"
    w = linear(k.operand("w"), "m", start, _row_major(steps, "c"))
    plane = "image * u.c + batch * u.group_inputs + c"
    x = _Images(k, "x", "c", plane, ("o", "stride"), ("k", "dilation"), is_back=False).side
    y, tile = _images(k, "y", "u.group_outputs", "u.m", "u.positions"), {"o2": _line_tile(call.out[2])}
    Product({"m": "group_outputs"}, columns, steps, call.groups, tile, w, x, y).fill(k)


@template(calls.ConvDataGradient)
def conv_data_gradient(k: Kernel, call: calls.ConvDataGradient) -> None:
    """dx[image, group c](position) = sum over m and the window of w dy."""
    columns, steps = _axes(k, "image", "n", "p", "size"), _axes(k, "m", "group_outputs", "k", "kernel")
    start = "(batch * u.group_outputs + m) * u.group_inputs"
    w = linear(k.operand("w"), "c", "{at} * u.window", _row_major(steps, start))
    plane = "image * u.m + batch * u.group_outputs + m"
    dy = _Images(k, "dy", "m", plane, ("p", ""), ("k", "dilation"), is_back=True).side
    dx, tile = _images(k, "dx", "u.group_inputs", "u.c", "u.plane"), {"p2": _line_tile(call.size[2])}
    Product({"c": "group_inputs"}, columns, steps, call.groups, tile, w, dy, dx).fill(k)


@template(calls.ConvWeightGradient)
def conv_weight_gradient(k: Kernel, call: calls.ConvWeightGradient) -> None:
    """dw[group m](c, window) = sum over images and positions of dy x, and db the sum of dy."""
    columns, steps = _axes(k, "c", "group_inputs", "k", "kernel"), _axes(k, "image", "n", "o", "out")
    start = "(image * u.m + batch * u.group_outputs)"
    dy = linear(k.operand("dy"), "m", "{at} * u.positions", _row_major(steps, start))
    plane = "image * u.c + batch * u.group_inputs + {c}"
    x = _Images(k, "x", "image", plane, ("k", "dilation"), ("o", "stride"), is_back=False).side
    dw, at = k.operand("dw"), "(batch * u.group_outputs + {}) * u.width + {}"

    def store(row: str, column: str, value: str) -> list[str]:
        return finished(k, value, dw, at.format(row, column))

    _, height, width = call.kernel
    tile = {"k1": height, "k2": width} if height * width <= MOST_COLUMNS else {"k2": _line_tile(width)}
    if height * width == 1:
        tile = {"c": min(products.TILE, call.c // call.groups)}
    Product({"m": "group_outputs"}, columns, steps, call.groups, tile, dy, x, store).fill(k)
    if call.db is not None:
        k = k.then("bias")
        k.blocks(channel="m")
        at = "((step / u.positions) * u.m + block) * u.positions + step % u.positions"
        fold_steps(k, "sum", k.count("steps", call.n * prod(call.out)), sum=k.operand("dy")[at])
        k.once(*finished(k, "sum", k.operand("db"), "block"))
