"""Splits by class in a page: the rows that Python takes, and its warning."""

from .js_session import JsPage
from .test_js_fit import OPEN


def test_a_split_that_lacks_a_class_warns(js: JsPage) -> None:
    warned = js.run(
        f"""{OPEN}
        const s = await open();
        const given = data();
        given.labels.data.sort();
        const warned = [];
        const before = console.warn;
        console.warn = (text) => warned.push(text);
        const labels = [...given.labels.data];
        const rowOf = (label, k) => ({{ x: given.x.data.slice(10 * k, 10 * k + 10), labels: label }});
        const [training, validationData] = new Dataset(labels.map(rowOf)).split(0.2);
        try {{
          await s.fit(given, {{ validationSplit: 0.2 }});
          await s.fit(training, {{ validationData }});
          await s.fit(data(), {{ validationData: data(2) }});
        }} finally {{ console.warn = before; }}
        await s.release();
        return warned;"""
    )
    split, given, also_given = warned
    assert "The validation data has no row with 0, 1 as 'labels'" in split and "Give the option 'stratify'" in split
    assert "has no row with 0, 1 as 'labels'. Number classes alike, and split with 'stratify'." in given
    assert "The validation data has no row with 2 as 'labels'. Number classes alike" in also_given


def test_labels_that_count_other_classes_are_refused(js: JsPage) -> None:
    """Folders that are listed one by one: the folder val lacks dog, and so its fox would be the training's dog."""
    errors, warned, fine = js.run(
        f"""{OPEN}
        const canvas = new OffscreenCanvas(10, 1);
        canvas.getContext("2d");
        const blob = await canvas.convertToBlob();
        const at = (value) => Object.defineProperty(new File([blob], "a.png"), "webkitRelativePath", {{ value }});
        const filesOf = (name) => [at(`all/${{name}}/a.png`), at(`all/${{name}}/b.png`)];
        const listed = (names, options) => trainweb.listFolder(names.flatMap(filesOf), options);
        const pictures = ({{ files, labels }}) => trainweb.readImages(files, {{
          input: "x", columns: {{ labels }}, width: 10, height: 1, channels: 1,
        }});
        const flat = (rows) => rows.map(({{ x, ...others }}) => ({{ ...others, x: x.reshape([10]) }}));
        const train = pictures(await listed(["cat", "dog", "fox"]));
        const wrong = flat(pictures(await listed(["cat", "fox"])));
        const fewer = flat(pictures(await listed(["cat", "dog"])));
        const warned = [];
        const before = console.warn;
        console.warn = (text) => warned.push(text);
        const right = await listed(["cat", "fox"], {{ classes: ["cow", "cat", "dog", "fox"] }});
        const s = await open();
        const errors = [await failure(() => s.fit(flat(train), {{ validationData: wrong }}))];
        await s.fit(flat(train.split(0.34)[0]), {{ epochs: 1, validationData: fewer }});
        errors.push(await failure(() => s.evaluate(wrong)));
        const {{ logits }} = await s.predict(wrong);
        const names = await failure(() => s.evaluate(flat(pictures(right))));
        await s.evaluate(data());
        console.warn = before;
        await s.release();
        return [errors.map(({{ name, message }}) => `${{name}}: ${{message}}`), warned,
          [logits.dims[0], [...right.labels].map(Number), right.classes, names.message]];"""
    )
    said = "FeedError: 1 is 'fox' in 'labels' of the {} rows, and 'dog' in the training rows. List a folder with the"
    assert [error.startswith(said.format(of)) for error, of in zip(errors, ("validation", "given"), strict=True)] == [
        True,
        True,
    ]
    told = [text for text in warned if "has no row with" not in text]
    assert told == ["trainweb: These classes have no pictures in the folder: cow, dog."]
    assert fine[:3] == [4, [1, 1, 3, 3], ["cow", "cat", "dog", "fox"]]
    assert fine[3].startswith("0 is 'cow' in 'labels' of the given rows, and 'cat' in the training rows.")


def test_further_columns_are_not_read(js: JsPage) -> None:
    """Of arrays, data sets and rows, with one notice a session; where a column is missing, an error names it."""
    losses, warned, missing = js.run(
        f"""{OPEN}
        const all = () => ({{
          ...data(), id: new Tensor("int64", new BigInt64Array(rows), [rows]),
          source: new Tensor("string", new Array(rows).fill("a"), [rows]),
        }});
        const warned = [];
        const before = console.warn;
        console.warn = (text) => warned.push(text);
        const losses = [];
        let missing = "";
        try {{
          const tagged = () => new Dataset(all()).map((row) => ({{ ...row, tags: ["a"] }}));
          const forms = [data, all, () => new Dataset(all()), tagged];
          for (const form of forms) {{
            const s = await open();
            losses.push((await s.fit(form(), {{ batchSize: 8, shuffle: false }})).losses);
            await s.fit(form());
            await s.evaluate(form());
            await s.predict(form());
            await s.release();
          }}
          const s = await open();
          const {{ labels, source, ...others }} = all();
          missing = (await failure(() => s.fit(others))).message;
          await s.release();
        }} finally {{ console.warn = before; }}
        return [losses, warned, missing];"""
    )
    assert losses[1:] == losses[:1] * 3
    notice = "trainweb: These columns of the data are not read: id, source"
    assert [text.partition(".")[0] for text in warned] == [notice, notice, f"{notice}, tags"]
    assert "The data has no 'labels'; it has x, id" in missing


def test_a_metric_that_is_no_number_is_told_once(js: JsPage) -> None:
    """Also among several; where early stopping waits for it, an error ends the fit (`WRONG_LATER`)."""
    said: list[str] = []
    js.page.on("console", lambda message: said.append(message.text))
    js.run(
        f"""{OPEN}
        const s = await open();
        const validationData = {{ ...data(), labels: new Tensor("int64", new BigInt64Array(rows), [rows]) }};
        await s.fit(data(), {{ epochs: 2, validationData, metrics: ["accuracy", "auc"] }});
        for (const given of [validationData, data(), validationData]) await s.evaluate(given, {{ metrics: "auc" }});
        await s.release();"""
    )
    assert [text.partition(" It needs")[0] for text in said if "It needs" in text] == [
        f"trainweb: The metric 'auc' of the {source} is NaN." for source in ("validation data", "data")
    ]


def test_a_nan_among_rows_that_are_evaluated_is_named_once(js: JsPage) -> None:
    said: list[str] = []
    js.page.on("console", lambda message: said.append(message.text))
    js.run(
        f"""{OPEN}
        const s = await open();
        const holed = data();
        for (const row of [5, 6, 9]) holed.x.data[row * 10 + 3] = NaN;
        await s.fit(data(), {{ epochs: 2, validationData: holed, batchSize: 2 }});
        for (const given of [data(), holed, holed]) await s.evaluate(given, {{ batchSize: 2 }});
        await s.release();"""
    )
    assert [text.partition(" Fill NaN")[0] for text in said if "Fill NaN" in text] == [
        f"trainweb: The loss is nan. 'x' has nan in row 5 of the {source}." for source in ("validation data", "data")
    ]
