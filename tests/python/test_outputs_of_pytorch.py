"""Losses by outputs, weights of rows and masks, in batches and accumulated: the numbers are PyTorch's in float64."""

import json
from typing import Any

import numpy as np
import pytest
from tests.python.test_loss_terms import FIT, LOSS, RECORDED, SIZES, rows, session

TRUTH: dict[str, Any] = json.loads((RECORDED / "torch.json").read_text())
TASKS = {"name": "present", "of": "labels"}
CASES: dict[str, tuple[Any, Any]] = {
    "terms": (LOSS, None),
    "several": (
        {
            "kind": ["CrossEntropyLoss", {"name": "CrossEntropyLoss", "label_smoothing": 0.1, "weight": 0.2}],
            "age": ["MSELoss", {"name": "L1Loss", "weight": 0.1}],
        },
        None,
    ),
    "classes": (
        {
            "kind": {"name": "CrossEntropyLoss", "weights": [1.0, 3.0, 0.5], "ignore_index": 2, "weight": 2},
            "age": "MSELoss",
        },
        None,
    ),
    "row_weights": (LOSS, "w"),
    "masks": (
        {"kind": "CrossEntropyLoss", "age": "MSELoss", "tasks": {"name": "BCEWithLogitsLoss", "weight": 0.5}},
        {"age": "w", "tasks": TASKS},
    ),
}


@pytest.mark.parametrize(
    ("name", "size", "accumulate"),
    [(name, size, 1) for name in CASES for size in (5, 23)]
    # Terms that divide by something else than rows are no part of it: batches count by their rows.
    + [(name, 5, 5) for name in CASES if name != "classes"],
)
def test_training_is_that_of_pytorch(name: str, size: int, accumulate: int) -> None:
    loss, weights = CASES[name]
    columns = {"w": "w"} if weights else {}
    columns |= {"present": "present"} if name == "masks" else {}
    columns |= {f"{output}_labels": output for output in loss}
    truth, losses = TRUTH[name]["batches" if size * accumulate < 23 else "whole"], []
    with session(loss, *loss, sample_weight=weights) as s:
        data = rows("train", **columns)
        history = s.fit(data, **{**FIT, "batch_size": size, "accumulate": accumulate})
        losses = [epoch.loss for epoch in history.epochs]
        trained = {name: parameter.data for name, parameter in s.state.parameters.items()}
    sizes = np.array([min(size, 23 - first) for first in range(0, 23, size)])
    if accumulate == 1:
        means = np.reshape(truth["losses"], (-1, len(sizes))) @ sizes / 23
        np.testing.assert_allclose(losses, means, rtol=1e-5)
    else:
        np.testing.assert_allclose(losses, truth["losses"], rtol=1e-5)
    for output in ("hidden", *loss):
        shape = (6, 8) if output == "hidden" else (8, SIZES[output])
        expected = np.reshape(truth["end"][output], shape)
        own = trained["hidden" if output == "hidden" else f"{output}.w"]
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6, err_msg=output)
