"""Building blocks: each appends nodes to the current model and returns the names it made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal, overload

from trainweb._names import public_names
from trainweb.errors import ModelError
from trainweb.model.checks import DTYPE_CODES
from trainweb.model.graph import STRUCT_FORMAT, Tensor, Value
from trainweb.onnxblock import context
from trainweb.onnxblock.context import add_initializer, add_node, generate_name
from trainweb.onnxblock.protos import NoModelProto, onnx_package

SUM_AXES_ARE_INPUTS, AXES_ARE_INPUTS = 13, 18
"""ai.onnx versions from which reductions take their axes as an input: ReduceSum, and the others."""


class Block:
    """Base class: a subclass gives `build(*names)`, which returns the name or names of its results.

    Inside `build`, other blocks may be called, and `add_node` appends any operator. If the onnx package is installed,
    nodes, initializers and inputs may be appended to the lists of `base.graph` as well.
    """

    @property
    def base(self) -> Any:
        """The model under construction, an `onnx.ModelProto` that may be added to.

        Without the onnx package its attributes raise AttributeError, which names `add_node`.
        """
        accessor = context.current()
        return NoModelProto() if onnx_package() is None else accessor.model

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Append nodes; the subclass's business.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the block: names of tensors, as a rule.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement build().")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build into the current model; the names of the results."""
        accessor = context.current()
        # Appended nodes of the caller count from here on, nodes of the block from the end on.
        accessor.sync()
        results = self.build(*args, **kwargs)
        accessor.sync()
        return results

    @overload
    def add_node(
        self, op_type: str, inputs: list[str], n_outputs: Literal[1] = 1, *, domain: str = "", **attrs: Any
    ) -> str: ...

    @overload
    def add_node(
        self, op_type: str, inputs: list[str], n_outputs: int, *, domain: str = "", **attrs: Any
    ) -> list[str]: ...

    def add_node(
        self, op_type: str, inputs: list[str], n_outputs: int = 1, *, domain: str = "", **attrs: Any
    ) -> str | list[str]:
        """Append one node; the name of its output, or a list of them when `n_outputs` > 1.

        Parameters
        ----------
        op_type : str
            The operator.
        inputs : list of str
            Names of tensors; "" is an input that is left out.
        n_outputs : int
            Number of outputs.
        domain : str
            Of the operator; "" is ai.onnx.
        **attrs
            Its attributes.
        """
        outputs = [generate_name(f"{op_type.lower()}_output") for _ in range(n_outputs)]
        add_node(op_type, list(inputs), outputs, domain=domain, **attrs)
        return outputs if n_outputs > 1 else outputs[0]


class _Binary(Block):
    def build(self, a: str, b: str) -> str:
        """Name of the result for the tensors `a` and `b`, whose shapes are broadcast."""
        return self.add_node(type(self).__name__, [a, b])


class _Unary(Block):
    def build(self, x: str) -> str:
        """Name of the result for the tensor `x`."""
        return self.add_node(type(self).__name__, [x])


class Add(_Binary):
    """a + b."""


class Sub(_Binary):
    """a - b."""


class Mul(_Binary):
    """a * b."""


class Div(_Binary):
    """a / b."""


class Sigmoid(_Unary):
    """1 / (1 + exp(-x))."""


class Log(_Unary):
    """Natural logarithm."""


class Neg(_Unary):
    """-x."""


class Abs(_Unary):
    """|x|."""


class Softplus(_Unary):
    """log(1 + exp(x)), without overflow."""


class Pow(Block):
    """x to a constant power.

    Parameters
    ----------
    exponent : float
        The power.
    """

    def __init__(self, exponent: float) -> None:
        self._exponent = float(exponent)

    def build(self, x: str) -> str:
        """Name of the result for the tensor `x`."""
        exponent = float_initializer("pow_exponent", [self._exponent])
        return self.add_node("Pow", [x, exponent])


class _Reduction(Block):
    def __init__(self, keepdims: bool = True) -> None:
        self._keepdims = bool(keepdims)

    def build(self, x: str) -> str:
        """Name of the result for the tensor `x`."""
        return self.add_node(type(self).__name__, [x], keepdims=int(self._keepdims))


class ReduceMean(_Reduction):
    """Mean of all elements.

    Parameters
    ----------
    keepdims : bool
        The result has as many axes, all of size 1; False: it is a scalar.
    """


class ReduceSum(_Reduction):
    """Sum of all elements.

    Parameters
    ----------
    keepdims : bool
        The result has as many axes, all of size 1; False: it is a scalar.
    """


def over_last_axis(op_type: str, x: str) -> str:
    """A reduction over the last axis, which is dropped."""
    opset = context.current().graph.opsets.get("", 1)
    if opset < (AXES_ARE_INPUTS if op_type != "ReduceSum" else SUM_AXES_ARE_INPUTS):
        return Block().add_node(op_type, [x], axes=[-1], keepdims=0)
    return Block().add_node(op_type, [x, add_initializer_of("int64", "axes", [-1])], keepdims=0)


class Constant(Block):
    """A float constant of shape (1,).

    Parameters
    ----------
    value : float
        The constant.
    """

    def __init__(self, value: float) -> None:
        self._value = float(value)

    def build(self) -> str:
        """Name of the constant."""
        return float_initializer("initializer", [self._value])


class SequenceConstruct(Block):
    """A sequence of the tensors."""

    def build(self, *names: str) -> str:
        """Name of the sequence of the tensors `names`."""
        return self.add_node("SequenceConstruct", list(names))


class ReduceAllL2(Block):
    """Square root of the sum of squares over all tensors."""

    def build(self, *names: str) -> str:
        """Name of the result, a scalar, for the tensors (or sequences) `names`."""
        return self.add_node("ReduceAllL2", list(names), domain="com.microsoft")


class Clip(Block):
    """x limited to [clip_min, clip_max]; None leaves a side open."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        self._bounds = clip_min, clip_max

    def build(self, x: str) -> str:
        """Name of the result for the tensor `x`."""
        inputs = [x]
        for token, bound in zip(("clip_min", "clip_max"), self._bounds, strict=True):
            inputs.append("" if bound is None else float_initializer(token, [float(bound)], shape=()))
        while not inputs[-1]:
            inputs.pop()
        return self.add_node("Clip", inputs)


class PassThrough(Block):
    """Returns its arguments."""

    def build(self, *names: str) -> Any:
        """`names` as they are; a single one is not in a tuple."""
        return names[0] if len(names) == 1 else names


class InputLike(Block):
    """A new graph input of the type of another tensor.

    Parameters
    ----------
    like : str
        Name of the other tensor.
    """

    def __init__(self, like: str) -> None:
        self._like = like

    def build(self, name: str | None = None) -> str:
        """Name of the input: `name`, which may be there already, or a new one."""
        accessor = context.current()
        name = name or generate_name("input")
        if accessor.has(name) and accessor.has(self._like):
            return name
        return add_input_like(self._like, name)


class LabelEncoder(Block):
    """Maps keys to values (ai.onnx.ml.LabelEncoder).

    Give one of the keys_ and one of the values_ arguments.

    Parameters
    ----------
    default_float, default_int64, default_string : float, int and str
        The value of a key that is not in the list, by type of the values.
    keys_float, keys_int64, keys_string : list, optional
        The keys, of one type.
    values_float, values_int64, values_string : list, optional
        Their values, of one type.
    """

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_float: list[float] | None = None,
        keys_int64: list[int] | None = None,
        keys_string: list[str] | None = None,
        values_float: list[float] | None = None,
        values_int64: list[int] | None = None,
        values_string: list[str] | None = None,
    ) -> None:
        defaults = {
            "default_float": float(default_float),
            "default_int64": default_int64,
            "default_string": default_string,
        }
        tables = {
            "keys_floats": keys_float,
            "keys_int64s": keys_int64,
            "keys_strings": keys_string,
            "values_floats": values_float,
            "values_int64s": values_int64,
            "values_strings": values_string,
        }
        self._attrs: dict[str, Any] = defaults | {k: list(v) for k, v in tables.items() if v is not None}

    def build(self, x: str) -> str:
        """Name of the result for the tensor `x`."""
        output = generate_name("label_encoder.output")
        add_node("LabelEncoder", [x], [output], domain="ai.onnx.ml", **self._attrs)
        return output


class Cast(Block):
    """x converted to another dtype: a TensorProto.DataType or its name."""

    def __init__(self, to: int | str) -> None:
        self._to = DTYPE_CODES[to] if isinstance(to, str) else int(to)

    def build(self, x: str) -> str:
        """Name of the result for the tensor `x`."""
        output = generate_name("cast.output")
        add_node("Cast", [x], [output], to=self._to)
        return output


class Linear(Block):
    """alpha * x W + beta * b with new standard-normal parameters.

    Parameters
    ----------
    in_features, out_features : int
        The weight is (in_features, out_features).
    bias : bool
        True if there is a bias (out_features,).
    alpha, beta : float
        Factors.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        self._shape = in_features, out_features
        self._bias, self._alpha, self._beta = bias, float(alpha), float(beta)

    def build(self, x: str) -> str:
        """Name of the result for the tensor `x`."""
        rows, columns = self._shape
        inputs = [x, float_initializer("linear.weight", _normal(rows * columns), self._shape)]
        if self._bias:
            inputs.append(float_initializer("linear.bias", _normal(columns), (columns,)))
        output = generate_name("linear.output")
        add_node("Gemm", inputs, [output], alpha=self._alpha, beta=self._beta)
        return output


def _normal(count: int) -> list[float]:
    return [random.gauss(0.0, 1.0) for _ in range(count)]


def float_initializer(token: str, values: list[float], shape: tuple[int, ...] | None = None) -> str:
    """A float32 constant under a generated name."""
    return add_initializer(
        Tensor.of(generate_name(token), "float32", (len(values),) if shape is None else shape, values)
    )


def add_initializer_of(dtype: str, token: str, values: Sequence[float]) -> str:
    """A one-dimensional constant under a generated name."""
    return add_initializer(Tensor.of(generate_name(token), dtype, (len(values),), values))


def array_initializer(name: str, array: Any) -> str:
    """A float32 constant from a NumPy array or nested lists."""
    values, shape = _flatten(array)
    return add_initializer(Tensor.of(name, "float32", shape, values))


def _flatten(array: Any) -> tuple[list[float], tuple[int, ...]]:
    if hasattr(array, "tolist"):
        array = array.tolist()
    if not isinstance(array, (list, tuple)):
        return [float(array)], ()
    parts = [_flatten(item) for item in array]
    if len({shape for _, shape in parts}) > 1:
        raise ModelError("The rows of an array differ in length.")
    inner = parts[0][1] if parts else ()
    return [x for values, _ in parts for x in values], (len(parts), *inner)


def add_input_like(like: str, name: str, dtype: str | None = None, drop_axis: int | None = None) -> str:
    """Add graph input `name` of the type of `like`, or of another dtype, or without an axis."""
    accessor = context.current()
    value = accessor.tensor_value(like)
    dims = list(value.shape or ())
    for axis, dim in enumerate(dims):
        if dim is None:
            # A new name ties the new input to the computed size.
            dims[axis] = f"{name}_dim_{axis}"
    if dims != list(value.shape or ()):
        accessor.graph.value_info[like] = Value(like, value.dtype, tuple(dims))
    if drop_axis is not None:
        del dims[drop_axis]
    if (dtype or value.dtype) not in STRUCT_FORMAT:
        raise ModelError(f"{like!r} is {value.dtype}; no input can be like it.")
    return accessor.add_input(Value(name, dtype or value.dtype, tuple(dims)))


def __dir__() -> list[str]:
    return public_names(globals())
