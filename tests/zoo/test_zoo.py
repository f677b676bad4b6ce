"""Exports of many architectures train here as they do in PyTorch, or are listed in open.toml with the cause.

`./build.sh record-zoo` made the recordings; docs/models.md is what comes out.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.each import run_each
from tests.zoo.recording import OLDER, RATES, Recording, form, load, names
from tests.zoo.replay import Off, compare
from tests.zoo.table import HEAD, known_failures, outcome, row, tried

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
KNOWN = known_failures()
NAMES = names()
LARGEST_IN_ALL = 20_000_000
"""Bytes of all recordings."""


@pytest.fixture(scope="module", params=NAMES)
def recording(request: pytest.FixtureRequest) -> Recording:
    """A recorded model, unpacked once for all tests of it."""
    return load(request.param)


def test_trains_as_in_pytorch(recording: Recording) -> None:
    """The file that is written for training with both optimizers. Others with SGD, which sees the scale of gradients,
    and with both where SGD alone does not give the row of the page.
    """
    run_each(tried(recording), partial(check_export, recording, is_sweep=False))


@pytest.mark.sweep
def test_every_file_trains_as_in_pytorch(recording: Recording) -> None:
    run_each(tried(recording), partial(check_export, recording, is_sweep=True))


def check_export(recording: Recording, exporter: str, *, is_sweep: bool) -> None:
    """The file of an exporter does what docs/models.md says."""
    known, is_short = KNOWN.get((recording.name, exporter)), not is_sweep and exporter != "plain"
    result = None
    if exporter in recording.files:
        result = outcome(recording, exporter, ["SGD"] if is_short else RATES)
        if is_short and row(recording, exporter, result, known) + "\n" not in PAGE:
            result = outcome(recording, exporter)
    assert row(recording, exporter, result, known) + "\n" in PAGE, f"docs/models.md says otherwise: {result!r}"
    if isinstance(result, Off):
        assert known, str(result)
        assert str(result).startswith(known.starts), f"open.toml has {known.starts!r}, but: {result}"
    else:
        assert not known, "it trains now: take it out of tests/zoo/open.toml"


def test_the_page_has_all_recorded_models_and_the_zoo_is_wide_and_small() -> None:
    exporters = {name: (tried(load(name)), load(name).files) for name in NAMES}
    assert set(KNOWN) <= {(name, exporter) for name, (_, files) in exporters.items() for exporter in files}
    assert PAGE.startswith(HEAD)
    rows = sum(len(names) for names, _ in exporters.values())
    assert len([line for line in PAGE.splitlines() if line.startswith("|")]) == 2 + rows
    assert len(NAMES) >= 60
    assert all({"dynamo", "plain", "script", "default"} <= set(names) for names, _ in exporters.values())
    assert sum(path.stat().st_size for path in (Path(__file__).parent / "recorded").iterdir()) < LARGEST_IN_ALL


def test_files_of_an_older_torch_are_replayed_or_have_the_form_of_one_that_is(recording: Recording) -> None:
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


def test_a_step_that_is_wrong_by_a_hundredth_would_be_seen(recording: Recording) -> None:
    """In most tensors with one optimizer at least: SGD moves some by less than their rounding."""
    assert max(seen(recording, kind) for kind in RATES) >= 0.5
