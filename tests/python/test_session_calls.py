"""The list of calls and the table of messages: what they say is what there is."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import trainweb
from trainweb import TrainingSession, errors, messages
from trainweb.training import calls
from trainweb.training.core import SessionCore

ROOT = Path(__file__).parent.parent.parent
FIELDS = re.compile(r"\{(\w+)(?:!r)?\}")


@pytest.fixture
def descriptions(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import call_description

    return call_description


def test_comments_of_a_page_name_settings_as_it_does() -> None:
    """Their texts come from Python, where they are spelt another way."""
    for file in (ROOT / "web" / "src" / "page" / "settings").glob("*.ts"):
        comments = " ".join(re.findall(r"/\*\* (?!Made by)(.*?) \*/", file.read_text()))
        spelt = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", comments)) - {"as_exported"}
        assert not spelt, f"{file.name}: {sorted(spelt)}"


def scratch(**arguments: Any) -> Any:
    return calls.Call("get_scratch", "A number.", (calls.PARAMETER,), calls.COUNT, held=calls.NOT_HELD, **arguments)


def test_a_call_that_the_core_of_python_lacks_is_named(descriptions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert descriptions.core_faults() == []
    monkeypatch.setattr(descriptions, "CALLS", (*calls.CALLS, scratch()))
    assert descriptions.core_faults() == ["SessionCore (training/core.py) has no get_scratch(name)"]
    monkeypatch.setattr(SessionCore, "get_scratch", lambda self, word: 0, raising=False)
    assert descriptions.core_faults() == ["SessionCore.get_scratch takes ['word'], training/calls.py says ['name']"]
    monkeypatch.setattr(descriptions, "CALLS", (*calls.CALLS, scratch(python=calls.Public.NO_CORE)))
    assert descriptions.core_faults() == []


def test_public_classes_have_every_call_that_is_public() -> None:
    page = (ROOT / "web" / "src" / "page" / "session-methods.ts").read_text()
    for call in calls.CALLS:
        is_public = call.python in (calls.Public.FORWARD, calls.Public.BY_HAND)
        assert hasattr(TrainingSession, call.name) == is_public, call.name
        if call.python is calls.Public.FORWARD:
            method = getattr(TrainingSession, call.name)
            found = inspect.signature(method).parameters.values()
            wanted = [(a.name, a.default) for a in call.arguments if not a.page_only]
            got = [(p.name, calls.REQUIRED if p.default is p.empty else p.default) for p in found]
            assert got[1:] == wanted, call.name
            for text in (call.does, call.returns, *call.raises.values(), *(a.does for a in call.arguments)):
                assert "".join(text.removesuffix(".").split()) in "".join(method.__doc__.split()), call.name
        name = call.page_name or re.sub(r"_([a-z])", lambda m: m[1].upper(), call.name)
        assert bool(re.search(rf"  async {name}[(<]", page)) == (call.page is calls.Public.FORWARD), name


def test_calls_by_hand_do_not_repeat_generated_ones() -> None:
    """A method of the same name in the class would hide the generated one."""
    own = {name for name in vars(TrainingSession) if not name.startswith("_")}
    assert {c.name for c in calls.CALLS if c.python is calls.Public.FORWARD} & own == set()


def test_every_message_is_raised_with_its_fields() -> None:
    """A name that nobody raises, or a field that is not given, would be found out by a user."""
    raised: dict[str, set[str]] = {}
    source = Path(trainweb.__file__).parent
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Name) and owner.id == "messages":
                    given = {k.arg for k in node.keywords if k.arg}
                    if all(k.arg for k in node.keywords):
                        raised[node.func.attr] = given
    web = "\n".join(p.read_text() for p in (ROOT / "web" / "src").rglob("*.ts") if p.name != "message-texts.ts")
    for name, message in messages.table().items():
        fields = set(FIELDS.findall(message.text))
        assert raised.get(name, fields) == fields, name
        used = name in raised or f"messages.{name}" in (source / "backend" / "wasm" / "host.py").read_text()
        assert used or f'"{name}"' in web, f"nobody raises {name}"


def test_each_message_has_a_name_of_its_own() -> None:
    texts = [(ROOT / "py_src" / "trainweb" / name).read_text() for name in ("messages.py", "web_messages.py")]
    names = [
        target.id
        for s in ast.parse("\n".join(texts).replace("from __future__ import annotations", "")).body
        if isinstance(s, ast.Assign)
        for target in s.targets
        if isinstance(target, ast.Name)
    ]
    assert sorted(names) == sorted(set(names))


def test_messages_are_errors_of_their_class() -> None:
    error = messages.FEED_DIM(name="x", index=1, actual=3, expected=4)
    assert isinstance(error, errors.FeedError)
    assert str(error).endswith("index: 1 Got: 3 Expected: 4")
