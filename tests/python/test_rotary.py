"""Rotary position embedding: the kernel against float64, and the pass that finds it: the same bytes in fewer calls."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import smol
from tests.ops.op_runner import run
from tests.python import pipelines
from tests.python.kernel_runner import KernelRunner
from tests.python.plan_builder import PlanFailed
from tests.python.test_compiler_passes import plan_of

import trainweb
from trainweb.compiler.compile import compile_model
from trainweb.ir.program import Program
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy

BATCH, HEADS, LENGTH = 2, 3, 5


def turned(x: np.ndarray, cos: list[np.ndarray], sin: list[np.ndarray]) -> np.ndarray:
    """The two halves of the rows of x turned, in float64."""
    x1, x2 = np.split(x.astype(np.float64), 2, -1)
    return np.concatenate([x1 * cos[0] - x2 * sin[0], x2 * cos[1] + x1 * sin[1]], -1)


def turned_back(dy: np.ndarray, cos: list[np.ndarray], sin: list[np.ndarray]) -> np.ndarray:
    """The gradient of `turned` by x, in float64."""
    d1, d2 = np.split(dy.astype(np.float64), 2, -1)
    return np.concatenate([d1 * cos[0] + d2 * sin[1], d2 * cos[1] - d1 * sin[0]], -1)


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole tables", "half tables"])
@pytest.mark.parametrize("half", [1, 3, 4, 19, 32])
def test_the_kernel_turns_transposed_rows(kernels: KernelRunner, half: int, is_whole: bool, back: int) -> None:
    rng = np.random.default_rng(half)
    x = rng.standard_normal((BATCH, LENGTH, HEADS, 2 * half)).astype(np.float32)
    tables = rng.standard_normal((2, LENGTH, (1 + is_whole) * half)).astype(np.float32)
    distance = half if is_whole else 0
    shape = (BATCH, HEADS, LENGTH, 2 * half + 3)
    strides = np.array(shape[1:])[::-1].cumprod()[::-1]
    got = kernels.run(
        "rotary_f32",
        x=x,
        cos=tables[0],
        sin=tables[1],
        y=np.full(np.prod(shape) - 3, 7, np.float32),
        dims=list(shape[:3]),
        half=half,
        x_strides=[LENGTH * HEADS * 2 * half, 2 * half, HEADS * 2 * half],
        cos_strides=[0, 0, tables.shape[2]],
        sin_strides=[0, 0, tables.shape[2]],
        y_strides=[int(s) for s in strides],
        cos_half=distance,
        sin_half=distance,
        back=back,
    )["y"]
    rows = np.append(got, [7] * 3).reshape(shape)
    cos, sin = ([t[:, :half], t[:, distance : distance + half]] for t in tables.astype(np.float64))
    expected = (turned_back if back else turned)(x.transpose(0, 2, 1, 3), cos, sin)
    np.testing.assert_allclose(rows[..., : 2 * half], expected, rtol=0, atol=4 * 2.0**-24 * np.abs(expected).max() * 4)
    assert (rows[..., 2 * half :] == 7).all(), "what lies between the rows"


def test_rows_that_lie_on_each_other_are_refused(kernels: KernelRunner) -> None:
    x, table = np.zeros((4, 6), np.float32), np.zeros((1, 6), np.float32)
    words: dict[str, Any] = {name: [0, 0, 6] for name in ("x_strides", "y_strides")}
    words |= {"cos_strides": [0] * 3, "sin_strides": [0] * 3, "cos_half": 3, "sin_half": 3, "half": 3, "back": 0}
    words["dims"] = [1, 1, 4]
    kernels.run("rotary_f32", x=x, cos=table, sin=table, y=x.copy(), **words)
    for bad in ({"y_strides": [0, 0, 5]}, {"half": 0}, {"back": 2}, {"dims": [2, 1, 4]}, {"x_strides": [0, 0, 7]}):
        with pytest.raises(PlanFailed):
            kernels.run("rotary_f32", x=x, cos=table, sin=table, y=x.copy(), **{**words, **bad})


# The pass.

INTS = {"zero": [0], "half": [2], "end": [9], "four": [4], "axis": [3]}


def slices(x: str, first: str, second: str) -> list[Node]:
    """The columns [0, 2) and [2, ...) of x."""
    return [Node("Slice", [x, "zero", "half", "axis"], [first]), Node("Slice", [x, "half", "end", "axis"], [second])]


ROTATED = [
    Node("Transpose", ["rows"], ["x"], {"perm": [0, 2, 1, 3]}),
    Node("Mul", ["x", "cos"], ["real"]),
    *slices("x", "x1", "x2"),
    Node("Neg", ["x2"], ["minus"]),
    Node("Concat", ["minus", "x1"], ["other"], {"axis": -1}),
    Node("Mul", ["other", "sin"], ["imaginary"]),
    Node("Add", ["real", "imaginary"], ["y"]),
]
"""rotate_half of transformers."""


def graph_of(nodes: list[Node], *outputs: str, cos_width: int = 4) -> tuple[Graph, dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    angles = rng.standard_normal((1, 1, LENGTH, cos_width)).astype(np.float32)
    feeds = {"rows": rng.standard_normal((BATCH, LENGTH, HEADS, 4)).astype(np.float32)}
    feeds |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    graph = Graph("rotary", nodes, opsets={"": 18, "com.microsoft": 1})
    graph.inputs = [Value(n, "float32", x.shape) for n, x in feeds.items()]
    graph.initializers = {n: from_numpy(n, np.array(v)) for n, v in INTS.items()}
    graph.outputs = [Value(n, "float32", None) for n in outputs]
    return graph, feeds


def kernels(graph: Graph, feeds: dict[str, np.ndarray]) -> list[str]:
    return [line.split("(")[0].split()[0] for line in plan_of(graph, **feeds).text]


def reasons(graph: Graph, feeds: dict[str, np.ndarray]) -> list[tuple[str, str, str]]:
    """What the pass says of rotations that it leaves."""
    programs: dict[str, Program] = {}
    types = {n: TensorType(str(x.dtype), x.shape) for n, x in feeds.items()}
    compile_model(graph, types, [v.name for v in graph.outputs], observe=programs.__setitem__)
    return [(r.what, r.node, r.reason) for r in programs["fuse_rotary"].refusals]


NEIGHBOURS = [
    ROTATED[0],
    Node("Mul", ["x", "cos"], ["real"]),
    Node("Slice", ["x", "zero", "end", "axis", "half"], ["x1"]),
    Node("Slice", ["x", "one", "end", "axis", "half"], ["x2"]),
    Node("Neg", ["x2"], ["minus"]),
    *(Node("Unsqueeze", [n, "four"], [f"{n}_column"]) for n in ("minus", "x1")),
    Node("Concat", ["minus_column", "x1_column"], ["columns"], {"axis": -1}),
    Node("Reshape", ["columns", "as_rows"], ["other"]),
    *ROTATED[-2:],
]
"""Rotation of neighbours, as GPT-J does it."""


@pytest.mark.parametrize("what", ["neighbours", "shifted", "halves"])
def test_the_pass_says_which_rotation_it_does_not_take(what: str) -> None:
    nodes = {"neighbours": NEIGHBOURS, "halves": ROTATED}.get(what)
    # As RWKV: a share of each token, and a share of others, none of which is negative.
    nodes = nodes or [Node("Identity", n.inputs, n.outputs) if n.op_type == "Neg" else n for n in NEIGHBOURS]
    nodes = [Node(n.op_type, n.inputs, n.outputs, n.attrs, "", f"the {n.op_type}") for n in nodes]
    graph, feeds = graph_of(nodes, "y")
    graph.initializers["one"] = from_numpy("one", np.array([1]))
    graph.initializers["as_rows"] = from_numpy("as_rows", np.array([BATCH, HEADS, LENGTH, 4]))
    reason = "it turns other columns than both halves of a row"
    said = [("rotary embedding", "Add node 'the Add'", reason)] if what == "neighbours" else []
    assert reasons(graph, feeds) == said
    assert ("rotary_f32" in kernels(graph, feeds)) == (what == "halves")
    same_without(graph, feeds)


def same_without(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results, which must equal the results of a plan without the pass."""
    with pipelines.passes(pipelines.without("fuse_rotary")):
        assert "rotary_f32" not in kernels(graph, feeds)
        expected = run(graph, feeds)
    found = run(graph, feeds)
    for name, want in expected.items():
        np.testing.assert_array_equal(found[name], want)
    return found


def test_rotated_halves_are_one_call_that_reads_the_transposed_tensor() -> None:
    graph, feeds = graph_of(ROTATED, "y")
    assert kernels(graph, feeds) == ["rotary_f32"]
    cos, sin = (np.split(feeds[n].astype(np.float64), 2, -1) for n in ("cos", "sin"))
    expected = turned(feeds["rows"].transpose(0, 2, 1, 3), cos, sin)
    np.testing.assert_allclose(same_without(graph, feeds)["y"], expected, rtol=0, atol=1e-6)


def test_what_others_read_on_the_way_is_still_made() -> None:
    graph, feeds = graph_of(ROTATED, "y", "other")
    assert kernels(graph, feeds).count("rotary_f32") == 1
    same_without(graph, feeds)


def test_rows_that_are_wanted_before_and_after_a_transposition_are_both_there() -> None:
    turned_rows = Node("Transpose", ["y"], ["z"], {"perm": [0, 2, 1, 3]})
    graph, feeds = graph_of([*ROTATED, turned_rows], "y", "z")
    assert kernels(graph, feeds).count("rotary_f32") == 1
    same_without(graph, feeds)


def test_rows_whose_columns_lie_apart_are_copied_before_they_are_turned() -> None:
    graph, feeds = graph_of([Node("Transpose", ["rows"], ["x"], {"perm": [0, 3, 2, 1]}), *ROTATED[1:]], "y")
    feeds["rows"] = np.ascontiguousarray(feeds["rows"].transpose(0, 3, 1, 2))
    graph.inputs = [Value(n, "float32", x.shape) for n, x in feeds.items()]
    assert kernels(graph, feeds) == ["strided_copy", "rotary_f32"]
    same_without(graph, feeds)


def test_part_of_a_row_is_turned_where_it_lies() -> None:
    """As Phi does it: the rest of each row stays as it is."""
    head = [
        Node("Slice", ["wide", "zero", "four", "axis"], ["rows"]),
        Node("Slice", ["wide", "four", "end", "axis"], ["rest"]),
        Node("Transpose", ["rest"], ["rest_turned"], {"perm": [0, 2, 1, 3]}),
    ]
    nodes = [*head, *ROTATED, Node("Concat", ["y", "rest_turned"], ["z"], {"axis": -1})]
    graph, feeds = graph_of(nodes, "z")
    feeds["wide"] = np.random.default_rng(4).standard_normal((BATCH, LENGTH, HEADS, 7)).astype(np.float32)
    del feeds["rows"]
    graph.inputs = [Value(n, "float32", x.shape) for n, x in feeds.items()]
    assert kernels(graph, feeds).count("rotary_f32") == 1
    assert not any(k == "generated" for k in kernels(graph, feeds))
    same_without(graph, feeds)


def test_the_operators_of_both_domains_are_one_call() -> None:
    nodes = [Node("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["y"], {}, "com.microsoft")]
    graph, feeds = graph_of([ROTATED[0], *nodes], "y", cos_width=2)
    feeds["positions"] = np.tile(np.arange(LENGTH), (BATCH, 1))
    feeds |= {n: feeds[n][0, 0] for n in ("cos", "sin")}
    graph.inputs = [Value(n, x.dtype.name, x.shape) for n, x in feeds.items()]
    assert kernels(graph, feeds).count("rotary_f32") == 1
    assert not {"generated", "strided_copy"} & set(kernels(graph, feeds))
    cos, sin = ([feeds[n].astype(np.float64)] * 2 for n in ("cos", "sin"))
    expected = turned(feeds["rows"].transpose(0, 2, 1, 3), cos, sin)
    np.testing.assert_allclose(same_without(graph, feeds)["y"], expected, rtol=0, atol=1e-6)


def changed(name: str, *inputs: str, op: str = "") -> list[Node]:
    """The rotation with another node that makes `name`."""
    return [Node(op or n.op_type, list(inputs), n.outputs, n.attrs) if name in n.outputs else n for n in ROTATED]


@pytest.mark.parametrize(
    "nodes",
    [
        changed("minus", "x2", op="Abs"),
        changed("other", "x1", "minus"),
        changed("y", "real", "imaginary", op="Mul"),
        [ROTATED[0], Node("Mul", ["x", "cos"], ["product"]), *changed("real", "product", op="Abs")[1:]],
        changed("real", "rows_turned", "cos"),
        changed("imaginary", "other", "other"),
        [*ROTATED[:-1], Node("Sum", ["real", "imaginary", "x"], ["y"])],
    ],
)
def test_anything_else_stays_as_it_is(nodes: list[Node]) -> None:
    other = Node("Transpose", ["rows2"], ["rows_turned"], {"perm": [0, 2, 1, 3]})
    graph, feeds = graph_of([other, *nodes], "y")
    feeds["rows2"] = feeds["rows"][::-1].copy()
    graph.inputs = [Value(n, "float32", x.shape) for n, x in feeds.items()]
    assert "rotary_f32" not in kernels(graph, feeds)
    same_without(graph, feeds)


def rows_of(shape: tuple[int, ...], dtype: str = "float32") -> tuple[Graph, dict[str, np.ndarray]]:
    """The rotation of rows of another shape or type, which no transposition precedes."""
    rng = np.random.default_rng(5)
    graph, _ = graph_of(ROTATED[1:], "y")
    graph.initializers["axis"] = from_numpy("axis", np.array([-1]))
    feeds = {"x": (9 * rng.standard_normal(shape)).astype(dtype)}
    feeds |= {n: (9 * rng.standard_normal((*shape[:-2], 1, shape[-1]))).astype(dtype) for n in ("cos", "sin")}
    graph.inputs = [Value(n, dtype, x.shape) for n, x in feeds.items()]
    return graph, feeds


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 2, 1, 3, 4), "float32"), ((2, 0, 3, 4), "float32"), ((2, 1, 3, 4), "int32")]
)
def test_rows_that_the_kernel_does_not_take_stay_as_they_are(shape: tuple[int, ...], dtype: str) -> None:
    """It takes floats on at most four axes, and some of them."""
    graph, feeds = rows_of((2, 1, 3, 4))
    assert kernels(graph, feeds).count("rotary_f32") == 1
    graph, feeds = rows_of(shape, dtype)
    assert "rotary_f32" not in kernels(graph, feeds)
    same_without(graph, feeds)


def test_a_cosine_that_a_number_was_spread_to_is_taken() -> None:
    """It is a copy whose source has no axis."""
    graph, feeds = graph_of([Node("Expand", ["number", "as_x"], ["cos"]), *ROTATED], "y")
    del feeds["cos"]
    feeds["number"] = np.float32(0.5)
    graph.inputs = [Value(n, "float32", np.shape(x)) for n, x in feeds.items()]
    graph.initializers["as_x"] = from_numpy("as_x", np.array([BATCH, HEADS, LENGTH, 4]))
    same_without(graph, feeds)


def step_of(path: Path) -> tuple[list[str], dict[str, bytes]]:
    """The plan of a step of adapters, and gradients."""
    lora = {"rank": 2, "targets": ["q_proj", "v_proj"]}
    with trainweb.TrainingSession.from_model(path, loss="CrossEntropyLoss", lora=lora) as s:
        ids = np.random.default_rng(0).integers(0, 64, (2, 12))
        s.train_step({"input_ids": ids, "labels": np.roll(ids, -1, 1)})
        grads = {n: p.grad.tobytes() for n, p in s._core.state.parameters.items() if p.grad is not None}
        return list(s._core.host.loaded[0].plan.text), grads


def test_adapters_of_a_llama_learn_the_same_in_fewer_calls(tmp_path: Path) -> None:
    layers = 2
    size = smol.Size(layers=layers, width=32, heads=4, key_heads=2, hidden=48, vocabulary=64)
    path = smol.write(tmp_path, replace(size))
    text, grads = step_of(path)
    calls = [line for line in text if line.startswith("rotary_f32")]
    # Keys of the first layer get no gradient: they lead to no adapter.
    assert [("back=1" in line) for line in calls].count(False) == 2 * layers
    assert [("back=1" in line) for line in calls].count(True) == 2 * layers - 1
    with pipelines.passes(pipelines.without("fuse_rotary")):
        plain, expected = step_of(path)
    assert grads == expected
    assert any(np.frombuffer(g, np.float32).any() for g in grads.values())
    assert len(text) <= len(plain) - 7 * len(calls)
