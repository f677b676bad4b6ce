"""Names that `dir` of a public module shows: the classes that it defines, and nothing that it imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """Classes that a module with these globals defines, by name. Its functions are for other modules of trainweb."""
    return sorted(
        name
        for name, value in namespace.items()
        if isinstance(value, type) and value.__module__ == namespace["__name__"] and not name.startswith("_")
    )


def hides(*names: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class: `dir`, and with it completion, leaves out these names, which are for trainweb itself."""

    def hiding(cls: type[T]) -> type[T]:
        listed = cls.__dir__

        def remaining(self: T) -> list[str]:
            return [name for name in listed(self) if name not in names]

        type.__setattr__(cls, "__dir__", remaining)
        return cls

    return hiding
