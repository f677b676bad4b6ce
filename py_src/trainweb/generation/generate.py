"""The loop over tokens behind `generate`; in a page `web/src/page/generate.ts`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from trainweb import messages
from trainweb.data.text import encoded
from trainweb.errors import SessionError
from trainweb.generation.options import GENERATE
from trainweb.generation.sampling import Sampling
from trainweb.generation.text import Text

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


def request_of(prompt: Any, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Request:
    """Check the arguments of `generate`.

    Parameters
    ----------
    prompt
        Text or token ids.
    given
        The other arguments by name; None: not given.
    defaults
        The session's own defaults, which go before those of `GENERATE`.

    Raises
    ------
    ModelError, FeedError, TypeError
        An argument is not what it must be.
    """
    settings = {name: field.default for name, field in GENERATE.items()} | {"stop": (), "tokenizer": None}
    for found in (defaults, given):
        settings |= {name: value for name, value in found.items() if value is not None}
    for name, field in GENERATE.items():
        if settings[name] is not None:
            field.kind.check(name, settings[name])
    if settings["temperature"] == 0:
        for name in ("top_k", "top_p", "seed"):
            if given.get(name) is not None:
                raise messages.GREEDY_SETTING(name=name)
    stop, tokenizer = settings["stop"], settings["tokenizer"]
    lacks = tokenizer is not None and not all(hasattr(tokenizer, name) for name in ("encode", "decode"))
    if lacks or isinstance(tokenizer, (str, bytes)):
        raise messages.NOT_A_TOKENIZER(given=type(tokenizer).__name__)
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


EXPECTED_PROMPT = "text or a list of token ids; make one of a chat by apply_chat_template of its tokenizer"


def tokens_of(prompt: Any, tokenizer: Any) -> list[int]:
    """The ids of a prompt, which is text, ids, a row of ids, or the inputs that tokenizers of transformers make."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise messages.TEXT_WITHOUT_TOKENIZER(name="prompt")
        ids = encoded(tokenizer, prompt)
    else:
        try:
            ids = np.asarray(prompt.get("input_ids") if isinstance(prompt, Mapping) else prompt)
        except ValueError:  # lists of different lengths
            raise messages.BAD_SETTING(name="prompt", value=prompt, expected=EXPECTED_PROMPT) from None
        ids = ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
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
    """Yield tokens.

    Parameters
    ----------
    host
        A `SessionCore` or `InferenceCore`.
    output
        The logits.
    request
        The arguments.
    """
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
