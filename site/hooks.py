"""What MkDocs does beside: the API's pages go into the menu when they were made; the README is a page, start.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/trainweb/trainweb/blob/main/"
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


def on_config(config: Any) -> Any:
    """Add docs/api, which `./build.sh api` writes, to the menu's reference."""
    root = Path(config.docs_dir)
    if (root / "docs" / "api").is_dir():
        reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
        reference.insert(0, {"API": _entries(root / "docs" / "api", root)})
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead what points to the README to its page here, and its pictures to those of the site."""
    markdown = markdown.replace("](../README.md", "](../start.md").replace(f"]({RAW}", "](")
    # What ./build.sh examples serves is no part of the site.
    return markdown.replace("](examples/README.md", f"]({REPOSITORY}examples/README.md")
