"""Record small models of Keras and JAX as their exporters write them, with five steps of SGD of the framework itself.

    python scripts/record_frameworks.py tensorflow
    python scripts/record_frameworks.py jax

Neither trainweb nor its tests need the environment: keras 3.15, tensorflow-cpu 2.21 and tf2onnx 1.17, or keras, jax
0.10, flax 0.12, jax2onnx 0.17 and optax 0.2. Each model becomes `NAME.onnx` and `NAME.npz` (feeds and losses) in
tests/conformance/frameworks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

TARGET = Path(__file__).parents[1] / "tests" / "conformance" / "frameworks"
STEPS = 5
RATE = 0.1
LABELS = np.array([0, 1, 2, 1])


def save(name: str, x: np.ndarray, losses: list[float]) -> None:
    """Keep what was fed, under the name in the file, and what the framework's training came to."""
    model = onnx.load(TARGET / f"{name}.onnx")
    feeds: dict[str, Any] = {model.graph.input[0].name: x, "labels": LABELS}
    np.savez(TARGET / f"{name}.npz", losses=np.array(losses), **feeds)
    print(name, losses)


def keras_models(layers: Any, keras: Any) -> Iterator[tuple[str, Any, np.ndarray]]:
    """A multilayer perceptron, a convolutional network and one of sequences, with data."""
    random = np.random.default_rng(0)
    start = keras.Input((8,))
    x = layers.ReLU()(layers.LayerNormalization()(layers.Dense(16)(start)))
    yield "dense", keras.Model(start, layers.Dense(3)(x)), random.normal(size=(4, 8)).astype(np.float32)
    start = keras.Input((8, 8, 2))
    x = layers.MaxPooling2D()(layers.Conv2D(4, 3, activation="relu")(start))
    images = random.normal(size=(4, 8, 8, 2)).astype(np.float32)
    yield "conv", keras.Model(start, layers.Dense(3)(layers.Flatten()(x))), images
    start = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(start)
    x = layers.LSTM(8)(x + layers.MultiHeadAttention(2, 4)(x, x))
    yield "sequence", keras.Model(start, layers.Dense(3)(x)), random.integers(0, 20, (4, 6)).astype(np.int32)


def record_keras(backend: str) -> None:
    """Train a little, so that TensorFlow's optimizer finds no zeros to drop; export; train on."""
    import keras

    keras.utils.set_random_seed(0)
    for name, model, x in keras_models(keras.layers, keras):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(RATE), loss)
        for _ in range(3):
            model.train_on_batch(x, LABELS)
        full = f"keras-{backend}-{name}"
        model.export(TARGET / f"{full}.onnx", format="onnx", verbose=False)
        save(full, x, [float(model.train_on_batch(x, LABELS)) for _ in range(STEPS)])


def record_flax() -> None:
    """A module of flax by jax2onnx, trained with JAX's own gradients."""
    import jax
    import optax
    from flax import nnx
    from jax2onnx import to_onnx

    rngs = nnx.Rngs(0)
    net = nnx.Sequential(
        nnx.Linear(2, 16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs), nnx.relu, nnx.Linear(16, 3, rngs=rngs)
    )
    path = str(TARGET / "flax.onnx")
    to_onnx(net, [("batch", 2)], model_name="net", return_mode="file", output_path=path)
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    graph, state = nnx.split(net)

    def loss_of(state: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(nnx.merge(graph, state)(x), LABELS).mean()

    losses = []
    for _ in range(STEPS):
        loss, gradient = jax.value_and_grad(loss_of)(state)
        losses.append(float(loss))
        state = jax.tree.map(lambda value, change: value - RATE * change, state, gradient)
    save("flax", x, losses)


def main() -> None:
    (backend,) = sys.argv[1:]
    os.environ["KERAS_BACKEND"] = backend
    TARGET.mkdir(exist_ok=True)
    record_keras(backend)
    if backend == "jax":
        record_flax()


if __name__ == "__main__":
    main()
