"""Shaders of all templates in Chromium's compiler of WGSL, which is stricter than wgpu's: no error, no warning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.webgpu.networks import SMALL, SPECIAL
from tests.webgpu.operators import BACKWARD, FORWARD, backward_graph, first_that_fit, forward_graph, plan_of
from tests.webgpu.train import open_model, types_of

from trainweb.backend.plan import Plan
from trainweb.training.step_kind import TRAIN

from .conftest import CHROMIUM_FLAGS, PAGE_TIMEOUT_MS
from .server import Site

SWIFTSHADER = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]

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
        yield plan_of(*forward_graph(case))[1]
    for case in first_that_fit(BACKWARD, is_gradient=True):
        yield plan_of(*backward_graph(case)[:2])[1]
    for name in SMALL | SPECIAL:
        core, batches = open_model(name, 1, is_small=True)
        yield core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu")
        yield core.models.compile_optimizer(target="webgpu")
        yield core.models.compile_clip(target="webgpu")
        core.release()


def test_shaders_compile_without_a_warning(
    browser: Browser, chromium_path: str, plain_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainweb.compiler.passes.head.TRAINED_SCORES_BYTES", 1 << 10)
    texts = {text: None for plan in plans() if plan.body is not None for text in plan.body.texts}
    assert len(texts) > 100
    plain_site.add("/webgpu/shaders.html", "<!doctype html><title>Shaders</title>")
    own = browser.browser_type.launch(executable_path=chromium_path, args=[*CHROMIUM_FLAGS, *SWIFTSHADER])
    try:
        page = own.new_context().new_page()
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        page.goto(plain_site.url("/webgpu/shaders.html"))
        assert page.evaluate(COMPILE, [*texts]) == []
    finally:
        own.close()
