"""The text of web/src/page/settings.ts: optimizers, losses and their settings as Python declares them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from trainweb.artifacts.config import CONFIG
from trainweb.onnxblock.loss import LOSSES
from trainweb.onnxblock.optim import OPTIMIZERS, Optimizer
from trainweb.schedules import SCHEDULES
from trainweb.settings import PAGE_NAMES, Field, fields_of

KINDS = """/** What a setting may be, in words (`expected`) and by rules. */
export type Kind =
  | {
      readonly kind: "number" | "integer";
      readonly expected: string;
      readonly least?: number;
      readonly above?: number;
      readonly most?: number;
      readonly below?: number;
    }
  | { readonly kind: "flag" | "array"; readonly expected: string }
  | { readonly kind: "names"; readonly expected: string; readonly mayBeEmpty: boolean }
  | { readonly kind: "choice"; readonly expected: string; readonly options: readonly (string | number)[] }
  | { readonly kind: "pair"; readonly expected: string; readonly of: Kind };

/** A setting: its name in Python, whether it may be null, and its default, unless it must be given. */
export interface Setting {
  readonly python: string;
  readonly kind: Kind;
  readonly isOptional: boolean;
  readonly default?: unknown;
}

export type Settings = Readonly<Record<string, Setting>>;
"""


def camel(name: str) -> str:
    """`name` as JavaScript spells it."""
    return re.sub(r"_([a-z])", lambda m: m[1].upper(), name)


def page_name(name: str) -> str:
    """A setting's name in a page."""
    return camel(PAGE_NAMES.get(name, name))


def parameter_docs(documented: Any) -> dict[str, str]:
    """What the docstring says of each argument."""
    section = inspect.getdoc(documented) or ""
    section = section.partition("Parameters\n----------\n")[2]
    found = re.finditer(r"^(\w+) : .*\n((?:    .*\n?)+)", section, re.MULTILINE)
    return {m[1]: " ".join(m[2].split()) for m in found}


def first_sentence(cls: type) -> str:
    """The first paragraph of a class's docstring."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def default_of(field: Field) -> str:
    """The default, for a comment."""
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return "" if value is None else f" Default {json.dumps(value)}."


def members(fields: Mapping[str, Field], docs: Mapping[str, str]) -> str:
    """Members of an interface."""
    lines = []
    for name, field in fields.items():
        null = " | null" if field.is_optional else ""
        mark = "" if field.default is inspect.Parameter.empty else "?"
        lines += [
            f"  /** {docs[name]}{default_of(field) if mark else ''} */",
            f"  readonly {page_name(name)}{mark}: {field.kind.page_type}{null};",
        ]
    return "\n".join(lines)


def table(name: str, fields: Mapping[str, Field], indent: str = "") -> str:
    """An object of settings."""
    rows = []
    for python, field in fields.items():
        kind = json.dumps({camel(k): v for k, v in field.kind.facts().items()})
        optional = json.dumps(field.is_optional)
        given = "" if field.default is inspect.Parameter.empty else json.dumps(field.default)
        default = f"{indent}    default: {given},\n" if given else ""
        rows.append(
            f'{indent}  {page_name(python)}: {{\n{indent}    python: "{python}",\n{indent}    kind: {kind},\n'
            f"{indent}    isOptional: {optional},\n{default}{indent}  }},"
        )
    return f"{name}{{\n" + "\n".join([*rows, f"{indent}}}"]) if rows else f"{name}{{}}"


def interface(name: str, cls: type) -> str:
    """The settings of a class."""
    head = f"/** {first_sentence(cls)} */\n"
    fields = fields_of(cls)
    if not fields:
        return f"{head}export type {name}Fields = Readonly<Record<never, never>>;\n"
    return f"{head}export interface {name}Fields {{\n{members(fields, parameter_docs(cls))}\n}}\n"


def interfaces(kinds: Mapping[str, type]) -> str:
    """An interface for the settings of each class."""
    return "\n".join(interface(name, cls) for name, cls in kinds.items())


def tables(constant: str, kind: str, kinds: Mapping[str, type]) -> str:
    """The settings of all classes, by name."""
    rows = ",\n".join(table(f"  {name}: ", fields_of(cls), "  ") for name, cls in kinds.items())
    return f"export const {constant}: Readonly<Record<{kind}, Settings>> = {{\n{rows},\n}};\n"


def union(kinds: Mapping[str, type]) -> str:
    """Names."""
    return " | ".join(map(json.dumps, kinds))


def description() -> str:
    """The file."""
    optimizers = " | ".join(f"Of<{json.dumps(n)}, {n}Fields & InGroups<{n}Fields>>" for n in OPTIMIZERS)
    schedules = " | ".join(f"Of<{json.dumps(n)}, {n}Fields>" for n in SCHEDULES)
    losses = " | ".join(f"Of<{json.dumps(n)}, {n}Fields>" for n in LOSSES)
    return f"""/** Made by scripts/session_description.py of what Python declares: edit that. */

import type {{ Tensor }} from "onnxruntime-common";

export type LossType = {union(LOSSES)};
export type OptimizerType = {union(OPTIMIZERS)};
export type ScheduleType = {union(SCHEDULES)};

{interfaces(LOSSES)}
{interfaces(OPTIMIZERS)}
{interfaces(SCHEDULES)}
/** Parameters that are updated otherwise than most. */
export interface ParameterGroup {{
{members(fields_of(Optimizer.group), parameter_docs(Optimizer.group))}
}}

interface InGroups<Fields> {{
  /** Parameters with settings of their own; the first group that names a parameter has it. */
  readonly groups?: readonly (ParameterGroup & Fields)[];
  /** False: weight decay leaves out parameters of fewer than two axes, biases and scales of norms. Default true. */
  readonly decayBiasesAndNorms?: boolean;
}}

type Of<Name extends string, Fields> = {{ readonly type: Name }} & Fields;

/** An optimizer with its settings. */
export type OptimizerSettings = {optimizers};

/** A schedule with its settings. */
export type ScheduleSettings = {schedules};

/** A loss with its settings. */
export type LossSettings = {losses};

{KINDS}
{tables("LOSSES", "LossType", LOSSES)}
{tables("OPTIMIZERS", "OptimizerType", OPTIMIZERS)}
{tables("SCHEDULES", "ScheduleType", SCHEDULES)}
{table("export const GROUP: Settings = ", fields_of(Optimizer.group))};

{table("export const CONFIG: Settings = ", CONFIG)};
"""
