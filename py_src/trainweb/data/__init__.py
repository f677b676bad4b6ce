"""Data to train on: arrays, rows, files, and what is done with them on their way."""

from __future__ import annotations

from trainweb.data.dataset import Dataset, Remainder
from trainweb.data.examples import example
from trainweb.data.images import from_images, list_folder, read_image

from_csv = Dataset.from_csv

__all__ = ["Dataset", "Remainder", "example", "from_csv", "from_images", "list_folder", "read_image"]


def __dir__() -> list[str]:
    return sorted(__all__)
