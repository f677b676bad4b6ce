"""Folders of models as the Hugging Face hub has them; a page reads them with `web/src/page/pretrained.ts`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

from trainweb import messages
from trainweb.arguments import path_of, warn
from trainweb.errors import ModelError
from trainweb.generation.options import NEUTRAL, SAMPLED
from trainweb.model.checks import Limits
from trainweb.model.graph import Graph
from trainweb.model.reader import read_model
from trainweb.model.weights import SPARE, read_object, shards

GRAPHS = ("model.onnx", "onnx/model.onnx")
"""Paths of the graph, in the order in which they are looked for."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class Pretrained:
    """The files of a folder whose graph is the first of `GRAPHS`, or `file`. Raise ModelError without one."""

    def __init__(self, folder: str | PathLike[str], file: str | None = None) -> None:
        self.folder = path_of("folder", folder)
        if not self.folder.is_dir():
            raise ModelError(f"There is no folder {str(folder)!r}: download the repository first, if this is its name.")
        names = GRAPHS if file is None else (str(path_of("file", file)),)
        paths = [self.folder / name for name in names if (self.folder / name).is_file()]
        if not paths:
            raise messages.NO_GRAPH_FILE(folder=str(folder), names=" or ".join(names))
        self.graph_path = paths[0]

    def model(self, limits: Limits | Mapping[str, int] | None = None) -> Graph:
        """The graph. Weights that it lacks come from safetensors files beside it, or else in the folder.

        Raise ModelError for a file that cannot be read.
        """
        folders = self.graph_path.parent, self.folder
        folder = next((f for f in folders if (f / WEIGHTS).is_file() or (f / INDEX).is_file()), folders[0])
        names = [WEIGHTS] if (folder / WEIGHTS).is_file() else shards(folder / INDEX)
        spare = {f"{SPARE}{k}": str(folder / name) for k, name in enumerate(names)}
        return read_model(self.graph_path, external_data=spare, limits=limits)

    def generation(self) -> dict[str, Any]:
        """Default options of `generate`, from ``generation_config.json`` and ``config.json``."""
        config = {**read_object(self.folder / "config.json"), **read_object(self.folder / "generation_config.json")}
        return generation_of(config)

    def task(self) -> dict[str, str]:
        """PEFT's note of the task of adapters, where ``config.json`` names a causal language model."""
        names = read_object(self.folder / "config.json").get("architectures")
        return {"task_type": "CAUSAL_LM"} if re.search("(ForCausalLM|LMHeadModel)'", str(names)) else {}

    def tokenizer(self) -> RepositoryTokenizer | None:
        """The tokenizer of ``tokenizer.json``; None without such a file or, with a warning, without tokenizers."""
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            from tokenizers import Tokenizer
        except ImportError:
            warn("tokenizer.json is not read: tokenizers is not installed. Install that package, or give 'tokenizer'.")
            return None
        with _faults_of(path.name):
            tokenizer = Tokenizer.from_file(str(path))
        # The file may hold the lengths of the last text that the tokenizer encoded.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        end = read_object(self.folder / "tokenizer_config.json").get("eos_token")
        text = end.get("content") if isinstance(end, dict) else end
        if not isinstance(text, str | None):
            raise messages.BAD_SETTING(name="eos_token of tokenizer_config.json", value=text, expected="text")
        return RepositoryTokenizer(tokenizer, None if text is None else tokenizer.token_to_id(text))


@contextmanager
def _faults_of(name: str) -> Iterator[None]:
    """Name the file of a tokenizer in faults of the package tokenizers, whose panics are no Exception."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise messages.BAD_TOKENIZER(name=name, fault=str(error)) from error


def generation_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of `generate` that a configuration of transformers means; warns of settings that are not obeyed."""
    end = config.get("eos_token_id")
    options: dict[str, Any] = {}
    if end is not None:
        options["stop"] = list(end) if isinstance(end, list) else [end]
    if config.get("max_new_tokens") is not None:
        options["max_tokens"] = config["max_new_tokens"]
    if config.get("do_sample"):
        sampling = {name: config.get(name) for name in ("temperature", "top_k", "top_p")}
        options["temperature"] = SAMPLED["temperature"] if sampling["temperature"] is None else sampling["temperature"]
        options["top_k"] = (SAMPLED["top_k"] if sampling["top_k"] is None else sampling["top_k"]) or None
        options["top_p"] = sampling["top_p"]
    ignored = [name for name, value in NEUTRAL.items() if config.get(name) not in (None, value, [], {})]
    if ignored:
        warn(f"generation_config.json has {', '.join(ignored)}, which generate of trainweb does not have.")
    return options


class RepositoryTokenizer:
    """A tokenizer of the package tokenizers, as `generate` and `Dataset.from_text` take it.

    `eos_token_id` is the id of the token that ends a text, or None.
    """

    def __init__(self, tokenizer: Any, eos_token_id: int | None) -> None:
        self.tokenizer, self.eos_token_id = tokenizer, eos_token_id

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text.

        Parameters
        ----------
        text
            The text.
        add_special_tokens
            Add the tokens that the tokenizer puts around texts.

        Raises
        ------
        ModelError
            The tokenizer fails, as for a word that it lacks.
        """
        with _faults_of("tokenizer.json"):
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens.

        Parameters
        ----------
        ids
            Token ids.
        """
        text: str = self.tokenizer.decode(ids)
        return text
