"""A Python with Flower and PyTorch, whose clients and server the pages of `./build.sh test-federated` are held to.

In a separate virtual environment under .build/. TRAINWEB_FLOWER_PYTHON names another one.
"""

from __future__ import annotations

import os
import sys

from steps import BUILD, LOCKS, Step, locked, run, run_step

FOLDER = BUILD / "venv-flower"
INTERPRETER = FOLDER / "bin" / "python"
REQUIREMENTS = ("flwr==1.41.0", "numpy==2.4.6", "torch==2.15.0", "websockets==17.4")


def _install() -> None:
    run(sys.executable, "-m", "venv", "--clear", FOLDER)
    run(INTERPRETER, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *locked("flower"))


def setup() -> str:
    """The interpreter's path; several GB are fetched on the first call."""
    given = os.environ.get("TRAINWEB_FLOWER_PYTHON")
    if given:
        return given
    run_step(Step("flower", _install, inputs=[LOCKS / "flower.txt"], outputs=[INTERPRETER]))
    return str(INTERPRETER)
