"""Write docs/migration.md of docs/migration.toml.

python scripts/migration.py           # writes
python scripts/migration.py --check   # exits 1 where the page is not what would be written
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
SOURCE, TARGET = DOCS / "migration.toml", DOCS / "migration.md"
INTRODUCTION = """# Coming from ONNX Runtime training

The calls of the interfaces that trainweb continues, and what they are here, one table for each. This page is made of
[migration.toml](migration.toml) (`python scripts/migration.py`), of which tests run every row. Models, checkpoints and
artifacts are the same files, both ways.

`session`, `state`, `feeds` and so on are what the rows above made, or the obvious thing. A row that says *error* shows
what is refused. Errors have the same names in Python (`trainweb.errors`) and in a page.
"""


def code(text: str | None) -> str:
    """A cell of code."""
    return "" if text is None else "`" + text.replace("|", "\\|") + "`"


def row(entry: dict[str, Any]) -> str:
    """A row of a table."""
    raises, note = entry.get("raises"), entry.get("note", "")
    notes = [f"*error*: {raises}"] * bool(raises) + [note] * bool(note)
    cells = entry["theirs"], code(entry.get("python")), code(entry.get("js")), "; ".join(notes)
    return f"| {' | '.join(cells)} |"


def page(documents: list[dict[str, Any]]) -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for document in documents:
        parts.append(f"## {document['title']}\n\n{document['about']}\n")
        head = "| there | in Python | in JavaScript | differences |\n|---|---|---|---|"
        parts.append("\n".join([head, *map(row, document["row"])]) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    wanted = page(tomllib.loads(SOURCE.read_text())["document"])
    if not parser.parse_args().check:
        TARGET.write_text(wanted)
        return 0
    if TARGET.exists() and TARGET.read_text() == wanted:
        return 0
    print(f"{TARGET.name} is old: run python scripts/migration.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
