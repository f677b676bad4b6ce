"""The lines of code that train a checked model, in both languages, for somebody to copy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any

from trainweb.onnxblock.terms import is_by_output
from trainweb.spelling import page_name

ARRAYS = {
    "bool": "Uint8Array",
    "bfloat16": "Uint16Array",
    "float16": "Uint16Array",
    "float32": "Float32Array",
    "float64": "Float64Array",
    "int8": "Int8Array",
    "int16": "Int16Array",
    "int32": "Int32Array",
    "int64": "BigInt64Array",
    "uint8": "Uint8Array",
    "uint16": "Uint16Array",
    "uint32": "Uint32Array",
    "uint64": "BigUint64Array",
}
"""Typed arrays of a page by dtype."""
LOOP_IN_JAVASCRIPT = [
    "for (let step = 1; step <= 100; step++) {",
    "  const results = await session.runTrainStep(feeds);",
    "  console.log(step, results[session.trainingOutputNames[0]].data[0]);",
    "  await session.runOptimizerStep();",
    "  await session.lazyResetGrad();",
    "}",
]
LOOP_IN_PYTHON = [
    "for step in range(1, 101):",
    "    results = session.train_step(feeds)",
    "    print(step, results[session.output_names()[0]])",
    "    session.optimizer_step()",
    "    session.lazy_reset_grad()",
]
"""For feeds that have no rows in common."""
IN_PAGE = {
    "loss": "loss",
    "optimizer": "optimizer",
    "learning_rate": "learningRate",
    "requires_grad": "requiresGrad",
    "frozen_params": "frozenParams",
    "loss_input_names": "lossInputNames",
    "stop_gradient": "stopGradient",
    "batch_norm": "batchNorm",
    "dims": "dims",
    "clip_grad_norm": "clipGradNorm",
    "clip_grad_value": "clipGradValue",
    "head": "head",
    "sample_weight": "sampleWeight",
    "lora": "lora",
}
"""Arguments of `from_model` that the lines may need, as a page spells them."""


@dataclass(slots=True)
class Feed:
    """An input of a train step.

    Attributes
    ----------
    name : str
        Its name in the train step.
    dtype : str
        Type of the elements.
    shape : list of int
        A size for each dim.
    """

    name: str
    dtype: str
    shape: list[int]


def example_code(
    arguments: Mapping[str, Any], feeds: Sequence[Feed], outputs: Sequence[str], external_files: Sequence[str]
) -> dict[str, str]:
    """Code by language, which trains the file "model.onnx" on zeros, or nothing if an argument is no plain value.

    `arguments` go to `from_model`. A page must name `external_files`, which Python finds. The code exports
    `outputs`.
    """
    settings = {name: _name_of(value) for name, value in arguments.items()}
    settings = {name: value for name, value in settings.items() if value not in (None, [], ()) and name in IN_PAGE}
    settings.setdefault("loss", None)
    settings.setdefault("optimizer", "AdamW")
    if not all(_is_plain(value) for value in settings.values()):
        return {}
    weights = _paths(arguments.get("weights"))
    if weights is None:
        return {}
    javascript = _javascript(settings, feeds, outputs, {"externalData": external_files, "weights": weights})
    beside = {"weights": weights} if weights else {}
    return {"javascript": javascript, "python": _python({**settings, **beside}, feeds, outputs)}


def _paths(weights: Any) -> list[str] | None:
    """Paths of files of weights; None where one is bytes."""
    files = [] if weights is None else weights if isinstance(weights, (list, tuple)) else [weights]
    return [str(file) for file in files] if all(isinstance(file, (str, Path)) for file in files) else None


def _name_of(value: Any) -> Any:
    """The name of a loss or optimizer without settings; other values as they are."""
    if isinstance(value, Mapping) and list(value) == ["type"]:
        return value["type"]
    return value.name if isinstance(value, Enum) else value


def _is_plain(value: Any) -> bool:
    members = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else None
    return isinstance(value, (str, int, float, type(None))) if members is None else all(map(_is_plain, members))


def _javascript(
    arguments: Mapping[str, Any], feeds: Sequence[Feed], outputs: Sequence[str], files: Mapping[str, Sequence[str]]
) -> str:
    named = ", ".join(f"{option}: {json.dumps(list(names))}" for option, names in files.items() if names)
    options = f", {{ {named} }}" if named else ""
    config = ", ".join(f"{IN_PAGE[name]}: {_in_javascript(name, value)}" for name, value in arguments.items())
    lines = [
        'import { Tensor, TrainingSession } from "trainweb";',
        "",
        f'const session = await TrainingSession.createFromModel("model.onnx", {{ {config} }}{options});',
        "const feeds = {  // your data in the place of zeros",
        *(f"  {json.dumps(feed.name)}: {_tensor(feed)}," for feed in feeds),
        "};",
        *(_fit_in_javascript(feeds) if _has_rows(feeds) else LOOP_IN_JAVASCRIPT),
        f"const trained = await session.exportModelForInferencing({json.dumps(list(outputs))});",
    ]
    return "\n".join(lines) + "\n"


def _has_rows(feeds: Sequence[Feed]) -> bool:
    """True if all feeds have the same first axis, so that `fit` can take them as rows."""
    is_exact = all(feed.dtype != "bfloat16" for feed in feeds)
    return is_exact and all(feed.shape[:1] == feeds[0].shape[:1] and feed.shape for feed in feeds)


def _fit_in_javascript(feeds: Sequence[Feed]) -> list[str]:
    return [
        f"const fit = session.fit(feeds, {{ epochs: 100, batchSize: {feeds[0].shape[0]} }});",
        "for await (const event of fit) {",
        '  if (event.type === "epoch") console.log(event.epoch, event.loss);',
        "}",
    ]


def _tensor(feed: Feed) -> str:
    dtype = "uint16" if feed.dtype == "bfloat16" else feed.dtype
    return f'new Tensor("{dtype}", new {ARRAYS[feed.dtype]}({prod(feed.shape)}), {list(feed.shape)})'


def _python(arguments: Mapping[str, Any], feeds: Sequence[Feed], outputs: Sequence[str]) -> str:
    config = ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())
    fit = "history = session.fit(feeds, epochs=100, batch_size={})"
    lines = [
        "import numpy as np",
        "import trainweb",
        "",
        f'session = trainweb.TrainingSession.from_model("model.onnx", {config})',
        "feeds = {  # your data in the place of zeros",
        *(f"    {json.dumps(feed.name)}: {_array(feed)}," for feed in feeds),
        "}",
        *([fit.format(feeds[0].shape[0]), 'print(history["loss"])'] if _has_rows(feeds) else LOOP_IN_PYTHON),
        f"trained = session.export_model_for_inferencing(graph_output_names={json.dumps(list(outputs))})",
    ]
    return "\n".join(lines) + "\n"


def _in_javascript(argument: str, value: Any) -> str:
    if isinstance(value, list) and argument == "loss":
        return f"[{', '.join(_in_javascript(argument, one) for one in value)}]"
    if not isinstance(value, Mapping) or argument == "dims":
        return json.dumps(value)
    if argument == "loss" and is_by_output(value):
        parts = [f"{json.dumps(output)}: {_in_javascript(argument, one)}" for output, one in value.items()]
    else:
        parts = [f"{page_name(name)}: {json.dumps(one)}" for name, one in value.items()]
    return f"{{ {', '.join(parts)} }}"


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)}: {_literal(one)}" for name, one in value.items()) + "}"
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value)


def _array(feed: Feed) -> str:
    shape = f"({', '.join(map(str, feed.shape))}{',' if len(feed.shape) == 1 else ''})"
    # numpy has no bfloat16 by itself: a list is converted.
    return f"np.zeros({shape}).tolist()" if feed.dtype == "bfloat16" else f'np.zeros({shape}, "{feed.dtype}")'
