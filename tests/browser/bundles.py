"""Bundles for tests, with what is in them."""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from playwright.sync_api import Browser

from trainweb.backend.wasm.engine import get_engine
from trainweb.ir.shapes import TensorType
from trainweb.model.reader import read_model
from trainweb.page.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.state import CheckpointState

from .js_session import JsPage, open_js_page
from .server import Site
from .test_js_golden import GOLDEN

MODELS = {
    "train_model": "training_model.onnx",
    "eval_model": "eval_model.onnx",
    "optimizer_model": "optimizer_model.onnx",
}
PYTHON_CALLS = ("save_checkpoint", "export")
PREFIX_BYTES = 64

Signature = dict[str, TensorType]
MLP: Signature = {"x": TensorType("float32", (8, 10)), "labels": TensorType("int64", (8,))}


def open_core(case: str, checkpoint: str = "checkpoint", *, reproducible: bool = False) -> SessionCore:
    """A native session of a golden case."""
    graphs = [read_model((GOLDEN / case / name).read_bytes()) for name in MODELS.values()]
    state = CheckpointState.load_checkpoint((GOLDEN / case / checkpoint).read_bytes())
    return SessionCore(state, *graphs, engine=get_engine(reproducible=reproducible))


def compile_bundle(
    case: str,
    signatures: Iterable[Signature],
    checkpoint: str = "checkpoint",
    *,
    models: bool = True,
    targets: Sequence[str] = ("wasm",),
) -> bytes:
    """The output of `trainweb compile`, for several signatures at once."""
    core = open_core(case, checkpoint)
    carried = {key: (GOLDEN / case / name).read_bytes() for key, name in MODELS.items()} if models else None
    core.release()
    return make_bundle(core.models, core.state._lent(), signatures, carried, targets=targets)


@cache
def mlp_bundle(models: bool = True) -> bytes:
    return compile_bundle("mlp", [MLP], models=models)


def header_of(bundle: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<I", bundle, 12)
    header: dict[str, Any] = json.loads(bundle[PREFIX_BYTES : PREFIX_BYTES + length])
    return header


def with_header(bundle: bytes, header: Any) -> bytes:
    """The same blobs under another header."""
    (length,) = struct.unpack_from("<I", bundle, 12)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    changed = bundle[:12] + struct.pack("<I", len(text)) + bundle[16:PREFIX_BYTES]
    return sealed(changed + text + bundle[PREFIX_BYTES + length :])


def carried(bundle: bytes, name: str) -> bytes:
    """A model that a bundle carries."""
    header = header_of(bundle)
    (length,) = struct.unpack_from("<I", bundle, 12)
    blobs = bundle[PREFIX_BYTES + length :]
    return b"".join(blobs[start : start + nbytes] for start, nbytes in header["models"][name])


def of_version_3(bundle: bytes) -> bytes:
    """The bundle as it was written while each of its models was in one."""
    header = header_of(bundle)
    (length,) = struct.unpack_from("<I", bundle, 12)
    models = {name: carried(bundle, name) for name in header["models"]}
    for name, model in models.items():
        bundle += bytes(-len(bundle) % 64)
        header["models"][name] = [len(bundle) - PREFIX_BYTES - length, len(model)]
        bundle += model
    changed = with_header(bundle, header)
    return changed[:8] + struct.pack("<I", 3) + changed[12:]


def sealed(bundle: bytes) -> bytes:
    """The bundle with the hash that its bytes have."""
    chunks = [hashlib.sha256(bundle[k : k + 2**24]).digest() for k in range(PREFIX_BYTES, len(bundle), 2**24)]
    digest = chunks[0] if len(chunks) == 1 else hashlib.sha256(b"".join(chunks)).digest()
    return bundle[:16] + digest + bundle[48:]


def python_requests(site: Site) -> list[str]:
    return site.requests("/dist/python/")


@contextmanager
def open_page(browser: Browser, site: Site, expected: tuple[str, ...] = ()) -> Iterator[JsPage]:
    """A page whose site has the bundle of the mlp, with the log starting anew."""
    site.add("/bundles/mlp", mlp_bundle())
    site.clear_log()
    with open_js_page(browser, site, expected) as js:
        yield js


SESSION = """
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const text = base64;
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const feeds = { x, labels };
    const small = { x: new Tensor("float32", x.data.slice(0, 30), [3, 10]),
                    labels: new Tensor("int64", labels.data.slice(0, 3), [3]) };
    const options = { reproducible: true };
    const fromBundle = (url = "/bundles/mlp") => TrainingSession.create({ bundle: url }, options);
    const fromModels = () => TrainingSession.create(golden("mlp"), options);
    const step = async (s, given = feeds) => {
      const result = await s.runTrainStep(given);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
      return text(Object.values(result)[0].data);
    };
    const parameters = async (s) => text((await s.getContiguousParameters()).data);
"""
