"""LoRA on weights in fewer bits trains as PEFT on the same weights in float32, and PEFT loads its adapters.

`scripts/record_quantized_lora.py` made the models of torch's exporter, and PEFT's adapters, losses and logits. Folders
that end in `.own` are adapters of trainweb, which `python -m tests.lora.test_quantized_peft` writes. With `--own`, the
script records the logits of PEFT with them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.lora.test_lora import arrays, run, session_of, trained

import trainweb
from trainweb.ir.shapes import TensorType
from trainweb.lora import Adapter, LoraModel, inject

RECORDED = Path(__file__).parent / "quantized"
NAMES = sorted(path.stem for path in RECORDED.glob("*.onnx"))


def recorded(name: str) -> dict[str, np.ndarray]:
    with np.load(RECORDED / f"{name}.npz") as data:
        return dict(data)


def steps(name: str) -> tuple[LoraModel, trainweb.TrainingSession, list[float]]:
    """The model with PEFT's start, after its steps, and their losses."""
    start = Adapter.load(RECORDED / f"{name}.start")
    adapted = inject(RECORDED / f"{name}.onnx", config=start.config)
    session = session_of(adapted)
    adapted.load_adapter(session, start)
    return adapted, session, trained(session, recorded(name))


def test_every_kind_of_weight_was_recorded() -> None:
    kinds = ("float16", "int8_blocks", "int8_channels", "nbits")
    assert [f"{model}_{kind}" for model in ("gpt2", "llama") for kind in kinds] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_adapters_are_those_of_peft(name: str) -> None:
    data = recorded(name)
    adapted, session, losses = steps(name)
    np.testing.assert_allclose(losses, data["losses"], rtol=1e-5)
    exported = session.export_model_for_inferencing(None, ["y"])
    np.testing.assert_allclose(run(exported, data["x"]), data["end"], rtol=1e-3, atol=1e-4)

    own, saved = arrays(adapted.adapter(session)), arrays(Adapter.load(RECORDED / f"{name}.own"))
    assert set(own) == set(saved) == set(arrays(Adapter.load(RECORDED / f"{name}.start")))
    for key, value in saved.items():
        np.testing.assert_allclose(own[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_peft_computes_the_same_with_an_adapter_of_trainweb(name: str) -> None:
    own = Adapter.load(RECORDED / f"{name}.own")
    adapted = inject(RECORDED / f"{name}.onnx", config=own.config)
    session = session_of(adapted)
    adapted.load_adapter(session, own)
    exported = session.export_model_for_inferencing(None, ["y"])
    with np.load(RECORDED / f"{name}.own.npz") as data:
        np.testing.assert_allclose(run(exported, recorded(name)["x"]), data["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if "float16" not in name])
def test_products_read_the_weights_as_they_are_stored(name: str) -> None:
    _, session, _ = steps(name)
    feeds = {key: TensorType("int64", recorded(name)[key].shape) for key in ("x", "labels")}
    plan = session.core.models.compile_step("train", feeds, True)
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
