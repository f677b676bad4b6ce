"""Products, convolutions and pooling: the same bytes for any number of threads, and as natively."""

from typing import Any

import numpy as np
import pytest
from tests.python.kernel_cases import gemm_words
from tests.python.test_kernels_threads import NODE, Job, draw

from trainweb.backend.wasm.engine import get_engine

pytestmark = pytest.mark.skipif(NODE is None, reason="Node runs the shared memory")


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def products(job: Job) -> None:
    flags = {"alpha": 0.5, "activation": 1, "bias_col": 1}
    m, n, k = 300, 260, 700
    strides = {"N": lambda rows, cols: (cols, 1), "T": lambda rows, cols: (1, rows)}
    for a, b in ("NN", "NT", "TN", "TT"):
        (a_row, a_col), (b_row, b_col) = strides[a](m, k), strides[b](k, n)
        words = gemm_words(m, n, k, a_row=a_row, a_col=a_col, b_row=b_row, b_col=b_col, **flags)
        job.call("gemm_f32", a=draw(m * k), b=draw(k * n), bias=draw(n), c=zeros(m, n), **words)
    batches = {"a_batch": [5 * 64 * 40, 64 * 40], "b_batch": [40 * 48, 0], "c_batch": [5 * 64 * 48, 64 * 48]}
    words = gemm_words(64, 48, 40, batch=[3, 5], **batches, **flags)
    job.call("gemm_f32", a=draw(15 * 64 * 40), b=draw(3 * 40 * 48), bias=draw(48), c=zeros(15, 64, 48), **words)
    # Few columns, an odd number of rows: no chunk may add to another's.
    words = gemm_words(1401, 10, 160, b_row=1, b_col=160, accumulate=1, **flags)
    job.call("gemm_f32", a=draw(1401 * 160), b=draw(10 * 160), bias=draw(10), c=draw(1401, 10), **words)
    job.call(
        "gemm_int",
        a=np.arange(3 * 200 * 90, dtype=np.int64).view(np.uint8),
        b=np.arange(90 * 70, dtype=np.int64).view(np.uint8),
        c=np.zeros(3 * 200 * 70, np.int64).view(np.uint8),
        m=200,
        n=70,
        k=90,
        a_row=90,
        a_col=1,
        b_row=70,
        b_col=1,
        batch=[1, 3],
        a_batch=[0, 200 * 90],
        b_batch=[0, 0],
        size=8,
    )
    flags |= {"beta": 1.0, "accumulate": 0, "clears": 0, "wanted": None, "bias_row": 0, "bias_col": 0}
    blocks = {"block_rows": 1, "block_cols": 32, "scale_row": 20, "scale_col": 1, "zero_row": 20, "zero_col": 1}
    stored = {"pitch": 640, "packing": 0, "flip": 8, "center": 8, **blocks}
    numbers = {"scale": draw(300, 20), "zero": None}
    w = np.arange(300 * 320, dtype=np.uint32).astype(np.uint8)
    for rows in (1, 130):
        job.call(
            "gemm_quantized_f32",
            a=draw(rows, 640),
            w=w,
            bias=None,
            c=zeros(rows, 300),
            m=rows,
            n=300,
            k=640,
            turned=1,
            a_row=640,
            a_col=1,
            c_row=300,
            **flags,
            **numbers,
            **stored,
        )
    job.call("dequantize_f32", x=w, y=zeros(300, 640), rows=300, cols=640, **numbers, **stored)


def convolution(job: Job, n: int, c: int, m: int, size: int, kernel: int, stride: int, groups: int = 1) -> None:
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    words: dict[str, Any] = {
        "n": n,
        "c": c,
        "m": m,
        "groups": groups,
        "size": [1, size, size],
        "kernel": [1, kernel, kernel],
        "out": [1, out, out],
        "stride": [1, stride, stride],
        "dilation": [1, 1, 1],
        "pad": [0, pad, pad],
    }
    x, y, w = (n, c, size, size), (n, m, out, out), (m, c // groups, kernel, kernel)
    plain = {"accumulate": 0, "activation": 0}
    job.call("conv_f32", x=draw(*x), w=draw(*w), bias=draw(m), y=zeros(*y), **plain, **words)
    job.call("conv_data_gradient_f32", dy=draw(*y), w=draw(*w), bias=None, dx=zeros(*x), **plain, **words)
    job.call("conv_weight_gradient_f32", x=draw(*x), dy=draw(*y), dw=zeros(*w), db=zeros(m), accumulate=0, **words)
    if groups > 1:
        return
    del words["groups"]
    job.call("columns_conv_f32", x=draw(*x), w=draw(*w), bias=draw(m), y=zeros(*y), **plain, **words)
    job.call("columns_data_gradient_f32", dy=draw(*y), w=draw(*w), bias=None, dx=zeros(*x), **plain, **words)
    job.call("columns_weight_gradient_f32", x=draw(*x), dy=draw(*y), dw=zeros(*w), db=zeros(m), accumulate=0, **words)
    if kernel != 3 or stride > 2 or c < 4:
        return
    sizes = {"size": [size, size], "out": [out, out], "pad": [pad, pad], "stride": stride}
    flags = {"m": m, "c": c, "stride": stride, "flipped": 0}
    u = 36 * (-(-m // 4) * -(-c // 4) * 16 + 16)
    job.call("winograd_weights_f32", w=draw(*w), u=zeros(u), **flags)
    job.call("winograd_conv_f32", x=draw(*x), u=draw(u), bias=draw(m), y=zeros(*y), n=n, **(flags | sizes), **plain)
    job.call(
        "winograd_weight_gradient_f32",
        x=draw(*x),
        dy=draw(*y),
        dw=zeros(*w),
        db=zeros(m),
        n=n,
        c=c,
        m=m,
        accumulate=0,
        **sizes,
    )


def head_loss(job: Job, n: int, parts: int) -> None:
    c, d = 1700, 50
    labels = np.random.default_rng(2).integers(0, c, n)
    labels[::3] = -100
    sizes = {"n": n, "c": c, "d": d, "turned": 0, "alpha": 1.0, "label_size": 8, "reduction": 1}
    ignored = {"has_ignore": 1, "ignore_index": -100}
    x = {"x": draw(n, d), "w": draw(c, d), "bias": draw(c), "labels": labels, "weights": None}
    results = {"loss": zeros(1), "slope": zeros(n, d), "log_sum": zeros(n)}
    job.call("head_loss_f32", **x, **results, **sizes, **ignored, parts=parts, gradient=1)
    gradient = {"dy": draw(1), "log_sum": draw(n) + 80, "dw": draw(c, d)}
    job.call("head_loss_weight_grad_f32", **x, **gradient, **sizes, **ignored, accumulate=1)


def pooling(job: Job) -> None:
    planes, size, out = 96, 27, 14
    words = {
        "planes": planes,
        "size": [1, size, size],
        "kernel": [1, 3, 3],
        "out": [1, out, out],
        "stride": [1, 2, 2],
        "dilation": [1, 1, 1],
        "pad": [0, 1, 1],
    }
    average = {"pad_end": [0, 1, 1], "count_include_pad": 0, **words}
    y, x = (planes, out, out), (planes, size, size)
    job.call("max_pool_f32", x=draw(*x), y=zeros(*y), indices=np.zeros(y, np.int64), **words)
    rows = np.arange(planes)[:, None] * size * size
    indices = rows + np.random.default_rng(1).integers(0, size * size, (planes, out * out))
    job.call(
        "max_pool_gradient_f32",
        dy=draw(*y),
        indices=indices,
        dx=zeros(*x),
        planes=planes,
        size=size * size,
        out_size=out * out,
    )
    job.call("average_pool_f32", x=draw(*x), y=zeros(*y), **average)
    job.call("average_pool_gradient_f32", dy=draw(*y), dx=zeros(*x), **average)


def attention(job: Job, items: int, m: int, n: int, d: int, e: int, parts: int, group: int = 1) -> None:
    sizes = {
        "batch": [1, items],
        "group": group,
        "m": m,
        "n": n,
        "d": d,
        "e": e,
        "scale": d**-0.5,
        "fill": -np.inf,
        "ratio": 0.0,
        "salt": 0,
        "draw": 0,
    }
    strides: dict[str, Any] = {"mask_strides": [0, 0, n]}
    widths = {"q": (m, d), "k": (n, d), "v": (n, e), "y": (m, e)}
    strides |= {f"{x}_strides": [0, rows * width, width] for x, (rows, width) in widths.items()}
    heads = {"q": items, "k": items // group, "v": items // group, "y": items}
    x = {name: draw(heads[name], *shape) for name, shape in widths.items()}
    x["mask"] = np.where(np.tri(m, n, dtype=bool), 0, -np.inf).astype(np.float32)
    job.call("attention_f32", **x, top=zeros(items, m), inverse=zeros(items, m), guarded=0, **sizes, **strides)
    strides |= {f"d{x}_strides": strides[f"{x}_strides"] for x in widths}
    results = {f"d{name}": zeros(heads[name], *widths[name]) for name in "qkv"}
    top, inverse = draw(items, m), np.abs(draw(items, m))
    job.call(
        "attention_gradient_f32",
        **x,
        dy=draw(items, m, e),
        top=top,
        inverse=inverse,
        **results,
        **sizes,
        **strides,
        conditional=0,
        parts=parts,
    )


def rotary(job: Job, back: int) -> None:
    batch, heads, length, half = 3, 5, 80, 23
    width = 2 * half
    words = {"dims": [batch, heads, length], "half": half, "cos_half": half, "sin_half": 0, "back": back}
    strides = {"x_strides": [heads * length * width, width, heads * width], "cos_strides": [0, 0, width]}
    strides |= {"y_strides": [heads * length * width, length * width, width], "sin_strides": [length * half, 0, half]}
    x, cos, sin = draw(batch, length, heads, width), draw(length, width), draw(batch, length, half)
    job.call("rotary_f32", x=x, cos=cos, sin=sin, y=zeros(batch, heads, length, width), **words, **strides)


def recurrence(job: Job, cell: int, batch: int) -> None:
    steps, hidden, gates = 3, 21, (1, 1, 4, 3, 3)[cell]
    kept = 1 if gates == 1 else 4
    every, last = (steps, batch, hidden), (batch, hidden)
    sizes = {"steps": steps, "batch": batch, "hidden": hidden, "cell": cell, "reverse": cell % 2}
    own = {"r": draw(gates * hidden, hidden), "lengths": (np.arange(batch) % (steps + 1)).astype(np.int32)}
    results = {
        "y": zeros(*every),
        "before": zeros(*every),
        "cells": zeros(*every),
        "h": zeros(*last),
        "c": zeros(*last),
    }
    gates_of = {"x": draw(steps, batch, gates * hidden), "gates": zeros(steps, batch, kept * hidden)}
    bias = {"bias": draw(gates * hidden), "h0": draw(*last), "c0": draw(*last)}
    job.call("recurrence_f32", **own, **results, **gates_of, **bias, **sizes)
    given = {"dy": draw(*every), "dh": draw(*last), "dc": draw(*last), "before": draw(*every), "cells": draw(*every)}
    flows = {name: zeros(steps, batch, gates * hidden) for name in ("dx", "dproduct")}
    firsts = {"dh0": zeros(*last), "dc0": zeros(*last)}
    gates_were = draw(steps, batch, kept * hidden)
    job.call("recurrence_gradient_f32", **own, **given, **flows, **firsts, gates=gates_were, **sizes)


CASES = {
    "products": products,
    "attention": lambda job: attention(job, 6, 150, 130, 20, 12, 1),
    "attention of one head": lambda job: attention(job, 1, 300, 310, 32, 32, 4),
    "rotary embedding": lambda job: rotary(job, 0),
    "gradient of a rotary embedding": lambda job: rotary(job, 1),
    "attention of groups": lambda job: attention(job, 9, 150, 130, 20, 12, 2, group=3),
    "loss of a head": lambda job: head_loss(job, 90, 4),
    "loss of a head, many rows": lambda job: head_loss(job, 700, 2),
    "3x3": lambda job: convolution(job, 6, 20, 24, 19, 3, 1),
    "3x3 of stride 2": lambda job: convolution(job, 5, 12, 21, 32, 3, 2),
    "3x3 of stride 3": lambda job: convolution(job, 5, 12, 21, 22, 3, 3),
    "3x3 from three channels": lambda job: convolution(job, 5, 3, 17, 31, 3, 1),
    "pointwise of stride 2": lambda job: convolution(job, 5, 40, 30, 13, 1, 2),
    "5x5 grouped": lambda job: convolution(job, 3, 8, 12, 24, 5, 1, groups=4),
    "depthwise": lambda job: convolution(job, 2, 24, 48, 19, 3, 1, groups=24),
    "depthwise of stride 2": lambda job: convolution(job, 1, 9, 9, 56, 5, 2, groups=9),
    "from one channel": lambda job: convolution(job, 2, 1, 20, 33, 3, 1),
    "1x1": lambda job: convolution(job, 3, 32, 40, 14, 1, 1),
    "pooling": pooling,
    "RNN": lambda job: recurrence(job, 1, 11),
    "LSTM": lambda job: recurrence(job, 2, 37),
    "GRU": lambda job: recurrence(job, 3, 70),
    "GRU, linear before reset": lambda job: recurrence(job, 4, 130),
}


@pytest.mark.parametrize("name", CASES)
def test_same_bytes_for_any_number_of_threads(name: str) -> None:
    job = Job(get_engine(reproducible=True))
    CASES[name](job)
    expected = job.run_natively()
    threads = (1, 2, 3, 5, 8)
    for n, result in zip(threads, job.run_threads(*threads, repeat=2), strict=True):
        assert result["statuses"] == [0]
        assert result["digests"] == [expected], f"{n} threads"
