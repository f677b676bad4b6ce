"""`Message`: the text and the class of an error, in the spelling of the user's language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainweb.spelling import ARGUMENT, TEXTS


@dataclass(frozen=True, slots=True)
class Message:
    """An error of a session: its class and its text.

    `{argument.some_name}` is the name of an argument, as the user's language spells it. `page` is the page's text if
    its advice is about JavaScript.
    """

    error: type[Exception]
    text: str
    page: str | None = None

    def __call__(self, **values: Any) -> Exception:
        """Return the error with these values in its text."""
        return self.error(self.fill(**values))

    def fill(self, **values: Any) -> str:
        """Return the text with these values."""
        values["argument"] = ARGUMENT
        text = self.text
        # A page that finds the fault itself may know more about it.
        if ARGUMENT.in_page and self.page is not None and fields_of(self.page) <= values.keys():
            text = self.page
        return TEXTS.vformat(text, (), values)


def fields_of(text: str) -> set[str]:
    """Names of the values of a template."""
    return {name.partition(".")[0] for _, name, _, _ in TEXTS.parse(text) if name}
