"""The options of a federated client: what each may be, once, for Python and for pages."""

from __future__ import annotations

from trainweb.data.random import MAX_SEED
from trainweb.settings import Field, Number, Whole

FEDERATED = {
    "clip_norm": Field(Number(above=0), None, is_optional=True),
    "noise_multiplier": Field(Number(least=0), 0.0, is_optional=False),
    "noise_clients": Field(Whole(least=1), 1, is_optional=False),
    "seed": Field(Whole(least=0, most=MAX_SEED), None, is_optional=True),
}

DOCS = {
    "clip_norm": "The largest L2 norm of an update; a longer one is scaled down to it. By default no update is scaled.",
    "noise_multiplier": "Standard deviation of the Gaussian noise of the sum of all updates, as a multiple of the clip "
    "norm.",
    "noise_clients": "Number of clients that share the noise; each adds its part. With 1, this client adds all of it.",
    "seed": "Seed of the noise, for tests: it lets others remove the noise. By default the system's source for "
    "cryptography draws it.",
}
