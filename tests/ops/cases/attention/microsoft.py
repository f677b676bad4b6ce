"""Cases of trainweb.ops.attention.microsoft."""

from math import inf
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import i32, i64

from trainweb.ops.attention import microsoft

CASES[microsoft.MultiHeadAttention] = Cases(
    samples=(
        Sample([(2, 3, 8), (2, 4, 8), (2, 4, 6), (22,)], {"num_heads": 2}),
        Sample([(2, 3, 8), (2, 3, 8), (2, 3, 8)], {"num_heads": 2, "unidirectional": 1, "scale": 0.3}),
        Sample([(2, 4, 8), (2, 4, 8), (2, 4, 8), None, i32([4, 2])], {"num_heads": 2, "mask_filter_value": -3.0}),
        Sample(
            [(2, 4, 8), (2, 4, 8), (2, 4, 8), None, i32([[1, 1, 1, 1], [0, 1, 1, 0]]), (2, 2, 4, 4)], {"num_heads": 2}
        ),
        Sample([(2, 3, 2, 3, 4)], {"num_heads": 2}),
        Sample([(2, 3, 8), (2, 5, 2, 2, 4)], {"num_heads": 2}),
        Sample([(2, 3, 8), (2, 2, 5, 4), (2, 2, 5, 4)], {"num_heads": 2}),
        Sample(
            [(2, 1, 8), (2, 1, 8), (2, 1, 8), None, None, None, (2, 2, 3, 4), (2, 2, 3, 4)], {"num_heads": 2}, outputs=3
        ),
    ),
    bad=(
        Bad([(2, 3, 8), (2, 4, 8), (2, 4, 8)]),
        Bad([(2, 3, 8), (2, 4, 8), (2, 4, 8)], {"num_heads": 3}),
        Bad([(2, 3, 8), (2, 4, 8), (2, 5, 8)], {"num_heads": 2}),
        Bad([(2, 3, 8), (2, 4, 8), (2, 4, 8), (20,)], {"num_heads": 2}),
    ),
)

CASES[microsoft.MicrosoftAttention] = Cases(
    samples=(
        Sample([(2, 3, 5), (5, 24), (24,)], {"num_heads": 2}),
        Sample([(2, 3, 5), (5, 24), (24,), i32([3, 2])], {"num_heads": 2, "unidirectional": 1}),
        Sample([(2, 3, 5), (5, 24), (24,), i32([3, 2, 1, 0])], {"num_heads": 2, "mask_filter_value": -2.0}),
        Sample(
            [(2, 3, 5), (5, 20), (20,), i32([[1, 1, 0], [0, 1, 1]])], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}
        ),
        Sample(
            [(1, 2, 5), (5, 24), (24,), i32([[[1, 1], [0, 1]]]), None, (1, 2, 2, 2)], {"num_heads": 2, "scale": 0.2}
        ),
        Sample([(2, 2, 5), (5, 24), (24,), None, (2, 2, 2, 3, 4)], {"num_heads": 2, "unidirectional": 1}, outputs=2),
    ),
    bad=(
        Bad([(2, 3, 5), (5, 24), (24,)]),
        Bad([(2, 3, 5), (4, 24), (24,)], {"num_heads": 2}),
        Bad([(2, 3, 5), (5, 24), (23,)], {"num_heads": 2}),
        Bad([(2, 3, 5), (5, 24), (24,)], {"num_heads": 5}),
    ),
)

CASES[microsoft.GroupQueryAttention] = Cases(
    samples=(
        Sample(
            [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None, i32([2, 2]), i32(3)],
            {"num_heads": 4, "kv_num_heads": 2},
            outputs=3,
        ),
        Sample(
            [(2, 3, 64), None, None, None, None, i32([2, 2]), i32(3), (8, 8), (8, 8)],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1},
            outputs=3,
        ),
        Sample(
            [(1, 4, 32), (1, 4, 16), (1, 4, 16), None, None, i32([3]), i32(4), (5, 8), (5, 8)],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.4},
            outputs=3,
        ),
        Sample(
            [(1, 5, 16), (1, 5, 16), (1, 5, 16), None, None, i32([4]), i32(5)],
            {"num_heads": 2, "kv_num_heads": 2, "local_window_size": 2},
            outputs=3,
        ),
        Sample(
            [(2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 1, 3, 16), (2, 1, 3, 16), i32([3, 3]), i32(4), (8, 8), (8, 8)],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1},
            outputs=3,
        ),
        Sample(
            [(2, 1, 16), (2, 1, 8), (2, 1, 8), (2, 1, 3, 8), (2, 1, 3, 8), i32([3, 2]), i32(4)],
            {"num_heads": 2, "kv_num_heads": 1},
            outputs=3,
        ),
        Sample(
            [
                *[(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None, i32([2, 2]), i32(3), (8, 8), (8, 8)],
                *[i64([[0, 1, 2], [3, 4, 5]]), (2, 2, 3, 3)],
            ],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1},
            outputs=3,
        ),
    ),
    bad=(
        Bad([(2, 3, 16), (2, 3, 8), (2, 3, 8), None, None, i32([2, 2]), i32(3)], {"num_heads": 3, "kv_num_heads": 2}),
        Bad([(2, 3, 16), (2, 3, 8), None, None, None, i32([2, 2]), i32(3)], {"num_heads": 4, "kv_num_heads": 2}),
        Bad(
            [(2, 3, 16), (2, 3, 8), (2, 3, 8), None, None, i32([2, 2]), i32(3)],
            {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
        ),
    ),
)

CASES[microsoft.MicrosoftRotaryEmbedding] = Cases(
    samples=(
        Sample([(2, 3, 8), i64([[0, 1, 2], [4, 0, 3]]), (5, 2), (5, 2)]),
        Sample([(2, 3, 8), i64([1]), (5, 2), (5, 2)], {"interleaved": 1}),
        Sample([(2, 2, 3, 4), i64([0]), (5, 2), (5, 2)]),
        Sample([(2, 3, 12), i64([0]), (5, 2), (5, 2)], {"num_heads": 2, "rotary_embedding_dim": 4}),
    ),
    bad=(
        Bad([(2, 3, 8), i64([[0, 1]]), (5, 2), (5, 2)]),
        Bad([(2, 3, 7), i64([0]), (5, 2), (5, 2)]),
        Bad([(2, 3, 8), i64([0]), (5, 2), (5, 3)]),
    ),
)


def numpy_attend(q: Any, k: Any, v: Any, scale: float, bias: Any) -> Any:
    """The same in numpy, with the heads joined."""
    scores = np.einsum("bhid,bhjd->bhij", q, k) * scale + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights / weights.sum(-1, keepdims=True) @ v
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def numpy_heads(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def numpy_mask(op: microsoft._Masked, mask: Any, batch: int, m: int, n: int) -> Any:
    """The sum of both in numpy."""
    bias = np.zeros((batch, 1, m, n))
    column = np.arange(n)
    if mask is not None and mask.ndim == 1:
        keeps = column < mask[:batch, None]
        if len(mask) == 2 * batch:
            keeps &= column >= mask[batch:, None]
        bias += np.where(keeps, 0.0, op.mask_filter_value)[:, None, None]
    elif mask is not None:
        shape = (batch, 1, 1, n) if mask.ndim == 2 else (batch, 1, m, n)
        bias += np.where(mask.reshape(shape) > 0, 0.0, op.mask_filter_value)
    if op.unidirectional:
        bias += np.where(column > np.arange(m)[:, None] + n - m, -inf, 0.0)
    return bias


def numpy_turned(x: Any, cos: Any, sin: Any, interleaved: int) -> Any:
    """Pairs of features turned by their angles; the features behind them as they are."""
    half = cos.shape[-1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    turned = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)
    y = x.copy()
    y[..., first], y[..., second] = turned.real, turned.imag
    return y


@reference(microsoft.MultiHeadAttention)
def multi_head_attention(op: microsoft.MultiHeadAttention, q: Any, *others: Any) -> tuple[Any, ...]:
    given: list[Any] = [*others, *[None] * (7 - len(others))]
    k, v, bias, mask, added, past_k, past_v = given
    if k is None:
        q, k, v = (q[:, :, :, i].swapaxes(1, 2) for i in range(3))
    else:
        q = numpy_heads(q, op.num_heads)
        if v is None:
            k, v = (k[:, :, :, i].swapaxes(1, 2) for i in range(2))
        elif k.ndim == 3:
            k, v = numpy_heads(k, op.num_heads), numpy_heads(v, op.num_heads)
    if bias is not None:
        d = op.num_heads * q.shape[3]
        parts = (bias[:d], bias[d : 2 * d], bias[2 * d :])
        q, k, v = (x + b.reshape(op.num_heads, -1)[None, :, None] for x, b in zip((q, k, v), parts, strict=True))
    if past_k is not None:
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    masked = numpy_mask(op, mask, q.shape[0], q.shape[2], k.shape[2]) + (0 if added is None else added)
    return numpy_attend(q, k, v, op.scale or q.shape[3] ** -0.5, masked), k, v


@reference(microsoft.MicrosoftAttention)
def microsoft_attention(op: microsoft.MicrosoftAttention, x: Any, w: Any, *others: Any) -> tuple[Any, ...]:
    given: list[Any] = [*others, *[None] * (4 - len(others))]
    bias, mask, past, added = given
    projected = x @ w + (0 if bias is None else bias)
    sizes = op.qkv_hidden_sizes or (w.shape[1] // 3,) * 3
    q, k, v = (numpy_heads(p, op.num_heads) for p in np.split(projected, np.cumsum(sizes)[:2], -1))
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    masked = numpy_mask(op, mask, q.shape[0], q.shape[2], k.shape[2]) + (0 if added is None else added)
    present = np.stack([k, v]) if k.shape == v.shape else None
    return numpy_attend(q, k, v, op.scale or q.shape[3] ** -0.5, masked), present


@reference(microsoft.GroupQueryAttention)
def group_query_attention(op: microsoft.GroupQueryAttention, q: Any, *others: Any) -> tuple[Any, ...]:
    given: list[Any] = [*others, *[None] * (11 - len(others))]
    k, v, past_k, past_v, lengths, _, cos, sin, position, added, _ = given
    groups, m = op.kv_num_heads, q.shape[1]
    if k is None:
        width = q.shape[2] // (op.num_heads + 2 * groups)
        q, k, v = np.split(q, [op.num_heads * width, (op.num_heads + groups) * width], -1)
    q, k, v = numpy_heads(q, op.num_heads), numpy_heads(k, groups), numpy_heads(v, groups)
    n = m + (0 if past_k is None else past_k.shape[2])
    y = np.zeros((len(q), m, q.shape[1] * q.shape[3]))
    present_k, present_v = (np.zeros((len(q), groups, n, q.shape[3])) for _ in range(2))
    for b in range(len(q)):
        start = 0 if past_k is None else int(lengths.ravel()[b]) + 1 - m
        turned = [x[b] for x in (q, k)]
        if op.do_rotary:
            here = slice(start, start + m) if position is None else position[b]
            turned = [numpy_turned(x, cos[here], sin[here], op.rotary_interleaved) for x in turned]
        keys, values = turned[1], v[b]
        if past_k is not None:
            keys = np.concatenate([past_k[b, :, :start], keys], 1)
            values = np.concatenate([past_v[b, :, :start], values], 1)
        present_k[b, :, : start + m], present_v[b, :, : start + m] = keys, values
        ahead = np.arange(start + m) - np.arange(start, start + m)[:, None]
        hidden = (ahead > 0) | ((op.local_window_size > 0) & (ahead <= -op.local_window_size))
        shared = [x.repeat(op.num_heads // groups, 0)[None] for x in (keys, values)]
        scale = op.scale or q.shape[3] ** -0.5
        bias = np.where(hidden, -inf, 0.0) + (0 if added is None else added[b % len(added)])
        y[b] = numpy_attend(turned[0][None], shared[0], shared[1], scale, bias)[0]
    return y, present_k, present_v


@reference(microsoft.MicrosoftRotaryEmbedding)
def microsoft_rotary_embedding(op: microsoft.MicrosoftRotaryEmbedding, x: Any, ids: Any, cos: Any, sin: Any) -> Any:
    rows = x if x.ndim == 4 else numpy_heads(x, op.num_heads or x.shape[2] // (2 * cos.shape[1]))
    place = ids if ids.ndim == 2 else np.broadcast_to(ids + np.arange(rows.shape[2]), (len(x), rows.shape[2]))
    y = numpy_turned(rows, cos[place][:, None], sin[place][:, None], op.interleaved)
    return y if x.ndim == 4 else y.swapaxes(1, 2).reshape(x.shape)
