"""Every golden case, call by call, on the native engine."""

from pathlib import Path

import pytest

from .replay import CASES, replay

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("case", CASES)
def test_recorded_artifacts_train_to_the_recorded_trajectory(case: str) -> None:
    result = replay(GOLDEN / case)
    assert result["compared"] > 10
    print(case, result)
