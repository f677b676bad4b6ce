"""Records tiny language models, and tokens and logits that transformers computes: `python record.py [MODELS]`.

It takes torch, transformers, onnx and onnxscript. Weights are random, with larger deviations than usual, so that tokens
vary.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers as tf

HERE = Path(__file__).parent
VOCABULARY, POSITIONS, NEW = 61, 96, 24
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": 4}
OPT = {"ffn_dim": 24, "word_embed_proj_dim": 16, "pad_token_id": 1, "bos_token_id": None, "eos_token_id": None}
MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True)),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2, bos_token_id=None, eos_token_id=None)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=8)),
    "gemma3": lambda: tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**COMMON, num_key_value_heads=1, head_dim=8, **WINDOW)),
    "phi": lambda: tf.PhiForCausalLM(tf.PhiConfig(**COMMON, num_key_value_heads=4)),
    "opt": lambda: tf.OPTForCausalLM(tf.OPTConfig(**{**COMMON, "num_hidden_layers": 1, **OPT})),
}
TRAINED = "llama"
"""This model keeps its parameters as they are; the exporter merges those of the others."""
WITH_MASK = ("llama", "gemma3", "opt")
"""OPT computes positions of the mask, and has 96 of them."""
PADS, PAD = 5, 7
"""Tokens of padding before a prompt, and their id."""
LAWS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 8, "top_p": 0.8},
]


class Logits(torch.nn.Module):
    """A model that gives only its logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask=None):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def export(model, ids, name, path):
    names = ["input_ids", "attention_mask"] if name in WITH_MASK else ["input_ids"]
    batch, sequence = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("sequence", min=2, max=POSITIONS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            Logits(model).eval(),
            (ids, torch.ones_like(ids))[: len(names)],
            str(file),
            dynamo=True,
            dynamic_shapes={one: {0: batch, 1: sequence} for one in names},
            input_names=names,
            output_names=["logits"],
            external_data=False,
            optimize=name != TRAINED,
        )
        found = onnx.load(file)
    # Notes on nodes, such as stack traces, are most of a small file.
    for node in found.graph.node:
        del node.metadata_props[:]
    del found.graph.value_info[:], found.graph.metadata_props[:]
    for value in (*found.graph.input, *found.graph.output):
        del value.metadata_props[:]
    del found.functions[:]
    onnx.save(found, path)


def record(name, make):
    torch.manual_seed(len(name))
    model = make().eval()
    for parameter in model.parameters():
        deviation = 0.3 if parameter.dim() > 1 else 0.1
        parameter.data += deviation * torch.randn_like(parameter)
    ids = torch.randint(0, VOCABULARY, (2, 9))
    export(model, ids, name, HERE / f"{name}.onnx")
    prompts = [torch.randint(0, VOCABULARY, (1, n)) for n in (9, 2, 45)]
    texts = []
    for prompt in prompts:
        text = {"prompt": prompt[0].tolist(), "logits": model(prompt).logits[0, -1].tolist()}
        for key, count in (("tokens", 0), ("padded", PADS)):
            padded = torch.nn.functional.pad(prompt, (count, 0), value=PAD)
            mask = torch.nn.functional.pad(torch.ones_like(prompt), (count, 0))
            given = {"attention_mask": mask, "do_sample": False, "max_new_tokens": NEW}
            text[key] = model.generate(padded, **given)[0, padded.shape[1] :].tolist()
        texts.append(text)
    return texts


def sampling():
    """Probabilities of transformers' warpers, in their order."""
    scores = torch.tensor(np.random.default_rng(0).normal(0, 2, (1, 12)).round(1))
    laws = []
    for law in LAWS:
        kinds = [
            ("temperature", tf.TemperatureLogitsWarper),
            ("top_k", tf.TopKLogitsWarper),
            ("top_p", tf.TopPLogitsWarper),
        ]
        warped = scores
        for key, kind in kinds:
            if key in law:
                warped = kind(law[key])(None, warped)
        laws.append({"settings": law, "probabilities": torch.softmax(warped, -1)[0].tolist()})
    return {"logits": scores[0].tolist(), "laws": laws}


if __name__ == "__main__":
    expected = json.loads((HERE / "expected.json").read_text())
    for name in sys.argv[1:] or MODELS:
        expected["models"][name] = record(name, MODELS[name])
        expected["versions"][name] = {"torch": torch.__version__, "transformers": tf.__version__}
    (HERE / "expected.json").write_text(json.dumps({**expected, "sampling": sampling()}))
