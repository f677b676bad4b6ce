"""What onnxruntime-training 1.19.2 answers to calls: `python record.py` writes expected.json beside it.

Run by an interpreter that has that package (`.build/venv-onnxruntime/bin/python`).
"""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")
import onnxruntime  # noqa: E402
from scenarios import WITHOUT_LOSS, describe_inference, modules_on_one_state, two_outputs  # noqa: E402

HERE = Path(__file__).parent
MLP = HERE.parent / "mlp"


def plain(value: Any) -> Any:
    """`value` as JSON has it."""
    return value if isinstance(value, (bool, float, str)) else int(value)


def attributes(cls: Any) -> dict[str, Any]:
    """Attributes of a class's fresh instance with their values, and its methods as null."""
    made = cls()
    names = [n for n in dir(made) if not n.startswith("_")]
    return {n: None if callable(getattr(made, n)) else plain(getattr(made, n)) for n in names}


def members(cls: Any) -> list[str]:
    """Public names of a class."""
    return [n for n in dir(cls) if not n.startswith("_")]


def terminated() -> str:
    """What a run says that is to end."""
    options = onnxruntime.RunOptions()
    options.terminate = True
    session = onnxruntime.InferenceSession(str(MLP / "base.onnx"), providers=["CPUExecutionProvider"])
    try:
        session.run(None, {"x": np.zeros((2, 10), np.float32)}, options)
    except Exception as e:
        return str(e)
    raise AssertionError("the run was not terminated")


def two_modules() -> list[Any]:
    """Modules and optimizers on one state, call by call: gradients and parameters as the state has them, and rates."""
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    state = CheckpointState.load_checkpoint(str(MLP / "checkpoint"))
    module = lambda: Module(str(MLP / "training_model.onnx"), state, str(MLP / "eval_model.onnx"))  # noqa: E731
    optimizer = lambda m: Optimizer(str(MLP / "optimizer_model.onnx"), m)  # noqa: E731
    return modules_on_one_state(state, module, optimizer)


def outputs_without_loss() -> list[list[list[str]]]:
    """Outputs of the training and eval model of `two_outputs`, but for the accumulators'."""
    import tempfile

    import onnx
    from onnxruntime.training import artifacts

    found = []
    for arguments in WITHOUT_LOSS:
        with tempfile.TemporaryDirectory() as folder:
            artifacts.generate_artifacts(two_outputs(), requires_grad=["w"], artifact_directory=folder, **arguments)
            models = [onnx.load(f"{folder}/{name}_model.onnx") for name in ("training", "eval")]
        found.append([[o.name for o in m.graph.output if not o.name.endswith(".out")] for m in models])
    return found


def inference() -> dict[str, Any]:
    """What an InferenceSession says of itself and gives."""
    session = onnxruntime.InferenceSession(str(MLP / "base.onnx"), providers=["CPUExecutionProvider"])
    return describe_inference(session, onnxruntime.OrtValue)


def record() -> dict[str, Any]:
    """Everything."""
    return {
        "version": onnxruntime.__version__,
        "RunOptions": attributes(onnxruntime.RunOptions),
        "SessionOptions": attributes(onnxruntime.SessionOptions),
        "providers": onnxruntime.get_all_providers(),
        "inference": inference(),
        "terminated": terminated(),
        "two_modules": two_modules(),
        "outputs_without_loss": outputs_without_loss(),
    }


if __name__ == "__main__":
    (HERE / "expected.json").write_text(json.dumps(record(), indent=1) + "\n")
