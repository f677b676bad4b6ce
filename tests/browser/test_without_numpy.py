"""numpy computes nothing in a step: training, evaluation, optimizer and checkpoints where numpy cannot be imported."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from .conftest import open_kernel
from .kernel import Kernel
from .server import Site

GOLDEN = Path(__file__).parent.parent / "golden"

FORBID = """
import importlib, importlib.util, pathlib, shutil, sys
for name in [n for n in sys.modules if n == "numpy" or n.startswith("numpy.")]:
    del sys.modules[name]
# micropip installed it as a requirement: without its files nothing can import it.
spec = importlib.util.find_spec("numpy")
if spec is not None:
    shutil.rmtree(pathlib.Path(spec.origin).parent)
importlib.invalidate_caches()
try:
    import numpy
    imported = True
except ImportError:
    imported = False
imported
"""

STEPS = """
import json, struct
from trainweb.model.graph import Tensor
from trainweb.model.reader import read_model
from trainweb.training.core import SessionCore
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import StepKind

def run(folder, feeds):
    read = lambda name: read_model(f"{folder}/{name}.onnx")
    state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
    core = SessionCore(state, read("training_model"), read("eval_model"), read("optimizer_model"))
    losses = []
    for kind, feed in feeds:
        tensors = {n: Tensor(n, d, tuple(s), bytes.fromhex(b)) for n, (d, s, b) in feed.items()}
        (loss,) = core.step(StepKind(kind), tensors).values()
        losses.append(loss.values()[0])
        if kind == "train":
            core.optimizer_step()
            core.lazy_reset_grad()
    saved = len(CheckpointState.save_checkpoint(state, include_optimizer_state=True))
    core.release()
    return {"losses": losses, "saved": saved}

json.dumps(run(folder, json.loads(feeds)))
"""


@pytest.fixture(scope="module")
def kernel(browser: Browser, plain_site: Site) -> Iterator[Kernel]:
    with open_kernel(browser, plain_site, main_thread=False) as opened:
        opened.install()
        assert opened.run(FORBID) is False
        yield opened


@pytest.mark.parametrize("case", ["mlp", "cnn", "transformer"])
def test_steps_need_no_numpy(kernel: Kernel, case: str) -> None:
    trace = json.loads((GOLDEN / case / "trace.json").read_text())
    inputs, expected = np.load(GOLDEN / case / "inputs.npz"), np.load(GOLDEN / case / "expected.npz")
    calls = [c for c in trace["trace"] if c["op"] in ("train", "eval")]
    first_eval = next(c for c in calls if c["op"] == "eval")
    feeds, recorded = [], []
    # The optimizer's rate is the default of a fresh session until the trace sets it: only the first train step is
    # compared.
    for call in (first_eval, next(c for c in calls if c["op"] == "train")):
        arrays = {k.split(".", 1)[1]: inputs[k] for k in inputs.files if k.startswith(call["feed"] + ".")}
        feeds.append((call["op"], {n: (a.dtype.name, a.shape, a.tobytes().hex()) for n, a in arrays.items()}))
        (key,) = (v for k, v in call["results"].items() if k.startswith("out."))
        recorded.append(float(expected[key]))
    folder = kernel.ship(case, GOLDEN / case)
    result = json.loads(kernel.run(STEPS, folder=folder, feeds=json.dumps(feeds)))
    assert result["saved"] > 1000
    assert result["losses"] == pytest.approx(recorded, rel=1e-4)
