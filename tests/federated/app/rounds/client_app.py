"""A client in PyTorch: the reference that pages are held to."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from rounds import network

app = ClientApp()


def opened(message: Message, context: Context) -> tuple[network.Network, torch.Tensor, torch.Tensor]:
    torch.set_num_threads(1)
    net = network.Network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = context.node_config
    return net, *network.load(Path(str(config["folder"])) / f"part{config['part']}.npz")


@app.train()
def train(message: Message, context: Context) -> Message:
    net, image, labels = opened(message, context)
    config = message.content["config"]
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"])
    losses = []
    for _ in range(config["epochs"]):
        for rows in torch.arange(len(labels)).split(config["batch-size"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(image[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    metrics = MetricRecord({"num-examples": len(labels), "loss": sum(losses) / len(losses)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, image, labels = opened(message, context)
    loss, accuracy = network.measure(net, image, labels)
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
