"""Hostile things in the place of every argument of every public call: errors of ours or TypeErrors that name it."""

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainweb
from trainweb.errors import TrainwebError

from .calls import CALLS, NOT_SWEPT

HOSTILE: dict[str, Any] = {
    "None": None,
    "5": 5,
    "-1": -1,
    "2**31": 2**31,
    "2**70": 2**70,
    "1.5": 1.5,
    "nan": float("nan"),
    "True": True,
    "text": "no such thing",
    "nul": "a\0b",
    "bytes": b"\xff\x00",
    "list": [],
    "list of None": [None],
    "ragged list": [[1], [1, 2]],
    "dict": {},
    "dict of None": {"x": None},
    "object": object(),
    "type": int,
    "array of objects": np.array(["a"], object),
}
ENDLESS = {("profile", "runs"), ("Trainer.fit", "epochs")}
"""Where a large number means what it says."""
OTHER_WORDS = {
    "source": "checkpoint|data|column|run option|session option",
    "path_or_bytes": "model",
    "clip_grad_norm": "max_norm",
    "clip_grad_value": "max_value",
    "lr": "learning_rate",
    "choice": "optimizer",
    "given": "schedule",
    "sess_options": "session option",
    "session_options": "session option",
    "run_options": "run option",
    "output_names": "output name",
    "graph_output_names": "graph output",
    "device_type": "device",
    "device_id": "device",
    "inference_model_uri": "path",
    "train_model_uri": "train_model",
    "eval_model_uri": "eval_model",
    "optimizer_uri": "optimizer.model",
    "input_feed": "feeds",
    "indices": "data has no",
    "options": "run option|session option",
    "name": "name of a checkpoint|no checkpoint",
    "to": "name of a checkpoint",
    "contents": "snapshot|checkpoint|safetensors",
    "config": "adapter_config",
    "numpy_obj": "element type",
    "np_arr": "OrtValue",
    "values": "adapter_config|initializer",
    "names": "initializer",
    "key": "configuration",
    "providers": "provider",
    "data": "row",
    "y_node_arg_names": "output",
    "weights": "safetensors|npz|file",
    "public_keys": "keys of",
    "members": "masked",
    "masked": "no update arrived",
    "columns": "data has no",
    "age": "loss",
    "kind_weight": "sample_weight",
    "age_weight": "sample_weight",
}
"""What errors call an argument, besides its name."""
TENSORS = r"'(x|points|labels|fc1\.bias|onnx::loss::2)'|fc1\.bias|'a'|prepacking"
"""What is named where one of several in an argument is wrong."""


def names_it(argument: str, value: Any, message: str) -> bool:
    words = [argument, argument.replace("_", " "), OTHER_WORDS.get(argument, argument), TENSORS]
    if isinstance(value, str):
        words.append(re.escape(value))
    # A name that is not found is named itself.
    asked = re.search(
        r"(parameter|property|session has no|node arg|configuration|initializer) ", message, re.IGNORECASE
    )
    return asked is not None or any(re.search(word, message, re.IGNORECASE) for word in words)


def release(made: Any) -> None:
    """Give back what a session holds."""
    if hasattr(made, "release"):
        made.release()


@pytest.mark.filterwarnings("ignore")
def test_hostile_arguments(label: str, made: Any, tmp_path: Path) -> None:
    call, valid = made
    for argument in valid:
        for name, value in HOSTILE.items():
            if name.startswith("2**") and (label, argument) in ENDLESS:
                continue
            where = f"{label}({argument}={name})"
            try:
                release(call(**{**valid, argument: value}))
            except OSError as error:
                # Of the file system, which names the path.
                assert str(value) in str(error), f"{where}: {error!r}"
            except Exception as error:
                assert isinstance(error, (TrainwebError, TypeError)), f"{where}: {error!r}"
                assert names_it(argument, value, str(error)), f"{where}: {error!r}"
    # Nothing of it did harm.
    if not CALLS[label].is_refused:
        release(CALLS[label].make(tmp_path)(**CALLS[label].valid(tmp_path)))


def flags(call: Any, valid: Any) -> set[str]:
    """Arguments that are true or false, by their values or their types."""
    typed = {name for name, p in inspect.signature(call).parameters.items() if p.annotation == "bool"}
    return typed | {name for name, value in valid.items() if isinstance(value, bool)}


@pytest.mark.filterwarnings("ignore")
def test_a_text_is_no_flag(made: Any) -> None:
    call, valid = made
    for argument in flags(call, valid):
        with pytest.raises((TypeError, TrainwebError), match=argument):
            call(**{**valid, argument: "false"})


def public_calls() -> set[str]:
    """Functions, classes and methods that take arguments, of the modules that users import."""
    found = set()
    for module in (trainweb, trainweb.api, trainweb.artifacts, trainweb.data, trainweb.lora, trainweb.federated):
        for name in dir(module):
            value = getattr(module, name)
            if inspect.isfunction(value):
                found.add(name)
            elif inspect.isclass(value) and value.__module__.startswith("trainweb"):
                found |= {name, *(f"{name}.{method}" for method in methods(value))}
    return found


def methods(cls: type) -> set[str]:
    """Names of the callables that trainweb defines and that take arguments."""
    defined = {n for base in cls.__mro__ if base.__module__.startswith("trainweb") for n in vars(base)}
    found = {
        n: f for n, f in inspect.getmembers(cls) if n in defined and (inspect.isfunction(f) or inspect.ismethod(f))
    }
    return {n for n, f in found.items() if not n.startswith("_") and set(inspect.signature(f).parameters) - {"self"}}


def test_every_public_call_is_swept() -> None:
    swept = {re.sub(r"^(api|lora|federated)\.|\(\)$", "", label) for label in CALLS}
    swept |= {f"TrainingSession.{label}" for label in swept}
    missing = {call for call in public_calls() if call not in swept and call not in NOT_SWEPT}
    assert missing == set()
