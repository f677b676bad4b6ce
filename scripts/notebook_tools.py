"""Downloads for `./build.sh test-notebooks`: releases of Pyodide, and marimo with its wheels."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyodide_dist
from steps import BUILD, LOCKS, Step, locked, make_environment, run, run_step

FOLDER = BUILD / "notebooks"
ENVIRONMENT = FOLDER / "venv"
WHEELHOUSE = FOLDER / "wheels"
TOOLS = ("marimo==0.25.2", "uv==0.13.9")
WHEELS = (
    "docutils==0.23",
    "itsdangerous==2.2.0",
    "jedi==0.20.1",
    "marimo-base==0.25.2",
    "markdown==3.11.3",
    "msgspec==0.22.0",
    "narwhals==2.29.0",
    "parso==0.8.7",
    "pygments==2.21.0",
    "pymdown-extensions==11.0.2",
    "pyodide-http==0.2.2",
    "python-multipart==0.0.34",
    "tomlkit==0.15.2",
    "tqdm==4.70.1",
)
"""What marimo takes in a page from its own servers, and bars."""

OLD_RUNTIME = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PACKAGES = ("numpy", "micropip", "packaging", "matplotlib")


@dataclass(frozen=True)
class Release:
    """A Pyodide, and the release whose builds of numpy and matplotlib it runs: its own, or one of the same ABI."""

    version: str
    integrity: str
    packages: Release | None = None
    carrier: str = ""

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / f"pyodide-{self.version}"


OLD = Release(
    "0.27.3",
    "sha512-6NwKEbPk0M3Wic2T1TCZijgZH9VE4RkHp1VGljS1sou0NjGdsmY2R/fG5oLmdDkjTRMI1iW7WYaY9pofX8gg1g==",
    carrier="pyodide-carrier-0.27",
)
MIDDLE = Release(
    "0.28.3",
    "sha512-rtCsyTU55oNGpLzSVuAd55ZvruJDEX8o6keSdWKN9jPeBVSNlynaKFG7eRqkiIgU7i2M6HEgYtm0atCEQX3u4A==",
    carrier="pyodide-carrier-0.28",
)
WHOLE = Release(pyodide_dist.PACKAGES_VERSION, pyodide_dist.PACKAGES_INTEGRITY, carrier="pyodide-carrier")
OURS = Release(pyodide_dist.VERSION, pyodide_dist.INTEGRITY, WHOLE)
OF_MARIMO = Release(
    "314.0.0",
    "sha512-WIofRQehY78IC9n3+p9COjKUZGCCHfrvtR5dXKm0BHIWUun2B8DBf17rXytMF/KYkrsDQRa+BDGhi8UKwzaU3w==",
    WHOLE,
)
"""The one that marimo 0.25 runs."""
RELEASES = (
    OLD,
    MIDDLE,
    Release(
        "0.29.5",
        "sha512-TkYrUv9m8QmfImADKRmpwZulL48E0uUaBSO+dvRQKyAJc0qh9gu7jn8btyHPh3NZm1r2IH2YrJhIr7Q2B9urAw==",
        MIDDLE,
    ),
    WHOLE,
    OURS,
)


def _with_dependencies(packages: dict[str, dict[str, list[str]]]) -> list[str]:
    found: dict[str, None] = {}
    waiting = list(PACKAGES)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += packages[name]["depends"]
    return sorted(found)


def _build_release(release: Release) -> None:
    names = OLD_RUNTIME if release.version.startswith("0.") else pyodide_dist.RUNTIME
    pyodide_dist.unpack_runtime(release.version, release.integrity, names, release.folder)
    lock = json.loads((release.folder / "pyodide-lock.json").read_text())
    source = release.packages or release
    if source is not release:
        build_release(source)
        packages = json.loads((source.folder / pyodide_dist.LOCAL_LOCK.name).read_text())["packages"]
        for entry in packages.values():
            (release.folder / entry["file_name"]).write_bytes((source.folder / entry["file_name"]).read_bytes())
    else:
        packages = {name: lock["packages"][name] for name in _with_dependencies(lock["packages"])}
        pyodide_dist.fetch_packages(release.version, packages.values(), release.folder, release.carrier)
    lock["packages"] = packages
    (release.folder / pyodide_dist.LOCAL_LOCK.name).write_text(json.dumps(lock))


def build_release(release: Release) -> None:
    """Put up a release under .build/notebooks, with a lock file of its files."""
    run_step(
        Step(
            f"pyodide-{release.version}",
            lambda: _build_release(release),
            inputs=[repr(release), repr(PACKAGES), LOCKS / "pyodide-carrier.txt"],
            outputs=[release.folder / pyodide_dist.LOCAL_LOCK.name],
        )
    )


def _yaml_wheel() -> None:
    """PyYAML without its C part: only Pyodide's servers have the build with it."""
    (package,) = ENVIRONMENT.glob("lib/python3*/site-packages/yaml")
    (information,) = package.parent.glob("[Pp]y[Yy][Aa][Mm][Ll]-*.dist-info")
    version = information.name.removesuffix(".dist-info").split("-")[1]
    with zipfile.ZipFile(WHEELHOUSE / f"pyyaml-{version}-py3-none-any.whl", "w") as wheel:
        for file in sorted(package.glob("*.py")):
            wheel.write(file, f"yaml/{file.name}")
        head = f"pyyaml-{version}.dist-info"
        wheel.writestr(f"{head}/METADATA", (information / "METADATA").read_text())
        wheel.writestr(f"{head}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{head}/RECORD", "")


def _build_tools() -> None:
    pip = (make_environment(ENVIRONMENT, "notebooks"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    platforms = ("--platform", "any", "--platform", "pyemscripten_2026_0_wasm32", "--implementation", "cp")
    tags = ("--python-version", "3.14", "--abi", "none", "--abi", "cp314", "--only-binary=:all:", "--no-deps")
    run(*pip, "download", *platforms, *tags, "--dest", WHEELHOUSE, *locked("notebook-wheels"))
    _yaml_wheel()


def build_tools() -> None:
    """Install marimo into a separate environment, and fetch the wheels that its pages load."""
    run_step(
        Step(
            "notebook-tools",
            _build_tools,
            inputs=[LOCKS / "notebooks.txt", LOCKS / "notebook-wheels.txt"],
            outputs=[ENVIRONMENT / "bin" / "marimo", WHEELHOUSE],
        )
    )
