"""Record linear layers whose weights torch's dynamo exporter stores transposed, and their training in PyTorch.

    python tests/golden/transposed/record.py

Needs torch and onnxscript. `model.onnx` has a square and another weight, `half.onnx` one of float16. `recorded.npz` has
the state dict of a second module (`other`), results of each, and parameters after steps of SGD and of Muon.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "scripts"))
from recording import strip  # noqa: E402

RATE, STEPS = 0.05, 2
BATCH = torch.export.Dim("batch")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 20))


def export(module: nn.Module, x: torch.Tensor, name: str) -> None:
    torch.onnx.export(
        module,
        (x,),
        HERE / name,
        dynamo=True,
        external_data=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=({0: BATCH},),
    )
    strip(HERE / name)


def arrays(module: nn.Module, prefix: str) -> dict[str, np.ndarray]:
    return {f"{prefix}.{n}": t.detach().float().numpy().copy() for n, t in module.state_dict().items()}


def trained(module: nn.Module, optimizers: list[torch.optim.Optimizer], x: torch.Tensor, target: torch.Tensor) -> None:
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(module(x), target).backward()
        for optimizer in optimizers:
            optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    model, other, half = network(), network(), nn.Sequential(nn.Linear(128, 64).half())
    x, target, wide = torch.randn(2, 3, 64), torch.randn(2, 3, 20), torch.randn(2, 3, 128).half()
    export(model, x, "model.onnx")
    export(half, wide, "half.onnx")
    found = {"x": x, "target": target, "y": model(x), "y_other": other(x), "wide": wide, "y_half": half(wide)}
    data = {name: t.detach().numpy() for name, t in found.items()} | arrays(other, "other")
    data["half_row"] = half[0].weight.detach()[1].numpy()
    sgd = network()
    sgd.load_state_dict(other.state_dict())
    trained(sgd, [torch.optim.SGD(sgd.parameters(), lr=RATE)], x, target)
    torch.bfloat16 = torch.float32  # Muon's products
    matrices, vectors = ([p for p in model.parameters() if (p.ndim == 2) == is_matrix] for is_matrix in (True, False))
    muon = torch.optim.Muon(matrices, lr=RATE, adjust_lr_fn="original", weight_decay=0.1)
    trained(model, [muon, torch.optim.AdamW(vectors, lr=RATE, weight_decay=0.1)], x, target)
    np.savez_compressed(HERE / "recorded.npz", **data, **arrays(sgd, "sgd"), **arrays(model, "muon"))


if __name__ == "__main__":
    main()
