"""Attention as exporters of language models write it: the domain com.microsoft of ONNX Runtime.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. Shapes are (batch, heads, length, width)
where heads stand apart, else (batch, length, heads * width).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from trainweb.ir.dims import UndecidedError, equal, equal_shapes, same, static
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS
from trainweb.ops.attention.onnx import join_heads, rotate, share_heads, split_heads, total
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Float, Int, Ints
from trainweb.ops.frame.symbolic import Var

Shape = tuple[int, ...]


def attend(q: Var, k: Var, v: Var, scale: float, bias: Var | None, softcap: float = 0.0) -> Var:
    """softmax(scale * q k' + bias) v."""
    scores = q.op("MatMul", k.op("Transpose", perm=[0, 1, 3, 2])) * scale
    if softcap:
        scores = (scores / softcap).op("Tanh") * softcap
    scores = scores if bias is None else scores + bias
    return scores.op("Softmax", axis=-1).op("MatMul", v)


def vector_parts(x: Var, widths: Sequence[int], axis: int = 0) -> list[Var]:
    """Parts of the given widths along an axis."""
    ends = [sum(widths[: k + 1]) for k in range(len(widths))]
    return [x.part(axis, end - width, end) for width, end in zip(widths, ends, strict=True)]


def check_added(op: Composite, added: TensorType | None, shape: Shape) -> None:
    """Check a tensor that is added to the scores; it may be the same for all items or heads."""
    if added is None:
        return
    fits = added.rank == len(shape) and equal_shapes(added.shape[2:], shape[2:])
    if not fits or any(static(d, s) and d not in (1, s) for d, s in zip(added.shape[:2], shape[:2], strict=True)):
        raise op.error(f"the attention bias has shape {list(added.shape)}, the scores have {list(shape)}.")


class _Masked(Composite, abstract=True):
    """Attention whose padding is masked by adding `mask_filter_value`."""

    domain = MS

    def check_mask(self, mask: TensorType | None, batch: int, m: int, n: int, lengths: int) -> None:
        """A mask is `lengths` numbers for each item, or has a number for each key, or each query and key."""
        if mask is None:
            return
        if mask.dtype != "int32":
            raise self.error(f"the mask is {mask.dtype}, not int32.")
        wanted: dict[int, Shape] = {1: (batch,), 2: (batch, n), 3: (batch, m, n)}
        # `padding` tells one number for each item from two.
        if mask.rank == 1 and lengths > 1:
            return
        if mask.rank not in wanted or not equal_shapes(mask.shape, wanted[mask.rank]):
            raise self.unsupported(f"a mask of shape {list(mask.shape)} for batch {batch}, {m} queries and {n} keys")

    def padding(self, mask: Var | None, q: Var, k: Var, lengths: int = 1) -> Var | None:
        """Return the tensor that is added to the scores of keys that are padding."""
        if mask is None:
            return None
        g, rank = q.g, mask.rank
        if rank > 1:
            keeps = (mask > 0).unsqueeze(*((1, 2) if rank == 2 else (1,)))
        else:
            ends, column = mask.cast("int64"), k.places(2)
            starts = None
            times = 1 if lengths == 1 else self._numbers(mask.size, q.shape[0])
            if times == 2:
                # The mask has the ends of all items, then their starts.
                ends, starts = Var.of(g, *g.ops("Split", [ends.name], 2, axis=0))
            keeps = column < ends.unsqueeze(1, 2, 3)
            if starts is not None:
                keeps = keeps.and_((column < starts.unsqueeze(1, 2, 3)).not_())
        return keeps.where(q.lift(0.0), self.mask_filter_value)

    def _numbers(self, size: int, batch: int) -> int:
        """Return the number of values that a mask of one axis has for each item."""
        times = next((times for times in (1, 2) if same(size, times * batch)), None)
        if times is None:
            if not static(size, batch):
                raise UndecidedError(f"a mask of {size} numbers for a batch of {batch}")
            raise self.unsupported(f"a mask of {size} numbers for a batch of {batch}")
        return times

    def causal(self, q: Var, k: Var) -> Var | None:
        """Return the tensor that is added to the scores of keys behind a query; the queries are the last keys."""
        if not self.unidirectional:
            return None
        row = q.places(2).unsqueeze(1) + (k.extent(2) - q.extent(2))
        return (k.places(2) - row > 0).not_().where(q.lift(0.0), -inf)


class MultiHeadAttention(_Masked):
    """Attention of several heads, with a bias of the projections, a mask of the padding and past keys.

    The query is (batch, length, width), or all three packed, (batch, length, heads, 3, width); keys and values are 3-D,
    packed as (batch, length, heads, 2, width), or have their heads apart.
    """

    attrs = {
        "mask_filter_value": Float(-10000.0),
        "num_heads": Int(required=True),
        "scale": Float(0.0),
        "unidirectional": Int(0),
    }
    max_inputs, n_outputs = 8, 3
    differentiable = (0, 1, 2, 3, 5, 6, 7)

    def infer(self, q: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        k, v, bias, mask, added, past_k, past_v = others
        self.need_float32(q, k, v, bias, added, past_k, past_v)
        (batch, heads, m, d), (_, _, n, dk), (_, _, nv, e) = self._shapes(q, k, v)
        if not equal(d, dk) or not equal(n, nv):
            raise self.error(f"heads of the query are {d} wide, of {n} keys {dk}; there are {nv} values.")
        widths = (heads * d, heads * d, heads * e)
        if bias is not None and (q.rank != 3 or not equal_shapes(bias.shape, (sum(widths),))):
            raise self.error(
                f"the bias has shape {list(bias.shape)}, not {[sum(widths)]} of a query that is not packed."
            )
        if (past_k is None) != (past_v is None):
            raise self.error("past_key and past_value go together.")
        for past, width in ((past_k, d), (past_v, e)):
            if past is not None and (
                past.rank != 4 or not equal_shapes(past.shape, (batch, heads, past.shape[2], width))
            ):
                raise self.error(f"past keys or values have shape {list(past.shape)}.")
        n = n if past_k is None else n + past_k.shape[2]
        self.check_mask(mask, batch, m, n, 1)
        check_added(self, added, (batch, heads, m, n))
        shapes: tuple[Shape, ...] = ((batch, m, heads * e), (batch, heads, n, d), (batch, heads, n, e))
        return tuple(TensorType("float32", shape) for shape in shapes)

    def _shapes(self, q: TensorType, k: TensorType | None, v: TensorType | None) -> list[Shape]:
        """Shapes of query, keys and values with their heads apart."""
        heads = self.num_heads
        if q.rank == 5 and k is None and v is None and equal_shapes(q.shape[2:4], (heads, 3)):
            return [(q.shape[0], heads, q.shape[1], q.shape[4])] * 3
        if q.rank == 3 and k is not None and equal(q.shape[2] % heads, 0):
            query = (q.shape[0], heads, q.shape[1], q.shape[2] // heads)
            if k.rank == 5 and v is None and equal_shapes(k.shape[2:4], (heads, 2)):
                return [query, *[(k.shape[0], heads, k.shape[1], k.shape[4])] * 2]
            if k.rank == 4 and v is not None and v.rank == 4:
                return [query, k.shape, v.shape]
            if k.rank == 3 and v is not None and v.rank == 3 and equal(v.shape[2] % heads, 0):
                return [query, *((t.shape[0], heads, t.shape[1], t.shape[2] // heads) for t in (k, v))]
        shapes = ", ".join("none" if t is None else str(list(t.shape)) for t in (q, k, v))
        raise self.error(f"query, key and value have the shapes {shapes} for {heads} heads.")

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        q, k, v, bias, mask, added, past_k, past_v = ins
        assert q is not None
        shapes = self._shapes(q.type, *(None if x is None else x.type for x in (k, v)))
        width = shapes[0][3]
        if bias is not None and k is not None and v is not None:
            q, k, v = self._biased(bias, shapes, q, k, v)
        q, k, v = self._heads(q, k, v)
        if past_k is not None and past_v is not None:
            k, v = past_k.op("Concat", k, axis=2), past_v.op("Concat", v, axis=2)
        masked = total([added, self.padding(mask, q, k), self.causal(q, k)])
        return [join_heads(attend(q, k, v, self.scale or 1 / sqrt(width), masked)), k, v]

    def _biased(self, bias: Var, shapes: list[Shape], *projections: Var) -> list[Var]:
        """Query, keys and values with their parts of the bias added."""
        parts = vector_parts(bias, [self.num_heads * shape[3] for shape in shapes])
        apart = [x.rank == 4 for x in projections]
        return [
            x + (b.reshape(1, self.num_heads, 1, -1) if split else b)
            for x, b, split in zip(projections, parts, apart, strict=True)
        ]

    def _heads(self, q: Var, k: Var | None, v: Var | None) -> tuple[Var, Var, Var]:
        def unpacked(x: Var, parts: int) -> list[Var]:
            rows = [x.part(3, i, i + 1).squeeze(3) for i in range(parts)]
            return [row.op("Transpose", perm=[0, 2, 1, 3]) for row in rows]

        if k is None:
            query, keys, values = unpacked(q, 3)
            return query, keys, values
        query = split_heads(q, self.num_heads)
        if v is None:
            keys, values = unpacked(k, 2)
            return query, keys, values
        keys, values = (x if x.rank == 4 else split_heads(x, self.num_heads) for x in (k, v))
        return query, keys, values


class MicrosoftAttention(_Masked):
    """The operator Attention of the domain com.microsoft: projections and attention.

    X is (batch, length, features), W (features, widths of query, keys and values beside one another).
    """

    name = "Attention"
    attrs = {
        "do_rotary": Int(0),
        "mask_filter_value": Float(-10000.0),
        "num_heads": Int(required=True),
        "past_present_share_buffer": Int(0),
        "qkv_hidden_sizes": Ints(),
        "rotary_embedding_dim": Int(0),
        "scale": Float(0.0),
        "unidirectional": Int(0),
    }
    min_inputs, max_inputs, n_outputs = 2, 7, 2
    differentiable = (0, 1, 2, 4, 5)

    def infer(self, x: TensorType, w: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        bias, mask, past, added, past_length = others
        self.need_float32(x, w, bias, past, added)
        if past_length is not None or self.past_present_share_buffer or self.do_rotary:
            raise self.unsupported("do_rotary, or a past that shares its buffer with the present,")
        if x.rank != 3 or w.rank != 2 or not equal(x.shape[2], w.shape[0]):
            raise self.error(f"X and W have the shapes {list(x.shape)} and {list(w.shape)}.")
        sizes, heads = self._widths(w), self.num_heads
        if len(sizes) != 3 or not equal(sum(sizes), w.shape[1]) or any(not equal(size % heads, 0) for size in sizes):
            raise self.error(f"{w.shape[1]} projections are not {sizes} for {heads} heads.")
        self.need_shape("the bias", bias, w.shape[1:])
        (batch, m, _), n, width = x.shape, x.shape[1], sizes[0] // heads
        if past is not None:
            if past.rank != 5 or not equal_shapes(past.shape, (2, batch, heads, past.shape[3], width)):
                raise self.error(f"the past has shape {list(past.shape)}.")
            n = n + past.shape[3]
        self.check_mask(mask, batch, m, n, 2)
        check_added(self, added, (batch, heads, m, n))
        shapes: tuple[Shape, ...] = ((batch, m, sizes[2]), (2, batch, heads, n, width))
        return tuple(TensorType("float32", shape) for shape in shapes)

    def _widths(self, w: TensorType) -> tuple[int, ...]:
        return tuple(self.qkv_hidden_sizes or (w.shape[1] // (3 * self.num_heads) * self.num_heads,) * 3)

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, w, bias, mask, past, added, _ = ins
        assert x is not None and w is not None
        widths = self._widths(w.type)
        projected = x.op("MatMul", w)
        projected = projected if bias is None else projected + bias
        q, k, v = (split_heads(p, self.num_heads) for p in vector_parts(projected, widths, axis=2))
        if past is not None:
            # `past` has the keys, then the values.
            k, v = (past.part(0, i, i + 1).squeeze(0).op("Concat", x, axis=2) for i, x in enumerate((k, v)))
        masked = total([added, self.padding(mask, q, k, 2), self.causal(q, k)])
        y = join_heads(attend(q, k, v, self.scale or 1 / sqrt(widths[0] // self.num_heads), masked))
        if not self.wants_output(1):
            return [y, None]
        if not same(widths[0], widths[2]):
            raise self.unsupported("the present of values that are not as wide as keys")
        return [y, k.unsqueeze(0).op("Concat", v.unsqueeze(0), axis=0)]


class GroupQueryAttention(Composite):
    """Causal attention whose heads of keys serve several heads of queries; keys and queries may be turned.

    Without keys and values the query has all three side by side. With the new tokens item b has seqlens_k[b] + 1; the
    past holds the others. The present has the past tokens and the new ones behind them. An attention bias is added to
    the scores.
    """

    domain = MS
    attrs = {
        "do_rotary": Int(0),
        "kv_num_heads": Int(required=True),
        "local_window_size": Int(-1),
        "num_heads": Int(required=True),
        "rotary_interleaved": Int(0),
        "scale": Float(0.0),
        "smooth_softmax": Int(0),
        "softcap": Float(0.0),
    }
    min_inputs, max_inputs, n_outputs = 7, 12, 3
    differentiable = (0, 1, 2, 3, 4, 10)

    def infer(self, q: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        k, v, past_k, past_v, lengths, total_length, cos, sin, position, added, sink = others
        self.need_float32(q, k, v, past_k, past_v, cos, sin, added)
        if sink is not None:
            raise self.unsupported("head_sink")
        if not self.local_window_size:
            raise self.error("local_window_size is 0: it must be at least 1, or -1 for none.")
        if self.smooth_softmax > 0:
            raise self.unsupported("smooth_softmax")
        if (k is None) != (v is None) or (past_k is None) != (past_v is None) or q.rank != 3:
            raise self.error("a 3-D query is needed; key and value, and their pasts, go together.")
        batch, m, _ = q.shape
        width = self._width(q, k)
        for t in (k, v):
            self.need_shape("key or value", t, (batch, m, self.kv_num_heads * width))
        if lengths is None or total_length is None or not equal(lengths.size, batch):
            raise self.error("seqlens_k must have a number for each item, and total_sequence_length must be given.")
        if lengths.dtype != "int32":
            raise self.error(f"seqlens_k is {lengths.dtype}, not int32.")
        n = m
        for past in (past_k, past_v):
            if past is None:
                continue
            if past.rank != 4 or not equal_shapes(past.shape, (batch, self.kv_num_heads, past.shape[2], width)):
                raise self.error(f"a past has shape {list(past.shape)}.")
            n = m + past.shape[2]
        if total_length.value is not None and static(n, *total_length.value) and n > 0 and total_length.value[0] != n:
            raise self.unsupported(f"total_sequence_length {total_length.value[0]} of a past and new tokens of {n}")
        if self.do_rotary and (cos is None or sin is None):
            raise self.error("do_rotary needs cos_cache and sin_cache.")
        self.need_shape("position_ids", position, (batch, m))
        if added is not None and past_k is not None and not equal(past_k.shape[2], 0):
            raise self.unsupported("attention_bias beside a past")
        check_added(self, added, (batch, self.num_heads, m, n))
        shape = (batch, self.kv_num_heads, n, width)
        return TensorType("float32", (batch, m, self.num_heads * width)), *[TensorType("float32", shape)] * 2

    def _width(self, q: TensorType, k: TensorType | None) -> int:
        heads = self.num_heads + (2 * self.kv_num_heads if k is None else 0)
        if not self.kv_num_heads or self.num_heads % self.kv_num_heads or not equal(q.shape[2] % heads, 0):
            raise self.error(f"{q.shape[2]} features are not those of {self.num_heads} and {self.kv_num_heads} heads.")
        width: int = q.shape[2] // heads
        return width

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        q, k, v, past_k, past_v, lengths, _, cos, sin, position, added, _ = ins
        assert q is not None and lengths is not None
        width = self._width(q.type, None if k is None else k.type)
        groups = self.kv_num_heads
        if k is None or v is None:
            q, k, v = vector_parts(q, [self.num_heads * width, groups * width, groups * width], axis=2)
        q, k, v = split_heads(q, self.num_heads), split_heads(k, groups), split_heads(v, groups)
        if past_k is not None and equal(past_k.shape[2], 0):
            past_k = past_v = None
        start = None if past_k is None else self._start(lengths, past_k, q)
        if self.do_rotary and cos is not None and sin is not None:
            place = q.places(2).unsqueeze(0) if start is None else start.unsqueeze(1) + q.places(2)
            place = place if position is None else position
            rows = [t.op("Gather", place, axis=0).unsqueeze(1) for t in (cos, sin)]
            turned_width = 2 * cos.shape[1]
            q, k = (
                rotate(x, *rows, interleaved=bool(self.rotary_interleaved), turned_width=turned_width) for x in (q, k)
            )
        present = [k, v]
        if past_k is not None and past_v is not None and start is not None:
            k, v = past_k.op("Concat", k, axis=2), past_v.op("Concat", v, axis=2)
            present = [self._packed(x, start, past_k) if self.wants_output(1) else x for x in (k, v)]
        bias = self._bias(q, k, start, past_k)
        times = self.num_heads // groups
        k, v = (x if times == 1 else share_heads(x, times) for x in (k, v))
        y = attend(q, k, v, self.scale or 1 / sqrt(width), bias if added is None else added + bias, self.softcap)
        return [join_heads(y), *present]

    def _start(self, lengths: Var, past: Var, q: Var) -> Var:
        """Return the number of tokens of each item that the past holds."""
        held = lengths.cast("int64").reshape(-1) + 1 - q.extent(2)
        return held.op("Max", held.lift(0)).op("Min", past.extent(2))

    def _bias(self, q: Var, k: Var, start: Var | None, past: Var | None) -> Var:
        """-infinity for keys behind the query, before its window, or in the past behind its end."""
        column, row = k.places(2), q.places(2)
        if start is None or past is None:
            ahead = column - row.unsqueeze(1)
            seen = (ahead > 0).not_()
        else:
            held, first = past.extent(2), start.unsqueeze(1)
            is_new = (column < held).not_()
            place = is_new.where(column - held + first, column + first - first)
            ahead = place.unsqueeze(1, 2) - (row.unsqueeze(0) + first).unsqueeze(1, 3)
            seen = (ahead > 0).not_().and_(is_new.or_(column < first).unsqueeze(1, 2))
        if self.local_window_size > 0:
            # The query's own key is one of these; ONNX Runtime 1.19 had one key more.
            seen = seen.and_(ahead > -self.local_window_size)
        return seen.where(q.lift(0.0), -inf)

    def _packed(self, x: Var, start: Var, past: Var) -> Var:
        """Past and new tokens without the gap between them, and zeros behind their end."""
        column, first = x.places(2), start.unsqueeze(1)
        moved = column + past.extent(2) - first
        source = (column < first).where(column + first - first, moved.op("Min", x.extent(2) - 1))
        rows = x.op("GatherElements", source.unsqueeze(1, 3).op("Expand", x.sizes()), axis=2)
        # Nothing fills the last `extent(past) - start` places.
        return (column < first + x.extent(2) - past.extent(2)).unsqueeze(1, 3).where(rows, 0.0)


class MicrosoftRotaryEmbedding(Composite):
    """Pairs of features turned by the angles of their position, which a cache has by position.

    X is (batch, heads, length, width) or (batch, length, heads * width); position_ids are the positions of all tokens,
    or of the first one.
    """

    name = "RotaryEmbedding"
    domain = MS
    attrs = {
        "interleaved": Int(0),
        "is_packed_batching": Int(0),
        "num_heads": Int(0),
        "rotary_embedding_dim": Int(0),
        "scale": Float(1.0),
    }
    differentiable = (0, 2, 3)

    def infer(self, x: TensorType, ids: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
        self.need_float32(x, cos, sin)
        if self.scale != 1.0 or self.is_packed_batching:
            raise self.unsupported("a scale other than 1, or packed batches,")
        if x.rank not in (3, 4) or cos.rank != 2 or not equal_shapes(cos.shape, sin.shape):
            raise self.error(f"X and the caches have the shapes {list(x.shape)}, {list(cos.shape)}, {list(sin.shape)}.")
        if self.rotary_embedding_dim and not self.num_heads:
            raise self.error("rotary_embedding_dim needs num_heads.")
        batch, length = x.shape[0], x.shape[1 if x.rank == 3 else 2]
        if ids.dtype != "int64" or not (equal_shapes(ids.shape, (1,)) or equal_shapes(ids.shape, (batch, length))):
            raise self.error(f"position_ids are {ids.dtype} {list(ids.shape)}, not int64 [1] or [{batch}, {length}].")
        turned = 2 * cos.shape[1]
        if self.rotary_embedding_dim and not equal(turned, self.rotary_embedding_dim):
            raise self.error(
                f"the caches are for {turned} features, rotary_embedding_dim is {self.rotary_embedding_dim}."
            )
        if x.rank == 3 and not equal(x.shape[2] % (self.num_heads or turned), 0):
            raise self.error(f"{x.shape[2]} features do not fall into heads.")
        return x

    def expand(self, g: Emission, x: Var, ids: Var, cos: Var, sin: Var) -> Sequence[Var | None]:
        apart, turned_width = x.rank == 4, 2 * cos.shape[1]
        heads = x
        if not apart:
            shape = (self.num_heads, -1) if self.num_heads else (-1, turned_width)
            heads = x.reshape(0, 0, *shape).op("Transpose", perm=[0, 2, 1, 3])
        place = ids if ids.rank == 2 else (ids + heads.places(2)).unsqueeze(0)
        rows = [t.op("Gather", place, axis=0).unsqueeze(1) for t in (cos, sin)]
        turned = rotate(heads, *rows, interleaved=bool(self.interleaved), turned_width=turned_width)
        return [turned if apart else join_heads(turned)]
