"""Bundles that are damaged: refused, never believed."""

import base64
import hashlib
import json
import math
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import Browser

from .bundles import PREFIX_BYTES, SESSION, header_of, mlp_bundle, sealed, with_header
from .js_session import JsPage, open_js_page
from .server import ROOT, Site


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    header = header_of(mlp_bundle())
    change(header)
    return with_header(mlp_bundle(), header)


def _set(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        at: Any = header
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def end_of(header: dict[str, Any]) -> int:
    """The end of the models, which are behind all other data."""
    return max(sum(place) for places in header["models"].values() for place in places)


DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    "other kernels": _set("fingerprint", to=1),
    "fingerprint is text": _set("fingerprint", to="1"),
    "no inputs": _set("inputs", to=None),
    "input of no dtype": _set("inputs", "train", 0, "dtype", to="complex64"),
    "input dim": _set("inputs", "train", 0, "dims", to=[-1]),
    "outputs are numbers": _set("outputs", "train", to=[1]),
    "outputs none": _set("outputs", "train", to=[]),
    "eval outputs none": _set("outputs", "eval", to=[]),
    "an output less": lambda h: h["outputs"]["train"].pop(),
    "plan gives another output": lambda h: h["plans"][0]["outputs"].append(
        {**h["plans"][0]["outputs"][0], "name": "x"}
    ),
    "output unknown": _set("outputs", "train", to=["nope"]),
    "hasEval": _set("hasEval", to=1),
    "parameter dims": _set("parameters", 0, "dims", to=[2**31, 2**31]),
    "parameter offset": _set("parameters", 1, "offset", to=0),
    "parameter behind": _set("parameters", 1, "trainableOffset", to=5),
    "parameter twice": _set("parameters", 1, "name", to="fc1.weight"),
    "size": _set("size", to=1),
    "segment too many": lambda h: h["segments"].append({"bytes": 0, "data": None}),
    "segment too few": lambda h: h["segments"].pop(),
    "segment size": _set("segments", 3, "bytes", to=2**32),
    "segment of another size": _set("segments", 2, "bytes", to=64),
    "moments": _set("segments", 4, "bytes", to=8),
    "state": _set("segments", 6, "bytes", to=0),
    "data outside": _set("segments", 2, "data", to=[64, 2**31]),
    "data at an odd place": _set("segments", 6, "data", to=[1, 64]),
    "data of another length": _set("segments", 2, "data", to=[0, 64]),
    "negative place": _set("segments", 2, "data", to=[-64, 1728]),
    "model outside": _set("models", "trainModel", to=[[2**31, 4]]),
    "model at no place": _set("models", "evalModel", to=None),
    "piece of a model outside": lambda h: h["models"]["evalModel"].append([0, 2**31]),
    "piece of a model that is negative": lambda h: h["models"]["evalModel"].append([64, -64]),
    "piece of a model at an odd place": lambda h: h["models"]["evalModel"].append([1, 63]),
    "piece of a model in words": lambda h: h["models"]["evalModel"].append(["0", "64"]),
    "piece of a model with three numbers": lambda h: h["models"]["evalModel"].append([0, 64, 64]),
    "pieces that are numbers": _set("models", "evalModel", to=[0, [64, 64]]),
    "pieces of more than 4 GiB": lambda h: h["models"].update(evalModel=[[0, end_of(h)]] * (2**32 // end_of(h) + 1)),
    "pieces that overlap": lambda h: h["models"].update(evalModel=[[64 * k, 4096] for k in range(100)]),
    "models without checkpoint": lambda h: h["models"].pop("checkpoint"),
    "plan kind": _set("plans", 0, "kind", to="nope"),
    "plan twice": lambda h: h["plans"].append(h["plans"][0]),
    "plan words": _set("plans", 0, "words", to=[0, 3]),
    "plan words of something else": lambda h: h["plans"][0].update(words=h["models"]["trainModel"][0]),
    "plan words cut": lambda h: h["plans"][0].update(words=[h["plans"][0]["words"][0], 512]),
    "plan arena": _set("plans", 0, "arenaBytes", to=4),
    "plan input elsewhere": _set("plans", 0, "inputs", 0, "segment", to=2),
    "plan input outside": _set("plans", 0, "inputs", 0, "offset", to=2**31),
    "plan input size": _set("plans", 0, "inputs", 0, "nbytes", to=4),
    "plan input dims": _set("plans", 0, "inputs", 0, "dims", to=[4, 20]),
    "plan output outside": _set("plans", 0, "outputs", 0, "offset", to=2**32 - 1),
    "plan output segment": _set("plans", 0, "outputs", 0, "segment", to=7),
    "plan constants in a file": _set("plans", 0, "large", to=[[0, 0, 0, 0]]),
    "plan signature": _set("plans", 0, "signature", to=[]),
    "plan nodes": _set("plans", 0, "nodes", to=[None]),
    "fewer nodes than instructions": lambda h: h["plans"][2]["nodes"].pop(),
    "more nodes than instructions": lambda h: h["plans"][2]["nodes"].append("x"),
    "no plans": lambda h: h.pop("plans"),
}


@pytest.fixture(scope="module")
def damaged_page(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as js:
        yield js


def open_failure(js: JsPage, bundle: bytes) -> dict[str, Any]:
    return js.failure(
        f"{SESSION} await TrainingSession.create({{ bundle: bytes(data) }}, options);",
        data=base64.b64encode(bundle).decode(),
    )


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_wrong_header_is_a_model_error(damaged_page: JsPage, damage: str) -> None:
    error = open_failure(damaged_page, edited(DAMAGE[damage]))
    assert error["name"] == "ModelError", error
    assert error["message"].startswith("the bundle cannot be used: ")
    if damage == "other kernels":
        assert "compile it again" in error["message"]


PROPERTIES = {
    "no list": None,
    "no text": [["a", "int", 1]],
    "no type": [["a", "bool", "1"]],
    "no number": [["a", "int", "1.5"]],
    "beyond 64 bits": [["a", "int", str(2**63)]],
    "twice": [["a", "int", "1"], ["a", "str", "b"]],
}


@pytest.mark.parametrize("case", PROPERTIES)
def test_properties_are_checked_as_those_of_checkpoints(damaged_page: JsPage, case: str) -> None:
    error = open_failure(damaged_page, edited(_set("properties", to=PROPERTIES[case])))
    assert error["name"] == "CheckpointError" and "properties" in error["message"], error


@pytest.mark.parametrize(("field", "at", "value"), [("learningRate", 4, math.nan), ("initialLr", 16, -1.0)])
def test_the_state_is_checked_as_that_of_checkpoints(damaged_page: JsPage, field: str, at: int, value: float) -> None:
    bundle = bytearray(mlp_bundle())
    struct.pack_into("<f", bundle, blob_of(bundle, header_of(bundle)["segments"][6]["data"]) + at, value)
    error = open_failure(damaged_page, sealed(bytes(bundle)))
    assert error["name"] == "CheckpointError" and f"state.{field}" in error["message"], error


def test_truncated_bundles_are_model_errors(damaged_page: JsPage) -> None:
    """At every section: prefix, header, each blob."""
    bundle = mlp_bundle()
    header = header_of(bundle)
    (length,) = struct.unpack_from("<I", bundle, 12)
    blobs = PREFIX_BYTES + length
    ends = {sum(p[key]) for p in header["plans"] for key in ("words", "constants", "code")}
    ends |= {sum(place) for places in header["models"].values() for place in places}
    ends |= {sum(s["data"]) for s in header["segments"] if s["data"]}
    cuts = [0, 7, 8, 11, 15, 16, 40, blobs - 1, blobs, *(blobs + end - 1 for end in sorted(ends) if end)]
    for cut in cuts:
        error = open_failure(damaged_page, bundle[:cut])
        assert error["name"] == "ModelError", (cut, error)


@pytest.mark.parametrize("at", [0, 7, 8, 12, 15, 16, 17])
def test_a_wrong_prefix_is_a_model_error(damaged_page: JsPage, at: int) -> None:
    bundle = bytearray(mlp_bundle())
    bundle[at] ^= 0x80
    assert open_failure(damaged_page, bytes(bundle))["name"] == "ModelError"


@pytest.mark.parametrize("where", range(5))
def test_a_damaged_file_is_refused_by_its_hash(damaged_page: JsPage, where: int) -> None:
    """One bit, in the header, parameters, words, code or the hash itself."""
    bundle = bytearray(mlp_bundle())
    header = header_of(bundle)
    places = [blob_of(bundle, header["segments"][2]["data"])]
    places += [blob_of(bundle, header["plans"][0][part]) + 100 for part in ("words", "code")]
    at = [PREFIX_BYTES + 9, *places, 20][where]
    bundle[at] ^= 4
    error = open_failure(damaged_page, bytes(bundle))
    assert error["name"] == "ModelError" and "it is damaged" in error["message"]


@pytest.mark.parametrize("version", [1, 2, 5, 2**32 - 1])
def test_other_versions_are_refused_with_advice(damaged_page: JsPage, version: int) -> None:
    bundle = mlp_bundle()
    error = open_failure(damaged_page, bundle[:8] + struct.pack("<I", version) + bundle[12:])
    assert error["name"] == "ModelError"
    assert f"it has version {version}, this trainweb reads versions 3 to 4" in error["message"]
    assert "compile it again" in error["message"]


@pytest.mark.parametrize("n_bytes", [*range(130), 1000, 100_003])
def test_our_own_sha256_is_that_of_hashlib(n_bytes: int) -> None:
    """If the page is not secure, a script computes a bundle's hash."""
    data = bytes((7 * k + k // 256) % 256 for k in range(n_bytes))
    assert script_hashes()[n_bytes] == hashlib.sha256(data).hexdigest()


@cache
def script_hashes() -> dict[int, str]:
    source = ROOT / "web" / "src" / "wire" / "sha256.ts"
    code = f"""
        import {{ sha256InScript }} from {json.dumps(source.as_uri())};
        const found = {{}};
        for (const n of [...Array(130).keys(), 1000, 100003]) {{
          const bytes = Uint8Array.from({{ length: n }}, (_, k) => (7 * k + Math.floor(k / 256)) % 256);
          found[n] = Buffer.from(sha256InScript(bytes)).toString("hex");
        }}
        console.log(JSON.stringify(found));
    """
    esbuild = ROOT / "node_modules" / ".bin" / "esbuild"
    bundled = subprocess.run(
        [esbuild, "--bundle", "--format=esm", "--platform=node"],
        input=code.replace(source.as_uri(), str(source)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    done = subprocess.run(["node", "--input-type=module"], input=bundled, capture_output=True, text=True, check=True)
    return {int(n): digest for n, digest in json.loads(done.stdout).items()}


def blob_of(bundle: bytes, place: list[int]) -> int:
    (length,) = struct.unpack_from("<I", bundle, 12)
    return PREFIX_BYTES + length + place[0]


def test_wrong_words_and_code_are_engine_errors_at_the_step(damaged_page: JsPage) -> None:
    """The kernels' verifier sees to the words; bytes that are not a module do not load. The worker goes on."""
    bundle = mlp_bundle()
    plan = header_of(bundle)["plans"][0]
    n_words = plan["words"][1] // 4
    start = blob_of(bundle, plan["words"])
    n_code = struct.unpack_from("<I", bundle, start + 28)[0]
    first = start + 4 * (n_words - 2 * n_code)
    buffers = start + 4 * (20 + 3 * 8)
    damage = [
        (first, struct.pack("<I", 0xFFFF)),  # an opcode that there is none of
        (buffers, struct.pack("<3I", 99, 0, 64)),  # a buffer in no segment
        (buffers, struct.pack("<3I", 2, 0, 2**31)),  # one that reaches out of its segment
        (start + 24, struct.pack("<I", 2**30)),  # the number of buffers
        (blob_of(bundle, plan["code"]), b"nope"),
    ]
    for at, data in damage:
        broken = sealed(bundle[:at] + data + bundle[at + len(data) :])
        error = damaged_page.failure(
            f"""{SESSION}
            const s = await TrainingSession.create({{ bundle: bytes(data) }}, options);
            try {{ await s.runTrainStep(feeds); }} finally {{ await s.release(); }}""",
            data=base64.b64encode(broken).decode(),
        )
        assert error["name"] == "EngineError", (at, error)
    assert damaged_page.run(
        f"""{SESSION}
        const s = await TrainingSession.create({{ bundle: bytes(data) }}, options);
        return (await step(s)).length > 0;""",
        data=base64.b64encode(bundle).decode(),
    )
