"""A loss of several terms: outputs have losses of their own, and a weighted sum of these is trained.

Terms and weights are nodes of the models. Steps return the terms beside the loss, and evaluations give their means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from trainweb import messages
from trainweb.model.graph import LOSS_TERMS, Graph, take_name
from trainweb.onnxblock import blocks, context
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.loss import LOSSES, CrossEntropyLoss, FocalLoss, Loss
from trainweb.onnxblock.row_weights import EVERY, RowWeights, labels_of, weighed, weights_of
from trainweb.settings import Number, make

WEIGHT = Number(least=0)
OF_LABELS = ("labels_name", "target_name", "targets_name")
"""Arguments of losses that name the input of labels."""
NAME = "name"
"""Another name of "type" in a loss."""
OF_YOURS = "the gradient of a loss that you compute goes to 'OutputGradient'"


def label_arguments(loss: Block) -> list[str]:
    """The arguments of a loss that name inputs of labels."""
    return [name for name in signature(loss.build).parameters if name in OF_LABELS]


def is_by_output(loss: Any) -> bool:
    """Return whether a loss is a mapping of outputs to terms, and not a name with settings."""
    if not isinstance(loss, Mapping) or any(isinstance(loss.get(key), str) for key in ("type", NAME, "reduction")):
        return False
    every = [term for terms in loss.values() for term in (terms if isinstance(terms, (list, tuple)) else [terms])]
    return any(isinstance(term, (str, Mapping)) or callable(term) or hasattr(term, NAME) for term in every)


def named_loss(loss: Any, path: str = "loss") -> Any:
    """A loss by its name or settings; one that is a Block stays as it is."""
    if isinstance(loss, Mapping) and isinstance(loss.get(NAME), str) and "type" not in loss:
        loss = {"type": loss[NAME], **{key: value for key, value in loss.items() if key != NAME}}
    kind = getattr(loss, NAME, loss)
    if not isinstance(loss, Block) and not isinstance(kind, (str, Mapping)):
        like = getattr(loss, "__name__", type(loss).__name__)
        expected = f"the name of one, such as {like if like in LOSSES else 'MSELoss'!r}, or a dict with its 'type'"
        raise messages.BAD_SETTING(name=path, value=loss, expected=f"{expected}; {OF_YOURS}")
    return loss if isinstance(loss, Block) else make(path, LOSSES, kind)


@dataclass(frozen=True, slots=True)
class Term:
    """The loss of an output, and its weight in the sum."""

    output: str
    loss: Block
    weight: float

    @classmethod
    def of(cls, output: str, loss: Any, path: str) -> Term:
        """A term by the name of its loss, or by a mapping of that, a "weight" and settings."""
        weight = 1.0
        if isinstance(loss, Mapping):
            settings = dict(loss)
            weight = settings.pop("weight", 1.0)
            if not WEIGHT.accepts(weight):
                expected = f"{WEIGHT.expected}; weights of classes are 'weights'"
                raise messages.BAD_SETTING(name=f"{path}.weight", value=weight, expected=expected)
            loss = settings
        return cls(output, named_loss(loss, path), float(weight))

    @property
    def kind(self) -> str:
        """The name of the loss."""
        return type(self.loss).__name__

    @property
    def is_labeled(self) -> bool:
        """True for a loss by its name that compares the output with labels."""
        return isinstance(self.loss, Loss) and bool(label_arguments(self.loss))

    @property
    def of_classes(self) -> bool:
        """True if its labels are classes."""
        return isinstance(self.loss, (CrossEntropyLoss, FocalLoss)) and not getattr(self.loss, "probabilities", False)

    def build(self, weights: RowWeights | None) -> str:
        """Name of the loss; its inputs are named after the output."""
        names = {}
        for parameter in signature(self.loss.build).parameters.values() if isinstance(self.loss, Loss) else ():
            if isinstance(parameter.default, str) and parameter.name.endswith("_name"):
                of_output = f"{self.output}_{parameter.name.removesuffix('_name')}"
                names[parameter.name] = labels_of(self.output) if parameter.name in OF_LABELS else of_output
        if isinstance(self.loss, Loss) and (self.loss._n_inputs != 1 or not names):
            raise messages.LOSS_INPUTS(loss=self.kind, n=self.loss._n_inputs, names=self.output, first=self.output)
        return weighed(self.loss, lambda: str(self.loss(self.output, **names)), weights, names.values())


class LossTerms(Block):
    """The weighted sum of terms.

    `loss` has a term or a list of terms by outputs of the model. A term is the name of a loss, a Block, or a dict. A
    dict has the name as "type" or "name", a "weight" (1 by default), and settings. `weights` weigh rows in every term,
    or by outputs. `path` is the name of all terms in errors; None: they have the names of their outputs.
    """

    def __init__(self, loss: Mapping[str, Any], weights: Any = None, path: str | None = None) -> None:
        for output, terms in loss.items():
            if isinstance(terms, (list, tuple)) and not terms:
                raise messages.BAD_SETTING(name=f"loss.{output}", value=terms, expected="a loss, or a list of losses")
        self.weights = weights_of(weights, list(loss))
        self.terms = [
            Term.of(output, term, path or f"loss.{output}")
            for output, terms in loss.items()
            for term in (terms if isinstance(terms, (list, tuple)) else [terms])
        ]
        for output in self.outputs:
            kinds = {term.of_classes: term.kind for term in self.terms if term.output == output and term.is_labeled}
            if len(kinds) > 1:
                expected = (
                    f"terms of the same labels, as all terms of an output share the input {labels_of(output)!r}: "
                    f"{kinds[True]} takes classes here, {kinds[False]} numbers. Make probabilities of both targets "
                    "yourself, such as a weighted mean"
                )
                raise messages.BAD_SETTING(name=f"loss.{output}", value=loss[output], expected=expected)
        self._names: list[str] = []

    @property
    def outputs(self) -> list[str]:
        """The outputs that it takes."""
        return list(dict.fromkeys(term.output for term in self.terms))

    def build(self, *outputs: str) -> list[str]:
        """Names of the sum and of each term: "<output>_loss", or "<output>_<loss>" for several of an output."""
        used = set(context.current().graph.names())
        loss, weighted = take_name("loss", used), []
        self._names = []
        for term in self.terms:
            is_only = sum(other.output == term.output for other in self.terms) == 1
            name = take_name(f"{term.output}_{'loss' if is_only else term.kind}", used)
            weights = self.weights.get(term.output, self.weights.get(EVERY))
            context.add_node("Identity", [term.build(weights)], [name])
            weight = blocks.float_initializer("term_weight", [term.weight], ())
            weighted.append(self.add_node("Mul", [name, weight]))
            self._names.append(name)
        context.add_node("Sum", weighted, [loss])
        return [loss, *self._names]

    def note(self, evaluation: Graph) -> None:
        """Note the terms in the eval model."""
        evaluation.metadata[LOSS_TERMS] = json.dumps(self._names, ensure_ascii=False)
