"""Files as data in a page: CSV and folders as Python reads them, and what IndexedDB has."""

import datetime
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.datasets import DATASETS, outcome
from tests.each import run_each

from trainweb.data import from_csv, list_folder
from trainweb.data.images import ENDINGS
from trainweb.errors import FeedError
from trainweb.spelling import ARGUMENT

from .js_session import JsPage


def test_data_sets_are_those_of_python(js: JsPage) -> None:
    """Rows, bytes, fitted numbers, and the words of errors."""
    body = """const { outcomes } = await import("/tests/datasets.mjs"); return outcomes(chains);"""
    found = js.run(body, chains=[chain for _, chain, _ in DATASETS])

    def check(number: int) -> None:
        with ARGUMENT.spelled_for_a_page():
            expected = outcome(DATASETS[number][1])
        np.testing.assert_equal(found[number], expected)

    run_each(range(len(DATASETS)), check, lambda number: DATASETS[number][0])


def test_dates_are_days_and_missing_values_nan(js: JsPage) -> None:
    """A missing text or bigint is an error, and so is a value of another kind; it names the row."""
    found = js.run(
        """const day = Date.UTC(2024, 1, 29);
        const h = [[null], [new Date(1.5 * 864e5)], [new Date(0)]];
        const given = { d: [new Date(day), null, new Date("")], h, b: [null, true, false] };
        const { columns } = new trainweb.Dataset(given);
        const [[row]] = [await Array.fromAsync(new trainweb.Dataset([{ d: new Date(day) }]).batch(1))];
        return [...columns.values(), row.d].map(({ type, dims, data }) => [type, dims, [...data].map(String)]);"""
    )
    days = datetime.date(2024, 2, 29).toordinal() - datetime.date(1970, 1, 1).toordinal()
    assert found == [
        ["float64", [3], [str(days), "NaN", "NaN"]],
        ["float64", [3, 1], ["NaN", "1.5", "0"]],
        ["float32", [3], ["NaN", "1", "0"]],
        ["float64", [1], [str(days)]],
    ]
    for values, row, actual, expected in (
        ("[40, '3000', 4]", 1, "a string", "a number"),
        ("[['40', '1'], ['3000', 4]]", 1, "a number", "a string"),
        ("[null, 'b']", 0, "null", "a string"),
        ("[1n, null]", 1, "null", "a bigint"),
        ("[1, 2, new Date()]", 2, "Date", "a number"),
        ("[{}, true]", 0, "Object", "a boolean"),
        ("[undefined]", 0, "undefined", "a number"),
    ):
        said = js.failure(f"new trainweb.Dataset({{ d: {values} }});")["message"]
        assert said.startswith(f"Row {row} of 'd' has {actual}, expected {expected}. A column has only"), values


def test_what_a_page_is_told_of_buckets(js: JsPage) -> None:
    errors = [
        js.failure(f"new trainweb.Dataset([]).bucket(() => 1, [5], 3, {{ {options} }});")
        for options in ("padded: 'ids'", "pad: []")
    ]
    assert [(error["name"], error["message"][:44]) for error in errors] == [
        ("ModelError", "padded is 'ids'; it must be an array of names."[:44]),
        ("TypeError", "The option of bucket 'pad' is not known; did"),
    ]


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
    no_number = f"FeedError: Line 2, column 'a': '{quoted}... (2000003 characters) is no number. Give a column of text"
    assert [text[: len(no_number)] for text in found[:2]] == [no_number] * 2
    assert found[2:] == [
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


def test_what_is_cut_off_is_not_made(js: JsPage) -> None:
    made = js.run(
        """
        let made = 0;
        const rows = new Dataset(function* () { for (let k = 0; k < 50; k++) { made++; yield { k }; } });
        for await (const row of rows.filter(({ k }) => k % 3 === 0).filter(async ({ k }) => k > 4).take(4)) void row;
        return made;"""
    )
    assert made == 16


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
            '"a\\n1\\n", { x: "a" }, { sep: ";" }',
            'Promise.resolve(new Response("a")), { x: "a" }',
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
        ("TypeError", "The option of readCsv 'sep' is not known; did you mean 'delimiter'?"),
        ("TypeError", "'source' must be awaited: await fetch(url), got Promise."),
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
    "Thumbs.db",
    "cat/note.txt",
    "cat/b.",
    *(f"cat/a.{ending.upper()}" for ending in ENDINGS.split("|")),
    "cat/\U0001f600",
    "cat/\uffee",
)


def test_a_list_of_rows_has_a_size_and_a_stream_has_none(js: JsPage) -> None:
    found = js.run(
        """const rows = new Dataset(Array.from({ length: 10 }, (_, x) => ({ x })));
        const parts = rows.split(0.3);
        const streams = [rows.map((row) => row), rows.batch(2), new Dataset(() => [{ x: 1 }])];
        return [rows, new Dataset([]), ...parts, ...streams].map(({ size }) => size);"""
    )
    assert found == [10, 0, 7, 3, None, None, None]


def test_a_folder_is_what_python_lists(js: JsPage, tmp_path: Path) -> None:
    """Of the browser's private files, and of an input for folders."""
    for name in FOLDER:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    notice = "left out; there are 5, such as .git/x, Thumbs.db, cat/b.."
    with pytest.warns(UserWarning, match=re.escape(notice)):
        files, labels, classes = list_folder(tmp_path)
    lines: list[str] = []
    js.page.on("console", lambda message: lines.append(message.text))
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
        await root.getDirectoryHandle("ant", { create: true });
        return told(await trainweb.listFolder(root));""",
        names=FOLDER,
    )
    assert found == expected
    assert [line for line in lines if "left out" in line] == [f"trainweb: Files not named as pictures are {notice}"]
    assert any("Folders without pictures are no classes: ant" in line for line in lines)
    js.run("document.body.innerHTML = '<input type=file id=folder webkitdirectory>';")
    js.page.set_input_files("#folder", tmp_path)
    for name in FOLDER:
        if tmp_path / name not in files:
            (tmp_path / name).unlink()
    given = 'document.querySelector("#folder").files'
    assert js.run(f"{tell} return told(await trainweb.listFolder({given}));") == expected
    reverse = js.run(f"{tell} return told(await trainweb.listFolder({given}, {{ classes: ['dog', 'cat'] }}));")
    assert reverse[1:] == [list_folder(tmp_path, ["dog", "cat"])[1].tolist(), ["dog", "cat"]]
    with pytest.raises(FeedError) as raised:
        list_folder(tmp_path, ["cat"])
    error = js.failure(f"await trainweb.listFolder({given}, {{ classes: ['cat'] }});")
    assert (error["class"], error["message"]) == ("FeedError", str(raised.value))
    classes = ["cow", "dog", "cat", "ant"]
    with pytest.warns(UserWarning, match="^These classes have no pictures in the folder: cow, ant.$"):
        labels = list_folder(tmp_path, classes)[1]
    given_classes = js.run(f"{tell} return told(await trainweb.listFolder({given}, {{ classes }}));", classes=classes)
    assert given_classes[1:] == [labels.tolist(), classes]
    assert lines[-1] == "trainweb: These classes have no pictures in the folder: cow, ant."
    js.run(
        "await trainweb.listFolder(files.map((path) => Object.defineProperty("
        "new File([], path), 'webkitRelativePath', { value: 'all/' + path })));",
        files=["cat/a.png", "cow/Thumbs.db"],
    )
    assert any("Folders without pictures are no classes: cow" in line for line in lines)
    parts = js.failure(
        "await trainweb.listFolder(files.map((path) => Object.defineProperty("
        "new File([], path), 'webkitRelativePath', { value: 'all/' + path })));",
        files=["train/cat/1.png", "Val/dog/1.png", "cow/1.png", "dev/1.png"],
    )
    said = "Folders named as parts of the data are no classes: Val, train. The classes are the folders in them, such as"
    assert parts["message"].startswith(said)
    for nothing in ("undefined", "'photographs'", "5"):
        error = js.failure(f"await trainweb.listFolder({nothing});")
        assert error["name"] == "ModelError" and "it must be a folder, as of showDirectoryPicker" in error["message"]
    assert "There are no pictures" in js.failure("await trainweb.listFolder([]);")["message"]
    lost = js.failure("await trainweb.listFolder([new File([], 'note.png')]);")
    assert "The file 'note.png' lies outside of the class folders" in lost["message"]


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
