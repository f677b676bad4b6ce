"""Hashes that files must have, in the page: hashlib computes the tests' hashes."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .bundles import mlp_bundle
from .js_session import JsPage, open_js_page
from .server import ROOT, Site
from .test_faults_workers import HttpSite

MLP = ROOT / "tests" / "golden" / "mlp"
FILES = {
    "trainModel": "training_model.onnx",
    "checkpointState": "checkpoint",
    "evalModel": "eval_model.onnx",
    "optimizerModel": "optimizer_model.onnx",
}
OUTCOME = """
    const outcome = (opening) => opening.then(
      async (s) => { await s.release(); return "opened"; }, ({ name, message }) => `${name}: ${message}`);
    const config = { loss: "CrossEntropyLoss" };
    const open = {
      artifacts: (integrity) => TrainingSession.create(golden("mlp"), { integrity }),
      bundle: (integrity) => TrainingSession.create({ bundle: "/bundles/mlp" }, { integrity }),
      model: (integrity) => TrainingSession.createFromModel("/golden/mlp/base.onnx", config, { integrity }),
      inference: (integrity) => InferenceSession.create("/golden/mlp/base.onnx", { integrity }),
    };
"""


def hash_of(data: bytes | Path, algorithm: str = "sha256") -> str:
    content = data.read_bytes() if isinstance(data, Path) else data
    return f"{algorithm}-{base64.b64encode(hashlib.new(algorithm, content).digest()).decode()}"


@pytest.fixture(scope="module", params=["https", "http"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[JsPage]:
    site = HttpSite() if request.param == "http" else Site()
    site.add("/bundles/mlp", mlp_bundle())
    with open_js_page(browser, site) as js:
        yield js
    site.close()


def outcome(page: JsPage, kind: str, integrity: object) -> str:
    found: str = page.run(f"{OUTCOME} return outcome(open[kind](integrity));", kind=kind, integrity=integrity)
    return found


def artifacts(**changed: str) -> dict[str, str]:
    return {name: hash_of(MLP / file) for name, file in FILES.items()} | changed


def test_right_hashes_open(page: JsPage) -> None:
    assert outcome(page, "artifacts", artifacts()) == "opened"
    assert outcome(page, "bundle", hash_of(mlp_bundle())) == "opened"
    assert outcome(page, "bundle", {"bundle": f"{hash_of(b'')} {hash_of(mlp_bundle())}"}) == "opened"
    for kind in ("model", "inference"):
        assert outcome(page, kind, hash_of(MLP / "base.onnx")) == "opened"


@pytest.mark.parametrize("name", FILES)
def test_other_artifacts_are_refused(page: JsPage, name: str) -> None:
    kind = "CheckpointError" if name == "checkpointState" else "ModelError"
    found = outcome(page, "artifacts", artifacts(**{name: hash_of(b"")}))
    assert found == f"{kind}: {name}: its hash is {hash_of(MLP / FILES[name])}, and integrity wants {hash_of(b'')}."


@pytest.mark.parametrize("kind", ["bundle", "model", "inference"])
def test_other_files_are_refused(page: JsPage, kind: str) -> None:
    assert outcome(page, kind, hash_of(b"")).startswith("ModelError: ")


def test_longer_hashes_need_a_secure_context(page: JsPage) -> None:
    for algorithm in ("sha384", "sha512"):
        found = outcome(page, "bundle", f"{hash_of(b'')} {hash_of(mlp_bundle(), algorithm)}")
        if page.run("return isSecureContext;"):
            assert found == "opened"
            assert outcome(page, "bundle", hash_of(b"", algorithm)).startswith("ModelError: ")
        else:
            assert found.startswith("ModelError: bundle: its") and "give its sha256" in found


@pytest.mark.parametrize(
    ("kind", "integrity"),
    [
        ("bundle", ""),
        ("bundle", "sha256-abc"),
        ("bundle", "md5-1B2M2Y8AsgTpgAmY7PhCfg=="),
        ("bundle", 5),
        ("bundle", {"bundle": None}),
        ("bundle", {"model": hash_of(b"")}),
        ("bundle", {"nothing": hash_of(b"")}),
        ("artifacts", hash_of(b"")),
        ("artifacts", {"bundle": hash_of(b"")}),
        ("inference", {"trainModel": hash_of(b"")}),
    ],
    ids=repr,
)
def test_hashes_that_protect_nothing_are_type_errors(page: JsPage, kind: str, integrity: object) -> None:
    found = outcome(page, kind, integrity)
    assert found.startswith("TypeError: 'integrity"), found
