"""Run Python with trainweb in the worker of a fresh page, started as in the JavaScript package."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chrome import HERE, ROOT, open_browser, open_site

TIMEOUT_MS = 600_000

PAGE = """
(job) => new Promise((resolve, reject) => {
  const worker = new Worker("/python/worker.js", { type: "module" });
  worker.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data));
  worker.onerror = ({ message }) => reject(new Error(message));
  worker.postMessage(job);
})
"""

WORKER = """
import { bootPython } from "/dist/boot.js";
import { Engine } from "/dist/engine.js";

const files = {
  loader: "/dist/python/pyodide.mjs",
  script: "/dist/python/pyodide.asm.mjs",
  wasm: "/dist/python/pyodide.asm.wasm.gz",
  isOurPyodide: true,
  library: "/dist/python/python_stdlib.zip",
  packages: "/dist/python/packages.zip",
  snapshot: "/dist/python/snapshot.bin",
};
for (const [name, path] of Object.entries(files)) {
  if (typeof path === "string") files[name] = new URL(path, location.origin).href;
}

async function run({ modules, given, values, program }) {
  const started = performance.now();
  const engine = Engine.create({ wasm: (build) => `/dist/${build}.wasm.gz` });
  const pyodide = await bootPython(files, true, 60_000);
  const [answer] = pyodide.pyimport("trainweb.page.bridge").start(await engine, {});
  if (JSON.parse(answer).error) throw new Error(answer);
  const boot = performance.now() - started;
  for (const [name, source] of Object.entries(modules)) {
    pyodide.FS.writeFile(`/home/pyodide/${name}.py`, source);
  }
  pyodide.FS.mkdir("/home/pyodide/given");
  for (const [k, path] of given.entries()) {
    pyodide.FS.writeFile(`/home/pyodide/given/${k}`, new Uint8Array(await (await fetch(path)).arrayBuffer()));
  }
  pyodide.globals.set("values_json", JSON.stringify(values));
  return { boot, result: pyodide.runPython(program) };
}

onmessage = ({ data }) => run(data).catch((error) => ({ error: `${error.stack}` })).then(postMessage);
"""

PROGRAM = """
import importlib, json, pathlib
values = json.loads(values_json)
files = {}
for k, name in enumerate(values["files"]):
    path = pathlib.Path("given", str(k))
    files[name] = path.read_bytes()
    path.unlink()
function = getattr(importlib.import_module(values["module"]), values["function"])
json.dumps(function(files, *values["arguments"]))
"""


def boot_script() -> bytes:
    """The script that starts only Python in the worker of the JavaScript package."""
    esbuild, source = ROOT / "node_modules" / ".bin" / "esbuild", ROOT / "web" / "src" / "python" / "boot.ts"
    command: list[str | Path] = [esbuild, source, "--bundle", "--format=esm", "--define:TRAINWEB_VERSION='bench'"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def call(module: str, function: str, files: Mapping[str, bytes], arguments: Sequence[Any]) -> tuple[Any, float]:
    """Call `function(files, *arguments)` of a module in bench/; its result (by JSON), and ms until Python was up.

    The page is isolated, because the clock is finer there.
    """
    values = {
        "module": module,
        "function": function,
        "arguments": list(arguments),
        "files": list(files),
    }
    with open_browser() as browser, open_site() as site:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        site.add("/dist/boot.js", boot_script(), "text/javascript")
        site.add("/python/worker.js", WORKER.encode(), "text/javascript")
        given = [site.add(f"/given/{k}", data) for k, data in enumerate(files.values())]
        page.goto(site.add("/python/", "<!doctype html>", "text/html"))
        modules = {module: (HERE / f"{module}.py").read_text()}
        answer = page.evaluate(PAGE, {"modules": modules, "given": given, "values": values, "program": PROGRAM})
    return json.loads(answer["result"]), answer["boot"]
