"""The command line, from a forward model to a trained, exported and compiled one."""

import hashlib
import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bench import smol
from tests.python.sessions import infer
from tests.python.test_remarks import normalized

import trainweb
from trainweb.cli import main, parse_feed

GOLDEN = Path(__file__).parent.parent / "golden" / "mlp"


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    assert (
        main(
            [
                "artifacts",
                str(GOLDEN / "base.onnx"),
                "--loss",
                "CrossEntropyLoss",
                "-o",
                str(tmp_path),
                "--output-name",
                "logits",
            ]
        )
        == 0
    )
    return tmp_path


def test_training_from_the_command_line_lowers_the_loss(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 256)
    x = (rng.normal(size=(256, 10)) + labels[:, None]).astype(np.float32)
    np.savez(artifacts / "data.npz", x=x, labels=labels)
    trained = artifacts / "trained"
    arguments = [
        "train",
        str(artifacts),
        str(artifacts / "data.npz"),
        "-o",
        str(trained),
        "--epochs",
        "6",
        "--learning-rate",
        "0.01",
    ]
    assert main(arguments) == 0
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(losses) == 6 and losses[-1] < 0.7 * losses[0]

    model = artifacts / "inference.onnx"
    assert main(["export", str(artifacts), "logits", "--checkpoint", str(trained), "-o", str(model)]) == 0
    (logits,) = infer(model, {"x": x})
    assert (logits.argmax(axis=1) == labels).mean() > 0.6

    assert main(["inspect", str(trained)]) == 0
    shown = capsys.readouterr().out
    assert "trainable fc1.weight" in shown and "step 48" in shown


def test_inspect_shows_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(GOLDEN / "training_model.onnx")]) == 0
    shown = capsys.readouterr().out
    assert "8 Gemm" in shown and "com.microsoft.InPlaceAccumulatorV2" in shown


def test_a_bundle_has_every_plan_and_no_zeros(artifacts: Path) -> None:
    out = artifacts / "mlp.bundle"
    feeds = ["--feed", "x=float32[8,10]", "--feed", "labels=int64[8]"]
    assert main(["compile", str(artifacts), *feeds, "-o", str(out)]) == 0
    data = out.read_bytes()
    version, length = struct.unpack_from("<II", data, 8)
    assert (data[:8], version) == (b"TWBUNDLE", 4)
    assert hashlib.sha256(data[64:]).digest() == data[16:48]
    header = json.loads(data[64 : 64 + length])
    kinds = [(p["kind"], p["overwrite"]) for p in header["plans"]]
    steps = [("train", True), ("train", False), ("eval", True)]
    assert kinds == [*steps, ("optimizer", True), ("scheduler", True), ("clip", True)]
    assert header["segments"][3]["data"] is None
    offset, size = header["segments"][2]["data"]
    blobs = data[64 + length :]
    parameters = np.frombuffer(blobs[offset : offset + size], np.float32)
    with np.load(GOLDEN / "expected.npz") as expected:
        recorded = next(expected[k] for k in expected.files if k.endswith("params_all"))
    np.testing.assert_array_equal(parameters, recorded)


def test_a_bundle_has_plans_of_both_devices(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = artifacts / "both.bundle"
    arguments = ["compile", str(artifacts), "--feed", "x=float32[8,10]", "--feed", "labels=int64[8]", "-o", str(out)]
    arguments += ["--device", "wasm", "--device", "webgpu"]
    assert main([*arguments, "--memory-budget", "10000"]) == 1
    assert "--memory-budget does not work with" in capsys.readouterr().err
    assert main(arguments) == 0
    data = out.read_bytes()
    header = json.loads(data[64 : 64 + struct.unpack_from("<I", data, 12)[0]])
    kinds = [(p["kind"], p["overwrite"], p.get("target", "wasm")) for p in header["plans"]]
    both = ("train", True), ("train", False), ("optimizer", True), ("clip", True)
    on_kernels = {(*step, "wasm") for step in (*both, ("eval", True), ("scheduler", True))}
    assert {*kinds} == {(*step, "webgpu") for step in (*both, ("eval", True))} | on_kernels and len(kinds) == 11


def test_a_bundle_within_a_budget(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = artifacts / "small.bundle"
    arguments = ["compile", str(artifacts), "--feed", "x=float32[8,10]", "--feed", "labels=int64[8]", "-o", str(out)]
    assert main([*arguments, "--memory-budget", "1"]) == 1
    said = capsys.readouterr().err
    found = re.search(r"LimitError: .*'memory_budget' must be at least (\d+) .*, not 1: .*takes (\d+)\.", said)
    assert found and not out.exists()
    assert main([*arguments, "--memory-budget", "10000"]) == 0
    data = out.read_bytes()
    header = json.loads(data[64 : 64 + struct.unpack_from("<I", data, 12)[0]])
    steps = [p for p in header["plans"] if p["kind"] in ("train", "eval")]
    assert steps[0]["recomputation"] == {"fullBytes": int(found[2]), "instructions": 0, "flops": 0, "share": 0.0}
    assert len(steps) == 3 and all(0 < p["arenaBytes"] <= 10000 for p in steps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["artifacts", "missing.onnx"], "missing.onnx"),
        (["artifacts", str(GOLDEN / "base.onnx"), "--loss", "Nope"], "'Nope' is not one of"),
        (
            ["artifacts", str(GOLDEN / "base.onnx"), "--loss", '{"type": "CrossEntropyLoss", "ignoreIndex": 1}'],
            "has no setting 'ignoreIndex'; did you mean 'ignore_index'?",
        ),
        (["inspect", str(GOLDEN / "trace.json")], "ModelError"),
        (["export", ".", "x", "-o", "y.onnx"], "does not exist"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("text", ["x", "x=float32", "x=float33[1]", "=int64[1]", "x=float32[a]", "x=float32[1"])
def test_malformed_feeds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        parse_feed(text)


def test_check_says_what_a_model_is_and_what_a_step_takes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", str(GOLDEN / "base.onnx"), "--loss", "CrossEntropyLoss", "--dim", "batch=8"]
    assert main([*arguments, "--steps", "30"]) == 0
    said = capsys.readouterr().out
    for line in (
        "can be trained",
        "input x: float32['batch', 10]",
        "operators: Gemm 3, Relu 2",
        "  x: float32[8, 10]",
        "  labels: int64[8]",
        "  fc1.weight: weight of a product",
    ):
        assert line in said.splitlines()
    first, last = re.search(r"30 steps on random data: [\d.]+ ms each, loss ([\d.]+) to ([\d.]+)", said).groups()  # type: ignore[union-attr]
    assert float(last) < float(first), "the same batch again and again"


def test_a_model_whose_weights_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of `check` train its adapters. Its artifacts equal the whole model's."""
    monkeypatch.chdir(tmp_path)
    smol.write(Path("whole"), replace(smol.SIZES["4M"], layers=1, vocabulary=64))
    path = smol.write(Path("m"), replace(smol.SIZES["4M"], layers=1, vocabulary=64), weights="safetensors")
    loss = ["--loss", "CrossEntropyLoss"]
    assert main(["check", str(path), *loss]) == 1
    assert "If another file has them, give --weights." in capsys.readouterr().out
    beside = [*loss, "--weights", "m/model.safetensors"]
    adapters = ["--lora", "2", "--dim", "batch=1", "--dim", "sequence=8", "--steps", "2", "--code", "python"]
    assert main(["check", str(path), *beside, *adapters]) == 0
    report, _, code = capsys.readouterr().out.partition("\n\n")
    assert "  model.layers.0.self_attn.q_proj.lora_A.weight: adapter" in report.splitlines()
    assert "2 steps on random data" in report
    told: dict[str, object] = {}
    exec(code, told)
    session = told["session"]
    assert isinstance(session, trainweb.TrainingSession)
    assert all("lora_" in name for name in session.parameter_names(trainable_only=True))
    session.release()
    assert main(["artifacts", str(path), *beside, "-o", "beside"]) == 0
    assert main(["artifacts", "whole/model.onnx", *loss, "-o", "at_once"]) == 0
    for name in ("training_model.onnx", "checkpoint"):
        assert Path("beside", name).read_bytes() == Path("at_once", name).read_bytes()


def test_artifacts_train_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = smol.write(tmp_path, replace(smol.SIZES["4M"], layers=1, vocabulary=64))
    arguments = ["artifacts", str(model), "--loss", "CrossEntropyLoss", "--lora", "3", "-o", str(tmp_path)]
    assert main(arguments) == 0
    built = trainweb.lora.inject(model, rank=3).build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
    assert (tmp_path / "checkpoint").read_bytes() == built.checkpoint
    assert (tmp_path / "training_model.onnx").read_bytes() == built.training_model
    capsys.readouterr()
    for command in (arguments, ["check", *arguments[1:-2]]):
        assert main([*command, "--freeze", "model.norm.weight"]) == 1
        assert "leave out --train and --freeze" in capsys.readouterr().err


@pytest.mark.parametrize("layer", ["", "fc3="])
def test_the_head_is_replaced(layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = GOLDEN / "base.onnx"
    arguments = [str(model), "--loss", "CrossEntropyLoss", "--head", f"{layer}5", "--freeze", "all but head"]
    with pytest.warns(
        UserWarning, match="The head 'fc3' is new: it has 5 classes and random weights. It had 4 classes."
    ):
        assert main(["artifacts", *arguments, "-o", str(tmp_path)]) == 0
    made = trainweb.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    shapes = {name: made.parameters[name].data.shape for name in made.parameters if made.parameters[name].requires_grad}
    assert shapes == {"fc3.weight": (5, 12), "fc3.bias": (5,)}
    capsys.readouterr()
    assert main(["check", *arguments, "--steps", "1", "--code", "python"]) == 0
    said = capsys.readouterr().out
    assert "2 trainable parameters with 65 elements" in said and '"classes": 5' in said
    for words, error in (("five", "--head has the form CLASSES"), ("fc9=5", "The layer 'fc9' cannot be the head")):
        assert main(["artifacts", str(model), "--loss", "CrossEntropyLoss", "--head", words, "-o", str(tmp_path)]) == 1
        assert error in capsys.readouterr().err


def test_quantized_weights_that_cannot_be_trained_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "quantized.onnx"
    whole = smol.write(tmp_path, replace(smol.SIZES["4M"], layers=1, vocabulary=64))
    model.write_bytes(trainweb.quantize(whole, 8))
    with pytest.warns(UserWarning, match="_scales"):
        assert main(["artifacts", str(model), "--loss", "CrossEntropyLoss", "-o", str(tmp_path)]) == 1
    assert 'freeze scales or "all but head", or train adapters: lora, --lora' in capsys.readouterr().err


def test_check_gives_lines_that_train_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--loss", "CrossEntropyLoss", "--optimizer", "SGD", "--freeze", "fc1.*", "--dim", "batch=3"]
    assert main(["check", str(GOLDEN / "base.onnx"), *arguments, "--code", "python"]) == 0
    code = capsys.readouterr().out.partition("\n\n")[2]
    told: dict[str, object] = {}
    exec(code, told)
    session = told["session"]
    assert isinstance(session, trainweb.TrainingSession)
    assert session.step_count() == 100 and "fc1.weight" not in session.parameter_names(trainable_only=True)
    losses = json.loads(capsys.readouterr().out)
    assert len(losses) == 100 and losses[-1] < losses[0]
    exported = told["trained"]
    assert isinstance(exported, bytes) and b"logits" in exported
    session.release()


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        (["x=float32[4,10]"], "FeedError: input 'labels' is missing in 'feeds'."),
        (
            ["y=float32[4,10]", "labels=int64[4]"],
            "FeedError: input 'x' is missing in 'feeds', which has 'y': the model's inputs are x, labels.",
        ),
        (["x=float32[4,10]", "labels=int64[4]", "z=int64[1]"], "FeedError: invalid input 'z': the model's inputs are"),
    ],
)
def test_feeds_of_no_step_are_refused(
    artifacts: Path, feeds: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [argument for feed in feeds for argument in ("--feed", feed)]
    assert main(["compile", str(artifacts), *arguments, "-o", str(tmp_path / "new" / "a.bundle")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_bundle_may_go_into_a_new_folder(artifacts: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.bundle"
    assert (
        main(["compile", str(artifacts), "--feed", "x=float32[4,10]", "--feed", "labels=int64[4]", "-o", str(target)])
        == 0
    )
    assert target.read_bytes()[:8] == b"TWBUNDLE"


def test_code_for_a_page_names_the_files_beside_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load(GOLDEN / "base.onnx")
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert main(["check", str(tmp_path / "m.onnx"), "--loss", "CrossEntropyLoss", "--code", "javascript"]) == 0
    assert 'optimizer: "AdamW" }, { externalData: ["m.data"] });' in capsys.readouterr().out


def test_code_is_not_given_for_what_it_cannot_say() -> None:
    model = GOLDEN / "base.onnx"
    report = trainweb.check(model, loss=trainweb.onnxblock.loss.CrossEntropyLoss(label_smoothing=0.1))
    assert report.ok and report.code == {}


# Outputs and losses that are to be chosen.


def test_artifacts_ask_for_a_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifacts", str(GOLDEN / "base.onnx"), "-o", str(tmp_path / "made")]) == 1
    assert "'logits' has shape [batch, 4] and is not a loss yet" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_an_output_is_chosen_for_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, scores = str(tmp_path / "two.onnx"), "pooled"
    proto = onnx.load(GOLDEN / "base.onnx")
    proto.graph.node.append(onnx.helper.make_node("Softmax", ["logits"], [scores]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info(scores, onnx.TensorProto.FLOAT, ["batch", 4]))
    onnx.save(proto, model)
    assert main(["check", model, "--loss", "MSELoss"]) == 1
    shown = capsys.readouterr().out
    assert "MSELoss takes 1 of the model's outputs, but these are given: logits, pooled" in shown.splitlines()[0]
    assert "choose with --loss-output" in shown and "  fc1.weight: " in shown, "the parameters are listed all the same"
    assert main(["check", model, "--loss", "CrossEntropyLoss", "--output", scores, "--steps", "1"]) == 0
    shown = capsys.readouterr().out
    assert "applies Softmax itself" in shown and "--loss-output 'logits'" in shown and "1 steps on random data" in shown
    assert main(["check", model, "--loss", "CrossEntropyLoss", "--loss-output", "logits"]) == 0
    assert "Softmax itself" not in capsys.readouterr().out
    chosen = ["--loss", "MSELoss", "--loss-output", "logits"]
    assert main(["artifacts", model, *chosen, "-o", str(tmp_path)]) == 0
    assert (tmp_path / "training_model.onnx").exists()


def test_batch_norms_are_kept_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "norm.onnx"
    model.write_bytes(normalized())
    assert main(["check", str(model), "--loss", "MSELoss"]) == 0
    assert "--batch-norm as_exported keeps those of the file" in capsys.readouterr().out
    assert main(["check", str(model), "--loss", "MSELoss", "--batch-norm", "as_exported"]) == 0
    assert "inference mode" not in capsys.readouterr().out
    for mode, operator in (("train", "BatchNormInternal"), ("as_exported", "BatchNormalization")):
        arguments = ["--loss", "MSELoss", "--batch-norm", mode, "-o", str(tmp_path)]
        assert main(["artifacts", str(model), *arguments]) == 0
        nodes = onnx.load(tmp_path / "training_model.onnx").graph.node
        assert operator in {node.op_type for node in nodes}


def test_a_dimension_has_the_name_that_the_file_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tf2onnx makes names up, unk__5, which are read as none; other tools show them."""
    model = str(tmp_path / "unk.onnx")
    proto = onnx.load(GOLDEN / "base.onnx")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "unk__56"
    onnx.save(proto, model)
    for name in ("unk__56", "x[0]"):
        assert main(["check", model, "--loss", "CrossEntropyLoss", "--dim", f"{name}=7"]) == 0
        assert "x: float32[7, 10]" in capsys.readouterr().out
    assert main(["check", model, "--loss", "CrossEntropyLoss", "--dim", "unk__57=7"]) == 1
    assert "no dimension 'unk__57'" in capsys.readouterr().out
