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
from trainweb.onnxblock.loss import LOSSES, Loss
from trainweb.onnxblock.row_weights import RowWeights, weighed
from trainweb.settings import Number, make
from trainweb.spelling import ARGUMENT

WEIGHT = Number(least=0)
LABELS = "labels"
OF_LABELS = ("labels_name", "target_name", "targets_name")
"""Arguments of losses that name the input of labels."""
NAME = "name"
"""Another name of "type" in a loss."""


def is_by_output(loss: Any) -> bool:
    """Return whether a loss is a mapping of outputs to terms, and not a name with settings."""
    if not isinstance(loss, Mapping) or any(isinstance(loss.get(key), str) for key in ("type", NAME)):
        return False
    listed = [term for terms in loss.values() for term in (terms if isinstance(terms, (list, tuple)) else [terms])]
    return bool(listed) and all(isinstance(term, (str, Mapping, Block)) or hasattr(term, NAME) for term in listed)


def named_loss(loss: Any) -> Any:
    """A loss by its name or settings; one that is a Block stays as it is."""
    if isinstance(loss, Mapping) and isinstance(loss.get(NAME), str) and "type" not in loss:
        loss = {"type": loss[NAME], **{key: value for key, value in loss.items() if key != NAME}}
    return loss if isinstance(loss, Block) else make("loss", LOSSES, getattr(loss, NAME, loss))


@dataclass(frozen=True, slots=True)
class Term:
    """The loss of an output, and its weight in the sum."""

    output: str
    loss: Block
    weight: float

    @classmethod
    def of(cls, output: str, term: Any) -> Term:
        """A term by the name of its loss, or by a mapping of that, a "weight" and settings."""
        weight = 1.0
        if isinstance(term, Mapping):
            settings = dict(term)
            weight = settings.pop("weight", 1.0)
            if not WEIGHT.accepts(weight):
                expected = f"{WEIGHT.expected}; weights of classes are 'weights'"
                raise messages.BAD_SETTING(name=f"loss.{output}.weight", value=weight, expected=expected)
            term = settings
        return cls(output, named_loss(term), float(weight))

    @property
    def kind(self) -> str:
        """The name of the loss."""
        return type(self.loss).__name__

    def build(self, weights: RowWeights | None) -> str:
        """Name of the loss; its inputs are named after the output."""
        names = {}
        for parameter in signature(self.loss.build).parameters.values() if isinstance(self.loss, Loss) else ():
            if isinstance(parameter.default, str) and parameter.name.endswith("_name"):
                own = LABELS if parameter.name in OF_LABELS else parameter.name.removesuffix("_name")
                names[parameter.name] = f"{self.output}_{own}"
        if isinstance(self.loss, Loss) and (self.loss._n_inputs != 1 or not names):
            raise messages.LOSS_INPUTS(loss=self.kind, n=self.loss._n_inputs, names=self.output)
        return weighed(self.loss, lambda: str(self.loss(self.output, **names)), weights)


class LossTerms(Block):
    """The weighted sum of terms.

    Parameters
    ----------
    weights : RowWeights, optional
        Weights of rows in every term.
    loss : mapping
        A term or a list of terms by outputs of the model. A term is the name of a loss, a Block, or a dict. A dict has
        the name as "type" or "name", a "weight" (1 by default), and settings.
    """

    def __init__(self, loss: Mapping[str, Any], weights: RowWeights | None = None) -> None:
        if weights is not None and weights.of == "labels" and len(loss) > 1:
            expected = "'rows' for a loss by outputs: each output has labels of its own"
            raise messages.BAD_SETTING(name=f"{ARGUMENT.sample_weight}.of", value=weights.of, expected=expected)
        self._weights = weights
        self.terms = [
            Term.of(output, term)
            for output, terms in loss.items()
            for term in (terms if isinstance(terms, (list, tuple)) else [terms])
        ]
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
            context.add_node("Identity", [term.build(self._weights)], [name])
            weight = blocks.float_initializer("term_weight", [term.weight], ())
            weighted.append(self.add_node("Mul", [name, weight]))
            self._names.append(name)
        context.add_node("Sum", weighted, [loss])
        return [loss, *self._names]

    def note(self, evaluation: Graph) -> None:
        """Note the terms in the eval model."""
        evaluation.metadata[LOSS_TERMS] = json.dumps(self._names, ensure_ascii=False)
