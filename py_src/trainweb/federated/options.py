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
    "clip_norm": "The largest L2 norm of an update; a longer one is scaled down to it. Without it none is.",
    "noise_multiplier": "Standard deviation of the Gaussian noise of the sum of all updates, as a multiple of the clip "
    "norm.",
    "noise_clients": "Among how many clients the noise is divided, each of which adds its share. 1: this one adds all.",
    "seed": "Seed of the noise, for tests: whoever knows it can take the noise away. By default it is drawn from the "
    "system's source for cryptography.",
}
