"""`session.fit` in a page: the same bytes as `Trainer.fit` natively, events, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.fit import History, Trainer

from .js_session import JsPage, open_js_page
from .server import ROOT, Site

BASE = ROOT / "tests" / "golden" / "mlp" / "base.onnx"
ROWS = 50

OPEN = f"""
    const open = (more = {{}}) => TrainingSession.createFromModel("/golden/mlp/base.onnx", {{
      loss: "CrossEntropyLoss", optimizer: "AdamW", additionalOutputNames: ["logits"], ...more,
    }}, {{ reproducible: true }});
    const rows = {ROWS};
    const data = (n = rows) => ({{
      x: new Tensor("float32", Float32Array.from({{ length: 10 * n }}, (_, i) => (i * 37 % 101) / 50 - 1), [n, 10]),
      labels: new Tensor("int64", BigInt64Array.from({{ length: n }}, (_, i) => BigInt((i * 7) % 3)), [n]),
    }});
    const bytes = async (s) => [...new Uint8Array((await s.getContiguousParameters(false)).data.buffer)];
    const schedule = {{ type: "Cosine", learningRate: 0.05, total: 12, warmup: 2 }};
"""


def arrays(n: int = ROWS) -> dict[str, np.ndarray]:
    """What `data` of the page makes."""
    x = ((np.arange(10 * n) * 37 % 101) / 50 - 1).astype(np.float32)
    return {"x": x.reshape(n, 10), "labels": (np.arange(n) * 7) % 3}


def native(data: Any, **options: Any) -> tuple[bytes, History]:
    """Parameters and history of a fit in CPython."""
    built = build_artifacts(BASE, loss="CrossEntropyLoss", optimizer="AdamW", additional_output_names=["logits"])
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    models = built.training_model, built.eval_model, built.optimizer_model
    with trainweb.TrainingSession(state, *models, {"reproducible": True}) as s:
        history = Trainer(s).fit(data, progress=False, **options)
        return s.get_contiguous_parameters(False).tobytes(), history


SCHEDULE = {"type": "Cosine", "learning_rate": 0.05, "total": 12, "warmup": 2}


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page


@pytest.fixture(scope="module")
def isolated(browser: Browser, isolated_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, isolated_site) as page:
        yield page


@pytest.mark.parametrize("where", ["js", "isolated"])
def test_the_same_data_seed_and_options_give_the_same_bytes(request: pytest.FixtureRequest, where: str) -> None:
    page: JsPage = request.getfixturevalue(where)
    got, history = page.run(
        f"""{OPEN}
        const s = await open();
        const history = await s.fit(data(), {{
          epochs: 3, batchSize: 16, validationSplit: 0.2, seed: 2 ** 40 + 5, schedule, accumulate: 2,
          metrics: ["accuracy", "confusionMatrix", "perplexity"],
        }});
        const found = [await bytes(s), history];
        await s.release();
        return found;"""
    )
    expected, native_history = native(
        arrays(),
        epochs=3,
        batch_size=16,
        validation_split=0.2,
        seed=2**40 + 5,
        schedule=SCHEDULE,
        accumulate=2,
        metrics=["accuracy", "confusionMatrix", "perplexity"],
    )
    assert bytes(got) == expected
    assert history["losses"] == native_history.losses and len(history["losses"]) == 9
    assert history["optimizerSteps"] == native_history.optimizer_steps == 6
    for mine, other in zip(history["epochs"], native_history.epochs, strict=True):
        assert (mine["epoch"], mine["steps"], mine["loss"]) == (other.epoch, other.steps, other.loss)
        assert mine["learningRate"] == other.learning_rate
        assert other.validation is not None
        assert {n: v for n, v in mine["validation"].items() if n != "perplexity"} == {
            n: v for n, v in other.validation.items() if n != "perplexity"
        }
        assert mine["validation"]["perplexity"] == pytest.approx(other.validation["perplexity"], rel=1e-14)
