"""Models of float16, bfloat16 and float64: computed in float32, with their declared types at the edges."""

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import make_model
from tests.python.kernel_runner import BUILDS, runner
from tests.python.remote_files import Host
from tests.python.sessions import infer, take_steps

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.checkpoint import read_checkpoint
from trainweb.ir.layout import BFLOAT_TO_FLOAT, FLOAT_TO_BFLOAT, FLOAT_TO_HALF, HALF_TO_FLOAT
from trainweb.model.floats import ConvertedTensor, convert, converted
from trainweb.model.graph import Tensor
from trainweb.model.lazy import LARGE, join_parts
from trainweb.model.reader import read_model
from trainweb.model.writer import model_parts
from trainweb.training.arrays import to_numpy

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
CODES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float64": TensorProto.DOUBLE}
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-21}
"""What a result may be off, as a part of it: the last place of its type, of float32 after some sums for float64."""


def numbers() -> np.ndarray:
    """float32s: of every exponent, on both sides of what rounds, and no numbers."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    ties = (halves.astype(np.uint64)[:, None] + np.array([0, 0xFFF, 0x1000, 0x1001])).astype(np.uint32).reshape(-1)
    return np.concatenate([words, ties, ties & 0xFFFF0000 | 0x8000]).view(np.float32)


def same(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Bit for bit, but for the payloads of NaNs."""
    with np.errstate(invalid="ignore"):
        one, two = actual.astype(np.float64), expected.astype(np.float64)
    return bool((np.isnan(one) == np.isnan(two)).all()) and bool(
        ((one == two) & (np.signbit(one) == np.signbit(two)) | np.isnan(two)).all()
    )


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("dtype", "narrow", "widen"),
    [
        ("float16", FLOAT_TO_HALF, HALF_TO_FLOAT),
        ("bfloat16", FLOAT_TO_BFLOAT, BFLOAT_TO_FLOAT),
    ],
)
def test_kernels_convert_as_numpy_does(build: str, dtype: str, narrow: int, widen: int) -> None:
    half, wide = DTYPES[dtype], numbers()
    for given, conversion, out in (
        (wide, narrow, half),
        (np.arange(2**16, dtype=np.uint16).view(half), widen, np.float32),
    ):
        with np.errstate(all="ignore"):
            expected = given.astype(out)
        found = np.zeros(given.size * np.dtype(out).itemsize, np.uint8)
        arguments = {"x": given.view(np.uint8), "y": found, "n": given.size, "conversion": conversion}
        assert same(runner(build).run("convert_half", arguments)["y"].view(out), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_convert_as_numpy_does(dtype: str) -> None:
    wide, target = numbers(), DTYPES[dtype]
    with np.errstate(all="ignore"):
        expected = wide.astype(target)
    found = bytearray(expected.nbytes)
    convert(memoryview(wide.tobytes()), "float32", memoryview(found), dtype)
    assert same(np.frombuffer(found, target), expected)
    back = bytearray(wide.nbytes)
    convert(memoryview(found), dtype, memoryview(back), "float32")
    assert same(np.frombuffer(back, np.float32), expected.astype(np.float32))


def test_doubles_beyond_the_range_become_infinite() -> None:
    found = bytearray(8)
    convert(memoryview(np.array([1e300, -1e300]).tobytes()), "float64", memoryview(found), "float32")
    assert np.frombuffer(found, np.float32).tolist() == [np.inf, -np.inf]


def classifier(dtype: str, *, width: int = 6) -> bytes:
    """x [n, 5] -> y [n, 3] of this type, with a constant mask and a cast inside."""
    rng, target, code = np.random.default_rng(3), DTYPES[dtype], CODES[dtype]
    tensors = {
        "first.weight": rng.standard_normal((5, width)) / 2,
        "first.bias": rng.standard_normal(width) / 2,
        "second.weight": rng.standard_normal((width, 3)) / 2,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "first.weight"], ["a"]),
        helper.make_node("Add", ["a", "first.bias"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Cast", ["c"], ["d"], to=code),
        helper.make_node("MatMul", ["d", "second.weight"], ["y"]),
    ]
    edges = [helper.make_tensor_value_info(*v) for v in (("x", code, ["n", 5]), ("y", code, ["n", 3]))]
    initializers = [numpy_helper.from_array(value.astype(target), name) for name, value in tensors.items()]
    return make_model(nodes, edges[:1], edges[1:], initializers).SerializeToString()


def weights_of(model: bytes) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}


def feeds(dtype: str, n: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {name: rng.standard_normal((n, k)).astype(DTYPES[dtype]) for name, k in (("x", 5), ("target", 3))}


def trained_by_hand(model: bytes, given: dict[str, np.ndarray], steps: int, rate: float) -> tuple[list[float], Any]:
    """Losses and weights of gradient descent on the mean squared error, in float64."""
    w = {name: a.astype(np.float64) for name, a in weights_of(model).items()}
    x, target = (given[name].astype(np.float64) for name in ("x", "target"))
    losses = []
    for _ in range(steps):
        hidden = np.tanh(x @ w["first.weight"] + w["first.bias"])
        error = hidden @ w["second.weight"] - target
        losses.append(float((error**2).mean()))
        dy = 2 * error / error.size
        before = (dy @ w["second.weight"].T) * (1 - hidden**2)
        w["second.weight"] = w["second.weight"] - rate * hidden.T @ dy
        w["first.weight"] = w["first.weight"] - rate * x.T @ before
        w["first.bias"] = w["first.bias"] - rate * before.sum(0)
    return losses, w


def session_of(files: Any, state: trainweb.CheckpointState | None = None) -> trainweb.TrainingSession:
    state = state or trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    return trainweb.TrainingSession(state, files.training_model, files.eval_model, files.optimizer_model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_training_is_that_of_float64_and_the_edges_keep_their_types(dtype: str) -> None:
    model, given = classifier(dtype), feeds(dtype)
    files = build_artifacts(model, loss="MSELoss", optimizer="SGD", additional_output_names=["y"])
    losses, expected = trained_by_hand(model, given, 5, 0.1)
    with session_of(files) as session:
        session.set_learning_rate(0.1)
        for loss in losses:
            results = list(session.train_step(given).values())
            assert results[0].dtype == np.float32
            assert float(results[0]) == pytest.approx(loss, rel=1e-5)
            assert (results[1].dtype, results[1].shape) == (np.dtype(DTYPES[dtype]), (7, 3))
            session.optimizer_step()
            session.lazy_reset_grad()
        for name, wanted in expected.items():
            np.testing.assert_allclose(session.get_parameter(name), wanted, rtol=1e-4, atol=1e-6)
        exported = session.export_model_for_inferencing(["y"])
    written = weights_of(exported)
    assert {name: a.dtype for name, a in written.items()} == dict.fromkeys(expected, np.dtype(DTYPES[dtype]))
    for name, wanted in expected.items():
        np.testing.assert_allclose(written[name].astype(float), wanted, rtol=EPSILON[dtype], atol=1e-6)
    onnx.checker.check_model(onnx.load_from_string(exported))
    (ours,) = infer(exported, {"x": given["x"]})
    (theirs,) = ReferenceEvaluator(exported).run(None, {"x": given["x"]})
    assert ours.dtype == theirs.dtype == np.dtype(DTYPES[dtype])
    np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=EPSILON[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_that_the_eval_model_does_not_have_is_exported_as_declared(dtype: str) -> None:
    model, x = classifier(dtype), feeds(dtype)["x"]
    with session_of(build_artifacts(model, loss="MSELoss", optimizer="SGD")) as session:
        exported = session.export_model_for_inferencing(["y"])
    onnx.checker.check_model(onnx.load_from_string(exported), full_check=True)
    (ours,), (theirs,) = infer(exported, {"x": x}), ReferenceEvaluator(exported).run(None, {"x": x})
    assert ours.dtype == theirs.dtype == np.dtype(DTYPES[dtype])
    np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=EPSILON[dtype], atol=1e-6)


CHANGES: list[dict[str, Any]] = [
    {},
    {"head": {"classes": 2}},
    {"lora": {"rank": 2}},
    {"lora": {"rank": 2, "use_dora": True}},
    {"lora": {"rank": 2, "targets": ["first"], "modules_to_save": ["second"]}},
    {"head": {"classes": 2}, "lora": {"rank": 2, "targets": ["first"]}},
]


@pytest.mark.filterwarnings("ignore:The head")
@pytest.mark.parametrize("change", CHANGES, ids=[" ".join(map(str, change)) or "plain" for change in CHANGES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exports_of_exports_have_nodes_of_different_names(dtype: str, change: dict[str, Any]) -> None:
    """ONNX Runtime refuses two nodes of one name."""
    file, x = classifier(dtype), feeds(dtype)["x"]
    for settings in (change, {}, {"head": {"classes": 3}}):
        with trainweb.TrainingSession.from_model(file, loss="MSELoss", optimizer="SGD", **settings) as session:
            written = [session.export(), *([session.adapted.merge(session)] if "lora" in settings else [])]
        for file in map(bytes, written):
            names = [node.name for node in onnx.load_from_string(file).graph.node if node.name]
            assert len(set(names)) == len(names) > 0, sorted(names)
            (ours,), (theirs,) = infer(file, {"x": x}), ReferenceEvaluator(file).run(None, {"x": x})
            assert ours.dtype == theirs.dtype == np.dtype(DTYPES[dtype])
            np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=EPSILON[dtype], atol=1e-2)


IN_NODES = [
    helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(np.linspace(-2, 2, 36).reshape(9, 4))),
    helper.make_node(
        "Constant", [], ["weight"], value=numpy_helper.from_array(np.linspace(1, 2, 12).reshape(4, 3) ** 2)
    ),
    helper.make_node("Gather", ["table", "x"], ["rows"]),
    helper.make_node("Softplus", ["rows"], ["soft"]),
    helper.make_node("MatMul", ["soft", "weight"], ["y"]),
]
CASTS = [
    helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
    helper.make_node("Softplus", ["wide"], ["soft"]),
    helper.make_node("Cast", ["soft"], ["narrow"], to=TensorProto.FLOAT),
    helper.make_node("MatMul", ["narrow", "first.weight"], ["y"]),
]


@pytest.mark.parametrize("where", ["constant nodes", "casts of data"])
def test_float64_is_converted_in(where: str) -> None:
    """Models without a float64 input or initializer."""
    inside = where == "constant nodes"
    nodes = IN_NODES if inside else CASTS
    x = np.array([3, 8]) if inside else np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    kinds = (TensorProto.INT64, TensorProto.DOUBLE) if inside else (TensorProto.FLOAT, TensorProto.FLOAT)
    edges = [helper.make_tensor_value_info(*v) for v in (("x", kinds[0], x.shape), ("y", kinds[1], [2, 3]))]
    weight = numpy_helper.from_array(np.linspace(1, 2, 12, dtype=np.float32).reshape(4, 3) ** 2, "first.weight")
    proto = make_model(nodes, edges[:1], edges[1:], [] if inside else [weight])
    model = proto.SerializeToString()
    (expected,), (found,) = ReferenceEvaluator(model).run(None, {"x": x}), infer(model, {"x": x})
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    report = trainweb.check(model, loss="MSELoss", optimizer="SGD")
    assert report.ok, str(report)
    assert ("2 constants of float64" if inside else "1 casts to float64") in str(report.precision)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_that_are_no_parameters_are_exported_as_declared(dtype: str) -> None:
    model = onnx.load_from_string(classifier(dtype))
    factors = np.array([0.5, 2.0, 1.5]).astype(DTYPES[dtype])
    node = onnx.helper.make_node("Constant", [], ["factors"], value=numpy_helper.from_array(factors))
    model.graph.initializer.append(numpy_helper.from_array(factors[1:2], "moved"))
    last = model.graph.node[-1]
    last.output[0] = "raw"
    model.graph.node.extend(
        [
            node,
            onnx.helper.make_node("Mul", ["raw", "factors"], ["scaled"]),
            onnx.helper.make_node("Add", ["scaled", "moved"], ["y"]),
        ]
    )
    names = ["first.weight", "first.bias", "second.weight"]
    files = build_artifacts(
        model.SerializeToString(), requires_grad=names, loss="MSELoss", optimizer="SGD", additional_output_names=["y"]
    )
    with session_of(files) as session:
        exported = session.export_model_for_inferencing(["y"])
    for written in map(weights_of, (exported, files.training_model, files.eval_model)):
        for name, values in (("factors", factors), ("moved", factors[1:2])):
            assert written[name].dtype == values.dtype and same(written[name], values)
    x = feeds(dtype)["x"]
    (ours,), (theirs,) = infer(exported, {"x": x}), ReferenceEvaluator(exported).run(None, {"x": x})
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=EPSILON[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inference_is_that_of_float64(dtype: str) -> None:
    model, x = classifier(dtype), feeds(dtype)["x"]
    w = {name: a.astype(np.float64) for name, a in weights_of(model).items()}
    expected = np.tanh(x.astype(np.float64) @ w["first.weight"] + w["first.bias"]) @ w["second.weight"]
    (found,) = infer(model, {"x": x})
    assert found.dtype == np.dtype(DTYPES[dtype])
    np.testing.assert_allclose(found.astype(float), expected, rtol=EPSILON[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_checkpoints_have_the_declared_type_in_place_and_resume_exactly(dtype: str) -> None:
    model, given = classifier(dtype), feeds(dtype)
    files = build_artifacts(model, frozen_params=["first.bias"], loss="MSELoss", optimizer="AdamW")
    fresh = read_checkpoint(files.checkpoint)
    assert [t.name for t in (*fresh.trained, *fresh.frozen)] == ["first.weight", "second.weight", "first.bias"]
    source = weights_of(model)
    for tensor in (*fresh.trained, *fresh.frozen):
        assert tensor.dtype == dtype
        wanted = source[tensor.name].astype(np.float32).astype(DTYPES[dtype])
        assert bytes(tensor.data) == wanted.tobytes()
    assert {t.dtype for t in read_checkpoint(files.nominal_checkpoint).trained} == {dtype}
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    load, save = trainweb.CheckpointState.load_checkpoint, trainweb.CheckpointState.save_checkpoint
    with session_of(files, state) as session:
        assert [p.data.dtype for p in state.parameters.values()] == [np.float32] * 3
        take_steps(session, given, 3)
        plain, whole = save(state), save(state, include_optimizer_state=True)
        session.train_step(given)
        session.optimizer_step()
        expected = session.get_contiguous_parameters()
    for data in (plain, whole):
        assert data is not None
        assert {t.dtype for t in read_checkpoint(data).trained} == {dtype}
    with session_of(files, load(whole)) as session:
        session.train_step(given)
        session.optimizer_step()
        np.testing.assert_array_equal(session.get_contiguous_parameters(), expected)
    with session_of(files, load(plain)) as session:
        rounded = session.get_parameter("first.weight")
        assert same(rounded.astype(DTYPES[dtype]).astype(np.float32), rounded)


def test_what_is_doubtful_of_types_is_told() -> None:
    report = trainweb.check(classifier("float16"), loss="MSELoss", optimizer="SGD")
    assert report.ok
    assert report.precision is not None and "3 constants of float16; inputs of float16: x" in report.precision
    assert report.precision in str(report)
    assert report.as_data()["precision"] == report.precision


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_data_is_converted_to_the_type_of_the_input(dtype: str) -> None:
    numbers = np.arange(30).reshape(6, 5) % 7 / 3
    with trainweb.TrainingSession.from_model(classifier(dtype), loss="MSELoss") as s:
        for x in (numbers, numbers.astype(np.float16), numbers.astype(np.int32), numbers > 1):
            (expected,) = s.predict({"x": x.astype(DTYPES[dtype])}).values()
            for data in (x, x.tolist(), [{"x": row} for row in x]):
                np.testing.assert_array_equal(s.predict(data)["y"], expected)


def test_a_feed_of_another_float_is_refused() -> None:
    with pytest.raises(trainweb.errors.FeedError, match=r"expected: \(float16\)"):
        infer(classifier("float16"), {"x": np.zeros((2, 5), np.float32)})


def test_shape_arithmetic_in_float64_stays_what_it_is() -> None:
    """0.07 * 100 is 7.000000000000001 in float64, whose ceiling is 8, and 7 in float32."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["d", "factor"], ["p"]),
        helper.make_node("Ceil", ["p"], ["q"]),
        helper.make_node("Cast", ["q"], ["n"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["n"], ["y"]),
    ]
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["k"]) for name in "xy"]
    factor = numpy_helper.from_array(np.array([0.07]), "factor")
    model = make_model(nodes, edges[:1], edges[1:], [factor]).SerializeToString()
    x = np.zeros(100, np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = infer(model, {"x": x})
    assert found.shape == expected.shape == (8,)


def test_branches_and_outer_tensors_are_converted() -> None:
    """An If whose branches read an input and a constant of float16 from outside."""
    code = TensorProto.FLOAT16

    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op}.out", code, None)
        return helper.make_graph([helper.make_node(op, ["x", "w"], [f"{op}.out"])], op, [], [out])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul"))
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", code, [2])]
    outputs = [helper.make_tensor_value_info("y", code, [2])]
    w = numpy_helper.from_array(np.array([3.0, 5.0], np.float16), "w")
    model = make_model([node], inputs, outputs, [w]).SerializeToString()
    x = np.array([2.0, 4.0], np.float16)
    for condition, expected in ((True, [5.0, 9.0]), (False, [6.0, 20.0])):
        (y,) = infer(model, {"c": np.array(condition), "x": x})
        assert y.dtype == np.float16
        assert y.tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_tensors_of_a_file_that_others_hold_are_named_with_their_conversion(dtype: str) -> None:
    width = LARGE // 2
    host = Host()
    graph = read_model(host.open(classifier(dtype, width=width)))
    weight = graph.initializers["first.weight"]
    wide = converted(weight, "float32")
    assert isinstance(wide, ConvertedTensor) and wide.place is not None
    assert (wide.place.kind, wide.place.conversion) == ("file", (dtype, "float32"))
    assert converted(wide, dtype).place == weight.place  # type: ignore[attr-defined]
    expected = to_numpy(weight).astype(np.float32)
    np.testing.assert_array_equal(to_numpy(wide), expected)


def test_a_model_of_converted_tensors_is_written_with_their_elements() -> None:
    data = np.arange(LARGE, dtype=np.float16)
    graph = read_model(classifier("float16"))
    graph.initializers["first.bias"] = converted(Tensor("first.bias", "float16", (LARGE,), data.tobytes()), "float32")
    written = weights_of(join_parts(model_parts(graph)))
    np.testing.assert_array_equal(written["first.bias"], data.astype(np.float32))


@pytest.mark.parametrize(("op", "dtype"), list(product(("ArgMax", "ArgMin"), ("int32", "int8", "uint64"))))
def test_positions_of_integers(op: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(1).integers(info.min, info.max, (4, 9), dtype, endpoint=True)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    edges = [helper.make_tensor_value_info("x", code, [4, 9]), helper.make_tensor_value_info("y", 7, [4, 1])]
    model = make_model([helper.make_node(op, ["x"], ["y"], axis=1)], edges[:1], edges[1:], {}).SerializeToString()
    (y,) = infer(model, {"x": x})
    np.testing.assert_array_equal(y[:, 0], (np.argmax if op == "ArgMax" else np.argmin)(x, 1))
