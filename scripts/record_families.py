"""Record small models of many families of transformers: torch's and PEFT's training, and greedy tokens.

    ./build.sh record-families [NAME ...]
    python scripts/record_families.py --adapters [NAME ...]   # all but the exports, which stay

Runs in a separate environment with torch and peft (`environments.py`); `tests/lora/test_families.py` replays the files
without it. Each `NAME.tar.xz` has the model as docs/language-models.md exports it, new adapters of PEFT (LoRA and DoRA)
and what it learned, and `truth.npz`.
"""

from __future__ import annotations

import copy
import io
import json
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from recording import strip
from torch.nn import functional as F  # noqa: N812

TARGET = Path(__file__).parents[1] / "tests" / "lora" / "families"
STEPS, SGD, ADAMW = 3, 0.1, 0.01
WORDS, LONGEST, NEW = 29, 64, 8
PADDING = 3
KINDS: dict[str, dict[str, Any]] = {"lora": {}, "dora": {"use_dora": True}}
TABLE = {"table": {"target_modules": ["embed_tokens", "q_proj"]}}
"""Adapters, by what is set."""
PROMPTS = ([3, 7, 5], [4, 9, 2, 8, 6, 11, 20, 13, 5])
SCALE = 6
"""Larger weights than usual, so that tokens vary."""
SEEDS = {"granite": 3}
"""Where the likeliest token would be one by a hair."""

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": LONGEST}
ALL = {"vocab_size": WORDS, "num_hidden_layers": 1, **SIZES, "bos_token_id": None, "eos_token_id": None}
ONE = {**ALL, "pad_token_id": None}
TWO = {**ONE, "num_hidden_layers": 2}
SHARED = {**ONE, "num_key_value_heads": 2}
ENCODER = {**ALL, "pad_token_id": 0, "num_labels": 5}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
SEQ2SEQ = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
SEQ2SEQ |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
PICTURE = {**TOWER, "image_size": 8, "patch_size": 4}

CAUSAL: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**{**SHARED, "num_hidden_layers": 2})),
    "llama3": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHARED, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SHARED, tie_word_embeddings=True)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SHARED, head_dim=8)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**TWO, num_key_value_heads=2, head_dim=8, attn_implementation="eager", **WINDOW)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**TWO, num_key_value_heads=1, head_dim=8, **WINDOW)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SHARED)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SHARED, sliding_window=5)),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**ONE)),
    "gptj": lambda: hf.GPTJForCausalLM(
        hf.GPTJConfig(vocab_size=WORDS, n_positions=LONGEST, n_embd=16, n_layer=1, n_head=2, rotary_dim=4)
    ),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(**{**ONE, "max_position_embeddings": 256}, ffn_dim=24, word_embed_proj_dim=16)
    ),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=WORDS, hidden_size=16, n_layer=1, n_head=2)),
    "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**ONE, alibi=False)),
    "mpt": lambda: hf.MptForCausalLM(
        hf.MptConfig(vocab_size=WORDS, d_model=16, n_layers=1, n_heads=2, max_seq_len=LONGEST)
    ),
    "stablelm": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**SHARED)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**SHARED)),
    "granite": lambda: hf.GraniteForCausalLM(
        hf.GraniteConfig(**SHARED, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0)
    ),
    "smollm3": lambda: hf.SmolLM3ForCausalLM(
        hf.SmolLM3Config(**TWO, num_key_value_heads=2, no_rope_layers=[1, 0], use_sliding_window=False)
    ),
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**SHARED)),
    "starcoder2": lambda: hf.Starcoder2ForCausalLM(hf.Starcoder2Config(**SHARED)),
    "glm": lambda: hf.GlmForCausalLM(hf.GlmConfig(**SHARED, head_dim=4)),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "llama_classes": lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**SHARED, num_labels=5)),
    "bert_classes": lambda: hf.BertForSequenceClassification(hf.BertConfig(**ENCODER)),
    "bert_words": lambda: hf.BertForMaskedLM(hf.BertConfig(**ENCODER)),
    "bert_tokens": lambda: hf.BertForTokenClassification(hf.BertConfig(**ENCODER)),
    "roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**ENCODER)),
    "distilbert": lambda: hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(vocab_size=WORDS, dim=16, n_layers=1, n_heads=2, hidden_dim=24, num_labels=5)
    ),
    "modernbert": lambda: hf.ModernBertForSequenceClassification(
        hf.ModernBertConfig(**ENCODER, attn_implementation="eager", reference_compile=False)
    ),
    "deberta": lambda: hf.DebertaV2ForSequenceClassification(
        hf.DebertaV2Config(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
    ),
    "bart": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(vocab_size=WORDS, max_position_embeddings=LONGEST, **SEQ2SEQ)
    ),
    "whisper": lambda: hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=WORDS, num_mel_bins=4, max_source_positions=8, max_target_positions=LONGEST, pad_token_id=0,
            bos_token_id=1, eos_token_id=1, decoder_start_token_id=1, **SEQ2SEQ,
        )
    ),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**PICTURE, num_labels=5)),
    "clip": lambda: hf.CLIPModel(
        hf.CLIPConfig(
            text_config={**TOWER, "vocab_size": WORDS, "max_position_embeddings": 16, "eos_token_id": 2},
            vision_config=PICTURE, projection_dim=8,
        )
    ),
}  # fmt: skip


def feeds_of(name: str, model: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs and labels; of texts with a mask, the second is shorter."""
    ids = torch.randint(3, WORDS, (2, 9))
    mask = torch.ones_like(ids)
    if name in CAUSAL or name.startswith(("bert_words", "bert_tokens")):
        mask[1, 6:] = 0
        labels = torch.randint(3, 5 if name == "bert_tokens" else WORDS, (2, 9))
        return {"input_ids": ids, "attention_mask": mask}, labels.masked_fill(mask == 0, -100)
    if name == "bart":
        return {"input_ids": ids, "decoder_input_ids": ids[:, :7] - 1}, ids[:, 1:8].contiguous()
    if name == "whisper":
        return {"input_features": torch.randn(2, 4, 16), "decoder_input_ids": ids}, ids.roll(-1, 1)
    images = torch.randn(2, 3, 8, 8)
    if name == "vit":
        return {"pixel_values": images}, torch.tensor([1, 4])
    if name == "clip":
        ids[:, -1] = 2
        return {"input_ids": ids, "pixel_values": images, "attention_mask": mask}, torch.tensor([0, 1])
    mask[1, 6:] = 0
    if name == "llama_classes":
        model.config.pad_token_id = 0
        ids[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}, torch.tensor([1, 4])


def logits_of(model: Any, feeds: dict[str, torch.Tensor]) -> torch.Tensor:
    """The scores, which are the first output."""
    found = model(**feeds)
    scores: torch.Tensor = found["logits_per_image"] if "logits_per_image" in found else found["logits"]
    return scores


def export(model: Any, feeds: dict[str, torch.Tensor], path: Path, is_causal: bool) -> None:
    """Write the model, with dynamic sizes if it generates."""
    sizes = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("sequence", min=2, max=LONGEST)}
    torch.onnx.export(
        model, (), str(path), kwargs=feeds, dynamo=True, optimize=False, verbose=False, external_data=False,
        input_names=list(feeds), output_names=["logits"],
        dynamic_shapes=dict.fromkeys(feeds, sizes) if is_causal else None,
    )  # fmt: skip
    strip(path)


def trained(model: Any, optimizer: torch.optim.Optimizer, feeds: dict[str, torch.Tensor], labels: torch.Tensor) -> Any:
    """Take the steps; return their losses."""
    losses = []
    for _ in range(STEPS):
        scores = logits_of(model, feeds)
        loss = F.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return np.array(losses, np.float32)


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """The likeliest tokens after a prompt, none of them by a hair."""
    ids = list(prompt)
    for _ in range(NEW):
        scores = logits_of(model, {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))})[0, -1]
        best = scores.topk(2)
        assert best.values[0] - best.values[1] > 1e-4, "choose other weights"
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :]


def padded_before(feeds: dict[str, torch.Tensor], labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A mask with padding before the second text, and labels that leave it out."""
    mask = torch.ones_like(feeds["attention_mask"])
    mask[1, :PADDING] = 0
    whole = labels.where(labels >= 0, feeds["input_ids"])
    return mask, whole.masked_fill(mask == 0, -100)


def adapted_by_peft(model: Any, more: dict[str, Any]) -> tuple[Any, bool]:
    """The model with an adapter, by PEFT's own choice of modules if it has one."""
    settings = {"r": 2, "lora_alpha": 4, "init_lora_weights": False, **more}
    try:
        return get_peft_model(copy.deepcopy(model), LoraConfig(**settings)).eval(), True
    except ValueError:
        linear = LoraConfig(**settings, target_modules="all-linear")
        return get_peft_model(copy.deepcopy(model), linear).eval(), False


def record(name: str, make: Callable[[], Any], *, exports: bool) -> None:
    """Write all of a family."""
    torch.manual_seed(SEEDS.get(name, len(name)))
    model = make().eval()
    model.config.use_cache = False
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.requires_grad and name != "clip":  # its steps grow roundings
                parameter.mul_(SCALE)
    feeds, labels = feeds_of(name, model)
    truth = {key: feed.numpy() for key, feed in feeds.items()} | {"labels": labels.numpy()}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if exports:
            export(model, feeds, place / "model.onnx", name in CAUSAL)
        else:
            (place / "model.onnx").write_bytes(recorded(name, "model.onnx"))
        tokens = [greedy(model, prompt) for prompt in PROMPTS] if name in CAUSAL else []
        files = {file: place / file for file in ("model.onnx", "adapter_config.json", "about.json", "truth.npz")}
        by_default = False
        for kind, settings in {**KINDS, **(TABLE if name == "opt" else {})}.items():
            torch.manual_seed(1)
            adapted, is_default = adapted_by_peft(model, settings)
            by_default = is_default if kind == "lora" else by_default
            adapted.save_pretrained(place / kind)
            learned = [p for p in adapted.parameters() if p.requires_grad]
            truth[kind] = trained(adapted, torch.optim.AdamW(learned, lr=ADAMW, eps=1e-6), feeds, labels)
            adapted.save_pretrained(place / f"{kind}_end")
            for part in (kind, f"{kind}_end"):
                files[f"{part}.safetensors"] = place / part / "adapter_model.safetensors"
        files["adapter_config.json"] = place / "lora" / "adapter_config.json"
        frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        if name in CAUSAL:
            other, mask = copy.deepcopy(model), dict(feeds)
            mask["attention_mask"], padded = padded_before(feeds, labels)
            truth |= {"before_mask": mask["attention_mask"].numpy(), "before_labels": padded.numpy()}
            truth["before"] = trained(other, torch.optim.SGD(other.parameters(), lr=SGD), mask, padded)
        truth["full"] = trained(model, torch.optim.SGD(model.parameters(), lr=SGD), feeds, labels)
        about = {"by_default": by_default, "frozen": frozen, "prompts": PROMPTS, "tokens": tokens}
        (place / "about.json").write_text(json.dumps(about))
        np.savez(place / "truth.npz", **truth)
        pack(name, files)


def recorded(name: str, member: str) -> bytes:
    """A file of a recording."""
    with tarfile.open(TARGET / f"{name}.tar.xz") as archive:
        return archive.extractfile(member).read()  # type: ignore[union-attr]


def pack(name: str, files: dict[str, Path]) -> None:
    """Write the archive of a family."""
    with tarfile.open(TARGET / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for member, path in files.items():
            data = path.read_bytes()
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def main() -> None:
    """Record all families, or those named."""
    warnings.simplefilter("ignore")
    TARGET.mkdir(parents=True, exist_ok=True)
    exports = sys.argv[1:2] != ["--adapters"]
    names = sys.argv[1 if exports else 2 :]
    for name, make in (CAUSAL | OTHERS).items():
        if not names or name in names:
            record(name, make, exports=exports)
            print(name, flush=True)


if __name__ == "__main__":
    main()
