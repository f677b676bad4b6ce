"""Turn `kernels.def` into what C, Python and TypeScript know of the kernels.

`kernels_gen.h`: constants, enumerations, layouts, argument structs, prototypes; `kernels_tables.h`: the verifiers, the
dispatch table and the description that the module exports; `ir/calls.py`, which git has; `ir/layout.py` and
`layout.ts`.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from definition import POINTER_TYPES, SCALAR_TYPES, Arg, Definition, DefinitionError, Expression, Kernel, parse

INT32_MAX = 2**31 - 1
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

CALLS = Path("py_src/trainweb/ir/calls.py")
PYTHON_LAYOUT = Path("py_src/trainweb/ir/layout.py")
TYPESCRIPT_LAYOUT = Path("web/src/engine/layout.ts")


def to_c(kernel: Kernel, given: Expression) -> str:
    """The expression in C, over doubles, on the argument struct `a`."""
    expression = given.text

    def array(node: ast.expr) -> tuple[str, int]:
        if not isinstance(node, ast.Name):
            raise DefinitionError(f"{kernel.name}: array argument expected in {expression!r}")
        arg = kernel.arg(node.id)
        if arg.is_pointer or arg.words == 1:
            raise DefinitionError(f"{kernel.name}: {node.id} is no array in {expression!r}")
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

    return visit(ast.parse(expression, mode="eval").body)


def emit_struct(kernel: Kernel) -> str:
    """The argument struct; one word per field, in plan order."""
    lines = [f"typedef struct {kernel.name}_args {{"]
    for arg in kernel.args:
        if arg.is_pointer:
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
    for expression in (kernel.pays, kernel.flops):
        if expression:
            to_c(kernel, expression)  # only for its errors
    if kernel.where:
        lines.append(f"    if (!({to_c(kernel, kernel.where)})) return TW_BAD_CONDITION;")
    lines.append("    (void)a;")
    word = 0
    for arg in kernel.args:
        if arg.is_pointer:
            flags = "TW_WRITES" if arg.kind != "in" else "0"
            if arg.optional:
                flags += " | TW_NULLABLE"
            lines.append(
                f"    if ((status = tw_bind(binder, words[{word}], {to_c(kernel, arg.extent)}, "
                f"{POINTER_TYPES[arg.type][1]}, {flags}, relocated + {word}))) return status;"
            )
        word += arg.words
    lines += [
        f"    if ((status = tw_check_apart(binder, words[{index}], words[{result}]))) return status;"
        for index, result in held_apart(kernel)
    ]
    return "\n".join([*lines, "    return TW_OK;", "}\n"])


def held_apart(kernel: Kernel) -> Iterator[tuple[int, int]]:
    """Words of pairs of buffers that must not overlap: indices, and everything else that the call writes."""
    ends = accumulate(arg.words for arg in kernel.args)
    starts = {arg.name: end - arg.words for arg, end in zip(kernel.args, ends, strict=True)}
    for name in kernel.apart:
        for arg in kernel.args:
            if arg.is_pointer and arg.kind != "in" and arg.name != name:
                yield starts[name], starts[arg.name]


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


def describe_arg(arg: Arg) -> dict[str, object]:
    """An argument, without the fields that do not concern it."""
    described: dict[str, object] = {"name": arg.name, "kind": arg.kind, "count": arg.words}
    if arg.type:
        described |= {"type": arg.type, "extent": arg.extent.text}
    if arg.optional:
        described["optional"] = True
    if arg.read_if:
        described["read_if"] = arg.read_if
    return described


def describe_kernel(kernel: Kernel, opcode: int) -> dict[str, object]:
    """A kernel, without the facts that do not hold."""
    facts: dict[str, object] = {
        "pays": kernel.pays.text,
        "flops": kernel.flops.text,
        "result": kernel.result,
        "epilogue": kernel.epilogue,
        "updates": kernel.updates,
        "fails": kernel.fails,
        "parts": kernel.parts,
    }
    return {
        "name": kernel.name,
        "opcode": opcode,
        "where": kernel.where.text,
        "args": [describe_arg(arg) for arg in kernel.args],
        "facts": {name: fact for name, fact in facts.items() if fact},
    }


def describe(definition: Definition) -> str:
    """JSON that the module exports."""
    described = {
        "fingerprint": definition.fingerprint(),
        "thread_scratch_bytes": definition.constant("THREAD_SCRATCH_BYTES"),
        "status": definition.enumeration("status"),
        "kernels": [describe_kernel(kernel, opcode) for opcode, kernel in enumerate(definition.kernels, 1)],
    }
    return json.dumps(described, separators=(",", ":"))


def emit_header(definition: Definition) -> str:
    """Return the header for kernel sources: constants, layouts, structs and prototypes."""
    lines = [
        "/* Generated from kernels.def by generate.py. */",
        "#ifndef KERNELS_GEN_H",
        "#define KERNELS_GEN_H",
        "#include <stdint.h>",
        "",
        f"#define TW_FINGERPRINT {definition.fingerprint()}u",
        f"#define TW_N_OPCODES {len(definition.kernels) + 1}",
        *(f"#define OPCODE_{k.name.upper()} {n}" for n, k in enumerate(definition.kernels, 1)),
        *(f"#define {c.name} {c.value}{'u' * (c.value > INT32_MAX)}" for c in definition.constants),
        *(f"#define {name}_{n} {x}" for name, terms in definition.polynomials.items() for n, x in enumerate(terms)),
        "",
        *(f"enum {{ {members(enumeration.members)} }};" for enumeration in definition.enumerations),
        *(f"enum {{ {members(dict(layout.constants()))} }};" for layout in definition.layouts),
        "",
    ]
    lines += [emit_struct(kernel) for kernel in definition.kernels]
    return "\n".join([*lines, "#endif", ""])


def members(numbers: dict[str, int]) -> str:
    """Of a C enumeration."""
    return ", ".join(f"{name} = {value}" for name, value in numbers.items())


def emit_tables(definition: Definition) -> str:
    """Return the file that the executor includes: verifiers, the dispatch table and the description."""
    lines = ["/* Generated from kernels.def by generate.py; included by executor.c alone. */"]
    lines += [emit_check(kernel) for kernel in definition.kernels]
    lines += ["static const tw_entry tw_table[TW_N_OPCODES] = {", "    {0, 0, 0},"]
    for kernel in definition.kernels:
        words = sum(arg.words for arg in kernel.args)
        lines.append(f"    {{(tw_kernel_fn)kernel_{kernel.name}, check_{kernel.name}, {words}}},")
    text = describe(definition)
    chunks = [json.dumps(text[i : i + 120]) for i in range(0, len(text), 120)]
    lines += ["};", "", "static const char tw_description_text[] ="]
    return "\n".join([*lines, *(f"    {chunk}" for chunk in chunks), "    ;", ""])


def write_if_changed(path: Path, text: str) -> None:
    """Leave the timestamp alone when nothing changed."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def generate(definition_file: Path, out_dir: Path) -> None:
    """Write the headers to `out_dir`."""
    definition = parse(definition_file.read_text())
    out_dir.mkdir(parents=True, exist_ok=True)
    write_if_changed(out_dir / "kernels_gen.h", emit_header(definition))
    write_if_changed(out_dir / "kernels_tables.h", emit_tables(definition))


def generated_sources(definition_file: Path) -> dict[Path, str]:
    """Return the sources in Python and TypeScript, by path in the project."""
    from generate_calls import emit_calls
    from generate_layout import emit_python, emit_typescript, other_functions, session_calls

    definition = parse(definition_file.read_text())
    folder = definition_file.parent
    calls = session_calls(path.read_text() for path in sorted((folder / "session").glob("*.c")))
    sources = [path.read_text() for path in sorted((*folder.glob("*.c"), *folder.glob("session/*.c")))]
    return {
        CALLS: emit_calls(definition),
        PYTHON_LAYOUT: emit_python(definition, calls),
        TYPESCRIPT_LAYOUT: emit_typescript(definition, calls, other_functions(sources)),
    }


if __name__ == "__main__":
    here = Path(__file__).parent
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else here / "kernels.def", here / "build")
