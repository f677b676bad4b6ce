"""Attention and rotary embeddings, made of products and a softmax that the compiler fuses."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from trainweb.ir.dims import equal
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.evaluate import INT_BITS
from trainweb.ops.frame.op import Float, Int
from trainweb.ops.frame.symbolic import Var, constant, integers

LOWEST = -1e38
"""A masked score, to which others may be added: a row that is masked whole has a softmax, and its result is dropped."""
SCORES, CAPPED, BIASED, PROBABILITIES = range(4)
"""Values of `qk_matmul_output_mode`."""


def total(terms: Sequence[Var | None]) -> Var | None:
    """Sum of the terms that are not None."""
    result: Var | None = None
    for term in terms:
        if term is not None:
            result = term if result is None else result + term
    return result


def split_heads(x: Var, heads: int) -> Var:
    """(batch, length, heads * width) as (batch, heads, length, width)."""
    return x.reshape(0, 0, heads, -1).op("Transpose", perm=[0, 2, 1, 3])


def join_heads(x: Var) -> Var:
    """(batch, heads, length, width) as (batch, length, heads * width)."""
    return x.op("Transpose", perm=[0, 2, 1, 3]).reshape(0, 0, -1)


def share_heads(x: Var, times: int) -> Var:
    """Repeat each head of keys or values for several heads of queries."""
    _, groups, _, width = x.shape
    spread = x.unsqueeze(2).op("Expand", integers(x.g, [1, 1, times, 1, 1]))
    return spread.reshape(0, groups * times, -1, width)


def rotate(x: Var, cos: Var, sin: Var, *, interleaved: bool, turned_width: int) -> Var:
    """The first `turned_width` features of a tensor of rank 4 turned; `cos` and `sin` of each pair broadcast to it."""
    width = x.shape[3]
    head = x if turned_width == width else x.part(3, 0, turned_width)
    if interleaved:
        pairs = head.reshape(0, 0, 0, -1, 2)
        a, b = (pairs.part(4, k, k + 1).squeeze(4) for k in (0, 1))
    else:
        half = turned_width // 2
        a, b = head.part(3, 0, half), head.part(3, half, turned_width)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    if interleaved:
        joined = real.unsqueeze(4).op("Concat", imaginary.unsqueeze(4), axis=4)
        turned = joined.reshape(0, 0, 0, turned_width)
    else:
        turned = real.op("Concat", imaginary, axis=3)
    return turned if turned_width == width else turned.op("Concat", x.part(3, turned_width, width), axis=3)


class Attention(Composite):
    """softmax(scale * Q K' + mask) V of several heads. https://onnx.ai/onnx/operators/onnx__Attention.html

    Inputs of rank 4 are (batch, heads, length, width), of rank 3 (batch, length, heads * width).
    """

    versions = (23, 24, 25)
    attrs = {
        "is_causal": Int(0),
        "kv_num_heads": Int(),
        "q_num_heads": Int(),
        "qk_matmul_output_mode": Int(0),
        "scale": Float(),
        "softcap": Float(0.0),
        "softmax_precision": Int(),
        "left_window_size": Int(-1),
        "right_window_size": Int(-1),
    }
    n_outputs = 4
    differentiable = (0, 1, 2, 3, 4, 5)

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        mask: TensorType | None = None,
        past_k: TensorType | None = None,
        past_v: TensorType | None = None,
        lengths: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        self.need_float32(q, k, v, past_k, past_v)
        if q.rank not in (3, 4) or k.rank != q.rank or v.rank != q.rank:
            shapes_of = ", ".join(str(list(t.shape)) for t in (q, k, v))
            raise self.error(f"Q, K, V have the shapes {shapes_of}: not all 3-D or 4-D.")
        if (past_k is None) != (past_v is None) or (past_k is not None and lengths is not None):
            raise self.error("past_key and past_value go together, and without nonpad_kv_seqlen.")
        if mask is not None and mask.dtype not in ("bool", "float32", *INT_BITS):
            raise self.unsupported(f"a mask of {mask.dtype}")
        if not SCORES <= self.qk_matmul_output_mode <= PROBABILITIES:
            raise self.error(f"qk_matmul_output_mode is {self.qk_matmul_output_mode}, not 0 to 3.")
        (batch, heads, m, d), (_, groups, n, dk), (_, _, _, e) = self._split(q, k, v)
        if not equal(d, dk):
            raise self.error(f"heads of Q are {d} wide, those of K {dk}.")
        if not equal(heads % groups, 0):
            raise self.error(f"{heads} heads of Q do not share {groups} heads of K.")
        n = n if past_k is None else n + past_k.shape[2]
        y = (batch, heads, m, e) if q.rank == 4 else (batch, m, heads * e)
        shapes: tuple[tuple[int, ...], ...] = (y, (batch, groups, n, d), (batch, groups, n, e), (batch, heads, m, n))
        return tuple(TensorType("float32", shape) for shape in shapes)

    def _split(self, *types: TensorType) -> list[tuple[int, ...]]:
        """Shapes (batch, heads, length, width) of Q, K and V."""
        if types[0].rank == 4:
            return [t.shape for t in types]
        if not self.q_num_heads or not self.kv_num_heads:
            raise self.error("3-D inputs need q_num_heads and kv_num_heads.")
        shapes: list[tuple[int, ...]] = []
        for t, heads in zip(types, (self.q_num_heads, self.kv_num_heads, self.kv_num_heads), strict=True):
            if not equal(t.shape[2] % heads, 0):
                raise self.error(f"{t.shape[2]} features do not fall into {heads} heads.")
            shapes.append((t.shape[0], heads, t.shape[1], t.shape[2] // heads))
        return shapes

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        q, k, v, mask, past_k, past_v, lengths = ins
        assert q is not None and k is not None and v is not None
        (_, heads, _, d), (_, groups, *_), _ = self._split(*(x.type for x in (q, k, v)))
        rank = q.rank
        if rank == 3:
            q, k, v = split_heads(q, heads), split_heads(k, groups), split_heads(v, groups)
        if past_k is not None and past_v is not None:
            k, v = past_k.op("Concat", k, axis=2), past_v.op("Concat", v, axis=2)
        present = k, v
        k, v = (x if heads == groups else share_heads(x, heads // groups) for x in (k, v))
        scores = q.op("MatMul", k.op("Transpose", perm=[0, 1, 3, 2]))
        scores = scores * (1 / sqrt(d) if self.scale is None else self.scale)
        capped = (scores / self.softcap).op("Tanh") * self.softcap if self.softcap else scores
        bias = self._bias(q, k, mask, past_k, lengths)
        may_mask_rows = mask is not None or lengths is not None or self._window
        masked = capped if bias is None else capped + (bias.op("Max", bias.lift(LOWEST)) if may_mask_rows else bias)
        probabilities = masked.op("Softmax", axis=-1)
        y = probabilities.op("MatMul", v)
        dropped = None
        if may_mask_rows and bias is not None:
            last = integers(g, [-1])
            attends = bias.op("ReduceMax", last, keepdims=1) if g.opset >= 18 else bias.op("ReduceMax", axes=[-1])
            dropped = attends.equal(-inf)
            y = dropped.where(y.lift(0.0), y)
        if rank == 3:
            y = join_heads(y)
        chosen: Var | None = None
        if self.wants_output(3):
            biased = capped if bias is None else capped + bias
            chosen = (scores, capped, biased, probabilities)[self.qk_matmul_output_mode]
            if self.qk_matmul_output_mode == PROBABILITIES and dropped is not None:
                chosen = dropped.where(chosen.lift(0.0), chosen)
        return [y, *present, chosen]

    @property
    def _window(self) -> bool:
        return bool(max(self.left_window_size, self.right_window_size) >= 0)

    def _bias(self, q: Var, k: Var, mask: Var | None, past: Var | None, lengths: Var | None) -> Var | None:
        """Return the tensor that is added to the scores: 0 or -infinity, or the given mask."""
        zero = q.lift(0.0)
        terms = []
        if mask is not None:
            terms.append(self._full(mask, k))
        allowed = []
        if self.is_causal or self._window:
            # The queries have the last valid positions of the keys.
            row, column = q.places(2).unsqueeze(1), k.places(2)
            if past is not None:
                row = row + past.extent(2)
            elif lengths is not None:
                row = row + (lengths.reshape(-1) - q.extent(2)).unsqueeze(1, 2, 3)
            ahead = column - row
            if self.is_causal:
                allowed.append((ahead > 0).not_())
            if self.left_window_size >= 0:
                allowed.append((ahead < -self.left_window_size).not_())
            if self.right_window_size >= 0:
                allowed.append((ahead > self.right_window_size).not_())
        if lengths is not None:
            allowed.append(k.places(2) < lengths.reshape(-1).unsqueeze(1, 2, 3))
        terms += [seen.where(zero, -inf) for seen in allowed]
        return total(terms)

    def _full(self, mask: Var, k: Var) -> Var:
        """The mask as numbers to add, for all keys: those beyond its end are masked."""
        g = mask.g
        if mask.dtype == "bool":
            zero = constant(g, "float32", (), [0.0])
            mask = mask.where(zero, -inf)
        mask = mask.cast("float32")
        columns, keys = mask.shape[-1], k.shape[2]
        # A mask that is shorter than the keys is padded: with symbols it must be known whether it is.
        if columns == keys or (columns < 2 and columns != 0):
            return mask
        rank = mask.rank
        missing = (k.extent(2) - mask.extent(rank - 1)).reshape(1)
        pads = integers(g, [0] * (2 * rank - 1)).op("Concat", missing, axis=0)
        return mask.op("Pad", pads, mask.lift(-inf))


class RotaryEmbedding(Composite):
    """Pairs of features turned by the angles of their position. https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html

    Su et al., RoFormer, https://arxiv.org/abs/2104.09864. X is (batch, heads, length, width) or
    (batch, length, heads * width); the caches are (positions, pairs), or (batch, length, pairs) without position_ids.
    """

    versions = (23,)
    attrs = {"interleaved": Int(0), "num_heads": Int(0), "rotary_embedding_dim": Int(0)}
    differentiable = (0, 1, 2)

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType, ids: TensorType | None = None) -> TensorType:
        self.need_float32(x, cos, sin)
        if x.rank not in (3, 4) or (x.rank == 3 and not self.num_heads):
            raise self.error(f"X has shape {list(x.shape)}: 4-D is needed, or 3-D and num_heads.")
        if x.rank == 3 and not equal(x.shape[2] % self.num_heads, 0):
            raise self.error(f"{x.shape[2]} features do not fall into {self.num_heads} heads.")
        width = x.shape[3] if x.rank == 4 else x.shape[2] // self.num_heads
        pairs = (self.rotary_embedding_dim or width) // 2
        for t in (cos, sin):
            if t.rank != (3 if ids is None else 2) or not equal(t.shape[-1], pairs):
                raise self.error(f"a cache has shape {list(t.shape)}, not {pairs} numbers for each position.")
        return x

    def expand(self, g: Emission, x: Var, cos: Var, sin: Var, ids: Var | None) -> Sequence[Var | None]:
        source = x
        rank = x.rank
        if rank == 3:
            x = x.reshape(0, 0, self.num_heads, -1)
        heads = 2 if rank == 3 else 1
        width = x.shape[3]
        turned_width = self.rotary_embedding_dim or width
        if ids is not None:
            cos, sin = (t.op("Gather", ids, axis=0) for t in (cos, sin))
        cos, sin = cos.unsqueeze(heads), sin.unsqueeze(heads)
        turned = rotate(x, cos, sin, interleaved=bool(self.interleaved), turned_width=turned_width)
        return [turned if rank == 4 else turned.reshape_like(source)]
