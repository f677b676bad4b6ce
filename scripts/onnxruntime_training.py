"""A Python with onnxruntime-training 1.19.2, the library whose artifacts and checkpoints ours must interchange with.

It is for tests only, in a separate virtual environment under .build/. TRAINWEB_ORT_PYTHON names another one;
TRAINWEB_ORT_PYTHON=none goes without.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from steps import BUILD, LOCKS, BuildError, Step, make_environment, run, run_step, say

FOLDER = BUILD / "venv-onnxruntime"
INTERPRETER = FOLDER / "bin" / "python"
REQUIREMENTS = ("onnxruntime-training==1.19.2", "onnx==1.16.2", "numpy==1.26.4", "protobuf==4.25.9")
PROBE = "import onnxruntime.training.api, onnxruntime.training.artifacts"

WITHOUT_TORCH = '''"""onnxruntime.training imports torch, which its API for artifacts and sessions does not use."""

import importlib.machinery
import sys
import types
from unittest.mock import MagicMock


class WithoutTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "2.0.0"
        module.__getattr__ = lambda name: MagicMock()
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(WithoutTorch())
'''


def find_python() -> str | None:
    """A Python 3.11, the newest that the package has wheels for."""
    of_pyenv = map(str, Path.home().glob(".pyenv/versions/3.11*/bin/python"))
    command = ["-c", "import sys; print(sys.version_info[:2])"]
    for candidate in filter(None, [sys.executable, shutil.which("python3.11"), *of_pyenv]):
        done = subprocess.run([candidate, *command], capture_output=True, text=True)
        if done.stdout.strip() == "(3, 11)":
            return candidate
    return None


def _install(python: str) -> None:
    make_environment(FOLDER, "onnxruntime", python)
    (site,) = FOLDER.glob("lib/python3.*/site-packages")
    (site / "sitecustomize.py").write_text(WITHOUT_TORCH)
    run(INTERPRETER, "-W", "ignore", "-c", PROBE)


def setup() -> str:
    """The interpreter's path, or "" with the reason printed."""
    given = os.environ.get("TRAINWEB_ORT_PYTHON")
    if given:
        return "" if given == "none" else given
    python = find_python()
    if platform.machine() != "x86_64" or sys.platform != "linux" or python is None:
        say("onnxruntime-training: tests with it are skipped; its wheels are for Python 3.11 on Linux x86_64")
        return ""
    try:
        run_step(
            Step(
                "onnxruntime-training",
                lambda: _install(python),
                inputs=[LOCKS / "onnxruntime.txt", WITHOUT_TORCH],
                outputs=[INTERPRETER],
            )
        )
    except BuildError as e:
        say(f"onnxruntime-training: tests with it are skipped; it cannot be installed: {e}")
        return ""
    return str(INTERPRETER)
