"""The server: FedAvg as flwr has it; what every client sent and what became of it is kept."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from rounds import network

CLIENTS = 3
app = ServerApp()


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


class Recorded(FedAvg):
    """Federated averaging that writes down what it is given."""

    def __init__(self, kept: dict[str, np.ndarray], share: float) -> None:
        needed = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
        super().__init__(fraction_evaluate=share, **needed)
        self.kept = kept

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            (arrays,), (metrics,) = reply.content.array_records.values(), reply.content.metric_records.values()
            # Clients have different numbers of examples: that tells them apart.
            for name, array in arrays_of(arrays).items():
                self.kept[f"{server_round}/{metrics['num-examples']}/{name}"] = array
        averaged, metrics = super().aggregate_train(server_round, replies)
        for name, array in arrays_of(averaged).items():
            self.kept[f"{server_round}/average/{name}"] = array
        return averaged, metrics


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder, out = Path(str(config["folder"])), Path(str(config["out"]))
    with np.load(folder / "initial.npz") as file:
        initial = {name: file[name] for name in file.files}
    image, labels = network.load(folder / "test.npz")
    kept: dict[str, np.ndarray] = {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = network.Network()
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = network.measure(net, image, labels)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    settings = {"epochs": config["epochs"], "batch-size": config["batch-size"], "lr": config["learning-rate"]}
    result = Recorded(kept, float(config["evaluate"])).start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial.items()}),
        num_rounds=int(config["rounds"]),
        train_config=ConfigRecord(settings),
        evaluate_fn=evaluate,
    )
    server = {number: dict(metrics) for number, metrics in result.evaluate_metrics_serverapp.items()}
    clients = {number: dict(metrics) for number, metrics in result.evaluate_metrics_clientapp.items()}
    np.savez(out.with_suffix(".npz"), **kept)
    out.with_suffix(".tmp").write_text(json.dumps({"server": server, "clients": clients}))
    out.with_suffix(".tmp").rename(out)
