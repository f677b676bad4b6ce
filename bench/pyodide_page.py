"""Run Python with trainweb in a fresh page, started from the snapshot as the worker does, but on the main thread."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from chrome import HERE, open_browser, open_site

TIMEOUT_MS = 600_000

PAGE = """
async ({ indexURL, dist, modules, values, program }) => {
  const started = performance.now();
  const [{ loadPyodide }, { Engine }] = await Promise.all(
    [import(`${indexURL}pyodide.mjs`), import(`${dist}engine.js`)]);
  const engine = Engine.create({ wasm: (build) => `${dist}${build}.wasm` });
  const unzip = async ({ body }) =>
    new Uint8Array(await new Response(body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
  const _loadSnapshot = fetch(`${dist}python/snapshot.bin`).then(unzip);
  const pyodide = await loadPyodide({ indexURL, _loadSnapshot });
  pyodide.pyimport("trainweb.training.bridge").start(await engine);
  const boot = performance.now() - started;
  for (const [name, source] of Object.entries(modules)) {
    pyodide.FS.writeFile(`/home/pyodide/${name}.py`, source);
  }
  pyodide.globals.set("values_json", JSON.stringify(values));
  return { boot, result: pyodide.runPython(program) };
}
"""

PROGRAM = """
import base64, importlib, json
values = json.loads(values_json)
files = {name: base64.b64decode(text) for name, text in values["files"].items()}
function = getattr(importlib.import_module(values["module"]), values["function"])
json.dumps(function(files, *values["arguments"]))
"""


def call(module: str, function: str, files: Mapping[str, bytes], arguments: Sequence[Any]) -> tuple[Any, float]:
    """Call `function(files, *arguments)` of a module in bench/; its result (by JSON), and ms until Python was up.

    The page is isolated, because the clock is finer there.
    """
    values = {
        "module": module, "function": function, "arguments": list(arguments),
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
    }  # fmt: skip
    with open_browser() as browser, open_site() as site:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(site.add("/python/", "<!doctype html>", "text/html"))
        answer = page.evaluate(
            PAGE,
            {
                "indexURL": site.url("/pyodide/"),
                "dist": site.url("/dist/"),
                "modules": {module: (HERE / f"{module}.py").read_text()},
                "values": values,
                "program": PROGRAM,
            },
        )
    return json.loads(answer["result"]), answer["boot"]
