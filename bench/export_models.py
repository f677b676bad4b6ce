"""Writes forward models as people bring them, with random weights, by torch's dynamo exporter.

    .build/venv-torch/bin/python bench/export_models.py FOLDER

Run by `bench/compile.py --exported`, in the environment of `./build.sh record-zoo` or of TRAINWEB_TORCH_PYTHON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision.models as tv

MODELS: dict[str, tuple[Callable[[], Any], bool]] = {
    "swin_tiny": (lambda: tv.swin_t(weights=None, num_classes=10), True),
    "mobilenet_v2": (lambda: tv.mobilenet_v2(weights=None, num_classes=10), False),
}
"""Modules, and whether the exporter optimizes: it would fold batch normalizations into convolutions."""
SIZE = 224


def main() -> None:
    """Export every model for images of 3 x 224 x 224, one a batch."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (make, optimize) in MODELS.items():
        torch.manual_seed(0)
        torch.onnx.export(
            make().eval(),
            (torch.zeros(1, 3, SIZE, SIZE),),
            folder / f"{name}.onnx",
            dynamo=True,
            optimize=optimize,
            input_names=["x"],
            output_names=["logits"],
        )


if __name__ == "__main__":
    main()
