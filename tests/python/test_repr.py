"""Sessions, datasets and histories say in one line what they are."""

import numpy as np

import trainweb
from trainweb.data import Dataset, example
from trainweb.fit.trainer import History

DATA = {"points": np.zeros((1200, 2), np.float32), "labels": np.zeros(1200, np.int64)}


def test_a_session_names_its_parameters_its_optimizer_and_its_steps() -> None:
    session = trainweb.TrainingSession.from_model(
        example("first.onnx"), loss="CrossEntropyLoss", optimizer="SGD", learning_rate=0.05, frozen_params=["hidden.*"]
    )
    assert repr(session) == "<TrainingSession: 82 parameters, 34 trainable, SGD, learning rate 0.05, steps 0>"
    history = session.fit(DATA, epochs=2, batch_size=300, validation_split=0.5, metrics=["accuracy"])
    assert str(session) == "<TrainingSession: 82 parameters, 34 trainable, SGD, learning rate 0.05, steps 4>"
    session.release()
    assert repr(session) == "<TrainingSession: released>"
    loss, validation = history["loss"][-1], history["val_loss"][-1]
    assert repr(history) == (
        f"<History: 2 epochs, 4 batches, 4 optimizer steps, loss {loss:.4g}, val_loss {validation:.4g}, "
        "val_accuracy 1, learning_rate 0.05, done>"
    )
    assert repr(History()) == "<History: 0 epochs, 0 batches, 0 optimizer steps, done>"


def test_a_session_without_an_optimizer_says_so() -> None:
    made = trainweb.artifacts.build_artifacts(example("first.onnx"), loss=trainweb.artifacts.LossType.CrossEntropyLoss)
    with trainweb.TrainingSession(checkpoint=made.checkpoint, train_model=made.training_model) as session:
        assert repr(session) == "<TrainingSession: 82 parameters, 82 trainable, no optimizer>"


def test_an_inference_session_and_datasets_name_their_inputs() -> None:
    session = trainweb.InferenceSession(example("first.onnx"))
    session.release()
    assert repr(session) == "<InferenceSession: points tensor(float)[batch, 2] to logits tensor(float)[batch, 2]>"
    assert repr(Dataset(DATA)) == "<Dataset: 1,200 rows of points float32[2], labels int64[]>"
    assert repr(Dataset([{"x": 1}])) == "<Dataset: list of rows>"
    assert repr(Dataset(DATA).map(lambda row: row)) == "<Dataset: stream of rows>"
    assert repr(Dataset(DATA).batch(8)) == "<Dataset: stream of batches>"
