"""A bar of progress by tqdm, in its form for notebooks there; none where it is not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any, Protocol


class Bar(Protocol):
    """The methods of a progress bar that the loop calls."""

    def update(self, **shown: float) -> None:
        """A step is done."""

    def close(self) -> None:
        """The last is done."""


class TqdmBar:
    """A bar of tqdm."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def update(self, **shown: float) -> None:
        self._bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items()}, refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


def make_bar(total: int | None) -> Bar | None:
    """Return a bar of `total` steps, or of an unknown number; None without tqdm."""
    try:
        # Without widgets tqdm.auto draws the bar of text as well, and warns in a notebook.
        if find_spec("ipywidgets") is not None:
            from tqdm.auto import tqdm
        else:
            from tqdm import tqdm
    except ImportError:
        return None
    if sys.platform == "emscripten":
        tqdm.monitor_interval = 0  # no threads, of which it would warn
    return TqdmBar(tqdm(total=total, unit="step", leave=True))
