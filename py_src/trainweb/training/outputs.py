"""The outputs of the base model in an eval model, and what metrics compare them with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trainweb import messages
from trainweb.errors import ModelError
from trainweb.loss_counts import is_mean_entropy
from trainweb.metrics import VIEWS, Asked, OutputMetric, TermLoss, compared_with, make_metric, met_by, weights_in
from trainweb.model.graph import LOSS_TERMS, OF_OUTPUT, OWN_OUTPUTS, Graph, Value
from trainweb.spelling import input_name


@dataclass(frozen=True)
class ModelOutputs:
    """Tensors of an eval model that predictions, exports and metrics read.

    `own` are the outputs of the base model, which predictions and exports have by default. If the eval model notes
    them, `pairs` are predictions and targets that its loss compares. Else `compared` is what its loss compares with the
    last input. `default` has predictions and targets where `pairs` does not decide, None if unknown. `terms` are
    outputs whose weighted sum is the loss, if it has several. The inputs `weights` have weights of rows or labels, or
    gradients of outputs; they are not among `inputs`. `entropies` are mean cross entropies without such weights: terms
    by outputs, and the loss by "". The labels `weighed` have weights; "" is all.
    """

    own: list[str]
    compared: str | None
    pairs: list[tuple[str, str]]
    default: tuple[str | None, str | None]
    outputs: list[str]
    inputs: list[str]
    terms: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    entropies: dict[str, str] = field(default_factory=dict)
    weighed: list[str] = field(default_factory=list)

    def pair(self, predictions: str | None, targets: str | None) -> tuple[str, str]:
        """Return what metrics compare; `predictions` and `targets` are the user's, or None.

        Raise ModelError for another tensor, or if one must be given.
        """
        compared = [] if self.compared is None else [self.compared]
        names = [*dict.fromkeys([*self.outputs, *self.own, *compared, *(p for p, _ in self.pairs)])]
        targets = None if targets is None else input_name(targets, self.inputs)
        for name, value, known in (("predictions", predictions, names), ("targets", targets, self.inputs)):
            if value is not None and value not in known:
                raise messages.BAD_SETTING(name=name, value=value, expected=f"one of {', '.join(known)}")
        fits = [(p, t) for p, t in self.pairs if predictions in (None, p) and targets in (None, t)]
        first, second = fits[0] if len(fits) == 1 else self.default
        predictions = first if predictions is None else predictions
        targets = second if targets is None else targets
        if predictions is None or targets is None:
            raise messages.NO_PREDICTIONS(names=", ".join(names), inputs=", ".join(self.inputs))
        if targets in self.weights:
            raise messages.METRIC_OF_GRADIENT(predictions=predictions, targets=targets)
        return predictions, targets

    def asked(
        self, metrics: Iterable[OutputMetric], predictions: str | None = None, targets: str | None = None
    ) -> list[Asked]:
        """Return metrics with what they compare, and the terms of the loss."""
        asked = []
        for output, settings in metrics:
            metric = make_metric(settings)
            key = metric.name if output is None else f"{output}_{metric.name}"
            if output is not None and predictions is not None:
                expected = "left out with metrics of outputs"
                raise messages.BAD_SETTING(name="predictions", value=predictions, expected=expected)
            if not metric.reads_outputs and (output or "") not in self.entropies:
                raise messages.NO_PERPLEXITY(name="the loss" if output is None else f"{output}_loss")
            of_loss = self.entropies[output] if output and not metric.reads_outputs else "", ""
            pair = self.pair(output or predictions, targets) if metric.reads_outputs else of_loss
            asked.append(Asked(key, metric, *pair))
        return [*asked, *(Asked(name, TermLoss(), name) for name in self.terms)]


def outputs_of(graph: Graph | None, inputs: Iterable[str], outputs: Iterable[str]) -> ModelOutputs:
    """The outputs of an eval model, by its note; artifacts of ONNX Runtime have none."""
    results, names = list(outputs), list(inputs)
    if graph is None:
        return ModelOutputs(results[1:], None, [], (None, None), results, names)
    weighed, weights = list(weights_in(graph)), set(weights_in(graph).values())
    gradients = {v.name for v in graph.inputs if isinstance(v, Value) and OF_OUTPUT in v.notes}
    unlabeled = sorted(weights | gradients)
    fed = [name for name in names if name not in unlabeled]
    if not fed:
        return ModelOutputs(results[1:], None, [], (None, None), results, fed)
    noted, terms = noted_names(graph, OWN_OUTPUTS), [name for name in noted_names(graph, LOSS_TERMS) if name in results]
    entropies = _entropies(graph, results[0], terms)
    if noted:
        pairs = _pairs(graph, [name for name in names if name not in weights], noted)
        default = _default(graph, fed, noted)
        return ModelOutputs(noted, None, pairs, default, results, fed, terms, unlabeled, entropies, weighed)
    others, compared = results[1:], compared_with(graph, fed)
    own_outputs = others or ([] if compared is None else [_before_loss(graph, compared)])
    default = others[0] if len(others) == 1 else compared, fed[-1]
    return ModelOutputs(own_outputs, compared, [], default, results, fed, terms, unlabeled, entropies, weighed)


def noted_names(graph: Graph, note: str) -> list[str]:
    """Names of tensors that a builder of artifacts noted."""
    try:
        names = json.loads(graph.metadata.get(note, "[]"))
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"The eval model's metadata {note!r} must be a list of names of outputs.")
    known = set(graph.names())
    return [name for name in names if name in known]


def _pairs(graph: Graph, inputs: Sequence[str], own: Sequence[str]) -> list[tuple[str, str]]:
    """Own outputs and the inputs that the loss compares them with."""
    met = [(met_by(graph, targets, inputs, own)[0], targets) for targets in inputs]
    return [(output, targets) for output, targets in met if output is not None]


def _entropies(graph: Graph, loss: str, terms: Sequence[str]) -> dict[str, str]:
    """See `ModelOutputs.entropies`."""
    weights, names = weights_in(graph), {"": loss} | {term.removesuffix("_loss"): term for term in terms}
    weighed = list(names) if "" in weights else [labels.removesuffix("_labels") for labels in weights]
    return {key: name for key, name in names.items() if key not in weighed and is_mean_entropy(graph, name)}


def _default(graph: Graph, inputs: Sequence[str], own: list[str]) -> tuple[str | None, str | None]:
    """Return the only own output, and the only input that no own output depends on."""
    live = graph.behind(own)
    targets = [name for name in inputs if name not in live] or list(inputs)
    return own[0] if len(own) == 1 else None, targets[0] if len(targets) == 1 else None


def _before_loss(graph: Graph, compared: str) -> str:
    """Return the output of the model that a loss brought into the shape that it compares."""
    views = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op_type in VIEWS}
    while compared.startswith("onnx::") and compared in views:
        compared = views[compared]
    return compared
