"""Checks of arguments: a wrong type is a TypeError that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainweb.errors import shortened

T = TypeVar("T")


def instance_of(kind: type[T], name: str, value: object) -> T:
    """An argument of this type."""
    if not isinstance(value, kind):
        raise TypeError(f"'{name}' must be of type {kind.__name__}, got {type(value).__name__}.")
    return value


def flag(name: str, value: Any) -> bool:
    """An argument that is true or false: the text "false" is neither."""
    if not isinstance(value, bool) and getattr(value, "dtype", None) != "bool":
        raise TypeError(f"'{name}' must be a bool, got {value!r:.80}.")
    return bool(value)


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """An argument that is a dict."""
    if not isinstance(value, Mapping):
        raise TypeError(f"'{name}' must be a dict, got {type(value).__name__}.")
    return value


def texts(name: str, value: Any) -> list[str]:
    """Several names; one alone is taken for several letters by nobody."""
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None
    if given is None or not all(isinstance(one, str) for one in given):
        raise TypeError(f"'{name}' must be a list of str, got {value!r:.80}.")
    return given


def path_of(name: str, value: Any) -> Path:
    """An argument that is a path."""
    if not isinstance(value, (str, os.PathLike)) or "\0" in os.fspath(value):
        raise TypeError(f"'{name}' must be a path, got {value!r:.80}.")
    return Path(value)


SHOWN_NAME = 80
"""Characters of a name that is not known: those that are known have fewer."""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The text of an error on an unknown name; it says the nearest of `known`."""
    from difflib import get_close_matches  # not on the way of a page's first step

    names = sorted(known)
    shown = shortened(str(name), SHOWN_NAME, 0)
    near = get_close_matches(shown, names, 1)
    return f"{what} {shown!r} is not known; " + (
        f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}."
    )
