"""The kernels' description of themselves: a fingerprint, which must fit this package, and the meaning of statuses."""

from __future__ import annotations

import json
from dataclasses import dataclass

from trainweb.errors import EngineError
from trainweb.ir.layout import FINGERPRINT


@dataclass(frozen=True, slots=True)
class Description:
    """The description of the kernels that an engine runs."""

    fingerprint: int
    """32 bits that every plan carries: it changes with what plans rely on."""
    status: dict[str, int]
    """Codes that `run` returns."""

    def status_name(self, code: int) -> str:
        """`TW_BAD_INDEX` and alike."""
        return next((name for name, value in self.status.items() if value == code), f"status {code}")

    @staticmethod
    def parse(text: str | bytes) -> Description:
        """Read the JSON that `tw_description` points to.

        Raise EngineError if it is no such description, or not of the kernels that this package compiles for.
        """
        try:
            raw = json.loads(text)
            description = Description(int(raw["fingerprint"]), dict(raw["status"]))
        except (ValueError, KeyError, TypeError) as e:
            raise EngineError(
                f"The kernels' description cannot be read ({e!r}); is the .wasm of another version?"
            ) from e
        if description.fingerprint != FINGERPRINT:
            raise EngineError(
                f"The kernels have the fingerprint {description.fingerprint}, and trainweb compiles for {FINGERPRINT}: "
                "take the .wasm of the same version, or run `python wasm_kernels/build.py`."
            )
        return description
