"""Write docs/migration.md from docs/migration.toml and docs/migration_options.toml.

python scripts/migration.py           # writes
python scripts/migration.py --check   # exits 1 if the page is not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
TARGET = DOCS / "migration.md"
SOURCES = ("migration.toml", "migration_options.toml")
KINDS = ("call", "option", "default", "error")
INTRODUCTION = """# Coming from ONNX Runtime training

These tables list the calls of ONNX Runtime's training interfaces, and the corresponding calls of trainweb. Further
tables list options, defaults and errors. Models, checkpoints and artifacts are the same files, in both directions.

[migration.toml](migration.toml) and [migration_options.toml](migration_options.toml) contain the tables
(`python scripts/migration.py`). Tests run every row.

The names `session`, `state`, `feeds` and so on come from earlier rows or explain themselves. A call in a row with
*error* raises that error. Errors have the same names in Python (`trainweb.errors`) and in a page, unless the row says
otherwise.
"""


def documents() -> list[dict[str, Any]]:
    """The tables."""
    return [d for name in SOURCES for d in tomllib.loads((DOCS / name).read_text())["document"]]


def counted(entry: dict[str, Any]) -> int:
    """The number of calls, options, defaults or errors of a row: one for each name, unless the row says otherwise."""
    return int(entry.get("count", len(re.findall(r"`[^`]+`", entry["theirs"]))))


def covered(rows: list[dict[str, Any]]) -> str:
    """The subject of some rows."""
    totals = {kind: sum(counted(r) for r in rows if r.get("kind", "call") == kind) for kind in KINDS}
    parts = [f"{n} {kind}{'s' if n != 1 else ''}" for kind, n in totals.items() if n]
    in_page = sum("js" in r for r in rows)
    where = "all only in Python" if not in_page else f"{in_page} of them in a page"
    return f"{', '.join(parts)} in {len(rows)} rows, {where}"


def code(text: str | None) -> str:
    """A cell of code."""
    return "" if text is None else "`" + text.replace("|", "\\|") + "`"


def row(entry: dict[str, Any]) -> str:
    """A row of a table."""
    raises, note = entry.get("raises"), entry.get("note", "")
    in_page = f", in JavaScript {entry['js_raises']}" if "js_raises" in entry else ""
    notes = [f"*error*: {raises}{in_page}"] * bool(raises) + [note] * bool(note)
    cells = entry["theirs"], code(entry.get("python")), code(entry.get("js")), "; ".join(notes)
    return f"| {' | '.join(cells)} |"


def page(documents: list[dict[str, Any]]) -> str:
    """The whole page."""
    parts = [INTRODUCTION, f"All tables: {covered([r for d in documents for r in d['row']])}.\n"]
    for document in documents:
        parts.append(f"## {document['title']}\n\n{document['about']} {covered(document['row'])}.\n")
        head = "| ONNX Runtime | trainweb in Python | trainweb in JavaScript | differences |\n|---|---|---|---|"
        parts.append("\n".join([head, *map(row, document["row"])]) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    wanted = page(documents())
    if not parser.parse_args().check:
        TARGET.write_text(wanted)
        return 0
    if TARGET.exists() and TARGET.read_text() == wanted:
        return 0
    print(f"{TARGET.name} is old: run python scripts/migration.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
