"""Write for TypeScript what Python declares: calls and messages (wire/session-calls.ts), settings (page/settings.ts).

python scripts/session_description.py           # writes
python scripts/session_description.py --check   # exits 1 where a file is not what would be written
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "py_src"))

from trainweb import messages  # noqa: E402
from trainweb.training.calls import CALLS, Call  # noqa: E402

sys.path.insert(0, str(ROOT / "scripts"))

import settings_description  # noqa: E402
from settings_description import camel  # noqa: E402

NAMES_IN_PAGE = {"ValueError": "RangeError", "KeyError": "RangeError"}
"""What Python's own exceptions become in a page."""


def call_type(call: Call) -> str:
    """The entry of a call in the interface."""
    arguments = ", ".join(f"{camel(name)}: {kind}" for name, kind in (call.arguments | call.in_page).items())
    return f"  /** {call.does} */\n  readonly {camel(call.name)}: Call<[{arguments}], {call.result}>;"


def message_entry(name: str, message: messages.Message) -> str:
    """The entry of a message in the table."""
    kind = NAMES_IN_PAGE.get(message.error.__name__, message.error.__name__)
    text = json.dumps(message.page or message.text)
    return f"  {name}: {{\n    error: {json.dumps(kind)},\n    text:\n      {text},\n  }},"


def description() -> str:
    """The file."""
    types = "\n".join(map(call_type, CALLS))
    entries = "\n".join(message_entry(*item) for item in messages.table().items())
    return f"""/** Made by scripts/session_description.py of what Python declares: edit that. */

import type {{
  FileBytes, FileForm, NamedTensor, PropertyKind, PropertyValue, SessionMemory, TensorType, ValueMetadata, WireTensor,
}} from "./values.js";

interface Call<A extends readonly unknown[], R> {{
  readonly args: A;
  readonly result: R;
}}

export type ArtifactName = "training_model" | "eval_model" | "optimizer_model" | "checkpoint";

/** The calls of a training session besides its steps. */
export interface SessionCalls {{
{types}
}}

/** Errors of a session: their class, and a template of their text; `{{x!r}}` is a value as Python shows it. */
export const MESSAGES = {{
{entries}
}} as const;
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
    return int(is_check and bool(old))


TARGETS = {
    ROOT / "web" / "src" / "wire" / "session-calls.ts": description,
    ROOT / "web" / "src" / "page" / "settings.ts": settings_description.description,
}

if __name__ == "__main__":
    sys.exit(main())
