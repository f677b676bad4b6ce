"""LoRA on language models trains as PEFT, whose weights are float32 always, and PEFT loads its adapters.

`scripts/record_quantized_lora.py` made the models of torch's exporter, and PEFT's adapters, losses and logits. Folders
that end in `.own` are adapters of trainweb, which `python -m tests.lora.test_quantized_peft` writes. With `--own`, the
script records the logits of PEFT with them.
"""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.lora.test_lora import arrays, session_of
from tests.python.sessions import infer, take_steps

import trainweb
from trainweb.ir.shapes import TensorType
from trainweb.lora import Adapter, LoraModel, inject
from trainweb.training.step_kind import TRAIN

RECORDED = Path(__file__).parent / "quantized"
NAMES = sorted(path.stem for path in RECORDED.glob("*.onnx"))


def recorded(name: str) -> dict[str, np.ndarray]:
    with np.load(RECORDED / f"{name}.npz") as data:
        return dict(data)


def feeds_of(name: str) -> dict[str, np.ndarray]:
    """Inputs and labels."""
    return {key: a for key, a in recorded(name).items() if key not in ("losses", "end")}


def outputs(session: trainweb.TrainingSession, name: str) -> np.ndarray:
    """The logits of the exported model with its adapter."""
    feeds = {key: a for key, a in feeds_of(name).items() if key != "labels"}
    logits: np.ndarray = infer(session.export_model_for_inferencing(None, ["y"]), feeds)[0]
    return logits


def opened(adapted: LoraModel) -> trainweb.TrainingSession:
    return session_of(adapted, loss={"type": "CrossEntropyLoss", "ignore_index": -100})


def steps(name: str) -> tuple[LoraModel, trainweb.TrainingSession, list[float]]:
    """The model with PEFT's start, after its steps, and their losses."""
    start = Adapter.load(RECORDED / f"{name}.start")
    adapted = inject(RECORDED / f"{name}.onnx", config=start.config)
    session = opened(adapted)
    adapted.load_adapter(session, start)
    return adapted, session, take_steps(session, feeds_of(name), len(recorded(name)["losses"]))


def test_every_kind_of_weight_was_recorded() -> None:
    """test_lora.py has Llama in float32."""
    kinds = ("float16", "int8_blocks", "int8_channels", "nbits")
    rounded = {f"{model}_{kind}" for model in ("gpt2", "llama", "modernbert", "t5") for kind in kinds}
    whole = {f"{model}_float32" for model in ("gemma3", "modernbert", "phi", "qwen3", "t5")}
    assert sorted(rounded | whole) == NAMES


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("gemma3", {"q_proj", "v_proj"}),
        ("modernbert", {"Wqkv"}),
        ("phi", {"q_proj", "v_proj", "fc1", "fc2"}),
        ("qwen3", {"q_proj", "v_proj"}),
        ("t5", {"q", "v"}),
    ],
)
def test_default_targets_are_those_of_peft(model: str, parts: set[str]) -> None:
    """PEFT has no default for ModernBERT."""
    targets = inject(RECORDED / f"{model}_float32.onnx").config.targets
    assert {target.rpartition(".")[2] for target in targets} == parts


def test_default_targets_of_bart_are_those_of_peft() -> None:
    """BART, too, has fc1 and fc2, and as a classifier a module `dense`; OPT is BART without that."""
    names = [f"layers.0.{name}" for name in ("self_attn.q_proj", "self_attn.v_proj", "fc1", "fc2")]
    names += ["classification_head.dense", "classification_head.out_proj"]
    nodes = [helper.make_node("MatMul", [f"x{k}", f"{name}.weight"], [f"x{k + 1}"]) for k, name in enumerate(names)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x0", f"x{len(names)}")]
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), f"{name}.weight") for name in names]
    made = helper.make_model(helper.make_graph(nodes, "bart", values[:1], values[1:], weights), ir_version=9)
    assert inject(made.SerializeToString()).config.targets == ("layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj")


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_adapters_are_those_of_peft(name: str) -> None:
    data = recorded(name)
    adapted, session, losses = steps(name)
    np.testing.assert_allclose(losses, data["losses"], rtol=1e-5)
    np.testing.assert_allclose(outputs(session, name), data["end"], rtol=1e-3, atol=1e-4)

    own, saved = arrays(adapted.adapter(session)), arrays(Adapter.load(RECORDED / f"{name}.own"))
    assert set(own) == set(saved) == set(arrays(Adapter.load(RECORDED / f"{name}.start")))
    for key, value in saved.items():
        np.testing.assert_allclose(own[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_peft_computes_the_same_with_an_adapter_of_trainweb(name: str) -> None:
    own = Adapter.load(RECORDED / f"{name}.own")
    adapted = inject(RECORDED / f"{name}.onnx", config=own.config)
    session = opened(adapted)
    adapted.load_adapter(session, own)
    with np.load(RECORDED / f"{name}.own.npz") as data:
        np.testing.assert_allclose(outputs(session, name), data["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if "float" not in name])
def test_products_read_the_weights_as_they_are_stored(name: str) -> None:
    _, session, _ = steps(name)
    feeds = {key: TensorType("int64", a.shape) for key, a in feeds_of(name).items()}
    plan = session._core.models.compile_step(TRAIN, feeds, True)
    kernels = [line.split("(")[0].split()[0] for line in plan.text]
    assert "dequantize_f32" not in kernels
    assert kernels.count("gemm_quantized_f32") >= 2 * 4


def main() -> None:
    """Save the adapters of trainweb."""
    for name in NAMES:
        adapted, session, _ = steps(name)
        adapted.adapter(session).save(RECORDED / f"{name}.own")


if __name__ == "__main__":
    main()
