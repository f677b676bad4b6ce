"""README.md for npm and PyPI, which show it without the files beside it: its links go to the repository."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = "https://github.com/trainweb/trainweb/blob/main/"
RELATIVE = re.compile(r"(\]\()(?![a-z][a-z0-9+.-]*:|[#/])([^)\s]+\))")
"""The target of a Markdown link that is neither a URL nor a place on the same page."""
SAME_PAGE = re.compile(r"(\]\()(#[^)\s]+\))")
"""That of a place on the same page, which PyPI does not have: its headings have no ids (pypa/readme_renderer#169)."""


def published_readme(root: Path) -> str:
    """The text of README.md with absolute links."""
    text = RELATIVE.sub(rf"\g<1>{REPOSITORY}\g<2>", (root / "README.md").read_text(encoding="utf-8"))
    return SAME_PAGE.sub(rf"\g<1>{REPOSITORY}README.md\g<2>", text)
