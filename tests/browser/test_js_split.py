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
        }} finally {{ console.warn = before; }}
        await s.release();
        return warned;"""
    )
    assert len(warned) == 2
    for text in warned:
        assert "The validation data has no row with 0, 1 as 'labels'" in text and "Give the option 'stratify'" in text


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
