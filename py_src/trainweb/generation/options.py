"""The options of generate: what each may be, once, for Python and for pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainweb.settings import SEED, Field, Flag, Number, Whole

GENERATE = {
    "max_tokens": Field(Whole(least=1, most=2**31 - 1), 100, is_optional=False),
    "temperature": Field(Number(least=0), 0.0, is_optional=False),
    "top_k": Field(Whole(least=1), None, is_optional=True),
    "top_p": Field(Number(above=0, most=1), None, is_optional=True),
    "seed": Field(SEED, None, is_optional=True),
    "adapter": Field(Flag(), True, is_optional=False),
}
"""The plain ones; stop, tokenizer and, in a page, signal come besides."""

SAMPLED = {"temperature": 1.0, "top_k": 50}
"""Defaults of transformers where a repository samples."""
NEUTRAL: Mapping[str, Any] = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "guidance_scale": 1.0,
    "exponential_decay_length_penalty": None,
    "stop_strings": None,
    "penalty_alpha": None,
    "top_h": None,
    "watermarking_config": None,
}
"""Settings of transformers that `generate` does not have, with the values at which they change nothing."""
