"""The Python interface before onnxblock."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.conformance.models import make_model, mlp, normal
from tests.golden.older import record_immutable as immutable

import trainweb.compat.onnxruntime as ort
from trainweb import InferenceSession
from trainweb.compat.onnxruntime import NativeTrainingSession, OrtValue, TrainingParameters, TrainingSession
from trainweb.errors import CheckpointError, FeedError, ModelError, SessionError, UnsupportedError

RECORDED = json.loads(Path(immutable.__file__).with_name("immutable.json").read_text())
"""How many weights onnxruntime-training 1.16.3 trains."""
X, T = normal(4, 5, seed=5), normal(4, 3, seed=6)


def model() -> onnx.ModelProto:
    """The MLP with its mean squared error as an output beside the logits."""
    m = mlp()
    m.graph.input.append(helper.make_tensor_value_info("target", onnx.TensorProto.FLOAT, ["batch", 3]))
    m.graph.node.extend(
        [
            helper.make_node("Sub", ["logits", "target"], ["difference"], "difference"),
            helper.make_node("Mul", ["difference", "difference"], ["square"], "square"),
            helper.make_node("ReduceMean", ["square"], ["loss"], "mean", keepdims=0),
        ]
    )
    m.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return m


def parameters(**attributes: Any) -> TrainingParameters:
    p = TrainingParameters(loss_output_name="loss", training_optimizer_name="AdamOptimizer")
    for name, value in attributes.items():
        setattr(p, name, value)
    return p


def weights() -> dict[str, np.ndarray]:
    return {
        "fc1.weight": normal(4, 5),
        "fc1.bias": normal(4, seed=1),
        "fc2.weight": normal(3, 4, seed=2),
        "fc2.bias": normal(3, seed=3),
    }


def loss_and_gradients(w: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
    w = {n: a.astype(np.float64) for n, a in w.items()}
    h = X @ w["fc1.weight"].T + w["fc1.bias"]
    a = np.maximum(h, 0)
    d = a @ w["fc2.weight"].T + w["fc2.bias"] - T
    dy = 2 * d / d.size
    dh = (dy @ w["fc2.weight"]) * (h > 0)
    gradients = {"fc1.weight": dh.T @ X, "fc1.bias": dh.sum(0), "fc2.weight": dy.T @ a, "fc2.bias": dy.sum(0)}
    return float((d**2).mean()), gradients


def feeds(rate: float | None = 0.1) -> dict[str, Any]:
    return {"x": X, "target": T} | ({} if rate is None else {"Learning_Rate": np.array([rate], np.float32)})


@pytest.fixture
def opened() -> Any:
    sessions: list[TrainingSession] = []

    def open_session(p: TrainingParameters, m: onnx.ModelProto | bytes | None = None) -> TrainingSession:
        sessions.append(TrainingSession(m if isinstance(m, bytes) else (m or model()).SerializeToString(), p))
        return sessions[-1]

    yield open_session
    for s in sessions:
        s.release()


def test_sgd_steps(opened: Any) -> None:
    session = opened(parameters(training_optimizer_name="SGDOptimizer"))
    w = weights()
    for _ in range(3):
        loss, gradients = loss_and_gradients(w)
        np.testing.assert_allclose(session.run(["loss"], feeds())[0], loss, rtol=1e-5)
        w = {n: a - 0.1 * gradients[n] for n, a in w.items()}
    for name, array in session.get_model_state()["full_precision"].items():
        np.testing.assert_allclose(array, w[name], rtol=1e-4, atol=1e-5)
    assert session.get_optimizer_state() == {}


@pytest.mark.parametrize("clip", [True, False])
def test_adam_steps(opened: Any, clip: bool) -> None:
    attributes = {"alpha": 0.8, "beta": 0.95, "lambda": 0.1, "epsilon": 1e-6, "max_norm_clip": 0.05}
    session = opened(
        parameters(optimizer_attributes_map=dict.fromkeys(weights(), attributes), enable_grad_norm_clip=clip)
    )
    w = weights()
    m, v = ({n: np.zeros_like(a, np.float64) for n, a in w.items()} for _ in range(2))
    for t in range(1, 4):
        session.run(None, feeds())
        _, g = loss_and_gradients(w)
        norm = np.sqrt(sum((a**2).sum() for a in g.values()))
        factor = min(1.0, 0.05 / (norm + 1e-6)) if clip else 1.0
        for n in w:
            m[n] = 0.8 * m[n] + 0.2 * factor * g[n]
            v[n] = 0.95 * v[n] + 0.05 * (factor * g[n]) ** 2
            step = m[n] / (1 - 0.8**t) / (np.sqrt(v[n] / (1 - 0.95**t)) + 1e-6)
            w[n] = w[n] * (1 - 0.1 * 0.1) - 0.1 * step
    state = session.get_state()
    for n in w:
        np.testing.assert_allclose(state[n], w[n], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(state[f"Moment_1_{n}"], m[n], rtol=1e-3, atol=1e-5)
        assert state[f"Update_Count_{n}"] == 3


@pytest.mark.parametrize("optimizer", ["AdamOptimizer", "LambOptimizer"])
def test_weights_may_differ_in_how_their_gradients_are_clipped(opened: Any, optimizer: str) -> None:
    norms = {"fc1.weight": 0.3, "fc1.bias": 0.02, "fc2.weight": 100.0, "fc2.bias": 0.3}
    attributes: dict[str, dict[str, float]] = {n: {"max_norm_clip": c} for n, c in norms.items()}
    attributes["fc1.weight"]["alpha"] = 0.7
    p = parameters(training_optimizer_name=optimizer, optimizer_attributes_map=attributes)
    session = opened(p)
    session.run(None, feeds())
    _, g = loss_and_gradients(weights())
    norm = np.sqrt(sum((a**2).sum() for a in g.values()))
    assert 0.3 < norm < 100  # three cases
    moments = session.get_optimizer_state()
    for n, clip in norms.items():
        alpha = attributes[n].get("alpha", 0.9)
        expected = (1 - alpha) * g[n] * min(1.0, clip / norm)
        np.testing.assert_allclose(moments[n]["Moment_1"], expected, rtol=1e-4, atol=1e-7, err_msg=n)


def test_without_an_optimizer_gradients_are_outputs(opened: Any) -> None:
    session = opened(
        parameters(
            training_optimizer_name="", set_gradients_as_graph_outputs=True, weights_to_train={"fc2.bias", "fc1.bias"}
        )
    )
    assert [o.name for o in session.get_outputs()] == ["logits", "loss", "fc1.bias_grad", "fc2.bias_grad"]
    assert [i.name for i in session.get_inputs()] == ["x", "target"]
    _, gradients = loss_and_gradients(weights())
    for _ in range(2):  # nothing accumulates between steps
        got = session.run(["fc2.bias_grad", "loss", "fc1.bias_grad"], feeds(None))
        np.testing.assert_allclose(got[0], gradients["fc2.bias"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got[2], gradients["fc1.bias"], rtol=1e-4, atol=1e-6)


def test_micro_batches_are_summed_before_an_update(opened: Any) -> None:
    session = opened(parameters(training_optimizer_name="SGDOptimizer", gradient_accumulation_steps=2))
    before = session.get_state()
    session.run(["loss"], feeds())
    assert all(np.array_equal(a, session.get_state()[n]) for n, a in before.items())
    session.run(["loss"], feeds())
    _, gradients = loss_and_gradients(weights())
    after = session.get_state()
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array - 0.1 * 2 * gradients[name], rtol=1e-4, atol=1e-5)


def test_state_travels_to_another_session(opened: Any) -> None:
    first, second = opened(parameters()), opened(parameters())
    for _ in range(2):
        first.run(["loss"], feeds())
    state = first.get_state()
    second.load_state(state, strict=True)
    for session in (first, second):
        session.run(["loss"], feeds())
    for name, array in first.get_state().items():
        np.testing.assert_array_equal(second.get_state()[name], array)
    with pytest.raises(CheckpointError, match="The key 'zz' is not known"):
        second.load_state({"zz": np.zeros(1)}, strict=True)
    initial = parameters()
    initial.set_optimizer_initial_state(first.get_optimizer_state())
    third = opened(initial)
    np.testing.assert_array_equal(third.get_state()["Moment_1_fc1.bias"], first.get_state()["Moment_1_fc1.bias"])


def test_weights_that_are_not_trained(opened: Any) -> None:
    session = opened(parameters(weights_not_to_train={"fc1.weight"}))
    assert list(session.get_model_state()["full_precision"]) == ["fc1.bias", "fc2.weight", "fc2.bias"]
    assert session.is_output_fp32_node("loss") and not session.is_output_fp32_node("zz")
    assert session.get_partition_info_map() == {} and session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(("value", "trained"), [(0.1, ["w"]), (0.2, ["w", "scale"])])
def test_numbers_that_are_never_trained(opened: Any, value: float, trained: list[str]) -> None:
    """As BERT was trained: its divisors and the like are initializers, and no parameters."""
    scaled = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["y"]),
            helper.make_node("Mul", ["y", "scale"], ["z"]),
            helper.make_node("ReduceSum", ["z"], ["loss"], keepdims=0),
        ],
        {"x": [3]},
        {"loss": []},
        {"w": normal(3), "scale": np.array(0.1, np.float32)},
    )
    p = parameters(weights_to_train={"w", "scale"}, immutable_weights={"Mul": {1: value}})
    assert sorted(opened(p, scaled).get_model_state()["full_precision"]) == sorted(trained)


@pytest.mark.parametrize(("case", "count"), list(zip(immutable.CASES, RECORDED, strict=True)))
def test_immutable_weights_are_those_of_the_real_interface(
    opened: Any, case: dict[str, list[list[float]]], count: int
) -> None:
    pairs = {op_type: [(int(i), value) for i, value in found] for op_type, found in case.items()}
    for given in (pairs, {op_type: dict(found) for op_type, found in pairs.items()}):
        p = TrainingParameters(loss_output_name="loss", immutable_weights=given)
        assert len(opened(p, immutable.model()).get_model_state()["full_precision"]) == count


def test_what_cannot_be_done_is_refused() -> None:
    data = model().SerializeToString()
    for wrong, error, text in (
        ({"loss_output_name": "zz"}, ModelError, "'zz' is not an output of the model; there are logits, loss"),
        ({"training_optimizer_name": "LampOptimizer"}, UnsupportedError, "did you mean 'LambOptimizer'"),
        ({"use_mixed_precision": True}, UnsupportedError, "use_mixed_precision is True; only False"),
        ({"use_fp16_moments": True}, UnsupportedError, "float32"),
        ({"weights_not_to_train": "fc1.bias"}, TypeError, "weights_not_to_train' must be a list of str"),
        ({"weights_to_train": {"fc1.wait"}}, ModelError, "weights_to_train: .*did you mean 'fc1.weight'"),
        ({"weights_not_to_train": {"fc3.bias"}}, ModelError, "did you mean 'fc2.bias'|did you mean 'fc1.bias'"),
        ({"lr_params_feed_name": "x"}, ModelError, "lr_params_feed_name is 'x'; it must be a name that no input"),
        ({"lr_params_feed_name": ""}, ModelError, "lr_params_feed_name is ''"),
        ({"immutable_weights": {"Gem": {1: 0.0}}}, ModelError, "did you mean 'Gemm'"),
        ({"optimizer_attributes_map": {"fc1.bis": {"alpha": 0.8}}}, ModelError, "did you mean 'fc1.bias'"),
        ({"optimizer_attributes_map": {"fc1.bias": {"alpa": 0.8}}}, ModelError, "did you mean 'alpha'"),
        ({"optimizer_int_attributes_map": {"fc1.bias": {"alpha": 1}}}, ModelError, "'alpha' is not known"),
        ({"world_size": 2}, UnsupportedError, "world_size is 2; only 1"),
        ({"gradient_accumulation_steps": 0}, ModelError, "at least 1"),
        ({"optimizer_attributes_map": {"fc1.bias": {"max_norm_clip": 0}}}, ModelError, "'fc1.bias' must be greater"),
        ({"optimizer_int_attributes_map": {"fc1.bias": {"weight_decay_mode": 2}}}, ModelError, "adam_mode"),
    ):
        with pytest.raises(error, match=text):
            TrainingSession(data, parameters(**wrong))
    session = TrainingSession(data, parameters())
    with pytest.raises(FeedError, match="'Learning_Rate' is missing"):
        session.run(["loss"], feeds(None))
    session.release()


def test_models_with_shared_inputs() -> None:
    shared = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["y"]),
            helper.make_node("Mul", ["y", "w"], ["z"]),
            helper.make_node("ReduceSum", ["z"], ["loss"], keepdims=0),
        ],
        {"x": [3]},
        {"loss": []},
        {"w": normal(3)},
    )
    session = TrainingSession(shared, parameters(training_optimizer_name="", set_gradients_as_graph_outputs=True))
    x = normal(3, seed=1)
    np.testing.assert_allclose(session.run(["w_grad"], {"x": x})[0], 2 * normal(3) * x, rtol=1e-5)
    session.release()


def test_misspelt_parameters_are_refused() -> None:
    with pytest.raises(AttributeError, match="did you mean 'loss_output_name'"):
        TrainingParameters().loss_output_nam = "loss"  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"did you mean 'fc1\.bias'"):
        session = TrainingSession(model().SerializeToString(), parameters())
        try:
            session.load_state({"fc1.bia": np.zeros(4, np.float32)}, strict=True)
        finally:
            session.release()


def test_a_session_is_run_in_every_way_of_its_base(opened: Any) -> None:
    """The same step by names, OrtValues and a binding gives the same loss and weights."""
    ways: dict[str, Any] = {
        "run": lambda s, f: s.run(["loss"], f)[0],
        "values": lambda s, f: s.run_with_ort_values(
            ["loss"], {n: OrtValue.ortvalue_from_numpy(a) for n, a in f.items()}
        )[0].numpy(),
        "binding": bound_run,
    }
    found = []
    for way in ways.values():
        session = opened(parameters())
        losses = [float(way(session, feeds())) for _ in range(3)]
        found.append((losses, {n: a.tobytes() for n, a in session.get_state().items()}))
        assert session.get_session_options() is not None
        assert session.get_modelmeta().graph_name == model().graph.name
        assert session.get_provider_options() == {"CPUExecutionProvider": {}}
        session.set_providers(["CPUExecutionProvider"])
        session.enable_fallback()
        session.disable_fallback()
        assert session.loss_scale_input_name == "" and session.get_overridable_initializers() == []
    assert found[0] == found[1] == found[2] and found[0][0][0] > found[0][0][2]


def bound_run(session: TrainingSession, given: dict[str, Any]) -> Any:
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("loss")
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()


def test_the_session_in_two_steps(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    session = NativeTrainingSession()
    with pytest.raises(SessionError, match="call load_model or read_bytes"):
        session.run(None, feeds())
    result = session.load_model(str(path), parameters(), ["CPUExecutionProvider"], [{}])
    assert result.loss_scale_input_name == ""
    other = NativeTrainingSession({"reproducible": False})
    other.read_bytes(path.read_bytes(), parameters())
    np.testing.assert_array_equal(session.run(["loss"], feeds())[0], other.run(["loss"], feeds())[0])
    with pytest.raises(SessionError, match="has a model already"):
        session.read_bytes(path.read_bytes(), parameters())
    for s in (session, other, session):
        s.finalize()


def test_dump_paths_write_their_files(tmp_path: Path, opened: Any) -> None:
    """Each is a valid model; that with gradients gives in onnx's reference what float64 gives."""
    names = ("model_after_graph_transforms_path", "model_with_gradient_graph_path", "model_with_training_graph_path")
    opened(parameters(**{name: str(tmp_path / name) for name in names}))
    models = [onnx.load(tmp_path / name) for name in names]
    outputs = [[o.name for o in m.graph.output] for m in models]
    assert outputs[0] == ["loss", "logits"]
    assert outputs[1] == ["loss", "logits", *(f"{n}_grad" for n in weights())]
    assert outputs[2] == ["loss", "logits", *(f"{n}_grad.accumulation.out" for n in weights())]
    session = InferenceSession(models[1])
    found = dict(zip(session.output_names, session.run(None, feeds(None)), strict=True))
    session.release()
    loss, gradients = loss_and_gradients(weights())
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[f"{name}_grad"], gradient, rtol=1e-4, atol=1e-5)


def test_a_profile_has_every_run(tmp_path: Path) -> None:
    prefix = str(tmp_path / "trace")
    session = TrainingSession(model(), parameters(), {"enable_profiling": True, "profile_file_prefix": prefix})
    assert session.get_profiling_start_time_ns() > 0
    plain = TrainingSession(model(), parameters())
    for _ in range(2):
        assert session.run(["loss"], feeds())[0] == plain.run(["loss"], feeds())[0]
    name = session.end_profiling()
    assert name.startswith(prefix) and session.end_profiling() == name
    events = json.loads(Path(name).read_text())
    runs = [e for e in events if e["name"] == "model_run"]
    assert len(runs) == 4, "two train steps and two updates"
    assert all(e["ph"] == "X" and e["dur"] >= 0 for e in events) and len(events) > 8
    assert [e["ts"] for e in runs] == sorted(e["ts"] for e in runs)
    for s in (session, plain):
        s.release()


def test_terminate_leaves_the_session_as_it_was(opened: Any) -> None:
    session = opened(parameters())
    session.run(None, feeds())
    before = {n: a.tobytes() for n, a in session.get_state().items()}
    with pytest.raises(SessionError, match="terminate flag"):
        session.run(None, feeds(0.7), {"terminate": True})
    assert {n: a.tobytes() for n, a in session.get_state().items()} == before


def adam_update(w: Any, g: Any, m: Any, v: Any, t: int, rate: float, alpha: float, decay: float) -> Any:
    """One step of Adam in float64; the moments are changed."""
    m[...] = alpha * m + (1 - alpha) * g
    v[...] = 0.999 * v + 0.001 * g**2
    step = m / (1 - alpha**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w * (1 - rate * decay) - rate * step


def test_attributes_may_differ_between_weights(opened: Any) -> None:
    """Two weights have attributes of their own; the others the defaults. Against float64."""
    own = {"fc1.bias": {"alpha": 0.5, "lambda": 0.3}, "fc2.weight": {"lambda": 0.2}}
    session = opened(parameters(optimizer_attributes_map=own, enable_grad_norm_clip=False))
    w = {n: a.astype(np.float64) for n, a in weights().items()}
    m, v = ({n: np.zeros_like(a) for n, a in w.items()} for _ in range(2))
    for t in range(1, 4):
        session.run(None, feeds())
        _, g = loss_and_gradients(w)
        for n in w:
            attributes = own.get(n, {})
            alpha, decay = attributes.get("alpha", 0.9), attributes.get("lambda", 0.0)
            w[n] = adam_update(w[n], g[n], m[n], v[n], t, 0.1, alpha, decay)
    for n, array in session.get_model_state()["full_precision"].items():
        np.testing.assert_allclose(array, w[n], rtol=1e-3, atol=2e-4, err_msg=n)


OLDER_ADAM = json.loads((Path(__file__).parent.parent / "golden" / "older" / "adam.json").read_text())


@pytest.mark.parametrize("case", OLDER_ADAM["cases"], ids=lambda case: "-".join(map(str, case["attributes"].values())))
def test_adam_steps_as_onnxruntimes_kernel(opened: Any, case: dict[str, Any]) -> None:
    """The loss is the sum of x w, so that what is fed is the gradient."""
    data = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["p"], "product"),
            helper.make_node("ReduceSum", ["p"], ["loss"], "sum", keepdims=0),
        ],
        {"x": [4]},
        {"loss": []},
        {"w": np.float32(OLDER_ADAM["weights"])},
        opset=15,
    ).SerializeToString()
    integers = {n: case["attributes"][n] for n in ("weight_decay_mode", "do_bias_correction")}
    floats = {n: a for n, a in case["attributes"].items() if n not in integers}
    given = TrainingParameters(
        loss_output_name="loss",
        training_optimizer_name="AdamOptimizer",
        lr_params_feed_name="rate",
        optimizer_attributes_map={"w": floats},
        optimizer_int_attributes_map={"w": integers},
        enable_grad_norm_clip=False,
    )
    session = TrainingSession(data, given)
    for g, expected in zip(OLDER_ADAM["gradients"], case["steps"], strict=True):
        session.run(None, {"x": np.float32(g), "rate": np.float32([OLDER_ADAM["rate"]])})
        state = session.get_state()
        for name, array in expected.items():
            np.testing.assert_allclose(state[name], array, rtol=2e-6, atol=1e-7, err_msg=name)
    session.release()


@pytest.mark.parametrize(("least", "most", "corrects"), [(-np.inf, np.inf, 1), (0.3, 0.6, 1), (-np.inf, 0.05, 0)])
def test_lamb_steps(opened: Any, least: float, most: float, corrects: int) -> None:
    """Adam's direction scaled to the length of the weight within limits, against float64."""
    attributes = {"alpha": 0.8, "beta": 0.99, "lambda": 0.05, "epsilon": 1e-6, "ratio_min": least, "ratio_max": most}
    session = opened(
        parameters(
            training_optimizer_name="LambOptimizer",
            optimizer_attributes_map=dict.fromkeys(weights(), attributes),
            optimizer_int_attributes_map={n: {"do_bias_correction": corrects} for n in weights()},
            enable_grad_norm_clip=False,
        )
    )
    clamped = set()
    w = {n: a.astype(np.float64) for n, a in weights().items()}
    m, v = ({n: np.zeros_like(a) for n, a in w.items()} for _ in range(2))
    for t in range(1, 4):
        session.run(None, feeds())
        _, g = loss_and_gradients(w)
        for n in w:
            m[n] = 0.8 * m[n] + 0.2 * g[n]
            v[n] = 0.99 * v[n] + 0.01 * g[n] ** 2
            first, second = (1 - 0.8**t, 1 - 0.99**t) if corrects else (1, 1)
            step = m[n] / first / (np.sqrt(v[n] / second) + 1e-6) + 0.05 * w[n]
            ratio = np.linalg.norm(w[n]) / np.linalg.norm(step)
            clamped |= {"least"} if ratio < least else {"most"} if ratio > most else {"between"}
            w[n] = w[n] - 0.1 * min(max(ratio, least), most) * step
    assert clamped >= ({"between"} if np.isinf(most) else {"most"})
    state = session.get_state()
    for n in w:
        np.testing.assert_allclose(state[n], w[n], rtol=1e-3, atol=2e-4, err_msg=n)
        np.testing.assert_allclose(state[f"Moment_1_{n}"], m[n], rtol=1e-3, atol=1e-4, err_msg=n)


WITHOUT_EFFECT = {
    "loss_scale": 128.0,
    "propagate_cast_ops_level": 2,
    "propagate_cast_ops_allow": ["MatMul"],
    "use_memory_efficient_gradient": True,
    "gelu_recompute": True,
    "attn_dropout_recompute": True,
    "transformer_layer_recompute": True,
    "number_recompute_layers": 3,
}


def test_parameters_that_change_no_number_are_taken_with_one_warning() -> None:
    def losses(session: TrainingSession) -> list[Any]:
        found = [session.run(["loss"], feeds())[0] for _ in range(4)]
        session.release()
        return found

    data = model().SerializeToString()
    with pytest.warns(UserWarning) as caught:
        found = losses(TrainingSession(data, parameters(**WITHOUT_EFFECT)))
    assert found == losses(TrainingSession(data, parameters()))
    assert len(caught) == 1
    assert all(f"TrainingParameters.{name}=" in str(caught[0].message) for name in WITHOUT_EFFECT)
    assert Path(caught[0].filename) == Path(__file__)


def test_a_state_that_is_refused_leaves_the_session_as_it_was() -> None:
    data = model().SerializeToString()
    session, other = TrainingSession(data, parameters()), TrainingSession(data, parameters())
    for one in (session, other):
        one.run(["loss"], feeds())
    before = session.get_state()
    good = {"fc1.weight": np.zeros((4, 5), np.float32)}
    for wrong in (
        {"fc1.bias": np.zeros(3, np.float32)},
        {"fc1.bias": np.zeros(4, np.int32)},
        {"Moment_1_fc1.bias": np.zeros(3, np.float32)},
        {"Update_Count_fc1.bias": np.zeros(2, np.int64)},
        {"Update_Count_fc1.bias": 1.5},
        {"Update_Count_fc1.bias": -1},
        {"Update_Count_fc1.bias": 3, "Update_Count_fc2.bias": 4},
    ):
        with pytest.raises(CheckpointError, match=r"Nothing was changed|The update count of|counts the updates of all"):
            session.load_state(good | wrong)
        after = session.get_state()
        assert all(np.array_equal(after[name], value) for name, value in before.items())
    assert session.run(["loss"], feeds()) == other.run(["loss"], feeds())
    session.load_state(good | {"Update_Count_fc1.bias": 7})
    assert session.get_state()["Update_Count_fc1.bias"] == 7
    for one in (session, other):
        one.release()


def test_a_session_without_a_model_says_so() -> None:
    for call in (
        lambda s: s.get_state(),
        lambda s: s.get_model_state(),
        lambda s: s.get_optimizer_state(),
        lambda s: s.get_inputs(),
        lambda s: s.get_outputs(),
        lambda s: s.is_output_fp32_node("loss"),
        lambda s: s.load_state({}),
        lambda s: s._reset_session(),
        lambda s: s.get_modelmeta(),
    ):
        with pytest.raises(SessionError, match="no model yet: call load_model or read_bytes"):
            call(NativeTrainingSession())


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("gradient_accumulation_steps", 1.5, ModelError),
        ("gradient_accumulation_steps", True, ModelError),
        ("enable_grad_norm_clip", "no", TypeError),
        ("set_gradients_as_graph_outputs", "no", TypeError),
    ],
)
def test_parameters_of_a_wrong_type_are_refused(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"TrainingParameters.{name}"):
        TrainingSession(model().SerializeToString(), parameters(**{name: value}))


def test_arguments_of_a_wrong_type_are_refused() -> None:
    data = model().SerializeToString()
    session = TrainingSession(data, parameters())
    calls: list[tuple[Any, list[Any], str]] = [
        (TrainingSession, [data, {"loss_output_name": "loss"}], "'parameters' must be of type TrainingParameters"),
        (session.load_state, [[1]], "'state' must be a dict, got list"),
        (session.load_state, [{}, "no"], "'strict' must be a bool"),
        (session.get_model_state, ["no"], "'include_mixed_precision_weights' must be a bool"),
        (parameters().set_optimizer_initial_state, [{"fc1.bias": 5}], "'fc1.bias' must be a dict, got int"),
    ]
    for call, arguments, text in calls:
        with pytest.raises(TypeError, match=text):
            call(*arguments)
    session.release()


def test_weights_that_are_not_to_be_trained_may_be_a_list() -> None:
    session = TrainingSession(model().SerializeToString(), parameters(weights_not_to_train=["fc1.bias"]))
    assert "Moment_1_fc1.bias" not in session.get_state() and "Moment_1_fc2.bias" in session.get_state()
    session.release()


def test_a_session_that_is_reset_goes_on_with_its_weights() -> None:
    session = TrainingSession(model().SerializeToString(), parameters(), {"enable_profiling": True})
    session.run(["loss"], feeds())
    before = session.get_state()
    session._reset_session(["CPUExecutionProvider"], [{}])
    after = session.get_state()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    with pytest.warns(UserWarning, match=r"disabled_optimizers=\['ConstantFolding'\]"):
        session._create_inference_session(["CPUExecutionProvider"], None, ["ConstantFolding"])
    session.run(["loss"], feeds())
    session.release()
    inference = InferenceSession(mlp().SerializeToString())
    first = inference.run(None, {"x": X})
    inference._reset_session(None, None)
    np.testing.assert_array_equal(inference.run(None, {"x": X}), first)
    inference.release()


def test_what_scripts_call_before_they_make_a_session() -> None:
    assert ort.get_device() == "CPU" and ort.get_available_providers() == ["CPUExecutionProvider"]
    assert "CUDAExecutionProvider" in ort.get_all_providers()
    assert ort.InferenceSession is InferenceSession
    ort.set_seed(1)
    ort.set_seed(0)
