"""Operators of the domain com.microsoft that optimizers of inference models put in the place of several.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainweb.ir.dims import equal, equal_shapes
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, Node
from trainweb.ops.conv import Conv, convolution_of
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Float, Floats, Int, Str
from trainweb.ops.frame.symbolic import Var
from trainweb.ops.matmul import Gemm

ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "": (),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""Activations of FusedConv, and what their parameters are."""
GEMM_ACTIVATIONS = (
    *("", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid"),
    *("Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)
"""Activations of FusedGemm, whose attributes it has with "activation_" before their names."""
CLIP_INPUTS_SINCE = 11
"""The first opset with the limits of Clip as inputs."""


class FusedConv(Composite):
    """Convolution, another tensor added to it, and an activation."""

    domain = MS
    attrs = {
        **Conv.attrs,
        "activation": Str(""),
        "activation_params": Floats(),
    }
    differentiable = (0, 1, 2, 3)

    def infer(
        self, x: TensorType, w: TensorType, b: TensorType | None = None, z: TensorType | None = None
    ) -> TensorType:
        if self.activation not in ACTIVATIONS:
            raise self.unsupported(f"the activation {self.activation!r}")
        names, params = ACTIVATIONS[self.activation], self.activation_params or ()
        if len(params) != len(names):
            raise self.error(f"activation_params are {list(params)} for {list(names)} of {self.activation}.")
        y = convolution_of(self).infer(x, w, b)
        if z is not None and (z.dtype != "float32" or not equal_shapes(z.shape, y.shape)):
            raise self.error(f"what is added is {z.dtype} {list(z.shape)}, not float32 {list(y.shape)}.")
        return y

    def expand(self, g: Emission, x: Var, w: Var, b: Var | None, z: Var | None) -> Sequence[Var | None]:
        y = x.op("Conv", *(v for v in (w, b) if v is not None), **convolution_of(self).copied_attrs())
        y = y if z is None else y + z
        if not self.activation:
            return [y]
        params = dict(zip(ACTIVATIONS[self.activation], self.activation_params or (), strict=True))
        if self.activation == "Clip" and g.opset >= CLIP_INPUTS_SINCE:
            return [y.op("Clip", *params.values())]
        return [y.op(self.activation, **params)]


class FusedGemm(Composite):
    """Gemm, and an activation."""

    domain = MS
    attrs = {
        **Gemm.attrs,
        "activation": Str(""),
        "activation_alpha": Float(),
        "activation_beta": Float(),
        "activation_gamma": Float(),
    }
    differentiable = (0, 1, 2)

    def infer(self, a: TensorType, b: TensorType, c: TensorType | None = None) -> TensorType:
        if self.activation not in GEMM_ACTIVATIONS:
            raise self.unsupported(f"the activation {self.activation!r}")
        return self._product().infer(a, b, c)

    def _product(self) -> Gemm:
        """The product."""
        attrs = {name: value for name, value in self.node.attrs.items() if name in Gemm.attrs}
        return Gemm(Node("Gemm", ["a", "b"], self.node.outputs[:1], attrs, "", self.node.name), Gemm.versions[-1])

    def _parameters(self) -> dict[str, Any]:
        """The attributes of the activation."""
        prefix = "activation_"
        return {n.removeprefix(prefix): v for n, v in self.node.attrs.items() if n.startswith(prefix)}

    def expand(self, g: Emission, a: Var, b: Var, c: Var | None) -> Sequence[Var | None]:
        y = a.op("Gemm", *(v for v in (b, c) if v is not None), **self._product().node.attrs)
        return [y.op(self.activation, **self._parameters()) if self.activation else y]


class EmbedLayerNormalization(Composite):
    """LayerNormalization of the sum of the embeddings of words, positions and segments.

    Output 1 has the number of tokens of each item that the mask keeps, output 2 the sum.
    """

    domain = MS
    attrs = {"epsilon": Float(1e-12), "mask_index_type": Int(1)}
    min_inputs, max_inputs, n_outputs = 7, 9, 3
    differentiable = (2, 3, 4, 5, 6)

    def infer(self, ids: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        segments, words, positions, kinds, gamma, beta, mask, places_ = others
        if words is None or positions is None or gamma is None or beta is None or (segments is None) != (kinds is None):
            raise self.error("tables of words and positions, gamma and beta are needed; segments go with their table.")
        self.need_float32(words, positions, kinds, gamma, beta)
        for t in (ids, segments, mask, places_):
            if t is not None and (t.dtype != "int32" or t.rank != 2 or not equal(t.shape[1], ids.shape[1])):
                raise self.error(f"tokens, segments, mask and positions must be int32 [batch, length], not {t}.")
        width = words.shape[-1]
        for t in (words, positions, kinds):
            if t is not None and (t.rank != 2 or not equal(t.shape[1], width)):
                raise self.error(f"a table has shape {list(t.shape)}; its rows must have {width} numbers.")
        for t in (gamma, beta):
            if not equal_shapes(t.shape, (width,)):
                raise self.error(f"gamma or beta has shape {list(t.shape)}, not {[width]}.")
        rows = TensorType("float32", (*ids.shape, width))
        return rows, TensorType("int32", ids.shape[:1]), rows

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        ids, segments, words, positions, kinds, gamma, beta, mask, place = ins
        assert ids is not None and words is not None and positions is not None
        assert gamma is not None and beta is not None
        place = ids.places(1).unsqueeze(0) if place is None else place
        rows = words.op("Gather", ids, axis=0) + positions.op("Gather", place, axis=0)
        if kinds is not None and segments is not None:
            rows = rows + kinds.op("Gather", segments, axis=0)
        y = rows.op("LayerNormalization", gamma, beta, axis=-1, epsilon=self.epsilon)
        counts = None
        if self.wants_output(1):
            counted = ids - ids if mask is None else mask
            counts = counted.sum([1], keepdims=False)
        return [y, counts, rows]
