"""Text of tokens that come one after the other; `web/src/page/text.ts` does the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Tokenizers decode the first bytes of a character to this."""


class Text:
    """The text of a growing list of tokens, in pieces that never change afterwards.

    Parameters
    ----------
    tokenizer
        Anything whose `decode` makes text of a list of ids.
    stops
        Texts that end it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._tokens: list[int] = []
        self._given = 0

    def add(self, token: int, *, is_stop: bool, is_last: bool) -> tuple[str, bool]:
        """The text that a token completes, and whether a stop text ends it there.

        Parameters
        ----------
        is_stop
            The token is a stop token, whose own text is left out.
        is_last
            No token follows: nothing is held back.
        """
        if not is_stop:
            self._tokens.append(token)
        text: str = self._tokenizer.decode(self._tokens) if self._tokens else ""
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            return self._piece(text[: min(found)]), True
        return self._piece(text if is_last or is_stop else text[: len(text) - self._held(text)]), False

    def _piece(self, text: str) -> str:
        piece = text[self._given :]
        self._given += len(piece)
        return piece

    def _held(self, text: str) -> int:
        """Characters at the end that later tokens may change, or that may begin a stop text."""
        if text.endswith(INCOMPLETE):
            return len(text) - len(text.rstrip(INCOMPLETE))
        lengths = (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(lengths, default=0)
