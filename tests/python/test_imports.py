"""Any module may be the first that a program imports."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import trainweb

EACH_FIRST = """
import sys
from importlib import import_module

for name in sys.argv[1:]:
    for known in [m for m in sys.modules if m.partition(".")[0] == "trainweb"]:
        del sys.modules[known]
    import_module(name)
    import_module("trainweb.ops.op").find("", "Gemm")
    print(name)
"""


def test_every_module_can_be_imported_first() -> None:
    names = [m.name for m in pkgutil.walk_packages(trainweb.__path__, "trainweb.")]
    # The engine of the page needs Pyodide.
    names = [n for n in names if n != "trainweb.backend.wasm.engine.pyodide" and not n.endswith("__main__")]
    done = subprocess.run([sys.executable, "-c", EACH_FIRST, *names], capture_output=True, text=True, check=False)
    assert done.stdout.split() == names, done.stderr[-2000:]
    assert len(names) > 60
