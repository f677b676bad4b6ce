"""`trainweb.torch.export`, in an environment with torch: TRAINWEB_TORCH_PYTHON names its Python."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = """
import json, math, sys
import torch
from torch import nn
import trainweb.torch
from trainweb.errors import TrainwebError

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.fc = nn.Linear(4 * 6 * 6, 3)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.norm(self.conv(x))).flatten(1)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)).mean(1))


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        return ((x * self.scale - y) ** 2).mean()


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.b(self.a(x).detach().tanh() + self.a(x))


class NoGrad(Detached):
    def forward(self, x):
        with torch.no_grad():
            h = self.a(x)
        return self.b(h.tanh() + self.a(x))


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Adversary(Detached):
    def forward(self, x):
        return self.b(Reversal.apply(self.a(x)))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x):
        return self.a(x) + torch.randn(3)


class Hooked(Detached):
    def forward(self, x):
        h = self.a(x)
        h.register_hook(lambda gradient: -gradient)
        return self.b(h)


class DropPath(nn.Module):
    def forward(self, x):
        return x * torch.rand(len(x), 1)


class Deep(Detached):
    def __init__(self):
        super().__init__()
        self.path = DropPath()

    def forward(self, x):
        return self.b(self.path(self.a(x)))


class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.f = nn.Embedding(6, 4, max_norm=1.0), nn.Linear(4, 3)

    def forward(self, i):
        return self.f(self.e(i).mean(1))


frozen = Net()
frozen.fc.bias.requires_grad_(False)
image = torch.randn(5, 2, 6, 6)
CASES = {
    "net": lambda: (Net(), image, dict(dynamic={"x": {0: "batch"}}, loss="CrossEntropyLoss")),
    "frozen": lambda: (frozen, image, dict(loss="MSELoss")),
    "encoder": lambda: (Encoder(), torch.randint(0, 11, (4, 6)), dict(loss="CrossEntropyLoss")),
    "own loss": lambda: (OwnLoss(), (torch.randn(4, 3), torch.randn(4, 3)), {}),
    "bce": lambda: (nn.Linear(3, 1), torch.randn(4, 3), dict(loss="BCEWithLogitsLoss")),
    "weighted bce": lambda: (
        nn.Linear(3, 2), torch.randn(4, 3),
        dict(loss={"type": "BCEWithLogitsLoss", "positive_weights": [1.0, 3.0], "weights": [0.5, 2.0]}),
    ),
    "detached": lambda: (Detached(), torch.randn(4, 3), dict(loss="MSELoss")),
    "no_grad": lambda: (NoGrad(), torch.randn(4, 3), dict(loss="MSELoss")),
    "adversary": lambda: (Adversary(), torch.randn(4, 3), dict(loss="MSELoss")),
    "noisy": lambda: (Noisy(), torch.randn(4, 3), dict(loss="MSELoss")),
    "map": lambda: (nn.Conv2d(2, 5, 1), image, dict(loss="CrossEntropyLoss")),
    "sequence": lambda: (
        nn.Linear(6, 4), torch.randn(3, 5, 6),
        dict(loss={"type": "CrossEntropyLoss", "class_axis": -1, "weight": [1.0, 2.0, 0.5, 1.0], "ignore_index": 2}),
    ),
    "huber": lambda: (nn.Linear(3, 2), torch.randn(4, 3), dict(loss={"type": "HuberLoss", "delta": 0.3})),
    "hooked": lambda: (Hooked(), torch.randn(4, 3), dict(loss="MSELoss")),
    "drop path": lambda: (Deep(), torch.randn(4, 3), dict(loss="MSELoss")),
    "bounded": lambda: (Bounded(), torch.tensor([[0, 1], [2, 3]]), dict(loss="CrossEntropyLoss")),
    "no such loss": lambda: (nn.Linear(3, 1), torch.randn(4, 3), dict(loss="CTCLoss")),
    "no such argument": lambda: (nn.Linear(3, 1), torch.randn(4, 3), dict(dynamic={"z": {0: "n"}}, loss="MSELoss")),
}
results = {}
for name, make in CASES.items():
    module, inputs, arguments = make()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    path = f"{sys.argv[1]}/{name}.onnx"
    try:
        proof = trainweb.torch.export(module, inputs, path, **arguments)
        results[name] = {
            "losses": proof.losses, "expected": proof.expected_losses, "parameters": proof.parameters,
            "frozen": proof.frozen, "names": [n for n, p in module.named_parameters() if p.requires_grad],
        }
    except TrainwebError as error:
        results[name] = {"error": f"{type(error).__name__}: {error}"}
    results[name]["unchanged"] = all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
json.dump(results, open(f"{sys.argv[1]}/results.json", "w"))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], Path]:
    python = os.environ.get("TRAINWEB_TORCH_PYTHON")
    if not python:
        pytest.skip("set TRAINWEB_TORCH_PYTHON to a Python with torch, onnxscript and wasmtime")
    folder = tmp_path_factory.mktemp("torch")
    path = os.pathsep.join(filter(None, [str(ROOT / "py_src"), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [python, "-W", "ignore", "-c", MODULES, str(folder)],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=900,
    )
    return json.loads((folder / "results.json").read_text()), folder


PROVED = ["net", "frozen", "encoder", "own loss", "bce", "weighted bce", "detached", "map", "sequence", "huber"]


@pytest.mark.parametrize("name", PROVED)
def test_what_is_proved_is_written(results: tuple[dict[str, dict[str, Any]], Path], name: str) -> None:
    found, folder = results
    proof = found[name]
    assert "error" not in proof, proof
    assert proof["unchanged"] and (folder / f"{name}.onnx").stat().st_size > 100
    assert set(proof["parameters"]) == set(proof["names"])
    assert len(proof["losses"]) == 5 and proof["losses"] == pytest.approx(proof["expected"], rel=1e-3)
    assert max(proof["parameters"].values()) <= 1e-3
    assert proof["frozen"] == (["fc.bias"] if name == "frozen" else [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no_grad",
            r"ModelError: (The loss|Parameter '[ab]).*forward computes linear under torch\.no_grad\(\).*detach",
        ),
        (
            "adversary",
            "ModelError: (The loss|Parameter '[ab]).*Reversal is an autograd.Function with a backward of its own",
        ),
        ("noisy", "ModelError: Noisy draws random numbers"),
        ("drop path", "ModelError: DropPath 'path' draws random numbers besides dropout.*drop_path_rate=0"),
        ("hooked", "ModelError: (The loss|Parameter '[ab]).*forward calls register_hook"),
        ("bounded", r"ModelError: .*does not train \['e.weight'\].*'e.weight': only a detach lies between.*max_norm"),
        ("no such loss", "ModelError: loss 'CTCLoss' is not one of CrossEntropyLoss, .*loss=None"),
        ("no such argument", "ModelError: dynamic: forward has no argument 'z'"),
    ],
)
def test_what_does_not_hold_is_told_and_not_written(
    results: tuple[dict[str, dict[str, Any]], Path], name: str, message: str
) -> None:
    import re

    found, folder = results
    assert re.match(message, found[name].get("error", "no error")), found[name]
    assert found[name]["unchanged"] and not (folder / f"{name}.onnx").exists()


def test_the_environment_of_the_other_tests_needs_no_torch() -> None:
    code = "import trainweb, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "py_src")})
