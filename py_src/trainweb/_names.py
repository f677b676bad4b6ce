"""What `dir` of a public module shows: what it defines for others, and nothing that it imports."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """Classes and functions that a module with these globals defines, by name."""
    return sorted(
        name
        for name, value in namespace.items()
        if isinstance(value, (type, FunctionType))
        and value.__module__ == namespace["__name__"]
        and not name.startswith("_")
    )
