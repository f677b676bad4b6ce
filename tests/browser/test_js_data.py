"""Files as data in a page: CSV and folders as Python reads them, and what IndexedDB has."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from trainweb.data import Dataset, from_csv, list_folder
from trainweb.errors import FeedError, TrainwebError

from .js_session import JsPage, from_json, open_js_page
from .server import Site


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page


TEXT = '\ufeffa,b,kind,"n\nm"\n1,2.5,cat,1\n\n-3,4e1,dog,0\r\n5,".5", cat ,true\n'
GAPS = "n,m,k\n1,2,NA\n,3,b\n4, nan ,b\n5,6,\n7,?,NA\n"
GAPS_COLUMNS = {"x": ["n", "m"], "y": "k"}
GAPS_OPTIONS: dict[str, Any] = {"dtypes": {"x": "float64"}, "classes": {"y": ["NA", "b"]}}
GAPS_MISSING: tuple[Any, ...] = (
    "error",
    "drop",
    {"n": -1, "m": 0.5, "k": "b"},
    {"n": -1, "m": 0.5},
    {"n": -1, "m": 0.5, "k": "c"},
    {"z": 1},
)
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
    ("a\n1\n", {"x": "a"}, {"classes": {"y": ["cat"]}}),
    ("a\n1\nnan\n", {"x": "a"}, {}),
    ("a\n1_0\n", {"x": "a"}, {"dtypes": {"x": "int64"}}),
    ("a\n-1e39\n", {"x": "a"}, {}),
    ("a\n1e309\n", {"x": "a"}, {"dtypes": {"x": "float64"}}),
    ("a\n3.4028235e38\n", {"x": "a"}, {}),
    ('a,b\n"1\n",2\n3,"x\n4,y\n', {"x": "a"}, {}),
    ('a,b\r\n"1","2"\r\n1,"2"3\n', {"x": "a"}, {}),
    ('a,b\n1,2\n"3\n4","5\n', {"x": "a"}, {}),
    ('a,b\n1,"say ""3"", 4"\n2,5"6\n', {"x": "a"}, {}),
    ('a\n""\n\n1\n', {"x": "a"}, {"classes": {"x": ["", "1"]}}),
    ('a\n"1\r\n', {"x": "a"}, {}),
    ('a\n"1', {"x": "a"}, {}),
    ('a\n"1"""\n2', {"x": "a"}, {}),
    ("a,b,a\n1,2,3\n", {"x": "a"}, {}),
    (f"a\n{'0' * 4299}7\n", {"x": "a"}, {"dtypes": {"x": "int64"}}),
    (f"a\n-{'0' * 4300}7\n", {"x": "a"}, {"dtypes": {"x": "int64"}}),
    *((GAPS, GAPS_COLUMNS, GAPS_OPTIONS | {"missing": missing}) for missing in GAPS_MISSING),
    (GAPS, GAPS_COLUMNS, {"classes": {"y": ["", "NA", "b"]}, "missing": "drop"}),
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
    found = js.run(f"return mapValues(Object.fromEntries((await trainweb.readCsv({given})).columns), fromTensor);")
    assert list(found) == list(expected)
    for name, tensor in found.items():
        assert tensor["type"] == str(expected[name].dtype)
        np.testing.assert_array_equal(from_json(tensor), expected[name])


DELIMITERS = ",;|\t \\]^-d.*$"


def random_files(count: int) -> list[tuple[str, str]]:
    """Texts of few characters, where quotes and ends of lines meet, and what is between their values."""
    draw = random.Random(21)
    letters = [(d, [d, d, '"', '"', '""', "\n", "\r\n", "\r", "1", "22", "a"]) for d in DELIMITERS]
    picked = [draw.choice(letters) for _ in range(count)]
    return [("a" + d + "b\n" + "".join(draw.choices(parts, k=draw.randrange(12))), d) for d, parts in picked]


def test_any_text_is_what_python_reads(js: JsPage) -> None:
    """By `csv` of Python: rows and lines, and which quotes are wrong."""
    files = random_files(600)
    found = js.run(
        """
        const classes = { x: ["", "1", "22", "a"] };
        return Promise.all(files.map(([text, delimiter]) =>
          trainweb.readCsv(text, { x: ["a", "b"] }, { delimiter, classes })
            .then(({ columns }) => Array.from(columns.get("x").data, Number), String)));""",
        files=files,
    )
    outcomes = set()
    for (text, delimiter), one in zip(files, found, strict=True):
        try:
            names = {"x": ["", "1", "22", "a"]}
            data = from_csv(io.StringIO(text, newline=""), {"x": ["a", "b"]}, delimiter=delimiter, classes=names)
            assert data.columns is not None
            expected: Any = data.columns["x"].reshape(-1).tolist()
        except FeedError as error:
            expected = f"FeedError: {error}"
        assert one == expected, (text, delimiter)
        outcomes.add(expected.split()[-1] if isinstance(expected, str) else "read")
    assert len(outcomes) >= 4


def test_long_values_and_many_columns_take_no_time(js: JsPage) -> None:
    """A quadratic algorithm took minutes here."""
    found = js.run(
        """
        const messages = [];
        const tell = async (...given) => messages.push(await trainweb.readCsv(...given).then(() => "read", String));
        await tell(`a\\n${"1".repeat(2e6)}x\\n`, { x: "a" });
        await tell(`a\\n${"1".repeat(2e6)}x\\n`, { x: "a" }, { dtypes: { x: "int64" } });
        await tell(`a\\n${"1".repeat(2e6)}\\n`, { x: "a" }, { dtypes: { x: "int64" } });
        const names = Array.from({ length: 1e6 }, (_, k) => `c${k}`);
        const text = `${names.join()}\\n${names.map(() => 1).join()}\\n`;
        await tell(text, { x: names.slice(-20000) });
        await tell(text, { x: "d" });
        const many = names.slice(0, 1e5);
        await tell(`a\\n${many.join("\\n")}\\n`, { x: "a" }, { classes: { x: many } });
        return messages;"""
    )
    quoted = "1" * 499
    assert found == [
        f"FeedError: Line 2, column 'a': '{quoted}... (2000003 characters) is not a valid float32.",
        f"FeedError: Line 2, column 'a': '{quoted}... (2000003 characters) is not a valid int64.",
        f"FeedError: Line 2, column 'a': '{quoted}... (2000002 characters) is not a valid int64.",
        "read",
        found[4],
        "read",
    ]
    assert found[4].startswith("FeedError: The file has no column 'd'; it has c0, c1,")
    assert found[4].endswith("... (8888888 characters).") and len(found[4]) < 700


def test_a_name_is_not_taken_for_a_text(js: JsPage) -> None:
    error = js.failure("await trainweb.readCsv('wine.csv', { x: 'alcohol' });")
    assert error["name"] == "FeedError" and "'source' is text of one line, 'wine.csv'" in error["message"]
    assert "If it is a path or URL, give its contents" in error["message"]


TABLE = """
height,weight,colour,size,kind
1.5,10,red,3,😀
2.25,0,blue,1,ﬁ
0.1,3.3,re,3,b
7,-4,green,2,ﬁ
"""
TABLE_COLUMNS = {"numbers": ["height", "weight"], "colour": "colour", "size": "size", "labels": "kind"}
TABLE_DTYPES = {"colour": "string", "size": "int64", "labels": "string"}


def test_a_table_is_preprocessed_as_in_python(js: JsPage) -> None:
    """Fitted numbers agree to the bit, and go through JSON in both directions."""
    source = io.StringIO(TABLE.lstrip(), newline="")
    rows = Dataset.from_csv(source, TABLE_COLUMNS, dtypes=TABLE_DTYPES)
    fitted = rows.standardize("numbers").one_hot("colour", "size").categories("labels")
    fitted = fitted.concat("x", ["numbers", "colour", "size"])
    found = js.run(
        """
        const rows = await trainweb.Dataset.fromCsv(text, columns, { dtypes });
        const parts = ["numbers", "colour", "size"];
        const fitted = rows.standardize("numbers").oneHot("colour", "size").categories("labels").concat("x", parts);
        const told = ({ columns }) => mapValues(Object.fromEntries(columns), fromTensor);
        const [first, second] = rows.split(0.5, { seed: 3 });
        return {
          steps: JSON.parse(JSON.stringify(fitted.preprocessing)), columns: told(fitted),
          again: told(second.preprocess(steps)),
          twice: told(fitted.preprocess(steps)),
          kept: fitted.take(2).map((row) => row).preprocessing.length, text: first.columns.get("colour").data,
        };""",
        text=TABLE.lstrip(),
        columns=TABLE_COLUMNS,
        dtypes=TABLE_DTYPES,
        steps=json.loads(json.dumps(fitted.preprocessing)),
    )
    first, second = rows.split(0.5, seed=3)
    again = second.preprocess(found["steps"]).columns
    assert found["steps"] == fitted.preprocessing and found["kept"] == 5
    assert first.columns is not None and found["text"] == first.columns["colour"].tolist()
    for key, expected in (("columns", fitted.columns), ("again", again), ("twice", fitted.columns)):
        made = found[key]
        assert expected is not None and list(made) == list(expected)
        for name, tensor in made.items():
            assert tensor["type"] == str(expected[name].dtype)
            assert from_json(tensor).tobytes() == expected[name].tobytes()
            assert from_json(tensor).shape == expected[name].shape


def test_gaps_are_filled_as_in_python(js: JsPage) -> None:
    text = "a,b,c\n1,0.1,7\n,0.7,3\n4,NA,\n2.5,0.4,?\n"
    columns = {"x": ["a", "b"], "y": "c"}
    rows = Dataset.from_csv(io.StringIO(text, newline=""), columns, dtypes={"y": "float64"}, missing="keep")
    filled = rows.fill_mean("x").fill_median("y")
    found = js.run(
        """
        const rows = await trainweb.readCsv(text, columns, { dtypes: { y: "float64" }, missing: "keep" });
        const filled = rows.fillMean("x").fillMedian("y");
        const told = ({ columns }) => mapValues(Object.fromEntries(columns), fromTensor);
        const steps = JSON.parse(JSON.stringify(filled.preprocessing));
        return { steps, columns: told(filled), again: told(rows.preprocess(steps)) };""",
        text=text,
        columns=columns,
    )
    assert found["steps"] == filled.preprocessing and filled.columns is not None
    for made in (found["columns"], found["again"]):
        assert {name: from_json(tensor).tobytes() for name, tensor in made.items()} == {
            name: array.tobytes() for name, array in filled.columns.items()
        }


def test_rows_that_are_asked_later_take_the_types_of_the_fitted_rows(js: JsPage) -> None:
    rows = Dataset.from_csv(io.StringIO(TABLE.lstrip(), newline=""), TABLE_COLUMNS, dtypes=TABLE_DTYPES)
    made = rows.fill_mean("numbers").standardize("numbers").one_hot("size", "colour")
    made = made.concat("x", ["numbers", "size", "colour"])
    asked = {"numbers": np.array([[2, 3]], np.float32), "size": np.array([1]), "colour": np.array(["blue"])}
    expected = Dataset(asked).preprocess(made.preprocessing).columns
    assert expected is not None
    found = js.run(
        """
        const colour = new Tensor("string", ["blue"], [1]);
        const asked = [
          { numbers: [[2, 3]], size: [1], colour },
          { numbers: new Tensor("float64", Float64Array.of(2, 3), [1, 2]), size: Int32Array.of(1), colour },
          { numbers: new Tensor("int64", [2n, 3n], [1, 2]), size: [1n], colour },
        ];
        const old = steps.map(({ dtype, ...step }) => step);
        return [
          ...asked.map((rows) => fromTensor(new Dataset(rows).preprocess(steps).columns.get("x"))),
          fromTensor(new Dataset({ ...asked[0], size: [1n] }).preprocess(old).columns.get("x")),
        ];""",
        steps=json.loads(json.dumps(made.preprocessing)),
    )
    assert len(found) == 4
    step = js.failure("new Dataset({ x: [1] }).preprocess([{ type: 'concat', input: 'x', parts: ['x'], dtype: 3 }]);")
    assert step["name"] == "ModelError"
    for tensor in found:
        assert tensor["type"] == "float32" and from_json(tensor).tobytes() == expected["x"].tobytes()


PREPROCESSING_FAULTS = (
    ('rows.fillMean("size")', lambda rows: rows.fill_mean("size")),
    (
        'new trainweb.Dataset({ numbers: [[NaN], [NaN]] }).fillMedian("numbers")',
        lambda rows: Dataset({"numbers": np.full((2, 1), np.nan)}).fill_median("numbers"),
    ),
    ('rows.standardize("colour")', lambda rows: rows.standardize("colour")),
    ('rows.oneHot("numbers")', lambda rows: rows.one_hot("numbers")),
    ('rows.categories("size")', lambda rows: rows.categories("size")),
    ('rows.standardize("width")', lambda rows: rows.standardize("width")),
    ('rows.concat("x", ["numbers", "size"])', lambda rows: rows.concat("x", ["numbers", "size"])),
    ('rows.concat("size", ["numbers"])', lambda rows: rows.concat("size", ["numbers"])),
    ("rows.map((row) => row).preprocess([])", lambda rows: rows.map(lambda row: row).preprocess([])),
    (
        'rows.preprocess(rows.take(1).oneHot("colour").preprocessing)',
        lambda rows: rows.preprocess(rows.take(1).one_hot("colour").preprocessing),
    ),
    (
        'rows.preprocess([{ type: "standardize", input: "numbers", mean: [1], std: [1] }])',
        lambda rows: rows.preprocess([{"type": "standardize", "input": "numbers", "mean": [1], "std": [1]}]),
    ),
)


def test_streams_are_filtered_and_cut_as_in_python(js: JsPage) -> None:
    """Whether the function is async or not; what was cut off is not made."""
    found = js.run(
        """
        let made = 0;
        const rows = new Dataset(function* () { for (let k = 0; k < 50; k++) { made++; yield { k }; } });
        const found = [];
        const few = rows.filter(({ k }) => k % 3 === 0).filter(async ({ k }) => k > 4).take(4);
        for await (const { k } of few) found.push(k);
        return [found, made];"""
    )
    made = []

    def rows() -> Iterator[dict[str, int]]:
        for k in range(50):
            made.append(k)
            yield {"k": k}

    data = Dataset(rows).filter(lambda row: row["k"] % 3 == 0).filter(lambda row: row["k"] > 4).take(4)
    assert found == [[row["k"] for row in data], len(made)]
    assert found == [[6, 9, 12, 15], 16]


def test_faults_of_preprocessing_are_named_as_in_python(js: JsPage) -> None:
    rows = Dataset.from_csv(io.StringIO(TABLE.lstrip(), newline=""), TABLE_COLUMNS, dtypes=TABLE_DTYPES)
    options = json.dumps({"dtypes": TABLE_DTYPES})
    made = f"{json.dumps(TABLE.lstrip())}, {json.dumps(TABLE_COLUMNS)}, {options}"
    for page, native in PREPROCESSING_FAULTS:
        with pytest.raises(TrainwebError) as caught:
            native(rows)
        found = js.failure(f"const rows = await trainweb.readCsv({made}); {page};")
        assert (found["name"], found["message"]) == (type(caught.value).__name__, str(caught.value)), page


def test_what_is_no_csv_file_or_setting(js: JsPage) -> None:
    found = [
        js.failure(f"await trainweb.readCsv({given});")
        for given in (
            '"a\\n1\\n", { x: "a" }, { delimiter: ";;" }',
            '"a\\n1\\n", { x: "a" }, { classes: { x: "ab" } }',
            '"a\\n1\\n", 3',
            '"a\\n1\\n", { x: 3 }',
            '"a\\n1\\n", { x: [] }',
            'new Blob([new Uint8Array([97, 10, 0xe4])]), { x: "a" }',
            'new Response("a,b", { status: 404 }), { x: "a" }',
        )
    ]
    assert [(e["name"], e["message"]) for e in found] == [
        ("ModelError", "delimiter is ';;'; it must be one character, and neither a quote nor the end of a line."),
        ("TypeError", "'classes['x']' must be an array of strings, got a string."),
        ("TypeError", "'columns' must be an object, got a number."),
        ("TypeError", "'columns['x']' must be an array of strings, got a number."),
        ("ModelError", "columns['x'] is []; it must be a column, or several."),
        ("FeedError", "the file is not a text in UTF-8: save it as such."),
        ("FeedError", "the file was answered with HTTP status 404."),
    ]


def test_rows_of_a_csv_file_are_trained_on(js: JsPage) -> None:
    text = "label," + ",".join(f"f{k}" for k in range(10)) + "\n"
    text += "".join(f"{i % 3}," + ",".join(str((i * k) % 5 - 2) for k in range(10)) + "\n" for i in range(24))
    steps = js.run(
        f"""const s = await TrainingSession.createFromModel("/golden/mlp/base.onnx", {{
          loss: "CrossEntropyLoss", optimizer: "AdamW",
        }});
        const columns = {{ x: Array.from({{ length: 10 }}, (_, k) => `f${{k}}`), labels: "label" }};
        const rows = await trainweb.readCsv({json.dumps(text)}, columns, {{ dtypes: {{ labels: "int64" }} }});
        const data = rows.standardize("x");
        const history = await s.fit(data, {{ batchSize: 8, epochs: 2 }});
        await s.addProperty("preprocessing", JSON.stringify(data.preprocessing));
        const kept = JSON.parse(await s.getProperty("preprocessing"));
        const asked = new trainweb.Dataset({{ x: rows.columns.get("x") }}).preprocess(kept);
        const [one, other] = [await s.predict(asked), await s.predict({{ x: data.columns.get("x") }})];
        const isSame = Object.keys(one).every((name) => String(one[name].data) === String(other[name].data));
        await s.release();
        return [history.losses.length, isSame, Object.keys(one).length];"""
    )
    assert steps == [6, True, 1]


FOLDER = (
    "dog/b.png",
    "dog/a.png",
    "cat/far/z.png",
    "cat/a.png",
    "dog/.hidden",
    ".git/x",
    "cat/\U0001f600",
    "cat/\uffee",
)


def test_a_folder_is_what_python_lists(js: JsPage, tmp_path: Path) -> None:
    """Of the browser's private files, and of an input for folders."""
    for name in FOLDER:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    files, labels, classes = list_folder(tmp_path)
    expected = [[path.read_text() for path in files], labels.tolist(), classes]
    tell = """const told = async ({ files, labels, classes }) =>
      [await Promise.all(files.map((file) => file.text())), [...labels].map(Number), classes];"""
    found = js.run(
        tell
        + """
        const root = await (await navigator.storage.getDirectory()).getDirectoryHandle("photographs", { create: true });
        for (const name of names) {
          let folder = root;
          const parts = name.split("/");
          for (const part of parts.slice(0, -1)) folder = await folder.getDirectoryHandle(part, { create: true });
          const writable = await (await folder.getFileHandle(parts.at(-1), { create: true })).createWritable();
          await writable.write(name);
          await writable.close();
        }
        return told(await trainweb.listFolder(root));""",
        names=FOLDER,
    )
    assert found == expected
    js.run("document.body.innerHTML = '<input type=file id=folder webkitdirectory>';")
    js.page.set_input_files("#folder", tmp_path)
    given = 'document.querySelector("#folder").files'
    assert js.run(f"{tell} return told(await trainweb.listFolder({given}));") == expected
    reverse = js.run(f"{tell} return told(await trainweb.listFolder({given}, {{ classes: ['dog', 'cat'] }}));")
    assert reverse[1:] == [list_folder(tmp_path, ["dog", "cat"])[1].tolist(), ["dog", "cat"]]
    for names in (["cat"], ["cat", "dog", "cow"]):
        with pytest.raises(FeedError) as raised:
            list_folder(tmp_path, names)
        error = js.failure(f"await trainweb.listFolder({given}, {{ classes: {json.dumps(names)} }});")
        assert (error["class"], error["message"]) == ("FeedError", str(raised.value))
    lost = js.failure("await trainweb.listFolder([new File([], 'note.txt')]);")
    assert "The file 'note.txt' lies outside of the class folders" in lost["message"]


STORE = """
  const database = await new Promise((resolve, reject) => {
    const request = indexedDB.open("readings");
    request.onupgradeneeded = () => request.result.createObjectStore("rows");
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  await new Promise((resolve) => {
    const transaction = database.transaction("rows", "readwrite");
    for (let k = 0; k < 600; k++) {
      transaction.objectStore("rows").put({ x: Float32Array.of(k, -k), labels: BigInt(k) }, 2 * k);
    }
    transaction.oncomplete = resolve;
  });
  database.close();
"""


def test_rows_of_indexed_db(js: JsPage) -> None:
    """More than one chunk of them, in the order of the keys, as often as is asked."""
    found = js.run(
        STORE
        + """
        const data = new Dataset(() => trainweb.readObjectStore({ database: "readings", store: "rows" }));
        const rounds = [];
        for (let round = 0; round < 2; round++) {
          const batches = [];
          for await (const { x, labels } of data.batch(100)) batches.push([[...x.data], [...labels.data].map(Number)]);
          rounds.push(batches);
        }
        return rounds;"""
    )
    expected = [
        [[x for k in range(start, start + 100) for x in (k, -k)], list(range(start, start + 100))]
        for start in range(0, 600, 100)
    ]
    assert found == [expected, expected]
    for name, said in (
        ("none", "there is no database 'none'"),
        ("readings", "has no object store 'other'; it has rows"),
    ):
        source = json.dumps({"database": name, "store": "other"})
        error = js.failure(f"for await (const row of trainweb.readObjectStore({source})) row;")
        assert error["class"] == "FeedError" and said in error["message"]
    assert js.run("return (await indexedDB.databases()).map(({ name }) => name).includes('none');") is False


def test_buckets_pad_what_they_are_told_to(js: JsPage) -> None:
    found = js.run(
        """const side = Float32Array.of(1, 2, 3);
        const rows = [2, 3, 4].map((n) => ({ ids: new BigInt64Array(n).fill(1n), side }));
        const data = new trainweb.Dataset(rows);
        const bucket = (options) => data.bucket(({ ids }) => ids.length, [5], 3, options);
        const made = [];
        for await (const batch of bucket({ padded: ["ids"] })) made.push(mapValues(batch, fromTensor));
        const errors = [];
        for (const options of [{ padded: ["side"] }, { padded: ["ids", "id"] }, { padded: "ids" }, { pad: [] }]) {
          errors.push(await failure(async () => { for await (const batch of bucket(options)) void batch; }));
        }
        return [made, errors.map(({ name, message }) => [name, message.slice(0, 46)])];"""
    )
    ((made,), errors) = found
    assert from_json(made["ids"]).tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    assert from_json(made["side"]).tolist() == [[1, 2, 3]] * 3
    assert errors == [
        ["FeedError", "'side' of a row of length 2 is float32[3]: the"],
        ["FeedError", "'id' of a row of length 2 is missing: the firs"],
        ["ModelError", "padded is 'ids'; it must be an array of names."],
        ["TypeError", "The option of bucket 'pad' is not known; did y"],
    ]
