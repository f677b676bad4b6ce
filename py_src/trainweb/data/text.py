"""Texts as rows of token ids and labels; `web/src/data/text.ts` makes the same rows in a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import takewhile
from typing import Any

import numpy as np

from trainweb import messages
from trainweb.arguments import flag, warn
from trainweb.settings import Whole
from trainweb.spelling import IGNORED, LOG_PROBABILITIES

LENGTH = Whole(least=2, most=2**31 - 1)
TOKEN = Whole(least=0, most=2**31 - 1)
REFERENCE = "reference"
"""Input of DPOLoss."""
ANSWERS = ("chosen", "rejected")
INPUTS = ("input_ids", "attention_mask", "position_ids", "labels")
FORMS = ("prompt", "completion"), ("messages",), ("text",)
"""Columns of a text, in the order in which they are looked for."""
EXPECTED_MASK = "a 1 for each token and a 0 for padding before or behind all of them; leave others out of the ids"
LARGEST = 2**31 - 1
"""Bytes of padded rows of an input, as of any tensor."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids (N,) of a text, for each the label of the token before it, and the end of its prompt that it lacks."""

    ids: np.ndarray
    labels: np.ndarray
    lost: np.ndarray


def encoded(tokenizer: Any, text: str, **settings: bool) -> np.ndarray:
    """The ids of a text, int64 of shape (N,); `settings` go to the tokenizer's `encode`, if it takes them.

    A text may start with the token that the tokenizer puts before texts, as a chat that a template made does. It then
    gets no further tokens. Raise ModelError for what is no tokenizer.
    """
    ids = _encoded(tokenizer, text, **settings)
    if not settings and len(ids) > 1 and ids[0] == ids[1]:
        bare = _encoded(tokenizer, text, add_special_tokens=False)
        if bare[:1] == ids[0] and np.array_equal(bare, ids[1 : len(bare) + 1]):
            return bare
    return ids


def _encoded(tokenizer: Any, text: str, **settings: bool) -> np.ndarray:
    encode = getattr(tokenizer, "encode", None)
    if not callable(encode):
        raise messages.NOT_A_TOKENIZER(actual=type(tokenizer).__name__)
    try:
        signature(encode).bind(text, **settings)
    except TypeError:
        settings = {}  # it takes text alone
    except ValueError:  # it is not written in Python
        pass
    encoding = encode(text, **settings)
    ids = unpadded(getattr(encoding, "ids", encoding), getattr(encoding, "attention_mask", None))
    if ids.size == 0:
        return np.zeros(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise messages.NOT_TOKEN_IDS(actual=type(encoding).__name__)
    if ids.min() < 0:  # a Gather would count these from the end
        raise messages.NOT_TOKEN_IDS(actual="a negative id")
    return ids.astype(np.int64)


def unpadded(row: Any, mask: Any) -> np.ndarray:
    """The tokens of a row, (N,) or (1, N), whose `mask` is 0 for padding; without a mask they are all."""
    tokens = np.asarray(row)
    tokens = tokens[0] if tokens.ndim == 2 and len(tokens) == 1 else tokens
    if mask is None or tokens.ndim != 1:
        return tokens
    bits = np.asarray(mask)
    if bits.shape not in (tokens.shape, (1, len(tokens))) or not (np.trim_zeros(bits.ravel()) == 1).all():
        raise messages.BAD_SETTING(name="attention_mask", value=mask, expected=EXPECTED_MASK)
    return np.compress(bits.ravel() == 1, tokens)


def lengths_of(length: int | Sequence[int], *, pack: bool, batch_size: int | None, seed: int | None) -> list[int]:
    """The ascending lengths of rows. Raise ModelError without a length, or for arguments that do not go with it."""
    is_list = isinstance(length, Sequence)
    lengths = list(length) if isinstance(length, Sequence) else [length]
    if not lengths or isinstance(length, (str, bytes)):
        raise messages.BAD_SETTING(name="length", value=length, expected="an integer >= 2 or a list of such integers")
    for k, one in enumerate(lengths):
        LENGTH.check(f"length[{k}]" if is_list else "length", one)
    if is_list and pack:
        raise messages.BAD_SETTING(name="pack", value=pack, expected="False if 'length' is a list")
    if batch_size is None and (is_list or seed is not None):
        raise messages.BAD_SETTING(name="batch_size", value=None, expected="given with a list of lengths or a seed")
    return sorted(lengths)


def length_for(labels: np.ndarray, lengths: Sequence[int]) -> int:
    """The least of these lengths that holds a row up to the last of its labels to learn."""
    count = int(np.flatnonzero(labels != IGNORED)[-1]) + 1
    return next(n for n in lengths if n >= count)


def cutter(lengths: Sequence[int]) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """A function that cuts the padding of a row to the least of these lengths."""

    def cut(row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        length = length_for(row["labels"], lengths)
        return {name: values[:length] for name, values in row.items()}

    return cut


def columns_of(
    source: Any,
    tokenizer: Any,
    length: int,
    *,
    pack: bool,
    mask_prompt: bool,
    end_token: int | None,
    inputs: Sequence[str],
) -> dict[str, np.ndarray]:
    """The columns of `Dataset.from_text`, each int64 of shape (rows, length), with its errors."""
    LENGTH.check("length", length)
    if isinstance(tokenizer, (str, bytes)):
        raise messages.NOT_A_TOKENIZER(actual=type(tokenizer).__name__)
    pack, mask_prompt = flag("pack", pack), flag("mask_prompt", mask_prompt)
    items = _rows_of(source)
    names = list(inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, str) else []
    if any(name not in INPUTS for name in names) or "input_ids" not in names or "labels" not in names:
        raise messages.BAD_SETTING(
            name="inputs", value=inputs, expected="input_ids and labels, and if needed attention_mask and position_ids"
        )
    if not items:
        raise messages.NOT_TEXTS(actual="empty")
    fields = [_fields(item, k) for k, item in enumerate(items)]
    others = [item.keys() - form for item, form in zip(items, fields, strict=True) if isinstance(item, Mapping)]
    if further := sorted({str(name) for names_of_row in others for name in names_of_row}):
        warn(str(messages.FURTHER_COLUMNS(source="texts", names=", ".join(further))))
    end = _end_token(tokenizer, end_token, len(items))
    texts = [_tokens(tokenizer, form, k, end, end_token, is_masked=mask_prompt) for k, form in enumerate(fields)]
    lost = next(((k, one.lost.tolist()) for k, one in enumerate(texts) if one.lost.size), None)
    if lost is not None:
        decode = getattr(tokenizer, "decode", lambda ids: ids)
        warn(str(messages.PROMPT_DIFFERS(position=lost[0], end=decode(lost[1]))))
    columns = _packed(texts, length) if pack else _padded(texts, length)
    return {name: columns[name] for name in INPUTS if name in names}


def preferences_of(
    pairs: Any, tokenizer: Any, length: int, reference: Any, end_token: int | None
) -> dict[str, np.ndarray]:
    """The columns of `Dataset.from_preferences`, each of shape (pairs, 2, ...): chosen and rejected."""
    pairs = _rows_of(pairs)
    if isinstance(reference, type) or not (hasattr(reference, "input_names") and hasattr(reference, "predict")):
        kind = f"the class {reference.__name__}" if isinstance(reference, type) else type(reference).__name__
        raise TypeError(f"'reference' must be a TrainingSession with the loss 'DPOLoss', got {kind}.")
    if REFERENCE not in reference.input_names():
        raise messages.NO_REFERENCE()
    texts: list[dict[str, Any]] = []
    for k, pair in enumerate(map(_with_prompt, pairs)):
        columns_of_pair = pair if isinstance(pair, Mapping) else {}
        for column in ("prompt", *ANSWERS):
            if column not in columns_of_pair:
                raise messages.NOT_A_PAIR(position=k, column=column)
        others = {name: value for name, value in pair.items() if name not in ANSWERS}
        texts += [{**others, "completion": pair[name]} for name in ANSWERS]
    names = [name for name in reference.input_names() if name != REFERENCE]
    columns = columns_of(texts, tokenizer, length, pack=False, mask_prompt=True, end_token=end_token, inputs=names)
    columns[REFERENCE] = np.zeros(len(texts), np.float32)
    columns[REFERENCE] = reference.predict(columns, outputs=[LOG_PROBABILITIES])[LOG_PROBABILITIES]
    return {name: array.reshape(-1, 2, *array.shape[1:]) for name, array in columns.items()}


def _rows_of(source: Any) -> list[Any]:
    """The rows of a list, or of a table of pandas, polars or pyarrow, which iterates over its columns."""
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        return [
            {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in row.items()}
            for row in source.to_dict("records")
        ]
    rows = getattr(source, "to_dicts", getattr(source, "to_pylist", None))
    texts = rows() if callable(rows) else source
    if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
        raise messages.NOT_TEXTS(actual=type(texts).__name__)
    return list(texts)


def _with_prompt(pair: Any) -> Any:
    """A pair with its prompt; without one it is what both answers begin with, less a space at its end, as in TRL."""
    has_prompt = not isinstance(pair, Mapping) or "prompt" in pair
    answers: list[Any] = [] if has_prompt else [pair.get(name) for name in ANSWERS]
    if not answers or not (all(isinstance(a, str) for a in answers) or all(isinstance(a, list) for a in answers)):
        return pair
    chosen, rejected = answers
    shared = len(list(takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))))
    shared -= shared > 0 and chosen[shared - 1] == " "
    return {**pair, "prompt": chosen[:shared], "chosen": chosen[shared:], "rejected": rejected[shared:]}


def joined(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch of pairs as a batch of texts."""
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in batch.items()}


def _end_token(tokenizer: Any, end_token: int | None, texts: int) -> int | None:
    end = getattr(tokenizer, "eos_token_id", None) if end_token is None else end_token
    if end is not None:
        TOKEN.check("end_token", end)
    elif texts > 1:
        raise messages.NO_END_TOKEN()
    return end


def _fields(item: Any, position: int) -> dict[str, Any]:
    """The columns of a text; `position` is for errors."""
    if isinstance(item, str):
        return {"text": item}
    columns = [*item] if isinstance(item, Mapping) else []
    for form in FORMS:
        if all(name in columns for name in form):
            return {name: item[name] for name in form}
    shown = type(item).__name__ + (f" of {', '.join(map(str, columns))}" if columns else "")
    raise messages.NOT_A_TEXT(position=position, actual=shown)


def _tokens(
    tokenizer: Any, fields: Mapping[str, Any], position: int, end: int | None, chat_end: int | None, *, is_masked: bool
) -> Tokens:
    """A text, a pair or a chat, before the token `end`; before `chat_end` if it is a chat that has no such end."""
    settings = {}
    chat = _chat_of(fields)
    if chat is not None:
        prompt, text = _chat(tokenizer, *chat, position)
        # The template has the tokens around the text.
        settings["add_special_tokens"], end = False, chat_end
    else:
        prompt, text = _pair(fields, position, is_masked=is_masked)
    ids = encoded(tokenizer, text, **settings)
    prompt_ids = encoded(tokenizer, prompt, **settings) if prompt and (is_masked or chat_end is not None) else ids[:0]
    # A token of both is learned, so the prompt ends where its ids and the ids of the whole text differ.
    count = min(len(prompt_ids), len(ids))
    start = int(np.argmin(np.append(prompt_ids[:count] == ids[:count], False)))
    if end is not None and end not in (ids[start:] if chat else ids[-1:]):
        ids = np.append(ids, end)
    labels = ids.copy()
    labels[: start if is_masked else 0] = IGNORED
    return Tokens(ids, labels, prompt_ids[start:] if is_masked else prompt_ids[:0])


def _pair(fields: Mapping[str, Any], position: int, *, is_masked: bool) -> tuple[str, str]:
    """The prompt, and the whole text."""
    prompt, completion = fields.get("prompt", ""), fields["text" if "text" in fields else "completion"]
    for one in (prompt, completion):
        if not isinstance(one, str):
            raise messages.NOT_A_TEXT(position=position, actual=type(one).__name__)
    if is_masked and "prompt" not in fields:
        raise messages.NO_PROMPT(position=position)
    if completion == "":
        raise messages.EMPTY_TEXT(position=position)
    return prompt, prompt + completion


def _chat_of(fields: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """The turns before the answer and all turns, of a chat or of a prompt and a completion that are turns."""
    if "messages" in fields:
        chat = fields["messages"]
        return chat[:-1] if isinstance(chat, Sequence) else chat, chat
    if "prompt" in fields and all(isinstance(f, Sequence) and not isinstance(f, (str, bytes)) for f in fields.values()):
        return fields["prompt"], [*fields["prompt"], *fields["completion"]]
    return None


def _chat(tokenizer: Any, before: Any, chat: Any, position: int) -> tuple[str, str]:
    """The text before the answer, and the whole text, by the tokenizer's template."""
    template = getattr(tokenizer, "apply_chat_template", None)
    if not callable(template):
        raise messages.NO_CHAT_TEMPLATE(position=position)
    last = chat[-1] if isinstance(chat, Sequence) and chat else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        raise messages.NO_ANSWER(position=position)
    return template(before, tokenize=False, add_generation_prompt=True), template(chat, tokenize=False)


def _packed(texts: list[Tokens], length: int) -> dict[str, np.ndarray]:
    """Full rows of all texts behind each other; rows without a token to learn are left out."""
    ids = np.concatenate([one.ids for one in texts])
    rows = max(len(ids) - 1, 0) // length
    labels = np.concatenate([one.labels for one in texts])[1 : rows * length + 1].reshape(rows, length)
    learned = (labels != IGNORED).any(axis=1)
    if not learned.any():
        raise messages.NO_FULL_ROW(count=len(ids), length=length)
    return _columns(ids[: rows * length].reshape(rows, length)[learned], labels[learned], np.ones_like(labels[learned]))


def _padded(texts: list[Tokens], length: int) -> dict[str, np.ndarray]:
    """A row for each text, with zeros behind it."""
    nbytes = len(texts) * length * np.dtype(np.int64).itemsize
    if nbytes > LARGEST:
        raise messages.ROWS_TOO_LARGE(count=len(texts), length=length, nbytes=nbytes, most=LARGEST)
    ids, labels = np.zeros((len(texts), length), np.int64), np.full((len(texts), length), IGNORED)
    mask = np.zeros_like(ids)
    for row, one in enumerate(texts):
        count = len(one.ids) - 1
        if count > length:
            raise messages.TEXT_TOO_LONG(position=row, count=count + 1, length=length, most=length + 1)
        labels[row, : max(count, 0)] = one.labels[1:]
        if (labels[row] == IGNORED).all():
            raise messages.TEXT_TOO_SHORT(position=row, count=count + 1)
        ids[row, :count], mask[row, :count] = one.ids[:-1], 1
    return _columns(ids, labels, mask)


def _columns(ids: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
    return dict(zip(INPUTS, (ids, mask, positions, labels), strict=True))
