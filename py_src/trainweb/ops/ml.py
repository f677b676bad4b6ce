"""Operators of ai.onnx.ml that converters of scikit-learn put around a network."""

from __future__ import annotations

from collections.abc import Sequence

from trainweb.ir.dims import equal
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import ML
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Floats, Str
from trainweb.ops.frame.symbolic import Var, constant


class Scaler(Composite):
    """(X - offset) * scale, with one number or one for each feature. https://onnx.ai/onnx/operators/onnx_aionnxml_Scaler.html"""

    domain = ML
    attrs = {"offset": Floats([0.0]), "scale": Floats([1.0])}
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        for name, numbers in (("offset", self.offset), ("scale", self.scale)):
            if len(numbers) != 1 and (not x.rank or not equal(x.shape[-1], len(numbers))):
                raise self.error(f"{len(numbers)} numbers of {name} are not for features of {list(x.shape)}.")
        return TensorType("float32", x.shape)

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        offset, scale = (
            constant(g, "float32", (len(numbers),) if len(numbers) > 1 else (), numbers)
            for numbers in (self.offset, self.scale)
        )
        return [(x.cast("float32") - offset) * scale]


_NORMS = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}


class Normalizer(Composite):
    """Rows divided by their norm, unless that is 0. https://onnx.ai/onnx/operators/onnx_aionnxml_Normalizer.html

    MAX is the largest number of a row, as in ONNX Runtime; scikit-learn takes the largest magnitude.
    """

    domain = ML
    attrs = {"norm": Str("MAX")}
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        if self.norm not in _NORMS:
            raise self.error(f"norm is {self.norm!r}; expected one of {', '.join(_NORMS)}.")
        if x.rank not in (1, 2):
            raise self.error(f"it takes a vector or rows of numbers, not {list(x.shape)}.")
        return TensorType("float32", x.shape)

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        x = x.cast("float32")
        norm = Var(g, g.reduce(_NORMS[self.norm], x.name, [-1]), "float32")
        return [x / norm.equal(0.0).where(norm.lift(1.0), norm)]
