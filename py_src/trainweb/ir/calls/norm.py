"""Calls of norm. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable

from trainweb.ir.calls.sizes import chunks
from trainweb.ir.instructions import Buf, KernelCall


class LayerNorm(KernelCall):
    """A call of `layer_norm_f32`.

    x [rows, n]; rms 1: no mean, y = x / sqrt(mean(x^2) + epsilon) * scale
    """

    __slots__ = ("x", "scale", "bias", "y", "mean", "inv_std", "rows", "n", "epsilon", "rms")
    KERNEL = "layer_norm_f32"
    OPCODE = 19
    WORDS = 10
    ARGUMENTS = __slots__
    OPERANDS = ("x", "scale", "bias", "y", "mean", "inv_std")
    FLOATS = ("epsilon",)
    OPTIONAL_RESULTS = ("mean", "inv_std")

    def __init__(
        self,
        *,
        x: Buf,
        scale: Buf | None = None,
        bias: Buf | None = None,
        y: Buf,
        mean: Buf | None = None,
        inv_std: Buf | None = None,
        rows: int,
        n: int,
        epsilon: float,
        rms: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.scale = scale
        self.bias = bias
        self.y = y
        self.mean = mean
        self.inv_std = inv_std
        self.rows = rows
        self.n = n
        self.epsilon = epsilon
        self.rms = rms

    @property
    def reads(self) -> list[Buf]:
        found = [self.x]
        if self.scale is not None:
            found.append(self.scale)
        if self.bias is not None:
            found.append(self.bias)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.mean is not None:
            found.append(self.mean)
        if self.inv_std is not None:
            found.append(self.inv_std)
        return found


class LayerNormGrad(KernelCall):
    """A call of `layer_norm_grad_f32`."""

    __slots__ = ("dy", "x", "scale", "mean", "inv_std", "dx", "dscale", "dbias", "partial", "rows", "n", "rms")
    KERNEL = "layer_norm_grad_f32"
    OPCODE = 20
    WORDS = 12
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "x", "scale", "mean", "inv_std", "dx", "dscale", "dbias", "partial")
    OPTIONAL_RESULTS = ("dx", "dscale", "dbias")

    def __init__(
        self,
        *,
        dy: Buf,
        x: Buf,
        scale: Buf | None = None,
        mean: Buf | None = None,
        inv_std: Buf,
        dx: Buf | None = None,
        dscale: Buf | None = None,
        dbias: Buf | None = None,
        rows: int,
        n: int,
        rms: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.x = x
        self.scale = scale
        self.mean = mean
        self.inv_std = inv_std
        self.dx = dx
        self.dscale = dscale
        self.dbias = dbias
        self.partial: Buf
        self.rows = rows
        self.n = n
        self.rms = rms

    @property
    def reads(self) -> list[Buf]:
        found = [self.dy, self.x]
        if self.scale is not None:
            found.append(self.scale)
        if self.mean is not None:
            found.append(self.mean)
        found.append(self.inv_std)
        return found

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.dx is not None:
            found.append(self.dx)
        if self.dscale is not None:
            found.append(self.dscale)
        if self.dbias is not None:
            found.append(self.dbias)
        found.append(self.partial)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, 2 * self.n * min(32, chunks(self.rows * self.n))),))


class BatchNormTrain(KernelCall):
    """A call of `batch_norm_train_f32`.

    x [batch, channels, size]; running = momentum * running + (1 - momentum) * batch statistic (biased variance)
    """

    __slots__ = (
        "x",
        "scale",
        "bias",
        "y",
        "mean",
        "inv_std",
        "running_mean",
        "running_var",
        "batch",
        "channels",
        "size",
        "epsilon",
        "momentum",
    )
    KERNEL = "batch_norm_train_f32"
    OPCODE = 21
    WORDS = 13
    ARGUMENTS = __slots__
    OPERANDS = ("x", "scale", "bias", "y", "mean", "inv_std", "running_mean", "running_var")
    FLOATS = ("epsilon", "momentum")
    OPTIONAL_RESULTS = ("mean", "inv_std")
    UPDATES = ("running_mean", "running_var")

    def __init__(
        self,
        *,
        x: Buf,
        scale: Buf,
        bias: Buf,
        y: Buf,
        mean: Buf | None = None,
        inv_std: Buf | None = None,
        running_mean: Buf | None = None,
        running_var: Buf | None = None,
        batch: int,
        channels: int,
        size: int,
        epsilon: float,
        momentum: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.scale = scale
        self.bias = bias
        self.y = y
        self.mean = mean
        self.inv_std = inv_std
        self.running_mean = running_mean
        self.running_var = running_var
        self.batch = batch
        self.channels = channels
        self.size = size
        self.epsilon = epsilon
        self.momentum = momentum

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.scale, self.bias]
        if self.running_mean is not None:
            found.append(self.running_mean)
        if self.running_var is not None:
            found.append(self.running_var)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.mean is not None:
            found.append(self.mean)
        if self.inv_std is not None:
            found.append(self.inv_std)
        if self.running_mean is not None:
            found.append(self.running_mean)
        if self.running_var is not None:
            found.append(self.running_var)
        return found


class BatchNorm(KernelCall):
    """A call of `batch_norm_f32`."""

    __slots__ = ("x", "scale", "bias", "mean", "var", "y", "batch", "channels", "size", "epsilon")
    KERNEL = "batch_norm_f32"
    OPCODE = 22
    WORDS = 10
    ARGUMENTS = __slots__
    OPERANDS = ("x", "scale", "bias", "mean", "var", "y")
    FLOATS = ("epsilon",)

    def __init__(
        self,
        *,
        x: Buf,
        scale: Buf,
        bias: Buf,
        mean: Buf,
        var: Buf,
        y: Buf,
        batch: int,
        channels: int,
        size: int,
        epsilon: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.scale = scale
        self.bias = bias
        self.mean = mean
        self.var = var
        self.y = y
        self.batch = batch
        self.channels = channels
        self.size = size
        self.epsilon = epsilon

    @property
    def reads(self) -> list[Buf]:
        return [self.x, self.scale, self.bias, self.mean, self.var]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class BatchNormGrad(KernelCall):
    """A call of `batch_norm_grad_f32`.

    dx = scale*inv*(dy - mean(dy) - xh*mean(dy*xh)); frozen 1: statistics are constants, dx = scale*inv*dy
    """

    __slots__ = ("dy", "x", "scale", "mean", "inv_std", "dx", "dscale", "dbias", "batch", "channels", "size", "frozen")
    KERNEL = "batch_norm_grad_f32"
    OPCODE = 23
    WORDS = 12
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "x", "scale", "mean", "inv_std", "dx", "dscale", "dbias")
    OPTIONAL_RESULTS = ("dx", "dscale", "dbias")

    def __init__(
        self,
        *,
        dy: Buf,
        x: Buf,
        scale: Buf,
        mean: Buf,
        inv_std: Buf,
        dx: Buf | None = None,
        dscale: Buf | None = None,
        dbias: Buf | None = None,
        batch: int,
        channels: int,
        size: int,
        frozen: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.x = x
        self.scale = scale
        self.mean = mean
        self.inv_std = inv_std
        self.dx = dx
        self.dscale = dscale
        self.dbias = dbias
        self.batch = batch
        self.channels = channels
        self.size = size
        self.frozen = frozen

    @property
    def reads(self) -> list[Buf]:
        return [self.dy, self.x, self.scale, self.mean, self.inv_std]

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.dx is not None:
            found.append(self.dx)
        if self.dscale is not None:
            found.append(self.dscale)
        if self.dbias is not None:
            found.append(self.dbias)
        return found


class GroupNorm(KernelCall):
    """A call of `group_norm_f32`.

    statistics over a group's channels/groups * size values of an image; in the gradient they are computed again
    """

    __slots__ = ("x", "scale", "bias", "y", "batch", "channels", "size", "groups", "epsilon")
    KERNEL = "group_norm_f32"
    OPCODE = 24
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("x", "scale", "bias", "y")
    FLOATS = ("epsilon",)

    def __init__(
        self,
        *,
        x: Buf,
        scale: Buf,
        bias: Buf,
        y: Buf,
        batch: int,
        channels: int,
        size: int,
        groups: int,
        epsilon: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.scale = scale
        self.bias = bias
        self.y = y
        self.batch = batch
        self.channels = channels
        self.size = size
        self.groups = groups
        self.epsilon = epsilon

    @property
    def reads(self) -> list[Buf]:
        return [self.x, self.scale, self.bias]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class GroupNormGrad(KernelCall):
    """A call of `group_norm_grad_f32`."""

    __slots__ = (
        "dy",
        "x",
        "scale",
        "dx",
        "dscale",
        "dbias",
        "partial",
        "batch",
        "channels",
        "size",
        "groups",
        "epsilon",
    )
    KERNEL = "group_norm_grad_f32"
    OPCODE = 25
    WORDS = 12
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "x", "scale", "dx", "dscale", "dbias", "partial")
    FLOATS = ("epsilon",)
    OPTIONAL_RESULTS = ("dx", "dscale", "dbias")

    def __init__(
        self,
        *,
        dy: Buf,
        x: Buf,
        scale: Buf,
        dx: Buf | None = None,
        dscale: Buf | None = None,
        dbias: Buf | None = None,
        batch: int,
        channels: int,
        size: int,
        groups: int,
        epsilon: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.x = x
        self.scale = scale
        self.dx = dx
        self.dscale = dscale
        self.dbias = dbias
        self.partial: Buf
        self.batch = batch
        self.channels = channels
        self.size = size
        self.groups = groups
        self.epsilon = epsilon

    @property
    def reads(self) -> list[Buf]:
        return [self.dy, self.x, self.scale]

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.dx is not None:
            found.append(self.dx)
        if self.dscale is not None:
            found.append(self.dscale)
        if self.dbias is not None:
            found.append(self.dbias)
        found.append(self.partial)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, 2 * self.batch * self.channels),))
