"""Attention without a softmax: a matrix that every word updates."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import cast

from trainweb.ir.dims import UndecidedError, equal, equal_shapes, static
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Float, Int, Str
from trainweb.ops.frame.symbolic import Var, integers
from trainweb.ops.recurrent.layers import MAX_STEPS

RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""First: the state decays. Second: the state's present answer to a key is subtracted from the value."""

Step = tuple[Var, Var, Var, Var | None, Var | None]
"""Queries (B, keys' heads, queries of one, d_k), key (B, heads, d_k, 1), value (B, heads, 1, d_v), decay and beta."""


class LinearAttention(Composite):
    """Heads that read a state, to which each step adds k v'. https://onnx.ai/onnx/operators/onnx__LinearAttention.html

    Yang et al., Gated Delta Networks, https://arxiv.org/abs/2412.06464. The inputs are (batch, length, heads * width).
    """

    versions = (27,)
    attrs = {
        "chunk_size": Int(64),
        "kv_num_heads": Int(required=True),
        "q_num_heads": Int(required=True),
        "scale": Float(0.0),
        "update_rule": Str("gated_delta"),
    }
    n_outputs = 2
    differentiable = (0, 1, 2, 3, 4, 5)

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        past: TensorType | None = None,
        decay: TensorType | None = None,
        beta: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        self.need_float32(q, k, v, past, decay, beta)
        heads, groups = self.q_num_heads, self.kv_num_heads
        if self.update_rule not in RULES or min(heads, groups) < 1 or heads % groups:
            raise self.error(f"update_rule {self.update_rule!r} with {heads} heads of queries and {groups} of keys.")
        if RULES[self.update_rule] != (decay is not None, beta is not None):
            raise self.error(f"update_rule {self.update_rule!r} does not go with the decay and beta that are given.")
        if any(t.rank != 3 for t in (q, k, v)):
            raise self.error(f"Q, K, V have the shapes {[list(t.shape) for t in (q, k, v)]}: not all 3-D.")
        batch, length, width = q.shape
        if not (equal(width % heads, 0) and equal(v.shape[2] % groups, 0)):
            raise self.error(f"widths {width} and {v.shape[2]} are not multiples of {heads} and {groups} heads.")
        d_k, d_v = width // heads, v.shape[2] // groups
        state = (batch, groups, d_k, d_v)
        fits = equal_shapes(k.shape, (batch, length, groups * d_k)) and equal_shapes(v.shape[:2], (batch, length))
        fits = fits and all(t is None or equal_shapes(t.shape[:2], (batch, length)) for t in (decay, beta))
        if not fits or (past is not None and not equal_shapes(past.shape, state)):
            raise self.error(f"keys {list(k.shape)}, values {list(v.shape)} or the state do not fit Q {list(q.shape)}.")
        for t, allowed in ((decay, (groups, groups * d_k)), (beta, (groups, 1))):
            if t is None or (t.rank == 3 and (t.shape[2] in allowed or not static(t.shape[2], *allowed))):
                continue
            raise self.error(f"decay or beta have the shape {list(t.shape)}; their width must be one of {allowed}.")
        return TensorType("float32", (batch, length, heads * d_v)), TensorType("float32", state)

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        q, _, v, state, *_ = ins
        assert q is not None and v is not None
        (_, length, width), groups = q.shape, self.kv_num_heads
        if not static(length, width, v.shape[2]):
            raise UndecidedError("the length of the sequence")
        if length > MAX_STEPS:
            raise self.unsupported(f"a sequence of {length} steps (at most {MAX_STEPS})")
        scale = self.scale or 1 / sqrt(width // self.q_num_heads)
        read: list[Var] = []
        for queries, key, value, decay, beta in self._steps(g, ins, length):
            state = self._updated(state, key, value, decay, beta)
            read.append(queries.op("MatMul", state).unsqueeze(1))
        if state is None:
            raise self.unsupported("a sequence of no steps")
        y = read[0].op("Concat", *read[1:], axis=1) if len(read) > 1 else read[0]
        return [y.reshape(0, 0, groups * (self.q_num_heads // groups) * (v.shape[2] // groups)) * scale, state]

    def _steps(self, g: Emission, ins: Sequence[Var | None], length: int) -> list[Step]:
        """Return the reads and writes of each step."""
        q, k, v, _, decay, beta = ins
        assert q is not None and k is not None and v is not None
        groups = self.kv_num_heads
        shared = self.q_num_heads // groups
        if beta is not None:
            beta = beta.reshape(0, 0, -1, 1, 1)
        if decay is not None:
            decay = decay.op("Exp").reshape(0, 0, groups, -1, 1)
        parts = (q.reshape(0, 0, groups, shared, -1), k.reshape(0, 0, groups, -1, 1), v.reshape(0, 0, groups, 1, -1))
        rows = [self._split(x, length) for x in (*parts, decay, beta)]
        return cast(list[Step], list(zip(*rows, strict=True)))

    @staticmethod
    def _split(x: Var | None, length: int) -> Sequence[Var | None]:
        """`x` step by step, along axis 1."""
        if x is None or length == 0:
            return [None] * length
        g = x.g
        if length == 1:
            return [x.squeeze(1)]
        parts = g.ops("Split", [x.name, integers(g, [1] * length).name], length, axis=1)
        return [Var(g, g.squeeze(name, [1]), x.dtype) for name in parts]

    @staticmethod
    def _updated(state: Var | None, key: Var, value: Var, decay: Var | None, beta: Var | None) -> Var:
        """The state after a step."""
        if state is not None and decay is not None:
            state = state * decay
        if beta is not None:
            if state is not None:
                value = value - key.op("Transpose", perm=[0, 1, 3, 2]).op("MatMul", state)
            value = value * beta
        added = key * value
        return added if state is None else state + added
