"""The texts of web/src/wire/records.ts and errors of pages: data classes and errors that Python declares."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from trainweb import errors
from trainweb.artifacts.evidence import Decision
from trainweb.model.checks import Limits
from trainweb.session.check import Described, Problem, Report
from trainweb.session.example import Feed
from trainweb.spelling import camel_case
from trainweb.training.core import SessionMemory
from trainweb.training.debug.units import DeadUnits
from trainweb.training.history import Epoch, Progress
from trainweb.training.ort.interface import ModelMetadata

MADE = "/** Made by scripts/session_description.py of what Python declares: edit that. */"
RECORDS: Mapping[type, tuple[str, str]] = {
    Decision: ("ParameterDecision", "A tensor of the model, the decision to train it or not, and the reason."),
    Problem: ("ModelProblem", ""),
    Described: ("DescribedValue", ""),
    Feed: ("ReportFeed", ""),
    Report: ("ModelReport", "The report of `inspectModel` on a model."),
    SessionMemory: (
        "SessionMemory",
        "Bytes that a session takes of the kernels' memory, and the cost of `memoryBudget`.",
    ),
    DeadUnits: ("DeadUnits", ""),
    ModelMetadata: ("ModelMetadata", "A model's description of itself."),
    Epoch: ("EpochRecord", ""),
    Progress: ("ProgressRecord", "The progress within an epoch, after a step."),
}
"""The classes that pages have, with their names there, and their descriptions where Python's is not the page's."""
TYPES = {
    "Report.suggested_loss": "string | SuggestedLoss | null",
    "Report.code": 'Readonly<Partial<Record<"javascript" | "python", string>>>',
    "Report.model_metadata": "ModelMetadata | null",
    "ModelMetadata.version": "bigint",
    "Epoch.validation": "EvalValues | null",
    "Epoch.training": "EvalValues | null",
}
"""Types that Python's annotations do not tell."""
PLAIN = {int: "number", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}
WORDS = {
    "int": "number",
    "str": "string",
    "list of str": "readonly string[]",
    "dict": "TensorRange",
    "list of dict": "readonly TensorRange[]",
}
"""Types of the fields of errors, which are plain data."""
OF_PYTHON = ("TrainwebError", "UnknownNameError", "InvalidValueError")
"""Errors that no page has, and their base."""


def attributes(cls: type) -> dict[str, tuple[str, str]]:
    """The type and the description of each attribute in the docstring of a class."""
    section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes\n----------\n")[2]
    entries = re.finditer(r"^(\w+(?:, \w+)*)(?: : (.*))?\n((?:    .*\n?)+)", section, re.MULTILINE)
    return {name: (m[2], " ".join(m[3].split())) for m in entries for name in m[1].split(", ")}


def in_page(text: str) -> str:
    """A text with code and names as comments of a page have them."""
    plain = re.sub(r"\bNone\b", "null", text.replace("``", "`"))
    return re.sub(r"`(\w+)`", lambda m: f"`{camel_case(m[1])}`", plain)


def page_type(hint: Any) -> str:
    """The TypeScript of an annotation."""
    if hint in PLAIN:
        return PLAIN[hint]
    if hint in RECORDS:
        return RECORDS[hint][0]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(map(page_type, arguments))
    if origin is dict:
        return f"Readonly<Record<string, {page_type(arguments[1])}>>"
    assert origin in (list, tuple, Sequence), hint
    item = page_type(arguments[0])
    return f"readonly ({item})[]" if " " in item else f"readonly {item}[]"


def members(cls: type, mark: str = "") -> str:
    """The members of the interface of a data class; of one that writes itself as JSON, its keys."""
    docs, hints = attributes(cls), get_type_hints(cls)
    keys = list(Report().as_data()) if cls is Report else [field.name for field in dataclasses.fields(cls)]
    lines = []
    for key in keys:
        own = getattr(cls, key, None)
        if isinstance(own, property):
            hint, text = get_type_hints(own.fget)["return"], inspect.getdoc(own) or ""
        else:
            hint, text = hints[key], docs[key][1]
        kind = TYPES.get(f"{cls.__name__}.{key}") or page_type(hint)
        lines += [f"  /** {in_page(text)} */", f"  readonly {camel_case(key)}{mark}: {kind};"]
    return "\n".join(lines)


def first_line(cls: type) -> str:
    """The first paragraph of a docstring."""
    return in_page(" ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()))


def records() -> str:
    """The file of data classes."""
    parts = [
        f"/** {described or first_line(cls)} */\nexport interface {name} {{\n{members(cls)}\n}}\n"
        for cls, (name, described) in RECORDS.items()
    ]
    limits = "".join(f"  {camel_case(f.name)}: {f.default},\n" for f in dataclasses.fields(Limits))
    return f"""{MADE}

/** A loss with the settings that an output needs. */
export interface SuggestedLoss {{
  /** Its name. */
  readonly type: "CrossEntropyLoss";
  /** The axis of the scores that holds the classes. */
  readonly classAxis: number;
}}

/** A number, a number for each class, or rows of numbers: a confusion matrix has a row for each true class. */
export type MetricValue = number | readonly number[] | readonly (readonly number[])[];

/** The loss and metrics, by name. */
export interface EvalValues {{
  /** The mean loss of the rows. */
  readonly loss: number;
  /** A metric by its name. */
  readonly [name: string]: MetricValue;
}}

{chr(10).join(parts)}
/** {first_line(Limits)} */
export interface SessionLimits {{
{members(Limits, "?")}
}}

/** The limits where none are given. @internal */
export const LIMITS: Required<SessionLimits> = {{
{limits}}};
"""


def error_class(cls: type) -> str:
    """An error of a page, with its fields."""
    head = f"/** {first_line(cls)} */\nexport class {cls.__name__} extends TrainwebError {{"
    lines = []
    for name, (kind, text) in attributes(cls).items():
        words, _, null = kind.removesuffix(", optional").partition(" or ")
        if words in WORDS:
            lines += [f"  /** {in_page(text)} */", f"  readonly {name}?: {WORDS[words]}{' | null' if null else ''};"]
    return "\n".join([head, *lines, "}\n"]) if lines else f"{head}}}\n"


def error_classes() -> str:
    """The file of errors."""
    names = [name for name in errors.__all__ if name not in OF_PYTHON]
    classes = "\n".join(error_class(getattr(errors, name)) for name in names)
    return f"""{MADE}

import {{ TrainwebError, type TensorRange }} from "./base-error.js";

{classes}"""
