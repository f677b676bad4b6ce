"""Calls of optim. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable

from trainweb.ir.calls.sizes import chunks
from trainweb.ir.instructions import Buf, KernelCall


class Adamw(KernelCall):
    """A call of `adamw_f32`.

    One step with t = state's step + 1 and state's learning rate
    """

    __slots__ = (
        "w",
        "g",
        "m",
        "v",
        "state",
        "n",
        "alpha",
        "beta",
        "epsilon",
        "weight_decay",
        "correct_bias",
        "adam_mode",
    )
    KERNEL = "adamw_f32"
    OPCODE = 34
    WORDS = 12
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "v", "state")
    FLOATS = ("alpha", "beta", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        v: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        epsilon: float,
        weight_decay: float,
        correct_bias: int,
        adam_mode: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.v = v
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.correct_bias = correct_bias
        self.adam_mode = adam_mode

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.v, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m, self.v]


class Sgd(KernelCall):
    """A call of `sgd_f32`."""

    __slots__ = ("w", "g", "state", "n")
    KERNEL = "sgd_f32"
    OPCODE = 35
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "state")

    def __init__(self, *, w: Buf, g: Buf, state: Buf, n: int, node: str = "") -> None:
        self.node = node
        self.w = w
        self.g = g
        self.state = state
        self.n = n

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w]


class Lion(KernelCall):
    """A call of `lion_f32`.

    w -= rate * (sign(alpha m + (1 - alpha) g) + weight_decay w), then m = beta m + (1 - beta) g
    """

    __slots__ = ("w", "g", "m", "state", "n", "alpha", "beta", "weight_decay")
    KERNEL = "lion_f32"
    OPCODE = 36
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "state")
    FLOATS = ("alpha", "beta", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m]


class Adam(KernelCall):
    """A call of `adam_f32`.

    Where nothing else is said, the gradient has weight_decay * w added before anything else. Adam: as adamw_f32 with
    adam_mode 0 but for the decay.
    """

    __slots__ = ("w", "g", "m", "v", "state", "n", "alpha", "beta", "epsilon", "weight_decay")
    KERNEL = "adam_f32"
    OPCODE = 37
    WORDS = 10
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "v", "state")
    FLOATS = ("alpha", "beta", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        v: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        epsilon: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.v = v
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.v, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m, self.v]


class Momentum(KernelCall):
    """A call of `momentum_f32`.

    m = momentum m + (1 - dampening) g, at the first step g; w -= rate * (nesterov ? g + momentum m : m)
    """

    __slots__ = ("w", "g", "m", "state", "n", "momentum", "dampening", "weight_decay", "nesterov")
    KERNEL = "momentum_f32"
    OPCODE = 38
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "state")
    FLOATS = ("momentum", "dampening", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        state: Buf,
        n: int,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.state = state
        self.n = n
        self.momentum = momentum
        self.dampening = dampening
        self.weight_decay = weight_decay
        self.nesterov = nesterov

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m]


class Rmsprop(KernelCall):
    """A call of `rmsprop_f32`.

    s = alpha s + (1 - alpha) g^2; with `mean` its square, an average of g like s, is taken from s under the root; d = g
    / (sqrt(s) + epsilon); with `velocity` it is momentum velocity + d; w -= rate * d
    """

    __slots__ = ("w", "g", "s", "velocity", "mean", "state", "n", "alpha", "epsilon", "momentum", "weight_decay")
    KERNEL = "rmsprop_f32"
    OPCODE = 39
    WORDS = 11
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "s", "velocity", "mean", "state")
    FLOATS = ("alpha", "epsilon", "momentum", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        s: Buf,
        velocity: Buf | None = None,
        mean: Buf | None = None,
        state: Buf,
        n: int,
        alpha: float,
        epsilon: float,
        momentum: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.s = s
        self.velocity = velocity
        self.mean = mean
        self.state = state
        self.n = n
        self.alpha = alpha
        self.epsilon = epsilon
        self.momentum = momentum
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        found = [self.w, self.g, self.s]
        if self.velocity is not None:
            found.append(self.velocity)
        if self.mean is not None:
            found.append(self.mean)
        found.append(self.state)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.w, self.s]
        if self.velocity is not None:
            found.append(self.velocity)
        if self.mean is not None:
            found.append(self.mean)
        return found


class Adagrad(KernelCall):
    """A call of `adagrad_f32`.

    s += g^2, at the first step from `initial`; w -= rate / (1 + steps before * rate_decay) * g / (sqrt(s) + epsilon)
    """

    __slots__ = ("w", "g", "s", "state", "n", "rate_decay", "initial", "epsilon", "weight_decay")
    KERNEL = "adagrad_f32"
    OPCODE = 40
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "s", "state")
    FLOATS = ("rate_decay", "initial", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        s: Buf,
        state: Buf,
        n: int,
        rate_decay: float,
        initial: float,
        epsilon: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.s = s
        self.state = state
        self.n = n
        self.rate_decay = rate_decay
        self.initial = initial
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.s, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.s]


class Adadelta(KernelCall):
    """A call of `adadelta_f32`.

    s = rho s + (1 - rho) g^2; u = sqrt(d + epsilon) / sqrt(s + epsilon) g; d = rho d + (1 - rho) u^2; w -= rate * u
    """

    __slots__ = ("w", "g", "s", "d", "state", "n", "rho", "epsilon", "weight_decay")
    KERNEL = "adadelta_f32"
    OPCODE = 41
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "s", "d", "state")
    FLOATS = ("rho", "epsilon", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        s: Buf,
        d: Buf,
        state: Buf,
        n: int,
        rho: float,
        epsilon: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.s = s
        self.d = d
        self.state = state
        self.n = n
        self.rho = rho
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.s, self.d, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.s, self.d]


class Lamb(KernelCall):
    """A call of `lamb_f32`.

    Of one parameter: r = Adam's direction + weight_decay w; w -= rate * (norm of w / norm of r, 1 where either is 0) *
    r
    """

    __slots__ = (
        "w",
        "g",
        "m",
        "v",
        "partial",
        "state",
        "n",
        "alpha",
        "beta",
        "epsilon",
        "weight_decay",
        "ratio_min",
        "ratio_max",
        "correct_bias",
    )
    KERNEL = "lamb_f32"
    OPCODE = 42
    WORDS = 14
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "m", "v", "partial", "state")
    FLOATS = ("alpha", "beta", "epsilon", "weight_decay", "ratio_min", "ratio_max")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        m: Buf,
        v: Buf,
        state: Buf,
        n: int,
        alpha: float,
        beta: float,
        epsilon: float,
        weight_decay: float,
        ratio_min: float,
        ratio_max: float,
        correct_bias: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.m = m
        self.v = v
        self.partial: Buf
        self.state = state
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.ratio_min = ratio_min
        self.ratio_max = ratio_max
        self.correct_bias = correct_bias

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.m, self.v, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.m, self.v, self.partial]

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, 4 * chunks(self.n)),))


class Average(KernelCall):
    """A call of `average_f32`.

    average += (1 - d) * (w - average), d = decay, or with power the lesser of it and 1 - (1 + t / gamma)^-power, t
    being state's step; at step 0 the average is w.
    """

    __slots__ = ("w", "average", "state", "n", "decay", "power", "gamma")
    KERNEL = "average_f32"
    OPCODE = 43
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("w", "average", "state")
    FLOATS = ("decay", "power", "gamma")

    def __init__(
        self, *, w: Buf, average: Buf, state: Buf, n: int, decay: float, power: float, gamma: float, node: str = ""
    ) -> None:
        self.node = node
        self.w = w
        self.average = average
        self.state = state
        self.n = n
        self.decay = decay
        self.power = power
        self.gamma = gamma

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.average, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.average]


class StateWithRate(KernelCall):
    """A call of `state_with_rate`.

    The state, but for its learning rate.
    """

    __slots__ = ("state", "rate", "changed")
    KERNEL = "state_with_rate"
    OPCODE = 44
    WORDS = 3
    ARGUMENTS = __slots__
    OPERANDS = ("state", "rate", "changed")

    def __init__(self, *, state: Buf, rate: Buf, changed: Buf, node: str = "") -> None:
        self.node = node
        self.state = state
        self.rate = rate
        self.changed = changed

    @property
    def reads(self) -> list[Buf]:
        return [self.state, self.rate]

    @property
    def writes(self) -> list[Buf]:
        return [self.changed]


class ClipGradNorm(KernelCall):
    """A call of `clip_grad_norm_f32`.

    g *= min(1, max_norm / (sqrt(sum of g^2) + 1e-6))
    """

    __slots__ = ("g", "partial", "n", "max_norm")
    KERNEL = "clip_grad_norm_f32"
    OPCODE = 45
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("g", "partial")
    FLOATS = ("max_norm",)

    def __init__(self, *, g: Buf, n: int, max_norm: float, node: str = "") -> None:
        self.node = node
        self.g = g
        self.partial: Buf
        self.n = n
        self.max_norm = max_norm

    @property
    def reads(self) -> list[Buf]:
        return [self.g]

    @property
    def writes(self) -> list[Buf]:
        return [self.g, self.partial]

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, 2 * chunks(self.n)),))


class ClipGrads(KernelCall):
    """A call of `clip_grads_f32`.

    g = min(max(g, -limits[0]), limits[0]), then as above with max_norm = limits[1]; infinity leaves them as they are
    """

    __slots__ = ("g", "limits", "partial", "n")
    KERNEL = "clip_grads_f32"
    OPCODE = 46
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("g", "limits", "partial")

    def __init__(self, *, g: Buf, limits: Buf, n: int, node: str = "") -> None:
        self.node = node
        self.g = g
        self.limits = limits
        self.partial: Buf
        self.n = n

    @property
    def reads(self) -> list[Buf]:
        return [self.g, self.limits]

    @property
    def writes(self) -> list[Buf]:
        return [self.g, self.partial]

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, 2 * chunks(self.n)),))


class OptimizerAdvance(KernelCall):
    """A call of `optimizer_advance`.

    step += 1
    """

    __slots__ = ("state",)
    KERNEL = "optimizer_advance"
    OPCODE = 47
    WORDS = 1
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, node: str = "") -> None:
        self.node = node
        self.state = state

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]


class LinearLr(KernelCall):
    """A call of `linear_lr`.

    learning_rate = initial_lr * f(step) of the linear scheduler
    """

    __slots__ = ("state",)
    KERNEL = "linear_lr"
    OPCODE = 48
    WORDS = 1
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, node: str = "") -> None:
        self.node = node
        self.state = state

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]
