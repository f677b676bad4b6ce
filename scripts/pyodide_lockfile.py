"""A Pyodide distribution that includes trainweb, so that `pyodide.loadPackage("trainweb")` works.

Runtime, packages and wheels are laid into dist/pyodide; `pyodide lockfile`, of pyodide-build's tools,
adds the wheels to its pyodide-lock.json. Those tools need Python 3.12 or newer.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyodide_dist
from steps import BUILD, DIST, BuildError, make_environment, run

OUT = DIST / "pyodide"
TOOLS = BUILD / "venv-pyodide-build"
REQUIREMENTS = ("pyodide-build==0.39.2", "pyodide-cli==0.5.0", "pyodide-lock[wheel]==0.2.1")
MINIMUM = (3, 12)


def find_python() -> str | None:
    """Return a Python new enough for pyodide-build: this one, on PATH, or one of pyenv's."""
    names = [sys.executable, *(f"python3.{minor}" for minor in range(12, 16))]
    names += sorted(map(str, Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python")))
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {MINIMUM})"
    for name in names:
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", check], capture_output=True).returncode == 0:
            return path
    return None


def require_python() -> str:
    """`find_python`, or an error: commands ask before they build anything."""
    python = find_python()
    if python is None:
        raise BuildError(
            "`site`, `test-site` and `pyodide-dist` need Python 3.12 or newer for pyodide-build, and none is on PATH "
            "or in pyenv. Install one. The other commands work without it."
        )
    return python


def build_tools() -> None:
    """Create the environment of pyodide-build, apart from .venv, which may be an older Python."""
    make_environment(TOOLS, "pyodide-build", require_python())


def build_distribution(wheel: Path, source: Path = pyodide_dist.OUT, out: Path = OUT) -> None:
    """Write a distribution, such as dist/pyodide, with trainweb in its lock file.

    `source` is a folder with a runtime, its packages and a lock file of them.
    """
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    for name in set(pyodide_dist.RUNTIME) - {"pyodide-lock.json"}:
        shutil.copyfile(source / name, out / name)
    for package in sorted(source.glob("*.whl")):
        shutil.copyfile(package, out / package.name)
    added = [wheel, *sorted(pyodide_dist.WHEELS.glob("*.whl"))]
    for path in added:
        shutil.copyfile(path, out / path.name)
    # The trimmed lock: what it names is here, so that the folder is complete.
    run(
        TOOLS / "bin" / "pyodide",
        "lockfile",
        "add-wheels",
        "--input",
        source / pyodide_dist.LOCAL_LOCK.name,
        "--output",
        out / "pyodide-lock.json",
        "--base-path",
        out,
        *(out / path.name for path in added),
    )
