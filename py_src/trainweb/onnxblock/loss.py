"""Losses. Each is a scalar unless `reduction` is "none"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from trainweb import messages
from trainweb._names import public_names
from trainweb.errors import ModelError
from trainweb.model.checks import DTYPE_CODES
from trainweb.model.graph import OF_OUTPUT, TRAINWEB, Value
from trainweb.onnxblock import blocks, context
from trainweb.onnxblock.blocks import Block, add_input_like, array_initializer
from trainweb.onnxblock.context import add_node, generate_name, skip_names
from trainweb.settings import Choice, NotNegative, Number, Positive, Weights, Whole, YesNo, checked
from trainweb.spelling import DIFFERENCE, IGNORED, LOG_PROBABILITIES

FLOAT, INT64 = DTYPE_CODES["float32"], DTYPE_CODES["int64"]
Reduction = Annotated[str, Choice(("mean", "sum", "none"))]
LEAST_REST = 1e-7
"""Lower bound of 1 - p, below each value but 0 that it has in float32."""


def _reduced(each: str, reduction: str) -> str:
    """The mean or the sum of all elements, or each."""
    reductions = {"mean": blocks.ReduceMean, "sum": blocks.ReduceSum}
    block = reductions[reduction](keepdims=False) if reduction in reductions else blocks.PassThrough()
    return str(block(each))


def _target_like(pred: str, name: str) -> str:
    return name if context.current().has(name) else add_input_like(pred, name)


def _counted(labels: str, ignore_index: int) -> str:
    """1.0 for labels other than `ignore_index`, else 0.0."""
    ignored = blocks.add_initializer_of("int64", "ignore_index", [ignore_index])
    block = Block()
    return block.add_node("Cast", [block.add_node("Not", [block.add_node("Equal", [labels, ignored])])], to=FLOAT)


def _weights_of(labels: str, weight: str, counts: str | None) -> str:
    """The weight of each label's class; ignored labels have any weight."""
    block = Block()
    if counts is not None:
        labels = block.add_node("Mul", [labels, block.add_node("Cast", [counts], to=INT64)])
    return block.add_node("Gather", [weight, labels])


def _batch_dim(scores: str, name: str, axis: int) -> int | str:
    """The dim of the items, named if it had no name."""
    accessor = context.current()
    value = accessor.tensor_value(scores)
    dims = list(value.shape or ())
    if dims[axis] is None:
        dims[axis] = f"{name}_dim_0"
        accessor.graph.value_info[scores] = Value(scores, value.dtype, tuple(dims))
    dim = dims[axis]
    assert dim is not None
    return dim


def _flat_rows(scores: str, labels: str, axis: int, rank: int) -> list[str]:
    """Scores as [rows, classes] and their labels."""
    if axis != rank - 1:
        last = [k for k in range(rank) if k != axis] + [axis]
        scores = Block().add_node("Transpose", [scores], perm=last)
    flat = blocks.add_initializer_of("int64", "row_shape", [-1])
    rows = Block().add_node("Flatten", [scores], axis=rank - 1)
    return [rows, Block().add_node("Reshape", [labels, flat])]


@dataclass(eq=False, repr=False)
class Loss(Block):
    """A loss that is known by its name. Its settings are its fields: see `trainweb.settings`."""

    _n_inputs: ClassVar[int] = 1
    """Number of the model's outputs that it takes."""


LOSSES: dict[str, type[Loss]] = {}
"""Losses that `LossType`, the command line, pages and the documentation know, by name."""
T = TypeVar("T", bound=Loss)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def loss(cls: type[T]) -> type[T]:
    """Class decorator that makes a loss known by its name, and arguments of its fields, which are checked."""
    kind = dataclass(eq=False, repr=False)(cls)
    kind.__init__ = checked(kind.__init__)  # type: ignore[method-assign]
    LOSSES[cls.__name__] = kind
    return kind


@dataclass(eq=False, repr=False)
class _Elementwise(Loss):
    """A loss of each element of a prediction; a subclass computes it by `_each`."""

    reduction: Reduction = "mean"

    def build(self, pred: str, target_name: str = "target") -> str:
        """Name of the loss of `pred` against input `target_name`, which is added if missing."""
        return _reduced(self._each(pred, _target_like(pred, target_name)), self.reduction)

    def _each(self, pred: str, target: str) -> str:
        raise NotImplementedError


@loss
class MSELoss(_Elementwise):
    """Squared error: the mean, the sum or each ("none").

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    """

    def _each(self, pred: str, target: str) -> str:
        return str(blocks.Pow(2.0)(blocks.Sub()(pred, target)))


@loss
class CrossEntropyLoss(Loss):
    """Cross entropy of scores (logits) against class indices or probabilities.

    Parameters
    ----------
    weight : array of shape (C,), optional
        Factor of each class.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the weights of the rows that count; for probabilities, by the number of rows.
    ignore_index : int, optional
        Label of rows that the loss ignores.
    label_smoothing : float
        Share of the target that is spread equally over all classes.
    class_axis : int
        Axis of the scores that holds the classes. The last by default, as for (N, C) and (N, S, V);
        use 1 for (N, C, H, W).
    probabilities : bool
        The labels are float32 probabilities of the classes in the shape of the scores, as mixup makes them.
    """

    weight: Weights | None = None
    reduction: Reduction = "mean"
    ignore_index: Annotated[int, Whole()] | None = None
    label_smoothing: Annotated[float, Number(least=0, most=1)] = 0.0
    class_axis: Annotated[int, Whole()] = field(default=-1, kw_only=True)
    probabilities: YesNo = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.probabilities and self.ignore_index is not None:
            expected = "left out with probabilities"
            raise messages.BAD_SETTING(name="ignore_index", value=self.ignore_index, expected=expected)

    def build(self, scores: str, labels_name: str = "labels") -> str:
        """Name of the loss of `scores` against input `labels_name`, which is added if missing.

        The labels have the shape of the scores without the class axis; probabilities have it.
        """
        weight = generate_name("celoss.weight")
        accessor = context.current()
        shape = accessor.tensor_value(scores).shape or ()
        rank = len(shape)
        if rank < 2 or not -rank <= self.class_axis < rank:
            raise ModelError(f"Scores {scores!r} of rank {rank} have no class axis {self.class_axis}.")
        axis = self.class_axis % rank
        if shape[axis] == 1:
            raise ModelError(f"Scores {scores!r} of one class have no loss: BCEWithLogitsLoss decides yes and no.")
        if self.probabilities:
            return self._of_probabilities(scores, _target_like(scores, labels_name), axis, rank, weight)
        labels = labels_name
        if not accessor.has(labels_name):
            labels = add_input_like(scores, labels_name, "int64", drop_axis=axis)
        if self.label_smoothing:
            return self._smoothed(scores, labels, axis, rank, weight)
        loss, log_prob = generate_name("loss"), generate_name("log_prob")
        # The operator takes the classes in dim 1.
        inputs = [scores, labels] if axis == 1 else _flat_rows(scores, labels, axis, rank)
        if self.weight is not None:
            inputs.append(array_initializer(weight, self.weight))
        attrs: dict[str, Any] = {"reduction": self.reduction}
        if self.ignore_index is not None:
            attrs["ignore_index"] = self.ignore_index
        restore = self.reduction == "none" and inputs[0] != scores
        out = generate_name("loss_rows") if restore else loss
        add_node("SoftmaxCrossEntropyLoss", inputs, [out, log_prob], **attrs)
        if restore:
            add_node("Reshape", [out, self.add_node("Shape", [labels])], [loss])
        return loss

    def _smoothed(self, scores: str, labels: str, axis: int, rank: int, weight: str) -> str:
        """(1 - s) * (-w[label] log p[label]) + s * mean of -w log p over the classes, as torch has it."""
        rows, targets = _flat_rows(scores, labels, axis, rank)
        weights = [] if self.weight is None else [array_initializer(weight, self.weight)]
        attrs: dict[str, Any] = {} if self.ignore_index is None else {"ignore_index": self.ignore_index}
        inputs = [rows, targets, *weights]
        of_label, _ = self.add_node("SoftmaxCrossEntropyLoss", inputs, 2, reduction="none", **attrs)
        log_p = self.add_node("LogSoftmax", [rows], axis=1)
        if weights:
            log_p = self.add_node("Mul", [log_p, weights[0]])
        of_all = self.add_node("Neg", [blocks.over_last_axis("ReduceMean", log_p)])
        counts = None
        if self.ignore_index is not None:
            counts = _counted(targets, self.ignore_index)
            of_all = self.add_node("Mul", [of_all, counts])
        each = blocks.Add()(
            blocks.Mul()(of_label, blocks.Constant(1 - self.label_smoothing)()),
            blocks.Mul()(of_all, blocks.Constant(self.label_smoothing)()),
        )
        if self.reduction == "none":
            return self.add_node("Reshape", [each, self.add_node("Shape", [labels])])
        if self.reduction == "sum" or (counts is None and not weights):
            return _reduced(each, self.reduction)
        return str(blocks.Div()(blocks.ReduceSum(keepdims=False)(each), self._total_weight(targets, weights, counts)))

    def _of_probabilities(self, scores: str, target: str, axis: int, rank: int, weight: str) -> str:
        """-(1 - s) * sum of t w log p over the classes - s * mean of w log p, as torch has it."""
        if axis != rank - 1:
            last = [k for k in range(rank) if k != axis] + [axis]
            scores, target = (self.add_node("Transpose", [name], perm=last) for name in (scores, target))
        log_p = self.add_node("LogSoftmax", [scores], axis=rank - 1)
        if self.weight is not None:
            log_p = self.add_node("Mul", [log_p, array_initializer(weight, self.weight)])
        each = blocks.over_last_axis("ReduceSum", self.add_node("Mul", [target, log_p]))
        if self.label_smoothing:
            each = blocks.Add()(
                blocks.Mul()(each, blocks.Constant(1 - self.label_smoothing)()),
                blocks.Mul()(blocks.over_last_axis("ReduceMean", log_p), blocks.Constant(self.label_smoothing)()),
            )
        return _reduced(self.add_node("Neg", [each]), self.reduction)

    def _total_weight(self, targets: str, weights: list[str], counts: str | None) -> str:
        """The sum of the weights of the rows that count; of labels that are ignored no weight is looked up."""
        each = [_weights_of(targets, weight, counts) for weight in weights] + ([] if counts is None else [counts])
        return str(blocks.ReduceSum(keepdims=False)(self.add_node("Mul", each) if len(each) > 1 else each[0]))


@loss
class BCEWithLogitsLoss(Loss):
    """Binary cross entropy of logits x against targets t in [0, 1].

    softplus(x) - x t, or with pos_weight p: (1 - t) x + (1 + (p - 1) t) softplus(-x). Stable for
    any x, and its gradient is sigmoid(x) - t everywhere, unlike that of forms with max(x, 0) and
    |x|.

    Parameters
    ----------
    weight : array, optional
        Factor of each element's loss; broadcasts.
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    pos_weight : array, optional
        Factor of the positive targets; broadcasts.
    """

    weight: Weights | None = None
    reduction: Reduction = "mean"
    pos_weight: Weights | None = None

    def build(self, logits: str, target_name: str = "target") -> str:
        """Name of the loss of `logits` against input `target_name`, which is added if missing."""
        pos_weight, weight = generate_name("bceloss.pos_weight"), generate_name("bceloss.weight")
        target = _target_like(logits, target_name)
        if self.pos_weight is None:
            # ONNX Runtime's formula makes 20 names here: the loss keeps the name it has there.
            loss: str = blocks.Sub()(blocks.Softplus()(logits), blocks.Mul()(logits, target))
            skip_names(14)
        else:
            loss = self._weighted(logits, target, array_initializer(pos_weight, self.pos_weight))
        if self.weight is not None:
            loss = blocks.Mul()(loss, array_initializer(weight, self.weight))
        return _reduced(loss, self.reduction)

    def _weighted(self, logits: str, target: str, pos_weight: str) -> str:
        one = blocks.Constant(1.0)()
        factor = blocks.Add()(one, blocks.Mul()(blocks.Sub()(pos_weight, one), target))
        positive = blocks.Mul()(factor, blocks.Softplus()(blocks.Neg()(logits)))
        return str(blocks.Add()(blocks.Mul()(blocks.Sub()(one, target), logits), positive))


@loss
class L1Loss(_Elementwise):
    """Absolute error: the mean, the sum or each ("none").

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    """

    def _each(self, pred: str, target: str) -> str:
        return str(blocks.Abs()(blocks.Sub()(pred, target)))


def _huber(pred: str, target: str, delta: float, scale: float) -> str:
    error = blocks.Abs()(blocks.Sub()(pred, target))
    beyond = Block().add_node("Relu", [blocks.Sub()(error, blocks.Constant(delta)())])
    square = blocks.Mul()(blocks.Pow(2.0)(blocks.Sub()(error, beyond)), blocks.Constant(0.5 * scale)())
    return str(blocks.Add()(square, blocks.Mul()(beyond, blocks.Constant(delta * scale)())))


@loss
class HuberLoss(_Elementwise):
    """d^2 / 2 where |d| is at most delta, else delta (|d| - delta / 2), d being the error.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    delta : float
        Error at which the loss becomes linear.
    """

    delta: Positive = 1.0

    def _each(self, pred: str, target: str) -> str:
        return _huber(pred, target, float(self.delta), 1.0)


@loss
class SmoothL1Loss(_Elementwise):
    """d^2 / (2 beta) where |d| is at most beta, else |d| - beta / 2, d being the error.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    beta : float
        Error at which the loss becomes linear.
    """

    beta: Positive = 1.0

    def _each(self, pred: str, target: str) -> str:
        return _huber(pred, target, float(self.beta), 1 / float(self.beta))


@loss
class KLDivLoss(_Elementwise):
    """Kullback-Leibler divergence t (log t - x) of log-probabilities x from target probabilities t.

    Parameters
    ----------
    reduction : {"mean", "sum", "none", "batchmean"}
        How the elements are combined; "batchmean", the sum divided by the batch, is the divergence.
    log_target : bool
        True if the target holds logarithms of probabilities, too.
    """

    reduction: Annotated[str, Choice(("mean", "sum", "none", "batchmean"))] = "mean"
    log_target: YesNo = False

    def build(self, pred: str, target_name: str = "target") -> str:
        """Name of the loss of `pred` against input `target_name`, which is added if missing."""
        if self.reduction != "batchmean":
            return super().build(pred, target_name)
        each = self._each(pred, _target_like(pred, target_name))
        first = blocks.add_initializer_of("int64", "first_axis", [0])
        batch = self.add_node("Gather", [self.add_node("Shape", [pred]), first])
        total = blocks.ReduceSum(keepdims=False)(each)
        mean = blocks.Div()(total, self.add_node("Cast", [batch], to=FLOAT))
        return str(blocks.ReduceSum(keepdims=False)(mean))

    def _each(self, pred: str, target: str) -> str:
        log = target
        if self.log_target:
            target = self.add_node("Exp", [log])
        else:
            # 0 log 0 is 0.
            zero = self.add_node("Cast", [self.add_node("Equal", [target, blocks.Constant(0.0)()])], to=FLOAT)
            log = self.add_node("Log", [blocks.Add()(target, zero)])
        return str(blocks.Mul()(target, blocks.Sub()(log, pred)))


@loss
class FocalLoss(Loss):
    """(1 - p)^gamma times the cross entropy -log p of scores against class indices, https://arxiv.org/abs/1708.02002.

    Parameters
    ----------
    gamma : float
        Exponent that reduces the weight of rows that are already classified well.
    weight : array of shape (C,), optional
        Factor of each class (alpha in the paper).
    reduction : {"mean", "sum", "none"}
        How the rows are combined; "mean" divides by the number of rows that count.
    class_axis : int
        Axis of the scores that holds the classes.
    ignore_index : int, optional
        Label of rows that the loss ignores.
    """

    gamma: NotNegative = 2.0
    weight: Weights | None = None
    reduction: Reduction = "mean"
    class_axis: Annotated[int, Whole()] = field(default=-1, kw_only=True)
    ignore_index: Annotated[int, Whole()] | None = field(default=None, kw_only=True)

    def build(self, scores: str, labels_name: str = "labels") -> str:
        """Name of the loss of `scores` against input `labels_name`, which is added if missing."""
        weight = generate_name("focal.weight")
        of_rows = CrossEntropyLoss(reduction="none", ignore_index=self.ignore_index, class_axis=self.class_axis)
        each = entropy = of_rows(scores, labels_name)
        counts = None if self.ignore_index is None else _counted(labels_name, self.ignore_index)
        if self.gamma:
            rest = blocks.Sub()(blocks.Constant(1.0)(), self.add_node("Exp", [blocks.Neg()(entropy)]))
            if self.gamma < 1:  # its power is infinitely steep at 0
                rest = self.add_node("Max", [rest, blocks.Constant(LEAST_REST)()])
            each = blocks.Mul()(blocks.Pow(self.gamma)(rest), entropy)
        if self.weight is not None:
            weights = _weights_of(labels_name, array_initializer(weight, self.weight), counts)
            each = blocks.Mul()(each, weights)
        if counts is None or self.reduction != "mean":
            return _reduced(each, self.reduction)
        total = blocks.ReduceSum(keepdims=False)
        return str(blocks.Div()(total(each), total(counts)))


def _distance(a: str, b: str) -> str:
    """The Euclidean distance of rows, with what torch adds to each difference."""
    difference = blocks.Add()(blocks.Sub()(a, b), blocks.Constant(1e-6)())
    square = blocks.over_last_axis("ReduceSum", blocks.Mul()(difference, difference))
    return Block().add_node("Sqrt", [square])


class _OfPairs(Loss):
    """A loss of two vectors for each sample, and a label that says whether they belong together."""

    _n_inputs = 2

    def _is(self, x: str, label: int) -> str:
        """1.0 where the labels of vectors like `x` are `label`, else 0.0."""
        name = "labels"
        if not context.current().has(name):
            add_input_like(x, name, "int64", drop_axis=len(context.current().tensor_value(x).shape or ()) - 1)
        wanted = blocks.add_initializer_of("int64", "label", [label])
        return self.add_node("Cast", [self.add_node("Equal", [name, wanted])], to=FLOAT)


@loss
class CosineEmbeddingLoss(_OfPairs):
    """1 - cos of two vectors whose label is 1, max(0, cos - margin) of those whose label is -1.

    Parameters
    ----------
    margin : float
        Cosine above which vectors that should differ have a loss.
    reduction : {"mean", "sum", "none"}
        How the samples are combined.
    """

    margin: Annotated[float, Number(least=-1, most=1)] = 0.0
    reduction: Reduction = "mean"

    def build(self, a: str, b: str) -> str:
        """Name of the loss of `a` and `b`, both (N, D), against input "labels" (N,), which is added if missing."""

        def dot(x: str, y: str) -> str:
            return blocks.over_last_axis("ReduceSum", blocks.Mul()(x, y))

        small = blocks.Constant(1e-12)()
        squares = blocks.Mul()(blocks.Add()(dot(a, a), small), blocks.Add()(dot(b, b), small))
        cosine = blocks.Div()(dot(a, b), self.add_node("Sqrt", [squares]))
        near = blocks.Mul()(self._is(a, 1), blocks.Sub()(blocks.Constant(1.0)(), cosine))
        beyond = self.add_node("Relu", [blocks.Sub()(cosine, blocks.Constant(self.margin)())])
        return _reduced(blocks.Add()(near, blocks.Mul()(self._is(a, -1), beyond)), self.reduction)


@loss
class ContrastiveLoss(_OfPairs):
    """d^2 of two vectors whose label is 1, max(0, margin - d)^2 of those whose label is 0, d being their distance.

    Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, without the factor 1/2.

    Parameters
    ----------
    margin : float
        Distance above which vectors that should differ have no loss.
    reduction : {"mean", "sum", "none"}
        How the samples are combined.
    """

    margin: Positive = 1.0
    reduction: Reduction = "mean"

    def build(self, a: str, b: str) -> str:
        """Name of the loss of `a` and `b`, both (N, D), against input "labels" (N,), which is added if missing."""
        distance = _distance(a, b)
        short = self.add_node("Relu", [blocks.Sub()(blocks.Constant(self.margin)(), distance)])
        near = blocks.Mul()(self._is(a, 1), blocks.Mul()(distance, distance))
        far = blocks.Mul()(self._is(a, 0), blocks.Mul()(short, short))
        return _reduced(blocks.Add()(near, far), self.reduction)


@loss
class TripletMarginLoss(Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) of three vectors for each sample.

    Parameters
    ----------
    margin : float
        How much farther than the positive the negative vector must be.
    reduction : {"mean", "sum", "none"}
        How the samples are combined.
    """

    _n_inputs = 3

    margin: Positive = 1.0
    reduction: Reduction = "mean"

    def build(self, anchor: str, positive: str, negative: str) -> str:
        """Name of the loss of the vectors `anchor`, `positive` and `negative`, each (N, D)."""
        further = blocks.Sub()(_distance(anchor, positive), _distance(anchor, negative))
        short = self.add_node("Relu", [blocks.Add()(further, blocks.Constant(self.margin)())])
        return _reduced(short, self.reduction)


@loss
class CTCLoss(Loss):
    """Connectionist temporal classification of scores or log-probabilities, as torch.nn.CTCLoss: no alignment is given.

    The inputs "targets" (N, S), "input_lengths" (N,) and "target_lengths" (N,), all int64, are added. Of each item the
    first steps and labels count, as its lengths say; behind them targets hold any label, such as 0.

    Parameters
    ----------
    blank : int
        Class that means no symbol.
    reduction : {"mean", "sum", "none"}
        "mean" first divides the loss of each item by the length of its target.
    zero_infinity : bool
        True gives items whose target does not fit into their steps a loss of 0 instead of infinity.
    batch_first : bool
        True if the scores are (N, T, C) instead of (T, N, C).
    """

    blank: Annotated[int, Whole(least=0)] = 0
    reduction: Reduction = "mean"
    zero_infinity: YesNo = False
    batch_first: YesNo = False

    def build(
        self,
        scores: str,
        targets_name: str = "targets",
        input_lengths_name: str = "input_lengths",
        target_lengths_name: str = "target_lengths",
    ) -> str:
        """Name of the loss of `scores` against three inputs, which are added if missing.

        Parameters
        ----------
        scores : str
            Of shape (T, N, C), or (N, T, C) with `batch_first`.
        targets_name, input_lengths_name, target_lengths_name : str
            Names of the inputs (N, S), (N,) and (N,).
        """
        accessor = context.current()
        rank = len(accessor.tensor_value(scores).shape or ())
        if rank != 3:
            raise ModelError(f"Scores {scores!r} have {rank} axes; CTCLoss takes steps, items and classes.")
        items = 0 if self.batch_first else 1
        if not accessor.has(targets_name):
            batch = _batch_dim(scores, targets_name, items)
            accessor.add_input(Value(targets_name, "int64", (batch, f"{targets_name}_length")))
        for name in (input_lengths_name, target_lengths_name):
            if not accessor.has(name):
                accessor.add_input(Value(name, "int64", (_batch_dim(scores, name, items),)))
        # Of log-probabilities it is themselves, and the gradient is that of torch for both.
        log_probs = self.add_node("LogSoftmax", [scores], axis=2)
        if self.batch_first:
            log_probs = self.add_node("Transpose", [log_probs], perm=[1, 0, 2])
        inputs = [log_probs, targets_name, input_lengths_name, target_lengths_name]
        attrs: dict[str, Any] = {"blank": int(self.blank), "zero_infinity": int(self.zero_infinity)}
        each = self.add_node("CTCLoss", inputs, domain=TRAINWEB, **attrs)
        if self.reduction == "mean":
            lengths = self.add_node("Cast", [target_lengths_name], to=FLOAT)
            each = blocks.Div()(each, self.add_node("Max", [lengths, blocks.Constant(1.0)()]))
        return _reduced(each, self.reduction)


@loss
class DPOLoss(Loss):
    """Direct preference optimization of scores (B, S, V) of tokens: chosen and rejected texts alternate.

    It is TRL's "sigmoid" loss. It adds two inputs. "labels" (B, S), int64, are -100 where a token does not count.
    "reference" (B,) has the log-probabilities of the texts under the reference model. `Dataset.from_preferences` makes
    them. The eval model has the log-probabilities of the texts as "log_probabilities".

    Parameters
    ----------
    beta : float
        Larger values keep the model closer to the reference.
    label_smoothing : float
        Share of pairs whose labels are wrong, below 0.5.
    """

    beta: Positive = 0.1
    label_smoothing: Annotated[float, Number(least=0, below=0.5)] = 0.0

    def build(self, scores: str, labels_name: str = "labels", reference_name: str = "reference") -> str:
        """Name of the loss of `scores` against two inputs, which are added if missing.

        Parameters
        ----------
        scores : str
            Of shape (B, S, V); B is even.
        labels_name, reference_name : str
            Names of the inputs (B, S) and (B,).
        """
        accessor = context.current()
        rank = len(accessor.tensor_value(scores).shape or ())
        if rank != 3:
            raise ModelError(f"Scores {scores!r} have {rank} axes; DPOLoss takes texts, tokens and the vocabulary.")
        # The labels come last, and only the scores are compared with them: predictions are what the last input meets.
        if not accessor.has(reference_name):
            accessor.add_input(Value(reference_name, "float32", (_batch_dim(scores, reference_name, 0),)))
        if not accessor.has(labels_name):
            add_input_like(scores, labels_name, "int64", drop_axis=2)
        rows = _flat_rows(scores, labels_name, 2, rank)
        attrs: dict[str, Any] = {"reduction": "none", "ignore_index": IGNORED}
        each = self.add_node("SoftmaxCrossEntropyLoss", rows, 2, **attrs)[0]
        first = blocks.add_initializer_of("int64", "first_axes", [0, 1])
        shape = self.add_node("Gather", [self.add_node("Shape", [scores]), first])
        each = self.add_node("Reshape", [each, shape])
        add_node("Neg", [blocks.over_last_axis("ReduceSum", each)], [LOG_PROBABILITIES])
        pairs = blocks.add_initializer_of("int64", "pair_shape", [-1, 2])
        changes = self.add_node("Reshape", [blocks.Sub()(LOG_PROBABILITIES, reference_name), pairs])
        difference = array_initializer(generate_name(DIFFERENCE), [[self.beta], [-self.beta]])
        margin = self.add_node("MatMul", [changes, difference])
        loss = blocks.Softplus()(blocks.Neg()(margin))
        if self.label_smoothing:
            rest = blocks.Mul()(blocks.Softplus()(margin), blocks.Constant(self.label_smoothing)())
            loss = blocks.Add()(blocks.Mul()(loss, blocks.Constant(1 - self.label_smoothing)()), rest)
        return _reduced(loss, "mean")


@loss
class OutputGradient(Loss):
    """The sum of an output times its gradient, which is fed: a step for any loss that the caller computes."""

    def build(self, pred: str, gradient_name: str = "gradient") -> str:
        """Name of the sum of `pred` times input `gradient_name`, which is added if missing and has its shape."""
        product = blocks.Mul()(pred, _target_like(pred, gradient_name))
        for value in context.current().graph.inputs:
            if isinstance(value, Value) and value.name == gradient_name:
                value.notes[OF_OUTPUT] = pred
        return str(blocks.ReduceSum(keepdims=False)(product))


def __dir__() -> list[str]:
    return public_names(globals())
