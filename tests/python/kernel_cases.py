"""Shared code of the tests of the kernels: arguments, and the tolerance of a float32 sum beside a float64 one."""

from typing import Any

import numpy as np


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32, the same for the same seed and shape."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def gemm_words(m: int, n: int, k: int, **others: Any) -> dict[str, Any]:
    """The arguments of gemm_f32 besides its operands: one product of dense rows, unless `others` say otherwise."""
    once = {name: [0, 0] for name in ("a_batch", "b_batch", "c_batch", "bias_batch")}
    strides = {"a_row": k, "a_col": 1, "b_row": n, "b_col": 1, "c_row": n, "bias_row": 0, "bias_col": 0}
    flags = {"alpha": 1.0, "beta": 1.0, "accumulate": 0, "activation": 0, "clears": 0, "wanted": None}
    return {"m": m, "n": n, "k": k, "batch": [1, 1], **once, **strides, **flags, **others}


def assert_close_sum(got: np.ndarray, want: np.ndarray, magnitude: np.ndarray, terms: int, factor: float = 1.0) -> None:
    """`magnitude` is the sum of the absolute values of the terms.

    A sum in blocks rounds each partial sum once; its error grows like sqrt(terms) in practice and never beyond
    terms * 2**-24 * magnitude. We allow 2 + sqrt(terms) half ulps of the magnitude.
    """
    bound = factor * (2 + np.sqrt(terms)) * 2.0**-24 * (magnitude + 1e-30)
    worst = np.max(np.abs(got - want) / bound, initial=0)
    assert worst <= 1, f"error is {worst:.2f} times the bound"
