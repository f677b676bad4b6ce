"""The loop over tokens behind `generate`, the choice of a token, and the text of tokens.

In a page `web/src/page/generate.ts`, `web/src/worker/sampling.ts` and `web/src/page/text.ts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from trainweb import messages
from trainweb.data.random import WORD, random_words
from trainweb.data.text import encoded, unpadded
from trainweb.errors import SessionError
from trainweb.generation.options import GENERATE


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of the choice, in the order in which they apply, as in transformers.

    Logits are divided by `temperature`; 0 takes the most likely token, the first of equal ones. `top_k` takes one of so
    many tokens with the highest logits; equal ones of the last count, too. `top_p` takes one of the most likely tokens
    whose probabilities together are at least this. The random number of a place of the text depends only on `seed` and
    the place.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def choose(self, logits: np.ndarray, place: int, position: int) -> int:
        """Choose the next token from float32 logits, one a token of the vocabulary.

        So many tokens (`place`) were chosen before. Raise SessionError, which names `position`, if a logit is NaN or
        plus infinity, or all are minus infinity.
        """
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise messages.LOGITS_NOT_FINITE(position=position)
        if self.temperature == 0:
            return int(logits.argmax())
        with np.errstate(over="ignore"):  # the largest stays 0 at the smallest temperature
            scores = (logits.astype(np.float64) - logits.max()) / self.temperature
        tokens = np.arange(len(scores))
        if self.top_k is not None and self.top_k < len(scores):
            tokens = tokens[scores >= np.partition(scores, -self.top_k)[-self.top_k]]
        weights = np.exp(scores[tokens])
        if self.top_p is not None:
            order = np.argsort(-weights, kind="stable")
            tokens, weights = tokens[order], weights[order]
            sums = np.cumsum(weights)
            count = 1 + int(np.count_nonzero(sums[:-1] < self.top_p * sums[-1]))
            tokens, weights = tokens[:count], weights[:count]
        sums = np.cumsum(weights)
        point = random_words(self.seed, place, 1)[0] / WORD * sums[-1]
        return int(tokens[np.searchsorted(sums, point, side="right")])


INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Tokenizers decode the first bytes of a character to this."""


class Text:
    """The text of a growing list of tokens, in pieces that never change; `stops` are texts that end it."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._tokens: list[int] = []
        self._given = 0

    def add(self, token: int, *, is_stop: bool, is_last: bool) -> tuple[str, bool]:
        """The text that a token completes, and True if a stop text ends it there.

        The text of a stop token (`is_stop`) is left out. With `is_last` nothing is held back.
        """
        if not is_stop:
            self._tokens.append(token)
        text: str = self._tokenizer.decode(self._tokens) if self._tokens else ""
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            return self._piece(text[: min(ends)]), True
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


LOGITS = "logits"


class GeneratedToken(NamedTuple):
    """A token that `generate` gives.

    Attributes
    ----------
    token : int
        Its id.
    text : str or None
        The text that it completes, "" while a character or a possible stop string is incomplete; None without a
        tokenizer.
    """

    token: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """The checked arguments of `generate`."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    adapter: bool
    stop_tokens: frozenset[int]
    text: Text | None


def request_of(prompt: Any, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> Request:
    """Check the arguments of `generate`; missing ones come from `defaults`, then from `GENERATE`.

    Errors are ModelError, FeedError and TypeError.
    """
    settings = {name: field.default for name, field in GENERATE.items()} | {"stop": (), "tokenizer": None}
    for source in (defaults, arguments):
        settings |= {name: value for name, value in source.items() if value is not None}
    for name, field in GENERATE.items():
        if settings[name] is not None:
            field.kind.check(name, settings[name])
    if settings["temperature"] == 0:
        for name in ("top_k", "top_p", "seed"):
            if arguments.get(name) is not None:
                raise messages.GREEDY_SETTING(name=name)
    stop, tokenizer = settings["stop"], settings["tokenizer"]
    lacks = tokenizer is not None and not all(hasattr(tokenizer, name) for name in ("encode", "decode"))
    if lacks or isinstance(tokenizer, (str, bytes)):
        raise messages.NOT_A_TOKENIZER(actual=type(tokenizer).__name__)
    stops = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    strings = [one for one in stops if isinstance(one, str)]
    if any(not isinstance(one, str | Integral) or isinstance(one, bool) for one in stops) or "" in strings:
        raise messages.BAD_SETTING(name="stop", value=stop, expected="token ids and texts that are not empty")
    if strings and tokenizer is None:
        raise messages.TEXT_WITHOUT_TOKENIZER(name="stop")
    sampling = Sampling(settings["temperature"], settings["top_k"], settings["top_p"], settings["seed"] or 0)
    return Request(
        tokens_of(prompt, tokenizer),
        settings["max_tokens"],
        sampling,
        settings["adapter"],
        frozenset(int(one) for one in stops if not isinstance(one, str)),
        None if tokenizer is None else Text(tokenizer, strings),
    )


EXPECTED_PROMPT = (
    "one text or a list of token ids, a call for each; make one of a chat by apply_chat_template of its tokenizer"
)
COMPUTED = (
    ("position_ids", 1, "0, 1, 2, ... from the first token that is no padding, as generate counts them"),
    ("token_type_ids", 0, "0 for each token, as generate sets them"),
)
"""Inputs that `generate` computes, with the step from token to token."""


def tokens_of(prompt: Any, tokenizer: Any) -> list[int]:
    """The ids of a prompt, which is text, ids, a row of ids, or the inputs that tokenizers of transformers make."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise messages.TEXT_WITHOUT_TOKENIZER(name="prompt")
        ids = encoded(tokenizer, prompt)
    else:
        inputs = prompt if isinstance(prompt, Mapping) else {"input_ids": prompt}
        mask = inputs.get("attention_mask")
        try:
            ids = unpadded(inputs.get("input_ids"), mask)
            for name, step, expected in COMPUTED:
                numbers = inputs.get(name)
                if numbers is not None and not np.array_equal(unpadded(numbers, mask), step * np.arange(ids.size)):
                    raise messages.BAD_SETTING(name=name, value=numbers, expected=expected)
        except ValueError:  # lists of different lengths
            raise messages.BAD_SETTING(name="prompt", value=prompt, expected=EXPECTED_PROMPT) from None
    if ids.size == 0:
        raise messages.EMPTY_PROMPT()
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0:  # a Gather would count these from the end
        raise messages.BAD_SETTING(name="prompt", value=prompt, expected=EXPECTED_PROMPT)
    return [int(one) for one in ids]


def logits_of(names: Sequence[str]) -> str:
    """The output that generate reads, of the outputs of a model."""
    if LOGITS in names:
        return LOGITS
    if len(names) != 1:
        raise messages.NO_LOGITS(names=", ".join(names))
    return names[0]


def generate(host: Any, output: str, request: Request) -> Iterator[GeneratedToken]:
    """Yield tokens of a `SessionCore` or `InferenceCore`, whose `output` are the logits."""
    tokens, adapter = list(request.prompt), request.adapter
    most = len(tokens) + request.max_tokens - 1  # no token follows the last one
    for place in range(request.max_tokens):
        with host.engine.lock:
            if place == 0:
                host.decoder.start()
            length = host.decoder.length_for(host, output, len(tokens), most, adapter=adapter)
            logits = np.frombuffer(host.decoder.logits(host, tokens, output, length, adapter=adapter), np.float32)
            try:
                token = request.sampling.choose(logits, place, len(tokens) - 1)
            except SessionError:
                host.decoder.start()  # rows of NaN would spread to other texts
                raise
        tokens.append(token)
        ends = token in request.stop_tokens
        if request.text is None:
            yield GeneratedToken(token, None)
        else:
            piece, stopped = request.text.add(token, is_stop=ends, is_last=place == request.max_tokens - 1)
            ends = ends or stopped
            yield GeneratedToken(token, piece)
        if ends:
            return
