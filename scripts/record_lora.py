"""Record adapters of PEFT: as it starts them, after five steps of its training, and its merged models.

    ./build.sh record-lora [NAME ...]

Runs in an environment of its own with torch and peft (`torch_environment.py`); `tests/lora` replays the files without
it. Each case becomes `NAME.EXPORTER.onnx`, the base model; `NAME.start` and `NAME.end`, folders that PEFT wrote; and
`NAME.npz`: the feeds, the losses, and the output of the merged model.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from recording import export
from torch import nn
from torch.nn import functional as F  # noqa: N812

TARGET = Path(__file__).parents[1] / "tests" / "lora" / "recorded"
STEPS = 5
RATE = 0.01


class Attention(nn.Module):
    """Self-attention over tokens, named as in Llama."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        scores = self.q_proj(x) @ self.k_proj(x).transpose(1, 2) * x.shape[-1] ** -0.5
        return self.head(self.o_proj(scores.softmax(-1) @ self.v_proj(x)).mean(1))


class Layers(nn.Module):
    """Rows through three products, the second without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(6, 9), nn.Linear(9, 7, bias=False), nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.fc2(self.fc1(x).relu()).tanh())


class Convolutions(nn.Module):
    """Images through a strided and a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=1, groups=2)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv2(self.conv1(x).relu()).relu().mean((2, 3)))


def cases() -> Iterator[tuple[str, nn.Module, torch.Tensor, torch.Tensor, dict[str, Any]]]:
    """Name, module, input, labels, settings of PEFT."""
    torch.manual_seed(3)
    ids, rows, images = torch.randint(0, 11, (6, 5)), torch.randn(6, 6), torch.randn(6, 3, 8, 8)
    labels = torch.randint(0, 4, (6,))
    for name, make, feed, settings in (
        ("attention", Attention, ids, {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 8}),
        ("embedding", Attention, ids, {"target_modules": ["embed", "o_proj"], "r": 3, "use_rslora": True}),
        ("dora", Layers, rows, {"target_modules": ["fc1", "fc2"], "r": 2, "lora_alpha": 5, "use_dora": True}),
        ("head", Layers, rows, {"target_modules": ["fc1", "fc2"], "r": 4, "modules_to_save": ["head"]}),
        ("conv", Convolutions, images, {"target_modules": ["conv1", "head"], "r": 4, "init_lora_weights": "gaussian"}),
        ("grouped", Convolutions, images, {"target_modules": ["conv2"], "r": 4}),
    ):
        torch.manual_seed(7)
        yield name, make(), feed, labels, settings


def save(model: Any, folder: Path) -> None:
    """The files that the replay reads, without the model card."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def record(name: str, module: nn.Module, x: torch.Tensor, labels: torch.Tensor, settings: dict[str, Any]) -> None:
    """Write all files of a case."""
    module.train()
    for exporter in ("dynamo", "script"):
        export(module, {"x": x}, ["y"], TARGET / f"{name}.{exporter}.onnx", exporter)
    model: Any = get_peft_model(module, LoraConfig(**settings))
    save(model, TARGET / f"{name}.start")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    save(model, TARGET / f"{name}.end")
    model.eval()
    truth = {"x": x.numpy(), "labels": labels.numpy(), "losses": np.array(losses, np.float32)}
    truth["adapted"] = model(x).detach().numpy()
    if name != "grouped":  # PEFT cannot merge it either
        truth["merged"] = model.merge_and_unload()(x).detach().numpy()
    np.savez_compressed(TARGET / f"{name}.npz", **truth)


def main() -> None:
    """Record all cases, or those named."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, *case in cases():
        if not sys.argv[1:] or name in sys.argv[1:]:
            record(name, *case)
            print(name)


if __name__ == "__main__":
    main()
