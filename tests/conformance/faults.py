"""Models that go wrong at a known node, and others in which infinities are there on purpose."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper

from .models import make_model, normal

W = np.abs(normal(3, 4)) + 0.5
V = normal(4, 2, seed=1)
POSITIVE = np.abs(normal(5, 3, seed=2)) + 0.1
BIG = np.float32(1e30)


@dataclass(frozen=True)
class Case:
    """h = x W, then some nodes from h to l, and y = l V; what is fed besides positive numbers."""

    nodes: tuple[Any, ...]
    x: np.ndarray = field(default_factory=lambda: POSITIVE)
    constants: dict[str, Any] = field(default_factory=dict)
    fed: dict[str, np.ndarray] = field(default_factory=dict)
    node: str = ""
    tensor: str = ""


def node(op: str, ins: str, out: str, **attrs: Any) -> Any:
    return helper.make_node(op, ins.split(), [out], f"the {out}", **attrs)


def model(case: Case) -> Any:
    types = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in case.fed.items()}
    return make_model(
        [node("MatMul", "x w", "h"), *case.nodes, node("MatMul", "l v", "y")],
        {"x": ["batch", 3]} | {name: a.shape for name, a in case.fed.items()},
        {"y": ["batch", 2]},
        {"w": W, "v": V, **case.constants},
        types=types,
    )


def row_of(value: float, row: int = 2) -> np.ndarray:
    x = POSITIVE.copy()
    x[row] = value
    return x


LOWER = np.tril(np.ones((5, 5), bool))
SCORES = (node("MatMul", "h turned", "scores"),)

FAULTS = {
    "log of zero": Case((node("Log", "h", "l"),), row_of(0), node="Log node 'the l'", tensor="l"),
    "log of a negative": Case((node("Log", "h", "l"),), row_of(-1), node="Log node 'the l'", tensor="l"),
    "zero by zero": Case((node("Div", "h h", "l"),), row_of(0), node="Div node 'the l'", tensor="l"),
    "exp": Case((node("Exp", "h", "l"),), row_of(100), node="Exp node 'the l'", tensor="l"),
    "exp that a division hides": Case(
        (node("Exp", "h", "e"), node("Reciprocal", "e", "l")), row_of(100), node="Exp node 'the e'", tensor="e"
    ),
    "a product": Case((node("Mul", "h h", "l"),), row_of(BIG), node="Mul node 'the l'", tensor="l"),
    "a whole row is masked": Case(
        (node("Where", "keep h low", "m"), node("Softmax", "m", "l", axis=1)),
        constants={"low": np.float32(-np.inf)},
        fed={"keep": np.array([[True], [True], [False], [True], [True]])},
        node="Softmax node 'the l'",
        tensor="l",
    ),
}
"""By what goes wrong forward."""


HARMLESS = {
    "a causal mask": Case(
        (*SCORES, node("Where", "lower scores low", "m"), node("Softmax", "m", "p"), node("MatMul", "p h", "l")),
        constants={"turned": normal(4, 5, seed=4), "lower": LOWER, "low": np.float32(-np.inf)},
    ),
    "a mask that is added": Case(
        (*SCORES, node("Add", "scores mask", "m"), node("Softmax", "m", "p"), node("MatMul", "p h", "l")),
        constants={"turned": normal(4, 5, seed=4), "mask": np.where(LOWER, 0, -np.inf).astype(np.float32)},
    ),
    "a mask that is fed": Case(
        (*SCORES, node("Add", "scores mask", "m"), node("Softmax", "m", "p"), node("MatMul", "p h", "l")),
        constants={"turned": normal(4, 5, seed=4)},
        fed={"mask": np.where(LOWER, 0, -np.inf).astype(np.float32)},
    ),
    "a padded maximum": Case(
        (
            node("Unsqueeze", "h one", "u"),
            node("MaxPool", "u", "p", kernel_shape=[3], pads=[1, 1], strides=[1]),
            node("Squeeze", "p one", "l"),
        ),
        constants={"one": np.array([1])},
    ),
    "padding": Case(
        (node("Pad", "h pads low", "p"), node("ReduceMax", "p", "m", axes=[1], keepdims=1), node("Mul", "h m", "l")),
        constants={"pads": np.array([0, 1, 0, 1]), "low": np.float32(-np.inf)},
    ),
    "missing values that are filled in": Case(
        (node("IsNaN", "more", "gone"), node("Where", "gone zero more", "f"), node("Mul", "h f", "l")),
        constants={"zero": np.float32(0)},
        fed={"more": np.array([[1, np.nan, 2, 3]], np.float32)},
    ),
}
"""By what an infinity or a NaN is there for."""
