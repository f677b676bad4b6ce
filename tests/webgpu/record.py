"""Records losses of trainings in float64: PyTorch runs the forward graph node by node, and AdamW by its formula.

    TORCH_PYTHON -m tests.webgpu.record > tests/golden/webgpu/losses.json

`--full NAME` prints the losses of a network of the benchmarks instead.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from tests.webgpu.networks import BATCHES, RATE, RATES, SMALL, STEPS, networks

Values = dict[str, Any]


def _pool(x: torch.Tensor, kernel_shape: list[int], strides: list[int]) -> torch.Tensor:
    return F.max_pool2d(x, kernel_shape, strides)


def _conv(
    x: torch.Tensor, w: torch.Tensor, b: Any = None, *, strides: Any = 1, pads: Any = (0,), group: int = 1, **_: Any
) -> Any:
    return F.conv2d(x, w, b, tuple(strides), (pads[0], pads[0]), groups=group)


def _recurrent(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor, *_: Any, hidden_size: int) -> Any:
    h = s = x.new_zeros(x.shape[1], hidden_size)
    of_x, of_h = b[0].chunk(2)
    for step in x:
        i, o, f, c = (step @ w[0].T + of_x + h @ r[0].T + of_h).chunk(4, 1)
        s = f.sigmoid() * s + i.sigmoid() * c.tanh()
        h = o.sigmoid() * s.tanh()
    return None, h[None], s[None]


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "BatchNormalization": lambda x, g, b, mean, var, epsilon, **_: F.batch_norm(x, mean, var, g, b, eps=epsilon),
    "Conv": _conv,
    "Div": torch.div,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Flatten": lambda x, axis: x.flatten(axis),
    "Gather": lambda x, i, axis: x[i.long()],
    "Gemm": lambda x, w, b, transB: x @ w.T + b,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "Identity": lambda x: x,
    "LSTM": _recurrent,
    "LayerNormalization": lambda x, g, b, axis, epsilon: F.layer_norm(x, x.shape[-1:], g, b, epsilon),
    "MatMul": torch.matmul,
    "MaxPool": _pool,
    "Mul": torch.mul,
    "Relu": torch.relu,
    "Reshape": lambda x, shape: x.reshape(*shape.tolist()),
    "Softmax": lambda x, axis: x.softmax(axis),
    "Split": lambda x, sizes, axis: x.split(sizes.tolist(), axis),
    "Squeeze": lambda x, axes: x.squeeze(*axes.tolist()),
    "Transpose": lambda x, perm: x.permute(*perm),
    "Unsqueeze": lambda x, axes: x[:, None, None],
    "Where": torch.where,
}


def logits(model: onnx.ModelProto, values: Values) -> torch.Tensor:
    """The output of a forward graph."""
    values = dict(values)
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        given = [values[name] if name else None for name in node.input]
        results = OPERATORS[node.op_type](*given, **attributes)
        if not isinstance(results, tuple):
            results = (results,)
        values |= dict(zip(node.output, results, strict=False))
    result: torch.Tensor = values["logits"]
    return result


def losses(net: Any, steps: int, rate: float = RATE) -> list[float]:
    model = net.model()
    values: Values = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in model.graph.initializer}
    values = {name: x.double() if x.is_floating_point() else x for name, x in values.items()}
    trained = {p.name: values[p.name].requires_grad_() for p in net.parameters if p.trainable}
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in trained.items()}
    xs, ys = networks.batches(net, BATCHES, 1)
    found = []
    for k in range(1, steps + 1):
        x = torch.tensor(xs[(k - 1) % BATCHES])
        values["x"] = x.double() if x.is_floating_point() else x
        loss = F.cross_entropy(logits(model, values), torch.tensor(ys[(k - 1) % BATCHES]).long())
        found.append(loss.item())
        slopes = torch.autograd.grad(loss, list(trained.values()))
        with torch.no_grad():
            for (name, w), g in zip(trained.items(), slopes, strict=True):
                m, v = moments[name]
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                w -= rate * (1 - 0.999**k) ** 0.5 / (1 - 0.9**k) * m / (v.sqrt() + 1e-8)
    return found


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(losses(networks.MODELS[sys.argv[2]](), STEPS)))
    else:
        # Rounded: tests compare within 1e-4.
        of_all = {name: losses(make(), STEPS, RATES.get(name, RATE)) for name, make in SMALL.items()}
        print(json.dumps({name: [round(x, 8) for x in of_one] for name, of_one in of_all.items()}))
