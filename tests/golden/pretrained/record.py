"""Records a folder of a tiny model as transformers saves it, a graph without weights, and tokens: `python record.py`.

It takes torch, transformers, tokenizers, onnx and onnxscript. Weights are random.
"""

import json
import tempfile
from pathlib import Path

import onnx
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers

HERE = Path(__file__).parent
FOLDER = HERE / "folder"
WORDS = ["the", "a", "cat", "dog", "sees", "likes", "every", "old", "young", "tree", "house", "and", "in", "under"]
SPECIAL = ["<end>", "<unknown>"]
LEAST, NEW = 8, 24
PROMPT = "every old dog sees the"


def tokenizer():
    """Whole words."""
    vocabulary = {word: k for k, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[1]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=SPECIAL[0], unk_token=SPECIAL[1])


def network(size, seed):
    """A Llama whose tokens vary."""
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        use_cache=False,
    )
    model = tf.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data += (0.3 if parameter.dim() > 1 else 0.1) * torch.randn_like(parameter)
    return model


def export(model, path):
    """The graph, whose initializers that are parameters have no data."""
    ids = torch.ones(2, 9, dtype=torch.long)
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("sequence", min=2, max=64)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            model,
            (),
            str(file),
            kwargs={"input_ids": ids},
            dynamo=True,
            dynamic_shapes={"input_ids": dims},
            input_names=["input_ids"],
            output_names=["logits"],
            external_data=False,
            optimize=False,
        )
        found = onnx.load(file)
    names = dict(model.named_parameters())
    for tensor in found.graph.initializer:
        if tensor.name in names:
            tensor.ClearField("raw_data")
            names.pop(tensor.name)
    assert not names, names
    for node in found.graph.node:
        del node.metadata_props[:]
    del found.graph.value_info[:]
    del found.functions[:]
    onnx.save(found, path)


def main():
    """Write the folder and what transformers generates."""
    words = tokenizer()
    ids = words(PROMPT, return_tensors="pt")["input_ids"]
    for seed in range(100):
        model = network(len(words), seed)
        model.generation_config.update(max_new_tokens=NEW, do_sample=False)
        found = model.generate(ids, attention_mask=torch.ones_like(ids))[0, ids.shape[1] :].tolist()
        if LEAST <= len(found) < NEW:
            break
    words.save_pretrained(FOLDER)
    model.save_pretrained(FOLDER)
    export(model, FOLDER / "model.onnx")
    expected = {
        "versions": {"torch": torch.__version__, "transformers": tf.__version__},
        "prompt": PROMPT,
        "ids": ids[0].tolist(),
        "tokens": found,
        "text": words.decode(found, skip_special_tokens=True),
    }
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(expected)


if __name__ == "__main__":
    main()
