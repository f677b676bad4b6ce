"""The options of generate: what each may be, once, for Python and for pages."""

from __future__ import annotations

from trainweb.data.random import MAX_SEED
from trainweb.settings import Field, Flag, Number, Whole

GENERATE = {
    "max_tokens": Field(Whole(least=1, most=2**31 - 1), 100, is_optional=False),
    "temperature": Field(Number(least=0), 0.0, is_optional=False),
    "top_k": Field(Whole(least=1), None, is_optional=True),
    "top_p": Field(Number(above=0, most=1), None, is_optional=True),
    "seed": Field(Whole(least=0, most=MAX_SEED), None, is_optional=True),
    "adapter": Field(Flag(), True, is_optional=False),
}
"""The plain ones; stop, tokenizer and, in a page, signal come besides."""

GENERATE_DOCS = {
    "max_tokens": "Most tokens to write.",
    "temperature": "Divisor of the logits; 0 takes the most likely token.",
    "top_k": "Choose among so many most likely tokens.",
    "top_p": "Choose among the most likely tokens whose probabilities together are at least this.",
    "seed": "Seed of the random numbers, 0 by default. The same seed gives the same tokens in Python and in a page.",
    "adapter": "False leaves out what LoRA adapters add.",
}
