"""Names that `dir` of a public module shows: the classes that it defines, and nothing that it imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """Classes that a module with these globals defines, by name. Its functions are for other modules of trainweb."""
    return sorted(
        name
        for name, value in namespace.items()
        if isinstance(value, type) and value.__module__ == namespace["__name__"] and not name.startswith("_")
    )
