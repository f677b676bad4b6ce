"""Inlining of model-local functions: the graph that the other stages see has none."""

from __future__ import annotations

from typing import Any

from ..errors import LimitError, ModelError, UnsupportedError
from .checks import check_name, check_opsets
from .graph import TRAINWEB, Node

MAX_DEPTH = 50
"""Functions calling functions; exporters reach 5. Inlining recurses, and Python has a limit."""

CHANGES = {
    8: "MaxPool",
    9: "BatchNormalization Scan Upsample",
    10: "AveragePool MaxPool Slice TopK",
    11: "Clip Constant DepthToSpace Gemm Pad Resize TopK",
    12: "ArgMax ArgMin Constant Dropout GatherND",
    13: "DequantizeLinear Hardmax LogSoftmax QuantizeLinear ReduceSum Resize Softmax Split Squeeze Unsqueeze",
    14: "BatchNormalization GRU LSTM RNN Reshape",
    15: "Shape",
    16: "RoiAlign ScatterElements ScatterND",
    18: "LpPool OptionalHasElement Pad ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean "
    "ReduceMin ReduceProd ReduceSumSquare Resize Split",
    19: "AveragePool Cast CastLike QuantizeLinear",
    20: "DFT GridSample",
    21: "DequantizeLinear GroupNormalization QuantizeLinear",
    23: "DequantizeLinear QuantizeLinear",
    24: "Attention Cast CastLike",
    25: "Attention",
    27: "Range",
    28: "BitShift Mod SpaceToDepth",
}
"""Operators of ai.onnx whose inputs, outputs, attributes or meaning an opset changed. Other versions only add types."""

Key = tuple[str, str, str]
"""Domain, name, overload."""


class Function:
    """A FunctionProto with its names checked."""

    def __init__(self, proto: Any) -> None:
        self.key = function_key(proto, proto.name)
        self.name = proto.name
        what = f"function {self.name!r}"
        if not self.name:
            raise ModelError("a model-local function has no name")
        self.nodes = proto.node
        self.inputs = [check_name(name, f"an input of {what}") for name in proto.input]
        self.outputs = [check_name(name, f"an output of {what}") for name in proto.output]
        for formal in (self.inputs, self.outputs):
            if len(set(formal)) != len(formal) or "" in formal:
                raise ModelError(f"{what} has two inputs or outputs of one name, or one without: {formal}")
        self.attributes = [check_name(name, f"an attribute of {what}") for name in proto.attribute]
        self.defaults = list(proto.attribute_proto)
        self.opsets = check_opsets(proto.opset_import, what)

    def check_opset(self, node: Node, models: dict[str, int]) -> None:
        """Check that a node of the function means the same in the model's opset: a graph has one per domain."""
        version = self.opsets.get(node.domain, models.get(node.domain, 1))
        first, last = sorted((version, models.setdefault(node.domain, version)))
        changed = any(first < since <= last and node.op_type in names.split() for since, names in CHANGES.items())
        if changed or (node.domain and first < last):
            raise UnsupportedError(
                f"{node}: function {self.name!r} uses opset {version} of {node.domain or 'ai.onnx'!r}, the model opset "
                f"{models[node.domain]}, and {node.op_type} differs between them. Convert the model to one opset.",
                op=node.op_type,
                domain=node.domain,
                opset=version,
                node=node.name,
            )


class Frame:
    """One call of a function: the meaning of its names and attributes.

    `prefix` goes before the names of edges inside. `caller` is the call around this one, or None.
    """

    def __init__(self, function: Function, prefix: str, caller: Frame | None) -> None:
        self.function, self.prefix = function, prefix
        self.names: dict[str, str] = {"": ""}
        self.attrs: dict[str, tuple[int, Any]] = {}
        self.active: set[Key] = {function.key} | (caller.active if caller else set())
        if caller and function.key in caller.active:
            raise ModelError(f"function {function.name!r} calls itself")
        if len(self.active) > MAX_DEPTH:
            raise LimitError(f"function {function.name!r} is called through {MAX_DEPTH} others")

    def rename(self, name: str) -> str:
        """The name of an edge of the function in the graph."""
        if name not in self.names:
            self.names[name] = self.prefix + name
        return self.names[name]

    def bind(self, inputs: list[str], outputs: list[str], what: str) -> list[tuple[str, str]]:
        """Bind edges to the function's inputs and outputs; return pairs of both that need an Identity node."""
        function = self.function
        if len(inputs) > len(function.inputs) or len(outputs) > len(function.outputs):
            raise ModelError(
                f"{what} has {len(inputs)} inputs and {len(outputs)} outputs; function "
                f"{function.name!r} "
                f"has {len(function.inputs)} and {len(function.outputs)}"
            )
        missing = [""] * (len(function.inputs) - len(inputs))
        self.names.update(zip(function.inputs, inputs + missing, strict=True))
        through = []
        for formal, actual in zip(function.outputs, outputs, strict=False):
            if formal in function.inputs:
                if actual:
                    through.append((self.names[formal], actual))
            elif actual:
                self.names[formal] = actual
        return through


def function_key(proto: Any, name: str) -> Key:
    """The common key of a node and its function; fits NodeProto and FunctionProto."""
    what = f"function {name!r}"
    domain = check_name(proto.domain, f"the domain of {what}")
    if domain == TRAINWEB:
        name = name.partition("_")[0]  # `Recurrence_1` stands for an operator of ours, `Recurrence`
    return (
        "" if domain == "ai.onnx" else domain,
        check_name(name, what),
        check_name(proto.overload, f"overload of {what}"),
    )
