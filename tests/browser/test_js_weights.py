"""A page takes a graph's weights from a safetensors file."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.browser.server import Site
from tests.python.test_safetensors_beside import NAME, WEIGHT, file_of, graph_of

RUN = """
async ([model, weights]) => {
  const { InferenceSession, Tensor } = await import("/dist/index.js");
  const run = async (options) => {
    const session = await InferenceSession.create(model, options);
    const { y } = await session.run({ x: new Tensor("float32", new Float32Array(128).fill(1), [1, 128]) });
    await session.release();
    return [...y.data];
  };
  const refused = await run({}).catch((error) => error.name);
  return [await run({ weights }), refused];
}
"""


def test_weights_are_found_by_name(page: Page, site: Site) -> None:
    model = site.add("/w/model.onnx", graph_of())
    weights = site.add("/w/model.safetensors", file_of({NAME: WEIGHT}))
    found, refused = page.evaluate(RUN, [model, weights])
    assert refused == "ModelError"
    assert max(abs(a - b) for a, b in zip(found, WEIGHT.astype(float).sum(1), strict=True)) < 1e-4
