"""Turn `kernels.def` into `kernels_gen.h`: argument structs, prototypes, dispatch table, verifier, description.

The grammar is in docs/architecture.md, section 3. An entry starts in the first column; indented lines continue it.
Expressions may use integer arguments (`n`, `dims[2]`), numbers, `+ - * /` (`/` rounds down), parentheses, comparisons
(1 or 0), `&&` (in `where`), and the functions
`max min ceil4 prod(dims) reach_up(dims, strides) reach_down(dims, strides)`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

POINTER_TYPES = {
    "f32": ("float", 4),
    "f64": ("double", 8),
    "i32": ("int32_t", 4),
    "i64": ("int64_t", 8),
    "u8": ("uint8_t", 1),
}
SCALAR_TYPES = {"i32": "int32_t", "s32": "int32_t", "f32": "float"}
POINTER_KINDS = ("in", "out", "inout", "scratch")
SCALAR_FUNCTIONS = {"max": 2, "min": 2, "ceil4": 1}
ARRAY_FUNCTIONS = {"prod": 1, "reach_up": 2, "reach_down": 2}
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
COMPARISONS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}

THREAD_SCRATCH_BYTES = 1 << 20
"""Private workspace of each thread; GEMM packs its panels there."""

STATUS = {
    "TW_OK": 0,
    "TW_BAD_PLAN": 1,  # magic, version or fingerprint
    "TW_BAD_HEADER": 2,  # counts that do not fit the block
    "TW_BAD_SEGMENT": 3,  # outside allocated memory, or over the plan itself
    "TW_BAD_BUFFER": 4,  # outside its segment
    "TW_BAD_OPCODE": 5,
    "TW_BAD_ARGUMENT": 6,  # number of arguments, negative size, null where a buffer is needed, misaligned
    "TW_BAD_EXTENT": 7,  # buffer smaller than what the kernel touches
    "TW_BAD_CONDITION": 8,  # a `where` of kernels.def
    "TW_READ_ONLY": 9,  # output in a segment that must not be written
    "TW_BAD_FUNCTION": 10,  # generated function that was not loaded
    "TW_BAD_POINTER": 11,  # not the start of an allocated block
    "TW_BAD_INDEX": 20,
    "TW_BAD_LABEL": 21,
    "TW_BAD_VALUE": 22,
    "TW_TRAPPED": 30,  # a worker thread trapped
}


CALLS = Path("py_src/trainweb/ir/calls.py")


class DefinitionError(Exception):
    """`kernels.def` breaks its grammar."""


@dataclass
class Arg:
    """One argument of a kernel; `words` is how many words of the plan it takes."""

    name: str
    kind: str
    type: str = ""
    extent: str = ""
    optional: bool = False
    words: int = 1
    read_if: str = ""
    """Of an `inout`: the argument that says whether what it holds is read (empty: always)."""

    @property
    def is_pointer(self) -> bool:
        """Whether it is a buffer."""
        return self.kind in POINTER_KINDS


@dataclass
class Kernel:
    """One entry of `kernels.def`."""

    name: str
    args: list[Arg] = field(default_factory=list)
    where: str = ""
    doc: tuple[str, ...] = field(default=(), repr=False)
    """The lines of the comment above it."""

    def arg(self, name: str) -> Arg:
        """The argument called `name`."""
        for arg in self.args:
            if arg.name == name:
                return arg
        raise DefinitionError(f"{self.name}: {name!r} is no argument")


def logical_lines(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Entries, each on one line, and the lines of the comment right above them."""
    entries: list[tuple[str, tuple[str, ...]]] = []
    comment: list[str] = []
    for full in text.splitlines():
        line = full.split("//")[0].rstrip()
        if not line:
            is_comment = full.startswith("//") and not full.startswith("// ----")
            comment = [*comment, full.removeprefix("//").strip()] if is_comment else []
        elif line[0].isspace():
            if not entries:
                raise DefinitionError(f"continuation without an entry: {line!r}")
            entries[-1] = (entries[-1][0] + " " + line.strip(), entries[-1][1])
        else:
            entries.append((line, tuple(comment)))
            comment = []
    return [(re.sub(r"\s+", " ", entry), doc) for entry, doc in entries]


def split_args(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def parse_arg(text: str) -> Arg:
    """One argument, e.g. `in? f32 bias[n]`, `i32 dims[8]`, `f32 epsilon`."""
    match = re.fullmatch(r"(in|out|inout|scratch|out\|inout\((\w+)\))(\?)? (f32|f64|i32|i64|u8) (\w+)\[(.+)\]", text)
    if match:
        kind, read_if, optional, type_, name, extent = match.groups()
        kind = "inout" if read_if else kind
        return Arg(name, kind, type_, to_python(extent), bool(optional), read_if=read_if or "")
    match = re.fullmatch(r"(i32|s32|f32) (\w+)(?:\[(\d+)\])?", text)
    if match:
        return Arg(match[2], match[1], words=int(match[3] or 1))
    raise DefinitionError(f"cannot read the argument {text!r}")


def to_python(expression: str) -> str:
    """The expression as Python reads it; this form goes into the description."""
    return re.sub(r"\s*/+\s*", " // ", re.sub(r"\s*&&\s*", " and ", expression))


def parse_kernel(entry: str, doc: tuple[str, ...] = ()) -> Kernel:
    """One logical line."""
    match = re.match(r"(\w+) ?\(", entry)
    if not match:
        raise DefinitionError(f"cannot read {entry!r}")
    depth, end = 1, match.end()
    while depth:
        if end == len(entry):
            raise DefinitionError(f"{match[1]}: missing )")
        depth += (entry[end] == "(") - (entry[end] == ")")
        end += 1
    rest = entry[end:].strip()
    if rest and not rest.startswith("where "):
        raise DefinitionError(f"{match[1]}: cannot read {rest!r}")
    kernel = Kernel(
        match[1],
        [parse_arg(a) for a in split_args(entry[match.end() : end - 1])],
        to_python(rest[6:]),
        doc,
    )
    names = [arg.name for arg in kernel.args]
    if len(set(names)) != len(names):
        raise DefinitionError(f"{kernel.name}: an argument name occurs twice")
    for arg in kernel.args:
        if arg.read_if and (kernel.arg(arg.read_if).kind != "i32" or kernel.arg(arg.read_if).words != 1):
            raise DefinitionError(f"{kernel.name}: {arg.read_if} is no integer argument")
    return kernel


def parse(text: str) -> list[Kernel]:
    """All kernels in order; opcode 0 is not among them."""
    kernels = [parse_kernel(entry, doc) for entry, doc in logical_lines(text)]
    names = [kernel.name for kernel in kernels]
    for name in names:
        if names.count(name) > 1 or name == "generated":
            raise DefinitionError(f"{name} is defined twice")
    return kernels


def to_c(kernel: Kernel, expression: str) -> str:
    """The expression in C, over doubles, on the argument struct `a`."""

    def array(node: ast.expr) -> tuple[str, int]:
        if not isinstance(node, ast.Name):
            raise DefinitionError(f"{kernel.name}: array argument expected in {expression!r}")
        arg = kernel.arg(node.id)
        return f"a->{arg.name}", arg.words

    def call(node: ast.Call) -> str:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in SCALAR_FUNCTIONS and len(node.args) == SCALAR_FUNCTIONS[name]:
            return f"tw_{name}({', '.join(visit(x) for x in node.args)})"
        if name in ARRAY_FUNCTIONS and len(node.args) == ARRAY_FUNCTIONS[name]:
            arrays = [array(x) for x in node.args]
            if len({words for _, words in arrays}) != 1:
                raise DefinitionError(f"{kernel.name}: arrays of different lengths in {expression!r}")
            return f"tw_{name}({', '.join(text for text, _ in arrays)}, {arrays[0][1]})"
        raise DefinitionError(f"{kernel.name}: unknown function in {expression!r}")

    def visit(node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return f"{node.value}.0"
        if isinstance(node, ast.Name):
            arg = kernel.arg(node.id)
            if arg.kind not in ("i32", "s32") or arg.words != 1:
                raise DefinitionError(f"{kernel.name}: {node.id} is no integer")
            return f"(double)a->{node.id}"
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            text, words = array(node.value)
            if not 0 <= node.slice.value < words:
                raise DefinitionError(f"{kernel.name}: {text}[{node.slice.value}] is outside the array")
            return f"(double){text}[{node.slice.value}]"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            return f"tw_div({visit(node.left)}, {visit(node.right)})"
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return f"({visit(node.left)} {OPERATORS[type(node.op)]} {visit(node.right)})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"(-{visit(node.operand)})"
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = visit(node.left), visit(node.comparators[0])
            return f"(double)({left} {COMPARISONS[type(node.ops[0])]} {right})"
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return "(double)(" + " && ".join(f"({visit(v)} != 0)" for v in node.values) + ")"
        if isinstance(node, ast.Call):
            return call(node)
        raise DefinitionError(f"{kernel.name}: {ast.unparse(node)!r} is not allowed in an expression")

    try:
        return visit(ast.parse(expression, mode="eval").body)
    except SyntaxError as e:
        raise DefinitionError(f"{kernel.name}: cannot read {expression!r}") from e


def emit_struct(kernel: Kernel) -> str:
    """The argument struct; one word per field, in plan order."""
    lines = [f"typedef struct {kernel.name}_args {{"]
    for arg in kernel.args:
        if arg.kind in POINTER_KINDS:
            const = "const " if arg.kind == "in" else ""
            lines.append(f"    {const}{POINTER_TYPES[arg.type][0]} *{arg.name};")
        else:
            lines.append(f"    {SCALAR_TYPES[arg.kind]} {arg.name}{f'[{arg.words}]' if arg.words > 1 else ''};")
    words = sum(arg.words for arg in kernel.args)
    lines.append(f"}} {kernel.name}_args;")
    lines.append(f'_Static_assert(sizeof({kernel.name}_args) == {4 * words}, "{kernel.name}: one word per field");')
    lines.append(f"int32_t kernel_{kernel.name}(const {kernel.name}_args *a);\n")
    return "\n".join(lines)


def emit_check(kernel: Kernel) -> str:
    """The verifier of one instruction: signs, conditions, then every buffer.

    `relocated` holds a copy of the words already; buffers are replaced by addresses.
    """
    lines = [
        f"static int32_t check_{kernel.name}(const tw_binder *binder, const uint32_t *words, uint32_t *relocated) {{",
        f"    const {kernel.name}_args *a = (const {kernel.name}_args *)words;",
        "    int32_t status = TW_OK;",
    ]
    for start, count in sign_runs(kernel):
        lines.append(f"    if ((status = tw_check_sign(words + {start}, {count}))) return status;")
    if kernel.where:
        lines.append(f"    if (!({to_c(kernel, kernel.where)})) return TW_BAD_CONDITION;")
    lines.append("    (void)a;")
    word = 0
    for arg in kernel.args:
        if arg.kind in POINTER_KINDS:
            flags = "TW_WRITES" if arg.kind != "in" else "0"
            if arg.optional:
                flags += " | TW_NULLABLE"
            lines.append(
                f"    if ((status = tw_bind(binder, words[{word}], {to_c(kernel, arg.extent)}, "
                f"{POINTER_TYPES[arg.type][1]}, {flags}, relocated + {word}))) return status;"
            )
        word += arg.words
    return "\n".join([*lines, "    return TW_OK;", "}\n"])


def sign_runs(kernel: Kernel) -> list[tuple[int, int]]:
    """First word and length of each run of arguments that must not be negative."""
    runs: list[tuple[int, int]] = []
    word = 0
    for arg in kernel.args:
        if arg.kind == "i32":
            if runs and sum(runs[-1]) == word:
                runs[-1] = (runs[-1][0], runs[-1][1] + arg.words)
            else:
                runs.append((word, arg.words))
        word += arg.words
    return runs


def fingerprint(kernels: list[Kernel]) -> int:
    """32 bits that change whenever an argument, an extent or an opcode does."""
    return int.from_bytes(hashlib.sha256(repr(kernels).encode()).digest()[:4], "little")


def describe_arg(arg: Arg) -> dict[str, object]:
    """An argument, without the fields that do not concern it."""
    described: dict[str, object] = {"name": arg.name, "kind": arg.kind, "count": arg.words}
    if arg.type:
        described |= {"type": arg.type, "extent": arg.extent}
    if arg.optional:
        described["optional"] = True
    if arg.read_if:
        described["read_if"] = arg.read_if
    return described


def describe(kernels: list[Kernel]) -> str:
    """JSON that the module exports."""
    described = {
        "fingerprint": fingerprint(kernels),
        "thread_scratch_bytes": THREAD_SCRATCH_BYTES,
        "status": STATUS,
        "kernels": [
            {
                "name": k.name,
                "opcode": opcode,
                "where": k.where,
                "args": [describe_arg(arg) for arg in k.args],
            }
            for opcode, k in enumerate(kernels, 1)
        ],
    }
    return json.dumps(described, separators=(",", ":"))


def emit_header(kernels: list[Kernel]) -> str:
    """What kernel sources see: statuses, structs and prototypes."""
    lines = [
        "/* Generated from kernels.def by generate.py. */",
        "#ifndef KERNELS_GEN_H",
        "#define KERNELS_GEN_H",
        "#include <stdint.h>",
        "",
        f"#define TW_FINGERPRINT {fingerprint(kernels)}u",
        f"#define THREAD_SCRATCH_BYTES {THREAD_SCRATCH_BYTES}",
        f"#define TW_N_OPCODES {len(kernels) + 1}",
        "",
        "enum {" + ", ".join(f"{name} = {code}" for name, code in STATUS.items()) + "};",
        "",
    ]
    lines += [emit_struct(kernel) for kernel in kernels]
    return "\n".join([*lines, "#endif", ""])


def emit_tables(kernels: list[Kernel]) -> str:
    """What the executor includes: verifiers, the dispatch table and the description."""
    lines = ["/* Generated from kernels.def by generate.py; included by executor.c alone. */"]
    lines += [emit_check(kernel) for kernel in kernels]
    lines += ["static const tw_entry tw_table[TW_N_OPCODES] = {", "    {0, 0, 0},"]
    for kernel in kernels:
        words = sum(arg.words for arg in kernel.args)
        lines.append(f"    {{(tw_kernel_fn)kernel_{kernel.name}, check_{kernel.name}, {words}}},")
    text = describe(kernels)
    chunks = [json.dumps(text[i : i + 120]) for i in range(0, len(text), 120)]
    lines += ["};", "", "static const char tw_description_text[] ="]
    return "\n".join([*lines, *(f"    {chunk}" for chunk in chunks), "    ;", ""])


def write_if_changed(path: Path, text: str) -> None:
    """Leave the timestamp alone when nothing changed."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def generate(definition: Path, out_dir: Path) -> None:
    """Write `kernels_gen.h` and `kernels_tables.h` to `out_dir`."""
    kernels = parse(definition.read_text())
    out_dir.mkdir(parents=True, exist_ok=True)
    write_if_changed(out_dir / "kernels_gen.h", emit_header(kernels))
    write_if_changed(out_dir / "kernels_tables.h", emit_tables(kernels))


def generate_sources(definition: Path, root: Path) -> None:
    """Write what is checked in, below `root`."""
    from generate_calls import emit_calls

    write_if_changed(root / CALLS, emit_calls(parse(definition.read_text())))


if __name__ == "__main__":
    here = Path(__file__).parent
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else here / "kernels.def", here / "build")
