"""Records torch.json with PyTorch in float64: `python record_torch.py`, after record.py.

The start and the rows are those of record.py. `Case` says what the loss is; each case is trained in batches, and in one
batch of all rows, which accumulated batches must equal.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

HERE = Path(__file__).parent
BATCH, EPOCHS, RATE = 5, 3, 0.1
ARRAYS = np.load(HERE / "expected.npz")
Rows = Mapping[str, Tensor]
CLASS_WEIGHTS = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)


def outputs(weights: Rows, rows: Rows) -> dict[str, Tensor]:
    hidden = torch.relu(rows["x"] @ weights["hidden"])
    return {name: hidden @ weights[name] for name in ("kind", "age", "tasks")}


def terms(y: Rows, rows: Rows) -> Tensor:
    return F.cross_entropy(y["kind"], rows["kind"]) + 0.3 * F.huber_loss(y["age"], rows["age"])


def several(y: Rows, rows: Rows) -> Tensor:
    """A list of terms for each output."""
    smoothed = F.cross_entropy(y["kind"], rows["kind"], label_smoothing=0.1)
    of_age = F.mse_loss(y["age"], rows["age"]) + 0.1 * F.l1_loss(y["age"], rows["age"])
    return F.cross_entropy(y["kind"], rows["kind"]) + 0.2 * smoothed + of_age


def classes(y: Rows, rows: Rows) -> Tensor:
    """Weights of classes, and rows of one class are ignored."""
    of_kind = F.cross_entropy(y["kind"], rows["kind"], weight=CLASS_WEIGHTS, ignore_index=2)
    return 2 * of_kind + F.mse_loss(y["age"], rows["age"])


def row_weights(y: Rows, rows: Rows) -> Tensor:
    of_kind = F.cross_entropy(y["kind"], rows["kind"], reduction="none") * rows["w"]
    of_age = F.huber_loss(y["age"], rows["age"], reduction="none")[:, 0] * rows["w"]
    return of_kind.mean() + 0.3 * of_age.mean()


def masks(y: Rows, rows: Rows) -> Tensor:
    """Each output has a mask of its own; that of `tasks` has one number a label."""
    of_tasks = F.binary_cross_entropy_with_logits(y["tasks"], rows["tasks"], reduction="none") * rows["present"]
    of_age = F.mse_loss(y["age"], rows["age"], reduction="none")[:, 0] * rows["w"]
    return F.cross_entropy(y["kind"], rows["kind"]) + of_age.mean() + 0.5 * of_tasks.mean()


CASES: dict[str, Callable[[Rows, Rows], Tensor]] = {
    one.__name__: one for one in (terms, several, classes, row_weights, masks)
}


def trained(loss: Callable[[Rows, Rows], Tensor], rows: Rows, size: int) -> dict[str, list]:
    """The loss of each step, and the weights in the end."""
    weights = {
        name: torch.tensor(ARRAYS[f"start.{name}"], dtype=torch.float64, requires_grad=True)
        for name in ("hidden", "kind", "age", "tasks")
    }
    optimizer, losses = torch.optim.SGD(weights.values(), lr=RATE), []
    for _ in range(EPOCHS):
        for first in range(0, len(rows["x"]), size):
            batch = {name: values[first : first + size] for name, values in rows.items()}
            optimizer.zero_grad()
            value = loss(outputs(weights, batch), batch)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return {"losses": losses, "end": {name: weight.detach().flatten().tolist() for name, weight in weights.items()}}


def main() -> None:
    arrays = {name.removeprefix("train."): ARRAYS[name] for name in ARRAYS if name.startswith("train.")}
    rows = {name: torch.from_numpy(values) for name, values in arrays.items()}
    rows = {name: values.double() if values.is_floating_point() else values for name, values in rows.items()}
    found = {
        name: {"batches": trained(loss, rows, BATCH), "whole": trained(loss, rows, len(rows["x"]))}
        for name, loss in CASES.items()
    }
    rounded = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.9g}"))
    (HERE / "torch.json").write_text(json.dumps(rounded, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
