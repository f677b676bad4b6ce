"""Random numbers: Philox exactly, distributions within statistical limits."""

from typing import Any

import numpy as np
import pytest
from tests.python.kernel_runner import KernelRunner
from tests.python.plan_builder import PlanFailed

from trainweb.ir.layout import STATE_RANDOM_OFFSET, STATE_SEED, STATE_WORDS


def state_words(*, seed: int = 0, offset: int = 0) -> np.ndarray:
    state = np.zeros(STATE_WORDS, np.int32)
    state.view(np.uint64)[[STATE_SEED // 2, STATE_RANDOM_OFFSET // 2]] = seed, offset
    return state


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as its paper defines it."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_reference_generator_gives_the_published_numbers() -> None:
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def random(
    kernels: KernelRunner,
    n: int,
    *,
    salt: int = 3,
    normal: int = 0,
    a: float = 0.0,
    b: float = 1.0,
    seed: int = 2**40 + 7,
    offset: int = 2**33 + 5,
    draw: int = 0,
) -> np.ndarray:
    state = state_words(seed=seed, offset=offset)
    return kernels.run(
        "random_f32", y=np.zeros(n, np.float32), state=state, n=n, salt=salt, draw=draw, normal=normal, a=a, b=b
    )["y"]


def test_uniform_numbers_are_philox(kernels: KernelRunner) -> None:
    seed, offset, salt, n = 2**40 + 7, 2**33 + 5, 3, 40
    y = random(kernels, n, seed=seed, offset=offset, salt=salt)
    for i in range(n):
        block, j, lane = i // 16, i % 16 // 4, i % 4
        words = philox([4 * block + lane, salt, offset & 0xFFFFFFFF, offset >> 32], [seed & 0xFFFFFFFF, seed >> 32])
        assert y[i] == (words[j] >> 8) * 2.0**-24


@pytest.mark.parametrize("n", [1, 5, 16, 17, 40000])
def test_beginnings_agree(kernels: KernelRunner, n: int) -> None:
    np.testing.assert_array_equal(random(kernels, n), random(kernels, 50000)[:n])


def test_streams_differ(kernels: KernelRunner) -> None:
    base = random(kernels, 1000)
    for other in ({"salt": 4}, {"seed": 1}, {"offset": 1}):
        assert (random(kernels, 1000, **other) != base).mean() > 0.99


def test_the_draws_of_a_step_go_on_from_its_offset(kernels: KernelRunner) -> None:
    for offset in (5, 2**32 - 2):
        np.testing.assert_array_equal(
            random(kernels, 99, offset=offset, draw=3), random(kernels, 99, offset=offset + 3)
        )


def test_distributions(kernels: KernelRunner) -> None:
    n = 200_000
    uniform = random(kernels, n, a=-2.0, b=6.0).astype(np.float64)
    assert uniform.min() >= -2 and uniform.max() < 6
    assert abs(uniform.mean() - 2) < 5 * 8 / np.sqrt(12 * n)
    normal = random(kernels, n, normal=1, a=1.0, b=2.0).astype(np.float64)
    z = (normal - 1) / 2
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / n)
    assert abs((z[::2] * z[1::2]).mean()) < 5 / np.sqrt(n / 2)
    assert abs((np.abs(z) < 1).mean() - 0.682689) < 5 * np.sqrt(0.22 / n)


@pytest.mark.parametrize("n", [1, 16, 33, 50000])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
def test_dropout(kernels: KernelRunner, n: int, ratio: float) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    args: dict[str, Any] = {
        "x": x,
        "y": np.zeros_like(x),
        "state": state_words(seed=9),
        "n": n,
        "ratio": ratio,
        "salt": 1,
        "draw": 2,
    }
    result = kernels.run("dropout_f32", mask=np.full(n, 7, np.uint8), **args)
    mask = result["mask"].astype(bool)
    scale = np.float32(1) / (np.float32(1) - np.float32(ratio))
    np.testing.assert_array_equal(result["y"], np.where(mask, x * scale, 0))
    np.testing.assert_array_equal(kernels.run("dropout_f32", **args)["y"], result["y"])
    assert set(np.unique(result["mask"])) <= {0, 1}
    if n > 1000:
        assert abs(mask.mean() - (1 - ratio)) <= 5 * np.sqrt(ratio * (1 - ratio) / n)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 2.0, np.nan])
def test_bad_ratio(kernels: KernelRunner, ratio: float) -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(PlanFailed, match="TW_BAD_VALUE"):
        kernels.run("dropout_f32", x=x, y=x, state=state_words(), n=4, ratio=ratio, salt=0, draw=0)


def test_advance(kernels: KernelRunner) -> None:
    after = kernels.run("random_advance", state=state_words(offset=2**32 - 1, seed=5), n=2)["state"]
    np.testing.assert_array_equal(after, state_words(offset=2**32 + 1, seed=5))
