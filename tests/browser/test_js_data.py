"""Files as data in a page: CSV as Python reads it, images against pixels that are computed here."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from trainweb.data import from_csv
from trainweb.errors import FeedError

from .js_session import JsPage, from_json, open_js_page
from .server import Site


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page


TEXT = '\ufeffa,b,kind,"n\nm"\n1,2.5,cat,1\n\n-3,4e1,dog,0\r\n5,".5", cat ,true\n'
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (TEXT, {"x": ["b", "a"], "y": "kind"}, {"classes": {"y": ["dog", "cat"]}}),
    (TEXT, {"x": "n\nm", "y": "a"}, {"dtypes": {"x": "bool", "y": "int64"}}),
    ("a;b\n1;2\n", {"x": "a", "y": ["b"]}, {"delimiter": ";", "dtypes": {"x": "uint8", "y": "float64"}}),
    ("a\n1\nx\n", {"x": "a"}, {}),
    ("a\n1\n\n\n", {"x": "b"}, {}),
    ("a,b\n1,2\n3\n", {"x": "a"}, {}),
    ('a,b\n"1\n",2\n3,\n', {"x": "b"}, {}),
    ("a\n1.5\n", {"x": "a"}, {"dtypes": {"x": "int64"}}),
    ("a\n300\n", {"x": "a"}, {"dtypes": {"x": "uint8"}}),
    ("a\n2\n", {"x": "a"}, {"dtypes": {"x": "bool"}}),
    ("a\ncow\n", {"x": "a"}, {"classes": {"x": ["cat"]}}),
    ("a\n", {"x": "a"}, {}),
    ("", {"x": "a"}, {}),
    ("a\n1\n", {"x": "a"}, {"dtypes": {"y": "int64"}}),
    ("a\n1\n", {"x": "a"}, {"dtypes": {"x": "float16"}}),
]


@pytest.mark.parametrize(("text", "columns", "options"), CASES, ids=[str(k) for k in range(len(CASES))])
def test_a_csv_file_is_what_python_reads(js: JsPage, text: str, columns: Any, options: Any) -> None:
    given = f"new Blob([{json.dumps(text)}]), {json.dumps(columns)}, {json.dumps(options)}"
    try:
        expected = from_csv(io.StringIO(text.removeprefix("\ufeff"), newline=""), columns, **options).columns
    except FeedError as error:
        found = js.failure(f"await trainweb.readCsv({given});")
        assert (found["name"], found["message"], found["class"]) == ("FeedError", str(error), "FeedError")
        return
    assert expected is not None
    found = js.run(f"return mapValues(await trainweb.readCsv({given}), fromTensor);")
    assert list(found) == list(expected)
    for name, tensor in found.items():
        assert tensor["type"] == str(expected[name].dtype)
        np.testing.assert_array_equal(from_json(tensor), expected[name])


def test_rows_of_a_csv_file_are_trained_on(js: JsPage) -> None:
    text = "label," + ",".join(f"f{k}" for k in range(10)) + "\n"
    text += "".join(f"{i % 3}," + ",".join(str((i * k) % 5 - 2) for k in range(10)) + "\n" for i in range(24))
    steps = js.run(
        f"""const s = await TrainingSession.createFromModel("/golden/mlp/base.onnx", {{
          loss: "CrossEntropyLoss", optimizer: "AdamW",
        }});
        const columns = {{ x: Array.from({{ length: 10 }}, (_, k) => `f${{k}}`), labels: "label" }};
        const data = await trainweb.readCsv({json.dumps(text)}, columns, {{ dtypes: {{ labels: "int64" }} }});
        const history = await s.fit(data, {{ batchSize: 8, epochs: 2 }});
        await s.release();
        return history.losses.length;"""
    )
    assert steps == 6


PIXELS = """
    const pixels = new ImageData(4, 2);
    pixels.data.forEach((_, k) => { pixels.data[k] = k % 4 === 3 ? 255 : (k * 29) % 256; });
    const canvas = new OffscreenCanvas(4, 2);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
"""
IMAGE = (np.arange(32) * 29 % 256).reshape(2, 4, 4)[:, :, :3]


def test_an_image_is_its_pixels(js: JsPage) -> None:
    found = js.run(
        f"""{PIXELS}
        const size = {{ width: 4, height: 2 }};
        const blob = await canvas.convertToBlob();
        const url = URL.createObjectURL(blob);
        const sources = [pixels, canvas, blob, new File([blob], "a.png"), url, await createImageBitmap(blob)];
        const plain = await Promise.all(sources.map((source) => trainweb.readImage(source, size)));
        const norm = {{ mean: [0.1, 0.2, 0.3], std: [0.5, 0.25, 2], layout: "HWC" }};
        const others = [
          await trainweb.readImage(canvas, {{ ...size, ...norm }}),
          await trainweb.readImage(canvas, {{ ...size, channels: 1 }}),
          await trainweb.readImage(canvas, {{ width: 2, height: 2, resize: "cover" }}),
        ];
        return [plain.map(fromTensor), others.map(fromTensor)];"""
    )
    plain, others = found
    expected = np.moveaxis(IMAGE, -1, 0) / 255
    for tensor in plain:
        np.testing.assert_allclose(from_json(tensor), expected, atol=1e-6)
    normal = (IMAGE / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 2]
    np.testing.assert_allclose(from_json(others[0]), normal, atol=1e-5)
    np.testing.assert_allclose(from_json(others[1]), (IMAGE / 255 @ [0.299, 0.587, 0.114])[None], atol=1e-6)
    np.testing.assert_allclose(from_json(others[2]), expected[:, :, 1:3], atol=1e-6)


def test_images_are_changed_by_their_seed(js: JsPage) -> None:
    flipped, again, all_of_it, plain = js.run(
        f"""{PIXELS}
        const size = {{ width: 4, height: 2 }};
        const read = async (augment) => fromTensor(await trainweb.readImage(canvas, {{ ...size, augment }}));
        const seeds = Array.from({{ length: 12 }}, (_, seed) => seed);
        const everything = {{ seed: 7, flip: true, rotate: 30, crop: 0.4, brightness: 0.2, contrast: 0.3 }};
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
    kinds = [np.allclose(from_json(one), expected, atol=1e-6) for one in flipped]
    assert 0 < sum(kinds) < 12
    for is_plain, one in zip(kinds, flipped, strict=True):
        if not is_plain:
            np.testing.assert_allclose(from_json(one), expected[:, :, ::-1], atol=1e-6)
    assert all_of_it[0] == all_of_it[1] != all_of_it[2]
    assert all(0 <= x <= 1 for x in all_of_it[0]["data"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("new Blob(['no image'], { type: 'image/png' }), size", "the image (image/png) cannot be decoded"),
        ("'/nothing.png', size", "the image /nothing.png was answered with HTTP status 404"),
        ("{}, size", "an image must be a File, Blob, URL or something to draw, with pixels; got Object"),
        ("new ImageData(1, 1), { width: 0, height: 1 }", "'width' is 0; it must be an integer >= 1"),
        ("new ImageData(1, 1), { ...size, mean: [1] }", "'mean' is 1; it must be a number, or one for each channel"),
    ],
)
@pytest.mark.page_errors("404")
def test_what_is_no_image(browser: Browser, plain_site: Site, call: str, said: str) -> None:
    with open_js_page(browser, plain_site, ("404",)) as js:
        error = js.failure(f"const size = {{ width: 2, height: 2 }}; await trainweb.readImage({call});")
    assert error["class"] == "FeedError" and said in error["message"]
