"""Fits as data: one table, which Python and a page run with the same numbers, bytes and errors.

A fit is a kind of session and a list of calls. The outcome of a call is JSON; an error is its class, text and places.
Names are Python's: `camel` translates options for the page, `snake` texts of the page.
"""

import base64
import itertools
import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper
from tests.conformance.models import deep_mlp, make_model, normal
from tests.python import test_loss_counts as padded

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.data import Dataset
from trainweb.training.store import open_snapshot

BASE = Path(__file__).parents[1] / "golden" / "mlp" / "base.onnx"
CROSS_ENTROPY = {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "additional_output_names": ["logits"]}
IGNORING = {"type": "CrossEntropyLoss", "ignore_index": -100}


def masked() -> Any:
    """A model with a mask of minus infinity among its parameters."""
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "mask"], ["logits"])],
        {"x": ["batch", 10]},
        {"logits": ["batch", 3]},
        {"w": normal(10, 3), "mask": np.array([0, 0, -np.inf], np.float32)},
    )


def outputs() -> Any:
    """Scores of three kinds, and an age."""
    return make_model(
        [helper.make_node("MatMul", ["x", f"{name}.w"], [name]) for name in ("kind", "age")],
        {"x": ["batch", 10]},
        {"kind": ["batch", 3], "age": ["batch", 1]},
        {"kind.w": normal(10, 3), "age.w": normal(10, 1)},
    )


TERMS = {
    "kind": {"name": "CrossEntropyLoss", "weights": [1.0, 2.0, 1.0], "ignore_index": 2},
    "age": [{"name": "HuberLoss", "weight": 0.3}, "L1Loss"],
}
KINDS: dict[str, tuple[Callable[[], bytes], dict[str, Any]]] = {
    "mlp": (BASE.read_bytes, CROSS_ENTROPY),
    "ema": (BASE.read_bytes, CROSS_ENTROPY | {"ema": {"decay": 0.7, "warmup": True, "warmup_gamma": 3.0}}),
    "deep": (lambda: deep_mlp(10, 32, 32, 3).SerializeToString(), {"loss": "CrossEntropyLoss"}),
    "wide": (lambda: deep_mlp(40_000, 4, 3).SerializeToString(), {"loss": "CrossEntropyLoss"}),
    "weighed": (BASE.read_bytes, {"loss": "CrossEntropyLoss", "optimizer": "SGD", "sample_weight": "w"}),
    "outputs": (lambda: outputs().SerializeToString(), {"loss": TERMS, "optimizer": "SGD"}),
    "with masks": (
        lambda: outputs().SerializeToString(),
        {"loss": TERMS, "optimizer": "SGD", "sample_weight": {"age": {"name": "known", "of": "labels"}, "kind": "w"}},
    ),
    "one weight": (
        lambda: outputs().SerializeToString(),
        {"loss": TERMS, "optimizer": "SGD", "sample_weight": {"age": "w", "kind": "w"}},
    ),
    "gradient": (
        lambda: outputs().SerializeToString(),
        {"loss": {"kind": "OutputGradient", "age": "MSELoss"}, "optimizer": "SGD"},
    ),
    "prices": (BASE.read_bytes, {"loss": "MSELoss", "optimizer": "SGD"}),
    "masked": (lambda: masked().SerializeToString(), {"loss": "CrossEntropyLoss", "optimizer": "SGD"}),
    **{
        kind: (lambda: padded.model().SerializeToString(), {"loss": IGNORING | more, "optimizer": "SGD"})
        for kind, more in {
            "padded": {},
            "padded sum": {"reduction": "sum"},
            "padded weights": {"weight": padded.WEIGHTS.tolist()},
        }.items()
    },
}
"""Models, and how sessions are made of them."""


@dataclass(frozen=True)
class Data:
    """Columns, or anything in their place, and the steps that lead to what is fed."""

    columns: Any
    steps: tuple[Any, ...] = ()

    def made(self) -> Any:
        """Return the data for Python."""
        found = self.columns
        for name, *arguments in self.steps:
            found = STEPS[name](found, *arguments)
        return found

    def to_page(self) -> dict[str, Any]:
        """Return the same data as JSON for the page."""
        columns = self.columns
        if isinstance(columns, dict):
            columns = {n: encoded(a) if isinstance(a, np.ndarray) else a for n, a in columns.items()}
        return {"columns": columns, "steps": self.steps}


PERIOD = 101
"""Elements after which the numbers of `data` come again."""


def encoded(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON; of one that repeats, the page is sent only the first period."""
    flat = array.ravel()
    part = flat[:PERIOD] if flat.size > PERIOD and (flat[PERIOD:] == flat[:-PERIOD]).all() else flat
    return {"type": str(array.dtype), "dims": array.shape, "base64": base64.b64encode(part.tobytes()).decode()}


def failing(data: Dataset) -> Any:
    """A stream that fails behind its rows."""

    def rows() -> Any:
        yield from data
        raise RuntimeError("of label 99")

    return rows


def breaking(data: Dataset, place: int) -> Dataset:
    """Rows or batches that end with an error, once."""
    numbers = itertools.count()

    def check(item: Any) -> Any:
        if next(numbers) == place:
            raise RuntimeError("closed")
        return item

    return data.map(check)


def short(data: Dataset, place: int) -> Dataset:
    """Rows of which one has two numbers."""
    numbers = itertools.count()
    return data.map(lambda row: row | {"x": row["x"][:2]} if next(numbers) == place else row)


STEPS: dict[str, Callable[..., Any]] = {
    "dataset": Dataset,
    "list": list,
    "map": lambda data: data.map(dict),
    "numbers": lambda data: data.map(lambda _: 3),
    "standardized": lambda data, *names: Dataset(data).standardize(*names),
    "batch": Dataset.batch,
    "shuffle": Dataset.shuffle,
    "take": Dataset.take,
    "cache": Dataset.cache,
    "prefetch": Dataset.prefetch,
    "function": lambda data: lambda: data,
    "used up": iter,
    "begun": lambda data: (iter(data), data)[1],
    "fails": failing,
    "breaks": breaking,
    "short": short,
}
STREAM = (("dataset",), ("map",))


LIST = (("dataset",), ("list",))
SHUFFLED = (("dataset",), ("shuffle", 6, 4), ("map",), ("batch", 4))
BEGUN = (*SHUFFLED, ("begun",))


def batches(size: int) -> tuple[Any, ...]:
    return ("dataset",), ("batch", size)


def data(n: int = 50, *steps: Any, width: int = 10, **elements: dict[int, float]) -> Data:
    """Rows of a pattern, with elements that differ from it."""
    x = ((np.arange(width * n) * 37 % PERIOD) / 50 - 1).astype(np.float32).reshape(n, width)
    columns = {"x": x, "labels": np.arange(n) * 7 % 3}
    for name, values in elements.items():
        for place, value in values.items():
            columns[name][place] = value
    return Data(columns, steps)


def changed(n: int, *without: str, **columns: Any) -> Data:
    """Rows with other columns in the place of some, or without some."""
    kept = {name: array for name, array in data(n).columns.items() if name not in without}
    return Data(kept | columns)


def tokens(*steps: Any, label: int | None = None, **elements: Any) -> Data:
    labels = padded.LABELS.copy() if label is None else np.full_like(padded.LABELS, label)
    if elements:
        labels[elements["row"]] = elements["value"]
    return Data({"tokens": padded.TOKENS, "labels": labels}, steps)


def people(n: int = 30, *steps: Any, ages: Any = slice(1), **elements: dict[int, float]) -> Data:
    """Rows of the kind "outputs"."""
    x, labels = data(n, **elements).columns.values()
    return Data({"x": x, "kind_labels": labels, "age_labels": x[:, ages] * 3}, steps)


def sorted_people() -> Data:
    """Rows of the kind "outputs", sorted by kind."""
    columns = people().columns
    return Data(columns | {"kind_labels": np.sort(columns["kind_labels"])})


def with_masks(n: int = 30) -> Data:
    """Rows of which some have no age."""
    weights = weighed(n).columns["w"]
    columns = people(n).columns
    age = np.where(weights[:, None] == 1, np.float32(np.nan), columns["age_labels"])
    return Data({**columns, "age_labels": age, "known": np.isfinite(age).astype(np.float32), "w": weights})


def graded() -> Data:
    """Rows of the kind "gradient"."""
    columns = people().columns
    gradient = np.repeat(columns["age_labels"], 3, 1)
    return Data({"x": columns["x"], "kind_gradient": gradient, "age_labels": columns["age_labels"]})


def weighed(n: int = 30, labels: str = "labels", **more: Any) -> Data:
    """Rows of the kind "weighed"."""
    x, classes = data(n).columns.values()
    return Data({"x": x, labels: classes, "w": (np.arange(n) % 4 / 2).astype(np.float32), **more})


def prices(n: int = 30, *steps: Any) -> Data:
    """Rows of the kind "prices": three columns in units of their own, which are standardized before `steps`."""
    x = data(n).columns["x"]
    target = (x[:, :3] * np.float32([1, 100, 5e4]) + np.float32([5, -3, 1e5])).astype(np.float32)
    return Data({"x": x, "target": target}, (("standardized", "target"), *steps))


Fit = tuple[str, list[Any], dict[str, Any]]


def fit(
    source: Data, kind: str = "mlp", *, before: Any = (), after: Any = (), session: Any = None, **options: Any
) -> Fit:
    """One fit in a session, between other calls."""
    return kind, [*before, ["fit", source, options], *after], session or {}


def resumed(broken: Data, whole: Data, kind: str = "mlp", *, ends: int = 9, **options: Any) -> list[Fit]:
    """A fit, and the same in two sessions: the first one fails, or ends after so many epochs."""
    kept = options | {"checkpoint": KEPT | {"every": 1}}
    before = [["fit", broken, kept | {"epochs": min(ends, options.get("epochs", 1))}], ["open"]]
    return [fit(whole, kind, **options), fit(whole, kind, before=before, **kept)]


SCHEDULE = {"type": "Cosine", "learning_rate": 0.05, "total": 12, "warmup": 2}
STREAMED = {"epochs": 2, "batch_size": 16, "accumulate": 2, "schedule": SCHEDULE, "metrics": ["mIoU"]}
CONSTANT = {"type": "Constant", "learning_rate": 0.02}
KEPT = {"name": "fit"}
WITHOUT_RATE = [["rate", 0.0]]
IN_SLICES: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 2},
    "a last batch": {"batch_size": 8},
    "accumulated": {"batch_size": 8, "accumulate": 3},
    "limits": {"batch_size": 2, "accumulate": 2, "clip_grad_value": 0.1, "clip_grad_norm": 0.05},
    "a schedule": {"batch_size": 1, "accumulate": 3, "schedule": SCHEDULE | {"total": 60, "warmup": 5}},
    "near the start": {"batch_size": 2, "proximal": 0.5, "learning_rate": 0.05},
    "NaN that is skipped": {"batch_size": 2, "on_nan": "skip", "bad": (7, 40)},
    "NaN after which all is restored": {"batch_size": 2, "accumulate": 2, "on_nan": "restore", "bad": (31,)},
    "one plan": {"batch_size": 5, "accumulate": 2, "clip_grad_norm": 0.05, "session": {"max_plans": 1}},
    "terms": {"batch_size": 8, "accumulate": {"steps": 2, "reduction": "sum"}, "kind": "outputs"},
    "terms with NaN": {"batch_size": 4, "on_nan": "skip", "kind": "outputs", "bad": (7, 25)},
    "batches of more than a run": {"batch_size": 8, "accumulate": 2, "kind": "wide"},
}


def in_slices(batch_size: int, kind: str = "deep", bad: tuple[int, ...] = (), **options: Any) -> list[Fit]:
    """Rows, which go to the worker in slices, and a stream of the same batches, which go one by one."""
    rows: dict[str, Any] = {"n": 24, "width": 40_000} if kind == "wide" else {"x": dict.fromkeys(bad, math.nan)}
    options = {"kind": kind, "epochs": 3, "shuffle": False, **options}
    whole = people(x=rows["x"]) if kind == "outputs" else data(**rows)
    stream = {name: value for name, value in options.items() if name != "shuffle"}
    return [fit(whole, batch_size=batch_size, **options), fit(Data(whole.columns, batches(batch_size)), **stream)]


TWICE = {name: np.concatenate([array, array]) for name, array in data(40).columns.items()}
EPOCHS: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 8,
    "accumulate": 2,
    "schedule": {"type": "Cosine", "learning_rate": 0.05},
    "validation_data": data(20, *SHUFFLED),
    "metrics": ["accuracy"],
}
"""Epochs of five batches and three optimizer steps, of which the schedule knows the total."""
ENDLESS: dict[str, Any] = {"epochs": 3, "steps_per_epoch": 2, "validation_data": data(20, *SHUFFLED)}
"""Epochs of two of the three batches that an iteration over the data has."""
OTHERS = {"batch_size": 4, "checkpoint": KEPT, "schedule": CONSTANT}
NINES = changed(8, labels=np.full(8, 9))
REFUSED: dict[str, tuple[Data, dict[str, Any]]] = {
    "a label": (NINES, {}),
    "a label of a stream": (Data(NINES.columns, batches(4)), {}),
    "a label, watched": (NINES, {"on_nan": "restore"}),
    "a missing input": (changed(8, "labels"), {}),
    "no rows": (Data([]), {}),
}


def around(*calls: Any) -> Fit:
    """Calls between two train steps, the first of which waits for an optimizer step; the end says what they left."""
    return "mlp", [["rate", 0.5], ["train", data(4)], *calls, ["train", data(8)], ["optimizer"], ["state"]], {}


def every(batch_count: int, *, stream: bool) -> list[Any]:
    """A fit that fails behind its batches, and the optimizer steps of the checkpoint that it left."""
    n = 2 * batch_count
    bad = data(n, ("dataset",), ("fails",)) if stream else data(n + 1, labels={n: 99})
    options = {"batch_size": 2, "checkpoint": KEPT | {"every": 2}, **({} if stream else {"shuffle": False})}
    return [["fit", bad, options], ["stored steps"], ["forget"]]


ALIKE: dict[str, list[Fit]] = {
    "streams": [
        fit(source, validation_data=held, **STREAMED | more)
        for source, held, more in (
            (data(), data(20), {"shuffle": False}),
            (data(50, *STREAM), data(20), {}),
            (data(50, ("dataset",), ("function",)), data(20), {}),
            (data(50, *batches(16)), data(20, *batches(16)), {"batch_size": None}),
            (data(50, *STREAM, ("cache",), ("prefetch", 3)), data(20, *STREAM), {}),
        )
    ],
    **{f"in_slices {name}": in_slices(**options) for name, options in IN_SLICES.items()},
    "refused": [
        around(),
        *(around(["fit", source, {"schedule": CONSTANT} | more]) for source, more in REFUSED.values()),
        ("mlp", [["fit", data(), OTHERS | {"batch_size": 2}], ["open"], *around(["fit", data(), OTHERS])[1]], {}),
    ],
    **{
        f"goes_on {kind}": resumed(tokens(row=39, value=99), tokens(), kind, batch_size=8, shuffle=False)
        for kind in ("padded", "padded weights")
    },
    **{
        f"goes_on streams {place}": resumed(
            data(20, *SHUFFLED, ("breaks", place)), data(20, *SHUFFLED), epochs=3, validation_data=data(20, *SHUFFLED)
        )
        for place in (1, 5, 7, 12)
    },
    "goes_on with data that was begun": resumed(
        data(20, *BEGUN, ("breaks", 7)), data(20, *BEGUN), epochs=3, validation_data=data(20, *BEGUN)
    ),
    "begun": [fit(data(20, *steps), epochs=3, validation_data=data(20, *steps)) for steps in (SHUFFLED, BEGUN)],
    "seeds": [
        fit(data(20, ("dataset",), ("shuffle", 6, of_data), ("batch", 4)), epochs=2, seed=of_fit)
        for of_data, of_fit in ((5, 0), (3, 2), (2**53 - 1, 6))
    ],
    "shuffled fits": [fit(data(20, *SHUFFLED), epochs=2, **more) for more in ({}, {"shuffle": True})],
    "lists": [
        fit(data(20, *steps), epochs=2, batch_size=6, seed=3, remainder="pad", **more)
        for steps in ((), LIST, (*LIST, ("dataset",)))
        for more in ({}, {"shuffle": True})
    ],
    "unshuffled fits": [
        fit(data(20, *steps), epochs=2, shuffle=False, batch_size=size)
        for steps, size in (
            (batches(4), None),
            (SHUFFLED, None),
            ((*SHUFFLED[:2], ("cache",), ("batch", 4)), None),
            (LIST, 4),
        )
    ],
    "unshuffled values": [
        ("mlp", [["evaluate", data(20, ("dataset",), *steps, ("take", 8))]], {}) for steps in ((), [("shuffle", 6, 4)])
    ],
    "unshuffled": [
        ("mlp", [["evaluate", data(20, *steps)], ["predict", data(20, *steps)]], {})
        for steps in (batches(4), BEGUN, (("dataset",), ("shuffle", 6, 4), ("cache",), ("batch", 4)))
    ],
    "goes_on terms": resumed(people(labels={29: 9}), people(), "outputs", batch_size=8, shuffle=False, epochs=2),
    "goes_on early": resumed(
        data(),
        data(),
        batch_size=8,
        validation_split=0.2,
        early_stopping={"patience": 3, "min_delta": 100.0},
        epochs=9,
        ends=2,
    ),
    **{
        f"goes_on endless {place}": resumed(data(12, *SHUFFLED, ("breaks", place)), data(12, *SHUFFLED), **ENDLESS)
        for place in (1, 3, 4)
    },
    "labels of another type": [fit(changed(8, labels=(data(8).columns["labels"] > 1).astype(t))) for t in (int, bool)],
    "one value a row": [
        fit(people(24, *steps, ages=ages), "outputs", **options | {"shuffle": False})
        for steps, options in (((), {"batch_size": 8}), (STREAM, {"batch_size": 8}), (batches(8), {"batch_size": None}))
        for ages in (slice(1), 0)
    ],
    "steps_per_epoch": [
        fit(source, **EPOCHS | more)
        for source, more in (
            (data(40), {"shuffle": False}),
            (Data(TWICE, STREAM), {"steps_per_epoch": 5}),
            (Data(TWICE, (("dataset",), ("used up",))), {"steps_per_epoch": 5}),
            (data(40, *STREAM), {"steps_per_epoch": 5}),
        )
    ],
    "one_number": [
        ("odd", [["train", data(4)], call, ["train", data(8)], ["optimizer"], ["state"]], {})
        for call in (["reset"], ["fit", data(5), {}], ["fit", data(5), {"on_nan": "restore"}])
    ],
}
"""Fits that end the same, such as streams and arrays: the last outcomes of their calls agree."""
NOBODY = tokens(label=-100)
"""Rows whose labels are all ignored."""
STOPPING = {"batch_size": 5, "epochs": 9, "early_stopping": {"patience": 3}, "validation_data": NOBODY}
PERPLEXITY = {"metrics": ["perplexity"]}
SIZED: list[tuple[Data, dict[str, Any]]] = [
    (source, {"batch_size": size, "validation_data": held, **more})
    for more in ({}, {"on_nan": "skip"})
    for size, source, held in (
        *((size, tokens(), tokens()) for size in padded.SIZES),
        (None, tokens(*STREAM, ("batch", 7)), tokens(*batches(9))),
    )
]
HELD: list[dict[str, Any]] = [
    {"batch_size": size, "remainder": remainder, "validation_data": data(12, *steps), "metrics": ["accuracy"]}
    for size, remainder in ((12, "keep"), (8, "drop"), (8, "pad"))
    for steps in ((), STREAM)
]
SPLIT = {"validation_split": 0.3}
KEPT_FIT = {"batch_size": 4, "checkpoint": {"name": "fit"}}
IN_STEPS = {"checkpoint": {"name": "stream"}}
STORE_CALLS: list[tuple[list[Any], Any]] = [
    (["save", "start"], None),
    (["load", "start"], None),
    (["save", "Größe/1 %"], None),
    (["rename", "Größe/1 %", ".."], None),
    (["save", ".hidden"], None),
    (["names"], ["..", ".hidden", "start"]),
    (["copy", "..", "a.b"], None),
    (["delete", ".."], None),
    (["delete", ".."], None),
    (["names"], [".hidden", "a.b", "start"]),
    (["load", "a.b"], None),
    *(
        ([*call], ("StorageError", f"There is no checkpoint '{call[1]}' in"))
        for call in (("load", ".."), ("read", "x"), ("rename", "x", "y"))
    ),
    (["rename", "start", "a.b"], ("StorageError", "There is a checkpoint 'a.b' in .* already")),
    (["rename", "start", "start"], ("StorageError", "There is a checkpoint 'start' in .* already")),
    *((["save", name], ("StorageError", "A checkpoint's name must be a text")) for name in ("", "x" * 200, 3)),
]
"""Calls of a store, and what they give: a value, or the class and text of an error."""
OTHER_FITS: list[tuple[dict[str, Any], str, str]] = [
    (KEPT_FIT | {"checkpoint": {"name": "start"}}, "CheckpointError", "'start' was not written by fit"),
    (KEPT_FIT | {"batch_size": 5}, "ModelError", "batch_?[sS]ize 4, and this one has 5"),
    (KEPT_FIT | {"seed": 1}, "ModelError", "seed 0, and this one has 1"),
    (KEPT_FIT | {"shuffle": False}, "ModelError", "seed 0, and this one has (None|null)"),
    (KEPT_FIT | {"accumulate": 2}, "ModelError", "accumulate 1, and this one has 2"),
    (KEPT_FIT | {"validation_split": 0.5}, "ModelError", "rows 12, and this one has 6"),
    ({"checkpoint": {"name": "x", "every": 0}}, "ModelError", "checkpoint.every is 0; it must be an integer >= 1"),
    ({"checkpoint": {"name": "x", "often": 1}}, "TypeError", "checkpoint has no setting 'often'"),
]
"""Fits that cannot go on from the checkpoint of another, and their errors."""
FITS: dict[str, list[Fit]] = {
    **ALIKE,
    "all_options": [
        fit(
            data(),
            epochs=3,
            batch_size=16,
            validation_split=0.2,
            seed=2**40 + 5,
            schedule=SCHEDULE,
            accumulate=2,
            metrics=["accuracy", "confusionMatrix", "perplexity"],
        )
    ],
    "stratified": [
        fit(
            changed(50, labels=np.sort(np.arange(50) * 7 % 3)),
            epochs=2,
            stratify=True,
            **SPLIT,
            metrics="confusionMatrix",
        ),
        fit(sorted_people(), "outputs", stratify="kind", **SPLIT, metrics={"kind": "confusionMatrix"}),
    ],
    "averages": [
        fit(
            data(),
            "ema",
            before=[["averages"]],
            after=[["averages"], ["scores", data(8), True], ["scores", data(8), False], ["exports averages", data(8)]],
            ema=True,
            epochs=2,
            batch_size=16,
            seed=7,
            **SPLIT,
            **limits,
        )
        for limits in ({"clip_grad_norm": 0.3, "clip_grad_value": 0.05}, {})
    ],
    "best": [
        fit(
            data(),
            epochs=50,
            validation_data=changed(20, labels=2 - np.arange(20) * 7 % 3),
            schedule=CONSTANT,
            early_stopping={"patience": 1},
        ),
        fit(data(8), before=WITHOUT_RATE, epochs=9, shuffle=False, early_stopping={"patience": 2}),
    ],
    "batch_size": [
        (kind, [["rate", 0.0], *(["fit", source, PERPLEXITY | more] for source, more in SIZED)], {})
        for kind in ("padded", "padded sum")
    ],
    "all_ignored": [
        fit(
            tokens(label=2),
            "padded",
            before=[
                ["fit", NOBODY, {"batch_size": 5, "validation_data": NOBODY, "metrics": "perplexity"}],
                ["evaluate", NOBODY],
                *(
                    ["fit", tokens(label=2), STOPPING | more]
                    for more in ({}, {"checkpoint": KEPT}, {"checkpoint": KEPT})
                ),
            ],
            batch_size=5,
            epochs=5,
            validation_data=NOBODY,
            schedule={"type": "Plateau", "learning_rate": 0.5, "patience": 1, "reduction": 0.5},
        ),
    ],
    "remainder": [("mlp", [["rate", 0.0], *(["fit", data(24), more] for more in HELD)], {})],
    "every_so_many": [
        ("mlp", [call for count in range(1, 8) for call in every(count, stream=stream)], {}) for stream in (False, True)
    ],
    "stores": [
        ("mlp", [["train", data(4)], ["optimizer"], *(["store", *call] for call, _ in STORE_CALLS), ["state"]], {}),
        (
            "mlp",
            [
                ["store", "save", "start"],
                *(["fit", data(12), more] for more in (KEPT_FIT, *(f for f, *_ in OTHER_FITS))),
            ],
            {},
        ),
        ("mlp", [["fit", data(12, *SHUFFLED), IN_STEPS | more] for more in ({}, {"shuffle": False})], {}),
    ],
    "outputs": [
        fit(
            people(),
            "outputs",
            epochs=2,
            batch_size=8,
            accumulate=accumulate,
            validation_data=people(20),
            metrics=[{"kind": ["accuracy", {"type": "f1", "average": "none"}, "perplexity"]}, {"age": "mae"}],
            train_metrics=True,
            early_stopping={"patience": 1, "metric": metric},
        )
        for accumulate, metric in (
            (1, "age_HuberLoss"),
            (3, "kind_loss"),
            ({"steps": 3, "reduction": "sum"}, "age_mae"),
        )
    ],
    "units": [
        fit(
            source,
            kind,
            batch_size=8,
            validation_data=source,
            metrics=metrics,
            after=[["predict", source], ["predict", Data({"x": source.columns["x"]})]],
        )
        for source, kind, metrics in (
            (prices(), "prices", ["mae", "rmse", "r2"]),
            (prices(30, ("map",)), "prices", ["mae"]),
            (Data(people().columns, (("standardized", "age_labels"),)), "outputs", [{"age": ["mae", "r2"]}]),
        )
    ],
    "weighed": [
        fit(
            weighed(),
            "weighed",
            epochs=2,
            batch_size=8,
            accumulate=3,
            validation_split=0.3,
            stratify=True,
            metrics=["accuracy", {"type": "topK", "k": 2}, "confusionMatrix", "mIoU"],
        ),
        fit(weighed(labels="target"), "weighed", batch_size=8, validation_data=weighed(20, "targets")),
    ],
    "masks of outputs": [
        fit(
            with_masks(),
            "with masks",
            epochs=2,
            batch_size=8,
            accumulate=2,
            validation_data=with_masks(20),
            metrics={"kind": "accuracy", "age": ["mae", "r2"]},
            after=[["predict", Data({"x": data(5).columns["x"]})]],
        ),
        fit(Data(people().columns | {"w": weighed().columns["w"]}), "one weight", batch_size=8, validation_split=0.3),
    ],
    "gradients": [
        fit(graded(), "gradient", batch_size=8, validation_split=0.3, metrics={output: metric})
        for output, metric in (("kind", "accuracy"), ("age", "mae"))
    ],
    "infinite_on_purpose": [
        fit(changed(12, labels=np.arange(12) % 2), "masked", batch_size=4, on_nan=on_nan, epochs=2)
        for on_nan in ("stop", "skip", "restore")
    ],
}

PLACES = ("value", "position", "input", "row", "epoch", "batch")
"""Attributes of errors that say where."""


def camel(value: Any) -> Any:
    """Options as the page has them."""
    if isinstance(value, Data):
        return value.to_page()
    if isinstance(value, Mapping):
        names = {n: re.sub(r"_(\w)", lambda m: m[1].upper(), n).replace("onNan", "onNaN") for n in value}
        return {names[name]: camel(part) for name, part in value.items()}
    return [camel(part) for part in value] if isinstance(value, list | tuple) else value


def snake(text: str) -> str:
    """A text of the page with the names of options as in Python."""
    text = re.sub(r"\b[a-z]+(?:[A-Z][a-z]*)+\b", lambda m: re.sub("[A-Z]", lambda c: f"_{c[0].lower()}", m[0]), text)
    return text.replace("ignore_index: ", "ignore_index=")


def plain(value: Any) -> Any:
    """Results as JSON, in which NaN equals itself; perplexities to the digits that all machines' exp agree on."""
    if isinstance(value, float):
        return str(value) if not math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {n: float(f"{v:.12g}") if n == "perplexity" and math.isfinite(v) else plain(v) for n, v in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


CLASSES = {"RuntimeError": "Error"}
"""Python's own errors as the page has them."""


def common(outcome: Any) -> Any:
    """An outcome without what Python and the page spell differently on purpose."""
    if not isinstance(outcome, dict) or "error" not in outcome:
        return outcome
    return outcome | {
        "error": CLASSES.get(outcome["error"], outcome["error"]),
        "message": snake(outcome["message"]),
    }


class Runner:
    """Runs the calls of a fit in Python."""

    def __init__(self, kind: str, options: dict[str, Any], folder: Path) -> None:
        self.make = lambda: opened(kind, options)
        self.session = self.make()
        self.folder = folder

    def outcome(self, call: Any) -> Any:
        name, *arguments = call
        try:
            return plain(getattr(self, name.replace(" ", "_"))(*arguments))
        except Exception as error:
            places = {n: plain(getattr(error, n)) for n in PLACES if getattr(error, n, None) is not None}
            message = str(error).replace(str(self.folder), "fits")
            return {"error": type(error).__name__, "message": message, **places}

    def fit(self, source: Data, options: dict[str, Any]) -> Any:
        options = {n: v.made() if isinstance(v, Data) else v for n, v in options.items()}
        if options.get("checkpoint"):
            options["checkpoint"] = {"store": self.folder, **options["checkpoint"]}
        history = self.session.fit(source.made(), progress=False, **options)
        epochs = [[e.epoch, e.steps, e.loss, e.learning_rate, e.validation, e.terms] for e in history.epochs]
        return [history.ended, history.losses, history.optimizer_steps, history.best_epoch, epochs, self.parameters()]

    def open(self) -> None:
        self.session.release()
        self.session = self.make()

    def rate(self, rate: float) -> None:
        self.session.set_learning_rate(rate)

    def train(self, source: Data) -> None:
        self.session.train_step(source.made())

    def optimizer(self) -> None:
        self.session.optimizer_step()

    def reset(self) -> None:
        self.session.lazy_reset_grad()

    def predict(self, source: Data) -> Any:
        return {name: array.ravel().tolist() for name, array in self.session.predict(source.made()).items()}

    def evaluate(self, source: Data) -> Any:
        return self.session.evaluate(source.made())

    def parameters(self) -> str:
        return sha256(self.session.get_contiguous_parameters(False).tobytes()).hexdigest()

    def forget(self) -> None:
        trainweb.CheckpointStore(self.folder).delete("fit")

    def store(self, name: str, *given: Any) -> Any:
        """A call of the store; "copy" writes under another name what it reads."""
        store = trainweb.CheckpointStore(self.folder)
        if name == "names":
            return [entry.name for entry in store.list()]
        if name == "copy":
            return store.write(given[1], store.read(given[0]))
        return getattr(store, name)(*([self.session] if name in ("save", "load") else []), *given)

    def averages(self) -> Any:
        return self.session.get_contiguous_parameters(ema=True).tolist()

    def scores(self, source: Data, ema: bool) -> Any:
        return self.session.eval_step(source.made(), ["logits"], {"ema": ema})["logits"].ravel().tolist()

    def exports_averages(self, source: Data) -> bool:
        """True if the exported model has the scores of the averages and the session keeps its parameters."""
        before = self.parameters()
        exported = trainweb.InferenceSession(self.session.export_model_for_inferencing(["logits"], ema=True))
        (found,) = exported.run(["logits"], {"x": source.made()["x"]})
        exported.release()
        is_same = np.allclose(found.ravel(), self.scores(source, True), rtol=1e-5, atol=1e-6)
        return is_same and before == self.parameters()

    def state(self) -> Any:
        return [self.parameters(), self.session.get_learning_rate()]

    def stored_steps(self) -> int:
        contents = trainweb.CheckpointStore(self.folder)._find("fit")
        if contents is None:
            return 0
        steps: int = json.loads(open_snapshot(contents).metadata["position"])["optimizerSteps"]
        return steps


def odd_files() -> dict[str, bytes]:
    """Artifacts whose training model has another output before its loss."""
    import onnx

    built = build_artifacts(BASE, **CROSS_ENTROPY)
    model = onnx.load_model_from_string(built.training_model)
    loss, logits, *others = model.graph.output
    del model.graph.output[:]
    model.graph.output.extend([logits, loss, *others])
    return {
        "trainModel": model.SerializeToString(),
        "evalModel": built.eval_model,
        "optimizerModel": built.optimizer_model,
        "checkpointState": built.checkpoint,
    }


def opened(kind: str, options: dict[str, Any]) -> trainweb.TrainingSession:
    options = {"reproducible": True, **options}
    if kind == "odd":
        train, evaluation, optimizer, checkpoint = odd_files().values()
        state = trainweb.CheckpointState.load_checkpoint(checkpoint)
        return trainweb.TrainingSession(state, train, evaluation, optimizer, options)
    model, config = KINDS[kind]
    return trainweb.TrainingSession.from_model(model(), **config, options=options)


def run_python(fits: list[Fit]) -> list[list[Any]]:
    """The outcomes of the calls of each fit."""
    outcomes = []
    for kind, calls, options in fits:
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(kind, options, Path(folder))
            try:
                outcomes.append([runner.outcome(call) for call in calls])
            finally:
                runner.session.release()
    return outcomes
