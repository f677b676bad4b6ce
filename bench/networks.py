"""Forward models that the benchmarks train, written with onnx.helper; weights come from fixed seeds.

| name | model | batch |
|---|---|---|
| A | MLP 784-256-128-10 | 64 |
| B | MLP 784-1024-1024-10 | 128 |
| C | LeNet: two 3x3 convolutions with pooling, two linear layers, 1x28x28 | 32 |
| D | ResNet-8 with BatchNormalization, 3x32x32 | 16 |
| Dn | D without BatchNormalization | 16 |
| E | GPT-nano: 4 layers, d 128, 4 heads, 64 tokens, vocabulary 96 | 8 |
| F | four frozen strided convolutions under a linear layer that trains, 3x64x64 | 32 |
| L | logistic regression 784-10: batches of 100 KB, and little to compute on them | 32 |
| M | MLP 128-32-10, so small that a step is mostly what is around it | 1 |
| Z | MLP 8-16-3, a step of microseconds: the way to the worker and back is most of it | 8 |
| R | LSTM 16 -> 64 over 32 steps, and a linear layer on its last state | 32 |
| G | GRU 128 -> 256 over 64 steps, and a linear layer on its last state | 16 |
| S | MobileNet: a stem and eight depthwise-separable blocks, 32 to 256 channels, 3x32x32 | 16 |
| S1 | S on 3x112x112 | 1 |
| Rn | ResNet-18 without normalization, 3x64x64 | 4 |
| X | a stage of ConvNeXt: three blocks of 96 channels, 28x28, depthwise 7x7 | 4 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
N_CLASSES = 10


@dataclass
class Parameter:
    """An initializer of the model; frozen ones stay as they are."""

    name: str
    value: np.ndarray
    trainable: bool


@dataclass
class Network:
    """A forward model under construction.

    Attributes
    ----------
    batch : dict
        What `batches` needs: "x" (shape of a batch), "kind" ("dense" or "tokens"), "classes".
    """

    name: str
    seed: int
    description: dict[str, Any] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    flops: float = 0.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    # Building blocks.

    def fresh(self, prefix: str) -> str:
        """A name that no tensor has yet."""
        self._count += 1
        return f"{prefix}_{self._count}"

    def op(self, op_type: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.ops(op_type, inputs, [output or self.fresh(op_type.lower())], **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Sequence[str]:
        """Add a node with several outputs."""
        self.nodes.append(
            helper.make_node(op_type, list(inputs), list(outputs), name=self.fresh(op_type), **attributes)
        )
        return outputs

    def parameter(self, name: str, value: np.ndarray, trainable: bool = True) -> str:
        """Add a parameter."""
        self.parameters.append(Parameter(name, np.ascontiguousarray(value, dtype=np.float32), trainable))
        return name

    def constant(self, value: Any) -> str:
        """Add an initializer that is no parameter."""
        name = self.fresh("const")
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def input(self, shape: Sequence[int], *, tokens: bool = False) -> str:
        """Declare the input x."""
        dtype = TensorProto.INT64 if tokens else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info("x", dtype, list(shape)))
        self.description.update(xshape=list(shape), xdtype="int32" if tokens else "float32")
        return "x"

    def output(self, x: str, rows: int, classes: int) -> None:
        """Declare the logits, [rows, classes]; labels are one a row."""
        self.op("Identity", [x], output="logits")
        self.outputs.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, [rows, classes]))
        self.description.update(ysize=rows, classes=classes)

    def linear(self, x: str, rows: int, n_in: int, n_out: int, name: str, *, needs_dx: bool = True) -> str:
        """Gemm with weight [out, in] and bias, initialised as torch.nn.Linear."""
        bound = 1 / math.sqrt(n_in)
        weight = self.parameter(f"{name}.weight", self.rng.uniform(-bound, bound, (n_out, n_in)))
        bias = self.parameter(f"{name}.bias", self.rng.uniform(-bound, bound, (n_out,)))
        self.count(rows * n_in * n_out, trainable=True, needs_dx=needs_dx)
        return self.op("Gemm", [x, weight, bias], transB=1)

    def conv(
        self,
        x: str,
        n_in: int,
        n_out: int,
        name: str,
        *,
        out_pixels: int,
        kernel: int = 3,
        stride: int = 1,
        group: int = 1,
        bias: bool = True,
        trainable: bool = True,
        gain: float = 1.0,
        needs_dx: bool = True,
    ) -> str:
        """Convolution that keeps the size (up to its stride); `out_pixels` is batch x height x width of its output."""
        bound = gain / math.sqrt(n_in // group * kernel * kernel)
        shape = (n_out, n_in // group, kernel, kernel)
        inputs = [x, self.parameter(f"{name}.weight", self.rng.uniform(-bound, bound, shape), trainable)]
        if bias:
            inputs.append(self.parameter(f"{name}.bias", self.rng.uniform(-bound, bound, (n_out,)), trainable))
        self.count(out_pixels * n_in // group * n_out * kernel**2, trainable=trainable, needs_dx=needs_dx)
        attributes: dict[str, Any] = dict(kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
        if group > 1:
            attributes["group"] = group
        return self.op("Conv", inputs, **attributes)

    def count(self, multiply_adds: float, *, trainable: bool, needs_dx: bool) -> None:
        """Add the FLOPs of a product: forward, and in backward one for each gradient wanted."""
        self.flops += 2 * multiply_adds * (1 + (trainable and needs_dx) + trainable)

    # Result.

    def model(self) -> onnx.ModelProto:
        """The forward model, checked."""
        initializers = self.constants + [numpy_helper.from_array(p.value, p.name) for p in self.parameters]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model

    @property
    def n_trainable(self) -> int:
        """Number of elements that train."""
        return sum(p.value.size for p in self.parameters if p.trainable)


def mlp(name: str, widths: Sequence[int], batch: int, seed: int) -> Network:
    """Linear layers with ReLU between them."""
    net = Network(name, seed, dict(kind="mlp", dims=list(widths), batch=batch))
    x = net.input([batch, widths[0]])
    last = len(widths) - 2
    for k in range(last + 1):
        x = net.linear(x, batch, widths[k], widths[k + 1], f"fc{k + 1}", needs_dx=k > 0)
        if k < last:
            x = net.op("Relu", [x])
    net.output(x, batch, widths[-1])
    return net


def lenet(name: str, batch: int, seed: int) -> Network:
    """Two convolutions, each with ReLU and 2x2 pooling, and two linear layers."""
    net = Network(name, seed, dict(kind="lenet", batch=batch))
    x = net.input([batch, 1, 28, 28])
    x = net.op("Relu", [net.conv(x, 1, 32, "conv1", out_pixels=batch * 28 * 28, needs_dx=False)])
    x = net.op("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", [net.conv(x, 32, 64, "conv2", out_pixels=batch * 14 * 14)])
    x = net.op("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Flatten", [x], axis=1)
    x = net.op("Relu", [net.linear(x, batch, 64 * 7 * 7, 128, "fc1")])
    net.output(net.linear(x, batch, 128, N_CLASSES, "fc2"), batch, N_CLASSES)
    return net


def resnet(name: str, batch: int, seed: int, *, norm: bool, size: int = 32) -> Network:
    """Stem and three residual blocks of 16, 32 and 64 channels."""
    net = Network(name, seed, dict(kind="resnet", bn=norm, batch=batch))
    x = net.input([batch, 3, size, size])

    def unit(x: str, n_in: int, n_out: int, name: str, side: int, stride: int = 1, kernel: int = 3) -> str:
        # Without normalization: a bias, and a gain large enough for the net to train.
        y = net.conv(
            x,
            n_in,
            n_out,
            name,
            out_pixels=batch * side**2,
            kernel=kernel,
            stride=stride,
            bias=not norm,
            gain=math.sqrt(3),
            needs_dx=name != "stem",
        )
        if not norm:
            return y
        statistics = [("gamma", 1, True), ("beta", 0, True), ("mean", 0, False), ("var", 1, False)]
        names = [net.parameter(f"{name}.bn.{n}", np.full(n_out, v), train) for n, v, train in statistics]
        # As exported for inference; both trainers turn it into the form with batch statistics.
        return net.op("BatchNormalization", [y, *names], momentum=0.9, epsilon=1e-5)

    x = net.op("Relu", [unit(x, 3, 16, "stem", size)])
    n_in = 16
    for stage, n_out in enumerate([16, 32, 64]):
        stride = 1 if stage == 0 else 2
        side = size >> stage
        y = net.op("Relu", [unit(x, n_in, n_out, f"s{stage}.a", side, stride)])
        y = unit(y, n_out, n_out, f"s{stage}.b", side)
        shortcut = x if stage == 0 else unit(x, n_in, n_out, f"s{stage}.sc", side, stride, kernel=1)
        x = net.op("Relu", [net.op("Add", [y, shortcut])])
        n_in = n_out
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])], axis=1)
    net.output(net.linear(x, batch, n_in, N_CLASSES, "fc"), batch, N_CLASSES)
    return net


def separable(name: str, batch: int, seed: int, *, size: int) -> Network:
    """Stem and blocks of a depthwise 3x3 and a 1x1 convolution, as in MobileNet at a quarter of its width and more."""
    net = Network(name, seed, dict(kind="separable", batch=batch))
    x = net.input([batch, 3, size, size])
    gain = math.sqrt(6)
    side = size // 2
    x = net.conv(x, 3, 32, "stem", out_pixels=batch * side**2, stride=2, gain=gain, needs_dx=False)
    x = net.op("Relu", [x])
    n_in = 32
    for k, (n_out, stride) in enumerate([(64, 1), (128, 2), (128, 1), (256, 2), *[(256, 1)] * 4]):
        side = (side - 1) // stride + 1
        pixels = batch * side**2
        x = net.conv(x, n_in, n_in, f"b{k}.depth", out_pixels=pixels, stride=stride, group=n_in, gain=gain)
        x = net.conv(net.op("Relu", [x]), n_in, n_out, f"b{k}.point", out_pixels=pixels, kernel=1, gain=gain)
        x = net.op("Relu", [x])
        n_in = n_out
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])], axis=1)
    net.output(net.linear(x, batch, n_in, N_CLASSES, "fc"), batch, N_CLASSES)
    return net


def resnet18(name: str, batch: int, seed: int, *, size: int) -> Network:
    """Eight residual blocks of 64 to 512 channels behind a stem of stride 4, each convolution with a bias."""
    net = Network(name, seed, dict(kind="resnet18", batch=batch))
    x = net.input([batch, 3, size, size])
    side = size // 2
    x = net.conv(x, 3, 64, "stem", out_pixels=batch * side**2, kernel=7, stride=2, gain=math.sqrt(3), needs_dx=False)
    x = net.op("MaxPool", [net.op("Relu", [x])], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    side, n_in = side // 2, 64
    for k, n_out in enumerate([64, 64, 128, 128, 256, 256, 512, 512]):
        stride = 1 if n_in == n_out else 2
        side //= stride
        pixels = batch * side**2
        y = net.op("Relu", [net.conv(x, n_in, n_out, f"b{k}.a", out_pixels=pixels, stride=stride, gain=math.sqrt(3))])
        y = net.conv(y, n_out, n_out, f"b{k}.b", out_pixels=pixels)
        if n_in != n_out:
            x = net.conv(x, n_in, n_out, f"b{k}.short", out_pixels=pixels, kernel=1, stride=stride)
        x = net.op("Relu", [net.op("Add", [y, x])])
        n_in = n_out
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])], axis=1)
    net.output(net.linear(x, batch, n_in, N_CLASSES, "fc"), batch, N_CLASSES)
    return net


def convnext(name: str, batch: int, seed: int, *, width: int, size: int, blocks: int) -> Network:
    """A patch stem and blocks of depthwise 7x7, LayerNormalization over channels, and two linear layers with GELU."""
    net = Network(name, seed, dict(kind="convnext", batch=batch))
    pixels = batch * size**2
    x = net.input([batch, 3, 4 * size, 4 * size])
    weight = net.parameter("stem.weight", net.rng.uniform(-1, 1, (width, 3, 4, 4)) / math.sqrt(48))
    net.count(pixels * 48 * width, trainable=True, needs_dx=False)
    x = net.op("Conv", [x, weight, net.parameter("stem.bias", np.zeros(width))], kernel_shape=[4, 4], strides=[4, 4])
    sqrt2, one, half = (net.constant(np.float32(v)) for v in (math.sqrt(2), 1, 0.5))

    def linear(x: str, n_in: int, n_out: int, name: str) -> str:
        bound = 1 / math.sqrt(n_in)
        weight = net.parameter(f"{name}.weight", net.rng.uniform(-bound, bound, (n_in, n_out)))
        net.count(pixels * n_in * n_out, trainable=True, needs_dx=True)
        return net.op("Add", [net.op("MatMul", [x, weight]), net.parameter(f"{name}.bias", np.zeros(n_out))])

    for k in range(blocks):
        y = net.conv(x, width, width, f"b{k}.depth", out_pixels=pixels, kernel=7, group=width)
        y = net.op("Transpose", [y], perm=[0, 2, 3, 1])
        inputs = [y, net.parameter(f"b{k}.norm.g", np.ones(width)), net.parameter(f"b{k}.norm.b", np.zeros(width))]
        outputs = [net.fresh("LayerNormalization") for _ in range(3)]
        y = net.ops("LayerNormalization", inputs, outputs, axis=-1, epsilon=1e-6)[0]
        y = linear(y, width, 4 * width, f"b{k}.up")
        y = net.op("Mul", [net.op("Mul", [y, net.op("Add", [net.op("Erf", [net.op("Div", [y, sqrt2])]), one])]), half])
        y = linear(y, 4 * width, width, f"b{k}.down")
        x = net.op("Add", [x, net.op("Transpose", [y], perm=[0, 3, 1, 2])])
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])], axis=1)
    net.output(net.linear(x, batch, width, N_CLASSES, "fc"), batch, N_CLASSES)
    return net


def gpt(
    name: str,
    seed: int,
    *,
    batch: int = 8,
    length: int = 64,
    width: int = 128,
    heads: int = 4,
    layers: int = 4,
    vocabulary: int = 96,
) -> Network:
    """Decoder-only transformer with learnt positions, pre-norm blocks and exact GELU, as PyTorch exports it."""
    net = Network(
        name,
        seed,
        dict(kind="gpt", batch=batch, S=length, D=width, H=heads, L=layers, V=vocabulary),
    )
    rng, rows = net.rng, batch * length
    ids = net.input([batch, length], tokens=True)
    wte = net.parameter("wte", rng.normal(0, 0.02, (vocabulary, width)))
    wpe = net.parameter("wpe", rng.normal(0, 0.02, (length, width)))
    x = net.op("Add", [net.op("Gather", [wte, ids], axis=0), wpe])
    head_shape = net.constant(np.array([batch, length, heads, width // heads], np.int64))
    flat_shape = net.constant(np.array([batch, length, width], np.int64))
    thirds = net.constant(np.array([width] * 3, np.int64))
    mask = net.constant(np.triu(np.full((length, length), -1e9, np.float32), 1)[None, None])
    scale = net.constant(np.float32(1 / math.sqrt(width // heads)))
    sqrt2, one, half = (net.constant(np.float32(v)) for v in (math.sqrt(2), 1, 0.5))

    def norm(x: str, name: str) -> str:
        # Three outputs: the gradient of ONNX Runtime 1.19 wants Mean and InvStdDev declared.
        inputs = [x, net.parameter(f"{name}.g", np.ones(width)), net.parameter(f"{name}.b", np.zeros(width))]
        outputs = [net.fresh("layernorm") for _ in range(3)]
        return net.ops("LayerNormalization", inputs, outputs, axis=-1, epsilon=1e-5)[0]

    def project(x: str, n_in: int, n_out: int, name: str) -> str:
        weight = net.parameter(f"{name}.w", rng.normal(0, 0.02, (n_in, n_out)))
        net.count(rows * n_in * n_out, trainable=True, needs_dx=True)
        return net.op("Add", [net.op("MatMul", [x, weight]), net.parameter(f"{name}.b", np.zeros(n_out))])

    def split_heads(x: str, permutation: Sequence[int]) -> str:
        return net.op("Transpose", [net.op("Reshape", [x, head_shape])], perm=list(permutation))

    def attention(x: str, name: str) -> str:
        q, k, v = net.ops(
            "Split", [project(x, width, 3 * width, f"{name}.qkv"), thirds], [net.fresh("split") for _ in "qkv"], axis=2
        )
        scores = net.op("MatMul", [split_heads(q, (0, 2, 1, 3)), split_heads(k, (0, 2, 3, 1))])
        scores = net.op("Add", [net.op("Mul", [scores, scale]), mask])
        context = net.op("MatMul", [net.op("Softmax", [scores], axis=-1), split_heads(v, (0, 2, 1, 3))])
        net.count(2 * rows * length * width, trainable=True, needs_dx=True)
        y = net.op("Reshape", [net.op("Transpose", [context], perm=[0, 2, 1, 3]), flat_shape])
        return project(y, width, width, f"{name}.proj")

    def gelu(x: str) -> str:
        erf = net.op("Add", [net.op("Erf", [net.op("Div", [x, sqrt2])]), one])
        return net.op("Mul", [net.op("Mul", [x, erf]), half])

    for layer in range(layers):
        x = net.op("Add", [x, attention(norm(x, f"h{layer}.ln1"), f"h{layer}")])
        y = gelu(project(norm(x, f"h{layer}.ln2"), width, 4 * width, f"h{layer}.fc"))
        x = net.op("Add", [x, project(y, 4 * width, width, f"h{layer}.fcproj")])
    x = net.op("MatMul", [norm(x, "lnf"), net.parameter("head.w", rng.normal(0, 0.02, (width, vocabulary)))])
    net.count(rows * width * vocabulary, trainable=True, needs_dx=True)
    x = net.op("Reshape", [x, net.constant(np.array([rows, vocabulary], np.int64))])
    net.output(x, rows, vocabulary)
    return net


def recurrent(
    name: str, op_type: str, gates: int, batch: int, seed: int, *, steps: int, features: int, hidden: int
) -> Network:
    """A recurrent layer, initialised as PyTorch does, and a linear layer on its last state."""
    net = Network(name, seed, dict(kind="recurrent", batch=batch, steps=steps))
    x = net.op("Transpose", [net.input([batch, steps, features])], perm=[1, 0, 2])
    bound, rows = 1 / math.sqrt(hidden), gates * hidden
    shapes = {"W": (1, rows, features), "R": (1, rows, hidden), "B": (1, 2 * rows)}
    weights = [net.parameter(f"rnn.{n}", net.rng.uniform(-bound, bound, shape)) for n, shape in shapes.items()]
    net.count(batch * steps * rows * features, trainable=True, needs_dx=False)
    net.count(batch * steps * rows * hidden, trainable=True, needs_dx=True)
    # The gradients of ONNX Runtime 1.19 want the first states, and every output named.
    n_states = 1 if op_type == "GRU" else 2
    first = [net.constant(np.zeros((1, batch, hidden), np.float32)) for _ in range(n_states)]
    attributes: dict[str, int] = {"linear_before_reset": 1} if op_type == "GRU" else {}
    outputs = ["states", "last", "cell"][: 1 + n_states]
    last = net.ops(op_type, [x, *weights, "", *first], outputs, hidden_size=hidden, **attributes)[1]
    last = net.op("Squeeze", [last, net.constant(np.array([0], np.int64))])
    net.output(net.linear(last, batch, hidden, N_CLASSES, "head"), batch, N_CLASSES)
    return net


def transfer(name: str, batch: int, seed: int) -> Network:
    """Frozen convolutions as features under a linear layer."""
    net = Network(name, seed, dict(kind="transfer", batch=batch))
    x = net.input([batch, 3, 64, 64])
    n_in = 3
    for k, n_out in enumerate([16, 32, 64, 128]):
        pixels = batch * (32 >> k) ** 2
        x = net.op(
            "Relu",
            [net.conv(x, n_in, n_out, f"feat{k + 1}", out_pixels=pixels, stride=2, trainable=False, gain=math.sqrt(3))],
        )
        n_in = n_out
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])], axis=1)
    net.output(net.linear(x, batch, n_in, N_CLASSES, "fc", needs_dx=False), batch, N_CLASSES)
    return net


def chain(name: str, n_nodes: int, seed: int, *, width: int = 8, batch: int = 4) -> Network:
    """About `n_nodes` tiny nodes, of the kinds in turn that models are made of: what an operator costs by itself."""
    net = Network(name, seed, dict(kind="chain", batch=batch))
    x = net.input([batch, width])
    half = net.constant(np.float32(0.5))
    k = 0
    while len(net.nodes) < n_nodes - 2:
        y = net.linear(x, batch, width, width, f"fc{k}", needs_dx=k > 0)
        y = net.op("Tanh", [net.op("Mul", [y, half])])
        x = net.op("Add", [x, net.op("Sigmoid", [y])])
        k += 1
    net.output(net.linear(x, batch, width, N_CLASSES, "head"), batch, N_CLASSES)
    return net


MODELS: dict[str, Callable[[], Network]] = {
    "A": lambda: mlp("A", [784, 256, 128, 10], 64, 1),
    "B": lambda: mlp("B", [784, 1024, 1024, 10], 128, 2),
    "C": lambda: lenet("C", 32, 3),
    "D": lambda: resnet("D", 16, 4, norm=True),
    "Dn": lambda: resnet("Dn", 16, 4, norm=False),
    "E": lambda: gpt("E", 5),
    "F": lambda: transfer("F", 32, 6),
    "L": lambda: mlp("L", (784, 10), 32, 14),
    "M": lambda: mlp("M", (128, 32, 10), 1, 7),
    "Z": lambda: mlp("Z", (8, 16, 3), 8, 15),
    "R": lambda: recurrent("R", "LSTM", 4, 32, 8, steps=32, features=16, hidden=64),
    "G": lambda: recurrent("G", "GRU", 3, 16, 9, steps=64, features=128, hidden=256),
    "S": lambda: separable("S", 16, 10, size=32),
    "S1": lambda: separable("S1", 1, 11, size=112),
    "Rn": lambda: resnet18("Rn", 4, 12, size=64),
    "X": lambda: convnext("X", 4, 13, width=96, size=28, blocks=3),
}


def batches(net: Network, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels that can be learnt.

    Returns
    -------
    x, y
        (count, *shape of x) float32 or int32, and (count, rows) int32.
    """
    rng = np.random.default_rng(1000 + seed)
    d = net.description
    xs, ys = [], []
    for _ in range(count):
        if d["xdtype"] == "int32":
            x = rng.integers(0, d["V"], d["xshape"]).astype(np.int32)
            y = np.roll(x, -1, axis=1).reshape(-1).astype(np.int32)
        else:
            y = rng.integers(0, d["classes"], d["batch"]).astype(np.int32)
            x = rng.normal(0, 1, d["xshape"]).astype(np.float32)
            rows = x.reshape(d["batch"], -1)
            rows[np.arange(d["batch"]), (y * 7) % rows.shape[1]] += 4.0
        xs.append(x)
        ys.append(y)
    return np.stack(xs), np.stack(ys)
