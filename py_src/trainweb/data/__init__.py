"""Data to train on: arrays, rows, files, and what is done with them on their way."""

from __future__ import annotations

from importlib import resources

from trainweb.arguments import instance_of
from trainweb.data.dataset import Dataset
from trainweb.data.images import from_images, list_folder, read_image
from trainweb.data.rows import Remainder
from trainweb.errors import UnknownNameError

from_csv = Dataset.from_csv

EXAMPLES = ("first.onnx",)

__all__ = ["Dataset", "Remainder", "example", "from_csv", "from_images", "list_folder", "read_image"]
__dir__ = __all__.copy


def example(name: str) -> bytes:
    """An example model of the package, as the bytes of an ONNX file.

    Parameters
    ----------
    name : str
        ``"first.onnx"``: two layers with random weights, ``points`` (batch, 2) -> ``logits`` (batch, 2). Trained, it
        separates the points inside a circle from those outside.

    Raises
    ------
    UnknownNameError
        The package has no example of that name; the error lists the existing ones.
    """
    if instance_of(str, "name", name) not in EXAMPLES:
        raise UnknownNameError(f"There is no example named {name[:80]!r}. The package has: {', '.join(EXAMPLES)}.")
    return (resources.files(__package__) / name).read_bytes()
