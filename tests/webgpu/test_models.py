"""Recorded models whose training the GPU takes are those of a list."""

from __future__ import annotations

import pytest
from tests.webgpu.models import GOLDEN, rows


@pytest.mark.filterwarnings("ignore")
def test_models_that_train_on_the_gpu_are_those_of_the_list() -> None:
    assert [*rows()] == GOLDEN.read_text().splitlines()
