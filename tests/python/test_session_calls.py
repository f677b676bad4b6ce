"""The list of calls and the table of messages: what they say is what there is."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import trainweb
from trainweb import errors, messages
from trainweb.training.calls import CALLS
from trainweb.training.core import SessionCore

ROOT = Path(__file__).parent.parent.parent
FIELDS = re.compile(r"\{(\w+)(?:!r)?\}")


def test_typescript_has_the_calls_and_messages_of_now() -> None:
    script = ROOT / "scripts" / "session_description.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_python_has_every_call_with_its_arguments() -> None:
    for call in CALLS:
        if call.in_python:
            found = inspect.signature(getattr(SessionCore, call.name))
            assert list(found.parameters)[1:] == list(call.arguments), call.name


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
    web = "\n".join(p.read_text() for p in (ROOT / "web" / "src").rglob("*.ts") if p.name != "session-calls.ts")
    for name, message in messages.table().items():
        fields = set(FIELDS.findall(message.text))
        assert raised.get(name, fields) == fields, name
        used = name in raised or f"messages.{name}" in (source / "training" / "host.py").read_text()
        assert used or f'"{name}"' in web, f"nobody raises {name}"


def test_messages_are_errors_of_their_class() -> None:
    error = messages.FEED_DIM(name="x", index=1, actual=3, expected=4)
    assert isinstance(error, errors.FeedError)
    assert str(error).endswith("index: 1 Got: 3 Expected: 4")
