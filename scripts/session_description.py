"""Write web/src/wire/session-calls.ts: calls, messages, losses and optimizers as Python declares them, for TypeScript.

python scripts/session_description.py           # writes
python scripts/session_description.py --check   # exits 1 where the file is not what would be written
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "py_src"))

from trainweb import messages  # noqa: E402
from trainweb.artifacts import LossType, OptimType  # noqa: E402
from trainweb.training.calls import CALLS, Call  # noqa: E402

TARGET = ROOT / "web" / "src" / "wire" / "session-calls.ts"
NAMES_IN_PAGE = {"ValueError": "RangeError", "KeyError": "RangeError"}
"""What Python's own exceptions become in a page."""


def camel(name: str) -> str:
    """`name` as JavaScript spells it."""
    return re.sub(r"_([a-z])", lambda m: m[1].upper(), name)


def call_type(call: Call) -> str:
    """The entry of a call in the interface."""
    arguments = ", ".join(f"{camel(name)}: {kind}" for name, kind in (call.arguments | call.in_page).items())
    return f"  /** {call.does} */\n  readonly {camel(call.name)}: Call<[{arguments}], {call.result}>;"


def message_entry(name: str, message: messages.Message) -> str:
    """The entry of a message in the table."""
    kind = NAMES_IN_PAGE.get(message.error.__name__, message.error.__name__)
    text = json.dumps(message.page or message.text)
    return f"  {name}: {{\n    error: {json.dumps(kind)},\n    text:\n      {text},\n  }},"


def union_type(name: str, kinds: type[Enum]) -> str:
    """The names of an enumeration."""
    return f"export type {name} = {' | '.join(json.dumps(kind) for kind in kinds.__members__)};"


def description() -> str:
    """The file."""
    types = "\n".join(map(call_type, CALLS))
    entries = "\n".join(message_entry(*item) for item in messages.table().items())
    return f"""/** Made by scripts/session_description.py of what Python declares: edit that. */

import type {{
  FileBytes, FileForm, NamedTensor, PropertyValue, SessionMemory, TensorType, WireTensor,
}} from "./values.js";

interface Call<A extends readonly unknown[], R> {{
  readonly args: A;
  readonly result: R;
}}

export type ArtifactName = "training_model" | "eval_model" | "optimizer_model" | "checkpoint";

/** Losses and optimizers that artifacts are built with, by name. */
{union_type("LossType", LossType)}
{union_type("OptimizerType", OptimType)}

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
    wanted = description()
    if not parser.parse_args().check:
        TARGET.write_text(wanted)
        return 0
    if TARGET.read_text() == wanted:
        return 0
    print(f"{TARGET.relative_to(ROOT)} is old: run python scripts/session_description.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
