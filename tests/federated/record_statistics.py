"""Record rounds of three PyTorch clients with a batch norm, averaged by Flower over their whole state.

    .build/venv-flower/bin/python tests/federated/record_statistics.py

The environment is that of `./build.sh test-federated`. It sets `model.state_dict()` as the arrays of a client, as
Flower's examples do: FedAvg averages running statistics like parameters, by rows.
"""

from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from torch import nn

FILE = Path(__file__).parent / "statistics.npz"
SIZES, BATCH, FEATURES, CLASSES, ROUNDS, RATE, EPOCHS = (8, 16, 40), 8, 3, 3, 3, 0.1, 2
CENTRES = (0.0, 2.0, -1.0)
"""Means of the clients' rows: unlike data, where local statistics are wrong for the others."""


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def as_onnx(norm: nn.BatchNorm1d, before: torch.Tensor, size: int) -> None:
    """Take the population's variance of a batch into the running one, as ONNX defines it (docs/export.md)."""
    assert norm.running_var is not None and norm.momentum is not None
    rest = before * (1 - norm.momentum)
    norm.running_var.copy_(rest + (norm.running_var - rest) * ((size - 1) / size))


def train(state: dict[str, torch.Tensor], x: np.ndarray, labels: np.ndarray) -> dict[str, torch.Tensor]:
    """A client's round: SGD over its rows in their order."""
    net = model()
    net.load_state_dict(state)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for start in range(0, len(x), BATCH):
            part = slice(start, start + BATCH)
            before = net.get_buffer("1.running_var").clone()
            optimizer.zero_grad()
            scores = net(torch.from_numpy(x[part]))
            nn.functional.cross_entropy(scores, torch.from_numpy(labels[part])).backward()
            optimizer.step()
            as_onnx(net[1], before, BATCH)  # type: ignore[arg-type]
    return net.state_dict()


def main() -> None:
    """Write the rows, the start, and the state after each round."""
    rng = np.random.default_rng(1)
    rows = [
        rng.normal(centre, 1, (size, FEATURES)).astype(np.float32) for centre, size in zip(CENTRES, SIZES, strict=True)
    ]
    labels = [x.argmax(axis=1).astype(np.int64) for x in rows]
    record = {f"x{k}": x for k, x in enumerate(rows)} | {f"labels{k}": y for k, y in enumerate(labels)}
    state = model().state_dict()
    record |= {f"0/{name}": value.numpy() for name, value in state.items()}
    for number in range(1, ROUNDS + 1):
        replies = [
            RecordDict(
                {
                    "arrays": ArrayRecord(torch_state_dict=train(state, x, y)),
                    "metrics": MetricRecord({"num-examples": len(x)}),
                }
            )
            for x, y in zip(rows, labels, strict=True)
        ]
        state = aggregate_arrayrecords(replies, "num-examples").to_torch_state_dict()
        record |= {f"{number}/{name}": value.numpy() for name, value in state.items()}
    np.savez_compressed(FILE, **{name: value for name, value in record.items() if "num_batches" not in name})


if __name__ == "__main__":
    main()
