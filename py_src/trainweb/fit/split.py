"""Training and validation data of a fit; in a page `web/src/page/split.ts`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trainweb import messages
from trainweb.arguments import warn
from trainweb.data.dataset import Dataset
from trainweb.data.for_model import ModelInputs

NAMED_CLASSES = 10
"""Largest number of classes that a warning names."""


def split_data(
    inputs: ModelInputs, data: Any, validation: Any, share: float | None, *, stratify: bool
) -> tuple[Dataset, Dataset | None]:
    """Return the training data and the validation data."""
    train = inputs.dataset(data)
    if share is None:
        if stratify:
            raise messages.STRATIFIED_NOTHING()
        return train, None if validation is None else inputs.dataset(validation)
    if validation is not None:
        raise messages.TWO_VALIDATIONS()
    name, labels = list(inputs.values)[-1], None
    if train.columns is not None:
        labels = labels_of(train.columns.get(name))
    if stratify:
        if labels is None:
            raise messages.NO_CLASSES(name=name)
        return stratified(train, labels, share)
    parts = train.split(share)
    if labels is not None:
        warn_of_missing(name, labels, len(parts[0]))
    return parts


def labels_of(column: np.ndarray | None) -> np.ndarray | None:
    """The classes of rows, if there is one integer a row."""
    is_class = column is not None and column.dtype.kind in "iu" and column.size == len(column)
    return column.reshape(-1) if column is not None and is_class else None


def stratified(data: Dataset, labels: np.ndarray, share: float) -> tuple[Dataset, Dataset]:
    """Split so that the second has this share of the rows of each class, the last ones."""
    is_second = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        is_second[rows[len(rows) - math.floor(len(rows) * share + 0.5) :]] = True
    if is_second.all() or not is_second.any():
        raise messages.EMPTY_SPLIT(rows=len(labels), share=share)
    return data.rows(np.flatnonzero(~is_second)), data.rows(np.flatnonzero(is_second))


def warn_of_missing(name: str, labels: np.ndarray, first: int) -> None:
    """Warn of classes that only one of two parts has, if there are few classes."""
    classes = set(labels.tolist())
    for part, found in (("training", labels[:first]), ("validation", labels[first:])):
        missing = sorted(classes.difference(found.tolist()))
        # Of many classes some are rare.
        if missing and len(classes) <= NAMED_CLASSES:
            text = messages.MISSING_CLASSES(part=part, name=name, classes=", ".join(map(str, missing)))
            warn(str(text))
