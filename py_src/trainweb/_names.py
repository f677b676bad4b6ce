"""Names that `dir` of a public module shows: the classes that it defines, and nothing that it imports."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping
from typing import Any


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """Classes that a module with these globals defines, by name. Its functions are for other modules of trainweb."""
    return sorted(
        name
        for name, value in namespace.items()
        if isinstance(value, type) and value.__module__ == namespace["__name__"] and not name.startswith("_")
    )


class Hiding(ABCMeta):
    """Type of classes whose `dir`, and with it completion, leaves out names which are for trainweb itself.

    class Example(metaclass=Hiding, hidden=("core",)): ...
    """

    _hidden: frozenset[str]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, hidden: tuple[str, ...] = ()
    ) -> Hiding:
        """Make a class that hides these names, and those that its bases hide."""
        inherited: list[frozenset[str]] = [getattr(base, "_hidden", frozenset()) for base in bases]
        listed = {"_hidden": frozenset(hidden).union(*inherited), "__dir__": _shown_names}
        return super().__new__(mcs, name, bases, {**namespace, **listed})

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name not in cls._hidden]


def _shown_names(self: Any) -> list[str]:
    return [name for name in object.__dir__(self) if name not in type(self)._hidden]
