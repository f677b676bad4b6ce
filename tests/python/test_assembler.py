"""The assembler against wasmtime's, the bytes of the specification, and its own promise to refuse wrong types."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import wasmtime

from trainweb.backend.wasm.codegen.assembler import (
    F32,
    F64,
    I32,
    I64,
    LANE,
    MEMORY,
    MEMORY_LANE,
    PLAIN,
    V128,
    VECTOR,
    AssemblyError,
    Function,
    Label,
    Module,
    leb,
    sleb,
)

NAMES = {I32: "i32", I64: "i64", F32: "f32", F64: "f64", V128: "v128"}


def module_of(f: Function) -> bytes:
    module = Module()
    module.import_memory("env", "memory")
    module.export("f", f)
    return module.encode()


def text_of(params: str, results: str, body: str) -> str:
    """The same module in the text format."""
    declared = "".join(f" (param {NAMES[t]})" for t in params) + "".join(f" (result {NAMES[t]})" for t in results)
    return f'(module (import "env" "memory" (memory 0 65536)) (func (export "f"){declared} {body}))'


def single(name: str, immediates: str, emit: Callable[[Function], None], operands: str, results: str) -> None:
    """One instruction on the parameters of a function: the same bytes as wasmtime writes, and valid."""
    f = Function(operands, results)
    for k in range(len(operands)):
        f.get(k)
    emit(f)
    gets = " ".join(f"local.get {k}" for k in range(len(operands)))
    written = module_of(f)
    assert written == bytes(wasmtime.wat2wasm(text_of(operands, results, f"{gets} {name} {immediates}")))
    wasmtime.Module.validate(wasmtime.Engine(), written)


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_plain_instruction(name: str) -> None:
    row = PLAIN[name]
    single(name, "", lambda f: f.op(name), row.operands, row.results)


@pytest.mark.parametrize("align", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(MEMORY))
def test_memory_instruction(name: str, align: int) -> None:
    row = MEMORY[name]
    for bits, natural in (("8", 1), ("16", 2)):
        if bits in name.split(".")[1]:
            align = min(align, natural)  # more is invalid
    single(name, f"offset=300 align={align}", lambda f: f.memory(name, align, 300), row.operands, row.results)


def test_instructions_with_other_immediates() -> None:
    def vector(name: str, lanes: bytes) -> Callable[[Function], None]:
        return lambda f: f.v128(name, lanes)

    lanes = bytes(range(3, 19))
    bytes_ = " ".join(map(str, lanes))
    single("i8x16.shuffle", bytes_, vector("i8x16.shuffle", lanes), "vv", V128)
    single("v128.const i8x16", bytes_, vector("v128.const", lanes), "", V128)
    assert set(VECTOR) == {"i8x16.shuffle", "v128.const"}
    for name in LANE:
        single(name, "2", lambda f, name=name: f.lane(name, 2), LANE[name].operands, LANE[name].results)
    for name in MEMORY_LANE:
        row = MEMORY_LANE[name]
        emit = lambda f, name=name: f.memory_lane(name, 2, 200, 3)  # noqa: E731
        single(name, "offset=200 align=2 3", emit, row.operands, row.results)


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31)])
def test_integers(value: int) -> None:
    single(f"i32.const {value}", "", lambda f: f.i32_const(value), "", I32)
    wide = value * 2**31
    single(f"i64.const {wide}", "", lambda f: f.i64_const(wide), "", I64)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3e38, float("inf"), float("-inf"), float("nan"), 1e-45])
def test_floats(value: float) -> None:
    single(f"f64.const {value}", "", lambda f: f.f64_const(value), "", F64)
    narrow = float(np.float32(value))
    single(f"f32.const {narrow}", "", lambda f: f.f32_const(narrow), "", F32)


def test_leb128_of_the_specification() -> None:
    """Examples of the DWARF standard, which the WebAssembly specification refers to."""
    assert [leb(v) for v in (2, 127, 128, 129, 12857, 624485)] == [
        b"\x02", b"\x7f", b"\x80\x01", b"\x81\x01", b"\xb9\x64", b"\xe5\x8e\x26",
    ]  # fmt: skip
    assert [sleb(v) for v in (2, -2, 127, -127, 128, -128, 129, -129, -123456)] == [
        b"\x02", b"\x7e", b"\xff\x00", b"\x81\x7f", b"\x80\x01", b"\x80\x7f", b"\x81\x01", b"\xff\x7e", b"\xc0\xbb\x78",
    ]  # fmt: skip


def test_a_module_by_hand() -> None:
    """Section by section as in chapter 5 of the specification: types, imports, functions, exports, code."""
    module = Module()
    module.import_memory("env", "memory")
    twice = module.import_function("env", "g", "i", "i")
    f = Function("i", "i")
    spare = f.local(I32), f.local(I32), f.local(V128)
    f.get(0)
    f.call(twice)
    f.tee(spare[1])
    f.get(spare[0])
    f.op("i32.add")
    module.export("f", f)
    assert module.encode() == bytes.fromhex(
        "00 61 73 6d  01 00 00 00"  # magic, version 1
        "01 06  01  60 01 7f 01 7f"  # a type: (i32) -> i32
        "02 1a  02  03 65 6e 76 06 6d 65 6d 6f 72 79 02 01 00 80 80 04"  # env.memory, 0 to 65,536 pages
        "           03 65 6e 76 01 67 00 00"  # env.g, a function of type 0
        "03 02  01  00"  # a function of type 0
        "07 05  01  01 66 00 01"  # export "f": function 1
        "0a 11  01  0f 02 02 7f 01 7b"  # code: 15 bytes; 2 locals of i32 and 1 of v128
        "       20 00 10 00 22 02 20 01 6a 0b"
    )


def factorial() -> Function:
    """n! with every structure: n <= 1 ? 1 : the loop."""
    f = Function("i", "l")
    product = f.local(I64)
    f.get(0)
    f.i32_const(1)
    f.op("i32.le_s")
    with f.if_(I64) as small:
        f.i64_const(1)
        f.else_(small)
        f.i64_const(1)
        f.set(product)
        with f.block() as done, f.loop() as again:
            f.get(0)
            f.op("i32.eqz")
            f.br_if(done)
            f.get(product)
            f.get(0)
            f.op("i64.extend_i32_s", "i64.mul")
            f.set(product)
            f.get(0)
            f.i32_const(1)
            f.op("i32.sub")
            f.set(0)
            f.br(again)
        f.get(product)
    return f


def test_structured_control_runs() -> None:
    store = wasmtime.Store()
    memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(0, 65536)))
    instance = wasmtime.Instance(store, wasmtime.Module(store.engine, module_of(factorial())), [memory])
    f = instance.exports(store)["f"]
    assert [f(store, n) for n in (0, 1, 2, 5, 20)] == [1, 1, 2, 120, 2432902008176640000]


def test_structured_control_is_written_as_by_wasmtime() -> None:
    body = """local.get 0 i32.const 1 i32.le_s
      (if (result i64) (then i64.const 1)
        (else i64.const 1 local.set 1
          block loop local.get 0 i32.eqz br_if 1
            local.get 1 local.get 0 i64.extend_i32_s i64.mul local.set 1
            local.get 0 i32.const 1 i32.sub local.set 0 br 0 end end
          local.get 1))"""
    # The text format has no locals of no name after an inline body, so they are declared in front.
    assert module_of(factorial()) == bytes(wasmtime.wat2wasm(text_of("i", "l", f"(local i64) {body}")))


# Refusals: each class of mistake, with the instruction that the error names.


def select_of_vectors(f: Function) -> None:
    for _ in range(2):
        f.v128("v128.const", bytes(16))
    f.get(0)
    f.select()


def condition_of_another_type(f: Function) -> None:
    with f.block() as done:
        f.f32_const(1.0)
        f.br_if(done)


def block_reaches_below_its_start(f: Function) -> None:
    f.get(0)
    with f.block():
        f.set(0)


def block_leaves_too_much(f: Function) -> None:
    with f.block():
        f.get(0)


def block_leaves_too_little(f: Function) -> None:
    with f.block(I32):
        pass


def branches_of_two_types(f: Function) -> None:
    f.get(0)
    with f.if_(I32) as label:
        f.get(0)
        f.else_(label)
        f.f32_const(1.0)


def if_without_else(f: Function) -> None:
    f.get(0)
    with f.if_(I32):
        f.get(0)


def branch_without_the_result(f: Function) -> None:
    with f.block(I32) as done:
        f.br(done)


def code_after_a_branch(f: Function) -> None:
    with f.block() as done:
        f.br(done)
        f.get(0)


def branch_out_of_a_closed_block(f: Function) -> None:
    with f.block() as done:
        pass
    f.br(done)


def else_of_the_outer_if(f: Function) -> None:
    f.get(0)
    with f.if_() as outer:
        f.get(0)
        with f.if_():
            f.else_(outer)


MISTAKES: dict[str, tuple[Callable[[Function], object], str]] = {
    "operands missing": (lambda f: (f.get(0), f.op("i32.add")), "i32.add takes i32 i32, the stack holds i32"),
    "operands of another type": (
        lambda f: (f.get(0), f.f32_const(1.0), f.op("i32.add")),
        "i32.add takes i32 i32, the stack holds i32 f32",
    ),
    "operands in another order": (
        lambda f: (f.f32_const(1.0), f.get(0), f.memory("f32.store", 4)),
        "f32.store takes i32 f32, the stack holds f32 i32",
    ),
    "store of another type": (
        lambda f: (f.get(0), f.f64_const(1.0), f.memory("f32.store", 4)),
        "f32.store takes i32 f32, the stack holds i32 f64",
    ),
    "local of another type": (lambda f: (f.f32_const(1.0), f.set(0)), "local.set takes i32, the stack holds f32"),
    "tee of another type": (lambda f: (f.f32_const(1.0), f.tee(0)), "local.tee takes i32, the stack holds f32"),
    "select of two types": (
        lambda f: (f.f32_const(1.0), f.get(0), f.get(0), f.select()),
        "select takes f32|select takes i32 i32 i32, the stack holds f32 i32 i32",
    ),
    "select of vectors": (
        select_of_vectors,
        "select takes two numbers of one type and i32, the stack holds v128 v128 i32",
    ),
    "select without a condition": (lambda f: (f.get(0), f.get(0), f.select()), "select takes"),
    "condition of another type": (condition_of_another_type, "br_if takes i32, the stack holds f32"),
    "block reaches below its start": (block_reaches_below_its_start, "local.set takes i32, the stack holds nothing"),
    "block leaves too much": (block_leaves_too_much, "end of block takes exactly nothing, the stack holds i32"),
    "block leaves too little": (block_leaves_too_little, "end of block takes exactly i32, the stack holds nothing"),
    "branches of two types": (branches_of_two_types, "end of if takes exactly i32, the stack holds f32"),
    "if without else": (if_without_else, "an if that leaves i32 needs an else"),
    "branch without the result": (branch_without_the_result, "br takes i32, the stack holds nothing"),
    "code after a branch": (code_after_a_branch, "local.get after a branch that is always taken"),
    "branch out of a closed block": (branch_out_of_a_closed_block, "branch to a block that is not open"),
    "else of the outer if": (else_of_the_outer_if, "else without its if"),
    "call with too few": (
        lambda f: (f.get(0), f.call(Module().import_function("kernels", "v_pow", "vv", "v"))),
        "call of v_pow takes v128 v128, the stack holds i32",
    ),
    "unknown name": (lambda f: f.op("i32.power"), "i32.power is no instruction"),
    "immediates left out": (
        lambda f: (f.get(0), f.op("i32.load")),
        "i32.load is no instruction that stands without immediates",
    ),
    "shuffle of fifteen": (lambda f: f.v128("v128.const", bytes(15)), "v128.const takes 16 bytes, got 15"),
    "odd alignment": (lambda f: (f.get(0), f.memory("i32.load", 3)), "alignment of 3 bytes"),
    "result missing": (lambda f: (f.get(0), f.set(0)), "end of function takes exactly i32, the stack holds nothing"),
    "result of another type": (lambda f: f.f32_const(1.0), "end of function takes exactly i32, the stack holds f32"),
    "block left open": (lambda f: f.block().__enter__(), "the function ends within a block"),
}


@pytest.mark.parametrize(("mistake", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_refused(mistake: Callable[[Function], object], said: str) -> None:
    f = Function("i", "i")
    with pytest.raises(AssemblyError, match=said):
        mistake(f)
        f.encode()


def test_imports_come_before_functions() -> None:
    module = Module()
    module.export("f", Function(""))
    with pytest.raises(AssemblyError, match="import of late after a function"):
        module.import_function("env", "late", "")


class RandomCode:
    """Instructions in the text format (`text`) and as calls of the assembler, a part of them ill-typed."""

    PARAMS = "ilfdv"

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.text: list[str] = []
        self.calls: list[Callable[[Function], object]] = []
        self.labels: list[Label] = []
        self.stack = ""
        """What is on the stack if all of it is well-typed."""
        self.blocks: list[tuple[str, str]] = []
        for _ in range(int(self.rng.integers(1, 12))):
            self.grow()
        while self.blocks:
            self.end()
        self.results = self.pick(["", *self.PARAMS])
        self.settle(self.results)

    def pick(self, items: Sequence[str]) -> str:
        return str(items[int(self.rng.integers(len(items)))])

    def add(self, text: str, call: Callable[[Function], object], n_operands: int = 0, results: str = "") -> None:
        self.text.append(text)
        self.calls.append(call)
        self.stack = self.stack[: max(0, len(self.stack) - n_operands)] + results

    def grow(self) -> None:
        draw = self.rng.random()
        fitting = [n for n in sorted(PLAIN) if self.stack.endswith(PLAIN[n].operands)]
        if draw < 0.35 and fitting:
            name = self.pick(fitting)
            self.add(name, lambda f: f.op(name), len(PLAIN[name].operands), PLAIN[name].results)
        elif draw < 0.37:
            name = self.pick(sorted(PLAIN))
            self.add(name, lambda f: f.op(name), len(PLAIN[name].operands), PLAIN[name].results)
        elif draw < 0.47 and self.stack:
            right = self.PARAMS.index(self.stack[-1])
            local = right if self.rng.random() < 0.95 else int(self.rng.integers(len(self.PARAMS)))
            self.add(f"local.set {local}", lambda f: f.set(local), 1)
        elif draw < 0.52 and len(self.stack) > 2:
            self.add("select", lambda f: f.select(), 3, self.stack[-2])
        elif draw < 0.6:
            self.begin()
        elif draw < 0.7 and self.blocks:
            self.end()
        elif draw < 0.75 and self.blocks:
            self.add("br_if 0", lambda f: f.br_if(self.labels[-1]), 1)
        else:
            local = int(self.rng.integers(len(self.PARAMS)))
            self.add(f"local.get {local}", lambda f: f.get(local), 0, self.PARAMS[local])

    def begin(self) -> None:
        result = self.pick(["", *self.PARAMS])
        self.add(
            f"block (result {NAMES[result]})" if result else "block", lambda f: self.labels.append(f.block(result))
        )
        self.blocks.append((self.stack, result))
        self.stack = ""

    def settle(self, result: str) -> None:
        """Mostly leave just the result on the stack."""
        if self.rng.random() < 0.1:
            return
        while self.stack not in ("", result):
            local = self.PARAMS.index(self.stack[-1])
            self.add(f"local.set {local}", lambda f, local=local: f.set(local), 1)
        if self.stack != result:
            local = self.PARAMS.index(result)
            self.add(f"local.get {local}", lambda f: f.get(local), 0, result)

    def end(self) -> None:
        self.settle(self.blocks[-1][1])
        self.add("end", lambda f: f.end(self.labels.pop()))
        outer, result = self.blocks.pop()
        self.stack = outer + result


def test_accepts_what_wasmtime_accepts() -> None:
    """Random code, a part of it well-typed: both accept the same, and what is accepted is the same bytes."""
    accepted = refused = with_blocks = 0
    engine = wasmtime.Engine()
    for seed in range(3000):
        code = RandomCode(seed)
        wat = bytes(wasmtime.wat2wasm(text_of(code.PARAMS, code.results, " ".join(code.text))))
        f = Function(code.PARAMS, code.results)
        try:
            for call in code.calls:
                call(f)
            written = module_of(f)
        except AssemblyError:
            refused += 1
            with pytest.raises(wasmtime.WasmtimeError):
                wasmtime.Module.validate(engine, wat)
        else:
            accepted += 1
            with_blocks += "end" in code.text
            assert written == wat
            wasmtime.Module.validate(engine, wat)
    assert accepted > 300 and refused > 300 and with_blocks > 50, (accepted, refused, with_blocks)
