"""The generator refuses what it cannot read, and its fingerprint changes with the meaning alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from wasm_kernels import generate

from trainweb.backend.wasm.engine import get_engine

DEFINITION = Path(__file__).parents[2] / "wasm_kernels" / "kernels.def"


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


def test_every_kernel_has_an_operator_that_emits_it() -> None:
    sources = "".join(p.read_text() for p in (DEFINITION.parent.parent / "py_src/trainweb").rglob("*.py"))
    named = set(re.findall(r'"([a-z][a-z0-9_]*)"', sources))
    assert [k.name for k in generate.parse(DEFINITION.read_text()) if k.name not in named] == []
