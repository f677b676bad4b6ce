"""The steps of the wines of examples/, fitted by scikit-learn's formulas on all rows."""

import csv
import json
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"


def steps_of_wines() -> str:
    """The file steps.json of docs/elsewhere.md, written by hand: the medians, and the moments of the columns."""
    with (EXAMPLES / "data" / "wine.csv").open() as file:
        rows = np.array([row[1:] for row in csv.reader(file)][1:], np.float64)
    moments = {"mean": rows.mean(0).tolist(), "std": rows.std(0).tolist()}
    named = {"input": "features", "dtype": "float32"}
    steps = [
        {"type": "fill", **named, "values": np.median(rows, 0).tolist()},
        {"type": "standardize", **named, **moments},
    ]
    return json.dumps(steps)
