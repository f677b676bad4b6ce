"""Hooks of MkDocs: if the API's pages exist, they go into the menu; the README is a page, start.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

RAW = "https://raw.githubusercontent.com/trainweb/trainweb/main/"
"""Where the README's pictures lie for registries; here they lie beside it."""


def _title(page: Path) -> str:
    for line in page.read_text().splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    return page.stem


def _entries(folder: Path, root: Path) -> list[Any]:
    """The pages of a folder, its index first, then its folders."""
    pages = sorted(folder.glob("*.md"), key=lambda page: (page.stem not in ("index", "README"), page.stem.lower()))
    entries: list[Any] = [{_title(page): page.relative_to(root).as_posix()} for page in pages]
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        found = _entries(inner, root)
        if found:
            entries.append({inner.name: found})
    return entries


def _section(nav: list[Any], name: str) -> list[Any]:
    found: list[Any] = next(entry[name] for entry in nav if isinstance(entry, dict) and name in entry)
    return found


def on_config(config: Any) -> Any:
    """Add generated pages to the menu: docs/api, which `./build.sh api` writes, and the pages of the examples."""
    root = Path(config.docs_dir)
    if (root / "docs" / "api").is_dir():
        _section(config.nav, "Reference").insert(0, {"API": _entries(root / "docs" / "api", root)})
    _section(config.nav, "Examples").extend(
        entry for entry in _entries(root / "examples", root) if "examples/README.md" not in entry.values()
    )
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to the README to its page, its pictures to the site's, notebooks to JupyterLite."""
    if page.file.src_uri == "examples/README.md":
        markdown = re.sub(r"\[(\w+)\]\((\w+\.ipynb)\)", r'<a href="../lab/lab/index.html?path=\2">\1</a>', markdown)
        return re.sub(r"\]\((\w+)\.html\)", r"](\1.md)", markdown)
    return markdown.replace("](../README.md", "](../start.md").replace(f"]({RAW}", "](")
