"""Plans that are compiled before the steps that need them: by `prepare`, and by a worker that has nothing to do."""

from collections.abc import Iterator

import onnx
import pytest
from playwright.sync_api import Browser

from .js_session import JsPage, expose_python, open_js_page
from .server import ROOT, Site

COUNT = """
from trainweb.page import bridge
from trainweb.training.models import SessionModels

compiled = []
for name in ("compile_step", "compile_optimizer"):
    def counted(self, *args, _do=getattr(SessionModels, name), _name=name, **more):
        compiled.append(args[0].key if args else _name)
        return _do(self, *args, **more)

    setattr(SessionModels, name, counted)
"""
COMPILED = "python.runPython('[str(name) for name in compiled]').toJs()"

PAGE = """
    const feeds = (n) => ({
      points: new Tensor("float32", Float32Array.from({ length: 2 * n }, (_, i) => Math.sin(i)), [n, 2]),
      labels: new Tensor("int64", BigInt64Array.from({ length: n }, (_, i) => BigInt(i % 2)), [n]),
    });
    const shapes = { labels: [8], points: [8, 2] };
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const open = (model, config = { loss: "CrossEntropyLoss", optimizer: "AdamW" }) =>
      TrainingSession.createFromModel(model, config, { reproducible: true });
    const train = async (s, steps) => {
      const seen = [];
      for (let k = 0; k < steps; k++) {
        seen.push((await s.runTrainStep(feeds(8)))[s.trainingOutputNames[0]].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      return [...seen, ...(await s.getContiguousParameters()).data];
    };
"""


def fixed_model(batch: int) -> bytes:
    """The model of the first page for batches of this size alone."""
    model = onnx.load(ROOT / "docs" / "first.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return bytes(model.SerializeToString())


@pytest.fixture
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    """A page with Python at hand, which counts what is compiled."""
    expose_python(plain_site)
    plain_site.add("/first.onnx", (ROOT / "docs" / "first.onnx").read_bytes())
    plain_site.add("/fixed.onnx", fixed_model(8))
    with open_js_page(browser, plain_site) as page:
        # The first session starts Python; its model has a symbolic batch, so that nothing is compiled ahead.
        page.run(f"{PAGE} window.first = await open('/first.onnx');")
        page.worker.evaluate("(code) => python.runPython(code)", COUNT)
        yield page


def compiled(js: JsPage) -> list[str]:
    """The plans compiled so far."""
    found: list[str] = js.worker.evaluate(COMPILED)
    return found


def test_steps_after_prepare_compile_nothing(js: JsPage) -> None:
    for wrong in ("null", "'points'", "undefined"):
        assert js.failure(f"await first.prepare({wrong});")["name"] == "TypeError"
    js.run(f"{PAGE} await first.prepare(shapes);")
    assert compiled(js) == ["eval", "train", "compile_optimizer"]
    prepared = js.run(f"{PAGE} const seen = await train(first, 3); await first.runEvalStep(feeds(8)); return seen;")
    assert compiled(js) == ["eval", "train", "compile_optimizer"]
    assert js.run(f"{PAGE} return train(await open('/first.onnx'), 3);") == prepared


def test_feeds_that_lie_in_shared_memory_follow_a_workspace_that_prepare_moves(js: JsPage) -> None:
    js.run(f"{PAGE} await train(first, 2);")
    moved = js.run(f"""{PAGE}
        const before = await first.memory();
        const prepared = first.prepare({{ points: [4096, 2], labels: [4096] }});
        const steps = train(first, 2);
        await prepared;
        return [await steps, (await first.memory()).arena > before.arena];""")
    plain = js.run(f"{PAGE} const s = await open('/first.onnx'); await train(s, 2); return [await train(s, 2), true];")
    assert moved == plain


def test_a_worker_with_nothing_to_do_compiles_what_a_fixed_model_needs(js: JsPage) -> None:
    """The steps take these plans, and give what they give without."""
    js.run(f"{PAGE} window.fixed = await open('/fixed.onnx');")
    while len(compiled(js)) < 2:
        js.page.wait_for_timeout(20)
    memory = js.run("return fixed.memory();")
    assert memory["plans"] == memory["arena"] == 0, "room for a plan that no step has asked for"
    ahead = js.run(f"{PAGE} return train(fixed, 3);")
    assert compiled(js) == ["train", "compile_optimizer"]
    assert js.run(f"{PAGE} return train(first, 3);") == ahead


def test_what_is_wrong_with_a_plan_ahead_is_said_by_its_step(js: JsPage) -> None:
    js.worker.evaluate(
        "(code) => python.runPython(code)",
        "from trainweb.errors import LimitError\n"
        "def refused(self, *args, **more):\n    compiled.append('refused')\n    raise LimitError('too large')\n"
        "SessionModels.compile_step = refused",
    )
    js.run(f"{PAGE} window.fixed = await open('/fixed.onnx');")
    while not compiled(js):
        js.page.wait_for_timeout(20)
    assert len(js.run("return fixed.parameterNames();")) == 4
    error = js.failure(f"{PAGE} await fixed.runTrainStep(feeds(8));")
    assert (error["name"], error["message"]) == ("LimitError", "too large")
