"""Optimizers as rules: settings, moments and the update of an element. A class here is all that an optimizer takes.

`Rule` makes the operator of optimizer models from it, and `onnxblock/optim.py` the class that users name. A docstring
is the documentation of both languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod, sqrt
from typing import Annotated, Any, ClassVar

from trainweb.errors import ModelError
from trainweb.model.graph import TRAINWEB
from trainweb.ops.frame.op import Attr, Float, Floats, Int
from trainweb.ops.optim.operators import (
    AVERAGES,
    GRADS,
    MOMENTS,
    PARAMS,
    SCALARS,
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


RULES: dict[str, type[Rule]] = {}
"""All rules by their names."""


class Rule(Optimizer, abstract=True):
    """An optimizer whose fields are its settings, and the attributes of its operator `ai.trainweb.<class>Optimizer`.

    A subclass declares settings with defaults and annotations that say what they may be (`trainweb/settings.py`),
    `names` and `update`. Its `attrs` are further attributes, which users do not set.
    """

    domain = TRAINWEB
    averages: ClassVar[bool] = False
    """True if it has averages, `s.average`, which evaluation and exports read in place of the parameters."""
    settings: ClassVar[Mapping[str, Field]] = {}

    def __init_subclass__(cls, *, abstract: bool = False, listed: bool = True) -> None:
        cls.settings = fields_of_class(cls)
        further = cls.__dict__.get("attrs", {})
        cls.attrs = {**{name: _attribute(field) for name, field in cls.settings.items()}, **further}
        moments = (*MOMENTS[: len(cls.names)], *[AVERAGES] * cls.averages)
        cls.inputs = (*SCALARS, PARAMS, GRADS, *(m.input for m in moments))
        cls.optional_moments = len(cls.names) - len(cls.kept_with({}))
        cls.name = f"{cls.__name__}Optimizer"
        super().__init_subclass__(abstract=abstract)
        if listed:
            RULES[cls.__name__] = cls

    @classmethod
    def kept_with(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the moments that it keeps with these settings: all, unless it says otherwise."""
        return cls.names

    def kept(self) -> tuple[str, ...]:
        names = self.kept_with({name: getattr(self, name) for name in self.settings})
        return (*names, *["average"] * self.averages)

    @property
    def moments(self) -> int:
        return len(self.kept())

    def check(self) -> None:
        if unknown := self.node.attrs.keys() - self.attrs.keys():
            # Earlier builds had other attributes for some optimizers: their defaults would be taken silently.
            raise self.error(f"it has an unknown attribute {min(unknown)!r}; build the artifacts again.")
        for name, field in self.settings.items():
            value = getattr(self, name)
            is_flag = isinstance(field.default, bool)
            try:
                field.check(name, {0: False, 1: True}.get(value, value) if is_flag else value)
            except ModelError as error:
                raise self.error(str(error)) from None


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


class Momentum(Rule, listed=False):
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


class Lamb(Rule):
    """LAMB: Adam's step, scaled to the length of each parameter, https://arxiv.org/abs/1904.00962.

    As optax.lamb. ONNX Runtime has an operator of that name of another form.

    Parameters
    ----------
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the corrected second moment.
    weight_decay : float
        Weight decay: this times the parameter is added to the step before it is scaled.
    """

    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-6
    weight_decay: NotNegative = 0.0
    per_parameter = True
    attrs = {"ratio_min": Float(-inf), "ratio_max": Float(inf), "correct_bias": Int(1)}

    def check(self) -> None:
        super().check()
        if not self.ratio_min <= self.ratio_max:
            raise self.error(f"ratio_min is {self.ratio_min:g}, which is more than ratio_max, {self.ratio_max:g}.")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        alpha, beta = self.betas
        s.m = alpha * s.m + (1 - alpha) * g
        s.v = beta * s.v + (1 - beta) * g * g
        first, second = (1 - alpha**step, (1 - beta**step).sqrt()) if self.correct_bias else (1, 1)
        r = s.m / (s.v.sqrt() * (first / second) + first * self.eps) + self.weight_decay * w
        of_r, of_w = r.mean_square(), w.mean_square()
        are_long = of_w.is_more(0) * of_r.is_more(0)
        ratio = (of_w / are_long.where(of_r, 1.0)).sqrt().larger(self.ratio_min).smaller(self.ratio_max)
        return w - lr * are_long.where(ratio, 1.0) * r


class Adafactor(Rule):
    """Adafactor as torch.optim.Adafactor: for a matrix it keeps one row and one column. ONNX Runtime does not have it.

    Parameters
    ----------
    beta2_decay : float
        At step t, the averages of squared gradients take the share t ** beta2_decay from the new gradient.
    eps : float
        Minimum of the root of the estimated squares. Its square must be a float32.
    scale_eps : float
        Minimum root mean square of a parameter; steps are proportional to it.
    clip_threshold : float
        Maximum root mean square of an update.
    weight_decay : float
        Weight decay, decoupled from the gradient.
    """

    beta2_decay: Annotated[float, Number(below=0)] = -0.8
    eps: Annotated[float, Number(least=1e-18)] = 2.0**-23
    scale_eps: NotNegative = 1e-3
    clip_threshold: Positive = 1.0
    weight_decay: NotNegative = 0.0
    per_parameter = True
    names = ("rows", "columns")

    @classmethod
    def moment_shape(cls, moment: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 2:
            return (0,) if moment else shape
        return (*shape[:-2], 1, shape[-1]) if moment else (*shape[:-1], 1)

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        mix = step**self.beta2_decay
        if w.ndim < 2:
            s.rows = (1 - mix) * s.rows + mix * g * g
            u = again = -g / s.rows.larger(self.eps**2).sqrt()
        else:
            s.rows = (1 - mix) * s.rows + mix * g.mean_square(-1)
            s.columns = (1 - mix) * s.columns + mix * g.mean_square(-2)
            row = (s.rows.mean(-2).larger(self.eps) / s.rows).sqrt()
            column = -1 / s.columns.sqrt()
            u = g * (row * column).larger(-1 / self.eps)  # of both limits the faster one
            again = g * (column * row).larger(-1 / self.eps)  # as another value, so that neither is stored
        length = (again.mean_square().sqrt() * (1 / self.clip_threshold)).larger(1.0)
        scale = w.mean_square().sqrt().larger(self.scale_eps) * lr.smaller(1 / step.sqrt()) / length
        return w * (1 - lr * self.weight_decay) + scale * u


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration, from https://kellerjordan.github.io/posts/muon/."""


def newton_schulz(x: Any) -> Any:
    """One iteration: a X + (b G + c G G) X, where G is X X^T; for a tall X the transpose of that of X^T."""
    first, second, third = NEWTON_SCHULZ
    is_tall = x.shape[0] > x.shape[1]
    gram = x.product(x, (is_tall, not is_tall))
    series = second * gram + third * gram.product(gram)
    return first * x + (x.product(series) if is_tall else series.product(x))


class Muon(Rule):
    """Muon as torch.optim.Muon, in float32, and AdamW for parameters that are not matrices.

    Parameters
    ----------
    momentum : float
        Share of the velocity that is kept from step to step, in [0, 1).
    nesterov : bool
        Nesterov's momentum.
    weight_decay : float
        Weight decay, decoupled from the gradient.
    steps : int
        Iterations that bring the velocity close to an orthogonal matrix.
    match_rms : bool
        True scales steps of matrices to the length of AdamW's, so that one learning rate fits both. False keeps the
        length of the original Muon, for a learning rate of about 0.02.
    betas : pair of float
        Of AdamW: decay of the first and the second moment, each in [0, 1).
    eps : float
        Of AdamW: added to the root of the corrected second moment.
    """

    momentum: Fraction = 0.95
    nesterov: YesNo = True
    weight_decay: NotNegative = 0.1
    steps: Annotated[int, Whole(least=0, most=100)] = 5
    match_rms: YesNo = True
    betas: Betas = (0.9, 0.999)
    eps: NotNegative = 1e-8
    per_parameter = True

    @classmethod
    def moment_shape(cls, moment: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (0,) if moment and len(shape) > 1 else shape

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        if w.ndim < 2:
            return self._update_vector(w, g, s, lr, step)
        s.m = self.momentum * s.m + (1 - self.momentum) * g
        u = self.momentum * s.m + (1 - self.momentum) * g if self.nesterov else s.m
        rows, columns = w.shape[0], prod(w.shape[1:])
        x = (u / (u.mean_square() * (rows * columns)).sqrt().larger(1e-7)).reshape((rows, columns))
        for _ in range(self.steps):
            x = newton_schulz(x)
        ratio = 0.2 * sqrt(max(rows, columns)) if self.match_rms else sqrt(max(1, rows / columns))
        return w * (1 - lr * self.weight_decay) - lr * ratio * x.reshape(w.shape)

    def _update_vector(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        """AdamW's update."""
        alpha, beta = self.betas
        s.m = alpha * s.m + (1 - alpha) * g
        s.v = beta * s.v + (1 - beta) * g * g
        unbiased = s.v.sqrt() * (1 / (1 - beta**step).sqrt())
        return w * (1 - lr * self.weight_decay) - lr / (1 - alpha**step) * s.m / (unbiased + self.eps)
