"""Read `kernels.def`: constants, enumerations, layouts, aliases and kernels. Its head comment explains the grammar."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

POINTER_TYPES = {
    "f32": ("float", 4),
    "f64": ("double", 8),
    "i32": ("int32_t", 4),
    "i64": ("int64_t", 8),
    "u8": ("uint8_t", 1),
}
"""C type and bytes of an element."""
SCALAR_TYPES = {"i32": "int32_t", "s32": "int32_t", "f32": "float"}
POINTER_KINDS = ("in", "out", "inout", "scratch")
WORD_TYPES = {"u32": 1, "i32": 1, "f32": 1, "u64": 2, "i64": 2, "f64": 2}
"""Types of the fields of a layout, and their words."""
FUNCTIONS = {"max": 2, "min": 2, "ceil4": 1, "prod": 1, "reach_up": 2, "reach_down": 2}
"""What expressions may call, and how many arguments it takes."""
EPILOGUES = {
    "relu": ("activation",),
    "factor": ("alpha",),
    "bias": ("bias", "beta", "bias_row", "bias_col"),
}
"""What may be folded into a kernel, and the arguments that say so."""
ACCUMULATE = "accumulate"
CLAUSES = ("where", "pays", "flops", "epilogue", "updates", "fails", "apart", "part")


class DefinitionError(Exception):
    """`kernels.def` breaks its grammar."""


@dataclass(frozen=True)
class Expression:
    """`source` as it is written, in Python; `text` without constants and aliases."""

    source: str = ""
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass
class Arg:
    """One argument of a kernel; `words` is how many words of the plan it takes."""

    name: str
    kind: str
    type: str = ""
    extent: Expression = Expression()
    optional: bool = False
    words: int = 1
    read_if: str = ""
    """Of an `inout`: the argument that says whether what it holds is read (empty: always)."""

    @property
    def is_pointer(self) -> bool:
        """True if the argument is a buffer."""
        return self.kind in POINTER_KINDS


@dataclass
class Kernel:
    """One kernel: its arguments, conditions and facts."""

    name: str
    doc: str
    args: list[Arg]
    where: Expression = Expression()
    pays: Expression = Expression()
    flops: Expression = Expression()
    result: str = ""
    """What goes through the epilogue."""
    epilogue: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def arg(self, name: str) -> Arg:
        """The argument called `name`."""
        for arg in self.args:
            if arg.name == name:
                return arg
        raise DefinitionError(f"{self.name}: {name!r} is no argument")

    @property
    def accumulated(self) -> tuple[str, ...]:
        """The results that are added to where the argument `accumulate` says so."""
        return tuple(arg.name for arg in self.args if arg.read_if)

    def signature(self) -> object:
        """Return the parts of the declaration that a plan relies on."""
        args = [(a.name, a.kind, a.type, a.extent.text, a.optional, a.words, a.read_if) for a in self.args]
        return self.name, args, self.where.text, self.apart


@dataclass
class Constant:
    """A number for C and expressions; one that is shared, for Python, too."""

    name: str
    doc: str
    value: int
    is_shared: bool


@dataclass
class Enumeration:
    """Names of numbers."""

    name: str
    doc: str
    members: dict[str, int]


@dataclass
class Layout:
    """Words one after the other: (name, type, first word) of each field."""

    name: str
    doc: str
    fields: list[tuple[str, str, int]]

    @property
    def words(self) -> int:
        """The number of words."""
        return sum(WORD_TYPES[type_] for _, type_, _ in self.fields)

    def constants(self) -> Iterator[tuple[str, int]]:
        """The name and the place of each field, and the number of words; fields called _ are reserved."""
        for name, _, at in self.fields:
            if name != "_":
                yield f"{self.name}_{name}".upper(), at
        yield f"{self.name}_WORDS".upper(), self.words


@dataclass
class Alias:
    """An expression with parameters; of an array, [] follows the name."""

    name: str
    doc: str
    params: list[str]
    body: Expression
    is_shared: bool = False

    def arrays(self) -> list[bool]:
        """Which parameters are arrays."""
        return [param.endswith("[]") for param in self.params]

    def names(self) -> list[str]:
        """The parameters."""
        return [param.removesuffix("[]") for param in self.params]


@dataclass
class Definition:
    """All of `kernels.def`."""

    constants: list[Constant] = field(default_factory=list)
    enumerations: list[Enumeration] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    aliases: dict[str, Alias] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    for_page: set[str] = field(default_factory=set)
    """Names of the constants, enumerations and layouts that TypeScript uses."""
    floats: dict[str, list[str]] = field(default_factory=dict)
    """Numbers by their name, as float32 literals of C and of WGSL."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Values of all names that expressions may use besides arguments."""

    def constant(self, name: str) -> int:
        """The value of a name in capitals."""
        if name not in self.numbers:
            raise DefinitionError(f"there is no constant {name}")
        return self.numbers[name]

    def enumeration(self, name: str) -> dict[str, int]:
        """The members of an enumeration that the generator itself needs."""
        for enumeration in self.enumerations:
            if enumeration.name == name:
                return enumeration.members
        raise DefinitionError(f"there is no enumeration {name}")

    def fingerprint(self) -> int:
        """32 bits that change with what a plan relies on: kernels in order, layouts, enumerations, shared constants.

        Not with what only the compiler reads: `pays`, `flops` and the other facts; a plan runs as well without them.
        """
        meaning = [
            [kernel.signature() for kernel in self.kernels],
            [(layout.name, layout.fields) for layout in self.layouts],
            [(enumeration.name, enumeration.members) for enumeration in self.enumerations],
            [(c.name, c.value) for c in self.constants if c.is_shared],
        ]
        return int.from_bytes(hashlib.sha256(repr(meaning).encode()).digest()[:4], "little")

    # Reading.

    def add_number(self, name: str, value: int) -> None:
        """Let expressions use `name`."""
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise DefinitionError(f"{name!r} must be in capitals: arguments are not")
        if name in self.numbers:
            raise DefinitionError(f"{name} is defined twice")
        self.numbers[name] = value

    def expression(self, text: str, owner: str) -> Expression:
        """Read an expression; names of arguments are not checked here."""
        source = re.sub(r"\s*/+\s*", " // ", re.sub(r"\s*&&\s*", " and ", text))
        try:
            tree = ast.parse(source, mode="eval").body
        except SyntaxError as e:
            raise DefinitionError(f"{owner}: cannot read {text!r}") from e
        numbers = {name: ast.Constant(value) for name, value in self.numbers.items()}
        numbered = _Substitution(numbers).visit(deepcopy(tree))
        expanded = _Aliases(self.aliases, owner).visit(deepcopy(numbered))
        return Expression(ast.unparse(numbered), ast.unparse(expanded))


class _Aliases(ast.NodeTransformer):
    def __init__(self, aliases: dict[str, Alias], owner: str) -> None:
        self.aliases, self.owner = aliases, owner

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        alias = self.aliases.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if alias is None:
            return node
        if len(node.args) != len(alias.params):
            raise DefinitionError(f"{self.owner}: {alias.name} takes {len(alias.params)} arguments")
        for arg, is_array in zip(node.args, alias.arrays(), strict=True):
            if is_array and not isinstance(arg, ast.Name):
                raise DefinitionError(f"{self.owner}: {alias.name} takes an array where {ast.unparse(arg)} stands")
        body: ast.expr = ast.parse(alias.body.text, mode="eval").body
        return _Substitution(dict(zip(alias.names(), node.args, strict=True))).visit(body)


class _Substitution(ast.NodeTransformer):
    """Expressions in the place of names."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self.values.get(node.id, node))


@dataclass
class Entry:
    """An entry on one line and the comment right above it."""

    text: str
    doc: str


def logical_lines(text: str) -> list[Entry]:
    """The entries."""
    entries: list[Entry] = []
    comment: list[str] = []
    for full in text.splitlines():
        line = full.split("//")[0].rstrip()
        if not line:
            comment = [*comment, full.removeprefix("//").strip()] if full.startswith("//") else []
        elif line[0].isspace():
            if not entries:
                raise DefinitionError(f"continuation without an entry: {line!r}")
            entries[-1].text += " " + line.strip()
        else:
            entries.append(Entry(line, " ".join(comment)))
            comment = []
    for entry in entries:
        entry.text = re.sub(r"\s+", " ", entry.text)
    return entries


def split_args(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def split_head(entry: str) -> tuple[str, list[str], str]:
    """`name(parts) rest` of an entry."""
    match = re.match(r"(\w+) ?\(", entry)
    if not match:
        raise DefinitionError(f"cannot read {entry!r}")
    depth, end = 1, match.end()
    while depth:
        if end == len(entry):
            raise DefinitionError(f"{match[1]}: missing )")
        depth += (entry[end] == "(") - (entry[end] == ")")
        end += 1
    return match[1], split_args(entry[match.end() : end - 1]), entry[end:].strip()


def parse(text: str) -> Definition:
    """Everything in order; kernels get the opcodes from 1 on."""
    definition = Definition()
    readers: dict[str, Callable[[Definition, str, str], None]] = {
        "const": read_constant,
        "shared": read_shared,
        "enum": read_enumeration,
        "layout": read_layout,
        "let": read_alias,
        "page": read_page,
        "floats": read_floats,
    }
    for entry in logical_lines(text):
        keyword, _, rest = entry.text.partition(" ")
        if keyword in readers:
            readers[keyword](definition, rest, entry.doc)
        else:
            read_kernel(definition, entry)
    return definition


def read_shared(definition: Definition, text: str, doc: str) -> None:
    """`shared NAME = value` or `shared name(a, b[]) = expression`."""
    read = read_alias if re.match(r"\w+ ?\(", text) else read_constant
    read(definition, text, doc, is_shared=True)


def read_constant(definition: Definition, text: str, doc: str, *, is_shared: bool = False) -> None:
    """`const NAME = value`, an expression of constants."""
    name, equals, value = text.partition(" = ")
    if not equals:
        raise DefinitionError(f"const {text}: = expected")
    tree = ast.parse(definition.expression(value, name).text, mode="eval").body
    if not all(isinstance(n, (ast.Constant, ast.BinOp, ast.operator)) for n in ast.walk(tree)):
        raise DefinitionError(f"const {name}: {value} is no number")
    number = eval(compile(ast.Expression(tree), name, "eval"))
    definition.add_number(name, number)
    definition.constants.append(Constant(name, doc, number, is_shared))


def read_floats(definition: Definition, text: str, doc: str) -> None:
    """`floats NAME = a, b, ...`."""
    name, _, numbers = text.partition(" = ")
    parts = split_args(numbers)
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not all(re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", p) for p in parts):
        raise DefinitionError(f"floats {text}: NAME = numbers with a point expected")
    definition.floats[name] = [f"{part}f" for part in parts]


def read_enumeration(definition: Definition, text: str, doc: str) -> None:
    """`enum name(A, B, C = 7, ...)`."""
    name, parts, rest = split_head(text)
    members: dict[str, int] = {}
    following = 0
    for part in parts:
        member, _, value = part.partition(" = ")
        members[member] = int(value, 0) if value else following
        following = members[member] + 1
        definition.add_number(member, members[member])
    if rest or len(set(members.values())) != len(members):
        raise DefinitionError(f"enum {name}: cannot read {text!r}")
    definition.enumerations.append(Enumeration(name, doc, members))


def read_layout(definition: Definition, text: str, doc: str) -> None:
    """`layout name(type field, ...)`."""
    name, parts, rest = split_head(text)
    fields: list[tuple[str, str, int]] = []
    at = 0
    for part in parts:
        type_, _, field_name = part.partition(" ")
        if type_ not in WORD_TYPES or not re.fullmatch(r"\w+", field_name):
            raise DefinitionError(f"layout {name}: cannot read {part!r}")
        fields.append((field_name, type_, at))
        at += WORD_TYPES[type_]
    if rest:
        raise DefinitionError(f"layout {name}: cannot read {rest!r}")
    layout = Layout(name, doc, fields)
    for constant, value in layout.constants():
        definition.add_number(constant, value)
    definition.layouts.append(layout)


def read_alias(definition: Definition, text: str, doc: str, *, is_shared: bool = False) -> None:
    """`let name(a, b[]) = expression`."""
    name, params, rest = split_head(text)
    if not rest.startswith("= "):
        raise DefinitionError(f"let {name}: = expected")
    if name in definition.aliases or name in FUNCTIONS:
        raise DefinitionError(f"{name} is defined twice")
    alias = Alias(name, doc, params, definition.expression(rest[2:], name), is_shared)
    used = {n.id for n in ast.walk(ast.parse(alias.body.text)) if isinstance(n, ast.Name)}
    if used - {*alias.names(), *FUNCTIONS}:
        raise DefinitionError(f"let {name}: {', '.join(sorted(used - {*alias.names(), *FUNCTIONS}))} is no parameter")
    definition.aliases[name] = alias


def read_page(definition: Definition, text: str, doc: str) -> None:
    """`page name, name, ...`: constants, enumerations and layouts above it."""
    names = set(split_args(text))
    known = {c.name for c in definition.constants if c.is_shared}
    known |= {e.name for e in definition.enumerations} | {layout.name for layout in definition.layouts}
    if unknown := names - known:
        raise DefinitionError(f"page: above it there is no shared {', '.join(sorted(unknown))}")
    definition.for_page |= names


def read_kernel(definition: Definition, entry: Entry) -> None:
    """`name(arguments) clauses`."""
    name, parts, rest = split_head(entry.text)
    if name == "generated" or any(kernel.name == name for kernel in definition.kernels):
        raise DefinitionError(f"{name} is defined twice")
    kernel = Kernel(name, entry.doc, [read_arg(definition, name, part) for part in parts])
    names = [arg.name for arg in kernel.args]
    if len(set(names)) != len(names):
        raise DefinitionError(f"{name}: an argument name occurs twice")
    for keyword, body in clauses(name, rest):
        read_clause(definition, kernel, keyword, body)
    if kernel.accumulated and (kernel.arg(ACCUMULATE).kind, kernel.arg(ACCUMULATE).words) != ("i32", 1):
        raise DefinitionError(f"{name}: {ACCUMULATE} is no integer")
    definition.kernels.append(kernel)


def read_arg(definition: Definition, kernel: str, text: str) -> Arg:
    """One argument, e.g. `in? f32 bias[n]`, `i32 dims[8]`, `f32 epsilon`."""
    match = re.fullmatch(r"(in|out|inout|scratch|out\|inout\((\w+)\))(\?)? (\w+) (\w+)\[(.+)\]", text)
    if match and match[4] in POINTER_TYPES:
        kind, read_if, optional, type_, name, extent = match.groups()
        if read_if not in (None, ACCUMULATE):
            raise DefinitionError(f"{kernel}: what decides whether {name} is read is called {ACCUMULATE}")
        kind = "inout" if read_if else kind
        return Arg(name, kind, type_, definition.expression(extent, kernel), bool(optional), read_if=read_if or "")
    match = re.fullmatch(r"(i32|s32|f32) (\w+)(?:\[(\w+)\])?", text)
    if match:
        words = match[3] or "1"
        return Arg(match[2], match[1], words=int(words) if words.isdecimal() else definition.constant(words))
    raise DefinitionError(f"{kernel}: cannot read the argument {text!r}")


def clauses(kernel: str, text: str) -> Iterator[tuple[str, str]]:
    """Keyword and body of each clause."""
    if not text:
        return
    starts = list(re.finditer(rf"(?:^|(?<= ))({'|'.join(CLAUSES)})\b", text))
    if not starts or starts[0].start():
        raise DefinitionError(f"{kernel}: cannot read {text!r}")
    keywords = [match[1] for match in starts]
    if len(set(keywords)) != len(keywords):
        raise DefinitionError(f"{kernel}: a clause occurs twice")
    ends = [*(match.start() for match in starts[1:]), len(text)]
    for match, end in zip(starts, ends, strict=True):
        yield match[1], text[match.end() : end].strip()


def read_clause(definition: Definition, kernel: Kernel, keyword: str, body: str) -> None:
    """One clause behind the arguments."""
    if keyword in ("where", "pays", "flops"):
        setattr(kernel, keyword, definition.expression(body, kernel.name))
    elif keyword == "epilogue":
        read_epilogue(kernel, body)
    elif keyword == "part":
        kernel.parts = tuple(split_args(body))
        check_args(kernel, kernel.parts, lambda arg: arg.kind in ("out", "inout"), "a result")
    elif keyword == "updates":
        kernel.updates = tuple(split_args(body))
        check_args(kernel, kernel.updates, lambda arg: arg.kind == "inout" and arg.optional, "inout?")
    elif keyword == "apart":
        kernel.apart = tuple(split_args(body))
        check_args(kernel, kernel.apart, lambda arg: arg.is_pointer, "a pointer")
    else:
        kernel.fails = tuple(split_args(body))
        check_args(kernel, kernel.fails, lambda arg: arg.kind in ("in", "inout"), "read")


def read_epilogue(kernel: Kernel, body: str) -> None:
    """`result: relu, factor, bias`."""
    result, colon, names = body.partition(":")
    kernel.result, kernel.epilogue = result.strip(), tuple(split_args(names))
    if not colon or not kernel.epilogue or not {*kernel.epilogue} <= EPILOGUES.keys():
        raise DefinitionError(f"{kernel.name}: epilogue {body!r} must be `result: {', '.join(EPILOGUES)}`")
    check_args(kernel, [kernel.result], lambda arg: arg.kind in ("out", "inout") and not arg.optional, "a result")
    for name in kernel.epilogue:
        check_args(kernel, EPILOGUES[name], lambda arg: arg.kind in ("in", "i32", "f32"), f"there for {name}")


def check_args(kernel: Kernel, names: Sequence[str], holds: Callable[[Arg], bool], what: str) -> None:
    """Raise unless all of these arguments are what a clause needs."""
    for name in names:
        if not holds(kernel.arg(name)):
            raise DefinitionError(f"{kernel.name}: {name} is not {what}")
