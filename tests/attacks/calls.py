"""Public calls of the Python package with arguments that work, for the sweep that puts hostile ones in their place."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from onnx import helper
from tests.conformance.models import make_model
from tests.guides.people import people

import trainweb
from trainweb import artifacts, data, federated, lora, onnxblock, schedules
from trainweb.compat import onnxruntime as ort

MLP = Path(__file__).resolve().parents[1] / "golden" / "mlp"
FORWARD = MLP.parents[2] / "docs" / "first.onnx"
TRAIN, EVAL, OPTIMIZER, CHECKPOINT = (
    (MLP / name).read_bytes()
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")
)

T = TypeVar("T")


@dataclass(frozen=True)
class PublicCall:
    """A call, made anew for each try, and arguments with which it works."""

    make: Callable[[Path], Callable[..., Any]]
    valid: Callable[[Path], Mapping[str, Any]]
    is_refused: bool = False
    """Whether the call is there to say that there is no such thing here."""


OPENED: list[Any] = []
"""Sessions that calls are made of; the sweep releases them."""


def opened(made: T) -> T:
    OPENED.append(made)
    return made


def state() -> trainweb.CheckpointState:
    return trainweb.CheckpointState.load_checkpoint(CHECKPOINT)


class Letters:
    def encode(self, text: str) -> list[int]:
        return [ord(one) % 32 for one in text]


TOKENS = MLP.parent / "generate" / "gpt2.onnx"
GENERATE = {
    "prompt": [1, 2, 3],
    "max_tokens": 2,
    "temperature": 1.0,
    "top_k": 5,
    "top_p": 0.9,
    "seed": 1,
    "stop": (),
    "tokenizer": None,
    "adapter": True,
}


def two_products() -> bytes:
    """A model whose weights are large enough to be quantized."""
    square = np.eye(64, dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])]
    made = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, {"a": square, "b": square})
    return bytes(made.SerializeToString())


def trained_on_tokens() -> trainweb.TrainingSession:
    return opened(trainweb.TrainingSession.from_model(TOKENS, loss="CrossEntropyLoss"))


def tokens_of(session: Any) -> Callable[..., Any]:
    """All tokens of `generate`, which an iterator makes."""
    return lambda **given: list(session.generate(**given))


def feeds(rows: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.ones((rows, 10), np.float32), "labels": np.zeros(rows, np.int64)}


def session() -> trainweb.TrainingSession:
    return opened(trainweb.TrainingSession(state(), TRAIN, EVAL, OPTIMIZER))


@cache
def forward() -> bytes:
    return FORWARD.read_bytes()


def by_output(*, kind: Any, age: Any, kind_weight: Any, age_weight: Any) -> artifacts.Artifacts:
    """Artifacts whose two outputs have losses and weights of their own."""
    return artifacts.build_artifacts(
        people(), loss={"kind": kind, "age": age}, sample_weight={"kind": kind_weight, "age": age_weight}
    )


def points(rows: int = 8) -> dict[str, np.ndarray]:
    return {"points": np.ones((rows, 2), np.float32)}


def inference() -> trainweb.InferenceSession:
    return opened(trainweb.InferenceSession(forward()))


def dataset() -> data.Dataset:
    return data.Dataset(feeds(16))


def table() -> data.Dataset:
    return data.Dataset({"x": np.arange(4.0), "y": np.arange(4.0), "kind": ["a", "b", "a", "b"]})


def stored(folder: Path) -> trainweb.CheckpointStore:
    made = trainweb.CheckpointStore(folder)
    made.save(session(), "kept")
    return made


def renaming(folder: Path) -> Callable[..., Any]:
    def rename(**given: Any) -> None:
        made = stored(folder)
        made.delete("other")
        made.rename(**given)

    return rename


def module(_: Path) -> Any:
    return opened(trainweb.api.Module(TRAIN, state(), EVAL))


def lora_model() -> lora.LoraModel:
    return lora.inject(forward(), rank=2)


def binding() -> Any:
    return inference().io_binding()


def csv(folder: Path) -> str:
    path = folder / "rows.csv"
    path.write_text("a,b,c\n1,2,0\n3,4,1\n")
    return str(path)


def photographs(folder: Path) -> str:
    for name in ("cat", "dog"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "1.png").write_bytes(b"")
    return str(folder)


@cache
def private_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    forms = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*forms)


@cache
def keys() -> dict[str, bytes]:
    made = federated.SecureMember("a", "r", private_key()), federated.SecureMember("b", "r")
    return {member.name: member.public_key for member in made}


def masked(**given: Any) -> np.ndarray:
    """By a new member each time: each does it once."""
    return federated.SecureMember("a", "r", private_key()).mask(**given)


def adapter_folder(folder: Path) -> str:
    lora_model().adapter().save(folder / "adapter")
    return str(folder / "adapter")


def properties() -> Any:
    made = state().properties
    made["x"] = 1
    return made


def of_session(name: str, /, **valid: Any) -> PublicCall:
    return PublicCall(lambda _: getattr(session(), name), lambda _: valid)


def plain(call: Callable[..., Any], /, **valid: Any) -> PublicCall:
    return PublicCall(lambda _: call, lambda _: valid)


def refused(target: Callable[[], Any], name: str, /, **valid: Any) -> PublicCall:
    return PublicCall(lambda _: getattr(target(), name), lambda _: valid, is_refused=True)


def on(target: Callable[[], Any], name: str, /, **valid: Any) -> PublicCall:
    return PublicCall(lambda _: getattr(target(), name), lambda _: valid)


KEPT = points()["points"]

CALLS: dict[str, PublicCall] = {
    "set_seed": plain(trainweb.set_seed, value=0),
    "check": plain(
        trainweb.check,
        model=forward(),
        requires_grad=["w1"],
        frozen_params=None,
        loss="CrossEntropyLoss",
        optimizer="AdamW",
        dims=None,
        feeds=None,
    ),
    "CheckpointState.load_checkpoint": plain(
        trainweb.CheckpointState.load_checkpoint, source=CHECKPOINT, integrity=None
    ),
    "CheckpointState.save_checkpoint": PublicCall(
        lambda _: trainweb.CheckpointState.save_checkpoint,
        lambda folder: {"state": state(), "path": folder / "saved", "include_optimizer_state": False},
    ),
    "CheckpointState.parameters[]": on(lambda: state().parameters, "__getitem__", name="fc1.bias"),
    "CheckpointState.parameters[]=": on(
        lambda: state().parameters, "__setitem__", name="fc1.bias", value=np.zeros(16, np.float32)
    ),
    "CheckpointState.properties[]": on(properties, "__getitem__", name="x"),
    "CheckpointState.properties[]=": on(lambda: state().properties, "__setitem__", name="x", value=1),
    "CheckpointState.properties.del": on(properties, "__delitem__", name="x"),
    "TrainingSession": PublicCall(
        lambda _: trainweb.TrainingSession,
        lambda _: {
            "state": state(),
            "train_model": TRAIN,
            "eval_model": EVAL,
            "optimizer_model": OPTIMIZER,
            "options": None,
        },
    ),
    "train_step": of_session("train_step", feeds=feeds(), fetches=None, options=None),
    "eval_step": of_session("eval_step", feeds=feeds(), fetches=None, options=None),
    "optimizer_step": of_session("optimizer_step", options=None),
    "dead_units": of_session("dead_units", batches=[feeds()]),
    "explain": of_session("explain", feeds=feeds(), training=True),
    "profile": of_session("profile", feeds=feeds(), runs=1, training=True),
    "export_model_for_inferencing": PublicCall(
        lambda _: session().export_model_for_inferencing,
        lambda folder: {"path": folder / "model.onnx", "graph_output_names": session().output_names(False)},
    ),
    "get_contiguous_parameters": of_session("get_contiguous_parameters", trainable_only=True, out=None),
    "get_gradient": of_session("get_gradient", name="fc1.bias"),
    "get_moments": of_session("get_moments", name="fc1.bias"),
    "get_parameter": of_session("get_parameter", name="fc1.bias"),
    "get_parameter_type_and_shape": of_session("get_parameter_type_and_shape", name="fc1.bias"),
    "get_parameters_size": of_session("get_parameters_size", trainable_only=True),
    "input_metadata": of_session("input_metadata", training=True),
    "input_names": of_session("input_names", training=True),
    "output_metadata": of_session("output_metadata", training=True),
    "output_names": of_session("output_names", training=True),
    "parameter_names": of_session("parameter_names", trainable_only=True),
    "load_checkpoint": of_session("load_checkpoint", checkpoint=CHECKPOINT),
    "load_parameters_buffer": of_session(
        "load_parameters_buffer", buffer=np.zeros(432, np.float32), trainable_only=True
    ),
    "register_linear_lr_scheduler": of_session(
        "register_linear_lr_scheduler", warmup_step_count=1, total_step_count=2, initial_lr=0.5
    ),
    "set_learning_rate": of_session("set_learning_rate", lr=0.5),
    "update_parameter": of_session("update_parameter", name="fc1.bias", value=np.zeros(16, np.float32)),
    "InferenceSession": plain(
        trainweb.InferenceSession,
        path_or_bytes=forward(),
        sess_options=None,
        providers=None,
        provider_options=None,
        external_data=None,
        integrity=None,
    ),
    "InferenceSession.run": on(inference, "run", output_names=None, input_feed=points(), run_options=None),
    "InferenceSession.set_providers": on(inference, "set_providers", providers=None, provider_options=None),
    "InferenceSession.run_with_ort_values": on(
        inference,
        "run_with_ort_values",
        output_names=None,
        input_dict_ort_values={"points": ort.OrtValue.ortvalue_from_numpy(points()["points"])},
        run_options=None,
    ),
    "InferenceSession.run_with_iobinding": PublicCall(
        lambda _: lambda **given: inference().run_with_iobinding(**given),
        lambda _: {"iobinding": bound(), "run_options": None},
    ),
    "IOBinding.bind_cpu_input": on(binding, "bind_cpu_input", name="points", arr_on_cpu=points()["points"]),
    "IOBinding.bind_input": PublicCall(
        lambda _: binding().bind_input,
        lambda _: {
            "name": "points",
            "device_type": "cpu",
            "device_id": 0,
            "element_type": np.float32,
            "shape": [8, 2],
            "buffer_ptr": KEPT.ctypes.data,
        },
    ),
    "IOBinding.bind_ortvalue_input": on(
        binding, "bind_ortvalue_input", name="points", ortvalue=ort.OrtValue.ortvalue_from_numpy(points()["points"])
    ),
    "IOBinding.bind_ortvalue_output": on(
        binding,
        "bind_ortvalue_output",
        name="logits",
        ortvalue=ort.OrtValue.ortvalue_from_numpy(np.zeros((8, 2), np.float32)),
    ),
    "IOBinding.bind_output": on(
        binding,
        "bind_output",
        name="logits",
        device_type="cpu",
        device_id=0,
        element_type=None,
        shape=None,
        buffer_ptr=None,
    ),
    "OrtValue.ortvalue_from_numpy": plain(
        ort.OrtValue.ortvalue_from_numpy, numpy_obj=np.zeros(3), device_type="cpu", device_id=0
    ),
    "OrtValue.ortvalue_from_shape_and_type": plain(
        ort.OrtValue.ortvalue_from_shape_and_type, shape=[2], element_type=np.float32, device_type="cpu", device_id=0
    ),
    "OrtValue.update_inplace": on(
        lambda: ort.OrtValue.ortvalue_from_numpy(np.zeros(3)), "update_inplace", np_arr=np.ones(3)
    ),
    "SessionOptions": plain(trainweb.SessionOptions._of, source={}),
    "SessionOptions.add_free_dimension_override_by_name": on(
        trainweb.SessionOptions, "add_free_dimension_override_by_name", name="n", size=3
    ),
    "SessionOptions.add_session_config_entry": on(
        trainweb.SessionOptions, "add_session_config_entry", key="session.disable_prepacking", value="1"
    ),
    "SessionOptions.get_session_config_entry": on(
        trainweb.SessionOptions, "get_session_config_entry", key="session.disable_prepacking"
    ),
    "SessionOptions.add_initializer": refused(trainweb.SessionOptions, "add_initializer", name="a", value=1),
    "SessionOptions.add_external_initializers": refused(
        trainweb.SessionOptions, "add_external_initializers", names=["a"], values=[1]
    ),
    "RunOptions": plain(trainweb.RunOptions._of, source={}),
    "RunOptions.get_run_config_entry": refused(trainweb.RunOptions, "get_run_config_entry", key="a"),
    "TrainingSession.from_model": plain(
        trainweb.TrainingSession.from_model,
        model=forward(),
        loss="CrossEntropyLoss",
        optimizer="AdamW",
        learning_rate=0.01,
        head=None,
        lora=None,
        options=None,
    ),
    "TrainingSession.from_pretrained": plain(
        trainweb.TrainingSession.from_pretrained,
        folder=MLP.parent / "pretrained" / "folder",
        loss="CrossEntropyLoss",
        file=None,
        bits=None,
        tokenizer=Letters(),
        optimizer="AdamW",
        learning_rate=0.01,
        lora=None,
        options=None,
    ),
    "TrainingSession.find_learning_rate": PublicCall(
        lambda _: session().find_learning_rate,
        lambda _: {"data": feeds(16), "steps": 10, "least": 1e-5, "most": 1.0, "batch_size": 8, "seed": 0},
    ),
    "TrainingSession.generate": PublicCall(lambda _: tokens_of(trained_on_tokens()), lambda _: GENERATE),
    "InferenceSession.generate": PublicCall(
        lambda _: tokens_of(opened(trainweb.InferenceSession(TOKENS))),
        lambda _: {name: value for name, value in GENERATE.items() if name != "adapter"},
    ),
    "TrainingSession.save": PublicCall(
        lambda _: session().save, lambda folder: {"path": folder / "saved", "include_optimizer_state": True}
    ),
    "TrainingSession.export": PublicCall(
        lambda _: session().export,
        lambda folder: {"path": folder / "exported.onnx", "outputs": ["logits"], "ema": False},
    ),
    "Trainer": PublicCall(lambda _: trainweb.Trainer, lambda _: {"session": session()}),
    "Trainer.fit": PublicCall(
        lambda _: trainweb.Trainer(session()).fit,
        lambda _: {"data": feeds(16), "epochs": 1, "batch_size": 8, "schedule": None, "accumulate": {"steps": 2}},
    ),
    "build_artifacts": plain(
        artifacts.build_artifacts,
        model=forward(),
        requires_grad=None,
        frozen_params=None,
        loss="CrossEntropyLoss",
        optimizer="AdamW",
        sample_weight={"name": "w", "of": "rows"},
    ),
    "build_artifacts by output": plain(
        by_output,
        kind="CrossEntropyLoss",
        age=["MSELoss", {"name": "HuberLoss", "weight": 0.3}],
        kind_weight="w",
        age_weight={"name": "present", "of": "labels"},
    ),
    "generate_artifacts": PublicCall(
        lambda _: artifacts.generate_artifacts,
        lambda folder: {
            "model": forward(),
            "requires_grad": None,
            "frozen_params": None,
            "loss": artifacts.LossType.CrossEntropyLoss,
            "optimizer": artifacts.OptimType.AdamW,
            "artifact_directory": folder,
            "prefix": "",
        },
    ),
    "CheckpointStore": PublicCall(lambda _: trainweb.CheckpointStore, lambda folder: {"folder": folder}),
    "CheckpointStore.save": PublicCall(
        lambda folder: trainweb.CheckpointStore(folder).save, lambda _: {"session": session(), "name": "a"}
    ),
    "CheckpointStore.load": PublicCall(
        lambda folder: stored(folder).load, lambda _: {"session": session(), "name": "kept"}
    ),
    "CheckpointStore.delete": PublicCall(lambda folder: stored(folder).delete, lambda _: {"name": "kept"}),
    "CheckpointStore.read": PublicCall(lambda folder: stored(folder).read, lambda _: {"name": "kept"}),
    "CheckpointStore.write": PublicCall(
        lambda folder: stored(folder).write,
        lambda folder: {"name": "b", "contents": stored(folder).read("kept")},
    ),
    "CheckpointStore.rename": PublicCall(lambda folder: renaming(folder), lambda _: {"name": "kept", "to": "other"}),
    "TrainingSession.prepare": of_session("prepare", shapes={"x": [8, 10], "labels": [8]}),
    "export_weights": of_session("export_weights", format="safetensors"),
    "load_weights": PublicCall(
        lambda _: session().load_weights, lambda _: {"weights": session().export_weights(), "strict": True}
    ),
    "Adapter.parse_config": plain(lora.Adapter.parse_config, config=lora.LoraConfig(("w",)).to_peft()),
    "LoraModel.merged": PublicCall(lambda _: lora_model().merged, lambda _: {"source": lora_model().adapter()}),
    "Artifacts.write": PublicCall(
        lambda _: artifacts.build_artifacts(forward(), loss="CrossEntropyLoss", optimizer="AdamW").write,
        lambda folder: {"directory": folder, "prefix": "", "nominal": False},
    ),
    "api.Module": PublicCall(
        lambda _: trainweb.api.Module,
        lambda _: {
            "train_model_uri": TRAIN,
            "state": state(),
            "eval_model_uri": EVAL,
            "device": "cpu",
            "session_options": None,
        },
    ),
    "api.Module()": PublicCall(
        lambda folder: lambda x: module(folder)(x, feeds()["labels"]), lambda _: {"x": feeds()["x"]}
    ),
    "api.Module.copy_buffer_to_parameters": PublicCall(
        lambda folder: module(folder).copy_buffer_to_parameters,
        lambda _: {"buffer": np.zeros(432, np.float32), "trainable_only": True},
    ),
    "api.Module.export_model_for_inferencing": PublicCall(
        lambda folder: module(folder).export_model_for_inferencing,
        lambda folder: {"inference_model_uri": folder / "m.onnx", "graph_output_names": session().output_names(False)},
    ),
    "api.Optimizer": PublicCall(
        lambda _: trainweb.api.Optimizer, lambda folder: {"optimizer_uri": OPTIMIZER, "module": module(folder)}
    ),
    "api.Optimizer.set_learning_rate": PublicCall(
        lambda folder: trainweb.api.Optimizer(OPTIMIZER, module(folder)).set_learning_rate,
        lambda _: {"learning_rate": 0.5},
    ),
    "api.LinearLRScheduler": PublicCall(
        lambda _: trainweb.api.LinearLRScheduler,
        lambda folder: {
            "optimizer": trainweb.api.Optimizer(OPTIMIZER, module(folder)),
            "warmup_step_count": 1,
            "total_step_count": 2,
            "initial_lr": 0.5,
        },
    ),
    "Dataset": plain(data.Dataset, source=feeds()),
    "Dataset.of": plain(data.Dataset.of, source=feeds()),
    "Dataset.batch": on(dataset, "batch", size=4, remainder="keep"),
    "Dataset.bucket": on(dataset, "bucket", length=lambda row: 1, bounds=[2, 4], size=2),
    "Dataset.categories": PublicCall(lambda _: lambda names: table().categories(names), lambda _: {"names": "kind"}),
    "Dataset.concat": on(table, "concat", name="xy", parts=["x", "y"]),
    "Dataset.filter": on(dataset, "filter", predicate=lambda row: True),
    "Dataset.from_csv": PublicCall(
        lambda _: data.Dataset.from_csv,
        lambda folder: {
            "source": csv(folder),
            "columns": {"x": ["a", "b"], "labels": "c"},
            "dtypes": None,
            "delimiter": ",",
            "classes": None,
            "missing": "error",
            "decimal": ".",
        },
    ),
    "Dataset.from_text": plain(
        data.Dataset.from_text,
        texts=[{"prompt": "ab", "completion": "cd"}, {"prompt": "e", "completion": "fg"}],
        tokenizer=Letters(),
        length=2,
        pack=True,
        mask_prompt=False,
        end_token=9,
        inputs=["input_ids", "labels"],
    ),
    "Dataset.from_preferences": PublicCall(
        lambda _: data.Dataset.from_preferences,
        lambda _: {
            "pairs": [{"prompt": "ab", "chosen": "cd", "rejected": "ef"}],
            "tokenizer": Letters(),
            "length": 4,
            "reference": opened(trainweb.TrainingSession.from_model(TOKENS, loss="DPOLoss")),
            "batch_size": 1,
            "end_token": 9,
            "seed": 0,
        },
    ),
    "Dataset.fill_mean": PublicCall(lambda _: lambda names: table().fill_mean(names), lambda _: {"names": "x"}),
    "Dataset.fill_median": PublicCall(lambda _: lambda names: table().fill_median(names), lambda _: {"names": "x"}),
    "quantize": plain(trainweb.quantize, model=two_products(), bits=8, only_frozen=True, weights=None),
    "Dataset.map": on(dataset, "map", function=lambda row: row),
    "Dataset.one_hot": PublicCall(
        lambda _: lambda names, unknown: table().one_hot(names, unknown=unknown),
        lambda _: {"names": "kind", "unknown": "zeros"},
    ),
    "Dataset.prefetch": on(dataset, "prefetch", count=1),
    "Dataset.preprocess": on(table, "preprocess", steps=[{"type": "concat", "input": "xy", "parts": ["x", "y"]}]),
    "Dataset.rows": on(dataset, "rows", indices=np.arange(2)),
    "Dataset.shuffle": on(dataset, "shuffle", buffer=4, seed=0),
    "Dataset.split": on(dataset, "split", share=0.5, seed=None, stratify=None),
    "Dataset.standardize": PublicCall(lambda _: lambda names: table().standardize(names), lambda _: {"names": "x"}),
    "Dataset.take": on(dataset, "take", count=2),
    "example": plain(data.example, name="first.onnx"),
    "from_csv": PublicCall(
        lambda _: data.from_csv,
        lambda folder: {
            "source": csv(folder),
            "columns": {"x": ["a", "b"], "labels": "c"},
            "dtypes": None,
            "delimiter": ",",
            "classes": None,
            "missing": "error",
            "decimal": ".",
        },
    ),
    "from_images": plain(
        data.from_images,
        images=[np.zeros((2, 2, 3), np.uint8)] * 2,
        input="x",
        columns={"labels": np.zeros(2, np.int64)},
        seed=0,
        width=2,
        height=2,
        channels=3,
        mean=0.5,
        std=0.5,
        layout="CHW",
        resize="cover",
        augment={"seed": 1, "flip": True},
    ),
    "list_folder": PublicCall(
        lambda _: data.list_folder, lambda folder: {"folder": photographs(folder), "classes": ["cat", "dog"]}
    ),
    "read_image": plain(
        data.read_image,
        source=np.zeros((2, 2, 3), np.uint8),
        width=2,
        height=2,
        channels=1,
        mean=0.5,
        std=0.5,
        layout="HWC",
        resize="cover",
        augment={"seed": 1, "flip": True},
    ),
    "lora.inject": plain(
        lora.inject,
        model=forward(),
        targets=None,
        rank=2,
        alpha=None,
        dropout=0.0,
        init="default",
        modules_to_save=(),
        seed=0,
        config=None,
    ),
    "LoraConfig": plain(
        lora.LoraConfig,
        targets=("w",),
        rank=2,
        alpha=4,
        dropout=0.0,
        use_rslora=False,
        use_dora=False,
        modules_to_save=(),
    ),
    "LoraConfig.of": plain(lora.LoraConfig(("w",)).of, module="layers.0.q_proj"),
    "LoraConfig.from_peft": plain(lora.LoraConfig.from_peft, values=lora.LoraConfig(("w",)).to_peft()),
    "Adapter.load": PublicCall(lambda _: lora.Adapter.load, lambda folder: {"directory": adapter_folder(folder)}),
    "Adapter.from_bytes": PublicCall(
        lambda _: lora.Adapter.from_bytes,
        lambda folder: {
            "weights": (Path(adapter_folder(folder)) / "adapter_model.safetensors").read_bytes(),
            "config": json.loads((folder / "adapter" / "adapter_config.json").read_text()),
        },
    ),
    "Adapter.save": PublicCall(lambda _: lora_model().adapter().save, lambda folder: {"directory": folder / "a"}),
    "LoraModel.adapter": on(lora_model, "adapter", source=None),
    "LoraModel.merge": PublicCall(
        lambda _: lora_model().merge, lambda folder: {"source": lora_model().adapter(), "path": folder / "m.onnx"}
    ),
    "LoraModel.load_adapter": PublicCall(
        lambda _: lora_model().load_adapter, lambda _: {"target": lora_state(), "adapter": lora_model().adapter()}
    ),
    "federated": of_session(
        "federated", clip_norm=1.0, noise_multiplier=0.5, noise_clients=2, seed=None, statistics="local"
    ),
    "FederatedClient": PublicCall(
        lambda _: federated.FederatedClient, lambda _: {"session": session(), "clip_norm": 1.0}
    ),
    "FederatedClient.round": PublicCall(
        lambda _: session().federated().round,
        lambda _: {"parameters": np.zeros(432, np.float32), "data": feeds(16), "proximal": 0.1, "progress": False},
    ),
    "add_noise": plain(federated.add_noise, delta=np.ones(3, np.float32), deviation=1.0, seed=None, stream=0),
    "clip_update": plain(federated.clip_update, delta=np.ones(3, np.float32), norm=1.0),
    "average_updates": PublicCall(
        lambda _: federated.average_updates,
        lambda _: {
            "parameters": np.ones(3, np.float32),
            "updates": [federated.ClientUpdate(np.ones(3, np.float32), 2)],
            "weights": "examples",
        },
    ),
    "privacy_spent": plain(federated.privacy_spent, noise_multiplier=2.0, rounds=3, delta=1e-5, sampling_rate=1.0),
    "SecureMember": plain(federated.SecureMember, name="a", round="r", private_key=None),
    "SecureMember.mask": PublicCall(
        lambda _: masked,
        lambda _: {"update": np.ones(3, np.float32), "public_keys": keys(), "bound": 1.0, "weight": 0.5},
    ),
    "add_masked": plain(
        federated.add_masked, masked={n: np.zeros(8, np.uint32) for n in "ab"}, members=["a", "b"], bound=1.0
    ),
    "GradientGraphBuilder": plain(
        trainweb.GradientGraphBuilder,
        model=forward(),
        y_node_arg_names=["logits"],
        x_node_arg_names=["points"],
        loss_node_arg_name="",
        options=None,
    ),
    "GradientGraphBuilder.save": PublicCall(lambda _: built().save, lambda folder: {"path": folder / "g.onnx"}),
    "make_schedule": plain(schedules.make_schedule, schedule={"type": "Constant", "learning_rate": 0.1}),
    "make_optimizer": plain(onnxblock.optim.make_optimizer, choice="AdamW", clip_grad_norm=None, clip_grad_value=None),
}


def bound() -> Any:
    made = binding()
    made.bind_cpu_input("points", points()["points"])
    made.bind_output("logits")
    return made


def lora_state() -> trainweb.CheckpointState:
    made = lora_model().build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
    return trainweb.CheckpointState.load_checkpoint(made.checkpoint)


def built() -> Any:
    made = trainweb.GradientGraphBuilder(forward(), ["logits"], ["points"])
    made.build()
    return made


RESULT = "what other calls return; nobody makes it by hand"
ANYTHING = "any value is true or false"
REFUSES = "raises whatever it is given"
NOT_SWEPT: dict[str, str] = {
    **dict.fromkeys(
        ("Adapter", "Artifacts", "ClientUpdate", "CheckpointState", "LoraModel", "Pairs", "Result"),
        RESULT,
    ),
    **dict.fromkeys(("Artifacts.contents", "CheckpointState.to_checkpoint", "Module.train"), ANYTHING),
    **dict.fromkeys(("Module.get_contiguous_parameters", "Module.get_parameters_size"), ANYTHING),
    **dict.fromkeys(("RunOptions.add_run_config_entry", "SessionOptions.register_custom_ops_library"), REFUSES),
    "SessionOptions.add_free_dimension_override_by_denotation": REFUSES,
    **dict.fromkeys(("LossType", "OptimType"), "enumerations"),
    "LoraModel.build_artifacts": "as build_artifacts",
    "Pairs.get": "a mapping's, which has a default for every name",
    **dict.fromkeys(("Trainer.fit_async", "TrainingSession.fit", "TrainingSession.fit_async"), "as Trainer.fit"),
    "TrainingSession.evaluate": "data, metrics and batches as of Trainer.fit",
    "TrainingSession.predict": "data as of Trainer.fit, outputs as of export_model_for_inferencing",
    "noise_multiplier_for": "as privacy_spent, which it calls some twenty times",
}
"""Public calls that the sweep leaves out, and why."""
