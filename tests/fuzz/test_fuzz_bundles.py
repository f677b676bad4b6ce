"""Mutated bundles, as a page's worker opens and runs them: no harm. `scripts/fuzz_bundles.py` runs for longer."""

import pytest
from fuzz_bundles import NO_HARM, fuzz

BUNDLES = 500


def test_mutated_bundles_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    counts = fuzz("suite", 0, BUNDLES, 3600)
    assert set(counts) <= set(NO_HARM), capsys.readouterr().out
    # Enough of each kind: bundles that pass every check, too.
    assert counts.total() == BUNDLES and all(counts[kind] > BUNDLES // 30 for kind in NO_HARM), counts
