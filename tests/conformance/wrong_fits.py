"""Fits that are refused, as data: what is wrong, and the error in both languages."""

from typing import Any

import numpy as np
from tests.conformance.fits import KEPT, LIST, STREAM, Data, batches, changed, data

FULL: dict[str, Any] = {"validation_split": 0.5}
ROW_50 = r"'labels' of row 50 of the data is out of range \(batch \d+ of epoch 1\)\. .*the label 9 at position \d+"
BATCH_7 = r"'labels' of row 50 of the data is out of range \(batch 7 of epoch 1\)\. .*the label 9 at position 2 "
ROW_13 = r"'labels' of row 13 of the validation data is out of range \(batch 2 of epoch 1\)"
USED_UP = data(8, ("dataset",), ("used up",))
READ_AGAIN = "is a generator object, which can be read only once.*: give the function that creates it"
BAD = {"labels": {50: 9}}
WRONG: list[tuple[Data, dict[str, Any], str, str]] = [
    (Data({}), {}, "FeedError", "The data has no arrays"),
    (changed(8, x=np.zeros((0, 10), "f4"), labels=np.zeros(0, "i8")), {}, "FeedError", "The data has no rows"),
    (Data([]), {}, "FeedError", "The data has no rows"),
    (Data(3), {}, "FeedError", "Data must map input names .*, or be rows, or a function"),
    (changed(8, labels=np.zeros(7, "i8")), {}, "FeedError", "'labels' has 7 rows, but 'x' has 8"),
    (Data([{"x": 1}, {"y": 1}]), {}, "FeedError", "Row 0 of the data has x; the first row of its batch has y"),
    (Data([[[0.5] * 10, 1], [[0.5] * 10, 1, 2]]), {}, "FeedError", "Item 1 of the data"),
    (Data([1]), {}, "FeedError", "Row 0 of the data is "),
    (changed(8, "labels"), {}, "FeedError", "no 'labels'; it has x, and the .* x, labels. Give it"),
    (changed(8, "labels", y=data(8).columns["x"]), {}, "FeedError", "no 'labels'; it has x, y, and the model"),
    (
        changed(8, labels=np.tile(np.eye(4, dtype="i8"), (2, 1))),
        {},
        "FeedError",
        "one-hot rows or .*has the setting 'probabilities'",
    ),
    (
        changed(8, labels=np.full((8, 4), 2)),
        {},
        "FeedError",
        r"'labels' has shape \[8, 4\] in .*so one number for a row",
    ),
    (changed(8, labels=np.ones((8, 4), "f4")), {}, "FeedError", "one-hot rows or .*has the setting 'probabilities'"),
    (
        changed(8, labels=np.ones((8, 4), "i8")),
        {},
        "FeedError",
        r"shape \[8, 4\] in the data. The model takes \[.*\] for a batch, so one number for a row\.(\n|$)",
    ),
    (
        changed(8, x=np.ones((8, 9), "f4")),
        {},
        "FeedError",
        r"for a row. If these sizes .* with dynamic axes",
    ),
    (
        data(8, *STREAM),
        {"schedule": {"type": "Cosine", "learning_rate": 0.1}},
        "ModelError",
        "Cosine needs 'total', .*'steps_?[pP]er_?[eE]poch'",
    ),
    (
        changed(2, labels=["no", "yes"]),
        {},
        "FeedError",
        r"'labels' has texts, .* of digits \(float, Number\), .*'categories'",
    ),
    (
        Data([{"x": "a fox", "labels": 1}]),
        {},
        "FeedError",
        "'x' has texts, and the model takes .*a tokenizer of sentences",
    ),
    (Data(["a fox"]), {}, "FeedError", "Row 0 of the data has texts, and the model takes numbers"),
    (
        data(8),
        {"validation_data": changed(8, "x", y=data(8).columns["x"])},
        "FeedError",
        "The validation data has no 'x'; it has (y, labels|labels, y), and the model .*steps of the training rows",
    ),
    (data(8), {"batch_size": 9, "remainder": "drop"}, "FeedError", "9 rows is larger.* rows that fill no batch"),
    (data(8), {"validation_split": 0.01}, "FeedError", "A share of 0.01 of 8 rows is less than one row"),
    (Data([]), {"validation_split": 0.5}, "FeedError", "cannot be split"),
    (data(8), {"steps_per_epoch": 2}, "ModelError", "'steps_per_epoch' is for streams; an epoch of arrays has all of"),
    (data(8, *STREAM), {"steps_per_epoch": 0}, "ModelError", "steps_per_epoch is 0; it must be an integer >= 1"),
    (USED_UP, {"epochs": 2}, "FeedError", f"^The data {READ_AGAIN}"),
    (USED_UP, {"steps_per_epoch": 1, "checkpoint": KEPT}, "FeedError", f"^The data {READ_AGAIN}"),
    (data(8), {"epochs": 2, "validation_data": USED_UP}, "FeedError", f"^The validation data {READ_AGAIN}"),
    (data(8), {"epochs": 0}, "ModelError", "epochs is 0; it must be an integer >= 1"),
    (data(8), {"batch_size": 1.5}, "ModelError", "batch_size is 1.5; it must be"),
    (data(8), {"epoch": 2}, "TypeError", r"fit has no setting 'epoch'; did you mean 'epochs'\?"),
    (data(8), {"patience": 3}, "TypeError", "fit has no setting 'patience'; there are "),
    (data(8), {"sample_weight": "w"}, "TypeError", "'sample_weight' of (create_)?from_model"),
    (data(8), {"clip_grad_norm": 0}, "ModelError", "clip_grad_norm is 0; it must be a number greater than 0"),
    (data(8), {"clip_grad_value": "a"}, "ModelError", "clip_grad_value is '?a'?; it must be a number greater than 0"),
    (data(8), {"ema": 1}, "ModelError", "ema is 1; it must be true or false"),
    (data(8), {"ema": True}, "SessionError", "no averages of its parameters: create it, or its artifacts, with"),
    (data(8), {"seed": -1}, "ModelError", "seed is -1"),
    (data(8), {"remainder": "cut"}, "ModelError", "remainder is 'cut'; it must be keep, drop or pad"),
    (data(8), {"checkpoint": {}}, "ModelError", "checkpoint needs the setting '"),
    (data(8), {"metrics": ["accuracy"]}, "ModelError", "Metrics need validation data: give validation_data"),
    (data(8), FULL | {"metrics": ["accurcy"]}, "TypeError", "did you mean 'accuracy'"),
    (data(8), FULL | {"metrics": ["mean_absolute_error"]}, "TypeError", "did you mean 'mae'"),
    (data(8), FULL | {"metrics": ["mae", "mae"]}, "ModelError", "'mae' is given twice"),
    (data(8), FULL | {"metrics": ["mae"], "predictions": "y"}, "ModelError", "predictions is 'y'"),
    (data(8), FULL | {"metrics": {"y": "mae"}}, "ModelError", "predictions is 'y'"),
    (data(8), FULL | {"metrics": {"logits": "perplexity"}}, "ModelError", "logits_loss is something else. Ask"),
    (data(8), FULL | {"metrics": {"logits": "mae"}, "predictions": "logits"}, "ModelError", "left out with metrics of"),
    (data(8), {"accumulate": 0}, "ModelError", "accumulate is 0; it must be an integer >= 1"),
    (data(8), {"accumulate": {"steps": 0}}, "ModelError", "steps is 0; it must be an integer >= 1"),
    (data(8), {"accumulate": {"reduction": "all"}}, "ModelError", "reduction is 'all'; it must be mean or sum"),
    (data(8), FULL | {"validation_data": data(8)}, "ModelError", "not both"),
    (data(8), {"stratify": True}, "ModelError", "'stratify' needs 'validation_split'"),
    (data(8), FULL | {"stratify": 1}, "ModelError", "stratify is 1; it must be true, false or the name of an input"),
    (data(8), FULL | {"stratify": "y"}, "FeedError", "'stratify' needs one whole number a row in 'y'"),
    (data(8), FULL | {"stratify": ""}, "FeedError", "'stratify' needs one whole number a row in ''"),
    (data(8), {"schedule": {"type": "Sine"}}, "TypeError", "There is no schedule 'Sine'"),
    (data(8), {"early_stopping": {}}, "ModelError", "early_stopping needs the setting '(early_stopping.)?patience'"),
    (
        data(8),
        {"early_stopping": {"patience": 1, "metric": "mae"}},
        "ModelError",
        "metric is 'mae'; it must be loss or one of 'metrics', without 'val_'",
    ),
    (data(8), {"callbacks": [1]}, "ModelError", "callbacks is 1"),
    (data(8, *batches(4)), {"batch_size": 4}, "ModelError", "The data is already batched: leave out 'batch_size'"),
    (data(8, *STREAM), {"shuffle": True}, "ModelError", "call data.shuffle"),
    (
        data(8),
        {"validation_data": data(8, ("dataset",), ("batch", 6, "pad"), ("take", 1))},
        "FeedError",
        "rows that would count twice",
    ),
]
"""Data, options, and the error: its class, and a part of its text in both languages. Nothing is trained before it."""
EIGHT = {"batch_size": 8}
WRONG_LATER: list[tuple[Data, dict[str, Any], str, str]] = [
    (
        data(60, *STREAM, ("short", 37)),
        EIGHT,
        "FeedError",
        r"Row 37 of the data has float32\[2\] as 'x'; .*\[10\]. 'bucket' .* name 'x' in its 'padded'",
    ),
    (data(60, **BAD), EIGHT | {"seed": 3}, "FeedError", ROW_50),
    (data(60, **BAD), EIGHT | {"seed": 3, "on_nan": "skip"}, "FeedError", ROW_50),
    (data(60, **BAD), EIGHT | {"shuffle": False}, "FeedError", BATCH_7),
    (data(60, *LIST, **BAD), EIGHT | {"seed": 3}, "FeedError", ROW_50),
    (data(60, *LIST, **BAD), EIGHT | {"shuffle": False}, "FeedError", BATCH_7),
    (data(60, *STREAM, **BAD), EIGHT, "FeedError", BATCH_7),
    (data(60, *STREAM, **BAD), EIGHT | {"accumulate": 3}, "FeedError", BATCH_7),
    (
        data(60, *batches(7), **BAD),
        {"batch_size": None},
        "FeedError",
        r"row 50 of the data .*\(batch 8 of epoch 1\).* position 1 ",
    ),
    (data(8), EIGHT | {"validation_data": data(60, labels={13: 9})}, "FeedError", ROW_13),
    (data(8), EIGHT | {"validation_data": data(60, *STREAM, labels={13: 9})}, "FeedError", ROW_13),
    (data(8), EIGHT | {"validation_data": data(60, labels={13: -7}), "metrics": ["accuracy"]}, "FeedError", ROW_13),
    (
        data(60, labels={0: -100}),
        {"shuffle": False},
        "FeedError",
        "such labels, give the loss '(ignore_index|ignoreIndex)' -100",
    ),
    (
        data(60, x={(13, 4): np.nan}),
        EIGHT | {"seed": 3},
        "NumericsError",
        "in the data. 'x' has nan in row 13 of the data",
    ),
    (
        data(60, *STREAM, x={13: -np.inf}),
        EIGHT,
        "NumericsError",
        "step 2 .* 'x' has -inf in row 13 of the data. Fill NaN of features .*Drop rows without label or weight, or",
    ),
    (data(8, *batches(4), ("numbers",)), {"batch_size": None}, "FeedError", "Batch 0 of the data is "),
    (
        data(14, ("dataset",), ("used up",)),
        {"epochs": 3, "batch_size": 4, "steps_per_epoch": 2},
        "FeedError",
        "^The data has no rows in epoch 3: .* Give the function that creates it",
    ),
    (
        data(8),
        {
            "validation_data": changed(8, labels=np.zeros(8, "i8")),
            "metrics": ["auc"],
            "early_stopping": {"metric": "auc", "patience": 1},
        },
        "FeedError",
        "^The metric 'auc' of the validation data is NaN. It needs .* of two classes for 'auc'",
    ),
    (
        data(8),
        FULL | {"metrics": ["topK"]},
        "FeedError",
        "'top_?[kK]' with k = 5 is always 1 for 4 classes: .* less than 4",
    ),
]
"""The same for errors that come after some steps."""
