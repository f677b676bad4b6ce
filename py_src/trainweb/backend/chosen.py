"""The choice of the back end."""

from __future__ import annotations

from trainweb.backend import wasm
from trainweb.backend.base import Backend

BACKEND: Backend = wasm
