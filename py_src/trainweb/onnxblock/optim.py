"""Optimizer models: one operator over sequences of parameters, gradients and moments, or one for each group of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, get_annotations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from trainweb import messages
from trainweb._names import public_names
from trainweb.arguments import check_settings
from trainweb.errors import ModelError
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.model.graph import Value
from trainweb.onnxblock import context
from trainweb.onnxblock.blocks import Block, add_initializer_of
from trainweb.onnxblock.context import add_node, generate_name
from trainweb.onnxblock.training import ForwardBlock
from trainweb.ops.frame.op import Attr
from trainweb.ops.optim import operators, rules
from trainweb.settings import (
    Betas,
    Choice,
    Field,
    Fraction,
    NotNegative,
    Patterns,
    Positive,
    YesNo,
    checked,
    fields_of,
    make,
    matching,
    named_settings,
    own_names,
)

if TYPE_CHECKING:
    from trainweb.onnxblock.rule_optimizers import *  # noqa: F403 (the names that `_optimizer_of` makes)

MICROSOFT = "com.microsoft"
T = TypeVar("T", bound="type[Optimizer]")


class ClipGradNorm(Block):
    """Scales the gradients, in place, so that their joint L2 norm is at most `max_norm`."""

    @checked
    def __init__(self, max_norm: Positive) -> None:
        self._max_norm = float(max_norm)

    def build(self, gradients: str) -> str:
        """Name of the sequence of clipped gradients."""
        output = generate_name("clip_grad_norm_output")
        add_node("InplaceClipGradNorm", [gradients], [output], domain=MICROSOFT, max_norm=self._max_norm)
        return output


class ClipGradValue(Block):
    """Clips each element of the gradients, in place, to at most `max_value`, up or down. ONNX Runtime lacks it."""

    @checked
    def __init__(self, max_value: Positive) -> None:
        self._max_value = float(max_value)

    def build(self, gradients: str) -> str:
        """Name of the sequence of clipped gradients."""
        output = generate_name("clip_grad_value_output")
        operator = operators.InplaceClipGradValue
        add_node(operator.op_type(), [gradients], [output], domain=operator.domain, max_value=self._max_value)
        return output


class ExponentialMovingAverage(Block):
    """Exponential moving average of the trainable parameters, after each optimizer step; it begins as they are then.

    Evaluation and exports read it on request. As timm's ModelEmaV3 and torch.optim.swa_utils.AveragedModel. ONNX
    Runtime lacks it.

    Parameters
    ----------
    decay : float
        Share of the average that is kept from step to step, in [0, 1).
    warmup : bool
        True if the decay grows: after t steps it is at most 1 - (1 + t / warmup_gamma) ** -warmup_power.
    warmup_power : float
        Exponent of the warm-up. timm suggests 2/3 for 1e6 steps and more, 3/4 for fewer.
    warmup_gamma : float
        Divisor of the steps: larger values slow the warm-up.
    """

    @checked
    def __init__(
        self,
        decay: Fraction = 0.999,
        warmup: YesNo = False,
        warmup_power: Positive = 2 / 3,
        warmup_gamma: Positive = 1.0,
    ) -> None:
        self._attributes = {"decay": float(decay)}
        if warmup:
            self._attributes |= {"warmup_power": float(warmup_power), "warmup_gamma": float(warmup_gamma)}

    def build(self, parameters: str) -> str:
        """Name of the flag that says whether the averages were updated.

        Parameters
        ----------
        parameters : str
            Name of the sequence of the parameters.
        """
        accessor, operator = context.current(), operators.ExponentialMovingAverage
        name = accessor.add_input(SequenceValue(operators.AVERAGES.input, "float32"))
        output = generate_name("ema_updated_flag")
        add_node(operator.op_type(), ["step", parameters, name], [output], domain=operator.domain, **self._attributes)
        accessor.graph.value_info[output] = Value(output, "bool", (1,))
        return output


EMA = fields_of(ExponentialMovingAverage)
"""The settings, by name."""


def make_average(settings: Any) -> ExponentialMovingAverage:
    """The block of its settings.

    Parameters
    ----------
    settings : dict
        The arguments of `ExponentialMovingAverage`.

    Raises
    ------
    ModelError
        It has no such setting, or not with such a value.
    """
    if not isinstance(settings, Mapping):
        raise messages.BAD_SETTING(name="ema", value=settings, expected="a mapping of its settings, such as 'decay'")
    check_settings("ema", settings, EMA)
    for name, value in settings.items():
        EMA[name].check(f"ema.{name}", value)
    return ExponentialMovingAverage(**settings)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters with their own settings.

    Attributes
    ----------
    parameters : list of str
        Names, or regular expressions that match whole names.
    optimizer : Optimizer
        The optimizer that updates them.
    learning_rate_factor : float
        Factor of the session's learning rate for these parameters.
    """

    parameters: Sequence[str]
    optimizer: Optimizer
    learning_rate_factor: float


class Optimizer(ForwardBlock):
    """An optimizer model with the inputs that sessions feed. A subclass is one optimizer.

    An optimizer is its name, its operator with the kernel, its moments and the arguments of `__init__`. The arguments
    have defaults and kinds (`trainweb.settings`). See `optimizer` below.

    Parameters
    ----------
    clip_grad : Block, optional
        Clips the gradients: `ClipGradNorm` or `ClipGradValue`.
    **attributes
        Attributes of the operator.
    """

    _operator: type[operators.Optimizer]
    _moments: tuple[str, ...]
    """Inputs of the model for moments that the operator keeps, in the order of `ops.optim.MOMENTS`."""
    _flag: ClassVar[str]
    """Part of the name of the output that says whether the parameters were updated."""
    _settings: Mapping[str, Any]
    """The arguments that were given."""

    def __init_subclass__(cls) -> None:
        cls._moments = cls.__dict__.get("_moments") or tuple(
            m.input for m in (*operators.MOMENTS, operators.AVERAGES) if m.input in cls._operator.inputs
        )
        cls._flag = cls.__dict__.get("_flag") or f"{cls.__name__.lower()}.updated_flag"

    def __init__(self, clip_grad: Block | None = None, **attributes: Any) -> None:
        super().__init__()
        self._clips = [] if clip_grad is None else [clip_grad]
        self._attributes = {n: _attribute_value(self._operator.attrs[n], v) for n, v in attributes.items()}
        self._groups: list[Group] = []
        self._decays_vectors = True
        self._average: ExponentialMovingAverage | None = None

    @classmethod
    def _fields(cls) -> Mapping[str, Field]:
        """The settings that it has."""
        return fields_of(cls)

    def clip(self, block: Block) -> Self:
        """Let a block clip the gradients, after others.

        Parameters
        ----------
        block : Block
            `ClipGradNorm` or `ClipGradValue`.
        """
        self._clips.append(block)
        return self

    def average(self, block: ExponentialMovingAverage) -> Self:
        """Keep an average of the parameters.

        Parameters
        ----------
        block : ExponentialMovingAverage
            The average and its settings.
        """
        self._average = block
        return self

    def group(self, parameters: Patterns, learning_rate_factor: NotNegative = 1.0, **settings: Any) -> Self:
        """Update some parameters with their own settings; a parameter belongs to the first group that names it.

        Parameters
        ----------
        parameters : list of str
            Names, or regular expressions that match whole names.
        learning_rate_factor : float
            Factor of the session's learning rate for these parameters.
        **settings
            Arguments of the optimizer that differ for them, such as `weight_decay=0.0`.

        Raises
        ------
        TypeError
            The optimizer has no such setting.
        ModelError
            The optimizer would keep other moments with these settings.
        """
        for name, field in fields_of(Optimizer.group).items():
            field.check(name, {"parameters": parameters, "learning_rate_factor": learning_rate_factor}[name])
        settings = own_names(type(self).__name__, settings, self._fields())
        other = type(self)(**(dict(self._settings) | settings))
        if (other._operator, other._moments) != (self._operator, self._moments):
            raise ModelError(
                f"A group with {settings} keeps other moments than the rest: {type(self).__name__} must be alike."
            )
        self._groups.append(Group(list(parameters), other, float(learning_rate_factor)))
        return self

    def exempt_vectors(self) -> Self:
        """Turn off weight decay for parameters with fewer than two axes: biases, and the scales of norms.

        Raises
        ------
        ModelError
            The optimizer has no weight decay.
        """
        if "weight_decay" not in self._fields():
            raise messages.NO_DECAY(what=type(self).__name__, names=", ".join(self._fields()))
        self._decays_vectors = False
        return self

    def build(self, parameters: Any = None, frozen: Any = None) -> str:
        """Name of the flag the model returns; called with (trainable, frozen), a pair or two.

        Parameters
        ----------
        parameters : list of parameters, or a pair of lists
            The trainable ones, or these and the frozen ones.
        frozen : list of parameters, optional
            Parameters that are not updated.
        """
        accessor = context.current()
        accessor.add_input(Value("learning_rate", "float32", (1,)))
        accessor.add_input(Value("step", "int64", (1,)))
        for name in (operators.PARAMS, operators.GRADS, *self._moments):
            accessor.add_input(SequenceValue(name, "float32"))
        gradients = operators.GRADS
        for clip in self._clips:
            gradients = clip(gradients)
        trainable = parameters[0] if isinstance(parameters, tuple) and len(parameters) == 2 else parameters
        flag = self._add_parts(list(trainable or []), gradients)
        if self._average is not None:
            self._average(operators.PARAMS)
        accessor.graph.value_info[flag] = Value(flag, "bool", (1,))
        return flag

    def _add_parts(self, trainable: Sequence[Any], gradients: str) -> str:
        """Add what updates all parameters; the name of the last flag."""
        flag = ""
        for part, indices in self._parts(trainable):
            flag = self._add_part(part, indices, gradients)
        return flag

    def _parts(self, trainable: Sequence[Any]) -> list[tuple[Group, list[int] | None]]:
        """The groups and the places of their parameters among all, None for all of them."""
        rest = Group([], self, 1.0)
        group_of = self._members([tensor.name for tensor in trainable])
        members: dict[tuple[int, bool], list[int]] = {}
        for k, tensor in enumerate(trainable):
            is_exempt = not self._decays_vectors and len(_shape(tensor)) < 2
            members.setdefault((group_of.get(tensor.name, len(self._groups)), is_exempt), []).append(k)
        groups = [*self._groups, rest]
        parts: list[tuple[Group, list[int] | None]] = []
        for (g, is_exempt), indices in sorted(members.items()):
            group = groups[g]
            if is_exempt and group.optimizer._attributes["weight_decay"]:
                without = type(self)(**(dict(group.optimizer._settings) | {"weight_decay": 0.0}))
                group = Group(group.parameters, without, group.learning_rate_factor)
            parts.append((group, indices))
        if not parts or (len(parts) == 1 and parts[0][0] is rest):
            return [(rest, None)]
        return parts

    def _members(self, names: Sequence[str]) -> dict[str, int]:
        """The first group that names each parameter."""
        groups: dict[str, int] = {}
        for g, group in enumerate(self._groups):
            for pattern in group.parameters:
                members = matching(pattern, names)
                if not members:
                    raise messages.UNKNOWN_IN_GROUP(name=pattern, names=", ".join(names))
                for name in members:
                    groups.setdefault(name, g)
        return groups

    def _add_part(self, group: Group, indices: list[int] | None, gradients: str) -> str:
        """Add what updates these parameters; the name of its flag."""
        names = {name: name for name in (*operators.SCALARS, operators.PARAMS, *self._moments)}
        names[operators.GRADS] = gradients
        if indices is not None:
            operator = operators.Subsequence
            for name in (operators.PARAMS, operators.GRADS, *self._moments):
                output = generate_name(f"group_{name}")
                add_node(operator.op_type(), [names[name]], [output], domain=operator.domain, indices=indices)
                names[name] = output
        if group.learning_rate_factor != 1:
            factor = add_initializer_of("float32", "learning_rate_factor", [group.learning_rate_factor])
            names["learning_rate"] = self.add_node("Mul", ["learning_rate", factor])
        left_out = {m.input for m in (*operators.MOMENTS, operators.AVERAGES)}.difference(self._moments)
        return group.optimizer._add_update([names[n] for n in self._operator.inputs if n not in left_out])

    def _add_update(self, inputs: Sequence[str]) -> str:
        """Add only the operator, with `inputs` in the place of its inputs in an optimizer model."""
        output, operator = generate_name(self._flag), self._operator
        add_node(operator.op_type(), list(inputs), [output], domain=operator.domain, **self._attributes)
        return output


def _shape(parameter: Any) -> Sequence[int]:
    """Dims of a tensor, or of a TensorProto."""
    return list(parameter.shape if hasattr(parameter, "shape") else parameter.dims)


def _attribute_value(attr: Attr, value: Any) -> Any:
    """A setting as an attribute of a node."""
    if attr.is_list:
        return [float(x) for x in value]
    return int(value) if attr.type is int else float(value)


OPTIMIZERS: dict[str, type[Optimizer]] = {}
"""Optimizers that `OptimType`, the command line, pages and the documentation know, by name."""


def optimizer(cls: T) -> T:
    """Class decorator that makes an optimizer known by its name."""
    OPTIMIZERS[cls.__name__] = cls
    return cls


def make_optimizer(
    choice: str | Mapping[str, Any],
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    ema: Mapping[str, Any] | None = None,
) -> Optimizer:
    """An optimizer by its name, or by a mapping.

    Parameters
    ----------
    choice : str or dict
        The name, or a dict with it as "type", the settings, and two more. "groups" is a list of dicts of the arguments
        of `Optimizer.group`. "decay_biases_and_norms" is False to turn off weight decay for parameters with fewer than
        two axes.
    clip_grad_norm, clip_grad_value : float, optional
        See `ClipGradNorm` and `ClipGradValue`; values are clipped first.
    ema : dict, optional
        The arguments of `ExponentialMovingAverage`.

    Raises
    ------
    TypeError
        No optimizer has that name, or it has no such setting.
    ModelError
        A setting has a value that is not allowed.
    """
    settings = named_settings("optimizer", choice)
    groups: Sequence[Mapping[str, Any]] = settings.pop("groups", [])
    decays = settings.pop("decay_biases_and_norms", True)
    optimizer = make("optimizer", OPTIMIZERS, settings, ("learning_rate", "groups", "decay_biases_and_norms"))
    if clip_grad_value is not None:
        optimizer.clip(ClipGradValue(clip_grad_value))
    if clip_grad_norm is not None:
        optimizer.clip(ClipGradNorm(clip_grad_norm))
    if ema is not None:
        optimizer.average(make_average(ema))
    for group in groups:
        optimizer.group(**group)
    return optimizer if decays else optimizer.exempt_vectors()


@optimizer
class AdamW(Optimizer):
    """AdamW as ONNX Runtime builds it.

    Parameters
    ----------
    bias_correction : bool
        True if the moments are corrected for starting from zero.
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Weight decay, decoupled from the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    adam_mode : {1, 0}
        1 is the form of Hugging Face's transformers, which ONNX Runtime builds; 0 that of
        torch.optim.AdamW, which puts eps after the bias correction and decays before the update.
    """

    _operator = operators.AdamWOptimizer

    @checked
    def __init__(
        self,
        bias_correction: YesNo = True,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-6,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
        *,
        adam_mode: Annotated[int, Choice((0, 1))] = 1,
    ) -> None:
        super().__init__(
            clip_grad,
            adam_mode=adam_mode,
            alpha=betas[0],
            beta=betas[1],
            correct_bias=bias_correction,
            epsilon=eps,
            weight_decay=weight_decay,
        )


@optimizer
class SGD(Optimizer):
    """w -= learning_rate * gradient; momentum and weight decay as in torch.optim.SGD. ONNX Runtime has neither.

    Parameters
    ----------
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    momentum : float
        Share of the velocity that is kept from step to step, in [0, 1).
    dampening : float
        Share of the gradient that is not added to the velocity.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    nesterov : bool
        Nesterov's momentum: the step uses the gradient plus momentum times the velocity.
    """

    _operator: type[operators.Optimizer] = operators.SGDOptimizerV2
    _moments = ("first_order_moments",)  # which ONNX Runtime's model has, too, though nothing reads them
    _flag = "update_completed"

    @checked
    def __init__(
        self,
        clip_grad: Block | None = None,
        *,
        momentum: Fraction = 0.0,
        dampening: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        nesterov: YesNo = False,
    ) -> None:
        attributes = {}
        if momentum or weight_decay or dampening or nesterov:
            if nesterov and (not momentum or dampening):
                raise ModelError("nesterov needs a momentum and no dampening.")
            self._operator = rules.Momentum
            attributes = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
            attributes["weight_decay"] = weight_decay
        super().__init__(clip_grad, **attributes)


CLIP_GRAD = """clip_grad : Block, optional
    For example `ClipGradNorm(1.0)`."""
"""The argument of all optimizers, in their docstrings."""


def _init_of(rule: type[rules.Rule]) -> Callable[..., None]:
    """The constructor of a rule's optimizer: the settings of the rule, in order, and `clip_grad`."""

    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        bound = shape.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *settings, clip_grad = bound.arguments.items()
        moments = rule.kept_with(dict(settings))
        self._moments = (*self._moments[: len(moments)], *[operators.AVERAGES.input] * rule.averages)
        Optimizer.__init__(self, clip_grad[1], **dict(settings))

    keyword = Parameter.POSITIONAL_OR_KEYWORD
    hints = get_annotations(rule, eval_str=True)
    parameters = [
        Parameter(name, keyword, default=field.default, annotation=hints[name]) for name, field in rule.settings.items()
    ]
    clip = Parameter("clip_grad", keyword, default=None, annotation=Block | None)
    shape = Signature([Parameter("self", keyword), *parameters, clip])
    init.__signature__ = shape  # type: ignore[attr-defined]
    init.__annotations__ = {p.name: p.annotation for p in (*parameters, clip)}
    constructor = checked(init)
    constructor.__annotations__ = init.__annotations__  # which `wraps` hands on only before Python 3.14
    return constructor


def _optimizer_of(rule: type[rules.Rule]) -> Any:
    """The class that users name for a rule."""
    doc = f"{inspect.cleandoc(rule.__doc__ or '')}\n{CLIP_GRAD}"
    members = {"__module__": __name__, "__doc__": doc, "_operator": rule, "__init__": _init_of(rule)}
    return type(rule.__name__, (Optimizer,), members)


OPTIMIZERS |= {name: _optimizer_of(rule) for name, rule in rules.RULES.items()}
globals().update(OPTIMIZERS)


class _Update(Block):
    """The operator of an optimizer on its own, for models that are put together by hand."""

    def __init__(self, model: Optimizer) -> None:
        self._model = model


class AdamWOptimizer(_Update):
    """The AdamW node; takes the names of its inputs. Arguments: see `AdamW`.

    Parameters
    ----------
    bias_correction, betas, eps, weight_decay, adam_mode
        As of `AdamW`.
    """

    def __init__(
        self,
        bias_correction: bool = True,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam_mode: int = 1,
    ) -> None:
        super().__init__(AdamW(bias_correction, betas, eps, weight_decay, adam_mode=adam_mode))

    def build(
        self, learning_rate: str, step: str, params: str, gradients: str, first_moments: str, second_moments: str
    ) -> str:
        """Name of the flag that says whether the parameters were updated.

        Parameters
        ----------
        learning_rate, step : str
            Names of tensors (1,), float32 and int64.
        params, gradients, first_moments, second_moments : str
            Names of sequences of tensors of the same shapes.
        """
        return self._model._add_update([learning_rate, step, params, gradients, first_moments, second_moments])


class SGDOptimizer(_Update):
    """The SGD node; takes the names of its inputs."""

    def __init__(self) -> None:
        super().__init__(SGD())

    def build(self, learning_rate: str, params: str, gradients: str) -> str:
        """Name of the flag that says whether the parameters were updated.

        Parameters
        ----------
        learning_rate : str
            Name of a tensor (1,).
        params, gradients : str
            Names of sequences of tensors of the same shapes.
        """
        return self._model._add_update([learning_rate, params, gradients])


def __dir__() -> list[str]:
    return public_names(globals())
