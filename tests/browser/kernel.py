"""Drive a Pyodide that runs in a page's worker, as a notebook's kernel does."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Error, Page

from .server import Site, zip_folders

LOCAL_LOCK = "pyodide-lock.local.json"
REPLY_TIMEOUT_MS = 240_000  # the whole conformance replay is one call, on a busy machine

USE_INDEX = """
import micropip
micropip.set_index_urls(index)
"""

INSTALL = """
import micropip
await micropip.install(requirement)
"""

CALL = """
import importlib, json, sys, traceback
if folder not in sys.path:
    sys.path.insert(0, folder)
try:
    value = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    reply = {"value": value, "traceback": None}
except BaseException:
    reply = {"value": None, "traceback": traceback.format_exc()}
json.dumps(reply)
"""


class PythonError(Exception):
    """Python code in the page raised; the text is its traceback."""


class Kernel:
    """A stock Pyodide in `page`: no page code of trainweb, no network but `site`.

    Parameters
    ----------
    main_thread
        Run Python on the page itself (as PyScript does) and not in a worker (as JupyterLite does).
    """

    def __init__(self, page: Page, site: Site, *, main_thread: bool = False) -> None:
        self.page = page
        self.site = site
        self._query = "?main" if main_thread else ""

    def boot(self, packages: tuple[str, ...] = ("micropip",)) -> str:
        """Start Pyodide and load `packages` of its distribution; returns the version."""
        self.page.goto(self.site.url("/tests/pyodide.html" + self._query))
        self.page.wait_for_function("window.ask !== undefined")
        return str(
            self._ask(
                {
                    "kind": "boot",
                    "base": self.site.url("/pyodide/"),
                    "lock": LOCAL_LOCK,
                    "packages": list(packages),
                }
            )
        )

    def run(self, code: str, **variables: Any) -> Any:
        """Run Python; returns its last expression (numbers, strings, lists, dicts, None).

        Raises PythonError with the traceback if it raises.
        """
        return self._ask({"kind": "run", "code": code, "variables": variables})

    def install(self, requirement: str = "trainweb") -> None:
        """`micropip.install(requirement)`, with the local server as the package index."""
        self.use_local_index()
        self.run(INSTALL, requirement=requirement)

    def use_local_index(self) -> None:
        """Make micropip look for packages on the local server, whose wheels the build made."""
        self.run(USE_INDEX, index=self.site.url("/simple/{package_name}/"))

    def ship(self, name: str, folder: Path, into: str = "/tests") -> str:
        """Copy a folder of the checkout to `into/name` of Pyodide's file system; returns that path."""
        path = f"/shipped/{name}.zip"
        url = self.site.add(path, zip_folders({name: folder}))
        try:
            self._ask({"kind": "unpack", "url": url, "folder": into})
        finally:
            self.site.remove(path)
        return f"{into}/{name}"

    def call(self, folder: str, module: str, function: str, *arguments: Any) -> Any:
        """Call `module.function(*arguments)` with `folder` on the path; JSON in, JSON out.

        Raises PythonError with the full traceback if it raises.
        """
        text = self.run(CALL, folder=folder, module=module, function=function, arguments=json.dumps(arguments))
        reply = json.loads(text)
        if reply["traceback"]:
            raise PythonError(reply["traceback"])
        return reply["value"]

    def _ask(self, message: dict[str, Any]) -> Any:
        arguments = [message, REPLY_TIMEOUT_MS]
        try:
            return self.page.evaluate("(a) => window.ask(...a)", arguments)
        except Error as error:
            raise PythonError(str(error)) from None
