"""Made by scripts/session_description.py of ops/optim/rules.py: edit that."""

from typing import Annotated

from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.optim import Optimizer
from trainweb.settings import Betas, Fraction, NotNegative, Number, Positive, ThreeBetas, Whole, YesNo

class Lion(Optimizer):
    """Lion: the sign of an interpolated gradient, https://arxiv.org/abs/2302.06675. ONNX Runtime does not have it.

    Its learning rate should be 3 to 10 times smaller than AdamW's, its weight decay as many times larger.

    Parameters
    ----------
    betas : pair of float
        Share of the moment in the direction of the update, and decay of the moment, each in [0, 1).
    weight_decay : float
        Weight decay, decoupled from the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: Betas = (0.9, 0.99),
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class Adam(Optimizer):
    """Adam as torch.optim.Adam: weight decay is added to the gradient. ONNX Runtime does not have it.

    Parameters
    ----------
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the corrected second moment.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-08,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class RMSProp(Optimizer):
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
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        alpha: Fraction = 0.99,
        eps: NotNegative = 1e-08,
        weight_decay: NotNegative = 0.0,
        momentum: Fraction = 0.0,
        centered: YesNo = False,
        clip_grad: Block | None = None,
    ) -> None: ...

class Adagrad(Optimizer):
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
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        lr_decay: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        initial_accumulator_value: NotNegative = 0.0,
        eps: NotNegative = 1e-10,
        clip_grad: Block | None = None,
    ) -> None: ...

class Adadelta(Optimizer):
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
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        rho: Fraction = 0.9,
        eps: NotNegative = 1e-06,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class Adamax(Optimizer):
    """Adamax as torch.optim.Adamax: Adam with the largest gradient so far, https://arxiv.org/abs/1412.6980.

    Parameters
    ----------
    betas : pair of float
        Decay of the first moment and of the largest gradient, each in [0, 1).
    eps : float
        Added to the absolute value of the gradient.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-08,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class NAdam(Optimizer):
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
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-08,
        weight_decay: NotNegative = 0.0,
        momentum_decay: Positive = 0.004,
        clip_grad: Block | None = None,
    ) -> None: ...

class RAdam(Optimizer):
    """Adam with rectified first steps, as torch.optim.RAdam, https://arxiv.org/abs/1908.03265.

    Parameters
    ----------
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Weight decay: this times the parameter is added to the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-08,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class AdaBelief(Optimizer):
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
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-16,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class Adan(Optimizer):
    """Adan as optax.adan: Nesterov's momentum by differences of gradients, https://arxiv.org/abs/2208.06677.

    Parameters
    ----------
    betas : three floats
        Decay of the averages of gradients, of their differences and of the squares of both, each in [0, 1).
    eps : float
        Added to the corrected squares and to their root.
    weight_decay : float
        Weight decay, decoupled from the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: ThreeBetas = (0.98, 0.92, 0.99),
        eps: NotNegative = 1e-08,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class Lookahead(Optimizer):
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
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        sync_period: Annotated[int, Whole(least=1)] = 5,
        slow_step_size: Annotated[float, Number(above=0, most=1)] = 0.5,
        momentum: Fraction = 0.9,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...

class ScheduleFreeAdamW(Optimizer):
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
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """
    def __init__(
        self,
        betas: Betas = (0.9, 0.999),
        eps: NotNegative = 1e-08,
        weight_decay: NotNegative = 0.0,
        clip_grad: Block | None = None,
    ) -> None: ...
