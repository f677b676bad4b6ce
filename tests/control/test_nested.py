"""Control flow within control flow, whose correct results come from other loops.

Forward against onnx's evaluator, gradients against differences of it in float64; of many iterations against a
recurrence.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import numpy_helper
from tests.control.test_control_flow import BOOL, FLOAT, INT, LOSS, STEP, body, gradients, info, model, node, run

import trainweb
from trainweb.control import repeat
from trainweb.errors import UnsupportedError

SEEDS = 40
CONSTANTS = {
    "scale": np.array([0.9, -0.7, 0.8], np.float32),
    "mix": np.array([[0.5, 0.3, -0.6], [-0.4, 0.8, 0.2], [0.1, -0.5, 0.7]], np.float32),
    "rows": np.array([[0.3, -0.2, 0.5], [0.1, 0.9, -0.4], [-0.6, 0.2, 0.3], [0.4, -0.8, 0.7]], np.float32),
    "level": np.float32(0.4),
    "yes": np.array(True),
    "no": np.array(False),
    **{f"count{n}": np.array(n) for n in range(5)},
    "axis0": np.array([0]),
}
X = np.array([0.3, -0.5, 0.2], np.float32)


# ---- the same result, many iterations


def affine(outer: int, inner: int) -> onnx.ModelProto:
    """`h = scale h + x`, `outer` times `inner` times; the result of the outer body is right if the inner loop is."""
    steps = body(
        [node("Mul", ["g", "scale"], ["s"]), node("Add", ["s", "x"], ["next"])],
        [info("j", INT, []), info("also", BOOL, []), info("g", FLOAT, [1])],
        [info("also", BOOL, []), info("next", FLOAT, [1])],
    )
    around = body(
        [node("Loop", ["inner", "", "h"], ["large"], "in", body=steps)],
        [info("i", INT, []), info("on", BOOL, []), info("h", FLOAT, [1])],
        [info("on", BOOL, []), info("large", FLOAT, [1])],
    )
    nodes = [
        node("Loop", ["outer", "", "start"], ["y"], "out", body=around),
        node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    names = ("x", "start", "scale")
    return model(
        nodes,
        [info(n, FLOAT, [1]) for n in names],
        [info("loss", FLOAT, []), info("y", FLOAT, [1])],
        {"outer": np.array(outer), "inner": np.array(inner)},
    )


@pytest.mark.parametrize(
    ("outer", "inner", "scale"),
    [(100, 100, 1 - 2.0**-9), (1000, 5, 1 - 2.0**-9), (5, 1000, 1 - 2.0**-9), (1000, 1000, 1.0)],
)
def test_many_iterations_whose_result_is_another_loop_s(outer: int, inner: int, scale: float) -> None:
    x, start = 0.25, 2.0
    y, by_x, by_start, by_scale = start, 0.0, 1.0, 0.0
    for _ in range(outer * inner):
        y, by_x, by_start, by_scale = scale * y + x, scale * by_x + 1, scale * by_start, scale * by_scale + y
    proto = affine(outer, inner)
    onnx.checker.check_model(proto, full_check=True)
    feeds = {n: np.array([v], np.float32) for n, v in (("x", x), ("start", start), ("scale", scale))}
    np.testing.assert_allclose(run(proto, ["y"], feeds)[0], [y], rtol=1e-4)
    found = gradients(proto, feeds, ["x", "start", "scale"])
    for name, expected in (("x", by_x), ("start", by_start), ("scale", by_scale)):
        np.testing.assert_allclose(found[f"{name}_grad"], [expected], rtol=1e-4, atol=1e-12)


def test_an_outer_loop_is_not_a_copy_of_its_inner_loop_for_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy is expanded and compiled anew, so three loops of 1000 took minutes."""
    expansions = []
    repeat_of = repeat.write_repeat
    monkeypatch.setattr(repeat, "write_repeat", lambda *a: [expansions.append(a), repeat_of(*a)][1])
    feeds = {n: np.array([v], np.float32) for n, v in (("x", 0.25), ("start", 2.0), ("scale", 1.0))}
    np.testing.assert_allclose(run(affine(40, 4000), ["y"], feeds)[0], [2 + 0.25 * 40 * 4000])
    assert len(expansions) <= 4


def test_a_model_of_nested_loops_can_be_checked() -> None:
    proto = affine(100, 100)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0.5], np.float32), "start"))
    del proto.graph.input[1]
    report = trainweb.check(proto)
    assert (report.ok, list(report.trainable)) == (True, ["start"]), str(report)


# ---- nests that are drawn


class Nest:
    """Draws a model; each tensor in it is a float32[3] from -1 to 1 and then some.

    Attributes
    ----------
    kinds : set of str
        Pairs of an operator and of what makes a result of its body.
    """

    def __init__(self, seed: int, depth: int) -> None:
        self.random = random.Random(seed)
        self.n = 0
        self.kinds: set[str] = set()
        self.makers: dict[str, str] = {}
        nodes, names = self.steps(depth, ["x"], depth)
        nodes += [node("Mul", [names[-1], "x"], ["last"]), node("Concat", [names[-2], "last"], ["y"], axis=0)]
        outputs = [info("loss", FLOAT, []), info("y", FLOAT, None)]
        inputs = [info("x", FLOAT, [3]), info("flag", BOOL, []), info("times", INT, [])]
        self.proto = model([*nodes, *LOSS], inputs, outputs, CONSTANTS)

    def fresh(self, prefix: str) -> str:
        self.n += 1
        return f"{prefix}{self.n}"

    def made(self, op_type: str, name: str = "") -> str:
        name = name or self.fresh("v")
        self.makers[name] = op_type
        return name

    def steps(self, depth: int, seen: Sequence[str], at_least: int = 0) -> tuple[list[Any], list[str]]:
        """Nodes, and what they make after `seen`: the last of them is a nest, if the depth allows."""
        nodes: list[Any] = []
        names = list(seen)
        for k in range(self.random.randint(1, 3)):
            if depth and (k == 0 or self.random.random() < 0.4):
                draw = self.random.choice([self.loop, self.loop, self.open_loop, self.scan, self.choice])
                made, results = draw(depth - 1, names)
            else:
                made, results = self.plain(names)
            nodes += made
            names += results
        if depth and at_least == 0 and self.random.random() < 0.7:
            names.append(next((n for n in reversed(names) if self.makers.get(n) in NESTING), names[-1]))
        return nodes, names

    def plain(self, seen: Sequence[str]) -> tuple[list[Any], list[str]]:
        a, b = self.random.choice(seen), self.random.choice(seen)
        t, y = self.fresh("t"), self.made("plain")
        return self.random.choice(
            [
                [node("Mean", [a, b], [y])],
                [node("Mul", [a, "scale"], [y])],
                [node("Add", [a, b], [t]), node("Tanh", [t], [y])],
                [node("MatMul", [a, "mix"], [t]), node("Tanh", [t], [y])],
            ]
        ), [y]

    def results(self, op_type: str, n: int, names: Sequence[str], own: int) -> list[str]:
        """`n` results of a body, which itself computed `names[own:]`."""
        found = []
        for _ in range(n):
            draw = self.random.random()
            if draw < 0.6:
                name = names[-1]
            elif draw < 0.85:
                name = self.random.choice(names[own:] or names)
            else:
                name = self.random.choice(names)
            maker = self.makers.get(name, "outer") if name in names[own:] else "outer"
            self.kinds.add(f"{maker} in {op_type}")
            found.append(name)
        if n > 1 and len(set(found)) < n:
            self.kinds.add(f"twice in {op_type}")
        return found

    def loop(self, depth: int, seen: Sequence[str], op_type: str = "Loop") -> tuple[list[Any], list[str]]:
        """A loop of a count that is constant or fed; it may stack rows."""
        carried = [self.random.choice(seen) for _ in range(self.random.randint(1, 2))]
        formal = [self.made("outer", self.fresh("c")) for _ in carried]
        i, go = self.fresh("i"), self.fresh("g")
        nodes, names = self.steps(depth, [*seen, *formal])
        rows = self.random.randint(0, 1)
        made = self.results(op_type, len(carried) + rows, names, len(seen) + len(formal))
        inner = body(
            nodes,
            [info(i, INT, []), info(go, BOOL, []), *(info(n, FLOAT, [3]) for n in formal)],
            [info(go, BOOL, []), *(info(n, FLOAT, [3]) for n in made)],
        )
        outs = [self.made(op_type) for _ in carried]
        stacked = [self.fresh("rows") for _ in range(rows)]
        # Of no rows onnx's evaluator makes none.
        count = self.random.choice(["times", *(f"count{n}" for n in range(rows, 5))])
        found = [node("Loop", [count, "yes", *carried], [*outs, *stacked], self.fresh("loop"), body=inner)]
        for name in stacked:
            t, y = self.fresh("t"), self.made("plain")
            found += [node("ReduceSum", [name, "axis0"], [t], keepdims=0), node("Tanh", [t], [y])]
            outs.insert(0, y)
        return found, outs

    def open_loop(self, depth: int, seen: Sequence[str]) -> tuple[list[Any], list[str]]:
        """A loop that data end."""
        first, formal = self.random.choice(seen), self.made("outer", self.fresh("c"))
        i, go, squares, length, shorter, still = (self.fresh(p) for p in ("i", "g", "q", "l", "s", "b"))
        nodes, names = self.steps(depth, [*seen, formal])
        (result,) = self.results("open Loop", 1, names, len(seen) + 1)
        nodes += [
            node("Mul", [result, result], [squares]),
            node("ReduceSum", [squares], [length], keepdims=0),
            node("Less", [length, "level"], [shorter]),
            node("And", [shorter, go], [still]),
        ]
        inner = body(
            nodes,
            [info(i, INT, []), info(go, BOOL, []), info(formal, FLOAT, [3])],
            [info(still, BOOL, []), info(result, FLOAT, [3])],
        )
        out = self.made("open Loop")
        count = self.random.choice(["times", "count1", "count4"])
        return [node("Loop", [count, "yes", first], [out], self.fresh("while"), body=inner)], [out]

    def scan(self, depth: int, seen: Sequence[str]) -> tuple[list[Any], list[str]]:
        """A scan over four rows, which also stacks."""
        first, formal = self.random.choice(seen), self.made("outer", self.fresh("c"))
        row = self.made("outer", self.fresh("r"))
        nodes, names = self.steps(depth, [*seen, row, formal])
        made = self.results("Scan", 2, names, len(seen) + 2)
        inner = body(nodes, [info(n, FLOAT, [3]) for n in (formal, row)], [info(n, FLOAT, [3]) for n in made])
        out, stacked, t, y = self.made("Scan"), self.fresh("rows"), self.fresh("t"), self.made("plain")
        found = [
            node("Scan", [first, "rows"], [out, stacked], self.fresh("scan"), body=inner, num_scan_inputs=1),
            node("ReduceSum", [stacked, "axis0"], [t], keepdims=0),
            node("Tanh", [t], [y]),
        ]
        return found, [y, out]

    def choice(self, depth: int, seen: Sequence[str]) -> tuple[list[Any], list[str]]:
        """If, by data, a feed or a constant."""
        branches = []
        for _ in range(2):
            nodes, names = self.steps(depth, seen)
            (result,) = self.results("If", 1, names, len(seen))
            branches.append(body(nodes, [], [info(result, FLOAT, [3])]))
        found, condition = [], self.random.choice(["flag", "yes", "no", ""])
        if not condition:
            total, condition = self.fresh("t"), self.fresh("b")
            found = [
                node("ReduceMax", [self.random.choice(seen)], [total], keepdims=0),
                node("Less", [total, "level"], [condition]),
            ]
        out = self.made("If")
        chosen = {"then_branch": branches[0], "else_branch": branches[1]}
        return [*found, node("If", [condition], [out], self.fresh("if"), **chosen)], [out]


NESTING = ("Loop", "open Loop", "Scan", "If")


def with_identities(proto: onnx.ModelProto, dtype: int = FLOAT) -> onnx.ModelProto:
    """The same with an Identity before each result of a body, as other runtimes want it, and floats of `dtype`."""
    changed = onnx.ModelProto.FromString(proto.SerializeToString())
    n = 0

    def visit(graph: onnx.GraphProto) -> None:
        nonlocal n
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == FLOAT:
                value.type.tensor_type.elem_type = dtype
        for tensor in graph.initializer:
            if tensor.data_type == FLOAT and dtype != FLOAT:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
        for inner in [a.g for each in graph.node for a in each.attribute if a.HasField("g")]:
            visit(inner)
            for value in inner.output:
                n += 1
                inner.node.append(node("Identity", [value.name], [f"result{n}"]))
                value.name = f"result{n}"

    visit(changed.graph)
    return changed


def evaluated(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    with np.errstate(all="ignore"):
        return onnx.reference.ReferenceEvaluator(proto).run(None, feeds)


def compare(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Forward and the gradient by x along a direction."""
    for found, expected in zip(run(proto, None, feeds), evaluated(with_identities(proto), feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    wide, direction = with_identities(proto, onnx.TensorProto.DOUBLE), np.array([0.5, -0.8, 0.3])
    after, before = (
        float(evaluated(wide, {**feeds, "x": feeds["x"].astype(np.float64) + side * direction})[0])
        for side in (STEP, -STEP)
    )
    terms = gradients(proto, feeds, ["x"])["x_grad"].astype(np.float64) * direction
    expected = (after - before) / (2 * STEP)
    assert float(terms.sum()) == pytest.approx(expected, rel=0, abs=2e-4 * float(np.abs(terms).sum()) + 1e-6)


@pytest.mark.parametrize("most", [0, 30, 4096], ids=["nodes", "both", "written out"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nests_that_are_drawn(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "WRITTEN_OUT_NODES", most)
    nest = Nest(seed, 1 + seed % 3)
    feeds = {"x": X, "flag": np.array(bool(seed % 2)), "times": np.array(1 + seed % 4)}
    try:
        compare(nest.proto, feeds)
    except UnsupportedError as error:
        assert "holds a loop that ends when data say so" in str(error)


def test_the_draws_nest_everything() -> None:
    kinds = set().union(*(Nest(seed, 1 + seed % 3).kinds for seed in range(SEEDS)))
    wanted = {f"{inner} in {outer}" for outer in NESTING for inner in (*NESTING, "outer")}
    assert wanted | {"twice in Loop", "twice in Scan"} <= kinds, wanted - kinds
