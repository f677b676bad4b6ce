"""For all tests: their order, one seed for each, and a leak check of the kernels' memory on by default."""

import gc
import re
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.order import Recorder, longest_first

import trainweb
from trainweb.ir.layout import FINGERPRINT
from trainweb.training.contents import NEW_SEED

FAILED = pytest.StashKey[bool]()
ENGINE = Path(trainweb.__file__).parent / "backend" / "wasm" / "engine"


def pytest_sessionstart(session: pytest.Session) -> None:
    """End at once where a build of the kernels is of another state of the tree: each test would fail."""
    for path in sorted(ENGINE.glob("*.wasm")):
        found = re.search(rb'"fingerprint": ?(\d+)', path.read_bytes())
        if found is None or int(found[1]) != FINGERPRINT:
            given = None if found is None else int(found[1])
            pytest.exit(
                f"{path.name} has the fingerprint {given}, and trainweb compiles for {FINGERPRINT}: run ./build.sh, "
                "which makes all builds of the kernels anew.",
                returncode=pytest.ExitCode.USAGE_ERROR,
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Times are recorded when asked for."""
    parser.addoption("--record-times", action="store_true", help="write how long files take to tests/times.txt")


def pytest_configure(config: pytest.Config) -> None:
    """Record where reports of all workers come together."""
    if config.getoption("--record-times") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers begin with the files that take longest."""
    if hasattr(config, "workerinput"):
        longest_first(items)


def pytest_collection_finish() -> None:
    """Leave what lives as long as the run, the tests and their modules, out of all later collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note for the fixtures' teardown whether the test failed."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def bytes_in_use() -> int:
    """Bytes allocated in the memories of the shared native engines, 0 while there is none."""
    engine = sys.modules.get("trainweb.backend.wasm.engine")
    if engine is None or "trainweb.backend.wasm.engine.wasmtime" not in sys.modules:
        return 0
    return sum(engine.get_engine(reproducible=mode).bytes_in_use() for mode in (False, True))


@pytest.fixture(autouse=True)
def same_seed() -> Iterator[None]:
    """A test that sets the seed of random numbers sets it for itself alone."""
    NEW_SEED[0] = 0  # the fixture of a module may have set another
    yield
    NEW_SEED[0] = 0


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves blocks in the kernels' memory (marker `leaks` turns it off)."""
    before = bytes_in_use()
    yield
    if request.node.get_closest_marker("leaks") or request.node.stash.get(FAILED, False):
        return  # the traceback of a failed test keeps its sessions alive
    if bytes_in_use() == before:
        return
    gc.collect()  # what only a dead cycle still holds is no leak
    after = bytes_in_use()
    if after > before:
        pytest.fail(
            f"{after - before} bytes of the kernels' memory were not given back: release the session",
            pytrace=False,
        )
