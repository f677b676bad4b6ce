"""Cross entropy of a large vocabulary without its scores: the kernels, and the pass that finds it in a graph."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.python import pipelines
from tests.python.kernel_runner import BUILDS, runner
from tests.python.products import product
from tests.python.test_attention import compute, kernels
from tests.python.test_kernels_unpack import Packed, packed
from tests.python.test_pass_guards import Written

from trainweb import TrainingSession
from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.plan import Plan
from trainweb.compiler import compile_model
from trainweb.compiler.passes import head
from trainweb.compiler.passes.head import fuse_head_loss
from trainweb.ir import calls
from trainweb.ir.instructions import KernelCall
from trainweb.ir.layout import ACTIVATION_RELU
from trainweb.ir.program import HEAD, Program
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.model.writer import write_model
from trainweb.training.arrays import from_numpy
from trainweb.training.step_kind import TRAIN

IGNORED = -100
TOLERANCE = 2e-5
"""Of the largest element: sums of float32 in another order."""
REDUCTIONS = ("none", "mean", "sum")
STORED = ("cross_entropy_f32", "cross_entropy_grad_f32")


class Case:
    """Rows, weights and labels of a head, and its loss and gradients in float64."""

    def __init__(
        self,
        n: int,
        c: int,
        d: int,
        *,
        alpha: float = 1.0,
        bias: bool = False,
        weighted: bool = False,
        ignored: float = 0.0,
        reduction: str = "mean",
        w: np.ndarray | None = None,
    ) -> None:
        rng = np.random.default_rng(n + c)
        self.x, drawn = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, d), (c, d)))
        self.w = drawn if w is None else w
        self.bias = rng.standard_normal(c).astype(np.float32) if bias else None
        self.weights = rng.random(c).astype(np.float32) if weighted else None
        self.labels = rng.integers(0, c, n)
        self.labels[rng.random(n) < ignored] = IGNORED
        self.alpha, self.reduction = alpha, reduction
        self.dy = rng.standard_normal(n if reduction == "none" else 1).astype(np.float32)
        x, w = self.x.astype(np.float64), self.w.astype(np.float64)
        scores = alpha * x @ w.T + (0 if self.bias is None else self.bias)
        top = scores.max(1, keepdims=True)
        self.log_sum = (top + np.log(np.exp(scores - top).sum(1, keepdims=True)))[:, 0]
        self.kept = self.labels != IGNORED
        safe = np.where(self.kept, self.labels, 0)
        weight = self.kept * (1.0 if self.weights is None else self.weights.astype(np.float64)[safe])
        divisor = weight.sum() or 1.0 if reduction == "mean" else 1.0
        rows = weight * (self.log_sum - scores[np.arange(n), safe]) / divisor
        self.loss = rows if reduction == "none" else rows.sum(keepdims=True)
        slopes = np.exp(scores - self.log_sum[:, None])
        slopes[np.arange(n), safe] -= 1
        slopes *= alpha * (weight / divisor)[:, None]
        self.slope = slopes @ w
        self.dx = self.slope * self.dy[:, None]
        self.dw = (slopes * self.dy[:, None]).T @ x

    def numbers(self, label_size: int, turned: int) -> dict[str, Any]:
        n, d = self.x.shape
        labels = self.labels.astype(f"int{8 * label_size}")
        return {
            "x": self.x,
            "w": np.ascontiguousarray(self.w.T if turned else self.w),
            "bias": self.bias,
            "labels": labels.view(np.uint8),
            "weights": self.weights,
            "n": n,
            "c": len(self.w),
            "d": d,
            "turned": turned,
            "alpha": self.alpha,
            "label_size": label_size,
            "has_ignore": 1,
            "ignore_index": IGNORED,
            "reduction": REDUCTIONS.index(self.reduction),
        }


def assert_near(found: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    error = np.abs(found.reshape(expected.shape) - expected).max(initial=0)
    assert error <= tolerance * max(1e-3, np.abs(expected).max(initial=0)), error


CASES: dict[str, dict[str, Any]] = {
    "few classes": {"n": 5, "c": 10, "d": 3, "weighted": True, "reduction": "sum"},
    "one row": {"n": 1, "c": 513, "d": 8},
    "two blocks of rows": {"n": 130, "c": 1030, "d": 17, "ignored": 0.2, "bias": True},
    "many classes": {"n": 40, "c": 9001, "d": 24, "alpha": 0.3, "reduction": "none", "ignored": 0.5},
    "depth in blocks": {"n": 33, "c": 700, "d": 1100, "alpha": 0.05, "weighted": True, "ignored": 0.4},
    "all ignored": {"n": 7, "c": 600, "d": 5, "ignored": 1.0},
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, turned: int, build: str) -> None:
    case = Case(**CASES[name])
    n, d = case.x.shape
    most = -(-len(case.w) // 512)
    for parts, last in ((1, "slope"), (min(16, most), "w"), (min(3, most), "labels")):
        numbers = case.numbers(8 if parts == 1 else 4, turned)
        results = {"loss": np.zeros(case.loss.shape), "slope": np.full((n, d), np.nan), "log_sum": np.zeros(n)}
        given = {key: value.astype(np.float32) for key, value in results.items()}
        found = runner(build).run("head_loss_f32", numbers | given | {"parts": parts, "gradient": 1}, last)
        assert_near(found["loss"], case.loss, 2e-6)
        assert_near(found["slope"], case.slope)
        assert_near(found["log_sum"][case.kept], case.log_sum[case.kept], 1e-6)
        assert not found["slope"][~case.kept].any()
        given = {"dy": case.dy, "log_sum": case.log_sum.astype(np.float32)}
        expected = case.dw.T if turned else case.dw
        before = np.random.default_rng(1).standard_normal(expected.shape).astype(np.float32)
        for accumulate in (0, 1):
            more = {"dw": before.copy() if accumulate else np.full_like(before, np.nan), "accumulate": accumulate}
            dw = runner(build).run("head_loss_weight_grad_f32", numbers | given | more, "dw")["dw"]
            assert_near(dw, expected + accumulate * before)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("name", [name for name in CASES if name != "all ignored"])
@pytest.mark.parametrize("kind", ["4", "8", "half"])
def test_the_kernel_of_quantized_weights(kind: str, name: str, turned: int, build: str) -> None:
    options = CASES[name]
    shape = (options["d"], options["c"]) if turned else (options["c"], options["d"])
    weights = packed(kind, shape, (1, 16), True)
    if kind == "half":
        bits = np.random.default_rng(3).standard_normal(shape).astype(np.float16)
        weights = Packed(weights.args | {"x": bits.reshape(-1).view(np.uint8)}, bits.astype(np.float64))
    else:
        factor = np.float32(2.0 ** (-3 if kind == "4" else -7))
        weights = Packed(weights.args | {"scale": weights.args["scale"] * factor}, weights.values * float(factor))
    case = Case(**options, w=weights.values.T if turned else weights.values)
    n, d = case.x.shape
    args = {key: value for key, value in weights.args.items() if key != "x"} | {"w": weights.args["x"]}
    numbers = case.numbers(8, turned) | args | {"parts": min(3, -(-len(case.w) // 512)), "gradient": 1}
    given = {"loss": np.zeros(case.loss.shape, np.float32), "slope": np.full((n, d), np.nan, np.float32)}
    found = runner(build).run("head_loss_quantized_f32", numbers | given, "slope")
    assert_near(found["loss"], case.loss, 4e-6)
    assert_near(found["slope"], case.slope)
    assert not found["slope"][~case.kept].any()


def test_rows_that_are_ignored_are_not_read() -> None:
    case = Case(20, 600, 6, ignored=0.5)
    case.x[~case.kept] = np.nan
    given = {"loss": np.zeros(1, np.float32), "slope": np.zeros_like(case.x), "log_sum": None}
    found = runner("kernels").run("head_loss_f32", case.numbers(8, 0) | given | {"parts": 2, "gradient": 1})
    assert_near(found["loss"], case.loss, 2e-6)
    assert_near(found["slope"], case.slope)


def test_large_scores_and_nan() -> None:
    case = Case(12, 1100, 4)
    case.x[:6] *= 1e4
    again = case.x.astype(np.float64) @ case.w.T
    case.x[7] = np.nan
    given = {"loss": np.zeros(12, np.float32), "slope": np.zeros_like(case.x), "log_sum": None}
    numbers = case.numbers(8, 0) | given | {"parts": 3, "gradient": 1, "reduction": 0}
    found = runner("kernels").run("head_loss_f32", numbers)
    expected = np.logaddexp.reduce(again, 1) - again[np.arange(12), case.labels]
    fine = np.arange(12) != 7
    np.testing.assert_allclose(found["loss"][fine], expected[fine], rtol=1e-6, atol=2e-6 * 1e4)
    assert np.isnan(found["loss"][7]) and np.isnan(found["slope"][7]).all() and np.isfinite(found["slope"][fine]).all()


# The pass.


@pytest.fixture(autouse=True)
def small_heads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "SCORES_BYTES", 0)
    monkeypatch.setattr(head, "TRAINED_SCORES_BYTES", 0)


def graph_of(case: Case, *, turned: bool) -> tuple[Graph, dict[str, np.ndarray]]:
    """The loss as exporters write it, and its feeds; with reduction "none", the sum of the rows times `dy`."""
    n, _ = case.x.shape
    graph = Graph("head", opsets={"": 17, "com.microsoft": 1})
    feeds: dict[str, np.ndarray] = {
        "x": case.x.reshape(1, n, -1),
        "w": case.w if turned else np.ascontiguousarray(case.w.T),
    }
    feeds |= {"labels": case.labels, "dy": case.dy}
    graph.inputs = [Value(name, from_numpy(name, a).dtype, a.shape) for name, a in feeds.items()]
    constants: dict[str, Any] = {"rows": np.array([n, len(case.w)]), "alpha": np.float32(case.alpha)}
    optional = {"bias": case.bias, "weights": case.weights}
    constants |= {name: a for name, a in optional.items() if a is not None}
    graph.initializers |= {name: from_numpy(name, np.asarray(a)) for name, a in constants.items()}
    attrs: dict[str, Any] = {"reduction": case.reduction, "ignore_index": IGNORED}
    targets = ["labels"] + ["weights"] * (case.weights is not None)
    graph.nodes = [
        *([Node("Transpose", ["w"], ["turned"], {"perm": [1, 0]})] if turned else []),
        Node("MatMul", ["x", "turned" if turned else "w"], ["product"]),
        *([Node("Mul", ["product", "alpha"], ["scaled"])] if case.alpha != 1 else []),
        *(
            [Node("Add", ["scaled" if case.alpha != 1 else "product", "bias"], ["biased"])]
            if "bias" in constants
            else []
        ),
    ]
    graph.nodes.append(Node("Reshape", [graph.nodes[-1].outputs[0], "rows"], ["scores"]))
    graph.nodes += [
        Node("SoftmaxCrossEntropyLoss", ["scores", *targets], ["each"], attrs),
        Node("Mul", ["each", "dy"], ["times"]),
        Node("ReduceSum", ["times"], ["loss"], {"keepdims": 0}),
    ]
    graph.outputs = [Value("loss", "float32", ())]
    return graph, feeds


def trained(case: Case, names: list[str], *, turned: bool) -> tuple[dict[str, np.ndarray], Plan]:
    graph, feeds = graph_of(case, turned=turned)
    return compute(build_gradients(graph, "loss", names), feeds, ["loss", *(f"{name}_grad" for name in names)])


@pytest.mark.parametrize("names", [["x"], ["w"], ["x", "w"]], ids="".join)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_graphs(name: str, turned: bool, names: list[str]) -> None:
    case = Case(**CASES[name])
    found, plan = trained(case, names, turned=turned)
    assert kernels(plan).count("head_loss_f32") == 1 and not {*STORED, "gemm_f32"} & set(kernels(plan))
    assert kernels(plan).count("head_loss_weight_grad_f32") == ("w" in names)
    with pipelines.passes(pipelines.without("fuse_head_loss")):
        stored, plan = trained(case, names, turned=turned)
    assert {*STORED, "gemm_f32"} <= set(kernels(plan))
    assert abs(found["loss"] - stored["loss"]) <= 1e-6 * abs(stored["loss"])
    expected = {"x_grad": case.dx, "w_grad": case.dw if turned else case.dw.T}
    for each in found.keys() - {"loss"}:
        assert_near(found[each], expected[each])


def quantized(case: Case, *, turned: bool) -> tuple[Case, Graph, dict[str, np.ndarray]]:
    """A case whose weights are int8 with a scale for each class, and its graph."""
    scale = (abs(case.w).max(1) / 127).astype(np.float32)
    numbers = np.rint(case.w / scale[:, None]).astype(np.int8)
    options = {"alpha": case.alpha, "bias": case.bias is not None, "weighted": case.weights is not None}
    n, d = case.x.shape
    made = Case(n, len(numbers), d, **options, reduction=case.reduction, w=numbers * scale[:, None].astype(np.float64))
    graph, feeds = graph_of(made, turned=turned)
    graph.opsets[""] = 21
    graph.inputs = [value for value in graph.inputs if value.name != "w"]
    stored = {"numbers": np.ascontiguousarray(numbers if turned else numbers.T), "scale": scale}
    graph.initializers |= {name: from_numpy(name, a) for name, a in stored.items()}
    graph.nodes.insert(0, Node("DequantizeLinear", ["numbers", "scale"], ["w"], {"axis": 0 if turned else 1}))
    del feeds["w"]
    return made, graph, feeds


@pytest.mark.parametrize("names", [[], ["x"]], ids=["forward", "x"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["two blocks of rows", "many classes", "depth in blocks"])
def test_quantized_heads(name: str, turned: bool, names: list[str]) -> None:
    case, graph, feeds = quantized(Case(**{**CASES[name], "ignored": 0.0}), turned=turned)
    graph = build_gradients(graph, "loss", names) if names else graph
    found, plan = compute(graph, feeds, ["loss", *(f"{name}_grad" for name in names)])
    assert kernels(plan).count("head_loss_quantized_f32") == 1
    assert not {*STORED, "gemm_quantized_f32", "dequantize_f32", "head_loss_f32"} & set(kernels(plan))
    expected = (case.loss * case.dy).sum()
    assert abs(found["loss"] - expected) <= 4e-6 * np.abs(case.loss * case.dy).sum()
    if names:
        assert_near(found["x_grad"], case.dx)


@pytest.mark.parametrize("result", ["scores", "x_grad"])
def test_a_quantized_head_of_one_class_in_one_block(result: str) -> None:
    """Its only scale is of a block along the rows of the weights, [3, 1]."""
    case, graph, feeds = quantized(Case(1, 1, 3), turned=False)
    graph.initializers["scale"].shape = (1, 1)
    graph.nodes[0].attrs = {"axis": 0, "block_size": 3}
    found, _ = compute(build_gradients(graph, "loss", ["x"]), feeds, ["loss", result])
    assert abs(found["loss"]) < 1e-6
    expected = {"scores": case.x @ case.w.T, "x_grad": case.dx}
    np.testing.assert_allclose(found[result].reshape(-1), expected[result].reshape(-1), rtol=1e-5)


def test_other_scales_of_the_same_numbers_stay() -> None:
    """Products by the same numbers with other scales are not one head."""
    _, graph, feeds = quantized(Case(20, 600, 6), turned=True)
    graph = build_gradients(graph, "loss", ["x"])
    other = from_numpy("others", np.ones(600, np.float32))
    graph.initializers["others"] = other
    again = Node("DequantizeLinear", ["numbers", "others"], ["w others"], {"axis": 0})
    graph.nodes.insert(0, again)
    product = next(node for node in graph.nodes if node.outputs == ["x_grad"])
    assert product.inputs[1] == "turned" and product.attrs["transB"] == 1
    product.inputs[1], product.attrs["transB"] = "w others", 0
    _, plan = compute(graph, feeds, ["loss", "x_grad"])
    assert "head_loss_quantized_f32" not in kernels(plan)


@pytest.mark.parametrize("first", [True, False])
def test_rows_that_something_else_reads(first: bool) -> None:
    """The gradient by x is a sum, of which the head's part may be added to the other."""
    case = Case(20, 600, 6)
    graph, feeds = graph_of(case, turned=True)
    feeds["other"] = case.w[:6].copy()
    graph.inputs.append(Value("other", "float32", (6, 6)))
    more = [Node("MatMul", ["x", "other"], ["second"]), Node("ReduceSum", ["second"], ["summed"], {"keepdims": 0})]
    graph.nodes[-1].outputs = ["own"]
    graph.nodes = [*more, *graph.nodes] if first else [*graph.nodes, *more]
    graph.nodes.append(Node("Add", ["own", "summed"], ["loss"]))
    found, plan = compute(build_gradients(graph, "loss", ["x"]), feeds, ["loss", "x_grad"])
    assert kernels(plan).count("head_loss_f32") == 1
    assert_near(found["x_grad"], case.dx + feeds["other"].astype(np.float64).sum(1))


def test_gradients_of_weights_are_added() -> None:
    case = Case(20, 600, 6, ignored=0.3)
    graph, feeds = graph_of(case, turned=True)
    graph.inputs = [value for value in graph.inputs if value.name != "w"]
    graph.initializers["w"] = from_numpy("w", feeds.pop("w"))
    with TrainingSession.from_model(write_model(graph), loss=None, requires_grad=["w"]) as session:
        for _ in range(2):
            session.train_step(feeds)
        types = {name: TensorType(str(a.dtype), a.shape) for name, a in feeds.items()}
        plan = session._core.models.compile_step(TRAIN, types, False)
        assert "head_loss_weight_grad_f32" in kernels(plan)
        assert_near(session.get_gradient("w"), 2 * case.dw)


@pytest.mark.parametrize(
    "more", [Node("Relu", ["dx"], ["y"]), Node("Mul", ["dx", "half"], ["y"])], ids=lambda n: n.op_type
)
def test_gradients_by_x_of_which_something_else_is_made(more: Node) -> None:
    """The products of a gradient take in what follows them, and the head's own must not be lost."""
    case = Case(20, 600, 6)
    graph, feeds = graph_of(case, turned=True)
    graph = build_gradients(graph, "loss", ["x"])
    graph.initializers["half"] = from_numpy("half", np.float32(0.5))
    graph.nodes.append(Node(more.op_type, ["x_grad", *more.inputs[1:]], ["y"]))
    found, _ = compute(graph, feeds, ["loss", "y"])
    assert_near(found["y"], np.maximum(case.dx, 0) if more.op_type == "Relu" else case.dx / 2)


def test_without_gradients() -> None:
    case = Case(20, 600, 6, ignored=0.3)
    found, plan = compute(*graph_of(case, turned=True), ["loss"])
    assert kernels(plan).count("head_loss_f32") == 1
    assert_near(found["loss"], case.loss * case.dy, 2e-6)


def test_small_heads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(16, 600, 6)
    monkeypatch.setattr(head, "SCORES_BYTES", 4 * 16 * 600)
    monkeypatch.setattr(head, "TRAINED_SCORES_BYTES", 4 * 16 * 600 + 1)
    assert "head_loss_f32" in kernels(trained(case, ["x"], turned=True)[1])
    assert "head_loss_f32" not in kernels(trained(case, ["x", "w"], turned=True)[1])
    monkeypatch.setattr(head, "SCORES_BYTES", 4 * 16 * 600 + 1)
    assert "head_loss_f32" not in kernels(trained(case, ["x"], turned=True)[1])


def test_scores_that_are_fetched_stay() -> None:
    case = Case(16, 600, 6)
    graph, feeds = graph_of(case, turned=True)
    found, plan = compute(build_gradients(graph, "loss", ["x"]), feeds, ["loss", "scores", "x_grad"])
    assert "head_loss_f32" not in kernels(plan)
    np.testing.assert_allclose(found["scores"], case.x @ case.w.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "says"), [(4 * 16 * 600, True), (4 * 16 * 600 + 1, False)])
def test_the_pass_says_that_large_scores_are_fetched(monkeypatch: pytest.MonkeyPatch, size: int, says: bool) -> None:
    monkeypatch.setattr(head, "TRAINED_SCORES_BYTES", size)
    graph, feeds = graph_of(Case(16, 600, 6), turned=True)
    programs: dict[str, Program] = {}
    types = {name: TensorType(str(value.dtype), value.shape) for name, value in feeds.items()}
    compile_model(graph, types, ["loss", "scores"], observe=programs.__setitem__)
    reasons = [r.reason for r in programs["fuse_head_loss"].refusals if r.what == HEAD]
    assert reasons == ["another node reads the scores, or they are an output of the step"] * says


N, C, D = 3, 5, 2
STEPS = ("scores", "loss", "dscores", "dx", "dw")


def left(*order: str, shared: dict[str, str] | None = None, outputs: tuple[str, ...] = ()) -> list[str]:
    """Kernels that are left of a head, its loss and its gradients; steps as in test_pass_guards.attention."""
    w = Written()
    for name, shape in {"x": (N, D), "w": (C, D), "labels": (N,), "others": (N,), "dy": (1,), "loss": (1,)}.items():
        w.new(name, *shape)
    for name, shape in {"scores": (N, C), "log_prob": (N, C), "dscores": (N, C), "dx": (N, D), "dw": (C, D)}.items():
        w.new(name, *shape)
    b = w.bufs
    for name, other in (shared or {}).items():
        b[name] = b[other]

    def changed_dx(**fields: float) -> None:
        g = product(b["dscores"], b["w"], b["dx"], (N, D, C))
        for name, value in fields.items():
            setattr(g, name, value)
        w.builder.emit(g)

    numbers = {"n": N, "c": C, "inner": 1, "label_size": 4, "has_ignore": 0, "ignore_index": 0, "from_log": 0}
    cross_entropy: dict[str, Any] = {"log_prob": b["log_prob"], "reduction": 1, **numbers}

    def scores(**changed: Any) -> None:
        w.product("scores", "x", "w", b_turned=True)
        for name, value in changed.items():
            setattr(w.builder.instructions[-1], name, value)

    steps: dict[str, Callable[[], None]] = {
        "scores": scores,
        "rectified-scores": lambda: scores(activation=ACTIVATION_RELU),
        "added-scores": lambda: scores(accumulate=1),
        "scores-of-part-rows": lambda: scores(a_row=2 * D),
        "scores-of-part-weights": lambda: scores(b_col=2 * D),
        "scores-with-half-a-bias": lambda: scores(bias=b["others"], beta=0.5, bias_row=0, bias_col=1),
        "loss": lambda: w.builder.emit(
            calls.CrossEntropy(scores=b["scores"], labels=b["labels"], loss=b["loss"], **cross_entropy)
        ),
        "dscores": lambda: w.builder.emit(
            calls.CrossEntropyGrad(dy=b["dy"], labels=b["labels"], dx=b["dscores"], **cross_entropy)
        ),
        "dscores of others": lambda: w.builder.emit(
            calls.CrossEntropyGrad(dy=b["dy"], labels=b["others"], dx=b["dscores"], **cross_entropy)
        ),
        "dx": lambda: w.product("dx", "dscores", "w"),
        "dw": lambda: w.product("dw", "dscores", "x", a_turned=True),
        "halved dx": lambda: changed_dx(alpha=0.5),
        "rectified dx": lambda: changed_dx(activation=1),
        "dw of dx": lambda: w.product("dw", "dscores", "dx", a_turned=True),
    }
    for step in order:
        if step in steps:
            steps[step]()
        else:
            what, name = step.split()
            (w.read if what == "read" else w.fill)(name)
    w.outputs = list(outputs)
    program = w.after(fuse_head_loss)
    return [i.KERNEL for i in program if isinstance(i, KernelCall) and not isinstance(i, calls.Copy)]


def test_heads_are_found() -> None:
    assert left("scores", "loss") == ["head_loss_f32"]
    assert left(*STEPS[:-1]) == ["head_loss_f32"]
    assert left(*STEPS) == ["head_loss_f32", "head_loss_weight_grad_f32"]


@pytest.mark.parametrize(
    "order",
    [
        ("fill scores", *STEPS[1:]),
        ("rectified-scores", *STEPS[1:]),
        ("added-scores", *STEPS[1:]),
        ("scores-of-part-rows", *STEPS[1:]),
        ("scores-of-part-weights", *STEPS[1:2]),
        ("scores-with-half-a-bias", *STEPS[1:]),
        ("scores", "read scores", *STEPS[1:]),
        ("scores", "fill scores", *STEPS[1:]),
        ("scores", "loss", "read log_prob", *STEPS[2:]),
        (*STEPS[:3], "read dscores", *STEPS[3:]),
        (*STEPS[:3], "fill dscores", *STEPS[3:]),
        ("scores", "fill x", *STEPS[1:]),
        (*STEPS[:4], "fill x", "dw"),
        (*STEPS[:2], "fill w", *STEPS[2:]),
        (*STEPS[:2], "fill labels", *STEPS[2:]),
        (*STEPS[:3], "fill dy", *STEPS[3:]),
        ("scores", "loss", "dscores of others", "dx", "dw"),
        (*STEPS[:4], "dw of dx"),
        (*STEPS[:3], "halved dx", "dw"),
        (*STEPS[:3], "rectified dx", "dw"),
        (*STEPS[:4], "dx", "dw"),
    ],
    ids=" ".join,
)
def test_heads_stay_where_something_stands_between(order: tuple[str, ...]) -> None:
    assert not [kernel for kernel in left(*order) if kernel.startswith("head_loss")]


@pytest.mark.parametrize("name", ["scores", "log_prob", "dscores"])
def test_outputs_stay(name: str) -> None:
    assert "head_loss_f32" not in left(*STEPS, outputs=(name,))


@pytest.mark.parametrize("shared", [{"dx": "x"}, {"dw": "w"}, {"dx": "dy"}], ids=str)
def test_results_over_operands_stay(shared: dict[str, str]) -> None:
    assert "head_loss_f32" not in left(*STEPS, shared=shared)
