"""Images as data: pixels by numpy, random numbers by integers of Python, folders by hand."""

import io
import shutil
import struct
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from tests.conformance.models import make_model
from tests.python.sessions import error_of

import trainweb
from trainweb.data import Dataset, from_images, list_folder, read_image
from trainweb.data.random import Draw
from trainweb.errors import FeedError

PIXELS = (np.arange(24) * 29 % 256).astype(np.uint8).reshape(2, 4, 3)


def png(pixels: np.ndarray, **settings: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", **settings)
    return file.getvalue()


def test_an_image_is_its_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(PIXELS))
    expected = np.moveaxis(PIXELS, -1, 0) / 255
    for source in (PIXELS, Image.fromarray(PIXELS), path, str(path), png(PIXELS), io.BytesIO(png(PIXELS))):
        found = read_image(source, 4, 2)
        assert found.dtype == np.float32 and found.flags.c_contiguous
        np.testing.assert_allclose(found, expected, atol=1e-6)
    normal = (PIXELS / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 2]
    found = read_image(PIXELS, 4, 2, mean=[0.1, 0.2, 0.3], std=[0.5, 0.25, 2], layout="HWC")
    np.testing.assert_allclose(found, normal, atol=1e-5)
    grey = (PIXELS / 255 @ [0.299, 0.587, 0.114])[None]
    np.testing.assert_allclose(read_image(PIXELS, 4, 2, channels=1), grey, atol=1e-6)
    np.testing.assert_allclose(read_image(PIXELS, 2, 2, resize="cover"), expected[:, :, 1:3], atol=1e-6)
    means = PIXELS.reshape(1, 2, 2, 2, 3).mean((1, 3)) / 255
    np.testing.assert_allclose(read_image(PIXELS, 2, 1, layout="HWC"), means, atol=0.2)


def test_what_is_turned_or_transparent() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned = read_image(png(PIXELS, exif=exif), 2, 4, layout="HWC")
    np.testing.assert_allclose(turned, np.rot90(PIXELS, -1) / 255, atol=1e-6)
    alpha = np.concatenate([PIXELS, np.tile(np.uint8([0, 255, 0, 255]), (2, 1))[..., None]], -1)
    found = read_image(alpha, 4, 2, layout="HWC")
    np.testing.assert_allclose(found[:, 1::2], PIXELS[:, 1::2] / 255, atol=1e-6)
    assert not found[:, 0::2].any()


def tiff_of_12_bits(pixels: np.ndarray) -> bytes:
    """By the words of TIFF 6.0: size, bits, one strip of packed bits."""
    rows = [f"{int(''.join(f'{p:012b}' for p in row), 2):0{3 * len(row)}x}" for row in pixels]
    strip = bytes.fromhex("".join(rows))
    height, width = pixels.shape
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(strip)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(strip)) + strip + struct.pack("<H", len(tags)) + entries + bytes(4)


def test_grey_of_16_bits() -> None:
    """As the file's depth says, and as floats: 8 bits would lose the darkest."""
    deep = (np.arange(8).reshape(2, 4) * 9000 + 7).astype(np.uint16)
    big, pgm = io.BytesIO(), b"P5 4 2 65535 " + deep.astype(">u2").tobytes()
    Image.frombytes("I;16B", (4, 2), deep.astype(">u2").tobytes()).save(big, "tiff")
    for source in (deep, deep.astype(">u2"), Image.fromarray(deep), png(deep), big.getvalue(), pgm):
        found = read_image(source, 4, 2)
        assert found.shape == (3, 2, 4) and found.dtype == np.float32
        np.testing.assert_allclose(found, np.stack([deep / 65535] * 3), atol=1e-6)
    np.testing.assert_allclose(read_image(deep, 4, 2, channels=1), deep[None] / 65535, atol=1e-6)
    np.testing.assert_allclose(read_image(tiff_of_12_bits(deep // 16), 4, 2)[0], deep // 16 / 4095, atol=1e-6)
    exif = Image.Exif()
    exif[0x0112] = 6
    changed = {"seed": 3, "crop": 0.1, "rotate": 5, "contrast": 0.2}
    np.testing.assert_allclose(read_image(png(deep, exif=exif), 2, 4)[0], np.rot90(deep, -1) / 65535, atol=1e-6)
    assert 0 < read_image(deep, 3, 3, augment=changed).max() < 1
    for dtype in (np.int32, np.float32):
        with pytest.raises(FeedError, match=r"numbers of 32 bits, and nothing says which is white. Scale them"):
            read_image(Image.fromarray(deep.astype(dtype)), 4, 2)


def test_images_are_changed_by_their_seed() -> None:
    expected = np.moveaxis(PIXELS, -1, 0) / 255
    flipped = [read_image(PIXELS, 4, 2, augment={"seed": seed, "flip": True}) for seed in range(12)]
    plain = [np.allclose(one, expected, atol=1e-6) for one in flipped]
    assert 0 < sum(plain) < 12
    for is_plain, one in zip(plain, flipped, strict=True):
        np.testing.assert_allclose(one, expected if is_plain else expected[:, :, ::-1], atol=1e-6)
    everything = {"flip": True, "rotate": 30, "crop": 0.4, "brightness": 0.2, "contrast": 0.3, "saturation": 0.5}
    one, again, other = (read_image(PIXELS, 4, 2, augment={"seed": seed} | everything) for seed in (7, 7, 8))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    assert one.min() >= 0 and one.max() <= 1
    np.testing.assert_allclose(read_image(PIXELS, 4, 2, augment={"seed": 3}), expected, atol=1e-6)


def mixed(word: int) -> int:
    """The finalizer of MurmurHash3, on integers of Python."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = ((word ^ (word >> shift)) * factor) % 2**32
    return word ^ (word >> 16)


def drawn(seed: int, place: int) -> float:
    """A random number from -1 to 1 of the data: seed, stream 0, a place."""
    key = mixed((mixed(mixed((mixed(seed % 2**32) + seed // 2**32) % 2**32)) + 0) % 2**32)
    return 2 * mixed((key + (place + 1) * 0x9E3779B9) % 2**32) / 2**32 - 1


@pytest.mark.parametrize("seed", [0, 5, 2**40 + 3])
def test_changes_are_what_the_seed_draws(seed: int) -> None:
    """Of flat and smooth images, whatever resamples them."""
    flat = np.full((8, 8, 3), [51, 102, 204], np.uint8)
    found = read_image(flat, 1, 1, layout="HWC", augment={"seed": seed, "brightness": 0.15})[0, 0]
    np.testing.assert_allclose(found, np.array([0.2, 0.4, 0.8]) + 0.15 * drawn(seed, 5), atol=1e-6)
    found = read_image(flat, 1, 1, layout="HWC", augment={"seed": seed, "contrast": 0.5})[0, 0]
    np.testing.assert_allclose(found, 0.5 + np.array([-0.3, -0.1, 0.3]) * (1 + 0.5 * drawn(seed, 6)), atol=1e-6)
    found = read_image(flat, 1, 1, layout="HWC", augment={"seed": seed, "saturation": 0.2})[0, 0]
    grey = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.8
    factor = 1 + 0.2 * drawn(seed, 7)
    np.testing.assert_allclose(found, np.clip(grey + (np.array([0.2, 0.4, 0.8]) - grey) * factor, 0, 1), atol=1e-6)
    ramp = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    for pixels, place in ((ramp, 3), (ramp.T, 4)):
        cut = (drawn(seed, 2) + 1) / 2 * 0.6
        middle = 256 * ((drawn(seed, place) + 1) / 2 * cut + (1 - cut) * 8.5 / 16) - 0.5
        found = read_image(np.stack([pixels] * 3, -1), 16, 16, augment={"seed": seed, "crop": 0.6})
        np.testing.assert_allclose(found[:, 8, 8] * 255, middle, atol=1)
    found = read_image(np.stack([ramp] * 3, -1), 256, 256, channels=1, augment={"seed": seed, "rotate": 40})[0] * 255
    angle = np.deg2rad(40 * drawn(seed, 1))
    # To the right: what lies below the middle came from the right of it.
    assert found[168, 128] - found[88, 128] == pytest.approx(80 * np.sin(angle), abs=1.5)
    assert found[128, 168] - found[128, 88] == pytest.approx(80 * np.cos(angle), abs=1.5)


def rows_of(data: Iterable[Any]) -> list[tuple[int, bytes]]:
    return [(int(row["y"]), row["x"].tobytes()) for row in data]


def images(**options: Any) -> Dataset:
    sources = [np.full((2, 2, 3), 20 * k, np.uint8) for k in range(10)]
    return from_images(sources, "x", columns={"y": np.arange(10)}, width=2, height=2, **options)


def test_a_dataset_of_images() -> None:
    plain = rows_of(images()._rows(None))
    assert plain == [(k, read_image(np.full((2, 2, 3), 20 * k, np.uint8), 2, 2).tobytes()) for k in range(10)]
    augment = {"seed": 4, "brightness": 0.4}
    data = images(augment=augment, seed=2)
    first, second = rows_of(data), rows_of(data)
    assert sorted(y for y, _ in first) == sorted(y for y, _ in second) == list(range(10))
    assert [y for y, _ in first] != [y for y, _ in second] and dict(first) != dict(second)
    again = images(augment=augment | {"seed": 1}, seed=2**53 - 1)
    assert rows_of(again._rows(Draw(1, 3))) == second
    assert rows_of(again._rows(None)) == plain
    assert rows_of(again._rows(Draw(1, 3, shuffles=False))) == sorted(second)


def test_images_split() -> None:
    """By the last ones, by a seed, and by class; held-out images keep their order and are unchanged."""
    unchanged = dict(rows_of(images()._rows(None)))
    data = images(seed=2, augment={"seed": 4, "brightness": 0.4})
    assert len(data) == 10
    first, second = (rows_of(part) for part in data.split(0.3))
    assert sorted(y for y, _ in first) == list(range(7)) != [y for y, _ in first]
    assert second == [(k, unchanged[k]) for k in (7, 8, 9)]
    assert all(values != unchanged[k] for k, values in first if k)
    arrays = Dataset({"y": np.arange(10)})
    for seed in (1, 2):
        drawn_rows = arrays.split(0.3, seed)[1].columns
        assert drawn_rows is not None
        assert [y for y, _ in rows_of(data.split(0.3, seed)[1])] == drawn_rows["y"].tolist()
    assert rows_of(images().rows(np.array([4, 1]))._rows(None)) == [(k, unchanged[k]) for k in (4, 1)]
    # Of the first part, drawn again.
    assert [y for y, _ in rows_of(data.split(0.3)[0].split(0.2)[1])] == [6]
    with pytest.raises(FeedError, match=r"A share of 0\.05 of 10 rows is less than one row"):
        data.split(0.05)
    with pytest.raises(FeedError, match="Split before steps such as 'map'"):
        data.map(lambda row: row).split(0.3)


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_images_split_by_class(dtype: str) -> None:
    """Classes may be whole numbers of any type, as those of an array in a page."""
    labels = np.repeat([0, 1, 2], [5, 3, 2]).astype(dtype)
    sources = [np.full((2, 2, 3), k, np.uint8) for k in range(10)]
    data = from_images(sources, "x", columns={"y": labels, "k": np.arange(10), "half": labels + 0.5}, width=2, height=2)
    assert [int(row["k"]) for row in data.split(0.4, stratify="y")[1]] == [3, 4, 7, 9]
    drawn_part = data.split(0.4, 3, stratify="y")[1]
    assert sorted(int(row["y"]) for row in drawn_part) == [0, 0, 1, 2]
    assert [int(row["k"]) for row in drawn_part] != [3, 4, 7, 9]
    for name in ("x", "none", "half"):
        with pytest.raises(FeedError, match=f"needs one whole number a row in '{name}';"):
            data.split(0.4, stratify=name)


class Tensor:
    """A tensor of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self._array


def test_arrays_that_are_no_pictures_say_how_they_become_some() -> None:
    np.testing.assert_array_equal(read_image(Tensor(PIXELS), 2, 2), read_image(PIXELS, 2, 2))
    for array in (np.ones((3, 2, 4), np.float32), np.ones((3, 5, 6), np.uint8), np.ones((2, 5, 5, 3), np.uint8)):
        for source in (array, Tensor(array)):
            with pytest.raises(FeedError, match=rf"{array.dtype}\[{array.shape[0]}, .* is none\. Give uint8 of \[h"):
                read_image(source, 2, 2)
    floats = np.moveaxis(PIXELS / 255, -1, 0)
    np.testing.assert_array_equal(
        read_image((255 * np.moveaxis(floats, 0, -1)).astype("uint8"), 2, 2), read_image(PIXELS, 2, 2)
    )


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("no image")
    with pytest.raises(FeedError, match=r"image 1: The source '.*note.txt' cannot be decoded"):
        list(from_images([PIXELS, path], "x", width=2, height=2))
    for source in (b"", b"\x89PNG\r\n", np.zeros((2, 2, 7), np.uint8), 3, None, tmp_path / "none.png"):
        with pytest.raises(FeedError, match="cannot be decoded"):
            read_image(source, 2, 2)
    with pytest.raises(FeedError, match="'x' has 2 rows, but 'y' has 1"):
        from_images([PIXELS] * 2, "x", columns={"y": [1]}, width=2, height=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": 0}, "width is 0"),
        ({"channels": 2}, "channels is 2; it must be 1 or 3"),
        ({"mean": [1, 2]}, "mean is .*; it must be a number, or one for each channel"),
        ({"std": 0}, "std is 0"),
        ({"layout": "CWH"}, "layout is 'CWH'"),
        ({"resize": "fill"}, "resize is 'fill'"),
        ({"size": 3}, "read_image has no setting 'size'"),
        ({"augment": {"flip": True}}, "augment needs the setting 'seed'"),
        ({"augment": {"seed": 1, "crop": 1}}, "crop is 1"),
        ({"augment": {"seed": 1, "flip": 1}}, "flip is 1; it must be true or false"),
        ({"augment": {"seed": 1, "zoom": 1}}, "augment has no setting 'zoom'"),
    ],
)
def test_what_is_no_option(options: dict[str, Any], said: str) -> None:
    with pytest.raises(error_of(said), match=said):
        read_image(PIXELS, **({"width": 2, "height": 2} | options))


def test_a_folder_has_a_folder_for_each_class(tmp_path: Path) -> None:
    for name in ("dog/b.png", "dog/a.png", "cat/far/z.png", "cat/a.png", "dog/.hidden", ".git/x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    left_out = r"left out; there are 2, such as \.git/x, dog/\.hidden\.$"
    with pytest.warns(UserWarning, match=left_out):
        files, labels, classes = list_folder(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in files] == [
        "cat/a.png",
        "cat/far/z.png",
        "dog/a.png",
        "dog/b.png",
    ]
    assert labels.tolist() == [0, 0, 1, 1] and labels.dtype == np.int64 and classes == ["cat", "dog"]
    shutil.rmtree(tmp_path / ".git")
    (tmp_path / "dog/.hidden").unlink()
    assert list_folder(str(tmp_path), ["dog", "cat"])[1].tolist() == [1, 1, 0, 0]
    with pytest.raises(FeedError, match="The folder 'dog' is not one of the classes: cat"):
        list_folder(tmp_path, ["cat"])
    for part in ("train", "Validation"):
        shutil.copytree(tmp_path, tmp_path.parent / "parts" / part)
    said = "Folders named as parts of the data are no classes: Validation, train. The classes are .* such as cat, dog"
    with pytest.raises(FeedError, match=said):
        list_folder(tmp_path.parent / "parts")
    assert list_folder(tmp_path.parent / "parts", ["Validation", "train"])[1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    (tmp_path / "note.png").touch()
    with pytest.raises(FeedError, match=r"The file 'note.png' lies outside of the class folders"):
        list_folder(tmp_path)
    with pytest.raises(FeedError, match=r"There is no folder '.*none'"):
        list_folder(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FeedError, match="no pictures"):
        list_folder(tmp_path / "empty")


def test_a_part_of_the_data_beside_classes_is_no_class(tmp_path: Path) -> None:
    """One whose pictures lie in it is a class, as of vehicles."""
    for name in ("cat/a.png", "train/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list_folder(tmp_path)[2] == ["cat", "train"]
    (tmp_path / "train/dog").mkdir()
    (tmp_path / "train/dog/b.png").touch()
    with pytest.raises(FeedError, match=r"are no classes: train\. The classes .*, such as dog\. List"):
        list_folder(tmp_path)
    assert list_folder(tmp_path, ["cat", "train"])[1].tolist() == [0, 1, 1]


def pictures_of(folder: Path, names: Sequence[str], classes: Sequence[str] | None = None) -> Dataset:
    """Listed pictures of these classes, two of each."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for k in range(2):
            Image.fromarray(np.full((1, 5, 3), 40 * k, np.uint8)).save(folder / name / f"{k}.png")
    files, labels, _ = list_folder(folder, classes)
    return from_images(files, "x", columns={"labels": labels}, width=5, height=1)


def test_a_class_may_have_no_pictures_in_a_folder(tmp_path: Path) -> None:
    """Labels count the given classes; a folder without pictures is told once."""
    (tmp_path / "val/dog").mkdir(parents=True)
    (tmp_path / "val/hen").mkdir(parents=True)
    with pytest.warns(UserWarning) as notices:
        rows = pictures_of(tmp_path / "val", ["cat", "fox"], ["cow", "cat", "dog", "fox"])
    assert [int(row["labels"]) for row in rows.split(0.5)[0]] == [1, 1]
    assert [str(notice.message) for notice in notices] == [
        "These classes have no pictures in the folder: cow, dog.",
        "Folders without pictures are no classes: hen.",
    ]


def test_labels_that_count_other_classes_are_refused(tmp_path: Path) -> None:
    """The folder val lacks dog, and so its fox would be the training's dog."""
    train = pictures_of(tmp_path / "train", ["cat", "dog", "fox"])
    wrong = pictures_of(tmp_path / "val", ["cat", "fox"])
    fewer = pictures_of(tmp_path / "few", ["cat", "dog"])
    said = "1 is 'fox' in 'labels' of the {} rows, and 'dog' in the training rows. List a folder with the 'classes' of"
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["logits"])]
    model = make_model(nodes, {"x": ["N", 3, 1, 5]}, {"logits": ["N", 3]}, {"w": np.zeros((15, 3), np.float32)})
    options: dict[str, Any] = {"loss": "CrossEntropyLoss", "optimizer": "SGD"}
    with trainweb.TrainingSession.from_model(model.SerializeToString(), **options) as s:
        with pytest.raises(FeedError, match=said.format("validation")):
            s.fit(train, epochs=1, progress=False, validation_data=wrong)
        part, _ = train.split(0.34)
        s.fit(part.map(lambda row: row), epochs=1, progress=False, validation_data=fewer)
        for ask in (s.evaluate, lambda rows: s.evaluate(rows.map(lambda row: row))):
            with pytest.raises(FeedError, match=said.format("given")):
                ask(wrong)
        assert len(s.predict(wrong)["logits"]) == 4
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            s.evaluate({"x": np.zeros((2, 3, 1, 5), np.float32), "labels": [0, 1]})
        with pytest.warns(UserWarning, match="no pictures in the folder: dog"):
            files, labels, _ = list_folder(tmp_path / "val", ["cat", "dog", "fox"])
        s.evaluate(from_images(files, "x", columns={"labels": labels}, width=5, height=1))


def test_a_folder_lists_its_pictures_alone(tmp_path: Path) -> None:
    """Operating systems and people lay other files beside pictures."""
    pictures = ["cat/a.PNG", "cat/b.jpeg", "cat/c", "cat/d.e.webp", "dog/a.tiff"]
    others = [".DS_Store", "cat/.DS_Store", "cat/Thumbs.db", "cat/desktop.ini", "cat/png.txt", "dog/a.", "notes.txt"]
    for name in pictures + others:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with pytest.warns(UserWarning) as notices:
        files, labels, _ = list_folder(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in files] == pictures
    assert labels.tolist() == [0, 0, 0, 0, 1]
    [notice] = notices
    assert str(notice.message).endswith("left out; there are 7, such as .DS_Store, cat/.DS_Store, cat/Thumbs.db.")
    (tmp_path / "cow").mkdir()
    (tmp_path / "cow/Thumbs.db").touch()
    (tmp_path / "ant").mkdir()
    with pytest.warns(UserWarning, match="Folders without pictures are no classes: ant, cow"):
        assert list_folder(tmp_path)[2] == ["cat", "dog"]
