"""Two training steps in ONNX Runtime: `python ort_steps.py FOLDER ...`.

Run by an interpreter that has onnxruntime-training 1.19.2. Each folder has artifacts and feeds.npz; results.npz is
written beside them: `loss0`, `grad0.PARAM`, then after an optimizer step `params0`, `eval0`, and so on; or error.txt.
"""

import sys
from pathlib import Path

import numpy as np
from onnxruntime.training.api import CheckpointState, Module, Optimizer

STEPS, LEARNING_RATE = 2, 0.05


def run(folder: Path) -> dict[str, np.ndarray]:
    """Losses, gradients, parameters and eval losses of the steps."""
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(LEARNING_RATE)
    feeds = np.load(folder / "feeds.npz")
    results: dict[str, np.ndarray] = {}
    for k in range(STEPS):
        module.train()
        results[f"loss{k}"] = np.asarray(module(*(feeds[n] for n in module.input_names())))
        for name, parameter in state.parameters:
            if parameter.requires_grad:
                results[f"grad{k}.{name}"] = np.array(parameter.grad)
        optimizer.step()
        module.lazy_reset_grad()
        results[f"params{k}"] = module.get_contiguous_parameters(False).numpy()
        module.eval()
        results[f"eval{k}"] = np.asarray(module(*(feeds[n] for n in module.input_names())))
    return results


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        target = Path(argument)
        try:
            np.savez(target / "results.npz", **run(target))
        except Exception as error:
            (target / "error.txt").write_text(f"{type(error).__name__}: {error}")
