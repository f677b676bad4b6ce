"""Record adapters of PEFT: as it starts them, after five steps of its training, and its merged models.

    ./build.sh record-lora [NAME ...]

Runs in a separate environment with torch and peft (`environments.py`); `tests/lora` replays the files without
it. Each case becomes `NAME.EXPORTER.onnx`, the base model; `NAME.start` and `NAME.end`, folders that PEFT wrote; and
`NAME.npz`: the feeds, the losses, and the output of the merged model. A case `BASE-NAME` has the base model of `BASE`.
"""

from __future__ import annotations

import copy
import shutil
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from record_zoo import as_onnx
from recording import export
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

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


class Padded(Attention):
    """The same with a padding word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=4)


class Table(nn.Embedding):
    """An embedding with a factor that is not a parameter, as Gemma has."""

    def __init__(self) -> None:
        super().__init__(11, 8)
        self.register_buffer("scale", torch.tensor(2.5), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * self.scale


class Scaled(Attention):
    """The same with such a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Table()


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


class Transposed(nn.Module):
    """Products of GPT-2's kind, whose weights are (in, out), and a head of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(9, 6), Conv1D(6, 9)
        for layer in (self.c_attn, self.c_proj):
            nn.init.normal_(layer.bias)  # exporters leave out biases of zeros
        self.classifier = nn.Sequential(OrderedDict(dense=nn.Linear(6, 7), act=nn.Tanh(), out_proj=nn.Linear(7, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.c_proj(self.c_attn(x).relu()))


class Llama(nn.Module):
    """Scores of the next word, by two layers of Llama whose heads share keys."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=11,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            use_cache=False,
        )
        self.inner = LlamaForCausalLM(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=ids, use_cache=False).logits[:, -1]


class Tied(LlamaForCausalLM):
    """Scores of the next word, by a layer of Llama whose head is the table. PEFT knows the class of transformers."""

    def __init__(self) -> None:
        super().__init__(
            LlamaConfig(
                vocab_size=11,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                tie_word_embeddings=True,
                use_cache=False,
            )
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids=ids, use_cache=False).logits[:, -1]


class Classifier(nn.Module):
    """A head of two modules, one of which has a name that ends as the other's, as DistilBERT has."""

    def __init__(self) -> None:
        super().__init__()
        self.q_lin, self.v_lin = nn.Linear(6, 9), nn.Linear(9, 7)
        self.pre_classifier, self.classifier = nn.Linear(7, 5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pre_classifier(self.v_lin(self.q_lin(x).relu()).tanh()).relu())


class Normed(nn.Module):
    """A head with a batch norm, whose running statistics PEFT saves with it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.head = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(8), out=nn.Linear(8, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.fc(x).tanh())


class Outside(Normed):
    """The same with a norm outside the head, whose statistics change in training, though PEFT does not save them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.fc(x)).tanh())


QV = {"target_modules": ["q_proj", "v_proj"], "r": 2}
PATTERNS = {"rank_pattern": {"fc1": 2, ".*c2": 5, "fc2": 7}, "alpha_pattern": {r"fc\d": 12, "head": 1}}
SEQ_CLS = {"target_modules": ["c_attn"], "r": 2, "modules_to_save": ["classifier", "score"], "fan_in_fan_out": True}
"""As PEFT itself writes the task: both names, whichever the model has."""


def cases() -> Iterator[tuple[str, nn.Module, torch.Tensor, torch.Tensor, dict[str, Any]]]:
    """Name, module, input, labels, settings of PEFT."""
    torch.manual_seed(3)
    ids, rows, images = torch.randint(0, 11, (6, 5)), torch.randn(6, 6), torch.randn(6, 3, 8, 8)
    labels = torch.randint(0, 4, (6,))
    for name, make, feed, settings in (
        ("attention", Attention, ids, {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 8}),
        ("embedding", Attention, ids, {"target_modules": ["embed", "o_proj"], "r": 3, "use_rslora": True}),
        ("padded", Padded, ids, {"target_modules": ["embed", "o_proj"], "r": 3, "init_lora_weights": False}),
        ("scaled", Scaled, ids, {"target_modules": ["o_proj"], "r": 2, "modules_to_save": ["embed"]}),
        ("dora", Layers, rows, {"target_modules": ["fc1", "fc2"], "r": 2, "lora_alpha": 5, "use_dora": True}),
        ("head", Layers, rows, {"target_modules": ["fc1", "fc2"], "r": 4, "modules_to_save": ["head"]}),
        ("transposed", Transposed, rows, {"target_modules": ["c_attn"], "r": 2, "fan_in_fan_out": True}),
        ("classifier", Transposed, rows, SEQ_CLS),
        (
            "whole",
            Transposed,
            rows,
            {"target_modules": ["c_attn"], "r": 2, "modules_to_save": ["c_proj"], "use_dora": True},
        ),
        ("conv", Convolutions, images, {"target_modules": ["conv1", "head"], "r": 4, "init_lora_weights": "gaussian"}),
        ("llama", Llama, ids, {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 8}),
        ("grouped", Convolutions, images, {"target_modules": ["conv2"], "r": 4}),
        ("ends", Classifier, rows, {"target_modules": ["q_lin"], "r": 2, "modules_to_save": ["classifier", "score"]}),
        ("normed", Normed, rows, {"target_modules": ["fc"], "r": 2, "modules_to_save": ["head"]}),
        ("outside", Outside, rows, {"target_modules": ["fc"], "r": 2, "modules_to_save": ["head"]}),
        ("tied", Tied, ids, QV | {"modules_to_save": ["embed_tokens"]}),
        ("tied-head", Tied, ids, QV | {"modules_to_save": ["lm_head"]}),
        ("tied-both", Tied, ids, QV | {"modules_to_save": ["embed_tokens", "lm_head"]}),
        ("tied-still", Tied, ids, QV | {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
        ("tied-adapted", Tied, ids, {"target_modules": ["embed_tokens", "lm_head", "q_proj"], "r": 2}),
        ("tied-beside", Tied, ids, QV),
        ("tied-expression", Tied, ids, {"target_modules": r".*\.(q|down)_proj", "r": 2}),
        ("tied-linear", Tied, ids, {"target_modules": "all-linear", "r": 2}),
        ("head-lacking", Layers, rows, {"target_modules": ["fc1", "fc9", "head"], "r": 3, "modules_to_save": ["head"]}),
        ("head-patterns", Layers, rows, {"target_modules": ["fc1", "fc2", "head"], "r": 3, **PATTERNS}),
        ("head-rooted", Layers, rows, {"target_modules": ["fc1", "fc2"], "r": 3, "use_rslora": True, **PATTERNS}),
        ("head-halves", Layers, rows, {"target_modules": ["fc1"], "r": 3, "modules_to_save": ["head"]}),
    ):
        torch.manual_seed(7)
        yield name, make(), feed, labels, settings


def save(model: Any, folder: Path, **arguments: Any) -> None:
    """The files that the replay reads, without the model card."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.stem == "tied-beside":
        arguments["save_embedding_layers"] = True
    model.save_pretrained(folder, **arguments)
    if folder.name == "head-halves.start":
        round_file(model, folder / "adapter_model.safetensors")
    (folder / "README.md").unlink(missing_ok=True)


def round_file(model: Any, path: Path) -> None:
    """Write tensors of an adapter as bfloat16, float16 and float32 in turns, and put these into the model."""
    types = (torch.bfloat16, torch.float16, torch.float32)
    rounded = {name: t.to(types[k % 3]) for k, (name, t) in enumerate(load_file(path).items())}
    save_file(rounded, path, {"format": "pt"})
    set_peft_model_state_dict(model, rounded)


def record(name: str, module: nn.Module, x: torch.Tensor, labels: torch.Tensor, settings: dict[str, Any]) -> None:
    """Write all files of a case."""
    module.train()
    # TorchScript has no symbolic function for an operator of Llama's mask, does not say which word is padding, and
    # leaves batch norms in training mode, also in merged models.
    only_dynamo = ("llama", "normed", "outside", "padded", "tied")
    exporters = ("dynamo",) if name in only_dynamo else ("dynamo", "script")
    for exporter in exporters if "-" not in name else ():
        setting = "plain" if name == "outside" else exporter  # dynamo's default folds its norm as for inference
        export(module, {"x": x}, ["y"], TARGET / f"{name}.{exporter}.onnx", setting)
    base = copy.deepcopy(module)
    model: Any = get_peft_model(as_onnx(module), LoraConfig(**settings))
    save(model, TARGET / f"{name}.start")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    save(model, TARGET / f"{name}.end")
    model.eval()
    truth = {"x": x.numpy(), "labels": labels.numpy(), "losses": np.array(losses, np.float32)}
    truth["adapted"] = model(x).detach().numpy()
    if name == "outside":
        truth["reloaded"] = PeftModel.from_pretrained(base, TARGET / f"{name}.end").eval()(x).detach().numpy()
    if name == "tied-adapted":  # PEFT adds both adapters to the tied weight
        truth["merged"] = truth["adapted"]
    elif name != "grouped":  # PEFT cannot merge it either
        truth["merged"] = model.merge_and_unload()(x).detach().numpy()
    np.savez_compressed(TARGET / f"{name}.npz", **truth)


def record_converted() -> None:
    """Write an adapter whose start changes the base, as it is and converted by PEFT to a plain one."""
    target = TARGET / "converted"
    torch.manual_seed(7)
    module, x, labels = Layers(), torch.randn(6, 6), torch.randint(0, 4, (6,))
    target.mkdir(exist_ok=True)
    export(module, {"x": x}, ["y"], target / "base.onnx", "dynamo")
    model: Any = get_peft_model(module, LoraConfig(target_modules=["fc1", "fc2"], r=3, init_lora_weights="pissa"))
    config = model.peft_config["default"]
    config.init_lora_weights = True
    model.save_pretrained(target / "init")
    config.init_lora_weights = "pissa"
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    for _ in range(STEPS):
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    np.savez_compressed(target / "truth.npz", x=x.numpy(), adapted=model.eval()(x).detach().numpy())
    save(model, target / "pissa")
    save(model, target / "plain", path_initial_model_for_weight_conversion=str(target / "init"))
    shutil.rmtree(target / "init")


def main() -> None:
    """Record all cases, or those named."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, *case in cases():
        if not sys.argv[1:] or name in sys.argv[1:]:
            record(name, *case)
            print(name)
    if not sys.argv[1:] or "converted" in sys.argv[1:]:
        record_converted()


if __name__ == "__main__":
    main()
