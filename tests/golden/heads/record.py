"""Record small classifiers, and the losses that PyTorch takes with another last layer.

    PYTHONPATH=scripts python tests/golden/heads/record.py

`torch.manual_seed(SEED)` comes before the new layer, as in the option `head` of trainweb.
"""

import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from recording import EXPORTERS, export
from torch import nn

HERE = Path(__file__).parent
SEED, CLASSES, OLD, STEPS, RATE = 7, 5, 10, 3, 0.1


class Pooled(nn.Module):
    """A linear layer behind a pool; its bias starts as zeros, which an exporter leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, OLD)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


class Probabilities(nn.Module):
    """A layer without a bias, in front of a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, OLD, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(torch.relu(self.body(x))), -1)


class Convolution(nn.Module):
    """A 1 x 1 convolution in front of a pool and a reshape with the number of classes, as in SqueezeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scores = nn.Conv2d(3, 8, 3), nn.Conv2d(8, OLD, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.scores(torch.relu(self.body(x)))).mean((2, 3), keepdim=True).view(4, OLD)


class Tokens(nn.Module):
    """A layer on three axes, whose weight an exporter transposes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(4, 8), nn.Linear(8, OLD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.body(x)))


class Sizes(nn.Module):
    """A 1 x 1 convolution in front of a sum and a view of computed sizes, as older models of torchvision have it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scores = nn.Conv2d(3, 8, 3), nn.Conv2d(8, OLD, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scores(torch.relu(self.body(x))).sum((2, 3), keepdim=True) / 36
        return y.view(y.size(0), -1)


class LastToken(nn.Module):
    """A layer on each token, whose scores count at the last positive one, as in GPT2ForSequenceClassification."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.score = nn.Linear(4, 8), nn.Linear(8, OLD, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.score(torch.tanh(self.body(x)))
        last = (torch.arange(x.shape[1]) * (x[..., 0] > 0)).argmax(-1)
        return y[torch.arange(y.shape[0]), last]


MODELS: dict[str, tuple[Callable[[], nn.Module], str, tuple[int, ...]]] = {
    "pooled": (Pooled, "fc", (4, 3, 8, 8)),
    "probabilities": (Probabilities, "head", (4, 6)),
    "convolution": (Convolution, "scores", (4, 3, 8, 8)),
    "tokens": (Tokens, "out", (2, 5, 4)),
    "sizes": (Sizes, "scores", (4, 3, 8, 8)),
    "last_token": (LastToken, "score", (4, 5, 4)),
}


def losses(module: nn.Module, name: str, x: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """The losses of training with a new layer."""
    old = getattr(module, name)
    torch.manual_seed(SEED)
    if isinstance(old, nn.Linear):
        new: nn.Module = nn.Linear(old.in_features, CLASSES, bias=old.bias is not None)
    else:
        new = nn.Conv2d(old.in_channels, CLASSES, 1)
    setattr(module, name, new)
    if isinstance(module, Convolution):
        module.forward = lambda x: torch.relu(new(torch.relu(module.body(x)))).mean((2, 3))  # type: ignore[method-assign]
    optimizer, found = torch.optim.SGD(module.parameters(), lr=RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main() -> None:
    """Write the models and what PyTorch makes of them."""
    truth = {}
    with tarfile.open(HERE / "models.tar.xz", "w:xz") as archive, tempfile.TemporaryDirectory() as folder:
        for name, (make, layer, shape) in MODELS.items():
            torch.manual_seed(len(name))
            module, x = make(), torch.randn(shape)
            labels = torch.randint(0, CLASSES, shape[:2] if name == "tokens" else shape[:1])
            for exporter in EXPORTERS:
                path = Path(folder) / "model.onnx"
                export(module, {"x": x}, ["y"], path, exporter)
                info = tarfile.TarInfo(f"{name}_{exporter}.onnx")
                info.size = path.stat().st_size
                archive.addfile(info, io.BytesIO(path.read_bytes()))
            truth[name] = {
                "layer": layer,
                "x": [list(shape), x.flatten().tolist()],
                "labels": [list(labels.shape), labels.flatten().tolist()],
                "losses": losses(module, layer, x, labels),
                "weight": getattr(module, layer).weight.shape,
            }
    (HERE / "recorded.json").write_text(json.dumps(truth) + "\n")


if __name__ == "__main__":
    main()
