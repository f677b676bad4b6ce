"""A self-hosted Pyodide under .build/pyodide, for the tests and the demo.

The runtime comes from npm, numpy, micropip and packaging from Pyodide's CDN or, where that cannot be
reached, out of a PyPI wheel that carries the same files. The runtime must have the hash that is written
here, every other file the sha256 in its pyodide-lock.json. Pure wheels that the Pyodide distribution
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
from pathlib import Path

from steps import BUILD, PYTHON, ROOT, BuildError, locked, run, say

VERSION_FILE = ROOT / "web" / "src" / "wire" / "version.ts"
VERSION = re.findall(r'PYODIDE_VERSION = "([^"]+)"', VERSION_FILE.read_text())[0]
INTEGRITY = "sha512-fMexKS5P/s8iTjczevLUv/aWq9i5yaGvBTpBW6gM+nzDNelfPpREma/xdDK2AAGebAuKnBJk7fyVP6RBlz4btg=="
"""Of the npm package of that version, as `npm view pyodide@VERSION dist.integrity` gives it."""
CDN = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/"
CDN_TIMEOUT_S = 20
CARRIER = "open-webui==0.12.4"  # its frontend bundles Pyodide wheels, numpy among them
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


def runtime_files() -> None:
    """Take the runtime out of the npm package, whose hash is checked, into .build/pyodide."""
    CACHE.mkdir(parents=True, exist_ok=True)
    tarball = CACHE / f"pyodide-{VERSION}.tgz"
    if not tarball.is_file():
        run("npm", "pack", "--silent", f"pyodide@{VERSION}", "--pack-destination", CACHE)
    digest = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        tarball.unlink()
        raise BuildError(f"pyodide@{VERSION} from npm has the hash sha512-{digest}; expected {INTEGRITY}")
    with tarfile.open(tarball) as archive:
        for name in RUNTIME:
            member = archive.extractfile(f"package/{name}")
            if member is None:
                raise BuildError(f"npm package pyodide@{VERSION} has no file {name}")
            (OUT / name).write_bytes(member.read())


def _matches(data: bytes, entry: dict[str, str]) -> bool:
    return hashlib.sha256(data).hexdigest() == entry["sha256"]


def _from_cdn(entry: dict[str, str]) -> bytes | None:
    try:
        with urllib.request.urlopen(CDN + entry["file_name"], timeout=CDN_TIMEOUT_S) as reply:
            data: bytes = reply.read()
    except OSError as error:
        say(f"pyodide: {entry['file_name']} not from the CDN ({error})")
        return None
    if not _matches(data, entry):
        say(f"pyodide: {entry['file_name']} from the CDN does not match the lock; not used")
        return None
    return data


def _carrier() -> Path:
    folder = CACHE / "carrier"
    name, version = CARRIER.split("==")
    found = list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not found:
        say(f"pyodide: taking the wheels out of {CARRIER} from PyPI (about 100 MB, once)")
        run(
            PYTHON,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            folder,
            *locked("pyodide-carrier"),
        )
        found = list(folder.glob("*.whl"))
    return found[0]


def _from_carrier(entries: list[dict[str, str]]) -> None:
    carrier = _carrier()
    with zipfile.ZipFile(carrier) as archive:
        for entry in entries:
            data = archive.read(CARRIER_FOLDER + entry["file_name"])
            if not _matches(data, entry):
                raise BuildError(
                    f"{entry['file_name']} in {carrier.name} does not match the sha256 "
                    f"in pyodide-lock.json ({entry['sha256']})"
                )
            (OUT / entry["file_name"]).write_bytes(data)
    # All that was needed of the 100 MB stands in .build/pyodide now.
    shutil.rmtree(carrier.parent)


def _package_files(packages: dict[str, dict[str, str]]) -> None:
    missing = []
    cdn_answers = True
    for name in PACKAGES:
        entry = packages[name]
        target = OUT / entry["file_name"]
        if target.is_file() and _matches(target.read_bytes(), entry):
            continue
        data = _from_cdn(entry) if cdn_answers else None
        if data is None:
            cdn_answers = False
            missing.append(entry)
        else:
            target.write_bytes(data)
    if missing:
        _from_carrier(missing)


def build_pyodide() -> None:
    """Fill .build/pyodide: the runtime, three packages, the stock lock and one trimmed to these."""
    OUT.mkdir(parents=True, exist_ok=True)
    runtime_files()
    lock = json.loads((OUT / "pyodide-lock.json").read_text())
    _package_files(lock["packages"])
    # With the stock lock micropip would send for packages that are not here; with this one it
    # asks the package index, which the tests serve themselves.
    lock["packages"] = {name: lock["packages"][name] for name in PACKAGES}
    LOCAL_LOCK.write_text(json.dumps(lock, indent=1))


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
