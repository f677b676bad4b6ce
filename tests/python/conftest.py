"""Fixtures of the native tests."""

from __future__ import annotations

import pytest

from trainweb.backend.wasm.engine import Engine, get_engine


@pytest.fixture(params=[True, False], ids=["plain", "relaxed"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The shared native engines, one test after the other on each build."""
    return get_engine(reproducible=request.param)
