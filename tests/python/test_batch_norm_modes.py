"""Frozen running statistics and the option `batch_norm`, of every node of a file: against float64."""

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import batch_norm_net, make_model, normal
from tests.python.test_noted_batch_norm import KEPT, TRAINED, W, X, net, normalized
from tests.zoo.recording import load

import trainweb
from trainweb import onnxblock
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.lora import inject
from trainweb.onnxblock import blocks

STATISTICS = ["n0.running_mean", "n0.running_var"]


def opened(files: Artifacts) -> trainweb.TrainingSession:
    return trainweb.TrainingSession(**files)


def trained(model: Any, **settings: Any) -> tuple[float, dict[str, bool], list[str]]:
    """The loss of a step, which statistics it moved, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        files = build_artifacts(model, optimizer="SGD", **settings)
    with opened(files) as s:
        names = [n for n in s.parameter_names() if n.endswith("running_mean")]
        before = {n: s.get_parameter(n).copy() for n in names}
        loss = float(next(iter(s.train_step({"x": X.astype(np.float32)}).values())))
        s.optimizer_step()
        moved = {n: bool((s.get_parameter(n) != before[n]).any()) for n in names}
    return loss, moved, [str(w.message) for w in caught]


def expected(*by_batch: bool) -> float:
    h = X.astype(np.float64)
    for batch in by_batch:
        h = normalized(h, batch)
    return float(np.square(h @ W).mean())


@pytest.mark.parametrize("frozen", [STATISTICS, ["n0\\..*"], STATISTICS[1:], [r".*running.*"]])
def test_frozen_statistics_of_a_norm_in_training_mode_stay(frozen: list[str]) -> None:
    files = build_artifacts(net(TRAINED), optimizer="SGD", frozen_params=frozen)
    norm = dict(zip(("weight", "bias", "mean", "variance"), parameters(), strict=True))
    is_norm_frozen = frozen == ["n0\\..*"]
    with opened(files) as s:
        before = {n: s.get_parameter(n).copy() for n in s.parameter_names() if "running" in n}
        s.set_learning_rate(0.1)
        for _ in range(3):
            found = float(next(iter(s.train_step({"x": X.astype(np.float32)}).values())))
            assert found == pytest.approx(stepped(norm, is_norm_frozen), rel=1e-5)
            s.optimizer_step()
            s.lazy_reset_grad()
        for name, value in before.items():
            np.testing.assert_array_equal(s.get_parameter(name), value)
        if not is_norm_frozen:
            np.testing.assert_allclose(s.get_parameter("n0.weight"), norm["weight"], rtol=1e-4)
            np.testing.assert_allclose(s.get_parameter("n0.bias"), norm["bias"], rtol=1e-4)


def parameters() -> tuple[np.ndarray, ...]:
    """Scale, bias, mean and variance of a norm of `net`, in float64."""
    return tuple((normal(3, seed=s) ** 2 + 0.5).astype(np.float64) for s in range(3, 7))


def stepped(norm: dict[str, np.ndarray], is_frozen: bool) -> float:
    """The loss of `net` with one norm by stored statistics, and a step of SGD with rate 0.1, in float64."""
    x = X.astype(np.float64)
    w = norm.setdefault("w", W.astype(np.float64))
    unit = (x - norm["mean"]) / np.sqrt(norm["variance"] + 1e-5)
    h = unit * norm["weight"] + norm["bias"]
    product = h @ w
    gradient = 2 * product / product.size
    inner = gradient @ w.T
    if not is_frozen:
        norm["weight"] = norm["weight"] - 0.1 * (inner * unit).sum(0)
        norm["bias"] = norm["bias"] - 0.1 * inner.sum(0)
    norm["w"] = w - 0.1 * h.T @ gradient
    return float(np.square(product).mean())


@pytest.mark.parametrize(
    ("batch_norm", "by_batch"), [(None, (True, False)), ("as_exported", (True, False)), ("train", (True, True))]
)
def test_the_option_decides_for_every_node_of_a_mixed_file(batch_norm: str | None, by_batch: tuple[bool, ...]) -> None:
    loss, moved, said = trained(net(TRAINED, KEPT), batch_norm=batch_norm)
    assert loss == pytest.approx(expected(*by_batch), rel=1e-5)
    assert moved == {"n0.running_mean": True} | ({"n1.running_mean": True} if by_batch[1] else {})
    assert said == []


@pytest.mark.parametrize("frozen", [[], STATISTICS])
def test_frozen_statistics_win_over_the_option(frozen: list[str]) -> None:
    loss, moved, _ = trained(net(KEPT, TRAINED), batch_norm="train", frozen_params=frozen)
    assert loss == pytest.approx(expected(not frozen, True), rel=1e-5)
    assert moved == {"n0.running_mean": not frozen, "n1.running_mean": True}


@pytest.mark.parametrize("batch_norm", ["train", "as_exported"])
@pytest.mark.parametrize("modes", [[TRAINED], [TRAINED, TRAINED]])
def test_an_option_that_changes_no_node_says_so(modes: list[str], batch_norm: str) -> None:
    _, moved, said = trained(net(*modes), batch_norm=batch_norm)
    assert all(moved.values())
    (text,) = said
    assert text.startswith(f"batch_norm='{batch_norm}' changes nothing") and "frozen_params" in text
    with warnings.catch_warnings(action="error"):  # of the rows of its example, too
        assert trainweb.check(net(*modes), batch_norm=batch_norm).remarks == said


def test_an_option_for_norms_that_are_frozen_says_so() -> None:
    _, _, said = trained(net(KEPT), batch_norm="train", frozen_params=["n0\\..*"])
    assert len(said) == 1 and "changes nothing" in said[0]
    assert not trained(net(KEPT), batch_norm="as_exported")[2]


def untracked() -> Any:
    """loss = mean(plain(computed(x))^2): a norm of computed statistics as TorchScript writes it, and a plain one."""
    attrs = {"training_mode": 1}
    axes = {"axes": [0], "keepdims": 0}
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], "mean of x", **axes),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["dd"]),
        helper.make_node("ReduceMean", ["dd"], ["v"], "variance of x", **axes),
        helper.make_node("BatchNormalization", ["x", "a.weight", "a.bias", "m", "v"], ["h", "", ""], "a", **attrs),
        helper.make_node("BatchNormalization", ["h", "b.weight", "b.bias", *STATISTICS], ["y"], "b"),
        helper.make_node("Mul", ["y", "y"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["loss"], "mean", keepdims=0),
    ]
    scale, bias, mean, variance = (p.astype(np.float32) for p in parameters())
    tensors = {"a.weight": scale, "a.bias": bias, "b.weight": scale, "b.bias": bias}
    tensors |= dict(zip(STATISTICS, (mean, variance), strict=True))
    return make_model(nodes, {"x": ["n", 3]}, {"loss": []}, tensors)


@pytest.mark.parametrize(("batch_norm", "by_batch"), [(None, True), ("train", True), ("as_exported", False)])
def test_norms_of_computed_statistics_do_not_count(batch_norm: str | None, by_batch: bool) -> None:
    loss, moved, said = trained(untracked(), batch_norm=batch_norm)
    h = normalized(normalized(X.astype(np.float64), True), by_batch)
    assert loss == pytest.approx(np.square(h).mean(), rel=1e-5)
    assert moved == ({"n0.running_mean": True} if by_batch else {})
    assert len(said) == (batch_norm is None) and all(
        "1 BatchNormalization node is in inference mode" in t for t in said
    )


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_frozen_statistics_stay_in_every_form_of_the_node(opset: int) -> None:
    model = batch_norm_net(training_mode=True, opset=opset)
    files = build_artifacts(model, loss="MSELoss", optimizer="SGD", frozen_params=["bn.mean", "bn.var"])
    rows = {"x": normal(6, 2, 4, 4, seed=4), "target": normal(6, 2, seed=5)}
    with opened(files) as s:
        before = s.get_parameter("bn.mean").copy()
        loss, evaluated = (next(iter(step(rows).values())) for step in (s.train_step, s.eval_step))
        assert float(loss) == pytest.approx(float(evaluated), rel=1e-6)
        np.testing.assert_array_equal(s.get_parameter("bn.mean"), before)


def test_a_norm_that_only_its_frozen_statistics_keep_from_training_is_told() -> None:
    """ONNX Runtime updates statistics that are named so."""
    for model, told in ((net(TRAINED), True), (net(KEPT), True)):
        _, _, said = trained(model, frozen_params=STATISTICS)
        assert any(text.startswith("Frozen statistics keep 1 of the batch norm") for text in said) == told
        assert not trained(model, frozen_params=["n0\\..*"])[2]


class Training(onnxblock.TrainingBlock):
    def build(self, loss: str) -> Any:
        return blocks.PassThrough()(loss)


def test_a_training_block_holds_frozen_statistics() -> None:
    block = Training()
    for name in ("w", "n0.weight", "n0.bias", *STATISTICS):
        block.requires_grad(name, name not in STATISTICS)
    with onnxblock.base(net(TRAINED)):
        block("loss")
    assert not [n for n in block.models.training.nodes if n.op_type == "BatchNormInternal"]


def said_of(session: trainweb.TrainingSession, rows: int) -> list[str]:
    """The warnings of three epochs of this many rows, under the filter of a program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            session.fit({"x": X[:rows].astype(np.float32)}, batch_size=2, accumulate=2, epochs=2, progress=False)
    return [str(w.message) for w in caught]


def test_a_norm_that_sees_one_row_warns_once() -> None:
    """The last batch of three rows has one; PyTorch raises."""
    with opened(build_artifacts(net(TRAINED, TRAINED), optimizer="SGD")) as s:
        assert said_of(s, 4) == []
        (text,) = said_of(s, 3)
        assert text.startswith("A batch normalization in training mode gets one value for each channel")
    with opened(build_artifacts(net(TRAINED), optimizer="SGD", frozen_params=["n0\\..*"])) as s:
        assert said_of(s, 3) == []


def test_a_federated_client_warns_of_statistics_that_rounds_do_not_average() -> None:
    """The way of docs/federated.md averages them: as the means of the clients' rows in float64."""
    parts = [X[:2].astype(np.float32), X[2:].astype(np.float32)]
    with opened(build_artifacts(net(TRAINED), optimizer="SGD")) as s:
        with pytest.warns(UserWarning, match=r"moves 2 untrained tensors, such as 'n0\.running_mean'"):
            s.federated()
        common, vectors = s.get_contiguous_parameters(False), []
        for part in parts:
            s.load_parameters_buffer(common, False)
            s.fit({"x": part}, learning_rate=0.0, progress=False)
            vectors.append(s.get_contiguous_parameters(False))
        s.load_parameters_buffer(np.average(vectors, axis=0, weights=[2, 4]).astype(np.float32), False)
        mean = parameters()[2]
        expected = 0.9 * mean + 0.1 * (2 * X[:2].mean(0) + 4 * X[2:].mean(0)) / 6
        np.testing.assert_allclose(s.get_parameter("n0.running_mean"), expected, rtol=1e-5)
    with (
        opened(build_artifacts(net(TRAINED), optimizer="SGD", frozen_params=["n0\\..*"])) as s,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        s.federated()


def bare_net(kind: str) -> Any:
    """loss = mean((norm(x v) w)^2), whose norm has constants for scale and bias, or makes them of a parameter."""
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    make = helper.make_node
    tensors: dict[str, np.ndarray] = {"v": V, "w": W, "mean": ones * 0.5, "variance": ones * 2}
    nodes = [make("MatMul", ["x", "v"], ["h"])]
    if kind == "initializers":
        tensors |= {"scale": ones, "bias": zeros}
    elif kind == "constants":
        nodes += [make("Constant", [], [n], value_floats=a) for n, a in (("scale", ones), ("bias", zeros))]
    elif kind == "computed":  # as the dynamo exporter does with optimize=False
        for name, value in (("scale", 1.0), ("bias", 0.0)):
            nodes += [make("Constant", [], [f"{name}_0"], value_floats=[value]), make("Shape", ["mean"], [f"{name}_s"])]
            nodes.append(make("Expand", [f"{name}_0", f"{name}_s"], [name]))
    else:
        tensors |= {"gain": ones * 0.5, "bias": zeros}
        nodes.append(make("Exp", ["gain"], ["scale"]))
    nodes += [
        make("BatchNormalization", ["h", "scale", "bias", "mean", "variance"], ["n"]),
        make("MatMul", ["n", "w"], ["p"]),
        make("Mul", ["p", "p"], ["s"]),
        make("ReduceMean", ["s"], ["loss"], keepdims=0),
    ]
    return make_model(nodes, {"x": ["n", 3]}, {"loss": []}, tensors)


V = normal(3, 3, seed=9)


def bare_loss(*, by_batch: bool, scale: float) -> float:
    h = X.astype(np.float64) @ V.astype(np.float64)
    mean, variance = (h.mean(0), h.var(0)) if by_batch else (0.5, 2.0)
    return float(np.square(scale * (h - mean) / np.sqrt(variance + 1e-5) @ W.astype(np.float64)).mean())


@pytest.mark.parametrize("batch_norm", ["train", "as_exported", None])
@pytest.mark.parametrize("kind", ["initializers", "constants", "computed", "of a parameter"])
def test_the_option_decides_for_norms_without_scale_and_bias(kind: str, batch_norm: str | None) -> None:
    settings = {"requires_grad": ["v", "w", *(["gain"] if kind == "of a parameter" else [])]}
    files = build_quietly(bare_net(kind), batch_norm=batch_norm, **settings)
    with opened(files) as s:
        found = float(next(iter(s.train_step({"x": X.astype(np.float32)}).values())))
        moved = "mean" in s.parameter_names() and bool((s.get_parameter("mean") != 0.5).any())
    by_batch = batch_norm != "as_exported"
    scale = np.exp(0.5) if kind == "of a parameter" else 1.0
    assert found == pytest.approx(bare_loss(by_batch=by_batch, scale=scale), rel=1e-5)
    assert moved == by_batch


@pytest.mark.parametrize(
    "settings", [{"requires_grad": ["w"]}, {"frozen_params": ["mean"]}, {"frozen_params": ["scale", "bias"]}]
)
def test_norms_without_scale_and_bias_in_frozen_parts_keep_their_statistics(settings: dict[str, list[str]]) -> None:
    files = build_quietly(bare_net("initializers"), batch_norm="train", **settings)
    with opened(files) as s:
        found = float(next(iter(s.train_step({"x": X.astype(np.float32)}).values())))
    assert found == pytest.approx(bare_loss(by_batch=False, scale=1.0), rel=1e-5)


def test_a_scale_that_is_made_of_a_frozen_parameter_keeps_the_statistics() -> None:
    files = build_quietly(bare_net("of a parameter"), batch_norm="train", requires_grad=["v", "w"])
    with opened(files) as s:
        found = float(next(iter(s.train_step({"x": X.astype(np.float32)}).values())))
    assert found == pytest.approx(bare_loss(by_batch=False, scale=np.exp(0.5)), rel=1e-5)


def build_quietly(model: Any, **settings: Any) -> Artifacts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_artifacts(model, optimizer="SGD", **settings)


@pytest.mark.parametrize("how", ["the file decides", "by name", "adapters"])
def test_norms_that_the_exporter_folded_are_warned_of(how: str) -> None:
    """Dynamo's default folds a norm behind a product as for inference, in training mode, too."""
    files = load("mlp").files

    def messages(exporter: str) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if how == "adapters":
                inject(files[exporter]).build_artifacts(loss="CrossEntropyLoss")
            else:
                names = r".*\.weight" if how == "by name" else None
                build_artifacts(files[exporter], requires_grad=names, loss="CrossEntropyLoss")
        return [str(w.message) for w in caught if "is folded" in str(w.message)]

    (said,) = messages("dynamo")
    assert said.startswith("Batch normalization '1', in training mode, is folded into weights as for inference.")
    assert messages("plain") == messages("script") == messages("default") == []
    assert any("is folded" in w for w in trainweb.check(files["dynamo"], loss="CrossEntropyLoss").remarks)


def test_folded_norms_that_are_frozen_anyway_are_not_warned_of() -> None:
    """The new head is trained alone, so the norm would keep the file's statistics in an unfolded file, too."""
    model, options = load("mlp").files["dynamo"], {"loss": "CrossEntropyLoss", "head": {"classes": 2}}

    def count(**more: Any) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainweb.TrainingSession.from_model(model, **options, **more).release()
        remarks = trainweb.check(model, **options, **more).remarks
        said, listed = (sum("is folded" in text for text in texts) for texts in (map(str, caught), remarks))
        assert said == listed
        return said

    assert (count(), count(frozen_params="all but head"), count(frozen_params=[r"0\..*"])) == (1, 0, 1)
