"""Losses of one's own whose inner tensors meet their last input."""

from typing import Any

import numpy as np
from onnx import helper
from tests.conformance.models import make_model, normal

from trainweb import onnxblock
from trainweb.onnxblock import blocks, loss

W = normal(4, 3)
RNG = np.random.default_rng(5)
X = RNG.standard_normal((20, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 20)
WEIGHTS = RNG.random(20).astype(np.float32)
TARGET = RNG.standard_normal((20, 3)).astype(np.float32)
SCORES = X.astype(np.float64) @ W
"""Of `linear` with its first parameters."""


def linear() -> Any:
    """x[batch, 4] -> MatMul = h -> Identity = scores[batch, 3]."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "product"), helper.make_node("Identity", ["h"], ["scores"])]
    return make_model(nodes, {"x": ["batch", 4]}, {"scores": ["batch", 3]}, {"w": W})


def two_heads() -> Any:
    """x[batch, 4] -> MatMul = scores[batch, 3] and size[batch, 1]."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["scores"]), helper.make_node("MatMul", ["x", "v"], ["size"])]
    outputs = {"scores": ["batch", 3], "size": ["batch", 1]}
    return make_model(nodes, {"x": ["batch", 4]}, outputs, {"w": W, "v": normal(4, 1, seed=1)})


class Weighted(onnxblock.Block):
    """The mean of a loss of each row, or of each element, times a weight that is fed: its last input."""

    def __init__(self, each: Any) -> None:
        super().__init__()
        self.each, self.mul, self.mean = each, blocks.Mul(), blocks.ReduceMean(keepdims=False)

    def build(self, scores: str) -> Any:
        """Name of the loss."""
        each = self.each(scores)
        return self.mean(self.mul(each, blocks.InputLike(each)("weights")))


class TwoHeads(onnxblock.Block):
    """A cross entropy of one head and 0.3 of a Huber loss of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.size = loss.CrossEntropyLoss(), loss.HuberLoss()
        self.add, self.mul, self.share = blocks.Add(), blocks.Mul(), blocks.Constant(0.3)

    def build(self, scores: str, size: str) -> Any:
        """Name of the loss."""
        return self.add(self.classes(scores), self.mul(self.size(size), self.share()))


class Distilled(onnxblock.Block):
    """A cross entropy of labels, and the squared error of scores that a teacher gave."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.teacher, self.add = loss.CrossEntropyLoss(), loss.MSELoss(), blocks.Add()

    def build(self, scores: str) -> Any:
        """Name of the loss."""
        return self.add(self.classes(scores), self.teacher(scores, "teacher"))


def weighted_entropy() -> Weighted:
    """Of labels, a weight for each row."""
    return Weighted(loss.CrossEntropyLoss(reduction="none"))
