"""Train the model of the demo of voices, and record PEFT's adapter of it: web/demo/voice/model, tests/golden/voice.

    ./build.sh record-voice

Runs in a separate environment with torch, transformers and peft (`environments.py`). The folder has the layout of
a repository of Hugging Face. Its text are Shakespeare's sonnets, which web/demo/writes/make-text.mjs writes.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from recording import strip
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import trange
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "web" / "demo" / "voice" / "model"
GOLDEN = ROOT / "tests" / "golden" / "voice" / "peft.json"
MAKE_TEXT = ROOT / "web" / "demo" / "writes" / "make-text.mjs"
SEED = 7
END = "<|endoftext|>"
CONFIG = {
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 224,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
    "use_cache": False,
    "dtype": "float16",
}
#: The head and the table of embeddings are one tensor; the file of weights has it by the second name.
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
BATCH, LENGTH = 16, 128
STEPS, TEST_EVERY = 400, 25
RATE, WARM_UP = 3e-3, 50
#: Share of the text at its end that is only tested.
TESTED = 0.08
#: The settings of web/demo/voice/voice.ts.
LORA = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
#: The beginning that the page proposes.
PROMPT = "Monday. Wind"


def sonnets() -> str:
    """Return the text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sonnets.txt"
        subprocess.run(["node", str(MAKE_TEXT), str(path)], check=True)
        return path.read_text()


def make_tokenizer(text: str) -> Tokenizer:
    """Learn byte pairs of the text; any other text has tokens, too, as bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def loss_of(model: LlamaForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    return model(input_ids=windows, labels=windows).loss


def train(model: LlamaForCausalLM, ids: torch.Tensor) -> float:
    """Train it, and keep the weights of the smallest loss of the tested end, which is returned."""
    cut = int(len(ids) * (1 - TESTED))
    count = (len(ids) - cut) // LENGTH
    tests = ids[cut : cut + count * LENGTH].reshape(count, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=WARM_UP / STEPS)
    best, kept = float("inf"), {}
    for step in (bar := trange(STEPS)):
        starts = torch.randint(0, cut - LENGTH, (BATCH,))
        loss = loss_of(model, torch.stack([ids[start : start + LENGTH] for start in starts]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % TEST_EVERY == TEST_EVERY - 1:
            with torch.no_grad():
                tested = float(loss_of(model, tests))
            if tested < best:
                best, kept = tested, {name: value.clone() for name, value in model.state_dict().items()}
            bar.set_postfix(loss=float(loss.detach()), tested=tested)
    model.load_state_dict(kept)
    return best


def export_graph(model: LlamaForCausalLM, path: Path) -> None:
    """Write the graph without data, whose weights have the names of the file beside it."""
    ids = torch.zeros((2, 9), dtype=torch.int64)
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    sizes = {
        0: torch.export.Dim("batch", min=1, max=64),
        1: torch.export.Dim("sequence", min=2, max=CONFIG["max_position_embeddings"]),
    }
    torch.onnx.export(
        model,
        (),
        str(path),
        kwargs=feeds,
        dynamo=True,
        dynamic_shapes=dict.fromkeys(feeds, sizes),
        input_names=list(feeds),
        output_names=["logits"],
        external_data=False,
        optimize=False,
        verbose=False,
    )
    strip(path)
    graph = (found := onnx.load(path)).graph
    del graph.value_info[:]
    for node in graph.node:
        del node.metadata_props[:]
        for k, name in enumerate(node.input):
            if name == HEAD:
                node.input[k] = TABLE
    for tensor in graph.initializer:
        tensor.name = TABLE if tensor.name == HEAD else tensor.name
        if tensor.name in model.state_dict():
            tensor.ClearField("raw_data")
    onnx.save(found, path)


def record_adapter(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Record the tokens of a prompt, and the tensors and settings of PEFT's adapter."""
    adapted: Any = get_peft_model(model, LoraConfig(**LORA))
    state = get_peft_model_state_dict(adapted)
    found = {
        "prompt": {"text": PROMPT, "ids": tokenizer.encode(PROMPT).ids},
        "shapes": {name: list(value.shape) for name, value in sorted(state.items())},
        "config": {name: LORA[name] for name in sorted(LORA)},
    }
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(found) + "\n")


def main() -> None:
    torch.manual_seed(SEED)
    text = sonnets()
    tokenizer = make_tokenizer(text)
    ids = torch.tensor(np.array(tokenizer.encode(text).ids))
    config = LlamaConfig(**CONFIG)
    model = LlamaForCausalLM(config)
    print(f"{len(text)} characters, {len(ids)} tokens, {model.num_parameters()} parameters")
    print(f"loss of the tested sonnets: {train(model, ids):.3f}")
    model.eval()
    MODEL.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(MODEL / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    (MODEL / "tokenizer_config.json").write_text(json.dumps(about, indent=1) + "\n")
    config.architectures = ["LlamaForCausalLM"]
    config.to_json_file(str(MODEL / "config.json"))
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items() if name != HEAD}
    save_file(weights, str(MODEL / "model.safetensors"), metadata={"format": "pt"})
    (MODEL / "model.safetensors").chmod(0o644)
    export_graph(model, MODEL / "model.onnx")
    record_adapter(model, tokenizer)


if __name__ == "__main__":
    main()
