"""The models and the tokenizer that the Python of docs/language-models.md uses."""

import shutil
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
shutil.copy(GOLDEN / "generate" / "llama.onnx", "model.onnx")
shutil.copytree(GOLDEN / "pretrained" / "folder", "smollm2")


class Letters:
    """A tokenizer with a token for each letter."""

    eos_token_id = 0

    def encode(self, text):
        """A token below 14 for each letter."""
        return [1 + ord(letter) % 13 for letter in text]

    def decode(self, tokens):
        """A letter for each token."""
        return "".join(chr(96 + token) for token in tokens)


tokenizer = Letters()
