"""Write what follows from declarations in Python: of calls, messages, and settings of optimizers, losses, schedules.

python scripts/session_description.py           # writes
python scripts/session_description.py --check   # exits 1 where a file is not what would be written

It also exits 1 where Python's `SessionCore` lacks a call; in the page's, tsc finds that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "py_src"))

from trainweb import errors, messages  # noqa: E402

sys.path.insert(0, str(ROOT / "scripts"))

import call_description  # noqa: E402
import settings_description  # noqa: E402

MADE = "/** Made by scripts/session_description.py of what Python declares: edit that. */"


def calls() -> str:
    """The types that cross between page and worker."""
    return f"""{MADE}

{call_description.wire_calls()}
/** The page that documents each class of errors. */
export const DOCUMENTATION = {json.dumps(errors.DOCUMENTATION)};
"""


def texts() -> str:
    """Errors that the page finds itself, in the words of both languages."""
    page = "\n".join(p.read_text() for p in (ROOT / "web" / "src").rglob("*.ts") if p.name != "message-texts.ts")
    names = set(re.findall(r"\b[A-Z_]{3,}\b", page))
    entries = call_description.message_table({n: m for n, m in messages.table().items() if n in names})
    return f"""{MADE}

/** Errors of a session: templates of their texts, by class; `{{x!r}}` is a value as Python shows it. */
export const MESSAGES = {{
{entries}}} as const;
"""


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    old = [path for path, wanted in TARGETS.items() if not path.is_file() or path.read_text() != wanted()]
    for path in old:
        if is_check:
            print(f"{path.relative_to(ROOT)} is old: run python scripts/session_description.py")
        else:
            path.write_text(TARGETS[path]())
    faults = call_description.core_faults()
    for fault in faults:
        print(fault)
    return int(bool(faults) or (is_check and bool(old)))


SETTINGS = ROOT / "web" / "src" / "page" / "settings"
TARGETS = {
    ROOT / "py_src" / "trainweb" / "training" / "session_methods.py": call_description.python_methods,
    ROOT / "py_src" / "trainweb" / "onnxblock" / "rule_optimizers.pyi": settings_description.rule_optimizers,
    ROOT / "web" / "src" / "page" / "session-methods.ts": call_description.page_methods,
    ROOT / "web" / "src" / "wire" / "session-calls.ts": calls,
    ROOT / "web" / "src" / "wire" / "message-texts.ts": texts,
    **{SETTINGS / f"{name}.ts": text for name, text in settings_description.FILES.items()},
}

if __name__ == "__main__":
    sys.exit(main())
