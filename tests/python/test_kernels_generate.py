"""The generator refuses what it cannot read, and its fingerprint changes with the meaning alone."""

import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import wasmtime
from tests.python.kernel_description import description_of

from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
from trainweb.ir import calls, layout
from trainweb.ir.instructions import Buf, KernelCall, Storage
from trainweb.ir.layout import ARENA

ROOT = Path(__file__).parents[2]
DEFINITION = ROOT / "wasm_kernels" / "kernels.def"
sys.path.append(str(DEFINITION.parent))  # behind scripts/, which has a module "build" too

import definition  # noqa: E402
import generate  # noqa: E402
import generate_calls  # noqa: E402
import generate_layout  # noqa: E402

SAMPLE = """
enum status(TW_OK, TW_BAD = 5)
const THREAD_SCRATCH_BYTES = 4096
// a comment
scale_f32(in f32 x[n], out? f32 y[max(n, 1) / 2], scratch f32 t[ceil4(n)],  // another
    i32 n, s32 shift[3], f32 factor) where n > 0 && shift[1] <= n
next(inout u8 x[4], i32 dims[2], i32 strides[2], in i64 y[reach_up(dims, strides) + 1])
"""


def test_entries_are_read() -> None:
    first, second = definition.parse(SAMPLE).kernels
    assert [a.name for a in first.args] == ["x", "y", "t", "n", "shift", "factor"]
    assert [a.kind for a in first.args] == ["in", "out", "scratch", "i32", "s32", "f32"]
    assert [a.words for a in first.args] == [1, 1, 1, 1, 3, 1]
    assert first.args[1].optional
    assert first.args[1].extent.text == "max(n, 1) // 2"
    assert first.where.text == "n > 0 and shift[1] <= n"
    assert second.args[3].type == "i64"


def test_emitted_code_names_every_kernel() -> None:
    kernels = definition.parse(SAMPLE)
    header, tables = generate.emit_header(kernels), generate.emit_tables(kernels)
    assert "const float *x;" in header
    assert "int32_t shift[3];" in header
    assert "#define TW_N_OPCODES 3" in header
    assert "tw_div(tw_max((double)a->n, 1.0), 2.0)" in tables
    assert "tw_reach_up(a->dims, a->strides, 2)" in tables
    assert "kernel_next, check_next, 6}" in tables
    assert json.loads(generate.describe(kernels))["kernels"][1]["opcode"] == 2


HEAD = "enum status(TW_OK)\nconst THREAD_SCRATCH_BYTES = 4096\n"


@pytest.mark.parametrize(
    "text",
    [
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
        "f(i32 n) where n > 0 where n < 5",
        "f(i32 n) pays n > m",
        "f(i32 n) flops 2*m",
        "f(out f32 y[1], i32 n) epilogue y",
        "f(out f32 y[1], i32 n) epilogue y: relu",  # has no activation
        "f(out f32 y[1], i32 activation) epilogue y: tanh",
        "f(in f32 x[1], i32 activation) epilogue x: relu",
        "f(out f32 y[1]) updates y",
        "f(out i32 y[1]) fails y",
        "f(in f32 x[1]) part x",
        "f(i32 n[WORDS])",
        "const n = 4",
        "const N 4",
        "floats N 4.0",
        "floats N = 4",
        "floats n = 4.0",
        "const N = n",
        "const N = 4\nconst N = 5",
        "const N = 4\nenum e(N)",
        "enum e(A, B = 0)",
        "enum e(A) more",
        "layout l(u16 a)",
        "layout l(u32)",
        "layout l(u32 a) more",
        "page l",
        "const N = 4\npage N",
        "let f(n) n",
        "let max(n) = n",
        "let f(n) = m",
        "let f(n) = 2*n\ng(i32 n) where f(n, n) > 1",
        "let f(d[]) = prod(d)\ng(i32 n) where f(n) > 1",
        "let f(d[]) = prod(d)\ng(i32 d[2]) where f(d[0]) > 1",
    ],
)
def test_errors(text: str) -> None:
    with pytest.raises(definition.DefinitionError):
        generate.emit_tables(definition.parse(HEAD + text))


def test_an_entry_must_start_somewhere() -> None:
    with pytest.raises(definition.DefinitionError, match="continuation"):
        definition.parse("  f(i32 n)")


MEANING = """
enum status(TW_OK, TW_BAD = 5)
enum activation(NONE, RELU)
enum segment(ARENA, CONSTANTS)
shared PLAN_VERSION = 1
const THREAD_SCRATCH_BYTES = 4096
const BLOCK = 8
layout state(u32 reset, f32 rate, i64 step, u32 _)
shared PYTHONS = 3
floats TERMS = 0.5, -1.25e-3
layout pythons(u32 b)
page status, activation, PLAN_VERSION, state
let blocks(n) = (n + BLOCK - 1)/BLOCK
// a comment
f(in f32 x[n], out f32 y[n], out|inout(accumulate) f32 c[n], scratch f32 t[blocks(n)], inout? f32 s[1], i32 n,
    i32 activation, i32 accumulate)
    where activation <= RELU
    pays n > 4
    flops 2*n
    epilogue c: relu
    updates s
    fails x
    part y
g(i32 n)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NONE, RELU", "RELU, NONE"),
        ("NONE, RELU", "NONE, GELU, RELU"),
        ("PLAN_VERSION = 1", "PLAN_VERSION = 2"),
        ("BLOCK = 8", "BLOCK = 16"),
        ("u32 reset, f32 rate", "f32 rate, u32 reset"),
        ("f32 rate", "u32 rate"),
        ("i64 step", "u64 step"),
        ("n + BLOCK - 1", "n + BLOCK"),
        ("y[n]", "y[n + 1]"),
        ("in f32 x", "inout f32 x"),
        ("out|inout(accumulate) f32 c", "inout f32 c"),
        ("inout? f32 s", "inout f32 s"),
        ("<= RELU", "< RELU"),
        ("g(", "h("),
        ("g(i32 n)", "g(s32 n)"),
    ],
)
def test_the_fingerprint_changes_with_the_meaning(old: str, new: str) -> None:
    assert old in MEANING
    changed = MEANING.replace(old, new)
    if "inout f32 s" in changed:
        changed = changed.replace("    updates s\n", "")
    assert definition.parse(MEANING).fingerprint() != definition.parse(changed).fingerprint()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// a comment", "// another"),
        ("pays n > 4", "pays n > 5"),
        ("flops 2*n", "flops 3*n"),
        ("    epilogue c: relu\n", ""),
        ("    fails x\n", ""),
        ("    part y\n", ""),
        ("blocks(n)]", "(n + 8 - 1)/BLOCK]"),
        ("BLOCK = 8", "BLOCK = 2*4"),
    ],
)
def test_the_fingerprint_does_not_change_with_what_only_the_compiler_reads(old: str, new: str) -> None:
    assert old in MEANING
    assert definition.parse(MEANING).fingerprint() == definition.parse(MEANING.replace(old, new)).fingerprint()


def test_constants_and_layouts_are_the_same_in_all_languages() -> None:
    parsed = definition.parse(MEANING)
    header = generate.emit_header(parsed)
    python: dict[str, Any] = {}
    functions = {"tw_session_close": [], "tw_fit_start": ["on_nan"]}
    exec(generate_layout.emit_python(parsed, functions), python)
    page = generate_layout.emit_typescript(parsed, functions)
    typescript = dict(re.findall(r"export const (\w+) = (\d+);", page))
    assert "tw_session_close: [];" in page and "tw_fit_start: [onNan: number];" in page
    assert get_args(python["SessionCall"]) == tuple(functions)
    assert get_args(python["FitCall"]) == ("start",)
    shared = {"PLAN_VERSION": 1, "TW_BAD": 5, "RELU": 1, "STATE_RATE": 1, "STATE_STEP": 2, "STATE_WORDS": 5}
    assert {name: python[name] for name in shared} == shared
    assert {name: int(typescript[name]) for name in shared} == shared
    in_c = dict(re.findall(r"(\w+) = (\d+)", header)) | dict(re.findall(r"#define (\w+) (\d+)", header))
    assert {name: int(in_c[name]) for name in shared} == shared
    assert "#define BLOCK 8" in header
    assert "#define TERMS_1 -1.25e-3f" in header and python["TERMS"] == ("0.5f", "-1.25e-3f")
    assert "BLOCK" not in python
    assert (python["PYTHONS"], python["PYTHONS_B"]) == (3, 0)
    assert not {"BLOCK", "PYTHONS", "PYTHONS_B", "ARENA"} & typescript.keys()
    assert python["STATE_TYPES"] == {0: "I", 1: "f", 2: "q"}
    assert python["FINGERPRINT"] == parsed.fingerprint()


def test_the_built_kernels_are_those_of_the_definition() -> None:
    parsed = definition.parse(DEFINITION.read_text())
    text = json.dumps(json.loads(generate.describe(parsed)))
    for build in ("kernels", "kernels.relaxed"):
        assert json.dumps(description_of(WasmtimeEngine(build))) == text, build


def test_functions_on_a_session_are_those_that_the_kernels_export() -> None:
    """Python and TypeScript call them by the names and arguments that the C sources say."""
    sources = [path.read_text() for path in (DEFINITION.parent / "session").glob("*.c")]
    found = generate_layout.session_calls(sources)
    module = wasmtime.Module.from_file(wasmtime.Engine(), str(DEFINITION.parent / "build" / "kernels.wasm"))
    exported = {export.name for export in module.exports if re.match("tw_(session|fit)_", export.name)}
    assert found.keys() == exported - {"tw_session_open"}
    assert set(get_args(layout.SessionCall)) == found.keys()
    assert found["tw_fit_resume"] == ["epoch", "step", "kept", "optimizer_steps", "loss_sum", "rows"]
    assert found["tw_fit_keep"] == []


def test_the_classes_in_git_are_those_of_the_definition() -> None:
    """People read them where nothing is built."""
    text = generate.generated_sources(DEFINITION)[generate.CALLS]
    assert (ROOT / generate.CALLS).read_text() == text, "run `python wasm_kernels/build.py`"


@pytest.mark.parametrize(
    "name",
    [
        *("GRAIN", "NORM_PARTIALS", "CONV_IMAGE_GROUPS", "CONV_GROUPED_WEIGHTS", "ATTENTION_KEYS", "ATTENTION_ROWS"),
        *("ATTENTION_TILES", "WINOGRAD_POINTS", "WINOGRAD_PADDING", "WINOGRAD_GROUPS", "WINOGRAD_PARTIAL_FLOATS"),
    ],
)
def test_a_constant_that_sizes_scratch_is_raised_in_one_place(name: str) -> None:
    """C's #define, the verifier's extents and the fingerprint follow kernels.def; C has no separate number."""
    text = DEFINITION.read_text()
    changed, n = re.subn(rf"^(const|shared) {name} = .*$", rf"\1 {name} = 7777", text, flags=re.M)
    assert n == 1
    before, after = definition.parse(text), definition.parse(changed)
    assert f"#define {name} 7777" in generate.emit_header(after)
    sizes = [
        [a.extent.text for k in d.kernels for a in k.args if a.kind == "scratch" or a.name == "u"]
        for d in (before, after)
    ]
    assert sizes[0] != sizes[1]
    assert before.fingerprint() != after.fingerprint()
    sources = [p.read_text() for pattern in ("*.c", "*.h", "conv/*.[ch]") for p in DEFINITION.parent.glob(pattern)]
    assert any(re.search(rf"\b{name}\b", source) for source in sources)
    assert not any(re.search(rf"\b{name} = |#define {name}\b", source) for source in sources)


def test_every_kernel_has_an_operator_or_a_pass_that_emits_it() -> None:
    files = [p for p in (ROOT / "py_src/trainweb").rglob("*.py") if p != ROOT / generate.CALLS]
    texts = "".join(p.read_text() for p in files)
    emitted = set(re.findall(r"calls\.(\w+)", texts))
    for names in re.findall(r"from trainweb\.ir\.calls import (\([^)]*\)|[\w, ]+)", texts):  # of passes
        emitted.update(name for name in re.findall(r"\w+", names) if re.search(rf"[ (]{name}\(", texts))
    classes = {generate_calls.class_name(k) for k in definition.parse(DEFINITION.read_text()).kernels}
    assert classes - emitted == set()


CALLS = """
sum_f32(in f32 x[n], in? f32 w[n], out|inout(accumulate) f32 y[1], out|inout(accumulate)? f32 z[1], out? u8 m[n],
    scratch i64 t[ceil4(n)], i32 n, s32 by[3], f32 scale, i32 accumulate)
"""


def module_of(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "calls"}
    kernels = list(KernelCall.KERNELS)
    try:
        exec(generate_calls.emit_calls(definition.parse(text)), names)
    finally:
        KernelCall.KERNELS[:] = kernels
    return names


def test_calls_tell_what_they_read_and_write() -> None:
    sum_class = module_of(CALLS)["Sum"]
    x, w, y, z, m = (Buf(Storage(ARENA, 4), "float32", (1,), name=n) for n in "xwyzm")
    call = sum_class(x=x, y=y, z=z, m=m, n=5, by=(1, 2, 3), scale=0.5, accumulate=0)
    call.node = "here"
    call.make_scratch(lambda dtype, shape: Buf(Storage(ARENA, 64), dtype, shape, name="t"))
    assert (call.t.dtype, call.t.shape, call.node, call.w) == ("int64", (8,), "here", None)
    assert [b.name for b in call.reads] == ["x"]
    assert [b.name for b in call.writes] == ["y", "z", "m", "t"]
    call.accumulate, call.w, call.m = 1, w, None
    assert [b.name for b in call.reads] == ["x", "w", "y", "z"]
    assert [b.name for b in call.writes] == ["y", "z", "t"]
    call.z = None
    assert [b.name for b in call.reads] == ["x", "w", "y"]
    assert call.OPTIONAL_RESULTS == ("m",)
    with pytest.raises(TypeError, match="accumulate"):
        sum_class(x=x, y=y, n=5, by=(1, 2, 3), scale=0.5)
    with pytest.raises(TypeError, match="factor"):
        sum_class(x=x, y=y, n=5, by=(1, 2, 3), scale=0.5, accumulate=0, factor=2)


def test_operands_can_be_exchanged() -> None:
    x, y, other = (Buf(Storage(ARENA, 4), "uint8", (4,), name=n) for n in ("x", "y", "other"))
    call = calls.Copy(src=x, dst=y, n=4)
    call.node = "first"
    moved = call.moved(lambda b: other if b is y else b, "second")
    assert (moved.src, moved.dst, moved.n, moved.node) == (x, other, 4, "second")
    assert (call.dst, call.node) == (y, "first")
    call.replace_operand(x, other)
    assert dict(call.operands()) == {"src": other, "dst": y}


@pytest.mark.parametrize(
    "text",
    [
        "f(out|inout(accumulate) f32 y[1])",  # no such argument
        "f(out|inout(accumulate) f32 y[1], f32 accumulate)",
        "f(out|inout(add) f32 y[1], i32 add)",
        "f(in|inout(accumulate) f32 y[1], i32 accumulate)",
        "f(i32 node)",  # a field that every call has
        "f(i32 n)\nf_f32(i32 n)",  # two classes F
    ],
)
def test_what_can_be_no_call(text: str) -> None:
    with pytest.raises(definition.DefinitionError):
        generate_calls.emit_calls(definition.parse(text))
