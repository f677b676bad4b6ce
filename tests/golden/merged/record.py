"""Record modules that were never trained, as torch's dynamo exporter writes them by default, and PyTorch's training.

python tests/golden/merged/record.py, from the root of the project, with a Python that has torch and onnxscript. The
exporter makes one tensor of equal ones. `recorded.tar.xz` has, for each case and mode of the module, the file, what is
fed, and of five steps of SGD in float64 the losses, all tensors after them, and the output in evaluation mode.
`script.tar.xz`, which the argument `script` writes alone, has the same of the TorchScript exporter.
"""

import copy
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from record_zoo import as_onnx, pack  # noqa: E402
from recording import export, strip  # noqa: E402

TARGET = Path(__file__).with_name("recorded.tar.xz")
STEPS, RATE = 5, 0.05
BATCH = 6


class Pair(nn.Module):
    """Two linear layers: copies, tied, or one layer under two names."""

    def __init__(self, how: str, *, turned: bool = False) -> None:
        super().__init__()
        self.a, self.turned = nn.Linear(4, 4), turned
        self.b = self.a if how == "shared" else copy.deepcopy(self.a)
        if how == "tied":
            self.b = nn.Linear(4, 4)
            self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(torch.relu(self.a(x)))
        return y.sum(1) + self.b(x[:, 0]) if self.turned else y


class Vectors(nn.Module):
    """Equal parameters, buffers and constants of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)
        for name, value in {"gamma_1": 0.1, "gamma_2": 0.1, "zero_1": 0.0, "zero_2": 0.0}.items():
            self.register_parameter(name, nn.Parameter(torch.full((4,), value)))
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.norm(x) * torch.ones(4) * self.gamma_1 + self.zero_1)
        return y * self.mask * self.gamma_2 + self.zero_2


class Branches(nn.Module):
    """Two branches whose first norms have seen the same inputs, so that their statistics are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)) for _ in range(2))
        self.head = nn.Linear(4, 2)
        for norm, _ in (self.a, self.b):
            nn.init.normal_(norm.weight)
            norm(torch.arange(12.0).reshape(4, 3) ** 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.a(x)) + torch.sigmoid(self.b(x * 0.5)))


class Biases(nn.Module):
    """Biases of zero that a product, a sum and a tied layer read; the exporter drops them from products."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.b.bias = self.a.bias
        for part in (self.a, self.c):
            nn.init.zeros_(part.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.b(torch.tanh(self.a(x[:, 0])))) + torch.tanh(self.a(x)).sum(1)
        return self.c(y)


def unbiased(module: nn.Module) -> nn.Module:
    """The module with zeros for all biases, as many start."""
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
    return module


def zeroed(module: nn.Module) -> nn.Module:
    """The module with zeros for scales of norms, as residual networks start."""
    for part in module.modules():
        if "Norm" in type(part).__name__:
            nn.init.zeros_(part.weight)
    return module


def norms() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    relu = nn.ReLU
    dense = [nn.Linear(3, 4), relu(), nn.BatchNorm1d(4), nn.Linear(4, 4), relu(), nn.BatchNorm1d(4), nn.Linear(4, 2)]
    image = [nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.BatchNorm2d(3, momentum=0.3, eps=1e-3), relu()]
    bare = [relu(), nn.BatchNorm2d(4, affine=False), relu(), nn.BatchNorm2d(4, track_running_stats=False)]
    groups = [relu(), nn.GroupNorm(2, 4), relu(), nn.GroupNorm(4, 4), relu(), nn.InstanceNorm2d(4, affine=True)]
    instance = [nn.InstanceNorm1d(3, affine=True), relu(), nn.InstanceNorm1d(3), relu()]
    layers = [nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.RMSNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)]
    return {
        "dense": (nn.Sequential(*dense), (3,)),
        "dense, zeroed": (zeroed(nn.Sequential(*copy.deepcopy(dense))), (3,)),
        "image": (nn.Sequential(*image), (3, 4, 4)),
        "without scale or statistics": (nn.Sequential(nn.Conv2d(2, 4, 1), *bare, nn.Conv2d(4, 2, 1)), (2, 3, 3)),
        "after a transposed convolution": (
            nn.Sequential(nn.ConvTranspose2d(2, 4, 2), nn.Sigmoid(), nn.BatchNorm2d(4), relu(), nn.BatchNorm2d(4)),
            (2, 3, 3),
        ),
        "groups": (nn.Sequential(nn.Conv2d(2, 4, 1), *groups, nn.Conv2d(4, 2, 1)), (2, 3, 3)),
        "groups, zeroed": (zeroed(nn.Sequential(nn.Conv2d(2, 4, 1), *copy.deepcopy(groups))), (2, 3, 3)),
        "instances": (nn.Sequential(*instance, nn.InstanceNorm1d(3, affine=True)), (3, 5)),
        "layers": (nn.Sequential(*layers), (4,)),
        "layers, zeroed": (zeroed(nn.Sequential(*copy.deepcopy(layers))), (4,)),
    }


def cases() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """All modules, and the shapes of a row."""
    pairs = {how: (Pair(how), (4,)) for how in ("copied", "tied", "shared")}
    long = {f"{how}, three axes": (Pair(how), (3, 4)) for how in ("copied", "tied")}
    return {**norms(), **pairs, **long, "copied, two and three axes": (Pair("copied", turned=True), (3, 4))} | {
        "vectors": (Vectors(), (4,)),
        "biases, tied": (Biases(), (3, 4)),
        "biases, linear": (unbiased(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))), (4,)),
        "biases, convolutions": (
            unbiased(
                nn.Sequential(
                    nn.Conv2d(2, 4, 3, padding=1, groups=2),
                    nn.Tanh(),
                    nn.ConvTranspose2d(4, 6, 2, groups=2),
                    nn.Tanh(),
                    nn.Conv2d(6, 3, 1, bias=False),
                    nn.ConvTranspose2d(3, 2, 2),
                )
            ),
            (2, 3, 3),
        ),
        "statistics of instances": (
            nn.Sequential(*(nn.InstanceNorm1d(3, affine=True, track_running_stats=True) for _ in range(2))),
            (3, 5),
        ),
    }


def record(module: nn.Module, row: tuple[int, ...], mode: str, *, trains: bool) -> tuple[bytes, bytes]:
    """The file, and the arrays; `trains` tells whether norms use the statistics of the batch as it is trained."""
    x = torch.randn(BATCH, *row) * 1.5 + 0.5
    target = torch.randn_like(copy.deepcopy(module)(x))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        dims = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
        names = {"input_names": ["x"], "output_names": ["y"], "verbose": False}
        source = copy.deepcopy(module).train(mode == "train")
        if mode == "script":
            export(source, {"x": x}, ["y"], path, "default")
        else:
            torch.onnx.export(source, (x,), str(path), dynamo=True, external_data=False, **names, **dims)
            strip(path)
        file = path.read_bytes()
    exact = as_onnx(copy.deepcopy(module).double())
    exact.train(trains)
    optimizer = torch.optim.SGD(exact.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(exact(x.double()), target.double())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    named = {**dict(exact.named_parameters()), **dict(exact.named_buffers())}
    arrays = {f"after/{n}": t.detach().numpy().astype(np.float32) for n, t in named.items() if t.is_floating_point()}
    arrays |= {"x": x.numpy(), "target": target.numpy(), "losses": np.array(losses)}
    arrays["y"] = exact.eval()(x.double()).detach().numpy().astype(np.float32)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return file, buffer.getvalue()


def main() -> None:
    """Write the recording."""
    torch.manual_seed(5)
    if sys.argv[1:] == ["script"]:
        file, arrays = record(Branches(), (3,), "script", trains=True)
        pack(TARGET.with_name("script.tar.xz"), {"branches/script.onnx": file, "branches/script.npz": arrays})
        return
    parts = {}
    for name, (module, row) in cases().items():
        for mode in ("train", "eval"):
            if name == "statistics of instances" and mode == "train":
                continue  # the exporter writes norms without statistics
            print(name, mode, flush=True)
            trains = mode == "train" or "statistics" not in name
            parts[f"{name}/{mode}.onnx"], parts[f"{name}/{mode}.npz"] = record(module, row, mode, trains=trains)
    pack(TARGET, parts)
    print(f"{TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
