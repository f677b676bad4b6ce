"""Random tensors and dropout; numbers come from the session's seed (docs/architecture-plan.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal, equal_shapes
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import ONNX_DTYPES
from trainweb.model.graph import MS
from trainweb.ops.frame.arguments import checked, is_known_later, scalar
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Attr, Float, Int, Ints, Names, Op
from trainweb.ops.frame.symbolic import Var, constant

DEFAULT_RATIO = 0.5


class RandomOp(Op, abstract=True):
    """An operator that draws numbers; two nodes of one step draw different ones."""

    draws = True

    def salt(self) -> int:
        """Salt that makes this node's random stream unique."""
        source = self.node.outputs[0] if self.seed is None else f"seed {self.seed}"
        return crc32(source.encode()) & 0x7FFFFFFF

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [None] * len(ins)


def dropped(op: Op, ratio: TensorType | Buf | None, default: float = DEFAULT_RATIO) -> float:
    """The ratio of a dropout, where it is known."""
    value = float(default if ratio is None or ratio.value is None else ratio.value[0])
    if not 0 <= value < 1:
        raise op.error(f"ratio is {value}; it must be in [0, 1).")
    return value


class Dropout(RandomOp):
    """x / (1 - ratio) with probability 1 - ratio, else 0, in training. https://onnx.ai/onnx/operators/onnx__Dropout.html

    Before opset 12 the operator says nothing about training: x passes.
    """

    versions = (7, 10, 12, 13, 22)
    attrs = {"ratio": Float(DEFAULT_RATIO), "seed": Int()}
    n_outputs = 2
    differentiable = (0,)
    static_inputs = (1,)

    def _ratio(self, ratio: TensorType | Buf | None) -> float:
        return dropped(self, ratio, self.ratio if self.opset < 12 else DEFAULT_RATIO)

    def infer(self, x: TensorType, ratio: TensorType | None = None, training: TensorType | None = None) -> Any:
        self.need_float32(x)
        if ratio is not None and not is_known_later(self, ratio):
            scalar(self, ratio, "ratio")
        if training is not None and (training.dtype != "bool" or not equal(training.size, 1)):
            raise self.error(f"training_mode is {training.dtype}{list(training.shape)}, not one bool.")
        self._ratio(ratio)
        return TensorType(x.dtype, x.shape), TensorType("bool", x.shape)

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        x, ratio, training = ins
        if x is None:
            return
        share = self._ratio(ratio)
        off = training is not None and training.value is not None and not training.value[0]
        if training is None or off or share == 0:
            if outs[0] is not None:
                b.copy(outs[0], x)
            b.fill(outs[1], True)
            return
        known = training.value is not None
        y = outs[0] if known and outs[0] is not None else b.temp(x.dtype, x.shape)
        mask = outs[1] if known or outs[1] is None else b.temp("bool", x.shape)
        call = calls.Dropout(
            x=x, y=y, mask=mask, state=b.state, n=x.size, ratio=share, salt=self.salt(), draw=b.next_draw()
        )
        b.emit(call)
        if not known:
            switch = training.view(())
            b.elementwise(outs[:1], [switch, y, x], lambda e, on, a, c: e.select(on, a, c))
            if outs[1] is not None and mask is not None:
                b.elementwise(outs[1:2], [switch, mask], lambda e, on, m: e.or_(e.not_(on), m))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        rest: list[str | None] = [None] * (len(ins) - 1)
        training = g.known(ins[2]) if len(ins) > 2 and ins[2] else None
        if len(ins) < 3 or not ins[2] or (training is not None and training.value == (False,)):
            return [douts[0], *rest]
        mask = g.extra_output(1, "_mask")
        return [g.op("DropoutGrad", [douts[0], mask, *ins[1:]], domain=MS), *rest]


class DropoutGrad(Op):
    """dY / (1 - ratio) where the mask holds, else 0; without training, dY where the mask holds."""

    domain = MS
    static_inputs = (2,)

    def infer(self, *inputs: TensorType | None) -> TensorType:
        dy, mask, ratio, _ = inputs
        if dy is None or mask is None or mask.dtype != "bool" or not equal_shapes(mask.shape, dy.shape):
            raise self.error("the mask must be a bool for each element of dY.")
        if ratio is not None and not is_known_later(self, ratio):
            scalar(self, ratio, "ratio")
        dropped(self, ratio)
        return TensorType(dy.dtype, dy.shape)

    def lower(
        self, b: Builder, outs: list[Buf], dy: Buf, mask: Buf, ratio: Buf | None = None, training: Buf | None = None
    ) -> None:
        share = dropped(self, ratio)
        maker = b.maker(mask)
        is_training = training is not None and training.value is not None and training.value[0]
        # The gradient is dropout of dY with the same numbers: drawn again, no mask need be kept.
        if (
            is_training
            and isinstance(maker, calls.Dropout)
            and maker.mask
            and maker.mask.same_place(mask)
            and maker.ratio == share
        ):
            salt, draw = maker.salt, maker.draw
            b.emit(calls.Dropout(x=dy, y=outs[0], state=maker.state, n=maker.n, ratio=share, salt=salt, draw=draw))
            return
        scale = 1 / (1 - share)

        def compute(e: Emitter, d: Expr, m: Expr, *on: Expr) -> Expr:
            grown = e.mul(d, e.like(d, scale))
            return e.select(m, e.select(on[0], grown, d) if on else grown, e.like(d, 0))

        b.elementwise(outs[:1], [dy, mask, *([training.view(())] if training else [])], compute)


class Noise(RandomOp, abstract=True):
    """A tensor of random numbers, of the shape of an input or of an attribute."""

    min_inputs = max_inputs = 0
    normal: int
    numbers: tuple[str, str]
    """Attributes that are a and b of the kernel."""

    def infer(self, *like: TensorType) -> TensorType:
        dtype = ONNX_DTYPES.get(1 if self.dtype is None else self.dtype)
        if dtype is None:
            raise self.error(f"there is no data type {self.dtype}.")
        self.need_dtype(("float32",), dtype)
        return checked(self, dtype, like[0].shape if like else self.shape)

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        first, second = (getattr(self, name) for name in self.numbers)
        call = calls.Random(
            y=outs[0],
            state=b.state,
            n=outs[0].size,
            salt=self.salt(),
            draw=b.next_draw(),
            normal=self.normal,
            a=first,
            b=second,
        )
        b.emit(call)


_SHAPED: dict[str, Attr] = {"dtype": Int(1), "shape": Ints(required=True), "seed": Float()}
_LIKE: dict[str, Attr] = {"dtype": Int(), "seed": Float()}
_NORMAL: dict[str, Attr] = {"mean": Float(0.0), "scale": Float(1.0)}
_UNIFORM: dict[str, Attr] = {"low": Float(0.0), "high": Float(1.0)}


class RandomNormal(Noise):
    """Normal numbers of a given shape. https://onnx.ai/onnx/operators/onnx__RandomNormal.html"""

    versions = (1, 22)
    attrs = _SHAPED | _NORMAL
    normal, numbers = 1, ("mean", "scale")


class RandomUniform(Noise):
    """Uniform numbers of a given shape. https://onnx.ai/onnx/operators/onnx__RandomUniform.html"""

    versions = (1, 22)
    attrs = _SHAPED | _UNIFORM
    normal, numbers = 0, ("low", "high")


class RandomNormalLike(RandomNormal):
    """Normal numbers of the shape of x. https://onnx.ai/onnx/operators/onnx__RandomNormalLike.html"""

    attrs = _LIKE | _NORMAL
    min_inputs = max_inputs = 1


class RandomUniformLike(RandomUniform):
    """Uniform numbers of the shape of x. https://onnx.ai/onnx/operators/onnx__RandomUniformLike.html"""

    attrs = _LIKE | _UNIFORM
    min_inputs = max_inputs = 1


class Bernoulli(RandomOp):
    """1 with probability x, else 0. https://onnx.ai/onnx/operators/onnx__Bernoulli.html"""

    versions = (15, 22)
    attrs = {"dtype": Int(), "seed": Float()}

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        dtype = ONNX_DTYPES.get(1 if self.dtype is None else self.dtype, "")
        self.need_dtype(("float32", "float64", "int32", "int64", "uint8", "bool"), dtype)
        return TensorType(dtype, x.shape)

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        out = outs[0]
        drawn = b.temp("float32", x.shape)
        b.emit(
            calls.Random(y=drawn, state=b.state, n=x.size, salt=self.salt(), draw=b.next_draw(), normal=0, a=0.0, b=1.0)
        )
        b.elementwise([out], [drawn, x], lambda e, u, p: e.cast(e.compare("lt", u, p), out.dtype))


class Multinomial(Composite):
    """Classes drawn by their log-probabilities. https://onnx.ai/onnx/operators/onnx__Multinomial.html

    x is (batch, classes), the result (batch, sample_size). The class with the largest x + noise is drawn, where the
    noise is of the distribution of Gumbel, -log(-log(u)).
    """

    versions = (7, 22)
    attrs = {"dtype": Int(6), "sample_size": Int(1), "seed": Float()}
    draws = True

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        dtype = ONNX_DTYPES.get(self.dtype)
        if x.rank != 2 or self.sample_size < 1 or dtype not in ("int32", "int64"):
            raise self.error(
                f"x has shape {list(x.shape)}, sample_size is {self.sample_size}, dtype {dtype}: it needs 2-D x, at "
                "least one sample, and int32 or int64."
            )
        return checked(self, dtype, (x.shape[0], self.sample_size))

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        repeats = constant(g, "int64", (3,), [1, self.sample_size, 1])
        logits = x.unsqueeze(1).op("Tile", repeats)
        seed: dict[str, Any] = {} if self.seed is None else {"seed": float(self.seed)}
        noise = -(-logits.op("RandomUniformLike", **seed).op("Log")).op("Log")
        drawn = Var(g, g.op("ArgMax", [(logits + noise).name], axis=2, keepdims=0), "int64")
        return [drawn.cast(ONNX_DTYPES[self.dtype])]
