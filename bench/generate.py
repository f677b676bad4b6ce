"""Tokens a second of `generate` with SmolLM2-135M's architecture, natively, beside what memory bandwidth allows.

    .venv/bin/python bench/generate.py [--layers 30] [--tokens 24] [--rounds 5]

Weights are random and float32. Each new token reads all weights once, so the limit is the bandwidth of one thread over
the bytes of the weights. Rounds take turns; the median of the processor seconds of a token counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import smol

PROMPT = 64
MIB = 1 << 20


def bandwidth(array: np.ndarray) -> float:
    """Bytes that one thread reads a second: a sum over an array that no cache holds."""
    start = process_time()
    array.sum()
    return array.nbytes / (process_time() - start)


def seconds_of(tokens: Iterator[Any], count: int) -> float:
    """Processor seconds of a token, once the prompt is read."""
    next(tokens)
    start = process_time()
    for _ in range(count):
        next(tokens)
    return (process_time() - start) / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=smol.SMOLLM2_135M.layers)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    import trainweb

    size = replace(smol.SMOLLM2_135M, layers=given.layers)
    weights = 4 * sum(prod(shape) for shape in smol.shapes(size).values())
    prompt = np.random.default_rng(0).integers(0, size.vocabulary, PROMPT).tolist()
    with tempfile.TemporaryDirectory() as folder:
        session = trainweb.InferenceSession(smol.write(Path(folder), size))
    array = np.ones(weights // 4, np.float32)
    rates, seconds = [], []
    for k in range(1 + given.rounds):
        found = seconds_of(session.generate(prompt, max_tokens=given.tokens + 1), given.tokens)
        rates += [bandwidth(array)] * (k > 0)
        seconds += [found] * (k > 0)
    rate, each = statistics.median(rates), statistics.median(seconds)
    print(f"weights {weights / MIB:.0f} MiB; one thread reads {rate / 1e9:.1f} GB/s")
    print(f"{1 / each:.1f} tokens a second, {weights / each / rate:.0%} of the limit of {rate / weights:.1f}")


if __name__ == "__main__":
    main()
