"""The models and the tokenizer that the Python of docs/language-models.md uses."""

import shutil
import sys
from pathlib import Path
from types import ModuleType

GOLDEN = Path(__file__).parents[1] / "golden"
shutil.copy(GOLDEN / "generate" / "llama.onnx", "model.onnx")
shutil.copytree(GOLDEN / "pretrained" / "folder", "smollm2")


class Letters:
    """A tokenizer with a token for each letter."""

    eos_token_id = 0

    def encode(self, text, **_):
        """A token below 14 for each letter."""
        return [1 + ord(letter) % 13 for letter in text]

    def decode(self, tokens):
        """A letter for each token."""
        return "".join(chr(96 + token) for token in tokens)


class AutoTokenizer(Letters):
    """A tokenizer with a chat template."""

    @classmethod
    def from_pretrained(cls, folder):
        """The tokenizer of a folder."""
        return cls()

    def apply_chat_template(self, chat, **_):
        """The turns, one after the other."""
        return "".join(turn["content"] for turn in chat)


tokenizer = Letters()
package = ModuleType("transformers")
package.AutoTokenizer = AutoTokenizer
sys.modules["transformers"] = package
