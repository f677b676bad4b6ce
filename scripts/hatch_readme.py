"""Gives the wheel's metadata the README as PyPI can show it; hatchling runs this (pyproject.toml)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from published_readme import published_readme


class ReadmeHook(MetadataHookInterface):
    """Fills in `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Called with the project's metadata before they are written."""
        metadata["readme"] = {"content-type": "text/markdown", "text": published_readme(Path(self.root))}
