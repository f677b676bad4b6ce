"""Write what follows from declarations in Python: calls, messages, constants, and settings.

python scripts/session_description.py

It exits 1 where Python's `SessionCore` lacks a call; in the page's, tsc finds that.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "py_src"))

sys.path.insert(0, str(ROOT / "scripts"))

import call_description  # noqa: E402

METHODS = ROOT / "py_src" / "trainweb" / "training" / "session_methods.py"
METHODS.write_text(call_description.python_methods())  # what is imported next needs it

import record_description  # noqa: E402
import settings_description  # noqa: E402

from trainweb import arguments, errors, heads, messages, spelling  # noqa: E402
from trainweb.backend import chosen, plan  # noqa: E402
from trainweb.backend.wasm import host  # noqa: E402
from trainweb.data import dataset, files, images, text  # noqa: E402
from trainweb.federated import secure  # noqa: E402
from trainweb.fit import find_rate, steps, trainer  # noqa: E402
from trainweb.fit import plan as fit_plan  # noqa: E402
from trainweb.generation import generate, incremental, pretrained  # noqa: E402
from trainweb.model import safetensors, weights  # noqa: E402
from trainweb.spelling import page_name  # noqa: E402
from trainweb.training import decoder, plans, store  # noqa: E402

OF_PAGES = {"cache": "the session options"}
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
    page = "\n".join(p.read_text() for p in (ROOT / "web" / "src").rglob("*.ts") if p not in TARGETS)
    names = set(re.findall(r"\b[A-Z_]{3,}\b", page + constants()))  # constants name errors, too
    entries = call_description.message_table({n: m for n, m in messages.table().items() if n in names})
    return f"""{MADE}

/** Errors of a session: templates of their texts, by class; `{{x!r}}` is a value as Python shows it. */
export const MESSAGES = {{
{entries}}} as const;

/** `ALIASES` of trainweb/arguments.py. */
export const ALIASES: Readonly<Record<string, string>> = {in_page(arguments.ALIASES | {"verbose": "callbacks"})};

/** `OF_CALLS` of trainweb/arguments.py. */
export const OF_CALLS: Readonly<Record<string, string>> = {in_page(arguments.OF_CALLS | OF_PAGES)};

export const FAR = {arguments.FAR};
"""


def in_page(names: dict[str, str]) -> str:
    """Names of arguments as a page spells them."""
    options = "the session options, the third argument of createFromModel"
    spelt = {"from_model": "createFromModel", "the session options": options}
    spelt[arguments.OF_CALLS["checkpoint"]] = "fit or of TrainingSession.create, or loadCheckpoint of the session"
    return json.dumps({page_name(name): spelt.get(other, page_name(other)) for name, other in names.items()})


def constants() -> str:
    """Constants that Python and pages have in common."""
    lines = f"{MADE}\n"
    for module, names in CONSTANTS.items():
        lines += f"\n// {module.__name__}\n"
        for name in names:
            value = getattr(module, name)
            kind = ": readonly string[]" if isinstance(value, tuple) else ""
            end = "" if kind else " as const"
            lines += f"export const {name}{kind} = {json.dumps(value)}{end};\n"
    return lines


def main() -> int:
    """Write the files and compare the core; returns the exit status."""
    shutil.rmtree(SETTINGS, ignore_errors=True)
    SETTINGS.mkdir()
    for path, contents in TARGETS.items():
        path.write_text(contents())
    faults = call_description.core_faults()
    for fault in faults:
        print(fault)
    return int(bool(faults))


SETTINGS = ROOT / "web" / "src" / "page" / "settings"
CONSTANTS = {
    chosen: ("WASM",),
    plan: ("SEEN",),
    plans: ("KERNEL_MEMORY",),
    host: ("FEED_FAULTS", "IMAGE_PADDING"),
    steps: ("FAULTS",),
    trainer: ("SLICE_S", "MOST_BYTES", "MOST_BATCHES"),
    decoder: ("ROWS", "FEW", "LENGTHS", "FIRST"),
    incremental: ("SHORTEST", "CACHE"),
    generate: ("LOGITS", "INCOMPLETE"),
    pretrained: ("GRAPHS", "WEIGHTS", "INDEX"),
    weights: ("GIVEN", "SPARE"),
    find_rate: ("BETA", "DIVERGED", "SKIPPED_START", "SKIPPED_END", "BUFFER"),
    fit_plan: ("COMPARED_LABELS", "NAMED_CLASSES"),
    store: ("FORMAT", "LONGEST_NAME", "MAX_NAME"),
    safetensors: ("TENSOR_LIMIT",),
    dataset: ("SPLIT_STREAM",),
    files: ("TRUE", "FALSE", "MISSING_NUMBERS", "TREATMENTS", "OTHERS"),
    images: ("SHOWN_FILES",),
    text: ("REFERENCE",),
    heads: ("ALL_BUT_HEAD",),
    spelling: ("LABELS", "IGNORED", "LOG_PROBABILITIES"),
    secure: ("POINT_BYTES", "CHECK_WORDS"),
}
"""Names by the modules that explain them."""
TARGETS = {
    METHODS: call_description.python_methods,
    ROOT / "py_src" / "trainweb" / "onnxblock" / "rule_optimizers.pyi": settings_description.rule_optimizers,
    ROOT / "web" / "src" / "page" / "session-methods.ts": call_description.page_methods,
    ROOT / "web" / "src" / "wire" / "constants.ts": constants,
    ROOT / "web" / "src" / "wire" / "session-calls.ts": calls,
    ROOT / "web" / "src" / "wire" / "message-texts.ts": texts,
    ROOT / "web" / "src" / "wire" / "records.ts": record_description.records,
    ROOT / "web" / "src" / "wire" / "error-classes.ts": record_description.error_classes,
    **{SETTINGS / f"{name}.ts": text for name, text in settings_description.FILES.items()},
}

if __name__ == "__main__":
    sys.exit(main())
