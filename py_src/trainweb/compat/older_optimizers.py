"""The optimizers of ONNX Runtime's older interface, with all of their attributes, of the kernels of today's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from trainweb.onnxblock import optim
from trainweb.ops.optim import operators, rules
from trainweb.settings import Betas, NotNegative, Number, YesNo, checked

OPTIMIZERS: dict[str, tuple[set[str], set[str]]] = {
    "SGDOptimizer": (set(), set()),
    "AdamOptimizer": (
        {"alpha", "beta", "lambda", "epsilon", "max_norm_clip"},
        {"do_bias_correction", "weight_decay_mode"},
    ),
    "LambOptimizer": (
        {"alpha", "beta", "lambda", "epsilon", "max_norm_clip", "ratio_min", "ratio_max"},
        {"do_bias_correction"},
    ),
}
"""Optimizers, with their attributes: floats and integers."""


class ClippedByWeight(optim.Optimizer):
    """An optimizer whose parameters may differ in how far the joint norm of all gradients is scaled down for them."""

    _moments = optim.AdamW._moments
    norms: Mapping[str, float] = {}
    """By parameter, the joint norm at most; empty: nothing is clipped. Parameters of a group have the same."""

    epsilon = 1e-6
    """Default of the attribute of that name."""

    @classmethod
    def settings_of(cls, attributes: Mapping[str, float]) -> dict[str, Any]:
        """Settings of the attributes of a weight."""
        return {
            "bias_correction": bool(attributes.get("do_bias_correction", 1)),
            "betas": (attributes.get("alpha", 0.9), attributes.get("beta", 0.999)),
            "eps": attributes.get("epsilon", cls.epsilon),
            "weight_decay": attributes.get("lambda", 0.0),
        }

    def _add_parts(self, trainable: Sequence[Any], gradients: str) -> str:
        """Clip to the largest norm, update the parts with that, clip to the next, and so on.

        Clipping is in place and of all gradients together. Gradients that were clipped to a larger norm before give the
        same result as unclipped ones.
        """
        if not self.norms:
            return super()._add_parts(trainable, gradients)
        parts: dict[float, list[tuple[optim.Group, list[int] | None]]] = {}
        for part, indices in self._parts(trainable):
            first = trainable[indices[0] if indices else 0]
            parts.setdefault(self.norms[first.name], []).append((part, indices))
        flag = ""
        for norm in sorted(parts, reverse=True):
            gradients = optim.ClipGradNorm(norm)(gradients)
            for part, indices in parts[norm]:
                flag = self._add_part(part, indices, gradients)
        return flag


class Adam(ClippedByWeight, optim.AdamW):
    """AdamOptimizer: weight_decay_mode 0 adds the decay to the step, 1 takes it from the parameter after it."""

    _operator = operators.OlderAdamOptimizer
    epsilon = 1e-8

    @classmethod
    def settings_of(cls, attributes: Mapping[str, float]) -> dict[str, Any]:
        return super().settings_of(attributes) | {"adam_mode": attributes.get("weight_decay_mode", 0)}


class Lamb(ClippedByWeight):
    """LambOptimizer: a step is made as long as the weight is, within limits of the ratio.

    Parameters
    ----------
    betas, eps, weight_decay
        As of `trainweb.onnxblock.optim.Lamb`.
    ratio_min, ratio_max : float, optional
        Limits of the length of the weight in parts of its step's; None: there is none.
    bias_correction : bool
        True if the moments are corrected for starting from zero.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """

    _operator = rules.Lamb

    @checked
    def __init__(
        self,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-6,
        weight_decay: NotNegative = 0.0,
        ratio_min: Annotated[float, Number()] | None = None,
        ratio_max: Annotated[float, Number()] | None = None,
        bias_correction: YesNo = True,
        clip_grad: Any = None,
    ) -> None:
        limits = {"ratio_min": ratio_min, "ratio_max": ratio_max}
        super().__init__(
            clip_grad,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            correct_bias=bias_correction,
            **{name: limit for name, limit in limits.items() if limit is not None},
        )

    @classmethod
    def settings_of(cls, attributes: Mapping[str, float]) -> dict[str, Any]:
        limits = {name: attributes.get(name, math.inf) for name in ("ratio_min", "ratio_max")}
        return super().settings_of(attributes) | {n: limit for n, limit in limits.items() if math.isfinite(limit)}
