"""The model and the text that the Python of docs/text.md uses, and the part of the package tokenizers that it takes."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

VOICE = Path(__file__).parents[2] / "web" / "demo" / "voice"
shutil.copytree(VOICE / "model", "sonnets")
shutil.copy(VOICE / "example.txt", "diary.txt")

WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?\d+| ?[^\sA-Za-z\d]+|\s+(?!\S)|\s+")
"""How GPT-2 cuts texts of ASCII (Radford et al. 2019)."""
PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
"""Bytes that stand for themselves in the vocabulary; others are letters from 256 on, in their order."""
OTHERS = [byte for byte in range(256) if byte not in PRINTED]
LETTERS = {**{byte: chr(byte) for byte in PRINTED}, **{byte: chr(256 + k) for k, byte in enumerate(OTHERS)}}


class Tokenizer:
    """Byte pairs, merged in the order of the file."""

    def __init__(self, file):
        model = json.loads(Path(file).read_text())["model"]
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(pairs)}
        self._ids = model["vocab"]

    @classmethod
    def from_file(cls, file):
        """The tokenizer of a file."""
        return cls(file)

    def _merged(self, word):
        parts = [LETTERS[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in zip(parts, parts[1:], strict=False)]
            best = ranks.index(min(ranks))
            if ranks[best] == len(self._ranks):
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return parts

    def encode(self, text, **_):
        """The ids of a text."""
        return SimpleNamespace(ids=[self._ids[part] for word in WORDS.findall(text) for part in self._merged(word)])

    def decode(self, ids, **_):
        """The text of ids, without the end of a text."""
        names = {token: name for name, token in self._ids.items() if token}
        bytes_of = {letter: byte for byte, letter in LETTERS.items()}
        return bytes(bytes_of[letter] for token in ids for letter in names.get(token, "")).decode(errors="replace")

    def no_truncation(self):
        """Texts are never cut."""

    def no_padding(self):
        """Texts are never filled up."""

    def token_to_id(self, token):
        """The id of a token."""
        return self._ids.get(token)


package = ModuleType("tokenizers")
package.Tokenizer = Tokenizer
sys.modules["tokenizers"] = package
