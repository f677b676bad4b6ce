"""Write the hashes of all Python packages that the build installs: scripts/requirements/*.txt.

    python scripts/lock_requirements.py [NAME ...]

Run this by hand when a pinned version changes. `uv` (https://docs.astral.sh/uv) resolves the versions for every system.
It is installed into a separate environment under .build/. The build takes nothing whose hash is not in these files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence

import environments
import make_site
import notebook_tools
import onnxruntime_training
import pyodide_dist
import pyodide_lockfile
import teach_backbone
from build import requirements
from steps import BUILD, LOCKS, run

UV = "uv==0.13.9"
FOLDER = BUILD / "venv-uv"
SETS: dict[str, tuple[Sequence[str], str, bool]] = {
    "dev": (requirements(), "3.11", True),
    "pyodide-wheels": (pyodide_dist.PURE_WHEELS, "3.14", False),
    **{name: ((carrier,), "3.11", False) for name, carrier in pyodide_dist.CARRIERS.items()},
    "pyodide-build": (pyodide_lockfile.REQUIREMENTS, "3.12", True),
    "onnxruntime": (onnxruntime_training.REQUIREMENTS, "3.11", True),
    "teach": ((teach_backbone.PACKAGE,), "3.11", False),
    "lab-wheels": (make_site.KERNEL_WHEELS, "3.13", False),
    "notebooks": (notebook_tools.TOOLS, "3.11", True),
    "notebook-wheels": (notebook_tools.WHEELS, "3.14", False),
    "site": (make_site.REQUIREMENTS, "3.11", True),
    **{name: (packages, "3.11", True) for name, packages in environments.REQUIREMENTS.items()},
}
"""By the name of the file: what is pinned, the oldest Python for it, and whether what that needs comes along."""


def lock(name: str) -> None:
    """Write one file."""
    pinned, python, with_dependencies = SETS[name]
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join(pinned))
        file.flush()
        options = ["--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate"]
        options += ["--python-version", python] + ([] if with_dependencies else ["--no-deps"])
        target = LOCKS / f"{name}.txt"
        run(FOLDER / "bin" / "uv", "pip", "compile", *options, file.name, "--output-file", target)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *SETS], metavar="NAME")
    options = parser.parse_args()
    if not (FOLDER / "bin" / "uv").exists():
        run(sys.executable, "-m", "venv", FOLDER)
        run(FOLDER / "bin" / "python", "-m", "pip", "--quiet", "install", UV)
    LOCKS.mkdir(exist_ok=True)
    for name in options.names or SETS:
        lock(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
