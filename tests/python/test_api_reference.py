"""Every public name is explained, in Python and in TypeScript, and the API reference has it."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import api_reference
import numpy as np
import pytest
import typedoc
from tests.python.test_public_names import public_modules

ROOT = Path(__file__).parents[2]


def public_names() -> Iterator[tuple[str, str, Any]]:
    """Module, name and value of everything that is not a module; `GradientGraphBuilder` is a name of `trainweb`."""
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


def unexplained(path: str, value: Any, *, signature: bool = True) -> Iterator[str]:
    """The parts that a docstring omits."""
    doc = inspect.getdoc(value) or ""
    if not doc:
        yield f"{path}: no docstring"
    if isinstance(value, property) or not callable(value) or not signature:
        return
    words = set(re.findall(r"\w+", doc))
    for name, parameter in inspect.signature(value).parameters.items():
        if name not in {"self", "cls", *words} and parameter.kind is not parameter.VAR_KEYWORD:
            yield f"{path}: nothing on {name}"


def test_public_names_of_python_are_explained() -> None:
    missing = []
    for module, name, value in public_names():
        path = f"{module}.{name}"
        if not inspect.isclass(value):
            missing += unexplained(path, value) if inspect.isfunction(value) else []
            continue
        # Of these, nobody calls what trainweb did not write.
        missing += unexplained(path, value, signature=not issubclass(value, (Exception, Enum, np.ndarray)))
        for _, function in members(value):
            place = function.fget if isinstance(function, property) else function
            missing += unexplained(f"{place.__module__}.{place.__qualname__}", function)
    assert not missing, "\n".join(sorted(set(missing)))


def optional(value: Any) -> Iterator[str]:
    """The arguments of a class that have numbers or booleans as defaults."""
    if inspect.isclass(value) and not issubclass(value, (Enum, Exception)):
        for name, parameter in inspect.signature(value).parameters.items():
            if isinstance(parameter.default, (bool, int, float)):
                yield name


def test_the_python_reference_has_every_public_name() -> None:
    pages = api_reference.python_pages()
    for module, name, value in public_names():
        page = pages[f"{module}.md"]
        assert f"\n## {name}\n" in page, f"{module}.{name}"
        entry = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for setting in optional(value):
            assert re.search(rf"\b{setting}: .+ = ", entry), f"{module}.{name}: the default of {setting}"
        for member, _ in members(value) if inspect.isclass(value) else ():
            assert f"\n### {name}.{member}\n" in page, f"{module}.{name}.{member}"
        for member in value if inspect.isclass(value) and issubclass(value, Enum) else ():
            assert f"`{name}.{member.name}`" in page
    assert "\n## export\n" in pages["trainweb.torch.md"]


def test_public_names_of_javascript_are_explained() -> None:
    if not typedoc.SCRIPT.exists():
        pytest.skip("TypeDoc is not installed: ./build.sh setup does that")
    assert typedoc.run_typedoc(None) == []
