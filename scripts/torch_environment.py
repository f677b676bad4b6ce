"""A Python with PyTorch and the libraries of models, which record what the tests replay without them.

It is for recording only, in a separate virtual environment under .build/. TRAINWEB_TORCH_PYTHON names another one.
"""

from __future__ import annotations

import os
import sys

from steps import BUILD, LOCKS, Step, locked, run, run_step

FOLDER = BUILD / "venv-torch"
INTERPRETER = FOLDER / "bin" / "python"
REQUIREMENTS = (
    "numpy==2.4.6",
    "onnx==1.23.2",
    "onnxscript==0.7.2",
    "peft==0.21.2",
    "timm==1.0.31",
    "torch==2.15.0",
    "torchvision==0.29.2",
    "transformers==5.23.0",
)


def _install() -> None:
    run(sys.executable, "-m", "venv", "--clear", FOLDER)
    run(INTERPRETER, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *locked("torch"))


def setup() -> str:
    """The interpreter's path; several GB are fetched on the first call."""
    given = os.environ.get("TRAINWEB_TORCH_PYTHON")
    if given:
        return given
    run_step(Step("torch", _install, inputs=[LOCKS / "torch.txt"], outputs=[INTERPRETER]))
    return str(INTERPRETER)
