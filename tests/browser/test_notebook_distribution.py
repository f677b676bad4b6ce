"""A self-hosted Pyodide whose lock file names trainweb: loadPackage, with no resolver."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from .server import ROOT, Site

DISTRIBUTION = ROOT / "dist" / "pyodide"

LOAD = """async (base) => {
  const { loadPyodide } = await import(`${base}pyodide.mjs`);
  const pyodide = await loadPyodide({ indexURL: base });
  await pyodide.loadPackage("trainweb", { messageCallback: () => {} });
  return pyodide.runPython("import trainweb, trainweb.training.core\\ntrainweb.__version__");
}"""


@pytest.mark.skipif(
    not (DISTRIBUTION / "pyodide-lock.json").is_file(),
    reason="dist/pyodide is not built: ./build.sh pyodide-dist, which needs Python >= 3.12",
)
def test_load_package_finds_trainweb_and_its_dependencies(page: Page, make_site: Callable[..., Site]) -> None:
    from trainweb import __version__

    site = make_site(mounts={"/distribution/": [DISTRIBUTION]})
    site.add("/page.html", '<!doctype html><link rel="icon" href="data:,">')
    page.goto(site.url("/page.html"))
    assert page.evaluate(LOAD, site.url("/distribution/")) == __version__
    loaded = {path.split("/")[-1].split("-")[0] for path in site.requests("/distribution/")}
    assert {"trainweb", "protobuf", "flatbuffers", "numpy"} <= loaded
