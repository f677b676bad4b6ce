"""Kinds of steps: bundles and caches of earlier versions name them by these texts, and so do both languages."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainweb import CheckpointState, TrainingSession
from trainweb.ir.shapes import TensorType
from trainweb.page.bundle import make_bundle
from trainweb.training.step_kind import EVAL, TRAIN, StepKind, tokens_kind

ROOT = Path(__file__).parents[2]
MLP = ROOT / "tests" / "golden" / "mlp"
METRICS = [["accuracy", "accuracy", [None], "logits", "labels"], ["topK", "topK", [3, None], "logits", "labels"]]
KINDS: dict[str, tuple[str, Any]] = {
    "train": ("train", None),
    'eval [["accuracy","accuracy",[null],"logits","labels"],["topK","topK",[3,null],"logits","labels"]]': (
        "eval",
        METRICS,
    ),
    'predict ["scores é"," a b"]': ("predict", ["scores é", " a b"]),
    'generate ["logits",128,32,true]': ("generate", ["logits", 128, 32, True]),
}


@pytest.mark.parametrize("key", KINDS)
def test_a_kind_has_its_text(key: str) -> None:
    kind = StepKind(*KINDS[key])
    assert kind.key == key
    assert StepKind.of(key) == kind and StepKind.of(key).request == kind.request
    assert {kind: 1}[StepKind.of(key)] == 1
    assert StepKind(kind.base, ["other"]) != kind


def test_steps_of_tokens_differ_by_their_adapter() -> None:
    kinds = [tokens_kind("logits", 128, 32, adapter=adapter) for adapter in (True, False)]
    assert [kind.key for kind in kinds] == [f'generate ["logits",128,32,{text}]' for text in ("true", "false")]
    assert [kind.is_forward for kind in (*kinds, TRAIN, EVAL)] == [True, True, False, False]


def test_a_page_has_the_same_texts() -> None:
    script = """
      import { build } from "esbuild";
      const options = { entryPoints: ["web/src/worker/step-kind.ts"], bundle: true, format: "esm", write: false };
      const { outputFiles: [{ text }] } = await build(options);
      const { readKind, stepKind } = await import(`data:text/javascript,${encodeURIComponent(text)}`);
      const kinds = JSON.parse(process.argv[1]);
      const made = Object.values(kinds).map(([base, request]) => stepKind(base, request).key);
      const read = Object.keys(kinds).map((key) => readKind(key));
      const whole = 'eval ["logits","labels",[["fbeta",[1.0]]]]';
      const others = ["nope", "eval [", "constructor", "eval ", whole].map(readKind);
      console.log(JSON.stringify([made, read, others]));
    """
    command = ["node", "--input-type=module", "-e", script, json.dumps(KINDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    made, read, others = json.loads(done.stdout)
    assert made == list(KINDS)
    assert read == [{"base": base, "request": request, "key": key} for key, (base, request) in KINDS.items()]
    # Python's floats that are whole numbers have the key of the page's.
    float_key = 'eval ["logits","labels",[["fbeta",[1]]]]'
    assert others[:4] == [None] * 4 and others[4]["key"] == float_key


def test_a_bundle_names_its_plans_as_before() -> None:
    state = CheckpointState.load_checkpoint(MLP / "checkpoint")
    models = [MLP / f"{name}_model.onnx" for name in ("training", "eval", "optimizer")]
    with TrainingSession(state, *models) as session:
        core = session._core
    feeds = {"x": TensorType("float32", (8, 10)), "labels": TensorType("int64", (8,))}
    bundle = make_bundle(core.models, state._lent(), [feeds], None, [{"type": "topK", "k": 3}, "accuracy"])
    length = int.from_bytes(bundle[12:16], "little")
    plans = json.loads(bundle[64 : 64 + length])["plans"]
    compared = json.dumps(METRICS, separators=(",", ":"))
    expected = ["train", "train", "eval", f"eval {compared}", "optimizer", "scheduler", "clip"]
    assert [plan["kind"] for plan in plans] == expected
