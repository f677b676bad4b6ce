"""Behaviours of a session, and the error of each fault: one table for Python, Python in Pyodide and the page.

Nothing here needs numpy: the file is shipped to Pyodide as it is. Each behaviour is a session and a list of calls; the
outcome of a call is its value, rounded, or the class and text of its error.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

ITEM = {"float32": "f", "float64": "d", "int64": "q", "int32": "i"}
X, LABELS = ["float32", [8, 10], {}], ["int64", [8], {}]
GOOD = {"x": X, "labels": LABELS}
NOMINAL = "nominal_checkpoint"
FILES = ("training_model.onnx", "checkpoint", "eval_model.onnx", "optimizer_model.onnx")


def feeds(x: Any = X, labels: Any = LABELS, **more: Any) -> dict[str, Any]:
    """Feeds: dtype, dims, and elements that differ from the pattern, by their number; None leaves one out."""
    return {n: v for n, v in {"x": x, "labels": labels, **more}.items() if v is not None}


FEED_FAULTS: dict[str, dict[str, Any]] = {
    "missing": feeds(labels=None),
    "missing and wrong dtype": feeds(x=["float64", [8, 10], {}], labels=None),
    "unknown": feeds(more=X),
    "unknown and missing": feeds(labels=None, more=X),
    "unknown and wrong rank": feeds(x=["float32", [80], {}], more=X),
    "dtype": feeds(x=["float64", [8, 10], {}]),
    "dtype of labels": feeds(labels=["int32", [8], {}]),
    "both dtypes": feeds(x=["int64", [8, 10], {}], labels=["float32", [8], {}]),
    "dtype and rank": feeds(x=["float64", [80], {}]),
    "dtype of the second, dim of the first": feeds(x=["float32", [8, 9], {}], labels=["int32", [8], {}]),
    "rank": feeds(labels=["int64", [2, 4], {}]),
    "both ranks": feeds(x=["float32", [80], {}], labels=["int64", [2, 4], {}]),
    "dim": feeds(x=["float32", [8, 9], {}]),
    "dim and symbol": feeds(x=["float32", [8, 9], {}], labels=["int64", [3], {}]),
    "symbol": feeds(labels=["int64", [3], {}]),
    "empty": feeds(x=["float32", [0, 10], {}], labels=["int64", [0], {}]),
    "empty and dtype of the second": feeds(x=["float32", [0, 10], {}], labels=["int32", [0], {}]),
    "empty and symbol": feeds(x=["float32", [0, 10], {}]),
    "symbol and empty": feeds(labels=["int64", [0], {}]),
    "empty and dim": feeds(x=["float32", [0, 9], {}], labels=["int64", [0], {}]),
    "label": feeds(labels=["int64", [8], {"5": 99}]),
    "negative label": feeds(labels=["int64", [8], {"2": -3}]),
    "two labels": feeds(labels=["int64", [8], {"6": 5, "3": 7}]),
}
TRAIN, EVAL = ["train", GOOD, None], ["eval", GOOD, None]
STEP = [TRAIN, ["optimizer"], ["reset"]]
SHAPES = {"labels": [8], "x": [8, 10]}
SHAPE_FAULTS: list[dict[str, Any]] = [
    {"x": [8, 10]},
    {**SHAPES, "more": [1]},
    {"x": [8, 10], "y": [8]},
    {"x": [8, 9], "labels": [8]},
    {"x": [80], "labels": [8]},
    {"x": [8, 10], "labels": [3]},
    {"x": [0, 10], "labels": [0]},
    {"x": [-1, 10], "labels": [8]},
    {"x": [8, 10], "labels": [1.5]},
    {"x": 8, "labels": [8]},
]
FAR = {str(k): 3e38 * (-1) ** (k // 3) for k in range(10, 20)}
"""Elements of the second row that no product survives."""
OVERFLOWS = feeds(x=["float32", [8, 10], FAR])
ROWS = {"x": ["float32", [24, 10], {}], "labels": ["int64", [24], {}]}
BAD_ROWS = {**ROWS, "x": ["float32", [24, 10], {str(int(k) + 70): value for k, value in FAR.items()}]}
"""The second of three batches overflows."""
NO_RATES = (float("nan"), float("inf"), float("-inf"), -0.5, 3.5e38)

BEHAVIOURS: list[tuple[str, str, list[Any]]] = [
    *((f"train with a wrong feed: {name}", "all", [["train", f, None], *STEP]) for name, f in FEED_FAULTS.items()),
    *((f"eval with a wrong feed: {name}", "all", [["eval", f, None]]) for name, f in FEED_FAULTS.items()),
    ("steps", "all", [["set_rate", 0.25], *STEP, *STEP, TRAIN, TRAIN, ["optimizer"], EVAL, ["get_all", False]]),
    (
        "a schedule",
        "all",
        [["schedule", 2, 6, 0.5], ["rate"], *STEP, ["scheduler"], ["rate"], *STEP, ["scheduler"], ["rate"]],
    ),
    ("no schedule", "all", [["scheduler"], ["rate"]]),
    (
        "numbers that are no rates",
        "all",
        [
            *(["set_rate", value] for value in NO_RATES),
            *(["schedule", 1, 6, value] for value in NO_RATES),
            ["rate"],
            ["set_rate", 0],
            ["rate"],
            ["set_rate", 2.5e38],
        ],
    ),
    (
        "numbers that are no schedules",
        "all",
        [["schedule", *counts, 0.5] for counts in ((-1, 6), (1.5, 6), (1, -6), (1, 0.25), (7, 6), (6, 6), (0, 0))]
        + [["rate"]],
    ),
    ("the seed that nobody set", "all", [["seed"]]),
    *(
        (
            f"a {kind} profile",
            "all",
            [
                STEP[0],
                *([["reset"]] if kind == "reset" else []),
                *(["profile", kind == "eval", GOOD, runs] for runs in (0, -1, 1.5)),
                *(["profile", kind == "eval", f, 2] for f in (FEED_FAULTS["label"], FEED_FAULTS["dim"])),
                ["profile", kind == "eval", GOOD, 2],
                ["optimizer"],
                EVAL,
            ],
        )
        for kind in ("train", "reset", "eval")
    ),
    (
        "explanations",
        "all",
        [
            ["explain", False, GOOD],
            TRAIN,
            ["explain", False, GOOD],
            ["explain", True, GOOD],
            *(["explain", is_eval, FEED_FAULTS[f]] for is_eval in (False, True) for f in ("empty", "missing", "dim")),
        ],
    ),
    (
        "plans made ahead",
        "all",
        [
            *(["prepare", shapes] for shapes in SHAPE_FAULTS),
            ["prepare", SHAPES],
            *STEP,
            EVAL,
            ["prepare", SHAPES],
            *STEP,
            ["get_all", False],
        ],
    ),
    ("plans made ahead, no eval model", "no eval", [["prepare", SHAPES], *STEP, EVAL]),
    ("plans made ahead, no optimizer model", "no optimizer", [["prepare", SHAPES], TRAIN, ["optimizer"], EVAL]),
    (
        "no eval model",
        "no eval",
        [EVAL, ["eval", FEED_FAULTS["dtype"], None], ["export", ["logits"]], ["explain", True, GOOD]],
    ),
    (
        "no optimizer model",
        "no optimizer",
        [["optimizer"], ["rate"], ["set_rate", 1.0], ["schedule", 1, 2, 0.5], ["scheduler"], TRAIN],
    ),
    (
        "a nominal state",
        "nominal",
        [
            TRAIN,
            ["train", FEED_FAULTS["both dtypes"], None],
            EVAL,
            ["explain", False, FEED_FAULTS["dim"]],
            ["prepare", SHAPES],
            ["optimizer"],
            ["get_all", False],
            ["get", "fc1.bias"],
            ["get", "nope"],
            ["set", "fc1.bias", ["float32", [16], {}]],
            ["set", "nope", ["float32", [16], {}]],
            ["save", False],
            ["export", ["logits"]],
            ["size", True],
            ["load", 432, True],
            ["load", 1, True],
            ["load", 1, False],
            ["load", 432, False],
            TRAIN,
        ],
    ),
    (
        "parameters",
        "all",
        [
            ["size", True],
            ["size", False],
            ["get", "fc1.bias"],
            ["type", "fc1.bias"],
            ["type", "nope"],
            ["get", "nope"],
            ["set", "fc1.bias", ["float32", [16], {}]],
            ["get", "fc1.bias"],
            ["set", "fc1.bias", ["int64", [16], {}]],
            ["set", "fc1.bias", ["float32", [4, 4], {}]],
            ["set", "fc1.bias", ["int64", [4, 4], {}]],
            ["set", "nope", ["int64", [4], {}]],
            ["load", 2, True],
            ["load", 0, False],
        ],
    ),
    (
        "properties",
        "all",
        [
            ["get_property", "epoch"],
            ["add_property", "epoch", 3],
            ["get_property", "epoch"],
            ["add_property", "rate", 0.1],
            ["get_property", "rate"],
            ["add_property", "name", "a 'quoted' \u00e9\n"],
            ["get_property", "name"],
            ["get_property", "it's"],
            *(["kind", name] for name in ("epoch", "rate", "name", "it's")),
            *(["add_power", "epoch", *power] for power in ((1, 63), (-1, 63), (1, 64), (-1, 62), (1, 1200))),
            ["kind", "epoch"],
            ["save", True],
        ],
    ),
    (
        "debug calls",
        "all",
        [
            ["norms"],
            TRAIN,
            ["norms"],
            ["dead", [GOOD]],
            ["dead", []],
            ["dead", [GOOD, FEED_FAULTS["dim"]]],
            ["rates", GOOD, 10],
            ["norms"],
            ["rates", GOOD, 0],
            ["rates", FEED_FAULTS["missing"], 10],
            ["optimizer"],
            ["get_all", False],
        ],
    ),
    *(
        (f"debug calls, {kind}", kind, [["norms"], ["dead", [GOOD]], ["rates", GOOD, 10]])
        for kind in ("no eval", "no optimizer", "nominal")
    ),
    (
        "checked steps",
        "checked",
        [
            ["train", OVERFLOWS, None],
            ["eval", OVERFLOWS, None],
            *STEP,
            ["fit", BAD_ROWS, None],
            ["get_all", False],
        ],
    ),
    *(
        (
            f"a fit that goes wrong, {action}, {kind}",
            kind,
            [["set_rate", 0.01], ["fit", BAD_ROWS, action], ["get_all", False], ["fit", ROWS, action], *STEP],
        )
        for action in (None, "stop", "skip", "restore")
        for kind in ("all", "checked")
    ),
    (
        "names and metadata",
        "all",
        [
            *(["parameter_names", only] for only in (True, False)),
            *([f"{kind}_metadata", training] for kind in ("input", "output") for training in (True, False)),
            ["property_names"],
            ["delete_property", "epoch"],
            ["add_property", "epoch", 3],
            ["property_names"],
            ["delete_property", "epoch"],
            ["property_names"],
        ],
    ),
    (
        "gradients and moments",
        "all",
        [
            *[["get_gradient", "fc1.bias"], ["get_moments", "fc1.bias"], ["step_count"]] * 2,
            TRAIN,
            ["get_gradient", "fc1.bias"],
            ["optimizer"],
            ["step_count"],
            ["get_moments", "fc1.bias"],
            ["get_gradient", "nope"],
            ["get_moments", "nope"],
        ],
    ),
    *(
        (
            f"gradients and moments, {kind}",
            kind,
            [["get_gradient", "fc1.bias"], ["get_moments", "fc1.bias"], ["step_count"]],
        )
        for kind in ("no optimizer", "nominal")
    ),
    (
        "kernel memory",
        "all",
        [
            ["memory", ["parameters", "gradients", "moments"]],
            *STEP,
            ["memory", ["parameters", "gradients", "moments", "arena"]],
        ],
    ),
    (
        "files of weights",
        "all",
        [
            *(["export_weights", form, ema] for form in ("safetensors", "npz", "csv") for ema in (False, True)),
            ["load_weights", []],
            ["load_weights", [8, 0, 0, 0, 0, 0, 0, 0]],
            *STEP,
            ["reload_weights", "safetensors"],
            ["reload_weights", "npz"],
        ],
    ),
    ("averages that are not kept", "all", [["get_all", True, True], ["export", ["logits"], True]]),
    ("files", "all", [*STEP, ["save", False], ["save", True], ["export", ["nope"]], ["export", []], ["export", [""]]]),
    (
        "after release",
        "all",
        [
            ["release"],
            TRAIN,
            ["train", FEED_FAULTS["both dtypes"], None],
            EVAL,
            ["explain", False, GOOD],
            ["prepare", SHAPES],
            ["optimizer"],
            ["reset"],
            ["rate"],
            ["size", True],
            ["get", "nope"],
            ["save", False],
            ["get_property", "x"],
            ["add_property", "x", 1],
            ["get_all", False],
            ["load", 432, True],
            ["set_rate", 1],
            ["schedule", 1, 2, 0.1],
            ["scheduler"],
            ["export", ["logits"]],
            ["set", "fc1.bias", ["float32", [16], {}]],
            ["type", "fc1.bias"],
            ["profile", False, GOOD, 2],
            ["release"],
        ],
    ),
]
CALLED = {
    "norms": "gradient_norms",
    "dead": "dead_units",
    "reset": "lazy_reset_grad",
    "rate": "get_learning_rate",
    "set_rate": "set_learning_rate",
    "schedule": "register_linear_lr_scheduler",
    "size": "get_parameters_size",
    "get_all": "get_contiguous_parameters",
    "load": "load_parameters_buffer",
    "get": "get_parameter",
    "set": "update_parameter",
    "type": "get_parameter_type_and_shape",
    "kind": "get_property_kind",
    "seed": "get_seed",
    "save": "save_checkpoint",
    "export": "export_model_for_inferencing",
}
"""Session calls by the names that behaviours have for them, where these are shorter."""
ELSEWHERE = {
    "adapter": "tests/browser/test_js_lora.py",
    "load_checkpoint": "tests/browser/test_js_lora.py",
    "load_adapter": "tests/browser/test_js_lora.py",
    "merge_adapter": "tests/browser/test_js_lora.py",
    "artifact": "tests/browser/test_js_from_model.py",
    "keep_state": "rates",
    "go_back": "rates",
    "set_seed": "tests/browser/test_js_session.py",
}
"""Calls that files of artifacts have no use for, and the tests or the behaviour of theirs."""
SESSIONS = {
    "all": FILES,
    "no eval": (FILES[0], FILES[1], None, FILES[3]),
    "no optimizer": (FILES[0], FILES[1], FILES[2], None),
    "nominal": (FILES[0], NOMINAL, FILES[2], FILES[3]),
    "checked": FILES,
}


def values(spec: list[Any]) -> array[Any]:
    """Elements of a tensor: sines, or small labels, except for the given ones."""
    from math import prod, sin

    dtype, dims, special = spec
    found = array(ITEM[dtype], [sin(k) if dtype[0] == "f" else k % 3 for k in range(prod(dims))])
    for k, value in special.items():
        found[int(k)] = value
    return found


def rounded(data: Any) -> list[float]:
    """Numbers that two builds of the kernels agree on."""
    return [float(f"{value:.3g}") for value in array("f", bytes(data))]


def open_python(folder: Path, kind: str) -> Any:
    """A `TrainingSession`."""
    from trainweb import TrainingSession
    from trainweb.training.state import CheckpointState

    train, checkpoint, evaluation, optimizer = SESSIONS[kind]
    read = [name and (folder / name).read_bytes() for name in (train, evaluation, optimizer)]
    data = (folder / "checkpoint").read_bytes()
    state = CheckpointState.load_checkpoint(nominal(data) if checkpoint == NOMINAL else data)
    return TrainingSession(state, *read, {"reproducible": True, "debug": {"check_numerics": kind == "checked"}})


def nominal(checkpoint: bytes) -> bytes:
    """The checkpoint with nothing but the names of the parameters."""
    from trainweb.checkpoint import read_checkpoint, write_checkpoint

    content = read_checkpoint(checkpoint)
    content.is_nominal = True
    return write_checkpoint(content)


def arrays(given: dict[str, Any]) -> dict[str, Any]:
    """Feeds as numpy has them."""
    import numpy as np

    return {name: np.frombuffer(values(spec), spec[0]).reshape(spec[1]) for name, spec in given.items()}


def found_rates(session: Any, given: dict[str, Any], steps: Any) -> list[Any]:
    """Rates and losses of the finder, which leaves the session as it was."""
    found = session.find_learning_rate(arrays(given), steps=steps, batch_size=8)
    return [[float(f"{value:.3g}") for value in values] for values in (found.rates, found.losses)]


def fitted(session: Any, given: dict[str, Any], action: Any) -> list[Any]:
    """How a fit ends, its losses and the steps of its epochs."""
    from trainweb import Trainer

    options = {"epochs": 2, "batch_size": 8, "shuffle": False, "on_nan": action, "progress": False}
    history = Trainer(session).fit(arrays(given), **options)
    losses = [None if loss != loss else float(f"{loss:.3g}") for loss in history.losses]
    return [history.ended, losses, [epoch.steps for epoch in history.epochs]]


def three_digits(numbers: dict[str, float]) -> list[list[Any]]:
    return [[name, float(f"{value:.3g}")] for name, value in numbers.items()]


def perform(session: Any, core: Any, call: list[Any]) -> Any:
    """One call of a behaviour on a session, or what it stands on."""
    from trainweb.ir.shapes import TensorType
    from trainweb.model.graph import Tensor
    from trainweb.training.step_kind import StepKind

    def tensor(name: str, spec: list[Any]) -> Any:
        return Tensor(name, spec[0], tuple(spec[1]), values(spec).tobytes())

    def step(kind: str, given: dict[str, Any], fetches: Any) -> list[float]:
        results = core.step(StepKind(kind), {n: tensor(n, spec) for n, spec in given.items()}, fetches)
        return rounded(next(iter(results.values())).data)

    def profile(kind: str, given: dict[str, Any], runs: Any) -> int:
        plan, times = core.profile(StepKind(kind), {n: tensor(n, spec) for n, spec in given.items()}, runs)
        assert len(plan.nodes) == len(times)
        return len(times)

    def explain(kind: str, given: dict[str, Any]) -> str:
        text: str = core.explain(StepKind(kind), {n: TensorType(spec[0], tuple(spec[1])) for n, spec in given.items()})
        return text

    def dead(batches: list[Any]) -> list[Any]:
        fed = [{n: tensor(n, spec) for n, spec in given.items()} for given in batches]
        return [[found.tensor, found.node, found.axis, found.units, found.dead] for found in core.dead_units(fed)]

    def gradient(name: str) -> list[float]:
        return rounded(core.get_gradient(name).data)

    def reload(form: str) -> list[float]:
        """The parameters after other ones were loaded and these again."""
        weights = core.export_weights(form, False)
        core.load_parameters_buffer(bytes(4 * core.get_parameters_size(False)), False)
        core.load_weights(weights, True)
        return rounded(core.get_contiguous_parameters(False, False).data)

    def metadata(found: list[Any]) -> list[Any]:
        return [[v.name, v.dtype, list(v.shape)] for v in found]

    calls: dict[str, Callable[..., Any]] = {
        "parameter_names": lambda only: list(core.parameter_names(only)),
        "input_metadata": lambda training: metadata(core.input_metadata(training)),
        "output_metadata": lambda training: metadata(core.output_metadata(training)),
        "property_names": lambda: list(core.property_names()),
        "delete_property": core.delete_property,
        "get_gradient": gradient,
        "get_moments": lambda name: [[n, rounded(t.data)] for n, t in sorted(core.get_moments(name).items())],
        "step_count": core.step_count,
        "memory": lambda names: [getattr(core.memory(), name) for name in names],
        "export_weights": lambda form, ema: len(core.export_weights(form, ema)),
        "load_weights": lambda data: core.load_weights(bytes(data), True),
        "reload_weights": reload,
        "norms": lambda: three_digits(core.gradient_norms()),
        "dead": dead,
        "rates": lambda given, steps: found_rates(session, given, steps),
        "fit": lambda given, action: fitted(session, given, action),
        "train": lambda given, fetches: step("train", given, fetches),
        "eval": lambda given, fetches: step("eval", given, fetches),
        "profile": lambda is_eval, given, runs: profile("eval" if is_eval else "train", given, runs),
        "prepare": core.prepare,
        "explain": lambda is_eval, given: explain("eval" if is_eval else "train", given),
        "seed": core.get_seed,
        "optimizer": core.optimizer_step,
        "scheduler": core.scheduler_step,
        "reset": core.lazy_reset_grad,
        "rate": lambda: float(f"{core.get_learning_rate():.5g}"),
        "set_rate": core.set_learning_rate,
        "schedule": core.register_linear_lr_scheduler,
        "size": core.get_parameters_size,
        "get_all": lambda only, ema=False: rounded(core.get_contiguous_parameters(only, ema).data),
        "load": lambda n, only: core.load_parameters_buffer(bytes(4 * n), only),
        "get": lambda name: rounded(core.get_parameter(name).data),
        "set": lambda name, spec: core.update_parameter(tensor(name, spec)),
        "type": lambda name: [
            core.get_parameter_type_and_shape(name)[0],
            list(core.get_parameter_type_and_shape(name)[1]),
        ],
        "add_property": core.add_property,
        "add_power": lambda name, sign, power: core.add_property(name, sign * 2**power),
        "kind": core.get_property_kind,
        "get_property": core.get_property,
        "save": lambda include: len(core.save_checkpoint(include)),
        "export": lambda names, ema=False: len(core.export_model_for_inferencing(names, ema)),
        "release": core.release,
    }
    return calls[call[0]](*call[1:])


def run_python(folder: str) -> list[list[Any]]:
    """Outcomes of every behaviour, in order."""
    found = []
    for _, kind, calls in BEHAVIOURS:
        session = open_python(Path(folder), kind)
        core = session._core
        outcomes: list[Any] = []
        for call in calls:
            try:
                outcomes.append(perform(session, core, call))
            except Exception as e:
                outcomes.append({"error": type(e).__name__, "message": str(e)})
        session.release()
        found.append(outcomes)
    return found


CLASSES = dict.fromkeys(("ValueError", "KeyError", "InvalidValueError", "UnknownNameError"), "RangeError")
"""Python's own exceptions as the page has them."""
OPTIONS = re.compile("checkNumerics|clipGradNorm|ignoreIndex")
"""Names of options in texts, which Python spells otherwise."""
ADVICE = re.compile(r"(Convert it with|Make the tensor with) .*")


def common(outcome: Any) -> Any:
    """An outcome without what Python and the page say differently on purpose: advice on code, spelling of arguments."""
    if isinstance(outcome, list):
        return [common(part) for part in outcome]
    if isinstance(outcome, str):
        return OPTIONS.sub(lambda m: snake(m[0]), outcome)
    if not isinstance(outcome, dict):
        return outcome
    message = ADVICE.sub("", outcome["message"])
    message = re.sub(r"^(\w+) is (?=.*; it must be)", lambda m: f"{snake(m[1])} is ", message)
    message = OPTIONS.sub(lambda m: snake(m[0]), message)
    message = re.sub(r"'(\w+)' must be", lambda m: f"'{snake(m[1])}' must be", message)
    message = re.sub(r"\b(loadParametersBuffer|getParametersSize)\b", lambda m: snake(m[1]), message)
    return {"error": CLASSES.get(outcome["error"], outcome["error"]), "message": message}


def snake(name: str) -> str:
    """The name of an argument as Python spells it."""
    return re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", name)
