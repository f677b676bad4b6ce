"""Exports of many architectures train here as they do in PyTorch, or are listed in open.toml with the cause.

`./build.sh record-zoo` made the recordings; docs/models.md is what comes out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.zoo.recording import OLDER, RATES, Recording, form, load, names
from tests.zoo.replay import Off, compare
from tests.zoo.table import HEAD, known_failures, outcome, row, tried

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
KNOWN = known_failures()
NAMES = names()
LARGEST_IN_ALL = 20_000_000
"""Bytes of all recordings."""


@pytest.mark.parametrize(("name", "exporter"), [(name, e) for name in NAMES for e in tried(load(name))])
def test_trains_as_in_pytorch(name: str, exporter: str) -> None:
    recording, known = load(name), KNOWN.get((name, exporter))
    if exporter not in recording.files:
        assert row(recording, exporter, None, None) in PAGE
        pytest.skip(f"not exported: {recording.about['not exported'][exporter]}")
    result = outcome(recording, exporter)
    assert row(recording, exporter, result, known) + "\n" in PAGE, f"docs/models.md says otherwise: {result!r}"
    if isinstance(result, Off):
        assert known, str(result)
        assert str(result).startswith(known.starts), f"open.toml has {known.starts!r}, but: {result}"
        pytest.xfail(f"{result}; open.toml: {known.cause}")
    assert not known, "it trains now: take it out of tests/zoo/open.toml"


def test_open_entries_and_the_page_are_of_recorded_models() -> None:
    recorded = {(name, exporter) for name in NAMES for exporter in load(name).files}
    assert set(KNOWN) <= recorded
    assert PAGE.startswith(HEAD)
    rows = sum(len(tried(load(name))) for name in NAMES)
    assert len([line for line in PAGE.splitlines() if line.startswith("|")]) == 2 + rows


def test_the_zoo_is_wide_and_small() -> None:
    assert len(NAMES) >= 60
    assert all({"dynamo", "plain", "script", "default"} <= set(tried(load(name))) for name in NAMES)
    assert sum(path.stat().st_size for path in (Path(__file__).parent / "recorded").iterdir()) < LARGEST_IN_ALL


@pytest.mark.parametrize("name", NAMES)
def test_files_of_an_older_torch_are_replayed_or_have_the_form_of_one_that_is(name: str) -> None:
    recording = load(name)
    forms = recording.about["older"]
    for exporter, own in OLDER.items():
        if own in recording.files:
            assert form(recording.files[own]) == forms[exporter] != form(recording.files.get(exporter, b""))
        elif exporter in recording.files and own not in recording.about["not exported"]:
            assert form(recording.files[exporter]) == forms[exporter]


def seen(recording: Recording, kind: str) -> float:
    """Share of the tensors in which a step that is wrong by a hundredth would be seen."""
    after = recording.part(f"{kind}/after/")
    moved, noise = recording.truth[f"{kind}/moved"], recording.truth[f"{kind}/noise"]
    count = 0
    for k, (tensor, expected) in enumerate(after.items()):
        try:
            compare(tensor, expected + np.float32(0.01 * moved[k]), expected, float(moved[k]), float(noise[k]))
        except Off:
            count += 1
    return count / len(after)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_wrong_by_a_hundredth_would_be_seen(name: str) -> None:
    """In most tensors with one optimizer at least: SGD moves some by less than their rounding."""
    recording = load(name)
    assert max(seen(recording, kind) for kind in RATES) >= 0.5
