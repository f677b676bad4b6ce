"""The build's memory of what is done, and the packages it makes."""

import hashlib
import itertools
import json
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import build
import lock_requirements
import pytest
import session_description
import steps

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "wasm_kernels"))  # behind scripts/, which has a module "build" too

import generate  # noqa: E402


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the checkout."""
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    monkeypatch.setattr(steps, "STAMPS", tmp_path / ".build" / "stamps")
    return tmp_path


def counted_step(checkout: Path, runs: list[str]) -> steps.Step:
    """A step that upper-cases in.txt into out.txt and counts its runs."""
    source, target = checkout / "source", checkout / "out.txt"

    def action() -> None:
        runs.append("run")
        target.write_text((source / "in.txt").read_text().upper())

    return steps.Step("upper", action, inputs=[source, "version 1"], outputs=[target])


def test_a_step_runs_again_only_when_contents_or_outputs_changed(checkout: Path) -> None:
    runs: list[str] = []
    source = checkout / "source"
    source.mkdir()
    (source / "in.txt").write_text("a")
    step = counted_step(checkout, runs)
    steps.run_step(step)
    steps.run_step(step)
    (source / "in.txt").touch()
    steps.run_step(step)
    assert len(runs) == 1
    (source / "in.txt").write_text("b")
    steps.run_step(step)
    assert (checkout / "out.txt").read_text() == "B"
    (checkout / "out.txt").unlink()
    steps.run_step(step)
    (source / "new.txt").write_text("")
    steps.run_step(step)
    assert len(runs) == 4
    (checkout / "out.txt").write_text("by hand")
    steps.run_step(step)
    assert (checkout / "out.txt").read_text() == "B"
    steps.run_step(step)
    assert len(runs) == 5


def test_steps_name_the_sources_that_they_write() -> None:
    """An edited one is written again, and the wheel has those in Python although git ignores them."""
    targets = session_description.TARGETS
    described = {p.parent if p.parent == session_description.SETTINGS else p for p in targets}
    assert described == set(build.MADE_OF_DECLARATIONS)
    by_kernels = generate.generated_sources(ROOT / "wasm_kernels" / "kernels.def")
    assert {ROOT / path for path in by_kernels} == set(build.MADE_OF_KERNELS)
    made = {path.relative_to(ROOT).as_posix() + "/" * path.is_dir() for path in described} | set(map(str, by_kernels))
    ignored = set((ROOT / ".gitignore").read_text().splitlines())
    assert made - ignored == {str(generate.CALLS)}
    with (ROOT / "pyproject.toml").open("rb") as handle:
        packed = tomllib.load(handle)["tool"]["hatch"]["build"]["artifacts"]
    assert {path for path in made & ignored if path.startswith("py_src")} <= set(packed)


def test_a_step_that_fails_or_writes_nothing_is_not_done(checkout: Path) -> None:
    def fail() -> None:
        raise steps.BuildError("no compiler")

    failing = steps.Step("failing", fail)
    for _ in range(2):
        with pytest.raises(steps.BuildError, match="no compiler"):
            steps.run_step(failing)
    with pytest.raises(steps.BuildError, match=r"did not write out\.txt"):
        steps.run_step(steps.Step("idle", lambda: None, outputs=[checkout / "out.txt"]))


def test_failed_and_missing_commands_are_named() -> None:
    with pytest.raises(steps.BuildError, match=r"exit status 3 from: .* raise SystemExit"):
        steps.run(sys.executable, "-c", "raise SystemExit(3)")
    with pytest.raises(steps.BuildError, match="no-such-command is not installed"):
        steps.run("no-such-command")


def test_every_requirement_is_pinned() -> None:
    assert all("==" in line for line in build.requirements())
    assert build.requirements("ziglang") == [line for line in build.requirements() if line.startswith("ziglang==")]


@pytest.mark.parametrize("name", lock_requirements.SETS)
def test_every_package_that_is_installed_has_a_hash(name: str) -> None:
    """A file each, of what is pinned; `python scripts/lock_requirements.py` writes them anew."""
    lines = (steps.LOCKS / f"{name}.txt").read_text().replace("\\\n", " ").splitlines()
    locked = {line.split()[0]: line.split("--hash=")[1:] for line in lines}
    assert all(hashes for hashes in locked.values())
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", found) for hashes in locked.values() for found in hashes)
    pinned, _, _ = lock_requirements.SETS[name]
    assert {re.sub(r"\[\w+\]|_", lambda m: "-" if m[0] == "_" else "", line) for line in pinned} <= set(locked)


def test_another_pyodide_than_ours_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tarball = tmp_path / f"pyodide-{build.pyodide_dist.VERSION}.tgz"
    tarball.write_bytes(b"something else")
    monkeypatch.setattr(build.pyodide_dist, "CACHE", tmp_path)
    with pytest.raises(steps.BuildError, match=r"from npm has the hash sha512-.*; expected sha512-"):
        dist = build.pyodide_dist
        dist.unpack_runtime(dist.VERSION, dist.INTEGRITY, dist.RUNTIME, tmp_path)
    assert not tarball.exists()


def test_wheel_is_pure_and_has_what_the_page_needs() -> None:
    wheel = build.wheel_path()
    if not wheel.is_file():
        pytest.fail(f"not built: dist/{wheel.name}; run ./build.sh", pytrace=False)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(info).decode()
        tags = archive.read(info.replace("METADATA", "WHEEL")).decode()
    wanted = {f"trainweb/backend/wasm/engine/{name}" for name in build.KERNELS}
    wanted |= {"trainweb/backend/wasm/engine/engine.js", "trainweb/model/onnx_schema.bin", "trainweb/py.typed"}
    assert wanted <= names
    assert "Root-Is-Purelib: true" in tags and "Tag: py3-none-any" in tags
    assert not [name for name in names if "__pycache__" in name or "test" in name]
    for line in ("License-Expression: MIT", "Requires-Python: >=3.11", "Requires-Dist: protobuf>=6.31"):
        assert line in metadata


def test_dependencies_of_the_wheel_are_those_the_build_downloads() -> None:
    with (ROOT / "pyproject.toml").open("rb") as handle:
        project = tomllib.load(handle)["project"]
    names = {line.split(">=")[0] for line in project["dependencies"]}
    downloaded = {line.split("==")[0] for line in build.pyodide_dist.PURE_WHEELS}
    assert names - downloaded == {"numpy"}  # of the Pyodide distribution itself
    pinned = set(build.requirements())
    assert set(build.pyodide_dist.PURE_WHEELS) <= pinned


def test_the_bill_of_materials_is_that_of_the_files() -> None:
    """Hashes by hashlib, versions as the packages have them, and the software that THIRD_PARTY_LICENSES names."""
    path = build.sbom_path()
    if not path.is_file():
        pytest.fail(f"not built: dist/{path.name}; run ./build.sh", pytrace=False)
    bill = json.loads(path.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    root = bill["metadata"]["component"]
    released = {f["name"]: f["hashes"][0]["content"] for f in root["components"]}
    assert released == {
        name.name: hashlib.sha256(name.read_bytes()).hexdigest()
        for name in (build.wheel_path(), ROOT / "dist" / f"trainweb-{build.version()}.tgz")
    }
    parts = {part["name"]: part for part in bill["components"]}
    texts = (ROOT / "THIRD_PARTY_LICENSES").read_text().lower()
    assert all(name in texts for name in parts)
    assert parts["pyodide"]["purl"] == f"pkg:npm/pyodide@{build.pyodide_dist.VERSION}"
    runtime = json.loads((build.pyodide_dist.OUT / "package.json").read_text())
    assert parts["pyodide"]["version"] == runtime["version"]
    with zipfile.ZipFile(ROOT / "dist" / "npm" / "python" / "packages.zip") as archive:
        packed = {name.split("/")[0] for name in archive.namelist()}
    assert {"google", "flatbuffers"} <= packed and {"protobuf", "flatbuffers"} <= set(parts)
    maps = [json.loads(path.read_text())["sources"] for path in (ROOT / "dist" / "npm").glob("*.js.map")]
    bundled = {match[1] for source in itertools.chain(*maps) if (match := re.search(r"node_modules/([^/]+)", source))}
    assert {"onnxruntime-common", "d3-dsv", "uplot"} <= bundled <= set(parts)
    (edges,) = (edge for edge in bill["dependencies"] if edge["ref"] == root["bom-ref"])
    assert set(edges["dependsOn"]) == {part["bom-ref"] for part in parts.values()}
