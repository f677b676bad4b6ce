"""The contenders: in the page by their query, native ones by their program."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

NATIVE = Path(__file__).resolve().parent / "native"


@dataclass(frozen=True)
class Contender:
    """A contender; `query` names the module and settings of the page, `program` is set for native ones.

    Attributes
    ----------
    python : str
        Environment variable that names the interpreter of a native program ("": this one).
    models : tuple of str
        Models it can train; empty: all.
    """

    name: str
    label: str
    threads: int = 1
    query: dict[str, str] = field(default_factory=dict)
    program: str = ""
    python: str = ""
    models: tuple[str, ...] = ()

    def interpreter(self) -> str | None:
        """Of a native program; None where the environment names none."""
        return os.environ.get(self.python) if self.python else sys.executable

    def runs(self, model: str) -> bool:
        """True if it has this model."""
        return not self.models or model in self.models


def _pair(name: str, label: str, query: dict[str, str], two: dict[str, str] | None = None) -> list[Contender]:
    return [
        Contender(name, f"{label}, 1 thread", 1, {**query, "threads": "1"}),
        Contender(f"{name}-t2", f"{label}, 2 threads", 2, {**query, **(two or {}), "threads": "2"}),
    ]


def _native(name: str, label: str, program: str, python: str, threads: tuple[int, ...] = (1, 2)) -> list[Contender]:
    return [
        Contender(
            name if n == 1 else f"{name}-t{n}",
            f"{label}, native, {n} thread{'s' * (n > 1)}",
            n,
            program=str(NATIVE / program),
            python=python,
        )
        for n in threads
    ]


TFJS_TUNED = {"contender": "tfjs", "backend": "wasm", "tuned": "1"}
CONTENDERS: dict[str, Contender] = {
    c.name: c
    for c in [
        *_pair("trainweb", "trainweb", {"contender": "trainweb"}),
        *_pair("trainweb-simd", "trainweb, reproducible", {"contender": "trainweb", "reproducible": "1"}),
        Contender("trainweb-fit", "trainweb, fit", 1, {"contender": "trainweb", "threads": "1", "loop": "fit"}),
        Contender(
            "trainweb-steps", "trainweb, runTrainSteps", 1, {"contender": "trainweb", "threads": "1", "loop": "steps"}
        ),
        Contender("trainweb-cache", "trainweb, cached session", 1, {"contender": "trainweb", "cache": "1"}),
        Contender("trainweb-bundle", "trainweb, from a bundle", 1, {"contender": "trainweb", "bundle": "1"}),
        *_pair("ort", "onnxruntime-web 1.19.2", {"contender": "ort"}),
        *_pair("tfjs", "TF.js 4.22 wasm, tuned", TFJS_TUNED, {"cores": "8"}),
        Contender("tfjs-cpu", "TF.js 4.22 cpu", 1, {"contender": "tfjs", "backend": "cpu"}, models=("A", "B", "C")),
        *_pair("jax", "jax-js 0.1.25 wasm", {"contender": "jax"}),
        Contender("numpy", "numpy in Pyodide", 1, {"contender": "numpy"}, models=("A", "B")),
        *_native("trainweb-native", "trainweb (wasmtime)", "trainweb_native.py", "", (1,)),
        *_native("ort-native", "onnxruntime-training 1.19.2", "ort_native.py", "TRAINWEB_ORT_PYTHON"),
        *_native("torch-native", "PyTorch eager", "torch_native.py", "TRAINWEB_TORCH_PYTHON"),
    ]
}
QUICK = ("trainweb", "trainweb-t2", "ort", "ort-t2")
STARTUP_ONLY = ("trainweb-cache", "trainweb-bundle")
LOOPS = ("trainweb-fit", "trainweb-steps")
"""Many steps a call; compared with `trainweb` by name."""
DEFAULT = tuple(name for name in CONTENDERS if name not in STARTUP_ONLY + LOOPS)
REFERENCE = {1: "ort", 2: "ort-t2"}
"""Whom the ratios are against, by threads."""


def select(names: str | None, default: tuple[str, ...]) -> list[Contender]:
    """Contenders by their names, separated by commas.

    Raises
    ------
    SystemExit
        No contender has that name.
    """
    chosen = names.split(",") if names else list(default)
    unknown = [n for n in chosen if n not in CONTENDERS]
    if unknown:
        raise SystemExit(f"no contender {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    return [CONTENDERS[n] for n in chosen]
