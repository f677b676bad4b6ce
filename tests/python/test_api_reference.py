"""Every public name is explained, in Python and in TypeScript, and the API reference has it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.python.test_public_names import public_modules

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import api_reference  # noqa: E402
import typedoc  # noqa: E402


def public_names() -> Iterator[tuple[str, str, Any]]:
    """Module, name and value of all that is no module; `GradientGraphBuilder` is a name of `trainweb`."""
    for path, module in sorted(public_modules().items()):
        if path == "trainweb.compat.gradient_graph":
            continue
        for name in dir(module):
            value = getattr(module, name)
            if not inspect.ismodule(value) and name != "__version__":
                yield path, name, value


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that trainweb defines."""
    for name in dir(cls):
        raw = inspect.getattr_static(cls, name)
        value = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
        home = getattr(value.fget if isinstance(value, property) else value, "__module__", "") or ""
        is_ours = (inspect.isfunction(value) or isinstance(value, property)) and home.startswith("trainweb")
        if not name.startswith("_") and is_ours:
            yield name, value


def test_the_python_reference_has_every_public_name() -> None:
    pages = api_reference.python_pages()
    for module, name, value in public_names():
        page = pages[f"{module}.md"]
        assert f"\n## {name}\n" in page, f"{module}.{name}"
        for member, _ in members(value) if inspect.isclass(value) else ():
            assert f"\n### {name}.{member}\n" in page, f"{module}.{name}.{member}"
    assert "\n## export\n" in pages["trainweb.torch.md"]


@pytest.mark.slow
def test_public_names_of_javascript_are_explained() -> None:
    if not typedoc.SCRIPT.exists():
        pytest.skip("TypeDoc is not installed: ./build.sh setup does that")
    assert typedoc.run_typedoc(None) == []
