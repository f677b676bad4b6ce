"""gemm_f32 against numpy in float64, gemm_int against its integers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.kernel_cases import assert_close_sum, gemm_words, random
from tests.python.kernel_runner import BUILDS, runner
from tests.python.plan_builder import PlanFailed

SIZES = [
    (1, 1, 1),
    (3, 5, 7),
    (6, 8, 4),
    (7, 9, 1),
    (64, 10, 128),
    (10, 64, 33),
    (13, 31, 400),
    (100, 70, 800),
    (1, 50, 60),
    (50, 1, 60),
    (1, 1, 900),
    (5, 7, 0),
    (0, 3, 4),
    (3, 0, 4),
    (2, 1100, 9),
    (1000, 12, 5),
    (490, 1030, 390),
    (6, 4, 9),
    (12, 12, 12),
    (1, 1030, 33),
    (1030, 1, 33),
    (4, 260, 385),
    # Few columns, a depth of whole steps or not; b in place and just not; one to four panels; blocks of packed rows.
    (33, 10, 32),
    (2, 5, 16),
    (3, 5, 64),
    (7, 13, 48),
    (9, 9, 21),
    (72, 40, 9),
    (73, 41, 11),
    (420, 24, 300),
    (48, 1032, 40),
    (13, 30, 600),
    (170, 11, 3),
    (80, 1000, 2),
    # Panels that are packed by eights, the last of them fewer; rows of a that come from memory.
    (80, 470, 570),
    (470, 20, 600),
]
LAYOUTS = ["NN", "NT", "TN", "TT"]


@dataclass
class Operand:
    """A batch of matrices as the kernel sees it: flat elements, strides and the dense values."""

    flat: np.ndarray
    row: int
    col: int
    batch: list[int]
    values: np.ndarray


def operand(rows: int, cols: int, transposed: bool, batch: tuple[int, int], seed: int, pad: int = 0) -> Operand:
    """Random matrices of `batch` (1 broadcasts), stored with `pad` more elements a line."""
    lines, width = (cols, rows) if transposed else (rows, cols)
    x = random(*batch, lines, width + pad, seed=seed)
    row, col = (1, width + pad) if transposed else (width + pad, 1)
    size = lines * (width + pad)
    strides = [size * batch[1] * (batch[0] > 1), size * (batch[1] > 1)]
    values = x[..., :width].astype(np.float64)
    return Operand(x.reshape(-1), row, col, strides, values.swapaxes(-1, -2) if transposed else values)


BIASES = {
    "none": lambda m, n: (None, 0, 0, np.zeros((1, 1))),
    "column": lambda m, n: ((b := random(n, seed=7)), 0, 1, b[None]),
    "row": lambda m, n: ((b := random(m, seed=7)), 1, 0, b[:, None]),
    "scalar": lambda m, n: ((b := random(1, seed=7)), 0, 0, b[None]),
    "full": lambda m, n: ((b := random(m * n, seed=7)), n, 1, b.reshape(m, n)),
}


def trim(args: dict[str, Any]) -> None:
    """Cut every operand to exactly the extent that kernels.def states."""
    kernel = runner("kernels").kernels["gemm_f32"]
    for arg in kernel.args:
        if arg.kind in ("in", "inout") and args[arg.name] is not None:
            args[arg.name] = args[arg.name][: kernel.extent(arg, args)].copy()


def run_case(
    build: str,
    size: tuple[int, int, int],
    layout: str,
    *,
    batch: tuple[int, int] = (1, 1),
    a_batch: tuple[int, int] | None = None,
    b_batch: tuple[int, int] | None = None,
    bias: str = "none",
    alpha: float = 1.0,
    beta: float = 1.0,
    accumulate: int = 0,
    activation: int = 0,
    pad: int = 0,
    last: str = "",
) -> bytes:
    """Run, compare, and return the bytes of c."""
    m, n, k = size
    a = operand(m, k, layout[0] == "T", a_batch or batch, 1, pad)
    b = operand(k, n, layout[1] == "T", b_batch or batch, 2, pad)
    bias_flat, bias_row, bias_col, bias_values = BIASES[bias](m, n)
    c_row = n + pad
    c = random(*batch, m, c_row, seed=3)
    strides = {"a_row": a.row, "a_col": a.col, "b_row": b.row, "b_col": b.col, "c_row": c_row}
    strides |= {"bias_row": bias_row, "bias_col": bias_col}
    batches = {"batch": list(batch), "a_batch": a.batch, "b_batch": b.batch}
    batches["c_batch"] = [m * c_row * batch[1], m * c_row]
    flags = {"alpha": alpha, "beta": beta, "accumulate": accumulate, "activation": activation}
    operands = {"a": a.flat, "b": b.flat, "bias": bias_flat, "c": c.reshape(-1)}
    args = operands | gemm_words(m, n, k, **strides, **batches, **flags)
    trim(args)
    if not accumulate:
        # The old contents of c must not matter.
        args["c"] = np.full_like(args["c"], np.nan)
    flat = runner(build).run("gemm_f32", args, last=last)["c"]
    got = c.reshape(-1).copy()
    got[: flat.size] = flat
    got = got.reshape(c.shape)
    start = c[..., :n] if accumulate else 0.0
    want = alpha * (a.values @ b.values) + beta * bias_values + start
    size_of = abs(alpha) * (abs(a.values) @ abs(b.values)) + abs(beta * bias_values) + abs(start)
    if activation:
        want = np.maximum(want, 0)
    assert_close_sum(got[..., :n], want, size_of, k + 3)
    if accumulate:
        assert (got[..., n:] == c[..., n:]).all()
    else:
        assert np.isnan(got[..., n:].reshape(-1)[: max(0, flat.size - batch[0] * batch[1] * m * n)]).all()
    return flat.tobytes()


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@over("size", SIZES)
def test_every_layout_at_every_size(build: str, layout: str, size: tuple[int, int, int]) -> None:
    first = run_case(build, size, layout, last="a")
    assert run_case(build, size, layout, last="b") == first
    assert run_case(build, size, layout, last="c") == first
    run_case(build, size, layout, pad=3, accumulate=1)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("layout", LAYOUTS)
@over("size", [(5, 7, 0), (13, 31, 400), (16, 24, 8), (1, 33, 17), (40, 10, 20), (11, 10, 32)])
def test_bias_scale_accumulation_and_relu(size: tuple[int, int, int], layout: str, bias: str) -> None:
    for accumulate in (0, 1):
        for activation in (0, 1):
            run_case(
                "kernels.relaxed",
                size,
                layout,
                bias=bias,
                alpha=0.5,
                beta=-2.0,
                accumulate=accumulate,
                activation=activation,
                last="" if bias == "none" else "bias",
            )


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_broadcast(build: str, layout: str) -> None:
    for size in [(17, 19, 23), (1, 8, 5), (70, 33, 12)]:
        run_case(build, size, layout, batch=(3, 4))
        run_case(build, size, layout, batch=(3, 4), a_batch=(1, 4), b_batch=(3, 1), accumulate=1)
        run_case(build, size, layout, batch=(2, 3), b_batch=(1, 1), bias="column", pad=1)
        run_case(build, size, layout, batch=(0, 3))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_longer_lines(build: str, layout: str) -> None:
    for m in (1, 2, 3, 5, 13):
        run_case(build, (m, 20, 9), layout, pad=200, last="a")
        run_case(build, (m, 40, 300), layout, pad=200, last="b")


@pytest.mark.parametrize("size", [(1, 9, 4), (13, 31, 400), (64, 16, 5)])
def test_operands_without_neighbours(size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = random(m, k, 2, seed=1), random(k, n, 3, seed=2)
    operands = {"a": a.reshape(-1), "b": b.reshape(-1), "bias": None, "c": np.zeros(m * n, np.float32)}
    args = operands | gemm_words(m, n, k, a_row=2 * k, a_col=2, b_row=3 * n, b_col=3)
    trim(args)
    x, y = a[..., 0].astype(np.float64), b[..., 0].astype(np.float64)
    for build in BUILDS:
        got = runner(build).run("gemm_f32", args)["c"].reshape(m, n)
        assert_close_sum(got, x @ y, abs(x) @ abs(y), k + 3)


def test_small_products_of_a_batch_share_chunks() -> None:
    for layout in LAYOUTS:
        run_case("kernels.relaxed", (32, 32, 128), layout, batch=(2, 5))
        run_case("kernels.relaxed", (3, 2, 4), layout, batch=(7, 11), bias="full", alpha=0.5, accumulate=1)


def test_relu_keeps_nan() -> None:
    a = np.full(64, np.nan, np.float32)
    operands = {"a": a, "b": a.copy(), "bias": None, "c": np.zeros(64, np.float32)}
    args = operands | gemm_words(8, 8, 8, beta=0.0, activation=1)
    for build in BUILDS:
        assert np.isnan(runner(build).run("gemm_f32", args)["c"]).all()


@pytest.mark.parametrize("name", ["a", "b", "bias", "c"])
def test_an_operand_one_element_short_is_refused(name: str) -> None:
    operands = {"a": random(12), "b": random(20), "bias": random(5), "c": random(15)}
    args = operands | gemm_words(3, 5, 4, bias_col=1)
    runner("kernels").run("gemm_f32", args)
    args[name] = args[name][:-1].copy()
    with pytest.raises(PlanFailed, match="TW_BAD_EXTENT"):
        runner("kernels").run("gemm_f32", args)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("batch", "shared"), [((1, 1), False), ((2, 3), False), ((2, 3), True)])
@over("m, n, k", [(1, 1, 1), (3, 5, 7), (13, 31, 40), (5, 7, 0), (2, 300, 9), (70, 3, 400)])
def test_products_of_integers(
    build: str, dtype: type, m: int, n: int, k: int, batch: tuple[int, int], shared: bool
) -> None:
    """Sums that do not fit wrap, as in numpy; a is transposed, a shared b serves the whole outer batch."""
    rng = np.random.default_rng((m, n, k))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = rng.integers(low, high, (*batch, k, m), dtype)
    b = rng.integers(low, high, (1 if shared else batch[0], batch[1], k, n), dtype)
    args = {
        "a": a.reshape(-1),
        "b": b.reshape(-1),
        "c": np.full(batch[0] * batch[1] * m * n, -1, dtype),
        "m": m,
        "n": n,
        "k": k,
        "a_row": 1,
        "a_col": m,
        "b_row": n,
        "b_col": 1,
        "batch": list(batch),
        "a_batch": [batch[1] * k * m, k * m],
        "b_batch": [0 if shared else batch[1] * k * n, k * n],
        "size": a.itemsize,
    }
    got = runner(build).run("gemm_int", {name: v.view(np.uint8) if name in "abc" else v for name, v in args.items()})
    expected = np.matmul(np.swapaxes(a, -1, -2), b)
    np.testing.assert_array_equal(got["c"].view(dtype).reshape(expected.shape), expected)
