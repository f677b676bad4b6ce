"""Shaders of all templates in Chromium's compiler of WGSL, which is stricter than wgpu's: no error, no warning."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from tests.ops.cases import Sample
from tests.ops.op_runner import Case
from tests.ops.test_forward import graph_of
from tests.webgpu.networks import SMALL, SPECIAL
from tests.webgpu.operators import BACKWARD, FORWARD, backward_graph, first_that_fit, plan_of
from tests.webgpu.train import open_model, types_of

from trainweb.backend.plan import Plan
from trainweb.ops.conv import Conv
from trainweb.training.step_kind import TRAIN

from .conftest import CHROMIUM_FLAGS, PAGE_TIMEOUT_MS
from .server import Site
from .webgpu import SWIFTSHADER

COMPILE = """async (texts) => {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const messagesOf = async (code) => {
    device.pushErrorScope("validation");
    const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
    const fault = await device.popErrorScope();
    const lines = code.split("\\n");
    const said = messages.map(({ type, lineNum, message }) => `${type} in ${lines[lineNum - 1]}: ${message}`);
    return fault === null ? said : [...said, fault.message];
  };
  return (await Promise.all(texts.map(messagesOf))).flat();
}"""


def plans() -> Iterator[Plan]:
    """Plans that have calls of every template."""
    for case in first_that_fit(FORWARD, is_gradient=False):
        yield plan_of(*graph_of(case))[1]
    for case in first_that_fit(BACKWARD, is_gradient=True):
        yield plan_of(*backward_graph(case)[:2])[1]
    for name in SMALL | SPECIAL:
        with open_model(name, 1, is_small=True) as (core, batches):
            yield core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu")
            yield core.models.compile_optimizer(target="webgpu")
            yield core.models.compile_clip(target="webgpu")


@contextmanager
def software_page(browser: Browser, path: str, site: Site) -> Iterator[Page]:
    """A page of a browser that closes afterwards, also in the midst of its work."""
    site.add("/webgpu/shaders.html", "<!doctype html><title>Shaders</title>")
    own = browser.browser_type.launch(executable_path=path, args=[*CHROMIUM_FLAGS, *SWIFTSHADER])
    try:
        page = own.new_context().new_page()
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        page.goto(site.url("/webgpu/shaders.html"))
        yield page
    finally:
        own.close()


def test_shaders_compile_without_a_warning(
    browser: Browser, chromium_path: str, plain_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainweb.compiler.passes.head.TRAINED_SCORES_BYTES", 1 << 10)
    texts = {text: None for plan in plans() if plan.body is not None for text in plan.body.texts}
    assert len(texts) > 100
    with software_page(browser, chromium_path, plain_site) as page:
        assert page.evaluate(COMPILE, [*texts]) == []


STALLED = """async (texts) => {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  for (const code of texts) {
    const compute = { module: device.createShaderModule({ code }), entryPoint: "main" };
    const late = new Promise((resolve) => setTimeout(resolve, 60_000, null));
    if ((await Promise.race([device.createComputePipelineAsync({ layout: "auto", compute }), late])) === null) {
      return code;
    }
  }
  return null;
}"""
"""The first text without a pipeline after a minute."""
WINDOWS = [(3, 1, 1), (3, 2, 1), (3, 3, 2), (7, 2, 1), (4, 4, 1), (8, 8, 1)]
"""Kernel, stride and dilation along an axis."""


def convolution(kernel: int, stride: int, dilation: int, groups: int) -> list[Plan]:
    """Plans of a convolution of 40 channels and of both its gradients."""
    attrs = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [kernel // 2] * 4, "group": groups}
    case = Case(Conv, 0, Sample([(2, 40, 56, 56), (40, 40 // groups, kernel, kernel)], attrs))
    return [plan_of(*made)[1] for made in (graph_of(case), backward_graph(case)[:2])]


def test_pipelines_of_convolutions_compile_on_software(browser: Browser, chromium_path: str, plain_site: Site) -> None:
    """Each form, stride and dilation, grouped or not: a loop with many short circuits takes SwiftShader hours."""
    texts: dict[str, None] = {}
    for window, groups in product(WINDOWS, (1, 40)):
        for body in (plan.body for plan in convolution(*window, groups)):
            assert body is not None
            forms = np.frombuffer(body.dispatches + body.few, np.uint32).reshape(-1, 6)
            texts |= {body.texts[k]: None for k in forms[:, 0]}
    with software_page(browser, chromium_path, plain_site) as page:
        assert page.evaluate(STALLED, [*texts]) is None
