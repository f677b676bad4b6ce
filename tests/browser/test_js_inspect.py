"""`inspectModel` in a page returns the report of `trainweb.check` in Python."""

import re
from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from tests.control.test_fixed_dims import CONSTANTS, TARGET, X, detector
from tests.python.test_check import map_of_scores, model, two_towers
from tests.python.test_label_smoothing import model as smoothed
from tests.python.test_label_smoothing import note
from tests.python.test_remarks import NORM, activated, labelled, normalized

import trainweb
from trainweb.artifacts import OptimType

from .js_session import JsPage, to_json
from .server import ROOT

MLP = (ROOT / "tests" / "golden" / "mlp" / "base.onnx").read_bytes()
SETTLED = (
    "ok",
    "trainable",
    "frozen",
    "trained",
    "left_out",
    "doubtful",
    "unsupported",
    "missing_gradients",
    "refined",
    "remarks",
    "untold",
    "inputs",
    "outputs",
    "operators",
    "suggested_loss",
    "dims",
    "feeds",
    "code",
)
CASES: dict[str, tuple[bytes, dict[str, Any], dict[str, Any]]] = {
    "trains": (
        MLP,
        {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "dims": {"batch": 8}},
        {"loss": "CrossEntropyLoss", "optimizer": OptimType.AdamW, "dims": {"batch": 8}},
    ),
    "without a loss": (MLP, {}, {}),
    "unsupported": (model(("MatMul", ["x", "w"], ["a"]), ("Bogus", ["a"], ["y"])), {"loss": None}, {}),
    "stopped": (
        two_towers("Relu", "Tanh"),
        {"loss": "MSELoss", "requiresGrad": ["w"], "stopGradient": ["d"]},
        {"loss": "MSELoss", "requires_grad": ["w"], "stop_gradient": ["d"]},
    ),
    "no such dimension": (
        MLP,
        {"loss": "CrossEntropyLoss", "dims": {"depth": 2}},
        {"loss": "CrossEntropyLoss", "dims": {"depth": 2}},
    ),
    "a size that control flow needs": (
        detector().SerializeToString(),
        {"loss": "MSELoss", "dims": {"sequence": 4}},
        {"loss": "MSELoss", "dims": {"sequence": 4}},
    ),
    "adapters": (
        MLP,
        {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "lora": {"rank": 2, "targets": ["fc2"]}},
        {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "lora": {"rank": 2, "targets": ["fc2"]}},
    ),
    "a map of scores": (map_of_scores("n", 5, "h", "w"), {}, {}),
    "norms of an inference file": (normalized(), {"loss": "MSELoss"}, {"loss": "MSELoss"}),
    "norms as exported": (
        normalized(),
        {"loss": "MSELoss", "batchNorm": "as_exported"},
        {"loss": "MSELoss", "batch_norm": "as_exported"},
    ),
    "a loss of probabilities": (
        activated("Softmax"),
        {"loss": "CrossEntropyLoss"},
        {"loss": "CrossEntropyLoss"},
    ),
    "two outputs": (labelled(), {"loss": "MSELoss"}, {"loss": "MSELoss"}),
    "one of two outputs": (
        labelled(),
        {"loss": "MSELoss", "lossInputNames": ["y"]},
        {"loss": "MSELoss", "loss_input_names": ["y"]},
    ),
    "label smoothing that was put back": (
        smoothed("rows", note(0.1)).SerializeToString(),
        {"requiresGrad": ["values"]},
        {"requires_grad": ["values"]},
    ),
    "no model": (b"<html>", {}, {}),
}


def camel_case(name: str) -> str:
    return re.sub("_(.)", lambda m: m[1].upper(), name)


@pytest.mark.parametrize("name", CASES)
def test_the_page_tells_what_python_tells(js: JsPage, name: str) -> None:
    data, config, arguments = CASES[name]
    found = js.run(
        "return inspectModel(Uint8Array.from(atob(model), (c) => c.charCodeAt(0)), config);",
        model=b64encode(data).decode(),
        config=config,
    )
    expected = trainweb.check(data, **arguments).as_data()
    assert set(found) == {camel_case(key) for key in expected}
    for decision in (*expected["trained"], *expected["left_out"], *expected["doubtful"]):
        # With the page's names of what it was given.
        decision["reason"] = decision["reason"].replace("requires_grad", "requiresGrad")
    if isinstance(suggested := expected["suggested_loss"], dict):
        expected["suggested_loss"] = {camel_case(key): value for key, value in suggested.items()}
    for argument in ("batch_norm", "loss_input_names"):
        expected["remarks"] = [text.replace(argument, camel_case(argument)) for text in expected["remarks"]]
    for fault in expected["unsupported"]:
        fault["message"] = fault["message"].replace("loss_input_names", "lossInputNames")
    for key in (*SETTLED, "missing_loss", "error", "flops"):
        assert found[camel_case(key)] == expected[key], key
    # The plans of the page's build need other constants, but not much else.
    assert found["peakBytes"] == pytest.approx(expected["peak_bytes"], rel=0.2)


def test_a_session_of_a_model_whose_control_flow_needs_a_size(js: JsPage) -> None:
    loss, *errors = js.run(
        """
        const data = Uint8Array.from(atob(model), (c) => c.charCodeAt(0));
        const create = (dims) => TrainingSession.createFromModel(data, { loss: "MSELoss", dims });
        const failed = (dims) => create(dims).then(() => "no error", (error) => `${error.name}: ${error.message}`);
        const session = await create({ sequence: 4 });
        const feeds = { x: new Tensor("float32", x, [5, 4]), target: new Tensor("float32", target, [5, 3]) };
        const results = await session.runTrainStep(feeds);
        await session.release();
        return [
          results[session.trainingOutputNames[0]].data[0],
          await failed(null), await failed({ sequenc: 4 }), await failed({ sequence: 0 }), await failed([4]),
        ];
        """,
        model=b64encode(detector().SerializeToString()).decode(),
        x=X.ravel().tolist(),
        target=TARGET.ravel().tolist(),
    )
    kernel, w, b = (CONSTANTS[n].astype(np.float64) for n in ("kernel", "fc.weight", "fc.bias"))
    assert loss == pytest.approx(np.mean((X @ kernel[:, 0].T @ w + b - TARGET) ** 2), rel=1e-5)
    for error, (name, said) in zip(
        errors,
        [
            ("UnsupportedError", "Give 'sequence' a size in dims"),
            ("ModelError", "did you mean 'sequence'?"),
            ("ModelError", "it must be sizes by the names of dimensions, each an integer >= 1"),
            ("ModelError", "it must be sizes"),
        ],
        strict=True,
    ):
        assert error.startswith(name), error
        assert said in error


@pytest.mark.parametrize("batch_norm", [None, "train", "as_exported"])
def test_a_session_warns_of_norms_of_an_inference_file(js: JsPage, batch_norm: str | None) -> None:
    """On the console, as of all that a file does not settle; a choice trains as it says, without a word."""
    said: list[str] = []
    js.page.on("console", lambda message: said.append(message.text))
    x, target = np.ones((2, 4), np.float32) * [[1], [2]], np.zeros((2, 3), np.float32)
    (loss,) = js.run(
        """
        const file = Uint8Array.from(atob(model), (c) => c.charCodeAt(0));
        const session = await TrainingSession.createFromModel(file, { loss: "MSELoss", optimizer: "SGD", batchNorm });
        const results = await session.runTrainStep({ x: toTensor(x), target: toTensor(target) });
        const losses = Object.values(results).map((tensor) => tensor.data[0]);
        await session.release();
        return losses;
        """,
        model=b64encode(normalized()).decode(),
        batchNorm=batch_norm,
        x=to_json(x.astype(np.float32)),
        target=to_json(target),
    )
    h = x @ NORM["fc.weight"]
    batch = batch_norm != "as_exported"
    mean, variance = (h.mean(0), h.var(0)) if batch else (NORM["bn.running_mean"], NORM["bn.running_var"])
    assert loss == pytest.approx(np.square((h - mean) / np.sqrt(variance + 1e-5)).mean(), rel=1e-4)
    assert any("1 BatchNormalization node is in inference mode" in text for text in said) == (batch_norm is None), said
