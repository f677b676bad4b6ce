"""Random small graphs, and what they compute in numpy float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.ops.op_runner import computed

from trainweb.model.graph import Graph, Node, Value
from trainweb.ops.frame.op import bind
from trainweb.training.arrays import from_numpy

MS = "com.microsoft"
UNARY = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
MAX_RANK, MAX_SIZE = 4, 600


class RandomGraph:
    """A graph that grows node by node; `values` holds every tensor's value in float64.

    Parameters
    ----------
    seed
        The same seed makes the same graph.
    zero_sizes
        Whether dims may be 0.
    """

    def __init__(self, seed: int, *, n_nodes: int = 12, zero_sizes: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.zero_sizes = zero_sizes
        self.graph = Graph("random", opsets={"": 17, MS: 1})
        self.values: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.floats: list[str] = []
        for _ in range(3):
            self.feed(self.shape())
        for _ in range(n_nodes):
            self.grow()
        self.choose_outputs()

    # Choices.

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def shape(self) -> tuple[int, ...]:
        dims = (0, 1, 2, 3, 4, 6) if self.zero_sizes else (1, 2, 3, 4, 6)
        return tuple(self.pick(dims) for _ in range(int(self.rng.integers(1, MAX_RANK))))

    def tensor(self) -> str:
        """Some float tensor; recent ones more often, so that chains form."""
        recent = self.floats[-2:] if self.rng.random() < 0.6 else self.floats
        return str(self.pick(recent))

    def feed(self, shape: tuple[int, ...]) -> str:
        name = f"feed{len(self.feeds)}"
        x = self.rng.standard_normal(shape).astype(np.float32)
        self.feeds[name], self.values[name] = x, x.astype(np.float64)
        self.graph.inputs.append(Value(name, "float32", shape))
        self.floats.append(name)
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        name = f"const{len(self.graph.initializers)}"
        self.graph.initializers[name] = from_numpy(name, np.asarray(value, dtype))
        self.values[name] = np.asarray(value, np.float64 if dtype == "float32" else dtype)
        return name

    # Nodes.

    def node(self, op: str, inputs: list[str], n_outputs: int = 1, domain: str = "", **attrs: Any) -> list[str]:
        number = len(self.graph.nodes)
        outs = [f"t{number}_{k}" for k in range(n_outputs)]
        node = Node(op, inputs, outs, attrs, domain, f"n{number}")
        self.graph.nodes.append(node)
        results = computed(bind(node, self.graph.opsets), [self.values[n] for n in inputs])
        for name, value in zip(outs, results, strict=True):
            self.values[name] = value
            if self.values[name].dtype.kind == "f":
                self.floats.append(name)
        return outs

    def grow(self) -> None:
        kinds = (
            self.unary,
            self.binary,
            self.binary,
            self.binary,
            self.matmul,
            self.matmul,
            self.transpose,
            self.reshape,
            self.concat,
            self.split,
            self.slice_grad,
            self.pad,
            self.slice,
            self.reduce,
            self.scale,
            self.where,
            self.bias_relu,
            self.expand,
            self.softmax,
            self.attention,
            self.pool,
            self.batch_norm,
        )
        self.pick(kinds)()

    def unary(self) -> None:
        self.node(self.pick(UNARY), [self.tensor()])

    def binary(self) -> None:
        a = self.tensor()
        shape = self.values[a].shape
        fitting = [n for n in self.floats if _broadcasts(self.values[n].shape, shape)] or [a]
        self.node(self.pick(BINARY), [a, self.pick(fitting)] if self.rng.random() < 0.5 else [self.pick(fitting), a])

    def matmul(self) -> None:
        a = self.tensor()
        shape = self.values[a].shape
        if len(shape) < 2:
            return
        fitting = [n for n in self.floats if self.values[n].ndim == 2 and self.values[n].shape[0] == shape[-1]]
        if not fitting or self.rng.random() < 0.3:
            fitting = [self.feed((shape[-1], int(self.rng.integers(1, 6))))]
        self.node("MatMul", [a, self.pick(fitting)])

    def transpose(self) -> None:
        x = self.tensor()
        self.node("Transpose", [x], perm=[int(k) for k in self.rng.permutation(self.values[x].ndim)])

    def reshape(self) -> None:
        x = self.tensor()
        size = self.values[x].size
        divisors = [d for d in range(1, size + 1) if size % d == 0] or [0]
        d = self.pick(divisors)
        self.node("Reshape", [x, self.constant([d, size // d if d else 1])], allowzero=1)

    def concat(self) -> None:
        x = self.tensor()
        shape = self.values[x].shape
        if not shape:
            return
        axis = int(self.rng.integers(len(shape)))
        like = [n for n in self.floats if _but(self.values[n].shape, axis) == _but(shape, axis)]
        parts = [self.pick(like) for _ in range(int(self.rng.integers(1, 3)))]
        if sum(self.values[p].size for p in parts) < MAX_SIZE:
            self.node("Concat", [x, *parts], axis=axis)

    def split(self) -> None:
        x = self.tensor()
        axes = [k for k, d in enumerate(self.values[x].shape) if d > 1]
        if axes:
            axis = self.pick(axes)
            dim = self.values[x].shape[axis]
            first = int(self.rng.integers(1, dim))
            self.node("Split", [x, self.constant([first, dim - first])], 2, axis=axis)

    def slice(self) -> None:
        x = self.tensor()
        axes = [k for k, d in enumerate(self.values[x].shape) if d > 1]
        if axes:
            axis = self.pick(axes)
            dim = self.values[x].shape[axis]
            start = int(self.rng.integers(0, dim))
            self.node("Slice", [x, *(self.constant([v]) for v in (start, dim, axis, self.pick((1, 2))))])

    def slice_grad(self) -> None:
        x = self.tensor()
        shape = list(self.values[x].shape)
        if not shape or self.values[x].size > MAX_SIZE // 3:
            return
        axis = int(self.rng.integers(len(shape)))
        before, dim = int(self.rng.integers(0, 3)), shape[axis]
        shape[axis] += before + int(self.rng.integers(0, 3))
        given = [shape, [before], [before + dim], [axis]]
        self.node("SliceGrad", [x, *map(self.constant, given)], domain=MS)

    def pad(self) -> None:
        x = self.tensor()
        if self.values[x].ndim and self.values[x].size < MAX_SIZE // 4:
            pads = self.rng.integers(0, 2, 2 * self.values[x].ndim)
            self.node("Pad", [x, self.constant(pads)])

    def reduce(self) -> None:
        x = self.tensor()
        if self.values[x].ndim:
            axis = int(self.rng.integers(self.values[x].ndim))
            self.node("ReduceSum", [x, self.constant([axis])], keepdims=int(self.rng.integers(2)))

    def scale(self) -> None:
        self.node(self.pick(("Mul", "Div")), [self.tensor(), self.constant(self.pick((0.5, -2.0, 1.5)), "float32")])

    def where(self) -> None:
        a = self.tensor()
        shape = self.values[a].shape
        same = [n for n in self.floats if self.values[n].shape == shape]
        # Against a constant that no sum or product of random numbers hits.
        (condition,) = self.node("Greater", [self.pick(same), self.constant(0.1234567, "float32")])
        if self.rng.random() < 0.5:
            (condition,) = self.node("Not", [condition])
        self.node("Where", [condition, a, self.pick(same)])

    def bias_relu(self) -> None:
        x = self.tensor()
        shape = self.values[x].shape
        if shape:
            bias = self.constant(self.rng.standard_normal(shape[-1]), "float32")
            (y,) = self.node("Add", [x, bias])
            self.node("Relu", [y])

    def expand(self) -> None:
        x = self.tensor()
        if self.values[x].size < MAX_SIZE // 4:
            self.node("Expand", [x, self.constant([2, *self.values[x].shape])])

    def bounded(self, x: str) -> str:
        """A tensor whose rounding errors must not grow."""
        return self.node("Tanh", [x])[0]

    def softmax(self) -> None:
        x = self.tensor()
        shape = self.values[x].shape
        if shape and 0 not in shape:
            self.node(self.pick(("Softmax", "LogSoftmax")), [self.bounded(x)], axis=int(self.rng.integers(len(shape))))

    def attention(self) -> None:
        """softmax(scale q k') v; what it makes on the way may be read by others."""
        m, n, d = (int(self.rng.integers(2, 6)) for _ in range(3))
        q, k, v = (self.bounded(self.feed((2, rows, d))) for rows in (m, n, n))
        (turned,) = self.node("Transpose", [k], perm=[0, 2, 1])
        (scores,) = self.node("MatMul", [q, turned])
        if self.rng.random() < 0.7:
            (scores,) = self.node("Mul", [scores, self.constant(0.5, "float32")])
        (weights,) = self.node("Softmax", [scores], axis=-1)
        self.node("MatMul", [weights, v])

    def pool(self) -> None:
        """Relu, max pooling, and the gradients of both by something of the size of the result."""
        x = self.feed((1, 2, 4, 6))
        (y,) = self.node("Relu", [x])
        window = {"kernel_shape": [2, 2], "strides": [2, 2]}
        p, indices = self.node("MaxPool", [y], 2, **window)
        (dy,) = self.node("Neg", [p])
        name = f"{y}_grad"
        self.graph.nodes.append(Node("MaxPoolGrad", [dy, indices], [name], window, "", f"n{len(self.graph.nodes)}"))
        gradient = np.zeros(self.values[y].size)
        gradient[self.values[indices].ravel()] = self.values[dy].ravel()  # windows do not overlap
        self.values[name] = gradient.reshape(self.values[y].shape)
        self.floats.append(name)
        self.node("ReluGrad", [name, self.pick((x, y))], domain=MS)

    def batch_norm(self) -> None:
        """By statistics of the batch, which move running ones."""
        x = self.tensor()
        shape = self.values[x].shape
        if len(shape) < 2 or 0 in shape:
            return
        vectors = [self.constant(self.rng.uniform(0.5, 1.5, shape[1]), "float32") for _ in range(4)]
        inputs = [self.bounded(x), *vectors]
        self.node("BatchNormalization", inputs, 3, training_mode=1, epsilon=0.1)

    # Outputs.

    def choose_outputs(self) -> None:
        """Some tensors, among them one that others read, and the last."""
        made = [n for node in self.graph.nodes for n in node.outputs]
        count = min(len(made), int(self.rng.integers(1, 5)))
        names = {str(n) for n in self.rng.choice(made, count, replace=False)} | {made[-1]}
        self.graph.outputs = [Value(n, "float32", None) for n in sorted(names)]

    def expected(self) -> dict[str, np.ndarray]:
        return {v.name: self.values[v.name] for v in self.graph.outputs}


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a, b), dtype=np.int64)) <= MAX_SIZE
    except ValueError:
        return False


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, tuple[int, ...]]:
    """The rank, and all dims but one."""
    return len(shape), (*shape[:axis], *shape[axis + 1 :])
