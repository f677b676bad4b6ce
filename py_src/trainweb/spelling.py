"""Names of arguments as the language of the user spells them, and the format of messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from string import Formatter
from typing import Any

from trainweb.errors import shortened

PAGE_NAMES = {"on_nan": "onNaN"}
"""Settings that a page spells otherwise than in camelCase."""


def camel_case(name: str) -> str:
    """A name of Python's as JavaScript spells it."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def page_name(setting: str) -> str:
    """Return a setting's name in a page."""
    return camel_case(PAGE_NAMES.get(setting, setting))


class Arguments:
    """Names of arguments in texts of errors: `ARGUMENT.frozen_params` is "frozenParams" in a page."""

    in_page = False

    def __getattr__(self, name: str) -> str:
        return self[name]

    def __getitem__(self, name: str) -> str:
        return page_name(name) if self.in_page else name

    @contextmanager
    def spelled_for_a_page(self) -> Iterator[None]:
        """Spell names as a page does meanwhile."""
        before, self.in_page = self.in_page, True
        try:
            yield
        finally:
            self.in_page = before


ARGUMENT = Arguments()


LONGEST_VALUE = 500
"""Characters of a value that a message shows: a file may have names and values of any length."""


class BoundedTexts(Formatter):
    """Format as `str.format`, but shorten a long value to its beginning and length."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        try:
            return super().convert_field(value, conversion)
        except ValueError:
            return _unprintable(value)

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            text: str = super().format_field(value, format_spec)
        except ValueError:
            text = _unprintable(value)
        return shortened(text, LONGEST_VALUE, 0)


def _unprintable(value: object) -> str:
    """Return a replacement for an integer of more digits than Python prints."""
    return f"<{type(value).__name__} with an integer of too many digits>"


TEXTS = BoundedTexts()


LABELS = ("labels", "target", "targets")
"""Names of the input of labels, which losses call differently: each stands for the one that a model has."""
IGNORED = -100
"""Label of a token that is not learned, as in PyTorch."""
LOG_PROBABILITIES = "log_probabilities"
"""Tensor of the eval model of DPOLoss."""
DIFFERENCE = "dpo.difference"
"""Part of the name of the factors that make margins of pairs in DPOLoss."""


def input_name(name: str, inputs: Collection[str]) -> str:
    """The input of a feed or a column: labels have several names, and labels of an output have the output's name."""
    if name in inputs:
        return name
    if f"{name}_labels" in inputs:
        return f"{name}_labels"
    known = [one for one in inputs if one in LABELS] or [one for one in inputs if one.endswith("_labels")]
    return known[0] if name in LABELS and len(known) == 1 else name


def by_inputs(feeds: Mapping[Any, Any], inputs: Collection[str]) -> Mapping[Any, Any]:
    """Feeds or columns by the names of inputs; two that are meant for one input keep their names."""
    if all(name in inputs for name in feeds):
        return feeds
    names = {name: input_name(name, inputs) if isinstance(name, str) else name for name in feeds}
    meant = list(names.values())
    return {names[name] if meant.count(names[name]) == 1 else name: value for name, value in feeds.items()}
