"""Pythons with large libraries, in virtual environments under .build/, which the product and its tests do without."""

from __future__ import annotations

import os

from steps import BUILD, LOCKS, Step, make_environment, run_step

REQUIREMENTS = {
    "flower": (
        "flatbuffers==25.12.19",
        "flwr==1.41.0",
        "numpy==2.4.6",
        "torch==2.15.0",
        "wasmtime==50.0.1",
        "websockets==17.4",
    ),
    "torch": (
        "numpy==2.4.6",
        "onnx==1.23.2",
        "onnxscript==0.7.2",
        "peft==0.21.2",
        "timm==1.0.31",
        "torch==2.15.0",
        "torchvision==0.29.2",
        "transformers==5.23.0",
    ),
}
"""flower: clients and a server, which pages are compared with, and what trainweb needs. torch: makes the recordings."""


def setup(name: str) -> str:
    """The interpreter's path: TRAINWEB_<NAME>_PYTHON, or one for which the first call fetches several GB."""
    given = os.environ.get(f"TRAINWEB_{name.upper()}_PYTHON")
    if given:
        return given
    folder = BUILD / f"venv-{name}"
    interpreter = folder / "bin" / "python"
    run_step(Step(name, lambda: make_environment(folder, name), inputs=[LOCKS / f"{name}.txt"], outputs=[interpreter]))
    return str(interpreter)
