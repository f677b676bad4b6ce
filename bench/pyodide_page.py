"""Run Python with trainweb in a fresh page: Pyodide on the main thread, the packages unpacked, nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from chrome import HERE, ROOT, open_browser, open_site

TIMEOUT_MS = 600_000
PACKAGES = ("trainweb", "protobuf", "flatbuffers")

PAGE = """
async ({ indexURL, wheels, modules, values, program }) => {
  const started = performance.now();
  const { loadPyodide } = await import(`${indexURL}pyodide.mjs`);
  const pyodide = await loadPyodide({ indexURL });
  for (const url of wheels) {
    pyodide.unpackArchive(await (await fetch(url)).arrayBuffer(), "wheel");
  }
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


def wheels() -> list[str]:
    """Paths on the site of the packages that trainweb is made of."""
    found = []
    for package in PACKAGES:
        folders = (ROOT / "dist", ROOT / ".build" / "wheels")
        names = sorted(p.name for f in folders for p in f.glob(f"{package}-*.whl"))
        if not names:
            raise SystemExit(f"no wheel of {package}; run ./build.sh")
        found.append(f"/wheels/{names[-1]}")
    return found


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
                "wheels": [site.url(path) for path in wheels()],
                "modules": {module: (HERE / f"{module}.py").read_text()},
                "values": values,
                "program": PROGRAM,
            },
        )
    return json.loads(answer["result"]), answer["boot"]
