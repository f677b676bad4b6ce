"""The calls of kernels. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead.

A field is an argument of the kernel, by its name; None where an optional buffer is absent. Scratch is made by
`Builder.emit`. What each call reads and writes is exact: a result that is only written is not among the reads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from trainweb.ir.extents import ceil4
from trainweb.ir.program import Buf, KernelCall


def chunks(n: int) -> int:
    """`chunks` of kernels.def."""
    return (n + 16384 - 1) // 16384


def key_blocks(n: int) -> int:
    """`key_blocks` of kernels.def."""
    return (n + 64 - 1) // 64


def mask_spans(batch: tuple[int, ...], m: int, n: int, mask_strides: tuple[int, ...]) -> int:
    """`mask_spans` of kernels.def.

    What each mask leaves of each block of keys for each tile of rows.
    """
    return (1 + 16 * key_blocks(n)) * ((m + 64 - 1) // 64) * max(1, batch[0] * (mask_strides[0] > 0)) * max(1, batch[1] * (mask_strides[1] > 0))


def conv_weights(c: int, m: int, groups: int, kernel: tuple[int, ...]) -> int:
    """`conv_weights` of kernels.def."""
    return m * (c // groups) * prod(kernel)


def winograd_planes(c: int, m: int) -> int:
    """`winograd_planes` of kernels.def.

    Winograd's method for 3x3 windows of stride 1 and 2 without dilation or groups (conv/winograd.c). Transformed
    weights: a plane for each point; `flipped`: for the data gradient, where c counts the channels of dy and m those of
    dx.
    """
    return 36 * (ceil4(m) * ceil4(c) + 16)


def winograd_channels(c: int, m: int, stride: int) -> bool:
    """`winograd_channels` of kernels.def.

    Channels of which a block of the fewest tiles fits a thread's workspace.
    """
    return max(c, m) <= 1024 - 384 * stride


def winograd_window(
    n: int, c: int, m: int, size: tuple[int, ...], out: tuple[int, ...], stride: int, pad: tuple[int, ...]
) -> bool:
    """`winograd_window` of kernels.def."""
    return stride >= 1 and stride <= 2 and (n >= 1) and (c >= 1) and (m >= 1) and winograd_channels(c, m, stride) and (prod(size) >= 1) and (prod(out) >= 1) and (max(max(out[0], out[1]), max(size[0], size[1])) * stride + pad[0] + pad[1] <= 1073741824)


def winograd_tiled(n: int, stride: int, flipped: int) -> int:
    """`winograd_tiled` of kernels.def.

    Outputs along an axis in whole tiles of 4, or of 8 where the data gradient goes back through a stride of 2.
    """
    return (n + 3 + 4 * (stride - 1) * flipped) // (4 + 4 * (stride - 1) * flipped) * (4 + 4 * (stride - 1) * flipped)


class Copy(KernelCall):
    """A call of `copy`."""

    __slots__ = ("src", "dst", "n")
    KERNEL = "copy"
    OPCODE = 1
    WORDS = 3
    ARGUMENTS = __slots__
    OPERANDS = ("src", "dst")
    PARTS = ("dst",)

    def __init__(self, *, src: Buf, dst: Buf, n: int, node: str = "") -> None:
        self.node = node
        self.src = src
        self.dst = dst
        self.n = n

    @property
    def reads(self) -> list[Buf]:
        return [self.src]

    @property
    def writes(self) -> list[Buf]:
        return [self.dst]


class StridedCopy(KernelCall):
    """A call of `strided_copy`.

    Element dst_offset + sum i_k dst_strides_k of dst = element src_offset + sum i_k src_strides_k of src, for all i <
    dims. Offsets and strides count elements of `size` bytes; unused leading dims are 1. Slice, Pad, Concat, Split,
    Transpose, Expand.
    """

    __slots__ = ("src", "dst", "size", "dims", "src_offset", "src_strides", "dst_offset", "dst_strides")
    KERNEL = "strided_copy"
    OPCODE = 2
    WORDS = 29
    ARGUMENTS = __slots__
    OPERANDS = ("src", "dst")
    PARTS = ("dst",)

    def __init__(
        self,
        *,
        src: Buf,
        dst: Buf,
        size: int,
        dims: tuple[int, ...],
        src_offset: int,
        src_strides: tuple[int, ...],
        dst_offset: int,
        dst_strides: tuple[int, ...],
        node: str = "",
    ) -> None:
        self.node = node
        self.src = src
        self.dst = dst
        self.size = size
        self.dims = dims
        self.src_offset = src_offset
        self.src_strides = src_strides
        self.dst_offset = dst_offset
        self.dst_strides = dst_strides

    @property
    def reads(self) -> list[Buf]:
        return [self.src]

    @property
    def writes(self) -> list[Buf]:
        return [self.dst]


class ConvertHalf(KernelCall):
    """A call of `convert_half`."""

    __slots__ = ("x", "y", "n", "conversion")
    KERNEL = "convert_half"
    OPCODE = 3
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, n: int, conversion: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.n = n
        self.conversion = conversion

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class Reduce(KernelCall):
    """A call of `reduce_f32`."""

    __slots__ = ("x", "y", "outer", "n", "inner", "op")
    KERNEL = "reduce_f32"
    OPCODE = 4
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, op: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.op = op

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ReduceInt(KernelCall):
    """A call of `reduce_int`.

    sum, max, min or prod; size 4 or 8 bytes
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "size", "op")
    KERNEL = "reduce_int"
    OPCODE = 5
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, size: int, op: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.size = size
        self.op = op

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ArgReduce(KernelCall):
    """A call of `arg_reduce_f32`.

    index of the largest (select_max 1) or smallest element; the last one of equals if last_index; a NaN wins
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "select_max", "last_index")
    KERNEL = "arg_reduce_f32"
    OPCODE = 6
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, select_max: int, last_index: int, node: str = ""
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.select_max = select_max
        self.last_index = last_index

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ArgReduceI64(KernelCall):
    """A call of `arg_reduce_i64`.

    the same of integers
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "select_max", "last_index")
    KERNEL = "arg_reduce_i64"
    OPCODE = 7
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, select_max: int, last_index: int, node: str = ""
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.select_max = select_max
        self.last_index = last_index

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class Cumsum(KernelCall):
    """A call of `cumsum_f32`."""

    __slots__ = ("x", "y", "outer", "n", "inner", "exclusive", "reverse")
    KERNEL = "cumsum_f32"
    OPCODE = 8
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, exclusive: int, reverse: int, node: str = ""
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.exclusive = exclusive
        self.reverse = reverse

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class Topk(KernelCall):
    """A call of `topk_f32`.

    the k largest (or smallest) elements in order, and where they were; NaN comes first (topk.c)
    """

    __slots__ = ("x", "y", "at", "heap", "outer", "n", "inner", "k", "largest")
    KERNEL = "topk_f32"
    OPCODE = 9
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "at", "heap")
    OPTIONAL_RESULTS = ("y", "at")

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf | None = None,
        at: Buf | None = None,
        outer: int,
        n: int,
        inner: int,
        k: int,
        largest: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.at = at
        self.heap: Buf
        self.outer = outer
        self.n = n
        self.inner = inner
        self.k = k
        self.largest = largest

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.y is not None:
            found.append(self.y)
        if self.at is not None:
            found.append(self.at)
        found.append(self.heap)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.heap = temp("int32", (max(1, self.n),))


class TopkI64(KernelCall):
    """A call of `topk_i64`.

    the same of integers
    """

    __slots__ = ("x", "y", "at", "heap", "outer", "n", "inner", "k", "largest")
    KERNEL = "topk_i64"
    OPCODE = 10
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "at", "heap")
    OPTIONAL_RESULTS = ("y", "at")

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf | None = None,
        at: Buf | None = None,
        outer: int,
        n: int,
        inner: int,
        k: int,
        largest: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.at = at
        self.heap: Buf
        self.outer = outer
        self.n = n
        self.inner = inner
        self.k = k
        self.largest = largest

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.y is not None:
            found.append(self.y)
        if self.at is not None:
            found.append(self.at)
        found.append(self.heap)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.heap = temp("int32", (max(1, self.n),))


class Softmax(KernelCall):
    """A call of `softmax_f32`.

    along the middle axis of [outer, n, inner]; log 1: the logarithm of it
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "log")
    KERNEL = "softmax_f32"
    OPCODE = 11
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, log: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.log = log

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class SoftmaxGrad(KernelCall):
    """A call of `softmax_grad_f32`."""

    __slots__ = ("dy", "y", "dx", "outer", "n", "inner", "log")
    KERNEL = "softmax_grad_f32"
    OPCODE = 12
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "y", "dx")

    def __init__(self, *, dy: Buf, y: Buf, dx: Buf, outer: int, n: int, inner: int, log: int, node: str = "") -> None:
        self.node = node
        self.dy = dy
        self.y = y
        self.dx = dx
        self.outer = outer
        self.n = n
        self.inner = inner
        self.log = log

    @property
    def reads(self) -> list[Buf]:
        return [self.dy, self.y]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


class CrossEntropy(KernelCall):
    """A call of `cross_entropy_f32`.

    scores [n, c, inner] (from_log 1: already log-probabilities), labels [n, inner] of label_size 4 or 8 bytes. The loss
    of each is [n, inner]. A label outside [0, c) that is not ignored fails with TW_BAD_LABEL.
    """

    __slots__ = (
        "scores",
        "labels",
        "weights",
        "loss",
        "log_prob",
        "row_loss",
        "n",
        "c",
        "inner",
        "label_size",
        "has_ignore",
        "ignore_index",
        "reduction",
        "from_log",
    )
    KERNEL = "cross_entropy_f32"
    OPCODE = 13
    WORDS = 14
    ARGUMENTS = __slots__
    OPERANDS = ("scores", "labels", "weights", "loss", "log_prob", "row_loss")
    OPTIONAL_RESULTS = ("log_prob",)
    FAILS = ("labels",)

    def __init__(
        self,
        *,
        scores: Buf,
        labels: Buf,
        weights: Buf | None = None,
        loss: Buf,
        log_prob: Buf | None = None,
        n: int,
        c: int,
        inner: int,
        label_size: int,
        has_ignore: int,
        ignore_index: int,
        reduction: int,
        from_log: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.scores = scores
        self.labels = labels
        self.weights = weights
        self.loss = loss
        self.log_prob = log_prob
        self.row_loss: Buf
        self.n = n
        self.c = c
        self.inner = inner
        self.label_size = label_size
        self.has_ignore = has_ignore
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.from_log = from_log

    @property
    def reads(self) -> list[Buf]:
        found = [self.scores, self.labels]
        if self.weights is not None:
            found.append(self.weights)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.loss]
        if self.log_prob is not None:
            found.append(self.log_prob)
        found.append(self.row_loss)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.row_loss = temp("float32", (max(1, self.n * self.inner),))


class CrossEntropyGrad(KernelCall):
    """A call of `cross_entropy_grad_f32`.

    dx = (exp(log_prob) - onehot) * weight * dy / D; from_log 1: -onehot * weight * dy / D
    """

    __slots__ = (
        "dy",
        "log_prob",
        "labels",
        "weights",
        "dx",
        "n",
        "c",
        "inner",
        "label_size",
        "has_ignore",
        "ignore_index",
        "reduction",
        "from_log",
    )
    KERNEL = "cross_entropy_grad_f32"
    OPCODE = 14
    WORDS = 13
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "log_prob", "labels", "weights", "dx")
    FAILS = ("labels",)

    def __init__(
        self,
        *,
        dy: Buf,
        log_prob: Buf | None = None,
        labels: Buf,
        weights: Buf | None = None,
        dx: Buf,
        n: int,
        c: int,
        inner: int,
        label_size: int,
        has_ignore: int,
        ignore_index: int,
        reduction: int,
        from_log: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.log_prob = log_prob
        self.labels = labels
        self.weights = weights
        self.dx = dx
        self.n = n
        self.c = c
        self.inner = inner
        self.label_size = label_size
        self.has_ignore = has_ignore
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.from_log = from_log

    @property
    def reads(self) -> list[Buf]:
        found = [self.dy]
        if self.log_prob is not None:
            found.append(self.log_prob)
        found.append(self.labels)
        if self.weights is not None:
            found.append(self.weights)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


class Attention(KernelCall):
    """A call of `attention_f32`.

    y = softmax(scale * q k' + mask) v for every item of the batch: q [m, d], k [n, d], v [n, e], mask [m, n]. Strides
    are those of the batch and of rows, whose elements lie side by side. Where the mask is -infinity the score is
    `fill`. For the gradient: `top`, the largest score of each row, and `inverse`, 1 / sum(e^(score - top)). With
    `state` the probabilities go through the Dropout that dropout_f32 does with these numbers, before v.
    """

    __slots__ = (
        "q",
        "k",
        "v",
        "mask",
        "state",
        "y",
        "top",
        "inverse",
        "spans",
        "batch",
        "m",
        "n",
        "d",
        "e",
        "q_strides",
        "k_strides",
        "v_strides",
        "mask_strides",
        "y_strides",
        "scale",
        "fill",
        "ratio",
        "salt",
        "draw",
    )
    KERNEL = "attention_f32"
    OPCODE = 15
    WORDS = 35
    ARGUMENTS = __slots__
    OPERANDS = ("q", "k", "v", "mask", "state", "y", "top", "inverse", "spans")
    FLOATS = ("scale", "fill", "ratio")
    OPTIONAL_RESULTS = ("top", "inverse")
    PARTS = ("y",)

    def __init__(
        self,
        *,
        q: Buf,
        k: Buf,
        v: Buf,
        mask: Buf | None = None,
        state: Buf | None = None,
        y: Buf,
        top: Buf | None = None,
        inverse: Buf | None = None,
        batch: tuple[int, ...],
        m: int,
        n: int,
        d: int,
        e: int,
        q_strides: tuple[int, ...],
        k_strides: tuple[int, ...],
        v_strides: tuple[int, ...],
        mask_strides: tuple[int, ...],
        y_strides: tuple[int, ...],
        scale: float,
        fill: float,
        ratio: float,
        salt: int,
        draw: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.q = q
        self.k = k
        self.v = v
        self.mask = mask
        self.state = state
        self.y = y
        self.top = top
        self.inverse = inverse
        self.spans: Buf
        self.batch = batch
        self.m = m
        self.n = n
        self.d = d
        self.e = e
        self.q_strides = q_strides
        self.k_strides = k_strides
        self.v_strides = v_strides
        self.mask_strides = mask_strides
        self.y_strides = y_strides
        self.scale = scale
        self.fill = fill
        self.ratio = ratio
        self.salt = salt
        self.draw = draw

    @property
    def reads(self) -> list[Buf]:
        found = [self.q, self.k, self.v]
        if self.mask is not None:
            found.append(self.mask)
        if self.state is not None:
            found.append(self.state)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.top is not None:
            found.append(self.top)
        if self.inverse is not None:
            found.append(self.inverse)
        found.append(self.spans)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.spans = temp("int32", (max(1, mask_spans(self.batch, self.m, self.n, self.mask_strides)),))

    def flops(self) -> int:
        return 2 * prod(self.batch) * self.m * self.n * (self.d + self.e)


class AttentionGradient(KernelCall):
    """A call of `attention_gradient_f32`.

    Its gradients (the product of the scores, made again, is not among its flops); the blocks of keys of an item go to
    `parts` tasks, one at least to each. conditional 1: none through a score where the mask is -infinity.
    """

    __slots__ = (
        "q",
        "k",
        "v",
        "mask",
        "y",
        "dy",
        "top",
        "inverse",
        "state",
        "dq",
        "dk",
        "dv",
        "delta",
        "partial",
        "spans",
        "batch",
        "m",
        "n",
        "d",
        "e",
        "q_strides",
        "k_strides",
        "v_strides",
        "mask_strides",
        "y_strides",
        "dy_strides",
        "dq_strides",
        "dk_strides",
        "dv_strides",
        "scale",
        "fill",
        "ratio",
        "salt",
        "draw",
        "conditional",
        "parts",
    )
    KERNEL = "attention_gradient_f32"
    OPCODE = 16
    WORDS = 55
    ARGUMENTS = __slots__
    OPERANDS = (
        "q",
        "k",
        "v",
        "mask",
        "y",
        "dy",
        "top",
        "inverse",
        "state",
        "dq",
        "dk",
        "dv",
        "delta",
        "partial",
        "spans",
    )
    FLOATS = ("scale", "fill", "ratio")
    OPTIONAL_RESULTS = ("dq", "dk", "dv")
    PARTS = ("dq", "dk", "dv")

    def __init__(
        self,
        *,
        q: Buf,
        k: Buf,
        v: Buf,
        mask: Buf | None = None,
        y: Buf,
        dy: Buf,
        top: Buf,
        inverse: Buf,
        state: Buf | None = None,
        dq: Buf | None = None,
        dk: Buf | None = None,
        dv: Buf | None = None,
        batch: tuple[int, ...],
        m: int,
        n: int,
        d: int,
        e: int,
        q_strides: tuple[int, ...],
        k_strides: tuple[int, ...],
        v_strides: tuple[int, ...],
        mask_strides: tuple[int, ...],
        y_strides: tuple[int, ...],
        dy_strides: tuple[int, ...],
        dq_strides: tuple[int, ...],
        dk_strides: tuple[int, ...],
        dv_strides: tuple[int, ...],
        scale: float,
        fill: float,
        ratio: float,
        salt: int,
        draw: int,
        conditional: int,
        parts: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.q = q
        self.k = k
        self.v = v
        self.mask = mask
        self.y = y
        self.dy = dy
        self.top = top
        self.inverse = inverse
        self.state = state
        self.dq = dq
        self.dk = dk
        self.dv = dv
        self.delta: Buf
        self.partial: Buf
        self.spans: Buf
        self.batch = batch
        self.m = m
        self.n = n
        self.d = d
        self.e = e
        self.q_strides = q_strides
        self.k_strides = k_strides
        self.v_strides = v_strides
        self.mask_strides = mask_strides
        self.y_strides = y_strides
        self.dy_strides = dy_strides
        self.dq_strides = dq_strides
        self.dk_strides = dk_strides
        self.dv_strides = dv_strides
        self.scale = scale
        self.fill = fill
        self.ratio = ratio
        self.salt = salt
        self.draw = draw
        self.conditional = conditional
        self.parts = parts

    @property
    def reads(self) -> list[Buf]:
        found = [self.q, self.k, self.v]
        if self.mask is not None:
            found.append(self.mask)
        found.append(self.y)
        found.append(self.dy)
        found.append(self.top)
        found.append(self.inverse)
        if self.state is not None:
            found.append(self.state)
        return found

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.dq is not None:
            found.append(self.dq)
        if self.dk is not None:
            found.append(self.dk)
        if self.dv is not None:
            found.append(self.dv)
        found.append(self.delta)
        found.append(self.partial)
        found.append(self.spans)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.delta = temp("float32", (max(1, self.batch[0] * self.batch[1] * self.parts * self.m),))
        self.partial = temp("float32", (max(1, self.batch[0] * self.batch[1] * (self.parts - 1) * self.m * self.d),))
        self.spans = temp("int32", (max(1, mask_spans(self.batch, self.m, self.n, self.mask_strides)),))

    def flops(self) -> int:
        return 4 * prod(self.batch) * self.m * self.n * (self.d + self.e)


class LayerNorm(KernelCall):
    """A call of `layer_norm_f32`.

    x [rows, n]; rms 1: no mean, y = x / sqrt(mean(x^2) + epsilon) * scale
    """

    __slots__ = ("x", "scale", "bias", "y", "mean", "inv_std", "rows", "n", "epsilon", "rms")
    KERNEL = "layer_norm_f32"
    OPCODE = 17
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
    OPCODE = 18
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
    OPCODE = 19
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
    OPCODE = 20
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
    OPCODE = 21
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
    OPCODE = 22
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
    OPCODE = 23
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


class CheckIndices(KernelCall):
    """A call of `check_indices`.

    fails unless lo <= index < hi (or index == ignore); label 1: with TW_BAD_LABEL
    """

    __slots__ = ("indices", "n", "index_size", "lo", "hi", "has_ignore", "ignore", "label")
    KERNEL = "check_indices"
    OPCODE = 24
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("indices",)
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        indices: Buf,
        n: int,
        index_size: int,
        lo: int,
        hi: int,
        has_ignore: int,
        ignore: int,
        label: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.indices = indices
        self.n = n
        self.index_size = index_size
        self.lo = lo
        self.hi = hi
        self.has_ignore = has_ignore
        self.ignore = ignore
        self.label = label

    @property
    def reads(self) -> list[Buf]:
        return [self.indices]

    @property
    def writes(self) -> list[Buf]:
        return []


class Gather(KernelCall):
    """A call of `gather`.

    data [outer, dim, inner bytes], y [outer, n, inner bytes]
    """

    __slots__ = ("data", "indices", "y", "outer", "dim", "n", "inner", "index_size")
    KERNEL = "gather"
    OPCODE = 25
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("data", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        data: Buf,
        indices: Buf,
        y: Buf,
        outer: int,
        dim: int,
        n: int,
        inner: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.data = data
        self.indices = indices
        self.y = y
        self.outer = outer
        self.dim = dim
        self.n = n
        self.inner = inner
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.data, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class GatherGrad(KernelCall):
    """A call of `gather_grad_f32`.

    dx [outer, dim, inner] = sum of the rows of dy [outer, n, inner] that came from each row
    """

    __slots__ = ("indices", "dy", "dx", "outer", "dim", "n", "inner", "index_size")
    KERNEL = "gather_grad_f32"
    OPCODE = 26
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("indices", "dy", "dx")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        indices: Buf,
        dy: Buf,
        dx: Buf,
        outer: int,
        dim: int,
        n: int,
        inner: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.indices = indices
        self.dy = dy
        self.dx = dx
        self.outer = outer
        self.dim = dim
        self.n = n
        self.inner = inner
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.indices, self.dy]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


class GatherElements(KernelCall):
    """A call of `gather_elements`.

    GatherElements: y has shape dims, that of indices; strides are those of data with 0 at the axis
    """

    __slots__ = ("data", "indices", "y", "dims", "strides", "axis_dim", "axis_stride", "size", "index_size")
    KERNEL = "gather_elements"
    OPCODE = 27
    WORDS = 23
    ARGUMENTS = __slots__
    OPERANDS = ("data", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        data: Buf,
        indices: Buf,
        y: Buf,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        axis_dim: int,
        axis_stride: int,
        size: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.data = data
        self.indices = indices
        self.y = y
        self.dims = dims
        self.strides = strides
        self.axis_dim = axis_dim
        self.axis_stride = axis_stride
        self.size = size
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.data, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ScatterElements(KernelCall):
    """A call of `scatter_elements`.

    ScatterElements into y, which holds data; all but SCATTER_SET for f32 alone
    """

    __slots__ = (
        "updates",
        "indices",
        "y",
        "dims",
        "strides",
        "axis_dim",
        "axis_stride",
        "size",
        "index_size",
        "reduction",
    )
    KERNEL = "scatter_elements"
    OPCODE = 28
    WORDS = 24
    ARGUMENTS = __slots__
    OPERANDS = ("updates", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        updates: Buf,
        indices: Buf,
        y: Buf,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        axis_dim: int,
        axis_stride: int,
        size: int,
        index_size: int,
        reduction: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.updates = updates
        self.indices = indices
        self.y = y
        self.dims = dims
        self.strides = strides
        self.axis_dim = axis_dim
        self.axis_stride = axis_stride
        self.size = size
        self.index_size = index_size
        self.reduction = reduction

    @property
    def reads(self) -> list[Buf]:
        return [self.updates, self.indices, self.y]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class GatherNd(KernelCall):
    """A call of `gather_nd`.

    GatherND: data [batch, dims..., slice bytes], indices [batch, n, k] into the first k of dims (the others are 1)
    """

    __slots__ = ("data", "indices", "y", "batch", "n", "k", "dims", "slice", "index_size")
    KERNEL = "gather_nd"
    OPCODE = 29
    WORDS = 16
    ARGUMENTS = __slots__
    OPERANDS = ("data", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        data: Buf,
        indices: Buf,
        y: Buf,
        batch: int,
        n: int,
        k: int,
        dims: tuple[int, ...],
        slice: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.data = data
        self.indices = indices
        self.y = y
        self.batch = batch
        self.n = n
        self.k = k
        self.dims = dims
        self.slice = slice
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.data, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ScatterNd(KernelCall):
    """A call of `scatter_nd`.

    ScatterND into y, which holds data; reductions as in scatter_elements, slice then a multiple of 4
    """

    __slots__ = ("updates", "indices", "y", "batch", "n", "k", "dims", "slice", "index_size", "reduction")
    KERNEL = "scatter_nd"
    OPCODE = 30
    WORDS = 17
    ARGUMENTS = __slots__
    OPERANDS = ("updates", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        updates: Buf,
        indices: Buf,
        y: Buf,
        batch: int,
        n: int,
        k: int,
        dims: tuple[int, ...],
        slice: int,
        index_size: int,
        reduction: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.updates = updates
        self.indices = indices
        self.y = y
        self.batch = batch
        self.n = n
        self.k = k
        self.dims = dims
        self.slice = slice
        self.index_size = index_size
        self.reduction = reduction

    @property
    def reads(self) -> list[Buf]:
        return [self.updates, self.indices, self.y]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class OneHot(KernelCall):
    """A call of `one_hot`.

    y [outer, depth, inner] = values[1] where the index [outer, inner] says so, else values[0]; others leave a row all
    off
    """

    __slots__ = ("indices", "values", "y", "outer", "depth", "inner", "size", "index_size")
    KERNEL = "one_hot"
    OPCODE = 31
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("indices", "values", "y")

    def __init__(
        self,
        *,
        indices: Buf,
        values: Buf,
        y: Buf,
        outer: int,
        depth: int,
        inner: int,
        size: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.indices = indices
        self.values = values
        self.y = y
        self.outer = outer
        self.depth = depth
        self.inner = inner
        self.size = size
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.indices, self.values]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class Adamw(KernelCall):
    """A call of `adamw_f32`.

    One step with t = state's step + 1 and state's learning rate
    """

    __slots__ = (
        "w",
        "g",
        "m",
        "v",
        "state",
        "n",
        "alpha",
        "beta",
        "epsilon",
        "weight_decay",
        "correct_bias",
        "adam_mode",
    )
    KERNEL = "adamw_f32"
    OPCODE = 32
    WORDS = 12
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "v", "state")
    FLOATS = ("alpha", "beta", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        v: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        epsilon: float,
        weight_decay: float,
        correct_bias: int,
        adam_mode: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.v = v
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.correct_bias = correct_bias
        self.adam_mode = adam_mode

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.v, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m, self.v]


class Sgd(KernelCall):
    """A call of `sgd_f32`."""

    __slots__ = ("w", "g", "state", "n")
    KERNEL = "sgd_f32"
    OPCODE = 33
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "state")

    def __init__(self, *, w: Buf, g: Buf, state: Buf, n: int, node: str = "") -> None:
        self.node = node
        self.w = w
        self.g = g
        self.state = state
        self.n = n

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w]


class Lion(KernelCall):
    """A call of `lion_f32`.

    w -= rate * (sign(alpha m + (1 - alpha) g) + weight_decay w), then m = beta m + (1 - beta) g
    """

    __slots__ = ("w", "g", "m", "state", "n", "alpha", "beta", "weight_decay")
    KERNEL = "lion_f32"
    OPCODE = 34
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "state")
    FLOATS = ("alpha", "beta", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m]


class Adam(KernelCall):
    """A call of `adam_f32`.

    Where nothing else is said, the gradient has weight_decay * w added before anything else. Adam: as adamw_f32 with
    adam_mode 0 but for the decay.
    """

    __slots__ = ("w", "g", "m", "v", "state", "n", "alpha", "beta", "epsilon", "weight_decay")
    KERNEL = "adam_f32"
    OPCODE = 35
    WORDS = 10
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "v", "state")
    FLOATS = ("alpha", "beta", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        v: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        epsilon: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.v = v
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.v, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m, self.v]


class Momentum(KernelCall):
    """A call of `momentum_f32`.

    m = momentum m + (1 - dampening) g, at the first step g; w -= rate * (nesterov ? g + momentum m : m)
    """

    __slots__ = ("w", "g", "m", "state", "n", "momentum", "dampening", "weight_decay", "nesterov")
    KERNEL = "momentum_f32"
    OPCODE = 36
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "state")
    FLOATS = ("momentum", "dampening", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        state: Buf,
        n: int,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.state = state
        self.n = n
        self.momentum = momentum
        self.dampening = dampening
        self.weight_decay = weight_decay
        self.nesterov = nesterov

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m]


class Rmsprop(KernelCall):
    """A call of `rmsprop_f32`.

    s = alpha s + (1 - alpha) g^2; with `mean` its square, an average of g like s, is taken from s under the root; d = g
    / (sqrt(s) + epsilon); with `velocity` it is momentum velocity + d; w -= rate * d
    """

    __slots__ = ("w", "g", "s", "velocity", "mean", "state", "n", "alpha", "epsilon", "momentum", "weight_decay")
    KERNEL = "rmsprop_f32"
    OPCODE = 37
    WORDS = 11
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "s", "velocity", "mean", "state")
    FLOATS = ("alpha", "epsilon", "momentum", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        s: Buf,
        velocity: Buf | None = None,
        mean: Buf | None = None,
        state: Buf,
        n: int,
        alpha: float,
        epsilon: float,
        momentum: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.s = s
        self.velocity = velocity
        self.mean = mean
        self.state = state
        self.n = n
        self.alpha = alpha
        self.epsilon = epsilon
        self.momentum = momentum
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        found = [self.w, self.g, self.s]
        if self.velocity is not None:
            found.append(self.velocity)
        if self.mean is not None:
            found.append(self.mean)
        found.append(self.state)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.w, self.s]
        if self.velocity is not None:
            found.append(self.velocity)
        if self.mean is not None:
            found.append(self.mean)
        return found


class Adagrad(KernelCall):
    """A call of `adagrad_f32`.

    s += g^2, at the first step from `initial`; w -= rate / (1 + steps before * rate_decay) * g / (sqrt(s) + epsilon)
    """

    __slots__ = ("w", "g", "s", "state", "n", "rate_decay", "initial", "epsilon", "weight_decay")
    KERNEL = "adagrad_f32"
    OPCODE = 38
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "s", "state")
    FLOATS = ("rate_decay", "initial", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        s: Buf,
        state: Buf,
        n: int,
        rate_decay: float,
        initial: float,
        epsilon: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.s = s
        self.state = state
        self.n = n
        self.rate_decay = rate_decay
        self.initial = initial
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.s, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.s]


class Adadelta(KernelCall):
    """A call of `adadelta_f32`.

    s = rho s + (1 - rho) g^2; u = sqrt(d + epsilon) / sqrt(s + epsilon) g; d = rho d + (1 - rho) u^2; w -= rate * u
    """

    __slots__ = ("w", "g", "s", "d", "state", "n", "rho", "epsilon", "weight_decay")
    KERNEL = "adadelta_f32"
    OPCODE = 39
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "s", "d", "state")
    FLOATS = ("rho", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        s: Buf,
        d: Buf,
        state: Buf,
        n: int,
        rho: float,
        epsilon: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.s = s
        self.d = d
        self.state = state
        self.n = n
        self.rho = rho
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.s, self.d, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.s, self.d]


class Lamb(KernelCall):
    """A call of `lamb_f32`.

    Of one parameter: r = Adam's direction + weight_decay w; w -= rate * (norm of w / norm of r, 1 where either is 0) *
    r
    """

    __slots__ = ("w", "g", "m", "v", "partial", "state", "n", "alpha", "beta", "epsilon", "weight_decay")
    KERNEL = "lamb_f32"
    OPCODE = 40
    WORDS = 11
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "v", "partial", "state")
    FLOATS = ("alpha", "beta", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        v: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        epsilon: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.v = v
        self.partial: Buf
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.v, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m, self.v, self.partial]

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, 4 * chunks(self.n)),))


class StateWithRate(KernelCall):
    """A call of `state_with_rate`.

    The state, but for its learning rate.
    """

    __slots__ = ("state", "rate", "changed")
    KERNEL = "state_with_rate"
    OPCODE = 41
    WORDS = 3
    ARGUMENTS = __slots__
    OPERANDS = ("state", "rate", "changed")

    def __init__(self, *, state: Buf, rate: Buf, changed: Buf, node: str = "") -> None:
        self.node = node
        self.state = state
        self.rate = rate
        self.changed = changed

    @property
    def reads(self) -> list[Buf]:
        return [self.state, self.rate]

    @property
    def writes(self) -> list[Buf]:
        return [self.changed]


class ClipGradNorm(KernelCall):
    """A call of `clip_grad_norm_f32`.

    g *= min(1, max_norm / (sqrt(sum of g^2) + 1e-6))
    """

    __slots__ = ("g", "partial", "n", "max_norm")
    KERNEL = "clip_grad_norm_f32"
    OPCODE = 42
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("g", "partial")
    FLOATS = ("max_norm",)

    def __init__(self, *, g: Buf, n: int, max_norm: float, node: str = "") -> None:
        self.node = node
        self.g = g
        self.partial: Buf
        self.n = n
        self.max_norm = max_norm

    @property
    def reads(self) -> list[Buf]:
        return [self.g]

    @property
    def writes(self) -> list[Buf]:
        return [self.g, self.partial]

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, 2 * chunks(self.n)),))


class OptimizerAdvance(KernelCall):
    """A call of `optimizer_advance`.

    step += 1
    """

    __slots__ = ("state",)
    KERNEL = "optimizer_advance"
    OPCODE = 43
    WORDS = 1
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, node: str = "") -> None:
        self.node = node
        self.state = state

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]


class LinearLr(KernelCall):
    """A call of `linear_lr`.

    learning_rate = initial_lr * f(step) of the linear scheduler
    """

    __slots__ = ("state",)
    KERNEL = "linear_lr"
    OPCODE = 44
    WORDS = 1
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, node: str = "") -> None:
        self.node = node
        self.state = state

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]


class Dropout(KernelCall):
    """A call of `dropout_f32`.

    y = x / (1 - ratio) where a random number is >= ratio, else 0; mask 1 where kept
    """

    __slots__ = ("x", "y", "mask", "state", "n", "ratio", "salt", "draw")
    KERNEL = "dropout_f32"
    OPCODE = 45
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "mask", "state")
    FLOATS = ("ratio",)
    OPTIONAL_RESULTS = ("mask",)

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf,
        mask: Buf | None = None,
        state: Buf,
        n: int,
        ratio: float,
        salt: int,
        draw: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.mask = mask
        self.state = state
        self.n = n
        self.ratio = ratio
        self.salt = salt
        self.draw = draw

    @property
    def reads(self) -> list[Buf]:
        return [self.x, self.state]

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.mask is not None:
            found.append(self.mask)
        return found


class Random(KernelCall):
    """A call of `random_f32`.

    normal 0: uniform in [a, b); 1: normal with mean a and standard deviation b
    """

    __slots__ = ("y", "state", "n", "salt", "draw", "normal", "a", "b")
    KERNEL = "random_f32"
    OPCODE = 46
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("y", "state")
    FLOATS = ("a", "b")

    def __init__(
        self, *, y: Buf, state: Buf, n: int, salt: int, draw: int, normal: int, a: float, b: float, node: str = ""
    ) -> None:
        self.node = node
        self.y = y
        self.state = state
        self.n = n
        self.salt = salt
        self.draw = draw
        self.normal = normal
        self.a = a
        self.b = b

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class RandomAdvance(KernelCall):
    """A call of `random_advance`.

    random offset += n: the next step draws other numbers
    """

    __slots__ = ("state", "n")
    KERNEL = "random_advance"
    OPCODE = 47
    WORDS = 2
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, n: int, node: str = "") -> None:
        self.node = node
        self.state = state
        self.n = n

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]


class SkipIfCurrent(KernelCall):
    """A call of `skip_if_current`.

    Skip the next `instructions` if they ran since parameters changed last; trained 0: since they were loaded.
    """

    __slots__ = ("state", "seen", "instructions", "trained")
    KERNEL = "skip_if_current"
    OPCODE = 48
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("state", "seen")

    def __init__(self, *, state: Buf, seen: Buf, instructions: int, trained: int, node: str = "") -> None:
        self.node = node
        self.state = state
        self.seen = seen
        self.instructions = instructions
        self.trained = trained

    @property
    def reads(self) -> list[Buf]:
        return [self.state, self.seen]

    @property
    def writes(self) -> list[Buf]:
        return []


class NoteCurrent(KernelCall):
    """A call of `note_current`.

    They ran.
    """

    __slots__ = ("state", "seen")
    KERNEL = "note_current"
    OPCODE = 49
    WORDS = 2
    ARGUMENTS = __slots__
    OPERANDS = ("state", "seen")

    def __init__(self, *, state: Buf, seen: Buf, node: str = "") -> None:
        self.node = node
        self.state = state
        self.seen = seen

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.seen]


class NoteChange(KernelCall):
    """A call of `note_change`.

    This plan has changed parameters.
    """

    __slots__ = ("state",)
    KERNEL = "note_change"
    OPCODE = 50
    WORDS = 1
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, node: str = "") -> None:
        self.node = node
        self.state = state

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]


class Gemm(KernelCall):
    """A call of `gemm_f32`.

    c[i,j][m,n] = activation(alpha * sum_k a[i,j](m,k) b[i,j](k,n) + beta * bias(m,n) + (accumulate ? c : 0)); strides
    in elements, so a transposed operand has its strides swapped; batch strides may be 0 (broadcast).
    """

    __slots__ = (
        "a",
        "b",
        "bias",
        "c",
        "m",
        "n",
        "k",
        "a_row",
        "a_col",
        "b_row",
        "b_col",
        "c_row",
        "bias_row",
        "bias_col",
        "batch",
        "a_batch",
        "b_batch",
        "c_batch",
        "bias_batch",
        "alpha",
        "beta",
        "accumulate",
        "activation",
    )
    KERNEL = "gemm_f32"
    OPCODE = 51
    WORDS = 28
    ARGUMENTS = __slots__
    OPERANDS = ("a", "b", "bias", "c")
    FLOATS = ("alpha", "beta")
    ACCUMULATED = ("c",)
    PARTS = ("c",)

    def __init__(
        self,
        *,
        a: Buf,
        b: Buf,
        bias: Buf | None = None,
        c: Buf,
        m: int,
        n: int,
        k: int,
        a_row: int,
        a_col: int,
        b_row: int,
        b_col: int,
        c_row: int,
        bias_row: int,
        bias_col: int,
        batch: tuple[int, ...],
        a_batch: tuple[int, ...],
        b_batch: tuple[int, ...],
        c_batch: tuple[int, ...],
        bias_batch: tuple[int, ...],
        alpha: float,
        beta: float,
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.a = a
        self.b = b
        self.bias = bias
        self.c = c
        self.m = m
        self.n = n
        self.k = k
        self.a_row = a_row
        self.a_col = a_col
        self.b_row = b_row
        self.b_col = b_col
        self.c_row = c_row
        self.bias_row = bias_row
        self.bias_col = bias_col
        self.batch = batch
        self.a_batch = a_batch
        self.b_batch = b_batch
        self.c_batch = c_batch
        self.bias_batch = bias_batch
        self.alpha = alpha
        self.beta = beta
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.a, self.b]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.c)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.c]

    @property
    def result(self) -> Buf:
        return self.c

    @result.setter
    def result(self, b: Buf) -> None:
        self.c = b

    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * prod(self.batch)


class Conv(KernelCall):
    """A call of `conv_f32`.

    Convolutions over (depth, height, width); fewer spatial axes have leading sizes 1 (kernel, stride, dilation 1, pad
    0). `pad` is the padding at the begin of each axis; the end follows from `out`. y = activation(x * w + bias +
    (accumulate ? y : 0)).
    """

    __slots__ = (
        "x",
        "w",
        "bias",
        "y",
        "n",
        "c",
        "m",
        "groups",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
        "activation",
    )
    KERNEL = "conv_f32"
    OPCODE = 52
    WORDS = 28
    ARGUMENTS = __slots__
    OPERANDS = ("x", "w", "bias", "y")
    ACCUMULATED = ("y",)

    def __init__(
        self,
        *,
        x: Buf,
        w: Buf,
        bias: Buf | None = None,
        y: Buf,
        n: int,
        c: int,
        m: int,
        groups: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.w = w
        self.bias = bias
        self.y = y
        self.n = n
        self.c = c
        self.m = m
        self.groups = groups
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.w]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.y)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.y]

    @property
    def result(self) -> Buf:
        return self.y

    @result.setter
    def result(self, b: Buf) -> None:
        self.y = b

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class ConvDataGradient(KernelCall):
    """A call of `conv_data_gradient_f32`.

    dx = activation(transposed convolution of dy + bias + (accumulate ? dx : 0)): also ConvTranspose, whose input is dy
    and output dx.
    """

    __slots__ = (
        "dy",
        "w",
        "bias",
        "dx",
        "ordered",
        "n",
        "c",
        "m",
        "groups",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
        "activation",
    )
    KERNEL = "conv_data_gradient_f32"
    OPCODE = 53
    WORDS = 29
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "w", "bias", "dx", "ordered")
    ACCUMULATED = ("dx",)

    def __init__(
        self,
        *,
        dy: Buf,
        w: Buf,
        bias: Buf | None = None,
        dx: Buf,
        n: int,
        c: int,
        m: int,
        groups: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.w = w
        self.bias = bias
        self.dx = dx
        self.ordered: Buf
        self.n = n
        self.c = c
        self.m = m
        self.groups = groups
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.dy, self.w]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.dx)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.dx, self.ordered]

    @property
    def result(self) -> Buf:
        return self.dx

    @result.setter
    def result(self, b: Buf) -> None:
        self.dx = b

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.ordered = temp("float32", (max(1, conv_weights(self.c, self.m, self.groups, self.kernel)),))

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class ConvWeightGradient(KernelCall):
    """A call of `conv_weight_gradient_f32`.

    dw (+)= gradient by the weights, db (+)= sum of dy per channel; `accumulate` adds to what they hold.
    """

    __slots__ = (
        "x",
        "dy",
        "dw",
        "db",
        "partial",
        "n",
        "c",
        "m",
        "groups",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
    )
    KERNEL = "conv_weight_gradient_f32"
    OPCODE = 54
    WORDS = 28
    ARGUMENTS = __slots__
    OPERANDS = ("x", "dy", "dw", "db", "partial")
    ACCUMULATED = ("dw", "db")

    def __init__(
        self,
        *,
        x: Buf,
        dy: Buf,
        dw: Buf,
        db: Buf | None = None,
        n: int,
        c: int,
        m: int,
        groups: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        accumulate: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.dy = dy
        self.dw = dw
        self.db = db
        self.partial: Buf
        self.n = n
        self.c = c
        self.m = m
        self.groups = groups
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.accumulate = accumulate

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.dy]
        if self.accumulate:
            found.append(self.dw)
        if self.accumulate and self.db is not None:
            found.append(self.db)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.dw]
        if self.db is not None:
            found.append(self.db)
        found.append(self.partial)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        size = 8 * self.m * self.c * prod(self.kernel) * (self.groups == 1) * (self.m * self.c * prod(self.kernel) <= 4096)
        self.partial = temp("float32", (max(1, size),))

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class WinogradWeights(KernelCall):
    """A call of `winograd_weights_f32`."""

    __slots__ = ("w", "u", "m", "c", "stride", "flipped")
    KERNEL = "winograd_weights_f32"
    OPCODE = 55
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("w", "u")

    def __init__(self, *, w: Buf, u: Buf, m: int, c: int, stride: int, flipped: int, node: str = "") -> None:
        self.node = node
        self.w = w
        self.u = u
        self.m = m
        self.c = c
        self.stride = stride
        self.flipped = flipped

    @property
    def reads(self) -> list[Buf]:
        return [self.w]

    @property
    def writes(self) -> list[Buf]:
        return [self.u]


class WinogradConv(KernelCall):
    """A call of `winograd_conv_f32`.

    As conv_f32; flipped 1: as conv_data_gradient_f32, with dy as x, where the paddings must be both even or both odd if
    the stride is 2. Its flops are those of a direct sum. It pays from 4 channels on where half of the tiles (stride 2:
    3/4) lies inside.
    """

    __slots__ = (
        "x",
        "u",
        "bias",
        "y",
        "n",
        "c",
        "m",
        "size",
        "out",
        "stride",
        "pad",
        "flipped",
        "accumulate",
        "activation",
    )
    KERNEL = "winograd_conv_f32"
    OPCODE = 56
    WORDS = 17
    ARGUMENTS = __slots__
    OPERANDS = ("x", "u", "bias", "y")
    ACCUMULATED = ("y",)

    def __init__(
        self,
        *,
        x: Buf,
        u: Buf,
        bias: Buf | None = None,
        y: Buf,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        out: tuple[int, ...],
        stride: int,
        pad: tuple[int, ...],
        flipped: int,
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.u = u
        self.bias = bias
        self.y = y
        self.n = n
        self.c = c
        self.m = m
        self.size = size
        self.out = out
        self.stride = stride
        self.pad = pad
        self.flipped = flipped
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.u]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.y)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.y]

    @property
    def result(self) -> Buf:
        return self.y

    @result.setter
    def result(self, b: Buf) -> None:
        self.y = b

    def flops(self) -> int:
        return 18 * self.n * self.m * self.c * (prod(self.out) * (self.flipped == 0) + prod(self.size) * (self.flipped > 0))

    @staticmethod
    def pays(
        *,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        out: tuple[int, ...],
        stride: int,
        pad: tuple[int, ...],
        flipped: int,
        activation: int,
    ) -> bool:
        """Whether the kernel takes these arguments and is worth taking."""
        return bool((winograd_window(n, c, m, size, out, stride, pad) and flipped <= 1 and (activation <= 1) and ((pad[0] - pad[0] // 2 * 2 == pad[1] - pad[1] // 2 * 2) + (stride == 1) + (flipped == 0) >= 1)) and (min(c, m) >= 4 and 4 * prod(out) >= (1 + stride) * winograd_tiled(out[0], stride, flipped) * winograd_tiled(out[1], stride, flipped)))


class WinogradWeightGradient(KernelCall):
    """A call of `winograd_weight_gradient_f32`.

    As conv_weight_gradient_f32; pays where winograd_conv_f32 does.
    """

    __slots__ = ("x", "dy", "dw", "db", "partial", "n", "c", "m", "size", "out", "stride", "pad", "accumulate")
    KERNEL = "winograd_weight_gradient_f32"
    OPCODE = 57
    WORDS = 16
    ARGUMENTS = __slots__
    OPERANDS = ("x", "dy", "dw", "db", "partial")
    ACCUMULATED = ("dw", "db")

    def __init__(
        self,
        *,
        x: Buf,
        dy: Buf,
        dw: Buf,
        db: Buf | None = None,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        out: tuple[int, ...],
        stride: int,
        pad: tuple[int, ...],
        accumulate: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.dy = dy
        self.dw = dw
        self.db = db
        self.partial: Buf
        self.n = n
        self.c = c
        self.m = m
        self.size = size
        self.out = out
        self.stride = stride
        self.pad = pad
        self.accumulate = accumulate

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.dy]
        if self.accumulate:
            found.append(self.dw)
        if self.accumulate and self.db is not None:
            found.append(self.db)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.dw]
        if self.db is not None:
            found.append(self.db)
        found.append(self.partial)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        size = min(8 * 36 * (self.m * ceil4(self.c) + 16), max(36 * (self.m * ceil4(self.c) + 16), 1048576))
        self.partial = temp("float32", (max(1, size),))

    def flops(self) -> int:
        return 18 * self.n * self.m * self.c * prod(self.out)


class MaxPool(KernelCall):
    """A call of `max_pool_f32`.

    Pooling over the last three axes (depth, height, width) of `planes` planes; fewer spatial axes have leading sizes 1.
    indices: position of each maximum in the whole of x (the first one of equals); -1 where a window holds padding
    alone.
    """

    __slots__ = ("x", "y", "indices", "planes", "size", "kernel", "out", "stride", "dilation", "pad")
    KERNEL = "max_pool_f32"
    OPCODE = 58
    WORDS = 22
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "indices")
    OPTIONAL_RESULTS = ("indices",)

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf,
        indices: Buf | None = None,
        planes: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.indices = indices
        self.planes = planes
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.indices is not None:
            found.append(self.indices)
        return found


class MaxPoolGradient(KernelCall):
    """A call of `max_pool_gradient_f32`.

    dx = 0, then dx[indices[i]] += dy[i]. An index must lie in its own plane, as all do that max_pool_f32 makes.
    """

    __slots__ = ("dy", "indices", "dx", "planes", "size", "out_size")
    KERNEL = "max_pool_gradient_f32"
    OPCODE = 59
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "indices", "dx")

    def __init__(
        self, *, dy: Buf, indices: Buf, dx: Buf, planes: int, size: int, out_size: int, node: str = ""
    ) -> None:
        self.node = node
        self.dy = dy
        self.indices = indices
        self.dx = dx
        self.planes = planes
        self.size = size
        self.out_size = out_size

    @property
    def reads(self) -> list[Buf]:
        return [self.dy, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


class AveragePool(KernelCall):
    """A call of `average_pool_f32`.

    Mean over the window; with count_include_pad it counts the positions of the padding, which ends pad_end after the
    input.
    """

    __slots__ = (
        "x",
        "y",
        "planes",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "pad_end",
        "count_include_pad",
    )
    KERNEL = "average_pool_f32"
    OPCODE = 60
    WORDS = 25
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf,
        planes: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        pad_end: tuple[int, ...],
        count_include_pad: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.planes = planes
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.pad_end = pad_end
        self.count_include_pad = count_include_pad

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class AveragePoolGradient(KernelCall):
    """A call of `average_pool_gradient_f32`."""

    __slots__ = (
        "dy",
        "dx",
        "planes",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "pad_end",
        "count_include_pad",
    )
    KERNEL = "average_pool_gradient_f32"
    OPCODE = 61
    WORDS = 25
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "dx")

    def __init__(
        self,
        *,
        dy: Buf,
        dx: Buf,
        planes: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        pad_end: tuple[int, ...],
        count_include_pad: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.dx = dx
        self.planes = planes
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.pad_end = pad_end
        self.count_include_pad = count_include_pad

    @property
    def reads(self) -> list[Buf]:
        return [self.dy]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


TakesRelu = Gemm | Conv | ConvDataGradient | WinogradConv
"""Calls that apply relu to their `result` where `activation` is ACTIVATION_RELU."""
TakesFactor = Gemm
"""Calls that multiply what they make by `alpha`."""
TakesBias = Gemm
"""Calls that add `bias`, a vector along the columns of the result where `bias_col` is 1."""
Accumulates = Gemm | Conv | ConvDataGradient | ConvWeightGradient | WinogradConv | WinogradWeightGradient
"""Calls that add to what `accumulated` hold where `accumulate` is 1."""
