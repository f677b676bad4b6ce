"""Changed checkpoints in a page: the errors of Python but for names of options, and a session as it was before."""

import base64
import re

import pytest
from tests.conformance.fits import camel, data, opened, snake
from tests.conformance.hostile_checkpoints import FEW_VALUES, LITERALS, Hostile, hostile
from tests.python.test_hostile_store import OPTIONS, written

import trainweb
from trainweb.errors import CheckpointError, ModelError
from trainweb.fit import Trainer

from .js_session import JsPage
from .test_js_store import STORE

IN_PAGE = {name: value for name, value in camel(OPTIONS).items() if name != "progress"}
AT_ONCE = 100
"""Files that one call sends to the page."""
LEAST = {"fit": 600, "load": 250}
"""Changes that the table makes at least."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> trainweb.CheckpointStore:
    return trainweb.CheckpointStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def cases(store: trainweb.CheckpointStore) -> list[Hostile]:
    """Changes of the checkpoint of a fit that was killed in its third epoch."""
    return list(hostile(written(store, opened("mlp", {}), data(20).columns), FEW_VALUES))


def in_python(store: trainweb.CheckpointStore, cases: list[Hostile], by: str) -> list[list[str]]:
    """Class and text of each error natively."""
    found = []
    with opened("mlp", {}) as s:
        for case in cases:
            store._write("run", case.data)
            with pytest.raises((CheckpointError, ModelError)) as caught:
                if by == "fit":
                    Trainer(s).fit(data(20).columns, checkpoint={"store": store, "name": "run"}, **OPTIONS)
                else:
                    store.load(s, "run")
            found.append([type(caught.value).__name__, str(caught.value).split("\n")[0]])
    return found


def refused_cases(cases: list[Hostile], by: str) -> list[Hostile]:
    """What a call refuses. A fit reads the session's part as `load` does: every fifth of its changes."""
    of_session = [case for case in cases if case.of_session and not case.is_valid]
    if by == "load":
        return of_session
    return [case for case in cases if not (case.of_session or case.is_valid)] + of_session[::5]


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("by", ["load", "fit"])
def test_every_change_is_found_before_anything_is_written(
    js: JsPage, store: trainweb.CheckpointStore, cases: list[Hostile], by: str, stride: int
) -> None:
    """Every second change in the suite; each field has several."""
    refused = refused_cases(cases, by)[::stride]
    assert stride * len(refused) > LEAST[by]
    wrong = []
    for at in range(0, len(refused), AT_ONCE):
        some = refused[at : at + AT_ONCE]
        found, is_same = js.run(
            f"""{STORE}
            const s = await open();
            if (by === "load") {{
              await s.runTrainStep(data(4));
              await s.addProperty("mine", 1);
            }}
            const everything = async () => {{
              await store.save(s, "now");
              return base64(await (await store.read("now")).arrayBuffer());
            }};
            const before = await everything();
            const found = [];
            for (const file of files) {{
              await store.write("hostile", Uint8Array.from(atob(file), (c) => c.charCodeAt(0)));
              let error = {{ name: "", message: "accepted" }};
              try {{
                const checkpoint = {{ store, name: "hostile" }};
                await (by === "fit" ? s.fit(data(20), {{ ...options, checkpoint }}) : store.load(s, "hostile"));
              }} catch (caught) {{
                error = caught;
              }}
              found.push([error.name, error.message.split("\\n")[0]]);
            }}
            const isSame = (await everything()) === before;
            await s.release();
            return [found, isSame];""",
            files=[base64.b64encode(case.data).decode() for case in some],
            by=by,
            options=IN_PAGE,
        )
        assert is_same, f"one of {some[0].name} ... {some[-1].name} left something in the session"
        expected = in_python(store, some, by)
        for case, (name, text), (js_name, js_text) in zip(some, expected, found, strict=True):
            # Python reads no integer of so many digits.
            text = js_text if case.name.endswith(f"literal {len(LITERALS) - 1}") else text.replace("'run'", "'hostile'")
            if [js_name, snake(js_text)] != [name, re.sub(r"\bNone\b", "null", snake(text))]:
                wrong.append(f"{case.name}: {js_name} {js_text}\n    {name} {text}")
    assert not wrong, "\n".join(wrong)


def test_what_a_fit_may_have_left_is_taken(js: JsPage, cases: list[Hostile]) -> None:
    valid = [case for case in cases if case.is_valid][::3]
    found = js.run(
        f"""{STORE}
        const s = await open();
        const found = [];
        for (const file of files) {{
          await store.write("valid", Uint8Array.from(atob(file), (c) => c.charCodeAt(0)));
          const history = await s.fit(data(20), {{ ...options, checkpoint: {{ store, name: "valid" }} }});
          found.push(history.ended);
        }}
        await s.release();
        return found;""",
        files=[base64.b64encode(case.data).decode() for case in valid],
        options=IN_PAGE,
    )
    assert {case.name for case, ended in zip(valid, found, strict=True) if ended not in ("done", "early")} == set()
