"""The generator refuses what it cannot read, and its fingerprint changes with the meaning alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from trainweb.backend.wasm.engine import get_engine
from trainweb.ir import calls
from trainweb.ir.program import ARENA, Buf, Storage

ROOT = Path(__file__).parents[2]
DEFINITION = ROOT / "wasm_kernels" / "kernels.def"
sys.path.insert(0, str(DEFINITION.parent))

import generate  # noqa: E402
import generate_calls  # noqa: E402

SAMPLE = """
// a comment
scale_f32(in f32 x[n], out? f32 y[max(n, 1) / 2], scratch f32 t[ceil4(n)],  // another
    i32 n, s32 shift[3], f32 factor) where n > 0 && shift[1] <= n
next(inout u8 x[4], i32 dims[2], i32 strides[2], in i64 y[reach_up(dims, strides) + 1])
"""


def test_entries_are_read() -> None:
    first, second = generate.parse(SAMPLE)
    assert [a.name for a in first.args] == ["x", "y", "t", "n", "shift", "factor"]
    assert [a.kind for a in first.args] == ["in", "out", "scratch", "i32", "s32", "f32"]
    assert [a.words for a in first.args] == [1, 1, 1, 1, 3, 1]
    assert first.args[1].optional
    assert first.args[1].extent == "max(n, 1) // 2"
    assert first.where == "n > 0 and shift[1] <= n"
    assert second.args[3].type == "i64"


def test_emitted_code_names_every_kernel() -> None:
    kernels = generate.parse(SAMPLE)
    header, tables = generate.emit_header(kernels), generate.emit_tables(kernels)
    assert "const float *x;" in header
    assert "int32_t shift[3];" in header
    assert "#define TW_N_OPCODES 3" in header
    assert "tw_div(tw_max((double)a->n, 1.0), 2.0)" in tables
    assert "tw_reach_up(a->dims, a->strides, 2)" in tables
    assert "kernel_next, check_next, 6}" in tables
    assert json.loads(generate.describe(kernels))["kernels"][1]["opcode"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "  f(i32 n)",  # continues nothing
        "f(i32 n",
        "f(i32 n) whence n > 0",
        "f(i32 n, i32 n)",
        "f(i32 n)\nf(i32 m)",
        "generated(i32 n)",
        "f(in f16 x[n], i32 n)",
        "f(in f32 x, i32 n)",
        "f(double n)",
        "f(in f32 x[m], i32 n)",
        "f(in f32 x[n], f32 n)",
        "f(in f32 x[n[3]], i32 n[3])",
        "f(in f32 x[n], i32 n[3])",
        "f(in f32 x[n ** 2], i32 n)",
        "f(in f32 x[abs(n)], i32 n)",
        "f(in f32 x[max(n)], i32 n)",
        "f(in f32 x[n.real], i32 n)",
        "f(in f32 x[1.5], i32 n)",
        "f(in f32 x[n +], i32 n)",
        "f(in f32 x[reach_up(d, s)], i32 d[2], i32 s[3])",
        "f(i32 n) where n < 1 < 2",
        "f(i32 n) where n > 0 || n < 5",
        "f(i32 n) where __import__('os')",
    ],
)
def test_errors(text: str) -> None:
    with pytest.raises(generate.DefinitionError):
        generate.emit_tables(generate.parse(text))


def test_fingerprint_follows_the_meaning() -> None:
    base = generate.fingerprint(generate.parse(SAMPLE))
    assert base == generate.fingerprint(generate.parse(SAMPLE.replace("// a comment", "//")))
    for old, new in (("n > 0", "n > 1"), ("ceil4(n)", "n"), ("inout u8", "in u8"), ("next", "nest")):
        assert base != generate.fingerprint(generate.parse(SAMPLE.replace(old, new)))


def test_the_built_kernels_are_those_of_the_definition() -> None:
    kernels = generate.parse(DEFINITION.read_text())
    description = get_engine(reproducible=True).description
    assert description.fingerprint == generate.fingerprint(kernels)
    assert list(description.kernels) == [k.name for k in kernels]


def test_the_calls_are_those_of_the_definition() -> None:
    text = generate_calls.emit_calls(generate.parse(DEFINITION.read_text()))
    assert (ROOT / generate.CALLS).read_text() == text, "run `python wasm_kernels/build.py`"


def test_every_kernel_has_an_operator_that_emits_it() -> None:
    files = [p for p in (ROOT / "py_src/trainweb").rglob("*.py") if p != ROOT / generate.CALLS]
    emitted = set(re.findall(r"calls\.(\w+)", "".join(p.read_text() for p in files)))
    classes = {generate_calls.class_name(k) for k in generate.parse(DEFINITION.read_text())}
    assert classes - emitted == set()


CALLS = """
sum_f32(in f32 x[n], in? f32 w[n], out|inout(more) f32 y[1], out|inout(more)? f32 z[1], out? u8 m[n],
    scratch i64 t[ceil4(n)], i32 n, s32 by[3], f32 scale, i32 more)
"""


def module_of(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "calls"}
    exec(generate_calls.emit_calls(generate.parse(text)), names)
    return names


def test_calls_tell_what_they_read_and_write() -> None:
    sum_class = module_of(CALLS)["Sum"]
    x, w, y, z, m = (Buf(Storage(ARENA, 4), "float32", (1,), name=n) for n in "xwyzm")
    call = sum_class(x=x, y=y, z=z, m=m, n=5, by=(1, 2, 3), scale=0.5, more=0, node="here")
    call.make_scratch(lambda dtype, shape: Buf(Storage(ARENA, 64), dtype, shape, name="t"))
    assert (call.t.dtype, call.t.shape, call.node, call.w) == ("int64", (8,), "here", None)
    assert [b.name for b in call.reads] == ["x"]
    assert [b.name for b in call.writes] == ["y", "z", "m", "t"]
    call.more, call.w, call.m = 1, w, None
    assert [b.name for b in call.reads] == ["x", "w", "y", "z"]
    assert [b.name for b in call.writes] == ["y", "z", "t"]
    call.z = None
    assert [b.name for b in call.reads] == ["x", "w", "y"]
    assert call.OPTIONAL_RESULTS == ("m",)
    with pytest.raises(TypeError, match="more"):
        sum_class(x=x, y=y, n=5, by=(1, 2, 3), scale=0.5)
    with pytest.raises(AttributeError):
        call.factor = 2


def test_operands_can_be_exchanged() -> None:
    x, y, other = (Buf(Storage(ARENA, 4), "uint8", (4,), name=n) for n in ("x", "y", "other"))
    call = calls.Copy(src=x, dst=y, n=4, node="first")
    moved = call.moved(lambda b: other if b is y else b, "second")
    assert (moved.src, moved.dst, moved.n, moved.node) == (x, other, 4, "second")
    assert (call.dst, call.node) == (y, "first")
    call.replace_operand(x, other)
    assert dict(call.operands()) == {"src": other, "dst": y}


@pytest.mark.parametrize(
    "text",
    [
        "f(out|inout(more) f32 y[1])",  # no such argument
        "f(out|inout(more) f32 y[1], f32 more)",
        "f(in|inout(more) f32 y[1], i32 more)",
        "f(i32 node)",  # a field that every call has
        "f(i32 n)\nf_f32(i32 n)",  # two classes F
    ],
)
def test_what_can_be_no_call(text: str) -> None:
    with pytest.raises(generate.DefinitionError):
        generate_calls.emit_calls(generate.parse(text))
