"""Images as data: decoded, resized and changed by Pillow. `web/src/data/images.ts` is the same in a page.

A seed draws the same changes in both; pixels may differ by how each resamples.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.arguments import check_settings, checks_keywords, mapping, path_of, texts, warn
from trainweb.data.dataset import Dataset, checked_columns, stream_of
from trainweb.data.random import Draw, order_of, random_words
from trainweb.data.rows import Row, plain_array, type_of
from trainweb.errors import FeedError
from trainweb.settings import SEED, Choice, Field, Flag, Number, Whole, checked_values

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = "apng|avif|bmp|gif|heic|heif|ico|jfif|jpe|jpeg|jpg|pjp|pjpeg|png|tif|tiff|webp"
PICTURE = re.compile(rf"^[^.]*\Z|\.({ENDINGS})\Z", re.IGNORECASE)
"""Names of pictures: an ending of theirs, or none."""
PART = re.compile(r"train(ing)?|val(id|idation)?|test(ing)?|dev", re.IGNORECASE)
"""Names of folders that are parts of the data, each with a folder for each class."""
SHOWN_FILES = 3
"""Largest number of files that a notice names."""
ARRAYS = "Give uint8 of [height, width, 3]: (255 * np.moveaxis(x, 0, -1)).astype('uint8') of floats [3, height, width]."
GREY = np.array([0.299, 0.587, 0.114])
SIDE = Whole(least=1, most=16384)
"""Size of a canvas that every browser supports."""
AT_LEAST_0 = Field(Number(least=0), 0, is_optional=False)
IMAGE = {
    "width": Field(SIDE, Parameter.empty, is_optional=False),
    "height": Field(SIDE, Parameter.empty, is_optional=False),
    "channels": Field(Choice((1, 3)), 3, is_optional=False),
    "layout": Field(Choice(("CHW", "HWC")), "CHW", is_optional=False),
    "resize": Field(Choice(("stretch", "cover")), "stretch", is_optional=False),
}
"""Options of an image besides `OTHERS`, which depend on its channels, or have settings of their own."""
OTHERS = ("mean", "std", "augment")
AUGMENTATION = {
    "seed": Field(SEED, Parameter.empty, is_optional=False),
    "flip": Field(Flag(), default=False, is_optional=False),
    "rotate": AT_LEAST_0,
    "crop": Field(Number(least=0, below=1), 0, is_optional=False),
    "brightness": AT_LEAST_0,
    "contrast": AT_LEAST_0,
    "saturation": AT_LEAST_0,
}
DOCS = {
    "width": "Width of the tensor in pixels; at most 16,384.",
    "height": "Height of the tensor in pixels; at most 16,384.",
    "channels": "3: red, green, blue; 1: grey (Rec. 601).",
    "layout": "Order of the axes.",
    "resize": '"stretch", or "cover": keep the proportions and cut off the rest.',
    "seed": "Seed of the changes; give each image and epoch another.",
    "flip": "Mirror every other image.",
    "rotate": "Degrees, at most so many either way.",
    "crop": "Share of the sides that is cut off, at any place.",
    "brightness": "Share of the full brightness that is added, at most so much either way.",
    "contrast": "Share by which distances from the mean grey grow or shrink, at most so much.",
    "saturation": "Share by which distances of colours from their grey grow or shrink, at most so much.",
}


@checks_keywords
def read_image(source: Any, width: int, height: int, **options: Any) -> np.ndarray:
    """An image as a float32 array without the axis of the batch: a value of a row.

    Needs Pillow (``pip install trainweb[images]``; in Pyodide ``await pyodide.loadPackage("pillow")``). It is turned
    as its EXIF data say, and black where it is transparent.

    Parameters
    ----------
    source : path, bytes, binary file, PIL.Image.Image, or uint8 array [height, width] or [height, width, 3 or 4]
        The image. Grey ones may have 16 bits, as a file or as a uint16 array.
    width, height : int
        Of the array, in pixels; at most 16,384.
    **options
        ``channels``: 3 (red, green, blue; the default) or 1 (grey, Rec. 601). ``mean`` and ``std``: numbers, or one for
        each channel; values of 0 to 1 become ``(value - mean) / std``; 0 and 1. ``layout``: "CHW" (the default) or
        "HWC". ``resize``: "stretch" (the default), or "cover": keep the proportions and cut off what is beyond.
        ``augment``: random changes, a dict. ``seed`` is different for each image and epoch, ``flip`` mirrors every
        other image, and ``rotate`` is in degrees. ``crop`` is the share of the sides that is cut off. ``brightness``,
        ``contrast`` and ``saturation`` are shares. All change by up to so much either way.

    Returns
    -------
    ndarray of float32

    Raises
    ------
    FeedError
        It cannot be read or decoded, or has no pixels.
    ModelError
        An option is wrong.
    ImportError
        Pillow is not there.
    """
    return _values(source, checked_options({"width": width, "height": height, **options}))


@checks_keywords
def from_images(
    images: Iterable[Any],
    input: str,
    *,
    columns: Mapping[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """A dataset of images, each read when its turn comes; it has a length, and can be split.

    Each epoch of a fit has them in another order, unless its ``shuffle`` is False. It also changes each by another
    seed, which follows from the seeds of ``augment`` and of the fit, the epoch and the image's place. Evaluations and
    predictions have the images in order and unchanged.

    Parameters
    ----------
    images : iterable
        Of what `read_image` takes.
    input : str
        The input of the model that they are.
    columns : dict, optional
        Its other inputs: arrays whose first axis counts the images.
    seed : int
        Of the order, from 0 to 2^53 - 1.
    **options
        ``width``, ``height`` and the others of `read_image`.

    Raises
    ------
    FeedError
        There are no images, or other numbers of values in ``columns``; in an iteration, for an image that cannot be
        read, which it names.
    ModelError
        An option is wrong.
    """
    if not isinstance(images, Iterable) or isinstance(images, (str, bytes)):
        raise TypeError(f"'images' must be a list of images, got {images!r:.80}.")
    if not isinstance(input, str):
        raise messages.BAD_SETTING(name="input", value=input, expected="a name")
    SEED.check("seed", seed)
    image = checked_options(options)
    sources = list(images)
    # They are checked beside the images, which are a column of no classes until they are read.
    columns = mapping("columns", columns or {})
    columns_of_all = checked_columns({**columns, input: np.full(len(sources), 0.5)})
    known = {name: array.classes for name, array in columns.items() if isinstance(array, Labels) and array.classes}
    steps = [{"type": "categories", "input": name, "categories": [[*classes]]} for name, classes in known.items()]

    def part(places: np.ndarray, image: Options, *, shuffles: bool) -> Dataset:
        rows = checked_columns({name: array[places] for name, array in columns_of_all.items()})
        plain = replace(image, augment=None)

        def read(draw: Draw | None) -> Iterator[Row]:
            order, seeds = order_of(len(places), draw if shuffles else None, seed), np.zeros(0, np.uint32)
            if draw is not None and image.augment is not None:
                seeds = random_words(draw.seed_with(image.augment["seed"]), draw.epoch, len(sources))
            for k in order:
                place, changed = int(places[k]), plain
                if seeds.size:
                    changed = replace(image, augment={**(image.augment or {}), "seed": int(seeds[place])})
                yield {n: a[k] for n, a in rows.items()} | {input: _read_place(sources[place], place, changed)}

        def pick(rows: np.ndarray, is_held_out: bool) -> Dataset:
            return part(places[rows], plain if is_held_out else image, shuffles=shuffles and not is_held_out)

        dataset = stream_of(read, is_drawn=shuffles)
        dataset._known, dataset._pick, dataset.preprocessing = rows, pick, steps
        return dataset

    return part(np.arange(len(sources)), image, shuffles=True)


class Labels(np.ndarray):
    """Labels that know their classes, for `from_images`; parts and copies of them do not."""

    classes: Sequence[str] | None = None


@checks_keywords
def list_folder(folder: str | Path, classes: Sequence[str] | None = None) -> tuple[list[Path], np.ndarray, list[str]]:
    """The files of a folder that has a folder for each class.

    Hidden files, and files that are no pictures by their names, are left out with a notice.

    Parameters
    ----------
    folder : path
    classes : list of str, optional
        The folders in the order of their labels, with a notice of those without pictures; by default all, by name.

    Returns
    -------
    files : list of Path
        By class and name, including folders within a class.
    labels : ndarray of int64
        For each file the place of its class.
    classes : list of str

    Raises
    ------
    FeedError
        There is no picture, one is in the folder of no class, or a folder is a part of the data, such as "train".
    """
    root = path_of("folder", folder)
    if not root.is_dir():
        raise FeedError(f"There is no folder {str(root)!r}.")
    try:
        paths = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    except OSError as error:
        raise FeedError(f"The folder {str(root)!r} cannot be read: {error}") from error
    # As a page sorts them: by UTF-16.
    paths.sort(key=lambda path: [part.encode("utf-16-be") for part in path.parts])
    files = [path for path in paths if _is_picture(path)]
    if others := [path.as_posix() for path in paths if not _is_picture(path)]:
        warn(str(messages.NOT_PICTURES(count=len(others), names=", ".join(others[:SHOWN_FILES]))))
    folders = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    labels, names = labelled([path.parts for path in files], classes)
    if empty := sorted(folders.difference(names)):
        warn(str(messages.EMPTY_FOLDERS(names=", ".join(empty))))
    return [root / path for path in files], labels, names


def _is_picture(path: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.parts)
    return not is_hidden and PICTURE.search(path.name) is not None


def labelled(paths: Sequence[Sequence[str]], classes: Sequence[str] | None) -> tuple[np.ndarray, list[str]]:
    """Labels of files by the folders that they are in, and the names of the classes."""
    if not paths:
        raise messages.NO_PICTURES()
    if outside := [path[0] for path in paths if len(path) == 1]:
        raise messages.FILE_WITHOUT_CLASS(file=outside[0])
    folders = list(dict.fromkeys(path[0] for path in paths))
    parts = [path for path in paths if PART.fullmatch(path[0]) and len(path) > 2]
    if classes is None and parts:
        names, deeper = (list(dict.fromkeys(path[k] for path in parts)) for k in (0, 1))
        raise messages.PARTS_OF_DATA(names=", ".join(names), deeper=", ".join(deeper[:SHOWN_FILES]))
    names = folders if classes is None else texts("classes", classes)
    if strays := [folder for folder in folders if folder not in names]:
        raise messages.FOLDER_WITHOUT_CLASS(folder=strays[0], names=", ".join(names))
    if empty := [name for name in names if name not in folders]:
        warn(str(messages.EMPTY_CLASSES(names=", ".join(empty))))
    labels = np.array([names.index(path[0]) for path in paths], np.int64).view(Labels)
    labels.classes = names
    return labels, names


@dataclass(frozen=True)
class Options:
    """The checked settings that turn an image into an array."""

    width: int
    height: int
    channels: int
    mean: np.ndarray
    std: np.ndarray
    layout: str
    resize: str
    augment: Mapping[str, Any] | None


def checked_options(options: Mapping[str, Any]) -> Options:
    """The options of an image.

    Raises
    ------
    ModelError
        One of them cannot be, or is not known.
    """
    check_settings("read_image", options, (*IMAGE, *OTHERS))
    plain = checked_values("read_image", {n: v for n, v in options.items() if n in IMAGE}, IMAGE)
    mean, std = (
        _for_channels(n, options.get(n, default), plain["channels"]) for n, default in (("mean", 0), ("std", 1))
    )
    if not std.all():
        raise messages.BAD_SETTING(
            name="std", value=options["std"], expected="a number other than 0, or one for each channel"
        )
    augment = options.get("augment")
    if augment is not None and not isinstance(augment, Mapping):
        raise messages.BAD_SETTING(name="augment", value=augment, expected="a dict with a seed")
    changes = None if augment is None else checked_values("augment", augment, AUGMENTATION)
    return Options(**plain, mean=mean, std=std, augment=changes)


def _for_channels(name: str, value: Any, channels: int) -> np.ndarray:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.shape not in ((), (channels,)) or not np.isfinite(array).all():
        raise messages.BAD_SETTING(name=name, value=value, expected="a number, or one for each channel")
    return np.broadcast_to(array, (channels,))


@dataclass(frozen=True)
class Changes:
    """The changes of an augmentation by one seed."""

    is_flipped: bool = False
    degrees: float = 0.0
    cut: float = 0.0
    """Share of the sides that is cut off; of it, `left` and `top` are the shares on the left and at the top."""
    left: float = 0.0
    top: float = 0.0
    added: float = 0.0
    contrast: float = 1.0
    saturation: float = 1.0


def changes_of(augment: Mapping[str, Any]) -> Changes:
    """Draw the changes of a seed: always the same numbers, even if only some are wanted."""
    uniform = random_words(augment["seed"], 0, 8) / 2**32
    signed = 2 * uniform - 1
    amount = {name: float(augment[name]) for name in AUGMENTATION if name != "seed"}
    return Changes(
        is_flipped=bool(uniform[0] < 0.5 and amount["flip"]),
        degrees=float(signed[1] * amount["rotate"]),
        cut=float(uniform[2] * amount["crop"]),
        left=float(uniform[3]),
        top=float(uniform[4]),
        added=float(signed[5] * amount["brightness"]),
        contrast=float(1 + signed[6] * amount["contrast"]),
        saturation=float(1 + signed[7] * amount["saturation"]),
    )


def _values(source: Any, options: Options) -> np.ndarray:
    changes = Changes() if options.augment is None else changes_of(options.augment)
    values = _drawn(_opened(source), options, changes) / 255
    if changes.added or changes.contrast != 1:
        values = np.clip(0.5 + (values - 0.5) * changes.contrast + changes.added, 0, 1)
    if options.channels == 1:
        values = values @ GREY[:, None]
    elif changes.saturation != 1:
        grey = values @ GREY[:, None]
        values = np.clip(grey + (values - grey) * changes.saturation, 0, 1)
    values = ((values - options.mean) / options.std).astype(np.float32)
    return np.ascontiguousarray(np.moveaxis(values, -1, 0)) if options.layout == "CHW" else values


def _opened(source: Any) -> Image:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(
            "images need Pillow: pip install trainweb[images], or, in Pyodide, await pyodide.loadPackage('pillow')."
        ) from error
    try:
        if isinstance(source, Image.Image):
            image = source
        elif hasattr(source, "__array__"):
            source = plain_array(source)
            image = Image.fromarray(source)
        else:
            image = Image.open(io.BytesIO(source) if isinstance(source, (bytes, bytearray, memoryview)) else source)
        turned = ImageOps.exif_transpose(image)
        is_deep = image.mode[0] in "IF"
        coloured = turned if is_deep else turned.convert("RGBA")
    except (OSError, TypeError, ValueError, AttributeError, SyntaxError, Image.DecompressionBombError) as error:
        reason = f"{type_of(source)} is none. {ARRAYS}" if isinstance(source, np.ndarray) else error
        raise FeedError(f"The source {_named(source)} cannot be decoded as an image: {reason}") from error
    if 0 in image.size:
        raise FeedError(f"The source {_named(source)} has no pixels.")
    if not is_deep:
        # Transparent pixels become black.
        return Image.alpha_composite(Image.new("RGBA", turned.size, (0, 0, 0, 255)), coloured).convert("RGB")
    if image.mode in ("I", "F") and image.format != "PPM":
        raise FeedError(
            f"The source {_named(source)} has numbers of 32 bits, and nothing says which is white. "
            "Scale them, and give a uint8 or uint16 array."
        )
    bits = getattr(image, "tag_v2", {}).get(258, (16,))[0]  # BitsPerSample of a TIFF
    return Image.fromarray(np.asarray(turned) * np.float32(255 / (2**bits - 1)))


def _named(source: Any) -> str:
    return repr(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else f"({type(source).__name__})"


def _drawn(image: Image, options: Options, changes: Changes) -> np.ndarray:
    """Pixels [height, width, 3] of 0 to 255."""
    from PIL.Image import Resampling, Transpose

    width, height = options.width, options.height
    part = [float(side) for side in image.size]
    if options.resize == "cover":
        cover = min(image.width / width, image.height / height)
        part = [width * cover, height * cover]
    x = (image.width - part[0]) / 2 + changes.left * changes.cut * part[0]
    y = (image.height - part[1]) / 2 + changes.top * changes.cut * part[1]
    sides = [side * (1 - changes.cut) for side in part]
    box = (x, y, min(x + sides[0], image.width), min(y + sides[1], image.height))
    if (width, height) != image.size or box != (0, 0, *image.size):
        image = image.resize((width, height), Resampling.BILINEAR, box)
    if changes.is_flipped:
        image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
    if changes.degrees:
        # Pillow turns to the left, a canvas to the right.
        image = image.rotate(-changes.degrees, Resampling.BILINEAR)
    pixels = np.asarray(image, np.float64)
    return pixels if pixels.ndim == 3 else np.stack([pixels] * 3, -1)


def _read_place(source: Any, place: int, options: Options) -> np.ndarray:
    try:
        return _values(source, options)
    except FeedError as error:
        raise FeedError(f"image {place}: {error}") from error
