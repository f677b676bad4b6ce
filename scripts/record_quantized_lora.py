"""Record PEFT on tiny language models whose frozen weights are float32 or rounded to fewer bits.

    python scripts/record_quantized_lora.py [MODEL]  base models, PEFT's adapters, losses and logits
    python scripts/record_quantized_lora.py --own    logits of PEFT with the adapters that trainweb saved

Needs torch, transformers, peft, onnx and onnxscript. `python -m tests.lora.test_quantized_peft` saves adapters for the
second call. PEFT trains on the weights in float32 that numpy makes of the rounded numbers, which `NAME.onnx` holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from peft import LoraConfig, PeftModel, get_peft_model
from recording import export
from torch import nn
from torch.nn import functional as F  # noqa: N812
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

HERE = Path(__file__).parents[1] / "tests" / "lora" / "quantized"
STEPS, RATE, BLOCK, IGNORED = 5, 0.01, 32, -100
Data = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Inputs and labels."""
Stored = tuple[list[Any], list[Any], np.ndarray]
"""Nodes that make a weight (or a product's node, for MatMulNBits), initializers, and values in float32."""


class Network(nn.Module):
    """A model of transformers as a function of tensors that returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def loss(self, labels: torch.Tensor, **feeds: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self(**feeds).flatten(0, 1), labels.flatten())


class Logits(Network):
    """A language model that predicts the next word."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=x, use_cache=False).logits


class MaskedLogits(Network):
    """An encoder that is given which words are padding."""

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=x, attention_mask=attention_mask).logits

    def loss(self, labels: torch.Tensor, **feeds: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=feeds["x"], attention_mask=feeds["attention_mask"], labels=labels).loss


class DecoderLogits(Network):
    """An encoder, and a decoder that reads it."""

    def forward(self, x: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=x, decoder_input_ids=decoder_input_ids, use_cache=False).logits

    def loss(self, labels: torch.Tensor, **feeds: torch.Tensor) -> torch.Tensor:
        """transformers makes the decoder's words of the labels itself."""
        return self.model(input_ids=feeds["x"], labels=labels, use_cache=False).loss


SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "use_cache": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def llama() -> tuple[Network, dict[str, Any]]:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return Logits(LlamaForCausalLM(config)), {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 8}


def gpt2() -> tuple[Network, dict[str, Any]]:
    config = GPT2Config(
        vocab_size=96, n_positions=16, n_embd=64, n_layer=1, n_head=4, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
    )
    return Logits(GPT2LMHeadModel(config)), {
        "target_modules": ["c_attn"],
        "r": 4,
        "lora_alpha": 8,
        "fan_in_fan_out": True,
    }


def qwen3() -> tuple[Network, dict[str, Any]]:
    config = Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8)
    return Logits(Qwen3ForCausalLM(config)), {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 8}


def gemma3() -> tuple[Network, dict[str, Any]]:
    """A layer with a window of 4 words before one without; the head is tied to the table."""
    layers = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=8, sliding_window=4, layer_types=layers)
    return Logits(Gemma3ForCausalLM(config)), {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 8}


def phi() -> tuple[Network, dict[str, Any]]:
    targets = ["q_proj", "v_proj", "fc1", "fc2"]
    return Logits(PhiForCausalLM(PhiConfig(**SMALL))), {"target_modules": targets, "r": 4, "lora_alpha": 8}


def modernbert() -> tuple[Network, dict[str, Any]]:
    """Masked words; the second layer sees 3 words to each side."""
    settings = SMALL | {"pad_token_id": 0, "cls_token_id": None, "sep_token_id": None}
    del settings["use_cache"]
    config = ModernBertConfig(**settings, local_attention=6, global_attn_every_n_layers=2)
    return MaskedLogits(ModernBertForMaskedLM(config)), {"target_modules": ["Wqkv", "Wo"], "r": 4, "lora_alpha": 8}


def t5() -> tuple[Network, dict[str, Any]]:
    config = T5Config(
        vocab_size=96,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        dropout_rate=0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        decoder_start_token_id=0,
    )
    # The dynamo exporter cannot translate a reshape behind T5's default attention.
    model = T5ForConditionalGeneration._from_config(config, attn_implementation="eager")
    return DecoderLogits(model), {"target_modules": ["q", "v"], "r": 4, "lora_alpha": 8}


def drawn(model: str, module: Network) -> Data:
    """Words, and what the network learns to say to them."""
    x, labels = torch.randint(0, 96, (3, 12)), torch.randint(0, 96, (3, 12))
    if model == "modernbert":
        mask = torch.ones_like(x)
        mask[1, 9:] = 0  # a word that sees only padding has other logits in PyTorch than in its export
        return {"x": x, "attention_mask": mask}, labels.where((torch.rand(3, 12) < 0.5) & (mask == 1), IGNORED)
    if model == "t5":
        labels = labels[:, :9].contiguous()
        labels[2, 6:] = IGNORED
        return {"x": x, "decoder_input_ids": module.model.prepare_decoder_input_ids_from_labels(labels)}, labels
    return {"x": x}, labels


def is_by_columns(name: str) -> bool:
    """True for Conv1D of GPT-2, whose weight is (in, out)."""
    return ".c_" in name


def scales(largest: np.ndarray, most: int) -> np.ndarray:
    return np.maximum(largest / most, 1e-8).astype(np.float32)


def float16(name: str, w: np.ndarray) -> Stored:
    """(in, out) as it is for Conv1D, which the name tells; Linear's weight is (out, in) and turned."""
    turned = not is_by_columns(name)
    stored = np.ascontiguousarray(w.T if turned else w).astype(np.float16)
    cast = helper.make_node("Cast", [name], [f"{name}.cast" if turned else f"{name}.used"], to=TensorProto.FLOAT)
    turn = [helper.make_node("Transpose", [f"{name}.cast"], [f"{name}.used"], perm=[1, 0])] if turned else []
    values = stored.astype(np.float32)
    return [cast, *turn], [numpy_helper.from_array(stored, name)], values.T if turned else values


def linear(name: str, w: np.ndarray, block: int) -> Stored:
    """int8: a scale for each column of (in, out), or for each block of rows of it."""
    attrs: dict[str, Any]
    if block:
        scale = scales(abs(w.reshape(-1, block, w.shape[1])).max(1), 127)
        spread, attrs = scale.repeat(block, 0), {"axis": 0, "block_size": block}
    else:
        scale = scales(abs(w).max(0), 127)
        spread, attrs = scale[None], {"axis": 1}
    numbers = np.clip(np.rint(w / spread), -127, 127).astype(np.int8)
    names = [f"{name}_quantized", f"{name}_scale"]
    node = helper.make_node("DequantizeLinear", names, [f"{name}.used"], f"{name}_quantized", **attrs)
    stored = (numbers, scale if block else scale.reshape(-1))
    initializers = [numpy_helper.from_array(a, n) for n, a in zip(names, stored, strict=True)]
    return [node], initializers, numbers.astype(np.float32) * spread


def nbits(name: str, w: np.ndarray) -> Stored:
    """Numbers of 4 bits in blocks of the columns of (in, out), around 8."""
    rows = np.ascontiguousarray(w.T)
    blocks = rows.reshape(len(rows), -1, BLOCK)
    scale = scales(abs(blocks).max(2), 7)
    numbers = np.clip(np.rint(blocks / scale[..., None]) + 8, 0, 15).astype(np.uint8)
    packed = numbers[..., ::2] | numbers[..., 1::2] << 4
    attrs = {"K": w.shape[0], "N": w.shape[1], "bits": 4, "block_size": BLOCK}
    node = helper.make_node(
        "MatMulNBits", ["", f"{name}_Q4", f"{name}_scales"], [""], "", domain="com.microsoft", **attrs
    )
    initializers = [numpy_helper.from_array(packed, f"{name}_Q4"), numpy_helper.from_array(scale, f"{name}_scales")]
    values = (numbers.astype(np.float32) - 8) * scale[..., None]
    return [node], initializers, np.ascontiguousarray(values.reshape(rows.shape).T)


KINDS: dict[str, Callable[[str, np.ndarray], Stored]] = {
    "float16": float16,
    "int8_channels": lambda name, w: linear(name, w, 0),
    "int8_blocks": lambda name, w: linear(name, w, BLOCK),
    "nbits": nbits,
}
EVERY = ("float32", *KINDS)
MODELS = {
    "llama": (llama, KINDS),
    "gpt2": (gpt2, KINDS),
    "qwen3": (qwen3, ["float32"]),
    "gemma3": (gemma3, ["float32"]),
    "phi": (phi, ["float32"]),
    "modernbert": (modernbert, EVERY),
    "t5": (t5, EVERY),
}
"""Functions that make a network and settings of PEFT, and the kinds of weights that are recorded."""


def rounded(path: Path, kind: str, state: dict[str, torch.Tensor]) -> None:
    """Store the weights of products in fewer bits, and let the state of the network have their values."""
    owners = {t.numpy().tobytes(): n for n, t in state.items()} | {t.numpy().T.tobytes(): n for n, t in state.items()}
    model = onnx.load(path)
    graph = model.graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    turned = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Transpose" and n.input[0] in tensors}
    nodes: list[Any] = []
    made: dict[str, Any] = {}
    for node in graph.node:
        weight = node.input[1] if node.op_type in ("MatMul", "Gemm") else ""
        name = turned.get(weight, weight)
        if name not in tensors or tensors[name].ndim != 2:
            nodes.append(node)
            continue
        assert not any(a.name in ("transA", "transB") and a.i for a in node.attribute)
        w = tensors[name].T if weight in turned else tensors[name]
        owner = owners[w.tobytes()]
        stored, initializers, values = KINDS[kind](owner, np.ascontiguousarray(w))
        target = state[owner]
        target.copy_(torch.from_numpy(np.ascontiguousarray(values if is_by_columns(owner) else values.T)))
        made |= {t.name: t for t in initializers}
        if stored[0].op_type == "MatMulNBits":
            stored[0].input[0], stored[0].name = node.input[0], node.name
            product = [*stored]
            if len(node.input) > 2:
                stored[0].output[0] = f"{node.output[0]}.product"
                product.append(helper.make_node("Add", [stored[0].output[0], node.input[2]], [node.output[0]]))
            else:
                stored[0].output[0] = node.output[0]
            nodes += product
        else:
            nodes += stored
            node.input[1] = stored[-1].output[0]
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    # A weight may have other readers, such as the table of a tied head.
    kept = [t for t in graph.initializer if t.name in read and t.name not in made]
    del graph.initializer[:]
    graph.initializer.extend([*kept, *made.values()])
    model.ir_version = 10
    for opset in model.opset_import:
        if opset.domain == "":
            opset.version = max(21, opset.version)
    if kind == "nbits" and all(o.domain != "com.microsoft" for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)


def base(model: str, kind: str) -> tuple[Network, dict[str, Any], Data]:
    """The network with the values of the stored weights, which `NAME.onnx` has."""
    torch.manual_seed(5)
    module, settings = MODELS[model][0]()
    feeds, labels = drawn(model, module)
    head = module.model.get_output_embeddings()
    if kind != "float32" and head.weight is module.model.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone())  # the table stays in float32
    path = HERE / f"{model}_{kind}.onnx"
    export(module, feeds, ["y"], path, "dynamo")
    if kind != "float32":
        rounded(path, kind, module.state_dict())
    return module, settings, (feeds, labels)


def record(model: str, kind: str) -> None:
    name = f"{model}_{kind}"
    module, settings, (feeds, labels) = base(model, kind)
    torch.manual_seed(6)
    adapted: Any = get_peft_model(module, LoraConfig(**settings))
    adapted.save_pretrained(HERE / f"{name}.start")
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = module.loss(labels, **feeds)  # PEFT put the adapters into the module itself
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    arrays = {key: feed.numpy() for key, feed in feeds.items()} | {"labels": labels.numpy()}
    end = adapted(**feeds).detach().numpy()
    np.savez_compressed(HERE / f"{name}.npz", **arrays, losses=np.array(losses), end=end)
    (HERE / f"{name}.start" / "README.md").unlink(missing_ok=True)


def record_own(model: str, kind: str) -> None:
    """PEFT loads the adapter that trainweb saved."""
    name = f"{model}_{kind}"
    module, _, (feeds, _) = base(model, kind)
    adapted = PeftModel.from_pretrained(module, HERE / f"{name}.own").eval()
    np.savez_compressed(HERE / f"{name}.own.npz", y=adapted(**feeds).detach().numpy())


def main() -> None:
    for model in [name for name in MODELS if name in sys.argv] or MODELS:
        for kind in MODELS[model][1]:
            (record_own if "--own" in sys.argv else record)(model, kind)
            print(model, kind)


if __name__ == "__main__":
    main()
