"""Build steps that remember what they did.

A step names its inputs (files, folders, strings) and its outputs. After it ran, a stamp under
`.build/stamps/` keeps a hash of the inputs' contents and one of the outputs'; the step is skipped
while both are the same. No time stamps: a fresh clone, a touch or a branch switch that changes
nothing costs nothing. An output that was edited by hand is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build"
STAMPS = BUILD / "stamps"
DIST = ROOT / "dist"
VENV = ROOT / ".venv"
PROGRAMS = "Scripts" if os.name == "nt" else "bin"
"""Folder of a virtual environment's programs."""
PYTHON = VENV / PROGRAMS / ("python.exe" if os.name == "nt" else "python")
LOCKS = ROOT / "scripts" / "requirements"

IGNORED_PARTS = {"__pycache__", "node_modules", ".pytest_cache", ".zig-cache", "zig-cache"}


class BuildError(Exception):
    """Something the build needs could not be had; the message says what and why."""


@dataclass(frozen=True)
class Step:
    """One build step: `action` runs when `inputs` changed, or an output changed or is missing."""

    name: str
    action: Callable[[], object]
    inputs: Sequence[Path | str] = ()
    outputs: Sequence[Path] = ()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for child in sorted(path.iterdir()):
            if child.name not in IGNORED_PARTS and not child.name.endswith(".pyc"):
                yield from _files(child)


def content_hash(inputs: Iterable[Path | str], exclude: Sequence[Path] = ()) -> str:
    """SHA-256 over the names and contents of files and folders, and over plain strings."""
    digest = hashlib.sha256()
    for item in inputs:
        if isinstance(item, str):
            digest.update(b"s" + item.encode() + b"\0")
            continue
        for file in _files(item):
            if any(file == out or out in file.parents for out in exclude):
                continue
            digest.update(b"f" + str(file.relative_to(ROOT)).encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def run_step(step: Step) -> None:
    """Run `step` unless its stamp says that nothing changed since it last succeeded."""
    stamp = STAMPS / step.name
    inputs = content_hash(step.inputs, exclude=step.outputs)
    if stamp.is_file() and stamp.read_text() == f"{inputs} {content_hash(step.outputs)}":
        say(f"{step.name}: up to date")
        return
    stamp.unlink(missing_ok=True)
    say(f"{step.name} ...")
    start = time.monotonic()
    step.action()
    missing = [str(output.relative_to(ROOT)) for output in step.outputs if not output.exists()]
    if missing:
        raise BuildError(f"step {step.name} ended well but did not write {', '.join(missing)}")
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(f"{inputs} {content_hash(step.outputs)}")
    say(f"{step.name}: done in {time.monotonic() - start:.1f} s")


def say(message: str) -> None:
    """Print one line of progress."""
    print(f"==> {message}", flush=True)


def environment() -> dict[str, str]:
    """The environment of every command: the venv first, caches inside the checkout."""
    env = dict(os.environ)
    env["PATH"] = f"{VENV / PROGRAMS}{os.pathsep}{env.get('PATH', '')}"
    env["VIRTUAL_ENV"] = str(VENV)
    env["ZIG_GLOBAL_CACHE_DIR"] = str(BUILD / "zig-cache")
    env["ZIG_LOCAL_CACHE_DIR"] = str(BUILD / "zig-cache")
    env.setdefault("SOURCE_DATE_EPOCH", "1767225600")  # 2026-01-01: archives come out reproducible
    env.pop("PYTHONHOME", None)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # each Python that a test starts would compile all modules anew
    return env


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command; a failure becomes a BuildError that names it."""
    words = [str(word) for word in command]
    # Windows finds npm.cmd only by its whole name.
    words[0] = shutil.which(words[0], path=environment()["PATH"]) or words[0]
    sys.stdout.flush()
    try:
        done = subprocess.run(words, cwd=cwd, env={**environment(), **(env or {})}, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{words[0]} is not installed (needed for: {' '.join(words)})") from error
    if done.returncode != 0:
        raise BuildError(f"exit status {done.returncode} from: {' '.join(words)}")


def locked(name: str) -> tuple[str | Path, ...]:
    """Arguments of pip for the packages of scripts/requirements/NAME.txt, each with a hash that its file must have."""
    return ("--require-hashes", "--requirement", LOCKS / f"{name}.txt")


def make_environment(folder: Path, name: str, python: str = sys.executable) -> Path:
    """Make a virtual environment with the packages of scripts/requirements/NAME.txt; its interpreter."""
    run(python, "-m", "venv", "--clear", folder)
    interpreter = folder / "bin" / "python"
    run(interpreter, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *locked(name))
    return interpreter


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, *, waits: bool) -> None:
        """Lock the first byte of a file until it is closed. LK_LOCK gives up after ten tries, one a second."""
        while True:
            with contextlib.suppress(*([OSError] if waits else [])):
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)
                return

else:
    import fcntl

    def _lock(descriptor: int, *, waits: bool) -> None:
        """Lock a file until it is closed."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


@contextlib.contextmanager
def build_lock() -> Iterator[None]:
    """One build at a time in a checkout: a second one waits for the first."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as handle:
        try:
            _lock(handle.fileno(), waits=False)
        except OSError:
            say("another build runs in this checkout; waiting for it")
            _lock(handle.fileno(), waits=True)
        yield
