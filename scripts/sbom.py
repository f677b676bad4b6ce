"""dist/trainweb-VERSION.cdx.json: what the files of a release are made of (a CycloneDX software bill of materials).

The wheel and the npm tarball with their hashes, and the software of others in them: the same that THIRD_PARTY_LICENSES
has the texts of. It leaves out the tools that only building and testing need.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyodide_dist
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from steps import DIST, ROOT, environment

NAME = "trainweb"
LICENCES = {
    "trainweb": "MIT",
    "pyodide": "MPL-2.0",
    "cpython": "Python-2.0",
    "protobuf": "BSD-3-Clause",
    "flatbuffers": "Apache-2.0",
    "onnx": "Apache-2.0",
    "onnxruntime-common": "MIT",
    "d3-dsv": "ISC",
    "uplot": "MIT",
}
BUNDLED = ("onnxruntime-common", "d3-dsv", "uplot")
"""npm packages whose code is in scripts of ours."""
PLACES = {
    "pyodide": "https://github.com/pyodide/pyodide",
    "cpython": "https://github.com/python/cpython",
    "protobuf": "https://github.com/protocolbuffers/protobuf",
    "flatbuffers": "https://github.com/google/flatbuffers",
    "onnx": "https://github.com/onnx/onnx",
    "onnxruntime-common": "https://github.com/microsoft/onnxruntime",
    "d3-dsv": "https://github.com/d3/d3-dsv",
    "uplot": "https://github.com/leeoniya/uPlot",
}
"""Where the sources are."""


def _component(kind: str, name: str, version: str, files: Iterable[Path] = ()) -> Component:
    """One piece of software, with the hashes of its files as parts of it."""
    purl = PackageURL(kind, name=name, version=version)
    reference = PLACES.get(name)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=str(purl),
        purl=purl,
        licenses=[DisjunctiveLicense(id=LICENCES[name])],
        external_references=[ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(reference))]
        if reference
        else [],
        components=[_file(path) for path in files],
    )


def _file(path: Path) -> Component:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Component(
        type=ComponentType.FILE,
        name=path.name,
        bom_ref=f"file:{path.name}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )


def _pins() -> dict[str, str]:
    """Versions that are pinned for Python."""
    with (ROOT / "pyproject.toml").open("rb") as handle:
        dev = tomllib.load(handle)["dependency-groups"]["dev"]
    return dict(line.split("==") for line in dev)


def make(version: str, released: Iterable[Path]) -> str:
    """The bill as JSON, the same bytes for the same files."""
    released = sorted(released)
    bom = Bom()
    seed = hashlib.sha256(b"".join(path.read_bytes() for path in released)).digest()
    bom.serial_number = uuid.UUID(bytes=seed[:16], version=4)
    epoch = int(environment()["SOURCE_DATE_EPOCH"])
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    root = _component("npm", NAME, version, released)
    bom.metadata.component = root
    pins = _pins()
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    cpython = json.loads((pyodide_dist.OUT / "pyodide-lock.json").read_text())["info"]["python"]
    wheels = [(name, version) for name, _, version in (w.partition("==") for w in pyodide_dist.PURE_WHEELS)]
    runtime = [pyodide_dist.OUT / name for name in pyodide_dist.RUNTIME]
    parts = [
        _component("npm", "pyodide", pyodide_dist.VERSION, runtime),
        _component("generic", "cpython", cpython),
        *(_component("pypi", *wheel) for wheel in wheels),
        _component("pypi", "onnx", pins["onnx"]),
        *(_component("npm", name, locked[f"node_modules/{name}"]["version"]) for name in BUNDLED),
    ]
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(root, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


if __name__ == "__main__":
    given, *files = sys.argv[1:]
    (DIST / f"{NAME}-{given}.cdx.json").write_text(make(given, map(Path, files)))
