"""The data of plans for the GPU, as docs/architecture-webgpu.md describes them; no GPU is needed."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.webgpu.networks import dropping, networks
from tests.webgpu.train import core_of, open_model, types_of

from trainweb.artifacts import build_artifacts
from trainweb.backend.plan import Plan
from trainweb.backend.webgpu.functions import FUNCTIONS, with_functions
from trainweb.backend.webgpu.shader import MOST_GROUPS, TEMPLATES, UNIFORM_BYTES
from trainweb.ir import layout
from trainweb.ir.calls import FlushMoments, NoteChange
from trainweb.ir.layout import ARENA, STATE, STATE_WORDS
from trainweb.ir.shapes import TensorType
from trainweb.onnxblock.loss import CrossEntropyLoss
from trainweb.onnxblock.optim import AdamW
from trainweb.page.bundle import Blobs, plan_json
from trainweb.training.step_kind import TRAIN, StepKind

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    with open_model("C", 1) as (core, batches):
        train = core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu")
        return {"train": train, "optimizer": core.models.compile_optimizer(target="webgpu")}


@pytest.mark.parametrize("step", ["train", "optimizer"])
def test_dispatches_name_what_is_there(plans: dict[str, Plan], step: str) -> None:
    plan, body = plans[step], plans[step].body
    assert body is not None and plan.target == "webgpu"
    forms = [np.frombuffer(data, np.uint32).reshape(-1, 6) for data in (body.dispatches, body.tiled, body.few)]
    for words in forms:
        assert len(words) == len(body.nodes) and len(body.texts) == len({*body.texts})
        assert words[:, 1:4].min() >= 1 and words[:, 1:4].max() <= MOST_GROUPS
    every = np.concatenate(forms)
    assert {*every[:, 0]} == {*range(len(body.texts))}
    assert len(body.uniforms) == UNIFORM_BYTES * (every[:, 4].max() + 1)
    for other in forms[1:]:
        assert (forms[0][:, 0] != other[:, 0]).any() == (step == "train")
    for places in (body.inputs, body.outputs):
        assert all(p.segment != STATE for p in places.values())
        assert all(p.offset + p.nbytes <= body.arena_bytes for p in places.values() if p.segment == ARENA)
    for source, target, nbytes in body.uploads:
        assert source + nbytes <= plan.arena_bytes and target + nbytes <= body.arena_bytes


def test_calls_read_copies_of_the_words_of_the_state_that_they_need() -> None:
    """Dropout reads the place in the random numbers, and the weighted gradient its share."""
    net = dropping()
    model = onnx.shape_inference.infer_shapes(net.model()).SerializeToString()
    loss = CrossEntropyLoss(weight=np.full(networks.N_CLASSES, 0.5, np.float32), ignore_index=2)
    core = core_of(build_artifacts(model, [p.name for p in net.parameters], [], loss, AdamW()))
    names = [name for name in core.inputs["train"] if "label" not in name]
    types = dict.fromkeys(core.inputs["train"], TensorType("int64", (6,))) | {names[0]: TensorType("float32", (6, 12))}
    plan = core.models.compile_step(TRAIN, types, False, target="webgpu")
    core.release()
    assert plan.body is not None
    sizes = sorted(nbytes for *_, nbytes in plan.body.uploads)
    assert sizes[0] == 4 and sizes[-1] == 4 * STATE_WORDS
    assert all(nbytes % 4 == 0 for nbytes in sizes)


def test_the_head_checks_and_counts(plans: dict[str, Plan]) -> None:
    assert ["check_indices" in line for line in plans["train"].text].count(True) == 1
    heads = plans["optimizer"].disassemble()
    assert "optimizer_advance" in heads and NoteChange.KERNEL in heads and FlushMoments.KERNEL not in heads
    assert plans["optimizer"].body is not None and len(plans["optimizer"].body.uploads) == 2


def test_the_data_of_a_bundle(plans: dict[str, Plan]) -> None:
    blobs = Blobs()
    header: dict[str, Any] = json.loads(json.dumps(plan_json(plans["train"], StepKind("train"), True, {}, blobs)))
    body, plan = header["body"], plans["train"].body
    assert plan is not None and header["target"] == "webgpu"
    read = [
        bytes(blobs.data[at : at + nbytes])
        for at, nbytes in (*body["texts"], body["uniforms"], body["dispatches"], body["tiled"], body["few"])
    ]
    assert read == [*(text.encode() for text in plan.texts), plan.uniforms, plan.dispatches, plan.tiled, plan.few]
    assert [i["name"] for i in body["inputs"]] == [*plan.inputs] and body["arenaBytes"] == plan.arena_bytes
    page = (ROOT / "docs" / "architecture-webgpu.md").read_text()
    assert all(f"`body.{name}`" in page for name in body)


def test_shaders_keep_the_rules(plans: dict[str, Plan]) -> None:
    for plan in plans.values():
        assert plan.body is not None
        for text in plan.body.texts:
            assert "atomic" not in text
            assert not re.search(r"\b(exp|log|tanh|sin|cos|pow)\(", text)


def test_functions_have_the_numbers_of_the_kernels() -> None:
    """Both take them from kernels.def, but for the reduction of sin's argument, which is in float32."""
    with_numbers = with_functions("exp_(log1p_(tanh_(erf_(expm1_(sigmoid_(x))))))")
    assert "_TERMS_" not in with_numbers and all(float(term[:-1]) for term in layout.EXP_TERMS)
    for name, text in FUNCTIONS.items():
        assert name == "sin_shifted" or not re.findall(r"\d\.\d{4,}(?:e-?\d+)?f", text), name


def test_the_page_about_templates_lists_their_files() -> None:
    page = (ROOT / "docs" / "architecture-webgpu.md").read_text()
    modules = {f.args[0].__module__.rpartition(".")[2] for f in TEMPLATES.values()}
    assert all(f"| `{name}.py` |" in page for name in modules)
