"""Optimizers as rules: settings, moments and the update of an element. A class here is all that an optimizer takes.

`Rule` makes the operator of optimizer models from it, and `onnxblock/optim.py` the class that users name. A docstring
is the documentation of both languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from trainweb.ops.frame.op import Attr, Float, Floats, Int, register
from trainweb.ops.optim.operators import (
    AVERAGES,
    GRADS,
    MOMENTS,
    PARAMS,
    SCALARS,
    TRAINWEB,
    Optimizer,
)
from trainweb.ops.optim.update import Moments
from trainweb.settings import (
    Betas,
    Field,
    Fraction,
    NotNegative,
    Number,
    Positive,
    ThreeBetas,
    Whole,
    YesNo,
    fields_of_class,
)


def _attribute(field: Field) -> Attr:
    """The attribute of a node that holds a setting."""
    if isinstance(field.default, tuple):
        return Floats(field.default)
    return Float(field.default) if isinstance(field.default, float) else Int(int(field.default))


class Rule(Optimizer):
    """An optimizer whose fields are its settings, and the attributes of its operator `ai.trainweb.<class>Optimizer`.

    A subclass gives settings with defaults and annotations that say what they may be (`trainweb/settings.py`), `names`
    and `update`.
    """

    domain = TRAINWEB
    averages: ClassVar[bool] = False
    """True if it has averages, `s.average`, which evaluation and exports read in place of the parameters."""
    settings: ClassVar[Mapping[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        cls.settings = fields_of_class(cls)
        cls.attrs = {name: _attribute(field) for name, field in cls.settings.items()}
        kept = (*MOMENTS[: len(cls.names)], *[AVERAGES] * cls.averages)
        cls.inputs = (*SCALARS, PARAMS, GRADS, *(m.input for m in kept))
        cls.optional_moments = len(cls.names) - len(cls.kept_with({}))
        cls.name = f"{cls.__name__}Optimizer"
        super().__init_subclass__()

    @classmethod
    def kept_with(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the moments that it keeps with these settings: all, unless it says otherwise."""
        return cls.names

    def kept(self) -> tuple[str, ...]:
        kept = self.kept_with({name: getattr(self, name) for name in self.settings})
        return (*kept, *["average"] * self.averages)

    @property
    def moments(self) -> int:
        return len(self.kept())

    def check(self) -> None:
        for name, field in self.settings.items():
            value = getattr(self, name)
            field.check(name, value if not isinstance(field.default, bool) else {0: False, 1: True}.get(value, value))


RULES: dict[str, type[Rule]] = {}
"""All rules by their names."""


def rule(cls: type[Rule]) -> type[Rule]:
    """Class decorator that makes a rule known."""
    RULES[cls.__name__] = cls
    register(cls)
    return cls


@rule
class Lion(Rule):
    """Lion: the sign of an interpolated gradient, https://arxiv.org/abs/2302.06675. ONNX Runtime does not have it.

    Its learning rate should be 3 to 10 times smaller than AdamW's, its weight decay as many times larger.

    Parameters
    ----------
    betas : pair of float
        Share of the moment in the direction of the update, and decay of the moment, each in [0, 1).
    weight_decay : float
        Weight decay, decoupled from the gradient.
    """

    betas: Betas = (0.9, 0.99)
    weight_decay: NotNegative = 0.0
    names = ("m",)

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second = self.betas
        direction = (first * s.m + (1 - first) * g).sign()
        s.m = second * s.m + (1 - second) * g
        return w * (1 - lr * self.weight_decay) - lr * direction


@rule
class Adam(Rule):
    """Adam as torch.optim.Adam: weight decay is added to the gradient. ONNX Runtime does not have it.

    Parameters
    ----------
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the corrected second moment.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    """

    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    names = ("m", "v")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second = self.betas
        g = g + self.weight_decay * w
        s.m = first * s.m + (1 - first) * g
        s.v = second * s.v + (1 - second) * g * g
        return w - lr / (1 - first**step) * s.m / (s.v.sqrt() * (1 / (1 - second**step).sqrt()) + self.eps)


@register
class Momentum(Rule):
    """SGD with momentum, as torch.optim.SGD; the first step takes the gradient as the velocity.

    Sutskever et al., On the importance of initialization and momentum in deep learning,
    https://proceedings.mlr.press/v28/sutskever13.html.
    """

    momentum: Fraction = 0.9
    dampening: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    nesterov: YesNo = False
    names = ("m",)

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        g = g + self.weight_decay * w
        is_later = step.is_more(1)
        s.m = self.momentum * is_later * s.m + (1 - self.dampening * is_later) * g
        return w - lr * (g + self.momentum * s.m if self.nesterov else s.m)


@rule
class RMSProp(Rule):
    """RMSProp as torch.optim.RMSprop, https://arxiv.org/abs/1308.0850. ONNX Runtime does not have it.

    Parameters
    ----------
    alpha : float
        Decay of the average of squared gradients, in [0, 1).
    eps : float
        Added to the root of that average.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    momentum : float
        Share of the velocity that is kept from step to step, in [0, 1); 0 keeps no velocity.
    centered : bool
        Divide by the deviation of the gradients; their mean is kept, too.
    """

    alpha: Fraction = 0.99
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    momentum: Fraction = 0.0
    centered: YesNo = False
    names = ("s", "velocity", "mean")

    @classmethod
    def kept_with(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("s", *["velocity"] * bool(settings.get("momentum")), *["mean"] * bool(settings.get("centered")))

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        g = g + self.weight_decay * w
        variance = s.s = self.alpha * s.s + (1 - self.alpha) * g * g
        if self.centered:
            s.mean = self.alpha * s.mean + (1 - self.alpha) * g
            variance = s.s - s.mean * s.mean
        direction = g / (variance.sqrt() + self.eps)
        if self.momentum:
            direction = s.velocity = self.momentum * s.velocity + direction
        return w - lr * direction


@rule
class Adagrad(Rule):
    """Adagrad as torch.optim.Adagrad, https://jmlr.org/papers/v12/duchi11a.html. ONNX Runtime does not have it.

    Parameters
    ----------
    lr_decay : float
        The learning rate is divided by 1 plus this times the steps so far.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    initial_accumulator_value : float
        Start of the sum of squared gradients.
    eps : float
        Added to the root of that sum.
    """

    lr_decay: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    initial_accumulator_value: NotNegative = 0.0
    eps: NotNegative = 1e-10
    names = ("s",)

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        g = g + self.weight_decay * w
        s.s = s.s + self.initial_accumulator_value * (1 - step.is_more(1)) + g * g
        return w - lr / (1 + (step - 1) * self.lr_decay) * g / (s.s.sqrt() + self.eps)


@rule
class Adadelta(Rule):
    """Adadelta as torch.optim.Adadelta, https://arxiv.org/abs/1212.5701. ONNX Runtime does not have it.

    Its usual learning rate is 1.

    Parameters
    ----------
    rho : float
        Decay of the averages of squared gradients and squared updates, in [0, 1).
    eps : float
        Added to both averages under the root.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    """

    rho: Fraction = 0.9
    eps: NotNegative = 1e-6
    weight_decay: NotNegative = 0.0
    names = ("s", "d")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        g = g + self.weight_decay * w
        s.s = self.rho * s.s + (1 - self.rho) * g * g
        change = (s.d + self.eps).sqrt() / (s.s + self.eps).sqrt() * g
        s.d = self.rho * s.d + (1 - self.rho) * change * change
        return w - lr * change


@rule
class Adamax(Rule):
    """Adamax as torch.optim.Adamax: Adam with the largest gradient so far, https://arxiv.org/abs/1412.6980.

    Parameters
    ----------
    betas : pair of float
        Decay of the first moment and of the largest gradient, each in [0, 1).
    eps : float
        Added to the absolute value of the gradient.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    """

    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    names = ("m", "u")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second = self.betas
        g = g + self.weight_decay * w
        s.m = first * s.m + (1 - first) * g
        s.u = (second * s.u).larger(g.abs() + self.eps)
        return w - lr / (1 - first**step) * s.m / s.u


@rule
class NAdam(Rule):
    """Adam with Nesterov's momentum, as torch.optim.NAdam, https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ.

    Parameters
    ----------
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the corrected second moment.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    momentum_decay : float
        The momentum of step t is betas[0] * (1 - 0.96 ** (t * momentum_decay) / 2).
    """

    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    momentum_decay: Positive = 4e-3
    names = ("m", "v")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second = self.betas
        g = g + self.weight_decay * w
        s.m = first * s.m + (1 - first) * g
        s.v = second * s.v + (1 - second) * g * g
        base = 0.96**self.momentum_decay
        power = base**step
        now, later = first * (1 - 0.5 * power), first * (1 - 0.5 * base * power)
        product = first**step * self._half_product(base, power)
        root = s.v.sqrt() * (1 / (1 - second**step).sqrt()) + self.eps
        return w - (lr * (1 - now) / (1 - product) * g + lr * later / (1 - product * later) * s.m) / root

    @staticmethod
    def _half_product(base: float, power: Any) -> Any:
        """The product of 1 - base ** i / 2 for i = 1 ... t, with `power` = base ** t.

        The sum of the logarithms is minus the sum of geometric series, term by term of their series. Term k is base **
        k * (1 - power ** k) / (1 - base ** k), divided by k * 2 ** k.
        """
        total: Any = 0.0
        powers: Any = 1.0
        for k in range(1, 50):
            powers = powers * power
            total = total + base**k / ((1 - base**k) * k * 2**k) * (1 - powers)
        return (-total).exp()


@rule
class RAdam(Rule):
    """Adam with rectified first steps, as torch.optim.RAdam, https://arxiv.org/abs/1908.03265.

    Parameters
    ----------
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    """

    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    names = ("m", "v")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second = self.betas
        g = g + self.weight_decay * w
        s.m = first * s.m + (1 - first) * g
        s.v = second * s.v + (1 - second) * g * g
        most = 2 / (1 - second) - 1
        length = most - 2 * step * second**step / (1 - second**step)
        rectified = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        is_long = length.is_more(5)
        factor = is_long * (rectified.larger(0.0) * (1 - second**step)).sqrt()
        return w - lr / (1 - first**step) * s.m * (factor / (s.v.sqrt() + self.eps) + (1 - is_long))


@rule
class AdaBelief(Rule):
    """AdaBelief as optax.adabelief: the second moment averages the squared difference of gradient and first moment.

    https://arxiv.org/abs/2010.07468. Weight decay is decoupled from the gradient.

    Parameters
    ----------
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the second moment at each step, and to its corrected root.
    weight_decay : float
        Weight decay, decoupled from the gradient.
    """

    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-16
    weight_decay: NotNegative = 0.0
    names = ("m", "v")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second = self.betas
        s.m = first * s.m + (1 - first) * g
        s.v = second * s.v + (1 - second) * (g - s.m) * (g - s.m) + self.eps
        root = s.v.sqrt() * (1 / (1 - second**step).sqrt()) + self.eps
        return w * (1 - lr * self.weight_decay) - lr / (1 - first**step) * s.m / root


@rule
class Adan(Rule):
    """Adan as optax.adan: Nesterov's momentum by differences of gradients, https://arxiv.org/abs/2208.06677.

    Parameters
    ----------
    betas : three floats
        Decay of the averages of gradients, of their differences and of the squares of both, each in [0, 1).
    eps : float
        Added to the corrected squares and to their root.
    weight_decay : float
        Weight decay, decoupled from the gradient.
    """

    betas: ThreeBetas = (0.98, 0.92, 0.99)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    names = ("m", "d", "n", "before")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second, third = self.betas
        change = step.is_more(1) * (g - s.before)
        ahead = g + (1 - second) * change
        s.m = first * s.m + (1 - first) * g
        s.d = second * s.d + (1 - second) * change
        s.n = third * s.n + (1 - third) * ahead * ahead
        s.before = g
        direction = s.m * (1 / (1 - first**step)) + s.d * ((1 - second) / (1 - second**step))
        root = (s.n * (1 / (1 - third**step)) + self.eps).sqrt() + self.eps
        return w - lr * (direction / root + self.weight_decay * w)


@rule
class Lookahead(Rule):
    """SGD with momentum that returns part of the way every few steps, https://arxiv.org/abs/1907.08610.

    As optax.lookahead of optax.sgd.

    Parameters
    ----------
    sync_period : int
        Steps between two returns, at least 1.
    slow_step_size : float
        Share of the way that the parameters keep, in (0, 1].
    momentum : float
        Share of the velocity that is kept from step to step, in [0, 1).
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    """

    sync_period: Annotated[int, Whole(least=1)] = 5
    slow_step_size: Annotated[float, Number(above=0, most=1)] = 0.5
    momentum: Fraction = 0.9
    weight_decay: NotNegative = 0.0
    names = ("velocity", "slow")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        slow = step.is_more(1).where(s.slow, w)
        s.velocity = self.momentum * s.velocity + g + self.weight_decay * w
        fast = w - lr * s.velocity
        is_between = (step - self.sync_period * (step / self.sync_period).floor()).is_more(0)
        s.slow = is_between.where(slow, slow + self.slow_step_size * (fast - slow))
        return is_between.where(fast, s.slow)


@rule
class ScheduleFreeAdamW(Rule):
    """AdamW that needs no schedule, as schedulefree.AdamWScheduleFree, https://arxiv.org/abs/2405.15682.

    All steps count alike (its weight_lr_power is 0). Evaluate, export and save with `ema`: these are the parameters
    that it trains; those between them are where gradients are taken.

    Parameters
    ----------
    betas : pair of float
        Share of the average where gradients are taken, in (0, 1), and decay of the second moment, in [0, 1).
    eps : float
        Added to the root of the corrected second moment.
    weight_decay : float
        Weight decay: this times the parameter is added to the normalized gradient.
    """

    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    names = ("z", "v")
    averages = True

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        first, second = self.betas
        s.v = second * s.v + (1 - second) * g * g
        direction = g / (s.v.sqrt() * (1 / (1 - second**step).sqrt()) + self.eps) + self.weight_decay * w
        s.z = step.is_more(1).where(s.z, w) - lr * direction
        s.average = s.average + 1 / step * (s.z - s.average)
        return first * s.average + (1 - first) * s.z
