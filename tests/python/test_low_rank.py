"""A product through a low rank beside one with a weight goes into the weight where that is less work."""

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal
from tests.ops.op_runner import run
from tests.python import pipelines
from tests.python.test_accumulate_sums import graph_of
from tests.python.test_compiler_passes import plan_of
from tests.python.test_pass_guards import Written

import trainweb
from trainweb.compiler.passes.lowrank import merge_low_rank
from trainweb.ir import calls
from trainweb.ir.layout import ACTIVATION_RELU
from trainweb.lora import inject
from trainweb.model.graph import Graph, Node, Value

ROWS, K, N, RANK = 40, 12, 20, 3


def adapted(
    rows: int, *, turned: bool, swapped: bool, gemm: bool = False
) -> tuple[Graph, dict[str, np.ndarray], np.ndarray]:
    """relu(0.5 x W + 2 (x A) B + v) as a graph, its feeds, and the result in float64."""
    rng = np.random.default_rng(0)
    x, w, a, b, v = (rng.standard_normal(s).astype(np.float32) for s in ((rows, K), (K, N), (K, RANK), (RANK, N), (N,)))
    sides = ["out", "base"] if swapped else ["base", "out"]
    products = [Node("MatMul", ["x", "weight"], ["product"]), Node("Mul", ["product", "half"], ["base"])]
    if gemm:
        products = [Node("Gemm", ["x", "weight", "v"], ["base"], {"alpha": 0.5, "beta": 2.0})]
    nodes = [
        *([Node("Transpose", ["w"], ["weight"], {"perm": [1, 0]})] if turned else []),
        *(products if not swapped else []),
        Node("MatMul", ["x", "a"], ["low"]),
        Node("Mul", ["low", "two"], ["scaled"]),
        Node("MatMul", ["scaled", "b"], ["out"]),
        *(products if swapped else []),
        Node("Add", sides, ["sum"]),
        Node("Add", ["sum", "v"], ["biased"]) if not gemm else Node("Sub", ["sum", "v"], ["biased"]),
        Node("Relu", ["biased"], ["y"]),
    ]
    name = "w" if turned else "weight"
    graph = graph_of(nodes, x.shape, a=a, b=b, v=v, half=np.float32(0.5), two=np.float32(2))
    graph.inputs.append(Value(name, "float32", (N, K) if turned else (K, N)))
    feeds = {"x": x, name: np.ascontiguousarray(w.T if turned else w)}
    x64 = x.astype(np.float64)
    return graph, feeds, np.maximum(0.5 * x64 @ w + 2 * (x64 @ a @ b) + v, 0)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [2 * K - 1, 2 * K, ROWS])
def test_the_sum_of_weights_is_made_where_there_are_more_rows_than_it_has(
    rows: int, turned: bool, swapped: bool
) -> None:
    graph, feeds, expected = adapted(rows, turned=turned, swapped=swapped)
    found = run(graph, feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    kernels = [line.split("(")[0].split()[0] for line in plan_of(graph, **feeds).text]
    assert kernels == ["gemm_f32"] * (2 if rows >= 2 * K else 3)
    with pipelines.passes(pipelines.without("merge_low_rank")):
        np.testing.assert_allclose(found, run(graph, feeds)["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_product_may_have_its_bias_already(swapped: bool) -> None:
    graph, feeds, expected = adapted(ROWS, turned=False, swapped=swapped, gemm=True)
    np.testing.assert_allclose(run(graph, feeds)["y"], expected, rtol=1e-5, atol=1e-5)
    text = plan_of(graph, **feeds).text
    # As the second of two products it would add its bias to the first: it stays as it is then.
    assert any("in the weight" in line for line in text) == (not swapped)


def merged(
    *between: str,
    outputs: tuple[str, ...] = (),
    other: bool = False,
    rank: int = 1,
    batch: int = 1,
    turned: bool = False,
    activation: int = 0,
    rows: int = 8,
) -> str:
    """Whether c = x w + (x a) b becomes one product, with these steps before the last: "merged", or the reason.

    With `turned` the second x are the same numbers, read as the transpose of 4 rows of 8.
    """
    w = Written()
    for name, shape in (("x", (rows, 4)), ("z", (rows, 4)), ("w", (4, 4)), ("a", (4, rank)), ("b", (rank, 4))):
        w.new(name, *shape)
    w.new("low", rows, rank)
    w.new("c", rows, 4)
    w.product("c", "x", "w")
    first = w.builder.instructions[-1]
    assert isinstance(first, calls.Gemm)
    first.activation = activation
    w.product("low", "z" if other else "x", "a")
    if turned:
        inner = w.builder.instructions[-1]
        assert isinstance(inner, calls.Gemm)
        inner.a_row, inner.a_col = 1, 8
    for step in between:
        what, _, name = step.partition(" ")
        (w.read if what == "read" else w.fill)(name)
    w.product("c", "low", "b")
    last = w.builder.instructions[-1]
    assert isinstance(last, calls.Gemm)
    last.accumulate, last.batch = 1, (batch, 1)
    w.read("c")
    w.outputs = list(outputs)
    program = w.after(merge_low_rank)
    products = [i for i in program if isinstance(i, calls.Gemm)]
    assert any(i.c.storage is w.bufs["low"].storage for i in products) or (len(products) == 2 and "low" not in outputs)
    is_merged = not any(i.accumulate and i.c.storage is w.bufs["c"].storage for i in products)
    assert {r.what for r in program.refusals} <= {"low-rank product"} and not (is_merged and program.refusals)
    return "merged" if is_merged else ", ".join(r.reason for r in program.refusals)


def test_a_low_rank_is_found() -> None:
    assert merged() == "merged"
    assert merged("read low") == "merged"
    assert merged(outputs=("low",)) == "merged"


CHANGED = "an operand changes before the sum"


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        ("fill x", CHANGED),
        ("fill w", CHANGED),
        ("fill a", CHANGED),
        ("fill low", ""),
        ("read c", "another node reads one of the products"),
        ("fill c", ""),
    ],
)
def test_products_stay_where_an_operand_changes_or_the_first_is_read(between: str, reason: str) -> None:
    assert merged(between) == reason


def test_products_stay_where_the_sum_of_weights_takes_longer() -> None:
    assert merged(rows=7) == "7 rows are fewer than 2 for each of the 4 rows of the weight"
    assert merged(activation=ACTIVATION_RELU) == "a bias or an activation comes before the sum"


def test_products_stay_that_are_no_adapter_of_the_weight() -> None:
    assert not merged(other=True)
    assert not merged(rank=3)
    assert not merged(batch=2)
    assert not merged(turned=True)


def gradients_of(x: np.ndarray, labels: np.ndarray, p: dict[str, np.ndarray], scale: float) -> dict[str, np.ndarray]:
    """Gradients of the adapters of softmax(tanh(x W1') W2') in float64, W' = W + scale A B, by the chain rule."""
    w1, w2 = (p[f"w{k}"] + scale * p[f"a{k}"].T @ p[f"b{k}"].T for k in (1, 2))
    h = np.tanh(x @ w1)
    scores = np.exp(h @ w2)
    d2 = (scores / scores.sum(axis=1, keepdims=True) - np.eye(scores.shape[1])[labels]) / len(x)
    d1 = (d2 @ w2.T) * (1 - h**2)
    found = {}
    for k, source, d in ((1, x, d1), (2, h, d2)):
        weight = scale * source.T @ d
        found[f"a{k}"], found[f"b{k}"] = (weight @ p[f"b{k}"]).T, (p[f"a{k}"] @ weight).T
    return found


def test_gradients_of_adapters_of_a_small_model() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "one.weight"], ["h"], "one"),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "two.weight"], ["logits"], "two"),
    ]
    w1, w2 = normal(K, N, seed=1), normal(N, 4, seed=2)
    weights = {"one.weight": w1, "two.weight": w2}
    model = make_model(nodes, {"x": ["batch", K]}, {"logits": ["batch", 4]}, weights)
    made = inject(model, ["one", "two"], rank=2, alpha=3).build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
    rng = np.random.default_rng(4)
    x, labels = rng.standard_normal((48, K)).astype(np.float32), rng.integers(0, 4, 48)
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    p = {"w1": w1.astype(np.float64), "w2": w2.astype(np.float64)}
    for k, module in ((1, "one"), (2, "two")):
        for part in "ab":
            parameter = state.parameters[f"{module}.lora_{part.upper()}.weight"]
            parameter.data = 0.3 * rng.standard_normal(parameter.data.shape).astype(np.float32)
            p[f"{part}{k}"] = parameter.data.astype(np.float64)
    with trainweb.TrainingSession(state, made.training_model, None, made.optimizer_model) as s:
        s.train_step({"x": x, "labels": labels})
        expected = gradients_of(x.astype(np.float64), labels, p, 1.5)
        assert any("in the weight" in line for line in s._core.host.loaded[0].plan.text)
        for k, module in ((1, "one"), (2, "two")):
            for part in "ab":
                found = s._core.state.parameters[f"{module}.lora_{part.upper()}.weight"].grad
                np.testing.assert_allclose(found, expected[f"{part}{k}"], rtol=1e-4, atol=1e-6)
