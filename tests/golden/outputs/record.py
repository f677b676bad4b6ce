"""Records expected.npz and expected.json with Keras on torch: `KERAS_BACKEND=torch python record.py`.

A model of two outputs with a loss each, and `loss_weights`; the same with weights of rows; and four tasks whose labels
are missing for some rows. Keras trains, evaluates and computes the weighted metrics.
"""

import json
from pathlib import Path

import keras
import numpy as np

HERE = Path(__file__).parent
ROWS, VALIDATION, BATCH, EPOCHS, RATE = 23, 11, 5, 3, 0.1


def data(rng, rows):
    x = rng.standard_normal((rows, 6)).astype(np.float32)
    kind = rng.integers(0, 3, rows)
    age = (2 * x[:, :1] + rng.standard_normal((rows, 1))).astype(np.float32)
    weight = rng.choice([0, 0.5, 1, 2], rows).astype(np.float32)
    tasks = rng.integers(0, 2, (rows, 4)).astype(np.float32)
    present = (rng.random((rows, 4)) < 0.6).astype(np.float32)
    return {"x": x, "kind": kind, "age": age, "w": weight, "tasks": tasks, "present": present}


def weights(rng):
    shapes = {"hidden": (6, 8), "kind": (8, 3), "age": (8, 1), "tasks": (8, 4)}
    return {name: (rng.standard_normal(shape) / 2).astype(np.float32) for name, shape in shapes.items()}


def model(start, outputs):
    x = keras.Input((6,))
    hidden = keras.layers.Dense(8, "relu", use_bias=False, name="hidden")
    h = hidden(x)
    layers = {name: keras.layers.Dense(start[name].shape[1], use_bias=False, name=name) for name in outputs}
    of_tasks = keras.layers.Reshape((4, 1))
    made = keras.Model(x, {name: of_tasks(layer(h)) if name == "tasks" else layer(h) for name, layer in layers.items()})
    for layer in (hidden, *layers.values()):
        layer.set_weights([start[layer.name]])
    return made


def trained(start, train, test, case):
    outputs = list(case["loss"])
    made = model(start, outputs)
    made.compile(
        keras.optimizers.SGD(RATE),
        loss=case["loss"],
        loss_weights=case.get("loss_weights"),
        weighted_metrics=case["metrics"],
    )

    def of(part):
        weight = case.get("weight")
        each = None if weight is None else dict.fromkeys(outputs, part[weight])
        return part["x"], {name: part[name][..., None] if name == "tasks" else part[name] for name in outputs}, each

    x, y, weight = of(train)
    validation = of(test) if case.get("weight") else of(test)[:2]
    ran = made.fit(x, y, BATCH, EPOCHS, 0, sample_weight=weight, validation_data=validation, shuffle=False)
    end = {layer.name: layer.get_weights()[0] for layer in made.layers if layer.get_weights()}
    return {name: [float(v) for v in values] for name, values in ran.history.items()}, end


CASES = {
    "terms": {
        "loss": {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "age": keras.losses.Huber()},
        "loss_weights": {"kind": 1.0, "age": 0.3},
        "metrics": {"kind": ["accuracy"], "age": ["mae"]},
    },
    "rows": {
        "loss": {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "age": "mse"},
        "loss_weights": {"kind": 1.0, "age": 0.5},
        "metrics": {"kind": ["accuracy"], "age": ["mae", "r2_score"]},
        "weight": "w",
    },
    "one": {
        "loss": {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        "metrics": {"kind": ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")]},
        "weight": "w",
    },
    "tasks": {
        "loss": {"tasks": keras.losses.BinaryCrossentropy(from_logits=True)},
        "metrics": {"tasks": [keras.metrics.BinaryAccuracy(threshold=0)]},
        "weight": "present",
    },
}


def main():
    rng = np.random.default_rng(38)
    start, train, test = weights(rng), data(rng, ROWS), data(rng, VALIDATION)
    arrays = {f"start.{k}": v for k, v in start.items()}
    arrays |= {f"{part}.{k}": v for part, values in (("train", train), ("test", test)) for k, v in values.items()}
    histories = {}
    for name, case in CASES.items():
        histories[name], end = trained(start, train, test, case)
        arrays |= {f"{name}.{k}": v for k, v in end.items()}
    np.savez_compressed(HERE / "expected.npz", **arrays)
    (HERE / "expected.json").write_text(json.dumps(histories, indent=1) + "\n")


if __name__ == "__main__":
    main()
