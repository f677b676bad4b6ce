"""Splits by class in a page: the rows that Python takes, and its warning."""

from __future__ import annotations

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
        try {{ await s.fit(given, {{ validationSplit: 0.2 }}); }} finally {{ console.warn = before; }}
        await s.release();
        return warned;"""
    )
    (text,) = warned
    assert "The validation data has no row with 0, 1 as 'labels'" in text and "Give the option 'stratify'" in text
