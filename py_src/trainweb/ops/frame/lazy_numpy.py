"""`np`, imported at first use: references and tests need numpy, loading and training a model does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
else:

    class _LazyNumpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            return getattr(numpy, name)

    np = _LazyNumpy()

__all__ = ["np"]
