"""JSON files beside models, such as the index of weights that several files share."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .. import messages

SHARD = re.compile(r"(?!\.*$)[^/\\:\0]+")


def shards(index: Path) -> list[str]:
    """Names of the files that an index of weights lists; they lie beside it."""
    weight_map = read_object(index).get("weight_map", {})
    names: list[Any] = [*weight_map.values()] if isinstance(weight_map, dict) else [None]
    if not all(isinstance(name, str) and SHARD.fullmatch(name) for name in names):
        raise messages.BAD_SHARDS(name=index.name)
    files = sorted({*names})
    missing = next((name for name in files if not (index.parent / name).is_file()), None)
    if missing is not None:
        raise messages.NO_SHARD(name=index.name, file=missing)
    return files


def read_object(path: Path) -> dict[str, Any]:
    """The contents of a file, which need not exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise messages.NOT_JSON(name=path.name, fault=str(error)) from error
    if not isinstance(content, dict):
        raise messages.NOT_JSON(name=path.name, fault=f"it has {type(content).__name__}, not an object")
    return content
