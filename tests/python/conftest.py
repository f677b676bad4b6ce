"""Fixtures of the native tests."""

import pytest
from tests.python.kernel_runner import BUILDS, KernelRunner, runner

from trainweb.backend.wasm.engine import Engine, get_engine


@pytest.fixture(params=[True, False], ids=["plain", "relaxed"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The shared native engines, one test after the other on each build."""
    return get_engine(reproducible=request.param)


@pytest.fixture(params=BUILDS)
def kernels(request: pytest.FixtureRequest) -> KernelRunner:
    """Runners of single kernels on both builds."""
    return runner(request.param)
