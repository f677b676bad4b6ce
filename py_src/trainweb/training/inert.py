"""Options of onnxruntime that change no number here: the one table of both languages.

They are accepted, with one warning for all of a session. Options that would change numbers, or promise more than is
done, are refused. `scripts/session_description.py` gives the table to TypeScript.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainweb import messages
from trainweb.arguments import warn
from trainweb.errors import InvalidValueError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Inert:
    """An option that changes nothing."""

    page: str
    """Its name in a page; empty where onnxruntime-web does not have it."""
    known: tuple[Any, ...]
    """The values that onnxruntime takes; empty: all counts."""
    as_is: tuple[Any, ...]
    """Values that describe what is done anyway, of which nobody need be warned."""
    page_as_is: tuple[Any, ...]
    """The same in a page."""
    why: str
    """Why it changes nothing."""


BOTH = (False, True)
INERT: dict[str, Inert] = {
    "inter_op_num_threads": Inert("interOpNumThreads", (), (0, 1), (0, 1), "instructions run one after the other"),
    "execution_mode": Inert("executionMode", (0, 1), (0,), ("sequential",), "instructions run one after the other"),
    "execution_order": Inert("", (0, 1), (0,), (), "the compiler orders the instructions"),
    "graph_optimization_level": Inert(
        "graphOptimizationLevel", (0, 1, 2, 3, 99), (99,), ("all",), "every plan is optimized"
    ),
    "enable_cpu_mem_arena": Inert("enableCpuMemArena", BOTH, (True,), (True,), "the workspace of a plan is one arena"),
    "enable_mem_pattern": Inert("enableMemPattern", BOTH, (True,), (True,), "the workspace is planned ahead"),
    "enable_mem_reuse": Inert("", BOTH, (True,), (), "the workspace is planned ahead"),
}
"""By their names in Python."""

OTHER_BACKENDS = "it is for other backends"
ON_THE_CPU = "everything is computed on the CPU"
DEVICE_CHOOSES = "the option device chooses: 'webgpu' trains on the GPU"
"""In pages."""

MODEL_FORMAT = "session.load_model_format"
MODEL_FORMATS = ("ONNX", "ORT")
"""Both are read: the first bytes of a file tell which it is."""
ENTRIES_AS_IS = (("session.disable_prepacking", "1"), *((MODEL_FORMAT, name) for name in MODEL_FORMATS))
"""Entries of a session's configuration that describe what is done anyway."""
ENTRIES_REFUSED = {
    "session.disable_prepacking": ("0", "Prepacking is not supported for training scenarios."),
    "session.set_denormal_as_zero": ("1", "Denormal numbers stay as they are."),
    "session.disable_cpu_ep_fallback": ("1", "Everything is computed on the CPU."),
    "optimization.enable_gelu_approximation": ("1", "Gelu is computed without an approximation."),
}
"""Entries that would change numbers, or promise what is not done: the value, and why."""


def check_entry(key: str, value: str) -> None:
    """Raise unless an entry of a session's configuration can be accepted.

    UnsupportedError: it would change numbers, or promise what is not done. InvalidValueError: the format is neither of
    `MODEL_FORMATS`.
    """
    if key == MODEL_FORMAT and value not in MODEL_FORMATS:
        raise InvalidValueError(f"{key!r} must be {' or '.join(MODEL_FORMATS)}, got {value!r}.")
    refused, why = ENTRIES_REFUSED.get(key, (None, ""))
    if value == refused:
        raise UnsupportedError(f"The entry {key!r} with the value {value!r} is not supported: {why}")


def check_value(name: str, value: object) -> None:
    """Raise InvalidValueError unless onnxruntime knows this value of an option in `INERT`."""
    known = INERT[name].known
    if known and (not isinstance(value, int) or value not in known):
        raise InvalidValueError(f"{name} is {value!r}; it must be one of {', '.join(map(str, known))}.")


def without_effect(options: Any, entries: Mapping[str, str]) -> list[str]:
    """The options among these that change nothing, each with the reason."""
    texts = [
        (name, value, option.why)
        for name, option in INERT.items()
        if (value := getattr(options, name)) not in option.as_is
    ]
    texts += [(key, value, OTHER_BACKENDS) for key, value in entries.items() if (key, value) not in ENTRIES_AS_IS]
    return [f"{name}={value!r} ({why})" for name, value, why in texts]


def warn_without_effect(options: Iterable[str]) -> None:
    """Warn of options that change nothing, if there are any."""
    text = ", ".join(options)
    if text:
        warn(str(messages.NO_EFFECT(options=text)))
