"""The numbers of an adapter, apart from a model, and PEFT's two files of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainweb.arguments import instance_of, path_of
from trainweb.checkpoint import write_file_atomically
from trainweb.errors import CheckpointError
from trainweb.lora.config import PREFIX, LoraConfig
from trainweb.model.checks import Limits
from trainweb.model.graph import Tensor
from trainweb.model.reader import load_bytes
from trainweb.model.safetensors import read_safetensors, write_safetensors

WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class Adapter:
    """The numbers learned beside a base model.

    Attributes
    ----------
    tensors : dict of str to Tensor
        By the names that the parameters have in a session: PEFT's keys without "base_model.model.".
    config : LoraConfig
        The configuration that they were made with.
    """

    tensors: dict[str, Tensor]
    config: LoraConfig

    @property
    def weights(self) -> bytes:
        """PEFT's `adapter_model.safetensors`."""
        return write_safetensors([t.renamed(PREFIX + n) for n, t in self.tensors.items()], {"format": "pt"})

    @property
    def config_json(self) -> str:
        """PEFT's `adapter_config.json`."""
        return json.dumps(self.config.to_peft(), indent=2, sort_keys=True)

    def save(self, directory: str | Path) -> None:
        """Write both files into a directory, which is made if it is not there."""
        folder = path_of("directory", directory)
        folder.mkdir(parents=True, exist_ok=True)
        write_file_atomically(folder / WEIGHTS_FILE, self.weights)
        write_file_atomically(folder / CONFIG_FILE, self.config_json.encode())

    @classmethod
    def load(cls, directory: str | Path) -> Adapter:
        """Read both files of a directory that `save` or PEFT wrote.

        Raises
        ------
        CheckpointError, ModelError
            A file is damaged, or says what is not supported.
        """
        folder = path_of("directory", directory)
        data, _ = load_bytes(folder / WEIGHTS_FILE, Limits(), "adapter", CheckpointError)
        return cls.from_bytes(bytes(data[0 : len(data)]), (folder / CONFIG_FILE).read_bytes())

    @classmethod
    def from_bytes(cls, weights: bytes, config: str | bytes | Mapping[str, Any]) -> Adapter:
        """An adapter from the contents of `adapter_model.safetensors` and `adapter_config.json`.

        Parameters
        ----------
        weights : bytes
            The contents of `adapter_model.safetensors`.
        config : str, bytes or dict
            Those of `adapter_config.json`.
        """
        settings = cls.parse_config(config)
        tensors = read_safetensors(instance_of(bytes, "weights", weights))
        strange = [name for name in tensors if not name.startswith(PREFIX)]
        if strange:
            raise CheckpointError(f"The adapter has {strange[0]!r}; keys of PEFT start with {PREFIX!r}.")
        named = {n.removeprefix(PREFIX): t.renamed(n.removeprefix(PREFIX)) for n, t in tensors.items()}
        return cls(named, settings)

    @staticmethod
    def parse_config(config: str | bytes | Mapping[str, Any]) -> LoraConfig:
        """The settings that the contents of an `adapter_config.json` say.

        Parameters
        ----------
        config : str, bytes or dict
            The contents.

        Raises
        ------
        CheckpointError, ModelError
            They are no JSON, or say what is not supported.
        """
        if isinstance(config, (str, bytes)):
            try:
                config = json.loads(config)
            except (ValueError, RecursionError) as error:
                raise CheckpointError(f"{CONFIG_FILE} is not JSON: {error}") from error
        if not isinstance(config, Mapping):
            raise CheckpointError(f"{CONFIG_FILE} is not an object.")
        return LoraConfig.from_peft(config)
