"""Misspelt names: a TypeError that says the nearest, in every call and nested setting; settings with two names."""

import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest

import trainweb
from trainweb import arguments, schedules
from trainweb.arguments import nearest
from trainweb.artifacts import build_artifacts
from trainweb.data import Dataset, from_csv
from trainweb.errors import ModelError
from trainweb.fit import History
from trainweb.onnxblock import optim
from trainweb.onnxblock.loss import CrossEntropyLoss

MODEL = trainweb.data.example("first.onnx")
DATA = {"points": np.zeros((8, 2), np.float32), "labels": np.zeros(8, np.int64)}


def opened(**settings: Any) -> trainweb.TrainingSession:
    return trainweb.TrainingSession.from_model(MODEL, **{"loss": "CrossEntropyLoss", **settings})


def fitted(**options: Any) -> Any:
    with opened() as session:
        return session.fit(DATA, progress=False, **options)


def asked(call: Callable[[trainweb.TrainingSession], object]) -> object:
    with opened() as session:
        return call(session)


MISSPELT: list[tuple[Callable[[], object], str]] = [
    (lambda: opened(loss="CrossEntropy"), "CrossEntropyLoss"),
    (lambda: opened(optimizer="Adamw"), "AdamW"),
    (lambda: opened(learningRate=1), "learning_rate"),
    (lambda: opened(lr=1), "learning_rate"),
    (lambda: opened(lora={"ranks": 1}), "rank"),
    (lambda: opened(ema={"decays": 0.9}), "decay"),
    (lambda: opened(loss={"type": "CrossEntropyLoss", "weigth": [1, 1]}), "weight"),
    (lambda: opened(optimizer={"type": "AdamW", "group": []}), "groups"),
    (lambda: opened(optimizer={"type": "AdamW", "groups": [{"parameters": [".*"], "epss": 1}]}), "eps"),
    (lambda: opened(options={"thread": 1}), "threads"),
    (lambda: optim.AdamW(weight_decy=0.1), "weight_decay"),
    (lambda: build_artifacts(MODEL, los="MSELoss"), "loss"),
    (lambda: fitted(epoch=1), "epochs"),
    (lambda: fitted(lr=1), "learning_rate"),
    (lambda: fitted(schedule="Cosin"), "Cosine"),
    (lambda: fitted(schedule={"type": "Cosine", "warmups": 1}), "warmup"),
    (lambda: fitted(validation_split=0.5, metrics=["acuracy"]), "accuracy"),
    (lambda: fitted(validation_split=0.5, metrics=[{"type": "topK", "ignore": 1}]), "ignore_index"),
    (lambda: fitted(early_stopping={"patienc": 1}), "patience"),
    (lambda: fitted(checkpoint={"store": "x", "name": "y", "evry": 1}), "every"),
    (lambda: asked(lambda s: s.evaluate(DATA, metric="accuracy")), "metrics"),
    (lambda: asked(lambda s: s.predict(DATA, output="logits")), "outputs"),
    (lambda: asked(lambda s: s.get_contiguous_parameters(trainable=True)), "trainable_only"),
    (lambda: asked(lambda s: s.federated(clip=1)), "clip_norm"),
    (lambda: Dataset(DATA).shuffle(bufer=1), "buffer"),
    (lambda: from_csv("x.csv", column={}), "columns"),
    (lambda: from_csv("x.csv", sep=";"), "delimiter"),
    (lambda: trainweb.data.read_image(b"", 1, 1, chanels=1), "channels"),
    (lambda: trainweb.data.read_image(b"", 1, 1, augment={"sed": 1}), "seed"),
]


@pytest.mark.parametrize(("call", "meant"), MISSPELT, ids=[meant for _, meant in MISSPELT])
def test_a_misspelt_name_is_a_type_error_that_says_the_nearest(call: Callable[[], object], meant: str) -> None:
    with pytest.raises(TypeError, match=rf"did you mean '{meant}'\?"):
        call()


SAVED = "did you mean 'checkpoint' of fit or TrainingSession, or load_checkpoint of the session?"
CHECKPOINTS = ("checkpoint", "checkpoint_state", "load_checkpoint", "ckpt_path", "resume_from_checkpoint")
KERAS: list[tuple[Callable[[], object], str]] = [
    (lambda: opened(loss_weights=[1.0, 0.3]), "from_model 'loss_weights' is not known; did you mean 'loss'?"),
    (lambda: opened(class_weight={0: 1.0}), "did you mean 'loss'?"),
    (lambda: opened(loss="mae"), "did you mean 'L1Loss'?"),
    (lambda: opened(loss="binary_crossentropy"), "did you mean 'BCEWithLogitsLoss'?"),
    (lambda: opened(loss="CrossEntropyLoss", head={"classes": 1}), "BCEWithLogitsLoss decides yes and no"),
    (lambda: fitted(metrics=["acc"], validation_split=0.5), "did you mean 'accuracy'?"),
    (lambda: fitted(metrics="roc_auc", validation_split=0.5), "did you mean 'auc'?"),
    (lambda: fitted(metrics=["r2_score"], validation_split=0.5), "did you mean 'r2'?"),
    (lambda: fitted(metrics="meanSquaredError", validation_split=0.5), "did you mean 'rmse'?"),
    (lambda: opened(loss="mean_absolute_error"), "There is no loss 'mean_absolute_error'; did you mean 'L1Loss'?"),
    (lambda: opened(metrics=["accuracy"]), "did you mean 'metrics' of fit?"),
    *((lambda name=name: opened(**{name: "x.ckpt"}), SAVED) for name in CHECKPOINTS),
    (lambda: opened(threads=2), "did you mean 'threads' of the session options?"),
    (lambda: opened(device="webgpu"), "did you mean 'device' of the session options?"),
    (lambda: opened(batch_size=2), "did you mean 'batch_size' of fit?"),
    (lambda: fitted(frozen_params=["a"]), "did you mean 'frozen_params' of from_model?"),
    (lambda: fitted(verbose=1), "did you mean 'progress'?"),
    (lambda: fitted(sample_weight=np.ones(4)), "fit has no setting 'sample_weight'; did you mean 'sample_weight' of "),
    (lambda: fitted(class_weight={0: 1.0}), "did you mean 'loss' of from_model?"),
    (lambda: fitted(workers=2), "fit has no setting 'workers'; there are epochs, steps_per_epoch, "),
    (lambda: fitted(validationData=DATA), "did you mean 'validation_data'?"),
    (lambda: fitted(early_stopping={"patience": 1, "metrics": "loss"}), "did you mean 'metric'?"),
    (lambda: trainweb.TrainingSession("x.ckpt"), "needs 'train_model' or 'training_model': from_model makes them of "),  # type: ignore[arg-type]
]
"""What users of Keras type, and a part of the error."""


@pytest.mark.parametrize(("call", "said"), KERAS, ids=[said for _, said in KERAS])
def test_words_of_keras_lead_to_ours(call: Callable[[], object], said: str) -> None:
    with pytest.raises((TypeError, ModelError), match=re.escape(said)):
        call()


ATTRIBUTES: list[tuple[Callable[[], object], str, str]] = [
    (opened, "zero_grad", "'TrainingSession' object has no attribute 'zero_grad'; use lazy_reset_grad."),
    (opened, "compile", "use from_model, which takes loss and optimizer."),
    (opened, "score", "use evaluate."),
    (fitted, "history", "'History' object has no attribute 'history'; use history[\"loss\"]."),
    (lambda: Dataset(DATA), "fit_transform", "use standardize and others of a Dataset, and preprocess."),
    (lambda: Dataset(DATA), "iloc", "'Dataset' object has no attribute 'iloc'"),
]


@pytest.mark.parametrize(("make", "name", "said"), ATTRIBUTES, ids=[name for _, name, _ in ATTRIBUTES])
def test_attributes_of_other_libraries_lead_to_ours(make: Callable[[], object], name: str, said: str) -> None:
    owner = make()
    with pytest.raises(AttributeError) as raised:
        getattr(owner, name)
    assert str(raised.value).endswith(said) and not hasattr(owner, name)
    if isinstance(owner, trainweb.TrainingSession):
        owner.release()


def test_the_names_that_attributes_lead_to_exist() -> None:
    owners = (trainweb.TrainingSession, History, Dataset)
    assert [name for name in arguments.ATTRIBUTES if any(hasattr(owner, name) for owner in owners)] == []
    ours = {word for text in arguments.ATTRIBUTES.values() for word in re.findall(r"\w+_\w+", text)}
    assert [name for name in ours if not any(hasattr(owner, name) for owner in owners)] == []


def test_a_history_names_the_values_that_it_has() -> None:
    history = fitted(validation_split=0.5, metrics="accuracy")
    assert isinstance(history, History) and len(history["val_accuracy"]) == 1
    for name, meant in (("accuracy", "val_accuracy"), ("val_acc", "val_accuracy"), ("lr", "learning_rate")):
        with pytest.raises(KeyError, match=f"The value '{name}' is not known; did you mean '{meant}'"):
            history[name]
    with pytest.raises(KeyError, match="there are learning_rate, loss, val_accuracy, val_loss"):
        history["time"]


def test_the_nearest_takes_the_least_changes() -> None:
    for name, known, found in (
        ("kitten", ["sitting", "mitten"], "mitten"),
        ("abc", ["xyz", "abd", "abe"], "abd"),
        ("batchSize", ["epochs", "batch_size"], "batch_size"),
        ("clip", ["seed", "clip_norm"], "clip_norm"),
        ("mse", ["L1Loss", "MSELoss"], "MSELoss"),
    ):
        assert nearest(name, known) == found


@pytest.mark.parametrize(
    ("name", "other", "settings"),
    [
        ("eps", "epsilon", lambda name: {"optimizer": {"type": "AdamW", name: 0.1}}),
        ("weight", "weights", lambda name: {"loss": {"type": "CrossEntropyLoss", name: [1.0, 9.0]}}),
        ("eps", "epsilon", lambda name: {"optimizer": optim.AdamW(**{name: 0.1})}),
        ("weight", "weights", lambda name: {"loss": CrossEntropyLoss(**{name: [1.0, 9.0]})}),
    ],
)
def test_a_setting_with_two_names(name: str, other: str, settings: Callable[[str], dict[str, Any]]) -> None:
    plain, *both = (
        build_artifacts(MODEL, **{"loss": "CrossEntropyLoss", "optimizer": "AdamW", **given})
        for given in ({}, settings(name), settings(other))
    )
    models = [(made.training_model, made.optimizer_model) for made in both]
    assert models[0] == models[1] != (plain.training_model, plain.optimizer_model)


def test_one_setting_by_both_names_is_refused() -> None:
    with pytest.raises(TypeError, match="'pos_weight' and 'positive_weights' for the same setting"):
        opened(loss={"type": "BCEWithLogitsLoss", "pos_weight": [1.0], "positive_weights": [1.0]})


def shown(value: Any) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def test_completion_leaves_out_internals() -> None:
    with opened() as session:
        state = trainweb.CheckpointState.load_checkpoint(session.save())
        assert "fit" in shown(session) and "core" not in shown(session)
        assert shown(state) == {"is_nominal", "load_checkpoint", "parameters", "properties", "save_checkpoint"}
    block = {"add_node", "base", "build"}
    for value, names in (
        (optim.Lookahead, {*block, "average", "clip", "exempt_vectors", "graph", "group", "to_model_proto"}),
        (CrossEntropyLoss, {*block, *(f.name for f in fields(CrossEntropyLoss) if f.default is not MISSING)}),
        (
            schedules.Linear,
            {"observe", "rate", *(f.name for f in fields(schedules.Linear) if f.default is not MISSING)},
        ),
    ):
        assert shown(value) == names
    options = {f.name for f in fields(trainweb.RunOptions)} | {"logid"}
    assert shown(trainweb.RunOptions()) == {*options, "add_run_config_entry", "get_run_config_entry"}
    calls = {name for name in shown(trainweb.SessionOptions()) if name.startswith(("add_", "get_", "register_"))}
    assert shown(trainweb.SessionOptions()) == calls | {f.name for f in fields(trainweb.SessionOptions)}
    assert not {"Pairs", "Result"} & set(dir(trainweb.api))
