"""Costs of plans for the GPU: dispatches, pipelines and bytes of the benchmark's models; no GPU is needed."""

import numpy as np
import pytest
from tests.webgpu import train as models

from trainweb.backend.plan import GpuBody
from trainweb.training.step_kind import TRAIN

MOST = {"A": (18, 10, 8), "C": (29, 17, 14), "D": (122, 30, 28), "E": (143, 21, 19), "R": (26, 19, 17)}
MOST |= {"S": (100, 29, 25), "X": (86, 23, 22), "LoRA": (233, 24, 21), "LoRA of 6": (347, 24, 21)}
"""Dispatches of a train step with its optimizer step, and pipelines of them, also for software. Lower them when there
are fewer."""
MOST_WORK = 6e9
"""Operations of a submit at most (`plans.ts`)."""


def pipelines_of(body: GpuBody, dispatches: bytes) -> set[str]:
    """The texts of some dispatches of a plan."""
    return {body.texts[k] for k in np.frombuffer(dispatches, np.uint32).reshape(-1, 6)[:, 0]}


@pytest.mark.parametrize("name", MOST)
def test_plans_stay_within_their_budget(name: str) -> None:
    if name.startswith("LoRA"):
        opened = models.open_adapters(models.networks.gpt("E", 5, layers=6 if "6" in name else 4))
    else:
        opened = models.open_model(name, 1)
    with opened as (core, batches):
        types = models.types_of(batches[0])
        train, kernels = (core.models.compile_step(TRAIN, types, True, target=t) for t in ("webgpu", "wasm"))
        update = core.models.compile_optimizer(target="webgpu")
    bodies = [plan.body for plan in (train, update) if plan.body is not None]
    plain, tiled, few = (
        len({text for body in bodies for text in pipelines_of(body, getattr(body, form))})
        for form in ("dispatches", "tiled", "few")
    )
    found = sum(len(body.nodes) for body in bodies), plain, few
    assert all(n <= most for n, most in zip(found, MOST[name], strict=True)) and tiled <= plain + 3, found
    assert bodies[0].arena_bytes <= 1.2 * kernels.arena_bytes
    assert all(len(body.work) == len(body.nodes) for body in bodies)
    assert sum(sum(body.work) for body in bodies) <= MOST_WORK, "a step is one submit"
