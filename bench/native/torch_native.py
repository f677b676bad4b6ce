"""PyTorch, eager, on the machine itself: torch_native.py FOLDER THREADS SECONDS; prints one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nn
from common import load, measure

Tensors = dict[str, torch.Tensor]


def mlp(m: dict[str, Any], p: Tensors, x: torch.Tensor) -> torch.Tensor:
    last = len(m["dims"]) - 1
    for k in range(1, last + 1):
        x = nn.linear(x, p[f"fc{k}.weight"], p[f"fc{k}.bias"])
        x = x.relu() if k < last else x
    return x


def lenet(m: dict[str, Any], p: Tensors, x: torch.Tensor) -> torch.Tensor:
    for name in ("conv1", "conv2"):
        x = nn.max_pool2d(nn.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], padding=1).relu(), 2)
    x = nn.linear(x.flatten(1), p["fc1.weight"], p["fc1.bias"]).relu()
    return nn.linear(x, p["fc2.weight"], p["fc2.bias"])


def resnet(m: dict[str, Any], p: Tensors, x: torch.Tensor) -> torch.Tensor:
    def unit(x: torch.Tensor, name: str, stride: int = 1, kernel: int = 3) -> torch.Tensor:
        x = nn.conv2d(x, p[f"{name}.weight"], p.get(f"{name}.bias"), stride, kernel // 2)
        if not m["bn"]:
            return x
        mean, var, gamma, beta = (p[f"{name}.bn.{n}"] for n in ("mean", "var", "gamma", "beta"))
        return nn.batch_norm(x, mean, var, gamma, beta, True, 0.1, 1e-5)

    x = unit(x, "stem").relu()
    for stage in range(3):
        stride = 2 if stage else 1
        y = unit(unit(x, f"s{stage}.a", stride).relu(), f"s{stage}.b")
        x = (y + (unit(x, f"s{stage}.sc", stride, 1) if stage else x)).relu()
    return nn.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


def transfer(m: dict[str, Any], p: Tensors, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        for k in range(1, 5):
            x = nn.conv2d(x, p[f"feat{k}.weight"], p[f"feat{k}.bias"], 2, 1).relu()
        x = x.mean((2, 3))
    return nn.linear(x, p["fc.weight"], p["fc.bias"])


def gpt(m: dict[str, Any], p: Tensors, x: torch.Tensor) -> torch.Tensor:
    batch, length, width, heads = m["batch"], m["S"], m["D"], m["H"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return nn.layer_norm(x, (width,), p[f"{name}.g"], p[f"{name}.b"])

    def project(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ p[f"{name}.w"] + p[f"{name}.b"]

    h = p["wte"][x] + p["wpe"]
    for layer in range(m["L"]):
        qkv = project(norm(h, f"h{layer}.ln1"), f"h{layer}.qkv")
        q, k, v = (t.view(batch, length, heads, width // heads).transpose(1, 2) for t in qkv.split(width, 2))
        context = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + project(context.transpose(1, 2).reshape(batch, length, width), f"h{layer}.proj")
        y = nn.gelu(project(norm(h, f"h{layer}.ln2"), f"h{layer}.fc"))
        h = h + project(y, f"h{layer}.fcproj")
    return (norm(h, "lnf") @ p["head.w"]).reshape(batch * length, -1)


FORWARD = {"mlp": mlp, "lenet": lenet, "resnet": resnet, "transfer": transfer, "gpt": gpt}


def main() -> int:
    """Train the model of FOLDER."""
    folder, threads, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(threads)
    m, x_data, y_data, values = load(folder)
    x, y = torch.from_numpy(x_data), torch.from_numpy(y_data)
    trainable = {q["name"] for q in m["params"] if q["trainable"]}
    p = {name: torch.from_numpy(v).requires_grad_(name in trainable) for name, v in values.items()}
    a = m["adamw"]
    optimizer = torch.optim.AdamW(
        [t for t in p.values() if t.requires_grad],
        lr=a["lr"],
        betas=(a["b1"], a["b2"]),
        eps=a["eps"],
        weight_decay=a["wd"],
        fused=True,
    )
    forward, nb = FORWARD[m["kind"]], m["nb"]

    def step(k: int) -> float:
        loss = nn.cross_entropy(forward(m, p, x[k % nb]), y[k % nb])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss)

    print(json.dumps(measure(step, seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
