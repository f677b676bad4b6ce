"""Records tiny models as optimum and ONNX Runtime GenAI export them, and what torch and PEFT compute.

    python record.py models FOLDER   random models as transformers saves them, and what they compute
    python record.py optimum FOLDER  exports of optimum
    python record.py genai FOLDER    exports of ONNX Runtime GenAI

The first takes torch, transformers and peft, the second optimum-onnx, the third onnxruntime-genai. They need different
versions of transformers.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
STEPS, RATE, NEW, IGNORED = 5, 0.5, 24, -100
COMMON = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
T5 = {"vocab_size": 61, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4}
OPT = {"vocab_size": 61, "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24, "num_hidden_layers": 1}
OPT |= {"num_attention_heads": 4, "max_position_embeddings": 96, "pad_token_id": 1, "bos_token_id": 2}


def made(tf):
    """The models by name."""
    return {
        "llama": tf.LlamaForCausalLM(tf.LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True)),
        "opt": tf.OPTForCausalLM(tf.OPTConfig(**OPT)),
        "t5": tf.T5ForConditionalGeneration(tf.T5Config(**T5, decoder_start_token_id=0)),
    }


def batch(torch):
    """Ids, labels and mask of two texts, of which the second is shorter."""
    ids = torch.randint(3, 61, (2, 12))
    labels, mask = ids.roll(-1, 1), torch.ones_like(ids)
    labels[:, -1] = IGNORED
    mask[1, 9:], labels[1, 8:] = 0, IGNORED
    return ids, labels, mask


def causal(torch, peft, name, model, folder):
    """Tokens, and the losses of an adapter that PEFT starts and trains."""
    prompt = torch.randint(3, 61, (1, 9))
    given = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "max_new_tokens": NEW, "eos_token_id": None}
    tokens = model.generate(prompt, **given)[0, 9:].tolist()
    logits = model(prompt).logits[0, -1].tolist()
    ids, labels, mask = batch(torch)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]))
    adapted.save_pretrained(folder / f"{name}_adapter")
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=RATE)
    losses = []
    for _ in range(STEPS):
        scores = adapted(input_ids=ids, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    feeds = {"input_ids": ids.tolist(), "labels": labels.tolist(), "attention_mask": mask.tolist()}
    return {"prompt": prompt[0].tolist(), "tokens": tokens, "logits": logits, "feeds": feeds, "losses": losses}


def decoder(torch, model):
    """The loss of a decoder by its encoder's states."""
    ids, labels, mask = batch(torch)
    states = model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    given = {"encoder_outputs": (states,), "attention_mask": mask, "decoder_input_ids": ids, "use_cache": False}
    scores = model(**given).logits
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    feeds = {"input_ids": ids, "labels": labels, "encoder_attention_mask": mask, "encoder_hidden_states": states}
    return {"feeds": {name: value.tolist() for name, value in feeds.items()}, "losses": [loss.item()]}


def models(folder):
    import peft
    import torch
    import transformers as tf

    expected = {"versions": {"torch": torch.__version__, "transformers": tf.__version__, "peft": peft.__version__}}
    for name, model in made(tf).items():
        torch.manual_seed(len(name))
        model.eval()
        for parameter in model.parameters():
            parameter.data = (0.3 if parameter.dim() > 1 else 0.1) * torch.randn_like(parameter) + (parameter.dim() < 2)
        model.save_pretrained(folder / name)
        expected[name] = decoder(torch, model) if name == "t5" else causal(torch, peft, name, model, HERE)
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


def optimum(folder):
    from optimum.exporters.onnx import main_export

    for name, task in (("llama", "text-generation"), ("opt", "text-generation"), ("t5", "text2text-generation")):
        source, target = str(folder / name), str(folder / f"{name}_onnx")
        main_export(source, target, task=f"{task}-with-past", library_name="transformers")
        graph = "decoder_model_merged.onnx" if name == "t5" else "model.onnx"
        shutil.copy(folder / f"{name}_onnx" / graph, HERE / f"{name}.onnx")


def genai(folder):
    import onnx

    places = ["-m", folder / "llama", "-i", folder / "llama", "-o", folder / "genai", "-c", folder / "cache"]
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
    subprocess.run([*builder, *places], check=True)
    onnx.save(onnx.load(folder / "genai" / "model.onnx"), HERE / "genai.onnx")


if __name__ == "__main__":
    {"models": models, "optimum": optimum, "genai": genai}[sys.argv[1]](Path(sys.argv[2]))
