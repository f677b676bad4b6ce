"""Records torch's packed sequences, and exports of the same modules for padded ones: `python record.py [NAMES]`.

It takes torch, onnx and onnxscript. docs/series.md edits the exports in the same way.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

HERE = Path(__file__).parent
LENGTHS = [5, 1, 7, 3]
MODULES = {
    "lstm": lambda: nn.LSTM(2, 3, batch_first=True),
    "lstm_both": lambda: nn.LSTM(2, 3, num_layers=2, batch_first=True, bidirectional=True),
    "gru_both": lambda: nn.GRU(2, 3, batch_first=True, bidirectional=True),
}


class Last(nn.Module):
    """The last state of the last layer, of each direction, and a linear layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.directions = 1 + layer.bidirectional
        self.next = nn.Linear(3 * self.directions, 2)

    def forward(self, window, lengths=None):
        if lengths is not None:
            window = pack_padded_sequence(window, lengths, batch_first=True, enforce_sorted=False)
        _, state = self.layer(window)
        last = state[0] if isinstance(state, tuple) else state
        return self.next(torch.cat([last[k - self.directions] for k in range(self.directions)], dim=1))


def with_lengths(model):
    """The edit of docs/series.md."""
    lengths = onnx.helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, ["batch"])
    model.graph.input.append(lengths)
    for node in model.graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN"):
            node.input[:] = [*node.input[:4], "lengths", *node.input[5:]]
        del node.metadata_props[:]  # notes such as stack traces, which are most of a small file
    del model.graph.value_info[:], model.graph.metadata_props[1:]  # the first has the names of parameters
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    return model


def record(name):
    torch.manual_seed(len(name))
    module = Last(MODULES[name]())
    window, labels = torch.randn(4, 7, 2), torch.randn(4, 2)
    batch = ({0: torch.export.Dim("batch", min=1, max=64)},)
    names = {"input_names": ["window"], "output_names": ["next"]}
    program = torch.onnx.export(
        module.eval(), (window,), dynamo=True, optimize=False, external_data=False, dynamic_shapes=batch, **names
    )
    onnx.save(with_lengths(program.model_proto), HERE / f"{name}.onnx")
    module.double()
    loss = nn.functional.mse_loss(module(window.double(), torch.tensor(LENGTHS)), labels.double())
    loss.backward()
    gradients = {key: np.asarray(p.grad).ravel().tolist() for key, p in module.named_parameters()}
    feeds = {"window": window.tolist(), "labels": labels.tolist(), "lengths": LENGTHS}
    return {"torch": torch.__version__, "feeds": feeds, "loss": loss.item(), "gradients": gradients}


if __name__ == "__main__":
    path = HERE / "expected.json"
    expected = json.loads(path.read_text()) if path.exists() else {}
    expected |= {name: record(name) for name in sys.argv[1:] or MODULES}
    path.write_text(json.dumps(expected))
