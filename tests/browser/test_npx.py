"""The commands of `npx trainweb` that are those of the Python package, beside the Python package's own."""

import contextlib
import io
import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.python.test_quantize import network
from tests.python.test_safetensors_beside import NAME, WEIGHT, file_of, graph_of

from trainweb.cli import main
from trainweb.lora.quantize import quantize

from .conftest import require_built
from .server import ROOT

TIMEOUT_S = 200
SCRIPT = ROOT / json.loads((ROOT / "package.json").read_text())["bin"]["trainweb"]
MODEL = ROOT / "docs" / "first.onnx"
FEEDS = ("--feed", "points=float32[8,2]", "--feed", "labels=int64[8]")


def npx(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command of the package, as npm puts it on the path."""
    require_built(SCRIPT)
    return subprocess.run(
        ["node", SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def in_python(*arguments: str) -> str:
    """The same command of the Python package: what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(arguments) == 0
    return printed.getvalue()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_artifacts_and_bundles_are_those_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With relative paths and absolute ones; an independent interpreter and machine code give the same bytes."""
    loss = ("--loss", "CrossEntropyLoss", "--optimizer", "Lion", "--freeze", "hidden\\..*", "--output-name", "logits")
    mine, theirs = tmp_path / "node", tmp_path / "python"
    for folder in (mine, theirs):
        folder.mkdir()
        (folder / "first.onnx").write_bytes(MODEL.read_bytes())
    monkeypatch.chdir(theirs)
    for words in (
        ("artifacts", "first.onnx", *loss, "-o", "made"),
        ("compile", "made", *FEEDS, "--metric", "accuracy", "-o", "deep/first.bundle"),
    ):
        done = npx(*words, cwd=mine)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.replace(str(mine), "") == in_python(*words).replace(str(theirs), "")
    for folder in ("made", "deep"):
        assert files(mine / folder) == files(theirs / folder)
    for file in (MODEL, mine / "made" / "training_model.onnx", mine / "made" / "checkpoint"):
        done = npx("inspect", str(file))
        assert (done.returncode, done.stdout) == (0, in_python("inspect", str(file)))


def test_quantized_files_are_those_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(network(turned=True, gemm=True)[0].SerializeToString())
    done = npx("quantize", "model.onnx", "--bits", "8", "--all", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    written = (tmp_path / "model.q8.onnx").read_bytes()
    monkeypatch.chdir(tmp_path)
    assert done.stdout == in_python("quantize", "model.onnx", "--bits", "8", "--all")
    assert written == (tmp_path / "model.q8.onnx").read_bytes()
    (tmp_path / "graph.onnx").write_bytes(graph_of())
    (tmp_path / "graph.safetensors").write_bytes(file_of({NAME: WEIGHT}))
    words = ("quantize", "graph.onnx", "--all", "--weights", "graph.safetensors", "-o", "made.onnx")
    done = npx(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "made.onnx").read_bytes() == quantize(graph_of(), only_frozen=False, weights="graph.safetensors")


def test_check_is_that_of_python() -> None:
    words = ("check", str(MODEL), "--loss", "CrossEntropyLoss", "--code", "javascript")
    done = npx(*words)
    assert (done.returncode, done.stdout) == (0, in_python(*words))
    steps = npx(*words[:-2], "--steps", "20").stdout.splitlines()[-1]
    (of_python,) = in_python(*words[:-2], "--steps", "20").splitlines()[-1:]
    losses = [[float(loss) for loss in re.findall(r"\d\.\d{4}", line)] for line in (steps, of_python)]
    assert len(losses[0]) == 2 and losses[0] == pytest.approx(losses[1], abs=2e-4)


def test_faults_have_the_status_and_the_words_of_python(tmp_path: Path) -> None:
    done = npx("artifacts", str(MODEL), "-o", str(tmp_path / "made"))
    assert done.returncode == 1 and not (tmp_path / "made").exists()
    assert done.stderr.startswith("trainweb artifacts: ValueError: ") and "Name it with --loss." in done.stderr
    done = npx("inspect", "missing.onnx", cwd=tmp_path)
    assert done.returncode == 1 and "FileNotFoundError" in done.stderr and "missing.onnx" in done.stderr
    done = npx("compile", "--feed")
    assert done.returncode == 2 and done.stderr.startswith("usage: trainweb compile")
    done = npx("check", "--help")
    assert done.returncode == 0 and "--loss-output NAME" in done.stdout


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("C:\\models\\a.onnx", "/C:/models/a.onnx"),
        (".\\a.onnx", "./a.onnx"),
        ("there\\a.onnx", "there/a.onnx"),
        ("fc1\\.weight", "fc1\\.weight"),
        ("--loss", "--loss"),
    ],
)
def test_paths_of_windows_are_those_of_pyodide(word: str, wanted: str) -> None:
    """The function alone: nothing else of it runs on another system."""
    code = (
        "import { build } from 'esbuild';"
        "const { outputFiles: [{ text }] } = await build({ entryPoints: ['web/src/node/paths.ts'], bundle: true,"
        " format: 'esm', write: false });"
        "const { posixPath } = await import(`data:text/javascript,${encodeURIComponent(text)}`);"
        f"console.log(posixPath({json.dumps(word)}, (path) => path.startsWith('there')));"
    )
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == wanted
