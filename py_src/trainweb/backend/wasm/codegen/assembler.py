"""A WebAssembly assembler: functions of named instructions, modules of functions.

Every instruction is checked against the types on the operand stack as it is emitted. A mistake of the code generator
raises where it is made, with the name of the instruction. Names follow the text format, and only the tables below know
opcodes: https://webassembly.github.io/spec/core/appendix/index-instructions.html

    module = Module()
    f = Function("ii", results="i")
    f.get(0)
    f.get(1)
    f.op("i32.add")
    module.export("add", f)
    module.encode()
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Self

I32, I64, F32, F64, V128 = "i", "l", "f", "d", "v"
"""Value types; several are a string of them, and so is the operand stack."""

_TYPE_CODE = {I32: b"\x7f", I64: b"\x7e", F32: b"\x7d", F64: b"\x7c", V128: b"\x7b"}
_TYPE_NAME = {I32: "i32", I64: "i64", F32: "f32", F64: "f64", V128: "v128"}
_BLOCK, _LOOP, _IF, _ELSE, _END, _BR, _BR_IF = b"\x02", b"\x03", b"\x04", b"\x05", b"\x0b", b"\x0c", b"\x0d"
_CALL = b"\x10"
_NO_RESULT = b"\x40"
MEMORY_LIMITS = b"\x01\x00\x80\x80\x04"
"""Limits of an imported memory: not shared, 0 to 65,536 pages; a shared memory must have a maximum."""


class AssemblyError(Exception):
    """The code generator wrote what is no valid WebAssembly: a fault of trainweb, whatever the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """The opcode's bytes, the types it takes from the stack and those it leaves there."""

    name: str
    code: bytes
    operands: str
    results: str


class _Table(dict[str, Instruction]):
    """Instructions by name."""

    def __missing__(self, name: str) -> Instruction:
        raise AssemblyError(f"{name} is no instruction that stands without immediates, or with these")


def leb(value: int) -> bytes:
    """Unsigned LEB128."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = tuple(bytes([k]) for k in range(0x80))


def sleb(value: int) -> bytes:
    """Signed LEB128."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def _table(*runs: tuple[int, str, str, str], prefix: bytes = b"") -> _Table:
    """Instructions by runs of opcodes (after `prefix`, if there is one) that follow each other.

    A run has its first opcode, operands and results, and the type and names of the instructions. Some names are in the
    tables only because others follow them.
    """
    encode = leb if prefix else lambda opcode: bytes([opcode])
    table = _Table()
    for first, operands, results, names in runs:
        kind, *members = names.split()
        for opcode, member in enumerate(members, first):
            name = f"{kind}.{member}"
            table[name] = Instruction(name, prefix + encode(opcode), operands, results)
    return table


_SIMD, _SATURATING = b"\xfd", b"\xfc"

PLAIN = _Table(
    _table(
        (0x45, "i", "i", "i32 eqz"),
        (0x46, "ii", "i", "i32 eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u"),
        (0x50, "l", "i", "i64 eqz"),
        (0x51, "ll", "i", "i64 eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u"),
        (0x5B, "ff", "i", "f32 eq ne lt gt le ge"),
        (0x61, "dd", "i", "f64 eq ne lt gt le ge"),
        (0x6A, "ii", "i", "i32 add sub mul div_s div_u rem_s rem_u and or xor shl shr_s shr_u"),
        (0x7C, "ll", "l", "i64 add sub mul div_s div_u rem_s rem_u and or xor shl shr_s shr_u"),
        (0x8B, "f", "f", "f32 abs neg ceil floor trunc nearest sqrt"),
        (0x92, "ff", "f", "f32 add sub mul div min max"),
        (0x99, "d", "d", "f64 abs neg ceil floor trunc nearest sqrt"),
        (0xA0, "dd", "d", "f64 add sub mul div min max"),
        (0xA7, "l", "i", "i32 wrap_i64"),
        (0xAC, "i", "l", "i64 extend_i32_s extend_i32_u"),
        (0xB2, "i", "f", "f32 convert_i32_s convert_i32_u"),
        (0xB4, "l", "f", "f32 convert_i64_s convert_i64_u"),
        (0xB6, "d", "f", "f32 demote_f64"),
        (0xB7, "i", "d", "f64 convert_i32_s convert_i32_u"),
        (0xB9, "l", "d", "f64 convert_i64_s convert_i64_u"),
        (0xBB, "f", "d", "f64 promote_f32"),
        (0xC0, "i", "i", "i32 extend8_s extend16_s"),
    )
    | _table(
        (0, "f", "i", "i32 trunc_sat_f32_s trunc_sat_f32_u"),
        (2, "d", "i", "i32 trunc_sat_f64_s trunc_sat_f64_u"),
        (4, "f", "l", "i64 trunc_sat_f32_s trunc_sat_f32_u"),
        (6, "d", "l", "i64 trunc_sat_f64_s trunc_sat_f64_u"),
        prefix=_SATURATING,
    )
    | _table(
        (17, "i", "v", "i32x4 splat"),
        (19, "f", "v", "f32x4 splat"),
        (55, "vv", "v", "i32x4 eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s"),
        (65, "vv", "v", "f32x4 eq ne lt gt le ge"),
        (77, "v", "v", "v128 not"),
        (78, "vv", "v", "v128 and andnot or xor"),
        (82, "vvv", "v", "v128 bitselect"),
        (103, "v", "v", "f32x4 ceil floor trunc nearest"),
        (137, "v", "v", "i16x8 extend_low_i8x16_u"),
        (160, "v", "v", "i32x4 abs neg"),
        (169, "v", "v", "i32x4 extend_low_i16x8_u"),
        (174, "vv", "v", "i32x4 add"),
        (177, "vv", "v", "i32x4 sub"),
        (181, "vv", "v", "i32x4 mul min_s min_u max_s"),
        (224, "v", "v", "f32x4 abs neg"),
        (227, "v", "v", "f32x4 sqrt"),
        (228, "vv", "v", "f32x4 add sub mul div min max pmin pmax"),
        (248, "v", "v", "i32x4 trunc_sat_f32x4_s"),
        (250, "v", "v", "f32x4 convert_i32x4_s"),
        prefix=_SIMD,
    )
)
"""Instructions that take only operands."""

MEMORY = _Table(
    _table(
        (0x28, "i", "i", "i32 load"),
        (0x29, "i", "l", "i64 load"),
        (0x2A, "i", "f", "f32 load"),
        (0x2B, "i", "d", "f64 load"),
        (0x2C, "i", "i", "i32 load8_s load8_u load16_s load16_u"),
        (0x36, "ii", "", "i32 store"),
        (0x37, "il", "", "i64 store"),
        (0x38, "if", "", "f32 store"),
        (0x39, "id", "", "f64 store"),
        (0x3A, "ii", "", "i32 store8 store16"),
    )
    | _table((0, "i", "v", "v128 load"), (11, "iv", "", "v128 store"), (92, "i", "v", "v128 load32_zero"), prefix=_SIMD)
)
"""Instructions that also take an alignment and an offset."""

MEMORY_LANE = _table((90, "iv", "", "v128 store32_lane"), prefix=_SIMD)
"""Instructions that take a lane, too."""

LANE = _table((31, "v", "f", "f32x4 extract_lane"), prefix=_SIMD)
"""Instructions that take only a lane."""

VECTOR = _table((12, "", "v", "v128 const"), (13, "vv", "v", "i8x16 shuffle"), prefix=_SIMD)
"""Instructions that take 16 bytes."""


_LOCAL = {
    kind: (
        Instruction("local.get", b"\x20", "", kind),
        Instruction("local.set", b"\x21", kind, ""),
        Instruction("local.tee", b"\x22", kind, kind),
    )
    for kind in _TYPE_CODE
}
_CONST = {
    kind: Instruction(f"{_TYPE_NAME[kind]}.const", code, "", kind)
    for kind, code in ((I32, b"\x41"), (I64, b"\x42"), (F32, b"\x43"), (F64, b"\x44"))
}
_SELECT = {kind: Instruction("select", b"\x1b", kind + kind + I32, kind) for kind in _CONST}


class Stack(dict["str | Instruction", "tuple[bytes, Stack]"]):
    """The types on the operand stack (`types`), and where each instruction leads from there.

    There is one object for each sequence of types. An instruction is checked when it is first emitted on such a stack,
    and costs one look-up from then on.
    """

    __slots__ = ("types",)

    def __init__(self, types: str) -> None:
        super().__init__()
        self.types = types

    def __missing__(self, key: str | Instruction) -> tuple[bytes, Stack]:
        instruction = PLAIN[key] if isinstance(key, str) else key
        self[key] = step = instruction.code, self.after(instruction.name, instruction.operands, instruction.results)
        return step

    def after(self, name: str, operands: str, results: str) -> Stack:
        """The stack after an instruction called `name`."""
        below = len(self.types) - len(operands)
        if self is UNREACHABLE or not self.types.endswith(operands):
            raise self.mismatch(name, _names(operands), max(below, 0))
        return stack_of(self.types[:below] + results)

    def mismatch(self, name: str, expected: str, start: int = 0) -> AssemblyError:
        """Return the error of `name`, which does not find its operands."""
        if self is UNREACHABLE:
            return AssemblyError(f"{name} after a branch that is always taken")
        return AssemblyError(f"{name} takes {expected}, the stack holds {_names(self.types[start:])}")


_STACKS: dict[str, Stack] = {}


def stack_of(types: str) -> Stack:
    """The stack that holds values of these types."""
    stack = _STACKS.get(types)
    if stack is None:
        stack = _STACKS[types] = Stack(types)
    return stack


EMPTY = stack_of("")
UNREACHABLE = Stack("")
"""After a branch that is always taken."""


def _names(types: str) -> str:
    return " ".join(_TYPE_NAME[t] for t in types) or "nothing"


@dataclass(frozen=True, slots=True)
class Callee:
    """A function that can be called: its number in the module, and its type."""

    name: str
    index: int
    operands: str
    results: str


@dataclass(slots=True, eq=False)
class Label:
    """A block, a loop or an `if`, open while its `with` statement runs: what branches aim at."""

    function: Function
    kind: str
    results: str
    """Types that its end and branches to it must find on the stack: nothing, for a loop."""
    outer: Stack
    """The stack where it began."""
    has_else: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.function.end(self)


class Function:
    """Instructions and locals of one function; `params` and `results` are strings of value types.

    A method emits one instruction; `op` and `get` emit several. `op` names those without immediates.
    """

    def __init__(self, params: str, results: str = "") -> None:
        self.params, self.results = params, results
        self._code = bytearray()
        self._stack = EMPTY
        self._open: list[Label] = []
        self._kinds: list[str] = []
        self._locals: list[tuple[bytes, tuple[Instruction, Instruction, Instruction]]] = []
        for kind in params:
            self.local(kind)

    def local(self, kind: str) -> int:
        """A new local of type `kind`."""
        self._kinds.append(kind)
        self._locals.append((leb(len(self._locals)), _LOCAL[kind]))
        return len(self._locals) - 1

    def op(self, *names: str) -> None:
        """Instructions without immediates, in this order."""
        for name in names:
            code, self._stack = self._stack[name]
            self._code += code

    def get(self, *locals_: int) -> None:
        """Put locals on the stack, in this order."""
        for local in locals_:
            number, (get, _, _) = self._locals[local]
            code, self._stack = self._stack[get]
            self._code += code + number

    def set(self, local: int) -> None:
        """Take a local's new value from the stack."""
        number, (_, set_, _) = self._locals[local]
        code, self._stack = self._stack[set_]
        self._code += code + number

    def tee(self, local: int) -> None:
        """Give a local the value on the stack, which stays there."""
        number, (_, _, tee) = self._locals[local]
        code, self._stack = self._stack[tee]
        self._code += code + number

    def i32_const(self, value: int) -> None:
        self._emit(_CONST[I32], sleb(value))

    def i64_const(self, value: int) -> None:
        self._emit(_CONST[I64], sleb(value))

    def f32_const(self, value: float) -> None:
        self._emit(_CONST[F32], struct.pack("<f", value))

    def f64_const(self, value: float) -> None:
        self._emit(_CONST[F64], struct.pack("<d", value))

    def v128(self, name: str, lanes: bytes) -> None:
        """A constant or a shuffle."""
        if len(lanes) != 16:
            raise AssemblyError(f"{name} takes 16 bytes, got {len(lanes)}")
        self._emit(VECTOR[name], lanes)

    def memory(self, name: str, align: int, offset: int = 0) -> None:
        """A load or a store at the address on the stack + `offset` bytes, a multiple of `align`."""
        self._emit(MEMORY[name], _memory_argument(align, offset))

    def memory_lane(self, name: str, align: int, offset: int, lane: int) -> None:
        """The same of one lane of a vector."""
        self._emit(MEMORY_LANE[name], _memory_argument(align, offset) + leb(lane))

    def lane(self, name: str, lane: int) -> None:
        """An instruction on one lane of a vector."""
        self._emit(LANE[name], leb(lane))

    def select(self) -> None:
        """The first of two numbers where the i32 after them is not 0, else the second."""
        instruction = _SELECT.get(self._stack.types[-2:-1])
        if instruction is None:
            raise self._stack.mismatch("select", "two numbers of one type and i32")
        self._emit(instruction, b"")

    def call(self, callee: Callee) -> None:
        """Call a function of the module."""
        self._stack = self._stack.after(f"call of {callee.name}", callee.operands, callee.results)
        self._code += _CALL + leb(callee.index)

    def _emit(self, instruction: Instruction, immediates: bytes) -> None:
        code, self._stack = self._stack[instruction]
        self._code += code + immediates

    # Structured control.

    def block(self, result: str = "") -> Label:
        """`with f.block() as label:` what a branch to the label leaves."""
        return self._begin("block", _BLOCK, result)

    def loop(self) -> Label:
        """`with f.loop() as label:` what a branch to the label begins again."""
        return self._begin("loop", _LOOP, "")

    def if_(self, result: str = "") -> Label:
        """`with f.if_() as label:` what runs if the i32 on the stack is not 0; `else_(label)` begins the other part."""
        self._stack = self._stack.after("if", I32, "")
        return self._begin("if", _IF, result)

    def else_(self, label: Label) -> None:
        """The other part of an `if`."""
        if label.kind != "if" or label.has_else or self._open[-1:] != [label]:
            raise AssemblyError("else without its if")
        self._close(label, "else")
        label.has_else = True
        self._code += _ELSE

    def end(self, label: Label) -> None:
        """End a block, as the end of a `with` statement does."""
        if self._open[-1:] != [label]:
            raise AssemblyError(f"end of a {label.kind} that is not the innermost open one")
        if label.kind == "if" and label.results and not label.has_else:
            raise AssemblyError(f"an if that leaves {_names(label.results)} needs an else")
        self._close(label, "end")
        self._open.pop()
        self._stack = label.outer.after("end", "", label.results)
        self._code += _END

    def br(self, label: Label) -> None:
        """Branch always: nothing may follow in the block this stands in."""
        self._stack.after("br", label.results, "")
        self._code += _BR + leb(self._depth(label))
        self._stack = UNREACHABLE

    def br_if(self, label: Label) -> None:
        """Branch if the i32 on the stack is not 0."""
        self._stack = self._stack.after("br_if", label.results + I32, label.results)
        self._code += _BR_IF + leb(self._depth(label))

    def _begin(self, kind: str, code: bytes, results: str) -> Label:
        label = Label(self, kind, results, self._stack.after(kind, "", ""))
        self._open.append(label)
        self._stack = EMPTY
        self._code += code + (_TYPE_CODE[results] if results else _NO_RESULT)
        return label

    def _close(self, label: Label, name: str) -> None:
        """The part of a block that ends here must have left its results, and nothing else."""
        if self._stack is not UNREACHABLE and self._stack.types != label.results:
            raise self._stack.mismatch(f"{name} of {label.kind}", f"exactly {_names(label.results)}")
        self._stack = EMPTY

    def _depth(self, label: Label) -> int:
        if label not in self._open:
            raise AssemblyError(f"branch to a {label.kind} that is not open")
        return len(self._open) - 1 - self._open.index(label)

    def encode(self) -> bytes:
        """The entry of the code section."""
        if self._open:
            raise AssemblyError(f"the function ends within a {self._open[-1].kind}")
        if self._stack.types != self.results:
            raise self._stack.mismatch("end of function", f"exactly {_names(self.results)}")
        groups: list[tuple[int, str]] = []
        for kind in self._kinds[len(self.params) :]:
            if groups and groups[-1][1] == kind:
                groups[-1] = (groups[-1][0] + 1, kind)
            else:
                groups.append((1, kind))
        head = leb(len(groups)) + b"".join(leb(n) + _TYPE_CODE[kind] for n, kind in groups)
        return leb(len(head) + len(self._code) + len(_END)) + head + self._code + _END


def _memory_argument(align: int, offset: int) -> bytes:
    if align not in (1, 2, 4, 8, 16):
        raise AssemblyError(f"an alignment of {align} bytes")
    return leb(align.bit_length() - 1) + leb(offset)


@dataclass(slots=True)
class Module:
    """Imports, then functions, in the order in which they are added, then custom sections."""

    _types: dict[tuple[str, str], int] = field(default_factory=dict)
    _imports: list[bytes] = field(default_factory=list)
    _functions: list[tuple[str, Function]] = field(default_factory=list)
    _custom: list[bytes] = field(default_factory=list)
    _n_imported: int = 0

    def type_index(self, params: str, results: str = "") -> int:
        """Number of the function type, which is declared where this is its first use."""
        return self._types.setdefault((params, results), len(self._types))

    def import_memory(self, module: str, name: str) -> None:
        """A private memory of any size."""
        self._imports.append(_text(module) + _text(name) + b"\x02" + MEMORY_LIMITS)

    def import_function(self, module: str, name: str, params: str, results: str = "") -> Callee:
        if self._functions:
            raise AssemblyError(f"import of {name} after a function: functions are numbered after all imports")
        self._imports.append(_text(module) + _text(name) + b"\x00" + leb(self.type_index(params, results)))
        self._n_imported += 1
        return Callee(name, self._n_imported - 1, params, results)

    def export(self, name: str, function: Function) -> None:
        """Add a function, exported as `name`."""
        self._functions.append((name, function))

    def custom(self, name: str, content: bytes) -> None:
        """Add a section that WebAssembly itself has no use for."""
        self._custom.append(_text(name) + content)

    def encode(self) -> bytes:
        """The bytes of the module."""
        numbers = [leb(self.type_index(f.params, f.results)) for _, f in self._functions]
        types = [
            b"\x60" + b"".join(leb(len(side)) + b"".join(_TYPE_CODE[t] for t in side) for side in kind)
            for kind in self._types
        ]
        exports = [_text(name) + b"\x00" + leb(self._n_imported + k) for k, (name, _) in enumerate(self._functions)]
        code = [f.encode() for _, f in self._functions]
        sections = ((1, types), (2, self._imports), (3, numbers), (7, exports), (10, code))
        written = [_section(number, leb(len(items)) + b"".join(items)) for number, items in sections]
        written += [_section(0, content) for content in self._custom]
        return b"\x00asm\x01\x00\x00\x00" + b"".join(written)


def _text(text: str) -> bytes:
    raw = text.encode()
    return leb(len(raw)) + raw


def _section(number: int, content: bytes) -> bytes:
    return leb(number) + leb(len(content)) + content
