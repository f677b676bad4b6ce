"""Bases of the elementwise families."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.shapes import TensorType, contiguous_strides
from trainweb.ops.frame.evaluate import evaluate
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Elementwise, Names
from trainweb.ops.frame.symbolic import Var, names, when

T = TypeVar("T", bound=Elementwise)

MAX_EVALUATED = 4096
"""Larger tensors are left to the engine."""


def spread(value: Sequence[Any], shape: tuple[int, ...], target: tuple[int, ...]) -> list[Any]:
    """Flat elements of a tensor broadcast to `target`."""
    steps = [0] * (len(target) - len(shape)) + [
        step if dim > 1 else 0 for dim, step in zip(shape, contiguous_strides(shape), strict=True)
    ]
    offsets = [0]
    for dim, step in zip(target, steps, strict=True):
        offsets = [offset + k * step for offset in offsets for k in range(dim)]
    return [value[offset] for offset in offsets]


class Pointwise(Elementwise, abstract=True):
    """An elementwise operator that is computed in Python where its inputs are known."""

    def evaluate(self, *inputs: TensorType | None) -> tuple[Any, ...] | None:
        types = [t for t in inputs if t is not None]
        shape = self.broadcast(types)
        if any(t.size > MAX_EVALUATED for t in types):
            return None
        e = Emitter()
        try:
            root = self.compute(e, *(e.input(k, t.dtype) for k, t in enumerate(types)))
            return evaluate(root, [spread(t.value or (), t.shape, shape) for t in types])
        except (ArithmeticError, ValueError, TypeError):
            return None


class Unary(Pointwise, abstract=True):
    """A differentiable function of one float tensor; `backward` is its gradient."""

    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    differentiable: ClassVar[Sequence[int]] = (0,)

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        """Gradient of the input from the input, the output and the output's gradient."""
        raise self.unsupported("differentiation")

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        x, y, dy = Var.of(g, ins[0], outs[0], douts[0])
        return names(self.backward(x, y, dy))


def declare(
    base: type[T], name: str, versions: tuple[int, ...], meaning: str, compute: Callable[..., Expr], **members: Any
) -> type[T]:
    """Declare an operator without attributes: a `base` that computes an expression, with other members of a class."""
    link = "" if base.domain else f" https://onnx.ai/onnx/operators/onnx__{name}.html"
    members |= {"__doc__": f"{meaning}.{link}", "__module__": compute.__module__, "versions": versions}
    members["compute"] = lambda self, e, *xs: compute(e, *xs)
    return type(name, (base,), members)


def function(
    name: str,
    versions: tuple[int, ...],
    meaning: str,
    compute: Callable[[Emitter, Expr], Expr],
    backward: Callable[[Var, Var, Var], Var] | None,
    dtypes: tuple[str, ...] = ("float32",),
) -> type[Unary]:
    """Declare a function of one tensor; `backward` is its gradient from the input, the output and its gradient.

    It is None of a piecewise constant function: the gradient is zero, and nothing is emitted for it.
    """
    if backward is None:
        members = {"differentiable": (), "gradient": lambda self, g, ins, outs, douts: [None]}
    else:
        members = {"backward": lambda self, x, y, dy: backward(x, y, dy)}
    return declare(Unary, name, versions, meaning, compute, dtypes=dtypes, **members)


class GradientOp(Pointwise, abstract=True):
    """A function of (dY, X or Y) that computes an input gradient; not differentiated further."""

    domain: ClassVar[str] = "com.microsoft"
    min_inputs: ClassVar[int] = 2
    max_inputs: ClassVar[int] = 2
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)


def reduced(g: GradientBuilder, ins: list[str], out: str, *gradients: Callable[[], Var] | None) -> Names:
    """Per input: its gradient of the broadcast shape of `out`, made if wanted and summed to the input's shape."""
    return [
        g.reduce_to(make().name, name, out) if make and when(g, ins, k) else None
        for k, (name, make) in enumerate(zip(ins, gradients, strict=False))
    ]
