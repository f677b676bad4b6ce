"""The texts of web/src/page/settings: optimizers, losses, schedules and their settings as Python declares them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainweb.artifacts.builder import build_artifacts
from trainweb.data.for_model import DEFAULT_BATCH
from trainweb.data.images import AUGMENTATION, IMAGE
from trainweb.data.images import DOCS as IMAGE_DOCS
from trainweb.federated.client import FederatedClient
from trainweb.fit.find_rate import find_learning_rate
from trainweb.fit.options import ACCUMULATE, BATCHES, CHECKPOINT, EARLY_STOPPING, FIT, EarlyStopping
from trainweb.generation.options import GENERATE, NEUTRAL, SAMPLED
from trainweb.heads import HEAD
from trainweb.lora.model import inject
from trainweb.metrics import METRICS, make_metric
from trainweb.onnxblock.loss import LOSSES
from trainweb.onnxblock.optim import EMA, OPTIMIZERS, ExponentialMovingAverage, Optimizer
from trainweb.onnxblock.row_weights import SETTINGS as SAMPLE_WEIGHT
from trainweb.ops.optim.rules import RULES
from trainweb.schedules import SCHEDULES, ByFormula
from trainweb.session.tasks import SessionTasks
from trainweb.settings import OTHER_NAMES, Choice, Field, Kind, Names, fields_of
from trainweb.spelling import camel_case, page_name
from trainweb.training.inert import (
    DEVICE_CHOOSES,
    ENTRIES_AS_IS,
    ENTRIES_REFUSED,
    INERT,
    MODEL_FORMAT,
    MODEL_FORMATS,
    OTHER_BACKENDS,
)

INTERNAL = "/** @internal */\n"
"""Before what the worker reads: neither in the types of the package nor in the API reference."""
MADE = "/** Made by scripts/session_description.py of what Python declares: edit that. */"


def parameter_docs(documented: Any) -> dict[str, str]:
    """The description of each argument in the docstring of a function, or of a class and its bases."""
    docs: dict[str, str] = {}
    for each in reversed(getattr(documented, "__mro__", [documented])):
        section = inspect.cleandoc(each.__doc__ or "").partition("Parameters\n----------\n")[2]
        found = re.finditer(r"^(\w+(?:, \w+)*) : .*\n((?:    .*\n?)+)", section, re.MULTILINE)
        docs |= {name: " ".join(m[2].split()).replace("``", "`") for m in found for name in m[1].split(", ")}
    return docs


LORA, FEDERATED, FIND_RATE = fields_of(inject), fields_of(FederatedClient), fields_of(find_learning_rate)
CONFIG = {n: Field(field.kind, None, is_optional=True) for n, field in fields_of(build_artifacts).items()}
"""Arguments of `build_artifacts` besides loss and optimizer; a page may give null for each."""
FIT_DOCS = parameter_docs(SessionTasks.fit)
CONFIG_DOCS = {n: text.replace("None:", "Null:") for n, text in parameter_docs(build_artifacts).items()} | {
    "clip_grad_norm": "Largest joint L2 norm of the gradients in an optimizer step.",
    "clip_grad_value": "Largest magnitude of each element of the gradients in an optimizer step; "
    "it is applied before the norm.",
    "nominal_checkpoint": "Start without weights; load them with `loadParametersBuffer`. Default false.",
}
CHECKPOINT_DOCS = {
    "every": "Optimizer steps between two checkpoints within an epoch; one is written after each epoch anyway."
}
ACCUMULATE_DOCS = {
    "steps": "Batches for an optimizer step.",
    "reduction": 'Their gradient: that of one batch of all their rows ("mean"), or the sum of their gradients ("sum").',
}
LORA_DOCS = parameter_docs(inject) | {
    "targets": 'Modules to adapt, by names or last parts of names, or "all-linear"; by default the choice of PEFT.'
}
SAMPLE_WEIGHT_DOCS = {
    "name": "Name of the input.",
    "of": 'What has a weight: a row ("rows"), or a label ("labels"), in the shape of the labels.',
}
HEAD_DOCS = {
    "classes": "Number of classes.",
    "layer": "Module that makes the scores; needed where several may do so.",
    "seed": "Seed of the weights, which are those that PyTorch draws after the same seed.",
}


def first_sentence(cls: type) -> str:
    """The first paragraph of a class's docstring."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def default_of(field: Field) -> str:
    """The default, for a comment."""
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return "" if value is None else f" Default {json.dumps(value)}."


def in_page_names(text: str, names: Iterable[str]) -> str:
    """A text that names settings as Python does, with their names in a page; English words stay."""
    spelt = [name for name in (*names, "learning_rate") if "_" in name]
    return re.sub(rf"\b({'|'.join(spelt)})\b", lambda m: page_name(m[1]), text)


def other_name(name: str) -> str | None:
    """Another name that a page accepts for a setting."""
    return next((camel_case(other) for other, own in OTHER_NAMES.items() if own == name), None)


def members(fields: Mapping[str, Field], docs: Mapping[str, str]) -> str:
    """Members of an interface."""
    lines = []
    for name, field in fields.items():
        null = " | null" if field.is_optional else ""
        mark = "" if field.default is inspect.Parameter.empty else "?"
        lines += [
            f"  /** {in_page_names(docs[name], fields)}{default_of(field) if mark else ''} */",
            f"  readonly {page_name(name)}{mark}: {field.kind.page_type}{null};",
        ]
        if other := other_name(name):
            lines += [
                f"  /** Another name of `{page_name(name)}`. */",
                f"  readonly {other}?: {field.kind.page_type}{null};",
            ]
    return "\n".join(lines)


KINDS: dict[str, Kind] = {}
"""The kinds of the settings in the files, by the names of their constants."""


def constant_of(kind: Kind) -> str:
    """The name of a kind's constant: its words in capitals."""
    prefix = "one of " if isinstance(kind, Choice) else ""
    empty = " maybe empty" if isinstance(kind, Names) and kind.may_be_empty else ""
    spoken = {">=": "at least", "<=": "at most", ".": " point ", "-": " minus "}
    words = re.sub(r">=|<=|\.|-", lambda m: spoken[m[0]], prefix + kind.expected + empty)
    return re.sub(r"\W+", "_", words).upper()


def facts_of(python: str, field: Field) -> dict[str, str]:
    """The facts of a setting, as texts; what follows from its name or from the other facts is left out."""
    name, constant = page_name(python), constant_of(field.kind)
    assert KINDS.setdefault(constant, field.kind) == field.kind, "two kinds have the same words"
    facts = {"kind": f"values.{constant}"}
    if field.is_optional:
        facts["isOptional"] = "true"
    if field.default is not inspect.Parameter.empty:
        facts["default"] = json.dumps(field.default)
    if other := other_name(python):
        facts["otherName"] = json.dumps(other)
    if re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name) != python:
        facts["python"] = json.dumps(python)
    return facts


def table(name: str, fields: Mapping[str, Field], indent: str = "") -> str:
    """An object of settings."""
    facts = {page_name(python): facts_of(python, field) for python, field in fields.items()}
    rows = [f"{indent}  {n}: {{ {', '.join(f'{k}: {v}' for k, v in f.items())} }},\n" for n, f in facts.items()]
    return f"{name}{{\n{''.join(rows)}{indent}}}" if rows else f"{name}{{}}"


def values() -> str:
    """The file of the kinds that all settings have."""
    for name, text in FILES.items():
        if name != "values":
            text()  # it notes the kinds that it names
    rows = "".join(
        f"export const {name}: Kind = {json.dumps({camel_case(k): v for k, v in KINDS[name].facts().items()})};\n"
        for name in sorted(KINDS)
    )
    return f'{MADE}\n\nimport type {{ Kind }} from "../setting-kinds.js";\n\n{rows}'


def interface(name: str, cls: type, base: tuple[str, type] | None = None) -> str:
    """The settings of a class; those of `base`, a name and a class, are inherited."""
    fields = fields_of(cls)
    head = f"/** {in_page_names(first_sentence(cls), fields)} */\n"
    inherited, extends = (fields_of(base[1]), f" extends {base[0]}Fields") if base else ({}, "")
    own = {name: field for name, field in fields.items() if name not in inherited}
    if not own:
        empty = f"{base[0]}Fields" if base else "Readonly<Record<never, never>>"
        return f"{head}export type {name}Fields = {empty};\n"
    return f"{head}export interface {name}Fields{extends} {{\n{members(own, parameter_docs(cls))}\n}}\n"


def interfaces(kinds: Mapping[str, type], base: tuple[str, type] | None = None) -> str:
    """An interface for the settings of each class."""
    return "\n".join(interface(name, cls, base) for name, cls in kinds.items())


def tables(constant: str, kind: str, kinds: Mapping[str, type]) -> str:
    """The settings of all classes, by name."""
    rows = ",\n".join(table(f"  {name}: ", fields_of(cls), "  ") for name, cls in kinds.items())
    return f"{INTERNAL}export const {constant}: Readonly<Record<{kind}, Settings>> = {{\n{rows},\n}};\n"


def union(names: Iterable[str]) -> str:
    """The text after the `=` of a union type: one line a member if there are many."""
    names = list(names)
    line = " | ".join(names)
    return f" {line}" if len(line) < 80 else "\n  | " + "\n  | ".join(names)


def choices(kinds: Mapping[str, type], wrapped: str = "{}Fields") -> str:
    """The names of classes, each with its settings."""
    return union(f"Of<{json.dumps(n)}, {wrapped.replace('{}', n)}>" for n in kinds)


def file(body: str) -> str:
    """A file with the imports that it needs."""
    kinds = ", ".join(name for name in ("Of", "Setting", "Settings") if re.search(rf"\b{name}\b", body))
    tensor = 'import type { Tensor } from "onnxruntime-common";\n\n' if re.search(r"\bTensor\b", body) else ""
    formulas = ", ".join(name for name in ("Formula", "Rule") if re.search(rf"\b{name}\b", body))
    formula = f'import type {{ {formulas} }} from "../../wire/formulas.js";\n' if formulas else ""
    values = 'import * as values from "./values.js";\n'
    return f'{MADE}\n\n{tensor}{formula}import type {{ {kinds} }} from "../setting-kinds.js";\n{values}\n{body}'


def losses() -> str:
    """The file of losses."""
    return file(f"""/** The losses. */
export type LossType ={union(map(json.dumps, LOSSES))};

{interfaces(LOSSES)}
/** A loss with its settings. */
export type LossSettings ={choices(LOSSES)};

{tables("LOSSES", "LossType", LOSSES)}""")


def schedules() -> str:
    """The file of schedules."""
    return file(f"""/** The schedules. */
export type ScheduleType ={union(map(json.dumps, SCHEDULES))};

/** The settings of every schedule. */
export interface AnyScheduleFields {{
{members(fields_of(ByFormula), parameter_docs(ByFormula))}
}}

{interfaces(SCHEDULES, ("AnySchedule", ByFormula))}
/** A schedule with its settings. */
export type ScheduleSettings ={choices(SCHEDULES)};

{tables("SCHEDULES", "ScheduleType", SCHEDULES)}
/** Formulas of their rates. @internal */
export const RULES: Readonly<Record<ScheduleType, Rule>> = {{
{"".join(f"  {name}: {json.dumps(cls._rule().as_data())},{chr(10)}" for name, cls in SCHEDULES.items())}}};
""")


def optimizers() -> str:
    """The file of optimizers."""
    return file(f"""/** The optimizers. */
export type OptimizerType ={union(map(json.dumps, OPTIMIZERS))};

{interfaces(OPTIMIZERS)}
/** Parameters that are updated otherwise than most. */
export interface ParameterGroup {{
{members(fields_of(Optimizer.group), parameter_docs(Optimizer.group))}
}}

interface InGroups<Fields> {{
  /** Parameters with their own settings. A parameter belongs to the first group that names it. */
  readonly groups?: readonly (ParameterGroup & Fields)[];
  /** False turns off weight decay for parameters with fewer than two axes: biases, scales of norms. Default true. */
  readonly decayBiasesAndNorms?: boolean;
}}

/** An optimizer with its settings. */
export type OptimizerSettings ={choices(OPTIMIZERS, "{}Fields & InGroups<{}Fields>")};

{tables("OPTIMIZERS", "OptimizerType", OPTIMIZERS)}
{INTERNAL}{table("export const GROUP: Settings = ", fields_of(Optimizer.group))};
""")


def rule_optimizers() -> str:
    """The stub that tells type checkers and editors the optimizers which `onnxblock/optim.py` makes of rules."""
    hints = {name: inspect.get_annotations(rule) for name, rule in RULES.items()}
    used = {str(hints[name][key]) for name, rule in RULES.items() for key in rule.settings}
    kinds = sorted(set(re.findall(r"\b[A-Z]\w+", " ".join(used))) - {"Annotated"})
    parts = [
        '"""Made by scripts/session_description.py of ops/optim/rules.py: edit that."""',
        "from typing import Annotated\n\nfrom trainweb.onnxblock.blocks import Block\n"
        f"from trainweb.onnxblock.optim import Optimizer\nfrom trainweb.settings import {', '.join(kinds)}",
    ]
    for name, rule in RULES.items():
        settings = [f"{key}: {hints[name][key]} = {field.default!r}" for key, field in rule.settings.items()]
        arguments = "".join(f"        {each},\n" for each in ("self", *settings, "clip_grad: Block | None = None"))
        doc = inspect.cleandoc(OPTIMIZERS[name].__doc__ or "").replace("\n", "\n    ").replace("\n    \n", "\n\n")
        parts.append(
            f'class {name}(Optimizer):\n    """{doc}\n    """\n    def __init__(\n{arguments}    ) -> None: ...'
        )
    return "\n\n".join(parts) + "\n"


def config() -> str:
    """The file of what stands beside optimizer and loss."""
    return file(f"""{interface("Ema", ExponentialMovingAverage)}
/** Settings of low-rank adapters, as of `trainweb.lora.inject` in Python. */
export interface LoraFields {{
{members(LORA, LORA_DOCS)}
}}

/** Settings of a new last layer. */
export interface HeadFields {{
{members(HEAD, HEAD_DOCS)}
}}

/** An input of weights. */
export interface SampleWeightFields {{
{members(SAMPLE_WEIGHT, SAMPLE_WEIGHT_DOCS)}
}}

{INTERNAL}{table("export const SAMPLE_WEIGHT: Settings = ", SAMPLE_WEIGHT)};

/** The plain settings for training artifacts. */
export interface ConfigFields {{
{members(CONFIG, CONFIG_DOCS)}
}}

{INTERNAL}{table("export const CONFIG: Settings = ", CONFIG)};

{INTERNAL}{table("export const LORA: Settings = ", LORA)};

{INTERNAL}{table("export const HEAD: Settings = ", HEAD)};

{INTERNAL}{table("export const EMA: Settings = ", EMA)};
""")


def capital(name: str) -> str:
    """A name as one of a type."""
    return name[0].upper() + name[1:]


def fit() -> str:
    """The file of fit's options and metrics."""
    named = {capital(name): cls for name, cls in METRICS.items()}
    settings = union(f"Of<{json.dumps(n)}, {capital(n)}Fields>" for n in METRICS)
    of_loss = {n: make_metric(n).formula() for n, cls in METRICS.items() if not cls.reads_outputs}
    better = "".join(f"  {n}: {json.dumps(cls.better)},\n" for n, cls in METRICS.items())
    return file(f"""/** The plain options of fit. */
export interface FitFields {{
{members(FIT, FIT_DOCS)}
}}

/** Options of `findLearningRate`. */
export interface FindRateFields {{
{members(FIND_RATE, FIT_DOCS | parameter_docs(SessionTasks.find_learning_rate))}
}}

/** Options of `predict` and `evaluate`. */
export interface BatchFields {{
{members(BATCHES, FIT_DOCS | {"ema": "Use averages of the parameters, which the session must keep."})}
}}

/** Settings of a checkpoint besides its store and name. */
export interface CheckpointFields {{
{members(CHECKPOINT, CHECKPOINT_DOCS)}
}}

/** How batches make an optimizer step. */
export interface AccumulateFields {{
{members(ACCUMULATE, ACCUMULATE_DOCS)}
}}

{interface("EarlyStopping", EarlyStopping)}
/** The metrics. */
export type MetricType ={union(map(json.dumps, METRICS))};

{interfaces(named)}
/** A metric with its settings. */
export type MetricSettings ={settings};

{INTERNAL}{table("export const FIT: Settings = ", FIT)};

{INTERNAL}{table("export const EARLY_STOPPING: Settings = ", EARLY_STOPPING)};

/** When it ends a fit. @internal */
export const EARLY_STOPPING_RULE: Rule = {json.dumps(EarlyStopping.rule.as_data())};

{INTERNAL}{table("export const FIND_RATE: Settings = ", FIND_RATE)};

{INTERNAL}{table("export const BATCHES: Settings = ", BATCHES)};

{INTERNAL}{table("export const CHECKPOINT: Settings = ", CHECKPOINT)};

{INTERNAL}{table("export const ACCUMULATE: Settings = ", ACCUMULATE)};

{tables("METRICS", "MetricType", METRICS)}
/** Which value of a metric is better; null: it is not a number. @internal */
export const BETTER: Readonly<Record<MetricType, "min" | "max" | null>> = {{
{better}}};

/** How metrics follow that go by the loss alone. @internal */
export const OF_LOSS: Readonly<Partial<Record<MetricType, Formula>>> = {json.dumps(of_loss)};

{INTERNAL}export const DEFAULT_BATCH = {DEFAULT_BATCH};
""")


def generation() -> str:
    """The file of the options of generate."""
    return file(f"""/** The plain options of `generate`. */
export interface GenerateFields {{
{members(GENERATE, parameter_docs(SessionTasks.generate))}
}}

{INTERNAL}{table("export const GENERATE: Settings = ", GENERATE)};

{INTERNAL}export const SAMPLED = {json.dumps({camel_case(name): value for name, value in SAMPLED.items()})};

{INTERNAL}export const NEUTRAL: Readonly<Record<string, unknown>> = {json.dumps(NEUTRAL)};
""")


def federated() -> str:
    """The file of federated clients."""
    return file(f"""/** The options of a federated client. */
export interface FederatedFields {{
{members(FEDERATED, parameter_docs(FederatedClient))}
}}

{INTERNAL}{table("export const FEDERATED: Settings = ", FEDERATED)};
""")


def images() -> str:
    """The file of images."""
    return file(f"""/** The plain options of the conversion of an image to a tensor. */
export interface ImageFields {{
{members(IMAGE, IMAGE_DOCS)}
}}

/** Random changes, each up to so much either way. */
export interface Augmentation {{
{members(AUGMENTATION, IMAGE_DOCS)}
}}

{INTERNAL}{table("export const IMAGE_OPTIONS: Readonly<Record<keyof ImageFields, Setting>> = ", IMAGE)};

{INTERNAL}{table("export const AUGMENTATION: Settings = ", AUGMENTATION)};
""")


def inert() -> str:
    """The file inert.ts: options of onnxruntime-web that change nothing, and entries of its configuration."""
    options = {o.page: {"asIs": list(o.page_as_is), "why": o.why} for o in INERT.values() if o.page}
    refused = {key: {"value": value, "why": why} for key, (value, why) in ENTRIES_REFUSED.items()}

    def rows(table: Mapping[str, Any]) -> str:
        return "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in table.items())

    return f"""{MADE}

/** Values that describe what is done anyway, and why others change nothing. */
export const INERT = {{
{rows(options)}}} as const;

/** Entries that describe what is done anyway. */
export const ENTRIES_AS_IS: readonly (readonly string[])[] = {json.dumps([list(entry) for entry in ENTRIES_AS_IS])};

/** Entries that would change numbers, or promise what is not done. */
export const ENTRIES_REFUSED: Readonly<Record<string, {{ readonly value: string; readonly why: string }}>> = {{
{rows(refused)}}};

export const MODEL_FORMAT = {json.dumps(MODEL_FORMAT)};
export const MODEL_FORMATS: readonly string[] = {json.dumps(MODEL_FORMATS)};
export const OTHER_BACKENDS = {json.dumps(OTHER_BACKENDS)};
export const DEVICE_CHOOSES = {json.dumps(DEVICE_CHOOSES)};
"""


FILES = {
    "values": values,
    "inert": inert,
    "losses": losses,
    "schedules": schedules,
    "optimizers": optimizers,
    "config": config,
    "fit": fit,
    "federated": federated,
    "generate": generation,
    "images": images,
}
"""In web/src/page/settings."""
