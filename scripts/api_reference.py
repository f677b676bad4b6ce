"""Write the API reference of both languages to docs/api/, as Markdown.

python scripts/api_reference.py

The public names of Python are the names that `dir` of a public module shows; griffe reads their docstrings. TypeDoc
reads the TSDoc of what the npm package exports.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
import typedoc
from api_examples import EXAMPLES, GROUPS
from steps import ROOT, BuildError

OUT = ROOT / "docs" / "api"
SOURCES = ROOT / "py_src"
NEEDS_TORCH = "trainweb.torch"
"""A public module that cannot be imported here; its `__all__` is read instead."""
LINE = 100
OPTIONS: griffe.NumpyOptions = {"warn_unknown_params": False}
"""Of docstrings: what is taken as `**options` is explained by its names."""
INDEX = """---
hide: [navigation, toc]
---

# API: the main calls

Both languages have the same calls, with the same defaults and results: Python in snake_case, JavaScript in camelCase.
The blocks below run one after the other. All public names are in the references of [Python](python/index.md) and of
[JavaScript and TypeScript](javascript/index.md).
"""
IMPORTS = (
    'import {\n  Dataset, example, InferenceSession, Tensor, TrainingSession,\n} from "trainweb";',
    "import io\nimport numpy as np\nimport trainweb",
)
"""Of the blocks in JavaScript, and of those in Python."""
JAVASCRIPT = OUT / "javascript"
SESSION = "TrainingSession"
FIRST = ("Create a session of a model", "Make data of arrays", "Train", "Predict", "Export for inference")
"""Titles of the examples that the session's page begins with."""
INNER_CLASS = "(?:SessionMethods|Opaque)"
"""The generated base of the page's `TrainingSession`, and the one of all objects: neither is a public name."""


def public_modules() -> dict[str, ModuleType]:
    """`trainweb`, and the modules that are public names of public modules, by name."""
    found: dict[str, ModuleType] = {}
    waiting = [import_module("trainweb")]
    while waiting:
        module = waiting.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            waiting += [value for name in dir(module) if inspect.ismodule(value := getattr(module, name))]
    return dict(sorted(found.items()))


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """The members of a session by their groups; names may be spelled as in a page."""
    places = {name: (group, place) for group, text in GROUPS.items() for place, name in enumerate(text.split())}
    spelled = {name: name if name in places else re.sub("(?=[A-Z])", "_", name).lower() for name in names}
    if strangers := [name for name, snake in spelled.items() if snake not in places]:
        raise BuildError(f"GROUPS of scripts/api_examples.py has no {', '.join(strangers)}")
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in sorted(spelled, key=lambda name: places[spelled[name]][1]):
        found[places[spelled[name]][0]].append(name)
    return found


def choices(value: Any) -> list[str]:
    """The members of an enumeration, none of anything else."""
    return [member.name for member in value] if inspect.isclass(value) and issubclass(value, Enum) else []


class Reference:
    """The docstrings of trainweb, read without running it."""

    def __init__(self) -> None:
        loader = griffe.GriffeLoader(
            search_paths=[str(SOURCES)], docstring_parser=griffe.Parser.numpy, docstring_options=OPTIONS
        )
        self._package = loader.load("trainweb")
        loader.resolve_aliases()

    def find(self, path: str) -> griffe.Object:
        """The object of a dotted path, where it is defined."""
        found = self._package[path.removeprefix("trainweb.")] if path != "trainweb" else self._package
        return _target(found)

    def of(self, module: ModuleType, name: str) -> griffe.Object:
        """A public name of a module."""
        value = getattr(module, name)
        home = getattr(value, "__module__", None)
        if home and home.startswith("trainweb") and hasattr(value, "__qualname__"):
            return self.find(f"{home}.{value.__qualname__}")
        return self.find(f"{module.__name__}.{name}")

    def public(self) -> dict[str, list[tuple[str, griffe.Object, list[str]]]]:
        """By public module, its names that are no modules, what they stand for, and the members of enumerations."""
        found = {}
        for path, module in public_modules().items():
            names = [name for name in dir(module) if not inspect.ismodule(getattr(module, name))]
            found[path] = [
                (name, self.of(module, name), choices(getattr(module, name))) for name in names if name != "__version__"
            ]
        torch = self.find(NEEDS_TORCH)
        found[NEEDS_TORCH] = [(str(name), self.find(f"{NEEDS_TORCH}.{name}"), []) for name in torch.exports or ()]
        return found


def members(cls: griffe.Object) -> Iterator[tuple[str, griffe.Object]]:
    """Public methods and properties of a class, inherited ones as well, and its constants that are explained."""
    hidden = getattr(getattr(sys.modules.get(cls.module.path), cls.name, None), "_hidden", ())
    for name, member in cls.all_members.items():
        if name.startswith("_") or name in hidden or member.is_class or (member.is_alias and not _is_ours(member)):
            continue
        target = _target(member)
        if target.is_function or "property" in target.labels or target.docstring:
            yield name, target


def _target(thing: griffe.Object | griffe.Alias) -> griffe.Object:
    return thing.final_target if isinstance(thing, griffe.Alias) else thing


def _is_ours(alias: Any) -> bool:
    try:
        return bool(alias.final_target.path.startswith("trainweb."))
    except griffe.AliasResolutionError:
        return False


def parameters(function: griffe.Object) -> list[griffe.Parameter]:
    """The parameters that callers pass, without `self`; griffe does not know those that a dataclass inherits."""
    found = function.parameters if isinstance(function, (griffe.Function, griffe.Class)) else ()
    known = {parameter.name: parameter for parameter in found if parameter.name not in {"self", "cls"}}
    value = getattr(sys.modules.get(function.module.path), function.name, None)
    if not dataclasses.is_dataclass(value):
        return list(known.values())
    return [known.get(name) or _parameter(each) for name, each in inspect.signature(value).parameters.items()]  # type: ignore[arg-type]


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    default = None if parameter.default is parameter.empty else repr(parameter.default)
    kind = griffe.ParameterKind[parameter.kind.name.lower()]
    return griffe.Parameter(parameter.name, annotation=parameter.annotation, kind=kind, default=default)


def docstring(cls: griffe.Object | None, name: str, thing: griffe.Object) -> griffe.Docstring | None:
    """The docstring of a member, or of the method which it overrides."""
    if thing.docstring or cls is None or not cls.is_class:
        return thing.docstring
    for base in cls.mro():  # type: ignore[attr-defined]
        if name in base.members and base.members[name].docstring:
            return base.members[name].docstring  # type: ignore[no-any-return]
    return None


def signature(name: str, function: griffe.Object) -> str:
    """A call in code, a parameter a line where one line is too long."""
    parts: list[str] = []
    kinds = griffe.ParameterKind
    positional = False
    for parameter in parameters(function):
        if parameter.kind is kinds.keyword_only and "*" not in parts and not any(p.startswith("*") for p in parts):
            parts.append("*")
        if positional and parameter.kind is not kinds.positional_only:
            parts.append("/")
        positional = parameter.kind is kinds.positional_only
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}
        text = (stars.get(parameter.kind, "") if parameter.kind else "") + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and parameter.kind not in stars:
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        parts.append(text)
    returns = getattr(function, "returns", None)
    tail = f" -> {returns}" if returns is not None and function.is_function else ""
    line = f"{name}({', '.join(parts)}){tail}"
    if len(line) <= LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){tail}"])


def prose(text: str) -> str:
    """Text of a docstring as Markdown: RST's double backticks, and names in italics become code."""
    return re.sub(r"``([^`]+)``", r"`\1`", text.strip())


def _item(name: str, kind: Any, text: str) -> str:
    if isinstance(kind, griffe.ExprTuple):
        kind = str(kind)[1:-1]  # "bytes, path or ModelProto" is no tuple
    head = f"**{name}**" if name else ""
    if kind:
        head += f" (`{kind}`)" if head else f"`{kind}`"
    body = prose(text).replace("\n", "\n  ")
    return f"- {head}: {body}" if body else f"- {head}"


def sections(doc: griffe.Docstring | None, level: int) -> Iterator[str]:
    """A docstring as Markdown, section by section."""
    kinds = griffe.DocstringSectionKind
    for section in doc.parsed if doc else ():
        value: Any = section.value
        if section.kind is kinds.text:
            yield prose(value)
        elif section.kind is kinds.examples:
            yield "**Examples**"
            yield from (f"```python\n{text}\n```" if kind is kinds.examples else prose(text) for kind, text in value)
        elif section.kind is kinds.admonition:
            yield f"**{section.title or value.kind.capitalize()}**"
            yield prose(value.description)
        else:
            yield f"**{section.title or section.kind.value.capitalize()}**"
            yield "\n".join(_item(getattr(i, "name", "") or "", i.annotation, i.description) for i in value)


def entry(name: str, thing: griffe.Object, level: int, inside: griffe.Object | None = None) -> Iterator[str]:
    """A public name: heading, signature, docstring, and the members of a class."""
    yield f"{'#' * level} {name}"
    is_session = name == SESSION and thing.path.startswith("trainweb.session.")
    if is_session:
        code = "\n".join(example.python_code.strip() for example in EXAMPLES if example.title in FIRST)
        yield f"```python\n{code}\n```"
    short = name.rpartition(".")[2]
    if isinstance(thing, (griffe.Function, griffe.Class)) and (thing.is_function or thing.parameters):
        yield f"```python\n{signature(short, thing)}\n```"
    elif isinstance(thing, griffe.Attribute) and thing.annotation is not None:
        yield f"```python\n{short}: {thing.annotation}\n```"
    yield from sections(docstring(inside, short, thing), level)
    yield from (
        f"**Example**\n\n```python\n{example.python_code.strip()}\n```"
        for example in EXAMPLES
        if example.python.split()[1] == name
    )
    if thing.is_class:
        inner = dict(members(thing))
        groups = grouped(inner) if is_session else {"": list(inner)}
        for group, names in groups.items():
            yield f"**{group}**" if group else ""
            for member in names:
                yield from entry(f"{short}.{member}", inner[member], level + 1, thing)


def page(path: str, about: griffe.Docstring | None, names: Iterable[tuple[str, griffe.Object, list[str]]]) -> str:
    """The page of a module."""
    parts = [f"# {path}", *sections(about, 1)]
    for name, thing, members_of_enum in names:
        parts += entry(name, thing, 2)
        parts.append(", ".join(f"`{name}.{member}`" for member in members_of_enum))
    return "\n\n".join(part for part in parts if part) + "\n"


def python_pages() -> dict[str, str]:
    """The pages of Python, by file name."""
    reference = Reference()
    pages, rows = {}, []
    for path, names in reference.public().items():
        about = reference.find(path).docstring
        pages[f"{path}.md"] = page(path, about, names)
        summary = prose(about.value).splitlines()[0] if about else ""
        rows.append(f"| [{path}]({path}.md) | {summary} | {', '.join(f'`{name}`' for name, *_ in names)} |")
    head = "# Python\n\n| module | about | names |\n|---|---|---|\n"
    return {"index.md": head + "\n".join(rows) + "\n", **pages}


def _beside(javascript: str, python: str) -> list[str]:
    """Two blocks of code, beside each other where there is room."""
    blocks = (("JavaScript", "ts", javascript), ("Python", "py", python))
    columns = [
        f"<div markdown>\n\n{language}\n\n```{kind}\n{code.strip()}\n```\n\n</div>" for language, kind, code in blocks
    ]
    return ["<div class=both markdown>", *columns, "</div>"]


def both_languages(pages: Mapping[str, str]) -> str:
    """The main calls, in both languages beside each other; `pages` are those of Python."""
    parts = [INDEX.strip(), *_beside(*IMPORTS)]
    for example in EXAMPLES:
        module, name = example.python.split()
        text = pages[f"{module}.md"]
        head = next(line for line in text.splitlines() if re.fullmatch(rf"#+ {re.escape(name)}", line)).lstrip("# ")
        cls, member = example.page.split()
        links = (
            f"[`{head}`](python/{module}.md#{re.sub(r'[^a-z0-9_]', '', head.lower())}) in Python, "
            f"[`{cls}.{member}`](javascript/trainweb/classes/{cls}.md#{member.lower()}) in JavaScript"
        )
        columns = _beside(example.page_code, example.python_code)
        parts += [f"## {example.title}", *columns, f"Reference: {links}."]
    return "\n\n".join(parts) + "\n"


def group_session(path: Path) -> None:
    """Lay the members of a session in groups, behind an example of them all."""
    text = path.read_text().replace("#### Get Signature\n\n", "")
    head, *parts = re.split(r"^### (?=\S+$)", text, flags=re.MULTILINE)
    members = {}
    for part in parts:
        text = re.sub(r"\n\*\*\*\s*$", "\n", re.split(r"^## \w", part, flags=re.MULTILINE)[0].rstrip() + "\n")
        name, _, body = text.partition("\n")
        members[re.sub(r"\W", "", name)] = f"### {name}\n{body.rstrip()}\n"
    code = "\n".join(example.page_code.strip() for example in EXAMPLES if example.title in FIRST)
    text = re.split(r"^## \w", head, flags=re.MULTILINE)[0].rstrip() + f"\n\n```ts\n{code}\n```\n"
    for group, names in grouped(members).items():
        text += f"\n## {group}\n\n" + "\n***\n\n".join(members[name] for name in names)
    path.write_text(text)


def finish_javascript() -> None:
    """Put the examples to their calls, and take out the name of a class that is not public."""
    for path in JAVASCRIPT.rglob("*.md"):
        text = path.read_text()
        text = re.sub(rf"## Extends\n\n- `{INNER_CLASS}`\n\n", "", text)
        text = re.sub(rf"#+ (?:Inherited from|Overrides)\n\n`{INNER_CLASS}\.\w+`\n\n?", "", text)
        path.write_text(re.sub(r"^# \w+(?: \w+)?: (.*)$", r"# \1", text, count=1, flags=re.MULTILINE))
    for example in EXAMPLES:
        cls, member = example.page.split()
        path = JAVASCRIPT / "trainweb" / "classes" / f"{cls}.md"
        heading = "### Constructor\n" if member == "constructor" else f"### {member}()\n"
        before, found, after = path.read_text().partition(f"\n{heading}")
        if not found:
            raise BuildError(f"{path} has no heading {heading!r}")
        at = min(k for k in (after.find("\n#### "), after.find("\n***\n"), len(after)) if k >= 0)
        block = f"\n**Example**\n\n```ts\n{example.page_code.strip()}\n```\n"
        path.write_text(before + found + after[:at] + block + after[at:])
    group_session(JAVASCRIPT / "trainweb" / "classes" / f"{SESSION}.md")


def main() -> int:
    """Write everything anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "python").mkdir(parents=True)
    pages = python_pages()
    (OUT / "index.md").write_text(both_languages(pages))
    for name, text in pages.items():
        (OUT / "python" / name).write_text(text)
    try:
        warnings = typedoc.run_typedoc(JAVASCRIPT)
        finish_javascript()
    except BuildError as error:
        warnings = [str(error)]
    print("\n".join(warnings), file=sys.stderr, end="\n" if warnings else "")
    return bool(warnings)


if __name__ == "__main__":
    sys.exit(main())
