"""Code for an expression: one walk, which `Scalar` takes for one element and `Vector` for four.

Both leave the value of an expression on the operand stack. Parts of an expression are computed where they are first
needed, and kept in a local if they are needed again.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from trainweb.backend.wasm.codegen.assembler import F32, I32, I64, V128, Callee, Function
from trainweb.backend.wasm.codegen.dtypes import DTYPES, conversion
from trainweb.backend.wasm.codegen.function_spec import FunctionSpec
from trainweb.ir.expr import MATH, Expr, count_uses, walk
from trainweb.model.graph import ITEM_SIZE

STRIP = 256
"""Elements whose functions are computed together: strips of a few of them stay in the first cache."""
_WRAPPING = ("add", "sub", "mul", "div", "neg", "abs", "shl")
"""Operations that may leave the range of a small integer; an i32 holds what they give."""


@dataclass(slots=True)
class Position:
    """The locals that say where the loops are: addresses of the current rows, inputs first, and element of the row."""

    rows: list[int]
    index: int


class Lanes(ABC):
    """Emits the code of expressions for the elements from the current position on."""

    def __init__(self, f: Function, spec: FunctionSpec, position: Position, functions: dict[str, Callee]) -> None:
        self.f, self.spec, self.position, self.functions = f, spec, position, functions
        self.unroll = 0
        """Number of groups of lanes between the position and the computed elements."""
        self._uses = count_uses(spec.roots)
        self._locals: dict[int, int] = {}
        self._done: set[int] = set()
        self._results: dict[int, int] = {}
        self.held: dict[int, int] = {}

    @abstractmethod
    def kind(self, dtype: str) -> str:
        """Type of a local that holds such values."""

    @abstractmethod
    def hold(self, k: int) -> None:
        """Keep in a local the value of input k, which is the same along the row."""

    @abstractmethod
    def constant(self, x: Expr) -> None:
        """Put the constant on the stack."""

    @abstractmethod
    def load(self, k: int, dtype: str) -> None:
        """Put the elements of input k on the stack."""

    @abstractmethod
    def store(self, dtype: str) -> None:
        """Store the value on the stack at the address below it."""

    @abstractmethod
    def select(self) -> None:
        """Choose between two values on the stack: the first where the third is true, else the second."""

    @abstractmethod
    def cast(self, source: str, target: str) -> None:
        """Convert the value on the stack."""

    @abstractmethod
    def operation(self, x: Expr) -> None:
        """Put `x`, an operation on its arguments, on the stack."""

    @abstractmethod
    def narrow(self, dtype: str) -> None:
        """Bring the value on the stack back into the range of a small integer."""

    # The walk.

    def results(self, unroll: int = 0) -> None:
        """Compute every result, and only then store: one may take the place of an operand of another."""
        f, roots = self.f, self.spec.roots
        self.begin(unroll)
        *first, last = range(len(roots))
        for k in first:
            self.value(roots[k])
            f.set(self._local(self._results, k, self.kind(roots[k].dtype)))
        for k in (last, *first):
            self.address(len(self.spec.in_dtypes) + k, roots[k].dtype)
            if k == last:
                self.value(roots[k])
            else:
                f.get(self._results[k])
            self.store(roots[k].dtype)

    def begin(self, unroll: int) -> None:
        """Forget what was computed: it belongs to other elements."""
        self.unroll = unroll
        self._done.clear()

    def value(self, x: Expr) -> None:
        """Put the value of `x` on the stack."""
        key = id(x)
        if x.op == "const":
            self.constant(x)
            return
        if x.op == "input" and self.spec.steps[int(immediate(x))] == 0:
            self.f.get(self.held[int(immediate(x))])
            return
        if key in self._done:
            self.f.get(self._locals[key])
            return
        if self.fetch(x):
            return
        self._compute(x)
        if self._uses[x] > 1:
            self.f.tee(self._local(self._locals, key, self.kind(x.dtype)))
            self._done.add(key)

    def fetch(self, x: Expr) -> bool:
        """Put the value of `x` on the stack and return True if it lies in a strip."""
        return False

    def _compute(self, x: Expr) -> None:
        if x.op == "input":
            self.load(int(immediate(x)), x.dtype)
        elif x.op == "select":
            for a in (x.args[1], x.args[2], x.args[0]):
                self.value(a)
            self.select()
        elif x.op == "cast":
            self.value(x.args[0])
            self.cast(x.args[0].dtype, x.dtype)
        else:
            self.operation(x)
            if x.op in _WRAPPING:
                self.narrow(x.dtype)

    def address(self, buffer: int, dtype: str) -> None:
        """Put the address of the current element of an input or a result on the stack."""
        f = self.f
        f.get(self.position.rows[buffer], self.position.index)
        if (size := ITEM_SIZE[dtype]) > 1:
            f.i32_const(size.bit_length() - 1)
            f.op("i32.shl")
        f.op("i32.add")

    def _local(self, table: dict[int, int], key: int, kind: str) -> int:
        if key not in table:
            table[key] = self.f.local(kind)
        return table[key]


class Scalar(Lanes):
    """One element."""

    def kind(self, dtype: str) -> str:
        return DTYPES[dtype].kind

    def hold(self, k: int) -> None:
        dtype = self.spec.in_dtypes[k]
        local = self._local(self.held, k, self.kind(dtype))
        self.f.get(self.position.rows[k])
        self._load(dtype)
        self.f.set(local)

    def constant(self, x: Expr) -> None:
        self._number(DTYPES[x.dtype].kind, immediate(x))

    def _number(self, kind: str, value: float) -> None:
        if kind == I32:
            self.f.i32_const(signed(int(value), 32))
        elif kind == I64:
            self.f.i64_const(signed(int(value), 64))
        elif kind == F32:
            self.f.f32_const(value)
        else:
            self.f.f64_const(value)

    def load(self, k: int, dtype: str) -> None:
        self.address(k, dtype)
        self._load(dtype)

    def _load(self, dtype: str) -> None:
        self.f.memory(DTYPES[dtype].load, ITEM_SIZE[dtype])
        if dtype == "bool":
            self.cast("uint8", "bool")

    def store(self, dtype: str) -> None:
        self.f.memory(DTYPES[dtype].store, ITEM_SIZE[dtype])

    def select(self) -> None:
        self.f.select()

    def cast(self, source: str, target: str) -> None:
        if target == "bool":
            self._number(DTYPES[source].kind, 0)
            self.f.op(DTYPES[source].scalar["ne"])
            return
        if (instruction := conversion(source, target)) is not None:
            self.f.op(instruction)
        self.narrow(target)

    def narrow(self, dtype: str) -> None:
        if (how := DTYPES[dtype].narrow) is not None:
            operand, instruction = how
            if operand:
                self.f.i32_const(operand)
            self.f.op(instruction)

    def operation(self, x: Expr) -> None:
        instruction = DTYPES[x.args[0].dtype].scalar.get(x.op)
        if instruction is not None:
            for a in x.args:
                self.value(a)
            self.f.op(instruction)
        elif x.op in MATH:
            self._math(x)
        else:
            self._COMPOSED[x.op](self, x)

    def _math(self, x: Expr) -> None:
        for a in x.args:
            self.value(a)
            self.f.op("f32x4.splat")
        self.f.call(self.functions[x.op])
        self.f.lane("f32x4.extract_lane", 0)

    # Operations of several instructions.

    def _operands(self, x: Expr) -> list[int]:
        """Locals that hold the operands of `x`."""
        operands = []
        for k, a in enumerate(x.args):
            self.value(a)
            operands.append(self._local(self._locals, -((id(x) << 2) + k + 1), self.kind(a.dtype)))
            self.f.set(operands[-1])
        return operands

    def _choice(self, x: Expr) -> None:
        """b < a ? b : a for the minimum, a < b ? b : a for the maximum."""
        a, b = self._operands(x)
        for local in (b, a, *((b, a) if x.op == "min" else (a, b))):
            self.f.get(local)
        self.f.op(DTYPES[x.dtype].scalar["lt"])
        self.f.select()

    def _negative(self, x: Expr) -> None:
        self._number(DTYPES[x.dtype].kind, 0)
        self.value(x.args[0])
        self.f.op(DTYPES[x.dtype].scalar["sub"])

    def _magnitude(self, x: Expr) -> None:
        f, direct, kind = self.f, DTYPES[x.dtype].scalar, DTYPES[x.dtype].kind
        (a,) = self._operands(x)
        self._number(kind, 0)
        f.get(a)
        f.op(direct["sub"])
        f.get(a, a)
        self._number(kind, 0)
        f.op(direct["lt"])
        f.select()

    def _quotient(self, x: Expr) -> None:
        """Division by 0 and MIN / -1 would trap: x / 0 is 0 and x / -1 is 0 - x."""
        f, direct, kind = self.f, DTYPES[x.dtype].scalar, DTYPES[x.dtype].kind
        word = "i64" if kind == I64 else "i32"
        is_signed = DTYPES[x.dtype].is_signed
        eqz, div = f"{word}.eqz", f"{word}.div_{'s' if is_signed else 'u'}"
        a, b = self._operands(x)
        f.get(b)
        f.op(eqz)
        with f.if_(kind) as by_zero:
            self._number(kind, 0)
            f.else_(by_zero)
            if not is_signed:
                f.get(a, b)
                f.op(div)
                return
            f.get(b)
            self._number(kind, -1)
            f.op(direct["eq"])
            with f.if_(kind) as by_minus_one:
                self._number(kind, 0)
                f.get(a)
                f.op(direct["sub"])
                f.else_(by_minus_one)
                f.get(a, b)
                f.op(div)

    _COMPOSED: dict[str, Callable[[Scalar, Expr], None]] = {
        "min": _choice,
        "pmax": _choice,
        "max": _choice,
        "neg": _negative,
        "abs": _magnitude,
        "div": _quotient,
    }
    """Operations that have no instruction for every dtype."""


class Vector(Lanes):
    """Four elements; only where the spec is `is_vector`."""

    def __init__(
        self,
        f: Function,
        spec: FunctionSpec,
        position: Position,
        functions: dict[str, Callee],
        scalar: Scalar,
    ) -> None:
        super().__init__(f, spec, position, functions)
        self.origin = 0
        """Local with the address of the first strip, minus the bytes of the elements of the row before it."""
        self.strips: dict[int, int] = {}
        """Expressions (by id) whose values lie in a strip, and the number of that strip."""
        self._scalar = scalar
        self._constants: dict[int, int] = {}
        self._spare: dict[int, int] = {}

    def kind(self, dtype: str) -> str:
        return V128

    def hold_constants(self) -> None:
        """In locals: V8 takes three instructions for a v128.const wherever one stands."""
        for x in walk(self.spec.roots):
            if x.op == "const":
                value = -int(bool(x.imm)) if x.dtype == "bool" else immediate(x)
                self._splat(value, "f" if x.dtype == "float32" else "i")
                self.f.set(self._local(self._constants, id(x), V128))

    def _splat(self, value: float, code: str) -> None:
        self.f.v128("v128.const", struct.pack(f"<4{code}", *([value] * 4)))

    def hold(self, k: int) -> None:
        """After `hold` of the scalar form."""
        f, dtype = self.f, self.spec.in_dtypes[k]
        local = self._local(self.held, k, V128)
        f.get(self._scalar.held[k])
        if dtype == "bool":
            self._scalar.cast("uint8", "bool")
            f.i32_const(-1)
            f.op("i32.mul")
        f.op("f32x4.splat" if dtype == "float32" else "i32x4.splat")
        f.set(local)

    def constant(self, x: Expr) -> None:
        self.f.get(self._constants[id(x)])

    def load(self, k: int, dtype: str) -> None:
        self.address(k, dtype)
        if ITEM_SIZE[dtype] == 4:
            self.f.memory("v128.load", 4, 16 * self.unroll)
            return
        self.f.memory("v128.load32_zero", 1, 4 * self.unroll)
        self.f.op("i16x8.extend_low_i8x16_u", "i32x4.extend_low_i16x8_u")
        if dtype == "bool":
            self.cast("uint8", "bool")

    def store(self, dtype: str) -> None:
        f = self.f
        if ITEM_SIZE[dtype] == 4:
            f.memory("v128.store", 4, 16 * self.unroll)
            return
        if dtype == "bool":
            self._splat(1, "i")
            f.op("v128.and")
        # Byte 0 of each lane, gathered in the low 32 bits.
        spare = self._local(self._spare, 0, V128)
        f.tee(spare)
        f.get(spare)
        f.v128("i8x16.shuffle", bytes([0, 4, 8, 12, *([0] * 12)]))
        f.memory_lane("v128.store32_lane", 1, 4 * self.unroll, 0)

    def fetch(self, x: Expr) -> bool:
        if id(x) not in self.strips:
            return False
        self._strip_address()
        self.f.memory("v128.load", 4, self._in_strip(self.strips[id(x)]))
        return True

    def store_strip(self, x: Expr, number: int) -> None:
        """Compute `x` into a strip."""
        self._strip_address()
        self.value(x)
        self.f.memory("v128.store", 4, self._in_strip(number))

    def _strip_address(self) -> None:
        """Put the address of the current element in the first strip on the stack."""
        f = self.f
        f.get(self.origin, self.position.index)
        f.i32_const(2)
        f.op("i32.shl", "i32.add")

    def _in_strip(self, number: int) -> int:
        return 4 * STRIP * number + 16 * self.unroll

    def select(self) -> None:
        self.f.op("v128.bitselect")

    def cast(self, source: str, target: str) -> None:
        if target == "bool":
            self.f.v128("v128.const", bytes(16))
            self.f.op("f32x4.ne" if source == "float32" else "i32x4.ne")
        elif source == "bool":
            self._splat(1, "f" if target == "float32" else "i")
            self.f.op("v128.and")
        elif target == "float32":
            self.f.op("f32x4.convert_i32x4_s")
        else:
            if source == "float32":
                self.f.op("i32x4.trunc_sat_f32x4_s")
            self.narrow(target)

    def narrow(self, dtype: str) -> None:
        if dtype == "uint8":  # the only small integer with vectors
            self._splat(255, "i")
            self.f.op("v128.and")

    def operation(self, x: Expr) -> None:
        for a in x.args:
            self.value(a)
        table = DTYPES[x.args[0].dtype].vector
        assert table is not None, f"{x.args[0].dtype} has no vectors"
        self.f.op(table[x.op])


def signed(value: int, bits: int) -> int:
    """The number whose two's complement has the bits of `value`, as instructions take constants."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def immediate(x: Expr) -> float:
    """Value of a constant (its zero may be negative), or number of an input."""
    if x.imm is None:
        raise ValueError(f"a {x.op} without a value")
    return x.imm
