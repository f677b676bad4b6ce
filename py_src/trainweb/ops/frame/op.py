"""The base class of operators and their registry.

An operator lives in one class: versions, attributes, shape inference, gradient and lowering. Its samples and its
reference in numpy are in tests/ops/cases. An instance is the operator bound to one node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_VARARGS
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from trainweb.errors import ModelError, UnsupportedError
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal_shapes
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf, BufSequence
from trainweb.ir.shapes import TensorType, broadcast_shapes
from trainweb.model.graph import TRAINWEB, Node, Tensor
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.since import SINCE, load_families

T = TypeVar("T")
Names = list[str | None]
"""Names of tensors; None where there is none."""

MANY = 2**31 - 1
"""`max_inputs` of an operator that takes any number."""

FLOATS = ("float32", "float64")
INTS = ("int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class Attr:
    """Type of an attribute and its default; `required` where the operator has none. `among`: the allowed values."""

    type: type | tuple[type, ...]
    default: Any = None
    required: bool = False
    is_list: bool = False
    among: Collection[Any] = ()

    def check(self, value: Any) -> bool:
        """Return whether `value` is of this attribute's type."""
        if self.is_list:
            return isinstance(value, (list, tuple)) and all(isinstance(v, self.type) for v in value)
        return isinstance(value, self.type) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Body:
    """Nodes of ONNX that compute an operator of ours, and the names of its inputs and outputs there."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]


def Int(default: int | None = None, *, required: bool = False, among: Collection[int] = ()) -> Attr:
    """An integer attribute."""
    return Attr(int, default, required, among=among)


def Float(default: float | None = None, *, required: bool = False) -> Attr:
    """A float attribute."""
    return Attr((float, int), default, required)


def Str(default: str | None = None, *, required: bool = False, among: Collection[str] = ()) -> Attr:
    """A string attribute."""
    return Attr((str, bytes), default, required, among=among)


def Ints(default: Sequence[int] | None = None, *, required: bool = False) -> Attr:
    """A list of integers."""
    return Attr(int, default, required, is_list=True)


def Floats(default: Sequence[float] | None = None, *, required: bool = False) -> Attr:
    """A list of floats."""
    return Attr((float, int), default, required, is_list=True)


def Strs(default: Sequence[str] | None = None, *, required: bool = False) -> Attr:
    """A list of strings."""
    return Attr((str, bytes), default, required, is_list=True)


def TensorAttr(default: Tensor | None = None, *, required: bool = False) -> Attr:
    """A tensor attribute."""
    return Attr(Tensor, default, required)


_REGISTRY: dict[tuple[str, str], type[Op]] = {}
_ALIASES = {"ai.onnx": ""}


def _counts_of_inputs(cls: type[Op]) -> tuple[int, int] | None:
    """The least and the largest number of inputs by a method that names them; those with a default are optional."""
    for name, others in (("infer", 1), ("compute", 2), ("lower", 3)):
        method = vars(cls).get(name)
        if method is not None and not method.__code__.co_flags & CO_VARARGS:
            most = method.__code__.co_argcount - others
            return most - len(method.__defaults__ or ()), most
    return None


class Op:
    """An operator; docs/architecture.md describes the members of a subclass. A base of several says `abstract=True`."""

    name: ClassVar[str] = ""
    """The ONNX name of the operator, unless it is the name of the class."""
    domain: ClassVar[str] = ""
    versions: ClassVar[tuple[int, ...]] = (1,)
    attrs: ClassVar[dict[str, Attr]] = {}
    min_inputs: ClassVar[int] = 1
    """The fewest inputs; this and `max_inputs` follow from `infer`, `compute` or `lower` where one names its inputs."""
    max_inputs: ClassVar[int] = 1
    n_outputs: ClassVar[int] = 1
    differentiable: ClassVar[Sequence[int]] = ()
    without_gradient: ClassVar[str] = "differentiation"
    """Name of the missing gradient in errors."""
    is_view: bool = False
    """Output 0 is input 0's bytes under another shape: nothing is computed. Of some operators, shapes decide it."""
    state_inputs: ClassVar[tuple[int, ...]] = ()
    """Inputs that the operator updates in place (running statistics, accumulation buffers)."""
    static_inputs: ClassVar[tuple[int, ...]] = ()
    """Inputs whose values decide shapes: they must be known at compile time."""
    accumulates: ClassVar[bool] = False
    """Input 1 is added to input 0, a gradient buffer. The producer of input 1 may add it there directly."""
    chooses: ClassVar[bool] = False
    """The operator may drop NaN and infinities on purpose, or test for them."""
    unit_axis: ClassVar[int | None] = None
    """The axis of units in the output: channels of a convolution, columns of a product."""
    takes_nibbles: ClassVar[bool] = False
    """Inputs may be constants of 4-bit numbers."""
    unpacks: ClassVar[bool] = False
    """The result is a weight in more bits than the input has; products read the input itself."""
    draws: ClassVar[bool] = False
    """Results are random: two nodes with the same inputs have different results."""

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        if not {"min_inputs", "max_inputs"} & vars(cls).keys() and (counts := _counts_of_inputs(cls)):
            cls.min_inputs, cls.max_inputs = counts
        key = (cls.domain, cls.op_type())
        if abstract:
            return
        if key in _REGISTRY:
            raise ValueError(f"{key} is registered twice")
        _REGISTRY[key] = cls
        if not cls.domain:
            SINCE[cls.op_type()] = cls.versions[0]

    def is_rectifier(self) -> bool:
        """Return whether results are zero wherever a unit does not fire: if it never does, it is dead."""
        return False

    def __init__(self, node: Node, opset: int) -> None:
        self.node, self.opset = node, opset
        self.types: Mapping[str, TensorType] = {}
        n = len(node.inputs)
        if not self.min_inputs <= n <= self.max_inputs:
            more = "" if self.min_inputs == self.max_inputs else f" to {self.max_inputs}"
            raise ModelError(f"{node} has {n} inputs; {self.op_type()} takes {self.min_inputs}{more}.")
        for name, attr in self.attrs.items():
            setattr(self, name, self._attribute(name, attr) if name in node.attrs or attr.required else attr.default)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The node's attributes, by the names in `attrs`."""

    def derive_sequence(self, sequence: BufSequence) -> BufSequence | None:
        """The result for a sequence as input 0, if it consists of the same tensors."""
        return None

    def complete(self, inputs: Sequence[T | None]) -> list[T | None]:
        """`inputs` with None for the optional ones that the node leaves out."""
        n = len(inputs)
        missing = 0 if n == self.max_inputs or self.max_inputs == MANY else self.max_inputs - n
        return [*inputs, *[None] * missing]

    def _attribute(self, name: str, attr: Attr) -> Any:
        if name not in self.node.attrs:
            raise ModelError(f"{self.node} lacks the attribute {name!r}.")
        value = self.node.attrs[name]
        if not attr.check(value):
            raise ModelError(f"Attribute {name!r} of {self.node} is {value!r:.80}, which is not of its type.")
        value = value.decode() if isinstance(value, bytes) else value
        if attr.among and value not in attr.among:
            raise self.error(f"{name} {value!r:.80} is not one of {', '.join(map(str, attr.among))}.")
        return tuple(value) if isinstance(value, list) else value

    @classmethod
    def op_type(cls) -> str:
        """The operator's ONNX name (the class name unless `name` says otherwise)."""
        return cls.__dict__.get("name") or cls.__name__

    def error(self, message: str) -> ModelError:
        """A ModelError that names the node."""
        return ModelError(f"{self.node}: {message}")

    def unsupported(self, what: str) -> UnsupportedError:
        """An UnsupportedError that names the operator and the node."""
        return UnsupportedError(
            f"{self.node}: {what} is not supported.",
            op=self.op_type(),
            domain=self.domain,
            opset=self.opset,
            node=self.node.name,
        )

    def need_dtype(self, supported: Collection[str], *dtypes: str) -> None:
        """Raise unless all dtypes are supported."""
        for dtype in dtypes:
            if dtype not in supported:
                raise self.unsupported(f"dtype {dtype}")

    def need_float32(self, *types: TensorType | None) -> None:
        """Raise unless all inputs given are float32, which is what the kernels compute in."""
        self.need_dtype(("float32",), *(t.dtype for t in types if t is not None))

    def need_shape(self, what: str, t: TensorType | None, shape: Sequence[int]) -> None:
        """Raise unless an input has a shape, or is absent."""
        if t is not None and not equal_shapes(t.shape, shape):
            raise self.error(f"{what} has shape {list(t.shape)}; it must have {list(shape)}.")

    def axis_of(self, axis: int, rank: int) -> int:
        """`axis` counted from the front, checked against `rank`."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} is outside [{-rank}, {rank - 1}].")
        return axis % rank

    def forward_type(self, index: int = 0) -> TensorType:
        """Type of the forward tensor whose gradient output `index` is: gradients of pooling name no input that has it.

        The gradient of tensor `t` is called `t_grad`, or `t_grad_<k>` where t has several consumers.
        """
        name = self.node.outputs[index]
        t = self.types.get(re.sub(r"_grad(_\d+)?$", "", name))
        if t is None:
            raise self.unsupported(f"an output {name!r} that is not named as the gradient of a known tensor")
        return t

    def copied_attrs(self) -> dict[str, Any]:
        """The node's attributes, for another node."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.node.attrs.items()}

    def looked_at(self) -> tuple[list[str], list[str]]:
        """Inputs and outputs that a step may check for NaN: every number in them is meaningful."""
        return list(self.node.inputs), list(self.node.outputs)

    @property
    def is_pure(self) -> bool:
        """Return whether the results depend only on the inputs, and nothing else changes."""
        return not self.draws and not self.state_inputs

    # Members that subclasses define.

    def infer(self, *inputs: TensorType | None) -> TensorType | tuple[TensorType, ...]:
        """Output types for the input types (None for an absent optional input)."""
        raise self.unsupported("shape inference")

    def rewire(self, consumers: Mapping[str, list[Node]], known: Mapping[str, Any]) -> list[str]:
        """The node's inputs, or cheaper ones that give the same result and are among the `known` tensors."""
        return self.node.inputs

    def evaluate(self, *inputs: TensorType | None) -> tuple[Any, ...] | None:
        """Elements of output 0 from inputs with known `value`s; None to leave it to the engine."""
        return None

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        """Emit the backward nodes; one gradient name (or None) per input. One of `douts` at least is a name."""
        raise self.unsupported(self.without_gradient)

    def function(self, opset: int) -> Body | None:
        """The node in operators of ONNX of this opset, for runtimes without it (`ops/frame/functions.py`)."""
        return None

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Any) -> None:
        """Emit the kernel calls that compute `outs` from `ins`: a `Buf` or `BufSequence` each, None where absent."""
        raise self.unsupported("execution")


class Elementwise(Op, abstract=True):
    """An operator that works element by element with NumPy broadcasting.

    A subclass gives `compute(e, *xs)` or `instruction`, and `result(*dtypes)` where the output's dtype is not the first
    input's.
    """

    dtypes: ClassVar[tuple[str, ...]] = (*FLOATS, *INTS, "bool")
    instruction: ClassVar[str]
    """The method of `Emitter` that computes it, where one is enough."""

    def compute(self, e: Emitter, *xs: Expr) -> Expr:
        """The result as an expression of the inputs."""
        result: Expr = getattr(e, self.instruction)(*xs)
        return result

    def result(self, *dtypes: str) -> str:
        """dtype of the output."""
        return dtypes[0]

    def infer(self, *inputs: TensorType | None) -> TensorType:
        types = [t for t in inputs if t is not None]
        self.need_dtype(self.dtypes, *(t.dtype for t in types))
        return TensorType(self.result(*(t.dtype for t in types)), self.broadcast(types))

    def broadcast(self, types: Sequence[TensorType]) -> tuple[int, ...]:
        """The broadcast shape of `types`."""
        try:
            return broadcast_shapes(*(t.shape for t in types))
        except ValueError:
            shapes = " and ".join(str(list(t.shape)) for t in types)
            raise self.error(f"shapes {shapes} do not broadcast.") from None

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        b.elementwise(outs[:1], [x for x in ins if x is not None], lambda e, *xs: self.compute(e, *xs))


def registry() -> Iterator[type[Op]]:
    """Every operator class, sorted by domain and name."""
    load_families()
    return iter([cls for _, cls in sorted(_REGISTRY.items())])


ADVICE = {
    ("ai.onnx.ml", "LinearClassifier"): " Its labels are text: fit the model with integers as classes, or choose its "
    "probabilities.",
    ("ai.onnx.ml", "ZipMap"): " Choose {reads!r}, which it reads, or convert with options={{'zipmap': False}}.",
}
"""Operators that will not be supported, and what to do. Of classifiers, only those with text are left as nodes."""


def find(domain: str, op_type: str) -> type[Op] | None:
    """The class of an operator, or None.

    The domain ai.trainweb also has the operators of ai.onnx in their first versions. `Emission.emit` uses them in
    models that are older than they are.
    """
    load_families()
    cls = _REGISTRY.get((_ALIASES.get(domain, domain), op_type))
    return _REGISTRY.get(("", op_type)) if cls is None and domain == TRAINWEB else cls


def bind(node: Node, opsets: dict[str, int]) -> Op:
    """The operator of `node`, with its attributes checked.

    Raise UnsupportedError for an operator that does not exist in the opset in force. Raise ModelError for a wrong
    number of inputs or outputs, and for a missing or mistyped attribute.
    """
    domain = _ALIASES.get(node.domain, node.domain)
    cls = find(domain, node.op_type)
    opset = opsets.get(domain, opsets.get("ai.onnx", 1) if domain == "" else 1)
    if cls is not None and cls.domain != domain:
        return cls(node, cls.versions[0])
    if cls is None:
        advice = ADVICE.get((domain, node.op_type), "").format(reads=next(iter(node.inputs), ""))
        fault = f"operator {node.op_type!r} of domain {domain or 'ai.onnx'!r} (opset {opset}) is not supported.{advice}"
    elif opset < cls.versions[0]:
        fault = f"{node.op_type} of opset {opset} is not supported; it is from {cls.versions[0]} on."
    else:
        return cls(node, opset)
    raise UnsupportedError(f"{node}: {fault}", op=node.op_type, domain=domain, opset=opset, node=node.name)
