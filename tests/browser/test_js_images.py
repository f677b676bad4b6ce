"""Images in a page: pixels that are computed here, and what Python makes of the same image and seed."""

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser

import trainweb
from trainweb.data import from_images, read_image

from .js_session import JsPage, from_json, open_js_page
from .server import Reply, Site

PIXELS = """
    const pixels = new ImageData(4, 2);
    pixels.data.forEach((_, k) => { pixels.data[k] = k % 4 === 3 ? 255 : (k * 29) % 256; });
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [4, 2];
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    const size = { width: 4, height: 2 };
"""
IMAGE = (np.arange(32) * 29 % 256).reshape(2, 4, 4)[:, :, :3].astype(np.uint8)


def test_an_image_is_its_pixels(js: JsPage) -> None:
    """It may be given in any form, and it is unchanged afterwards."""
    plain, others, stays = js.run(
        f"""{PIXELS}
        const blob = await new Promise((resolve) => canvas.toBlob(resolve));
        const url = URL.createObjectURL(blob);
        const offscreen = new OffscreenCanvas(4, 2);
        offscreen.getContext("2d").putImageData(pixels, 0, 0);
        const bitmap = await createImageBitmap(blob);
        const image = Object.assign(new Image(), {{ src: url }});
        const frame = new VideoFrame(canvas, {{ timestamp: 0 }});
        const sources =
          [pixels, canvas, offscreen, blob, new File([blob], "a.png"), url, new URL(url), bitmap, image, frame];
        const plain = await Promise.all(sources.map((source) => trainweb.readImage(source, size)));
        const norm = {{ mean: [0.1, 0.2, 0.3], std: [0.5, 0.25, 2], layout: "HWC" }};
        const others = [
          await trainweb.readImage(canvas, {{ ...size, ...norm }}),
          await trainweb.readImage(canvas, {{ ...size, channels: 1 }}),
          await trainweb.readImage(bitmap, {{ width: 2, height: 2, resize: "cover" }}),
        ];
        const stays = [bitmap.width, offscreen.width, frame.codedWidth, pixels.data.length];
        frame.close();
        return [plain.map(fromTensor), others.map(fromTensor), stays];"""
    )
    expected = np.moveaxis(IMAGE, -1, 0) / 255
    assert len(plain) == 10 and stays == [4, 4, 4, 32]
    for tensor in plain:
        np.testing.assert_allclose(from_json(tensor), expected, atol=1e-6)
    normal = (IMAGE / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 2]
    np.testing.assert_allclose(from_json(others[0]), normal, atol=1e-5)
    np.testing.assert_allclose(from_json(others[1]), (IMAGE / 255 @ [0.299, 0.587, 0.114])[None], atol=1e-6)
    np.testing.assert_allclose(from_json(others[2]), expected[:, :, 1:3], atol=1e-6)


def test_grey_of_16_bits(js: JsPage) -> None:
    """The browser scales it to 8 bits."""
    deep = (np.arange(8).reshape(2, 4) * 9000 + 7).astype(np.uint16)
    file = io.BytesIO()
    Image.fromarray(deep).save(file, "png")
    found = js.run(
        """const blob = new Blob([Uint8Array.from(bytes)]);
        return fromTensor(await trainweb.readImage(blob, { width: 4, height: 2 }));""",
        bytes=list(file.getvalue()),
    )
    np.testing.assert_allclose(from_json(found), np.stack([deep / 65535] * 3), atol=1 / 255)


def test_the_frame_of_a_camera(js: JsPage) -> None:
    """The stream of a canvas behaves like a camera's; its frames are compressed by nobody."""
    found = js.run(
        """const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [64, 64];
        const context = canvas.getContext("2d");
        const paint = (colour) => { context.fillStyle = colour; context.fillRect(0, 0, 64, 64); };
        paint("rgb(200, 0, 0)");
        const stream = canvas.captureStream(30);
        const read = async () =>
          [...(await trainweb.readImage(stream, { width: 1, height: 1 })).data].map((x) => Math.round(x * 255));
        const first = await read();
        let second = first;
        // The next frame comes when the browser has it.
        while (second[2] < 100) {
          paint("rgb(0, 0, 200)");
          await new Promise(requestAnimationFrame);
          second = await read();
        }
        stream.getTracks().forEach((track) => track.stop());
        return [first, second, await failure(() => trainweb.readImage(stream, { width: 1, height: 1 }))];"""
    )
    np.testing.assert_allclose(found[0], [200, 0, 0], atol=6)
    np.testing.assert_allclose(found[1], [0, 0, 200], atol=6)
    assert found[2]["class"] == "FeedError" and "switched off" in found[2]["message"]


def test_images_are_resized_in_a_worker_and_in_the_page_where_that_cannot(browser: Browser, plain_site: Site) -> None:
    with open_js_page(browser, plain_site) as js:
        options = json.dumps({"width": 3, "height": 5, "augment": {"seed": 3, "rotate": 20, "flip": True}})
        body = f"""{PIXELS}
        const read = async () => fromTensor(await trainweb.readImage(canvas, {options}));
        const canvases = [];
        const create = document.createElement.bind(document);
        document.createElement = (name) => (canvases.push(name), create(name));
        const Kept = OffscreenCanvas;
        globalThis.OffscreenCanvas = class {{ constructor() {{ throw new Error("on the page's thread"); }} }};
        const there = await read();
        const seen = [canvases.length];
        delete globalThis.OffscreenCanvas;
        const here = await read();
        return [there, here, [...seen, canvases.length]];"""
        there, here, seen = js.run(body)
        assert len(js.page.workers) == 1
    assert there == here and seen == [0, 1]


def test_images_are_changed_by_their_seed(js: JsPage) -> None:
    flipped, again, all_of_it, plain = js.run(
        f"""{PIXELS}
        const read = async (augment) => fromTensor(await trainweb.readImage(canvas, {{ ...size, augment }}));
        const seeds = Array.from({{ length: 12 }}, (_, seed) => seed);
        const everything =
          {{ seed: 7, flip: true, rotate: 30, crop: 0.4, brightness: 0.2, contrast: 0.3, saturation: 0.5 }};
        return [
          await Promise.all(seeds.map((seed) => read({{ seed, flip: true }}))),
          await Promise.all(seeds.map((seed) => read({{ seed, flip: true }}))),
          [await read(everything), await read(everything), await read({{ ...everything, seed: 8 }})],
          await read({{ seed: 3 }}),
        ];"""
    )
    expected = np.moveaxis(IMAGE, -1, 0) / 255
    assert flipped == again
    np.testing.assert_allclose(from_json(plain), expected, atol=1e-6)
    for seed, one in enumerate(flipped):
        python = read_image(IMAGE, 4, 2, augment={"seed": seed, "flip": True})
        np.testing.assert_allclose(from_json(one), python, atol=1e-6)
    assert all_of_it[0] == all_of_it[1] != all_of_it[2]
    assert all(0 <= x <= 1 for x in all_of_it[0]["data"])


AUGMENTATIONS: list[dict[str, Any]] = [
    {"rotate": 40},
    {"crop": 0.6},
    {"brightness": 0.3, "contrast": 0.4, "saturation": 0.5},
    {"flip": True, "rotate": 25, "crop": 0.3, "brightness": 0.1, "contrast": 0.2, "saturation": 0.3},
]


@pytest.mark.parametrize("augment", AUGMENTATIONS, ids=["rotate", "crop", "colour", "all"])
def test_a_seed_changes_an_image_as_in_python(js: JsPage, augment: dict[str, Any]) -> None:
    """A smooth image, so that it matters little how it is resampled; the border is left out, where corners turn in."""
    y, x = np.mgrid[0:96, 0:128]
    image = np.stack([40 + x, 60 + y, 200 - (x + y) // 2], -1).astype(np.uint8)
    for seed in (1, 2, 2**40 + 5):
        options = {"width": 32, "height": 24, "layout": "HWC", "augment": {"seed": seed, **augment}}
        found = js.run(
            """const pixels = new ImageData(Uint8ClampedArray.from(rgba), 128, 96);
            return fromTensor(await trainweb.readImage(pixels, options));""",
            rgba=np.concatenate([image, np.full((96, 128, 1), 255, np.uint8)], -1).reshape(-1).tolist(),
            options=options,
        )
        python = read_image(image, **options)
        inner = (slice(8, 16), slice(11, 21))
        np.testing.assert_allclose(from_json(found)[inner], python[inner], atol=0.012)
        others = [read_image(image, **{**options, "augment": {**augment, "seed": k}})[inner] for k in range(10, 20)]
        assert max(np.abs(other - python[inner]).max() for other in others) > 0.05


def test_a_dataset_of_images_is_that_of_python(js: JsPage) -> None:
    """The order and the changes of three iterations, of the third drawn with other seeds, and all in order."""
    images = [np.full((2, 2, 3), 20 * k + 10, np.uint8) for k in range(10)]
    augment = {"seed": 4, "brightness": 0.4}
    found = js.run(
        """const images = Array.from({ length: 10 }, (_, k) =>
          new ImageData(Uint8ClampedArray.from({ length: 16 }, (_, i) => (i % 4 === 3 ? 255 : 20 * k + 10)), 2, 2));
        const columns = { y: BigInt64Array.from({ length: 10 }, (_, k) => BigInt(k)) };
        const options = { input: "x", columns, width: 2, height: 2 };
        const round = async (data) => {
          const rows = [];
          for await (const { x, y } of data) rows.push([Number(y.data[0]), fromTensor(x)]);
          return rows;
        };
        const data = trainweb.readImages(images, { ...options, seed: 2, augment });
        const other = trainweb.readImages(images, { ...options, seed: 2 ** 53 - 1, augment: { ...augment, seed: 1 } });
        const third = other.read({ epoch: 2, seed: 3, shuffles: true });
        const all = [data, data, data, third, other.read(null)];
        const found = [];
        for (const rows of all) found.push(await round(rows));
        return found;""",
        augment=augment,
    )
    assert found[2] == found[3]
    assert found[4] == [[k, found[4][k][1]] for k in range(10)]
    for k, (_, tensor) in enumerate(found[4]):
        np.testing.assert_allclose(from_json(tensor), (20 * k + 10) / 255, atol=1e-6)
    labels = np.arange(10)
    data = from_images(images, "x", columns={"y": labels}, width=2, height=2, seed=2, augment=augment)
    for round_ in found[:3]:
        rows = list(data)
        assert [y for y, _ in round_] == [int(row["y"]) for row in rows]
        for (_, tensor), row in zip(round_, rows, strict=True):
            np.testing.assert_allclose(from_json(tensor), row["x"], atol=1e-6)


def test_images_are_trained_on(js: JsPage) -> None:
    steps = js.run(
        """const s = await TrainingSession.createFromModel("/golden/mlp/base.onnx", {
          loss: "CrossEntropyLoss", optimizer: "AdamW",
        });
        const images = Array.from({ length: 12 }, (_, k) => new ImageData(10, 1));
        const options = { input: "x", width: 10, height: 1, channels: 1 };
        const columns = { labels: BigInt64Array.from(images, (_, k) => BigInt(k % 3)) };
        const flat = ({ x, labels }) => ({ x: x.reshape([10]), labels });
        const data = trainweb.readImages(images, { ...options, columns }).map(flat);
        const history = await s.fit(data, { batchSize: 4, epochs: 2 });
        await s.release();
        return history.losses.length;"""
    )
    assert steps == 6


WRONG = (
    ("new Blob(['no image'], { type: 'image/png' }), size", "FeedError", "the image (image/png) cannot be decoded"),
    ("'/nothing.png', size", "FeedError", "/nothing.png answered with HTTP status 404"),
    ("'nowhere://x', size", "FeedError", "image: nowhere://x could not be fetched"),
    ("{}, size", "FeedError", "an image must be a File, Blob, URL, camera or something to draw"),
    ("new ImageData(1, 1), { width: 0, height: 1 }", "ModelError", "width is 0; it must be an integer >= 1"),
    ("new ImageData(1, 1), { ...size, mean: [1] }", "ModelError", "it must be a number, or one for each channel"),
    ("new ImageData(1, 1), { ...size, std: 0 }", "ModelError", "std is 0; it must be a number other than 0"),
    ("new ImageData(1, 1), { ...size, augment: {} }", "ModelError", "augment needs the setting 'seed'"),
    ("new ImageData(1, 1), { ...size, agument: {} }", "TypeError", "did you mean 'augment'?"),
)


@pytest.mark.page_errors("404", "nowhere")
def test_what_is_no_image(browser: Browser, plain_site: Site) -> None:
    with open_js_page(browser, plain_site, ("404", "nowhere")) as js:
        for call, kind, said in WRONG:
            error = js.failure(f"const size = {{ width: 2, height: 2 }}; await trainweb.readImage({call});")
            assert error["class"] == kind and said in error["message"], call


def test_an_image_that_stalls_is_given_up(js: JsPage, make_site: Callable[..., Site]) -> None:
    """It keeps to `env.timeouts.stall`, as models do."""
    stalls = Reply(bytes(4000), sent=100, hangs=True)
    url = make_site().add_dynamic("/stalls", lambda: stalls)
    error = js.failure(
        """const { stall } = env.timeouts;
        env.timeouts.stall = 2000;
        await trainweb.readImage(url, { width: 2, height: 2 }).finally(() => { env.timeouts.stall = stall; });""",
        url=url,
    )
    said = f"image: {url} stalls: nothing came for 2 s after 100 bytes (env.timeouts.stall)."
    assert (error["class"], error["message"]) == ("FeedError", said)


def test_an_image_of_a_dataset_that_cannot_be_read_is_named(js: JsPage) -> None:
    error = js.failure(
        """const images = [new ImageData(1, 1), new File(["no image"], "note.txt")];
        const data = trainweb.readImages(images, { input: "x", width: 1, height: 1 });
        for await (const row of data) row;"""
    )
    assert error["class"] == "FeedError" and error["message"].startswith("image 1 (note.txt): the image")


def test_images_split_as_in_python(js: JsPage) -> None:
    """Rows and pixels of parts, by the last ones, by a seed and by class; and in a fit."""
    augment = {"seed": 4, "brightness": 0.4}
    labels = np.repeat([0, 1, 2], [5, 3, 2])
    rows, sizes, errors = js.run(
        """const sources = Array.from({ length: 10 }, (_, k) => {
          const pixels = new ImageData(1, 1);
          pixels.data.set([20 * k, 20 * k, 20 * k, 255]);
          return pixels;
        });
        const columns = { y: labels, half: labels.map((label) => label + 0.5) };
        const data =
          trainweb.readImages(sources, { input: "x", columns, width: 1, height: 1, channels: 1, seed: 2, augment });
        const told = async (part) => {
          const rows = [];
          for await (const row of part) rows.push([Number(row.y.data[0]), row.x.data[0]]);
          return rows;
        };
        const splits = [data.split(0.3), data.split(0.3, { seed: 1 }), data.split(0.4, { seed: 3, stratify: "y" })];
        const parts = [...splits.flat(), data.rows([4, 1]), splits[0][0].split(0.2)[1]];
        const rows = [];
        for (const part of parts) rows.push(await told(part));
        const errors = [];
        const classes = (stratify) => () => data.split(0.4, { stratify });
        for (const split of [classes("x"), classes("half"), () => data.map((row) => row).split(0.3)]) {
          errors.push((await failure(async () => split())).message);
        }
        const one = { input: "x", width: 1, height: 1 };
        errors.push((await failure(async () => trainweb.readImages("new/q.png", one))).message);
        return [rows, parts.map((part) => part.size), errors];""",
        labels=labels.tolist(),
        augment=augment,
    )
    sources = [np.full((1, 1, 3), 20 * k, np.uint8) for k in range(10)]
    options = {"width": 1, "height": 1, "channels": 1, "seed": 2, "augment": augment}
    data = from_images(sources, "x", columns={"y": labels}, **options)
    splits = [data.split(0.3), data.split(0.3, 1), data.split(0.4, 3, stratify="y")]
    parts = [*(part for pair in splits for part in pair), data.rows(np.array([4, 1])), splits[0][0].split(0.2)[1]]
    assert sizes == [len(part) for part in parts] == [7, 3, 7, 3, 6, 4, 2, 1]
    for found, part in zip(rows, parts, strict=True):
        expected = [[int(row["y"]), float(row["x"].item())] for row in part]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert [text.partition(";")[0].split()[-1] for text in errors[:2]] == ["'x'", "'half'"]
    assert "split before steps such as 'map'" in errors[2]
    assert "'images' must be a list of images, got a string" in errors[3]


def test_a_fit_splits_images_as_in_python(js: JsPage) -> None:
    """Each epoch validates on the same held-out share of each class."""
    levels = (np.arange(16)[:, None] * 37 + np.arange(144) * 11) % 256
    labels = np.arange(16) // 8
    found = js.run(
        """const sources = levels.map((row) => {
          const pixels = new ImageData(12, 12);
          row.forEach((level, k) => pixels.data.set([level, level, level, 255], 4 * k));
          return pixels;
        });
        const columns = { labels: new trainweb.Tensor("int64", BigInt64Array.from(labels, BigInt), [16]) };
        const images = trainweb.readImages(sources, { input: "image", columns, width: 12, height: 12, channels: 1 });
        const config = { loss: "CrossEntropyLoss", optimizer: "SGD", batchNorm: "train" };
        const s = await trainweb.TrainingSession.createFromModel("/golden/cnn/base.onnx", config);
        const history = await s.fit(images, { epochs: 2, validationSplit: 0.25, stratify: true });
        await s.release();
        return [images.size, history.losses, history.epochs.map(({ validation }) => validation.loss)];""",
        levels=levels.tolist(),
        labels=labels.tolist(),
    )
    pixels = [np.stack([row.reshape(12, 12)] * 3, -1).astype(np.uint8) for row in levels]
    images = from_images(pixels, "image", columns={"labels": labels}, width=12, height=12, channels=1)
    model = "tests/golden/cnn/base.onnx"
    with trainweb.TrainingSession.from_model(
        model, loss="CrossEntropyLoss", optimizer="SGD", batch_norm="train"
    ) as session:
        history = session.fit(images, epochs=2, validation_split=0.25, stratify=True, progress=False)
    assert found[0] == len(images) == 16
    np.testing.assert_allclose(found[1], history.losses, rtol=1e-5)
    validation = [epoch.validation["loss"] for epoch in history.epochs if epoch.validation is not None]
    np.testing.assert_allclose(found[2], validation, rtol=1e-5)
    assert (len(found[1]), len(found[2])) == (6, 2)
