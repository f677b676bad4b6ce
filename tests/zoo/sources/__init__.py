"""The models of the zoo, for scripts/record_zoo.py; they need torch, torchvision, timm and transformers."""

from tests.zoo.sources import (
    changing,
    convolutional,
    generative,
    language,
    modules,
    quantized,
    segmentation,
    sequences,
    vision,
)
from tests.zoo.sources.case import LOSSES, SOURCES, Case

__all__ = [
    "LOSSES",
    "SOURCES",
    "Case",
    "changing",
    "convolutional",
    "generative",
    "language",
    "modules",
    "quantized",
    "segmentation",
    "sequences",
    "vision",
]
