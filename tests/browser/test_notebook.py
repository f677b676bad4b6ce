"""A notebook in the browser: stock Pyodide, `micropip.install("trainweb")`, no page code of ours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.conformance import replay
from tests.conformance.behaviours import run_python

from .conftest import open_kernel
from .kernel import Kernel, PythonError
from .server import ROOT, Site
from .test_behaviours import MLP, NAMES, check_behaviour

GOLDEN = ROOT / "tests" / "golden"

# A short training of the README's model, to be run here and there; its parameters come back as hex.
TRAIN = """
import numpy as np
import trainweb
from trainweb.artifacts import LossType, OptimType

def train(path, steps=20):
    files = trainweb.artifacts.build_artifacts(
        path, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW
    )
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    with trainweb.TrainingSession(
        state, files.training_model, files.eval_model, files.optimizer_model,
        options={"reproducible": True},
    ) as session:
        rng = np.random.default_rng(7)
        for _ in range(steps):
            points = rng.uniform(-1, 1, (32, 2)).astype(np.float32)
            labels = (np.hypot(points[:, 0], points[:, 1]) < 0.8).astype(np.int64)
            session.train_step({"points": points, "labels": labels})
            session.optimizer_step()
            session.lazy_reset_grad()
        return session.get_contiguous_parameters().tobytes().hex()
"""

IMPORTED = """
import sys
import trainweb
import trainweb.training.core
[name for name in ("numpy", "onnx") if name in sys.modules]
"""

MEMORY = """
from trainweb.backend.wasm.engine import get_engine
get_engine().bytes_in_use() + get_engine(reproducible=True).bytes_in_use()
"""


@pytest.fixture(scope="module", params=["worker", "main thread", "isolated worker"])
def kernel(request: pytest.FixtureRequest, browser: Browser, plain_site: Site, isolated_site: Site) -> Iterator[Kernel]:
    """Pyodide in a worker, on the page itself, and in a cross-origin isolated page."""
    if request.param == "worker":
        yield request.getfixturevalue("pyodide_page")
        return
    site = isolated_site if request.param == "isolated worker" else plain_site
    with open_kernel(browser, site, main_thread=request.param == "main thread") as opened:
        opened.install()
        yield opened


def test_the_core_imports_neither_numpy_nor_onnx(kernel: Kernel) -> None:
    assert kernel.run(IMPORTED) == []


def test_training_gives_the_same_bytes_as_in_native_python(kernel: Kernel) -> None:
    model = ROOT / "docs" / "first.onnx"
    folder = kernel.ship("docs", ROOT / "docs")
    scope: dict[str, object] = {}
    exec(TRAIN, scope)
    here = scope["train"](str(model))  # type: ignore[operator]
    there = kernel.run(TRAIN + "\ntrain(path)", path=f"{folder}/first.onnx")
    assert there == here


def test_sessions_give_their_memory_back(kernel: Kernel) -> None:
    folder = kernel.ship("docs", ROOT / "docs")
    before = kernel.run(MEMORY)
    for _ in range(3):
        kernel.run(TRAIN + "\ntrain(path, 2)", path=f"{folder}/first.onnx")
    assert kernel.run(MEMORY) == before


@pytest.fixture(scope="module")
def conformance(pyodide_page: Kernel) -> tuple[Kernel, str, str]:
    """The kernel with the replay code and the recordings on its file system."""
    code = pyodide_page.ship("conformance", ROOT / "tests" / "conformance")
    golden = pyodide_page.ship("golden", GOLDEN)
    return pyodide_page, code, golden


@pytest.mark.parametrize("case", replay.CASES)
def test_recorded_training_is_replayed(conformance: tuple[Kernel, str, str], case: str) -> None:
    kernel, code, golden = conformance
    result = kernel.call(code, "replay", "replay", f"{golden}/{case}")
    assert result["compared"] > 10


@pytest.fixture(scope="module")
def behaviours(conformance: tuple[Kernel, str, str]) -> tuple[list[list[Any]], list[list[Any]]]:
    """The outcomes of the table of behaviours here and in Pyodide."""
    kernel, code, golden = conformance
    return run_python(str(MLP)), kernel.call(code, "behaviours", "run_python", f"{golden}/mlp")


@pytest.mark.parametrize("name", NAMES)
def test_behaves_as_in_python(behaviours: tuple[list[list[Any]], list[list[Any]]], name: str) -> None:
    in_python, in_pyodide = behaviours
    check_behaviour(name, in_pyodide, in_python)


# ---- the kernel of tests itself


def test_python_runs_and_raises_in_the_kernel(pyodide_page: Kernel) -> None:
    assert pyodide_page.run("import sys\n[a + 1, sys.platform]", a=1) == [2, "emscripten"]
    with pytest.raises(PythonError, match="ZeroDivisionError"):
        pyodide_page.run("1 / 0")


def test_shipped_modules_are_called_with_their_traceback(pyodide_page: Kernel, tmp_path: Path) -> None:
    (tmp_path / "shipped_module.py").write_text(
        "def double(x):\n    return 2 * x\n\ndef fail():\n    raise KeyError('why')\n"
    )
    folder = pyodide_page.ship("code", tmp_path)
    assert pyodide_page.call(folder, "shipped_module", "double", 21) == 42
    with pytest.raises(PythonError, match=r"in fail[\s\S]*KeyError: 'why'"):
        pyodide_page.call(folder, "shipped_module", "fail")


def test_golden_files_arrive_whole(pyodide_page: Kernel) -> None:
    folder = pyodide_page.ship("golden", GOLDEN)
    sizes = pyodide_page.run("import os\nos.path.getsize(p)", p=f"{folder}/mlp/training_model.onnx")
    assert sizes == (GOLDEN / "mlp" / "training_model.onnx").stat().st_size
