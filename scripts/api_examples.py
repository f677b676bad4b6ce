"""Examples of the main calls in both languages, which the API reference shows at the call and beside each other.

They run one after the other; tests run them all. `GROUPS` orders the calls of a session.
"""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """A call in both languages.

    Attributes
    ----------
    title : str
        Its task.
    python, page : str
        Module or class of the reference's page, and the name there.
    python_code, page_code : str
        The same in both languages.
    """

    title: str
    python: str
    page: str
    python_code: str
    page_code: str


GROUPS = {
    "Make": """
        create_from_model from_model create_from_pretrained from_pretrained create artifacts release
        async_dispose seed device
    """,
    "Train": """
        fit fit_async find_learning_rate train_step run_train_step run_train_steps optimizer_step run_optimizer_step
        lazy_reset_grad get_learning_rate set_learning_rate register_linear_lr_scheduler
        registerLinearLRScheduler scheduler_step
        prepare step_count federated
    """,
    "Use": """
        predict evaluate generate generation_config tokenizer eval_step run_eval_step export
        export_model_for_inferencing
    """,
    "Save": """
        save save_checkpoint load_checkpoint state add_property get_property get_property_kind property_names
        delete_property export_weights load_weights adapter load_adapter
        merge_adapter adapted get_contiguous_parameters load_parameters_buffer update_parameter get_parameter
    """,
    "Look inside": """
        input_names output_names training_input_names training_output_names eval_input_names eval_output_names
        input_metadata output_metadata training_input_metadata training_output_metadata eval_input_metadata
        eval_output_metadata parameter_names get_parameters_size get_parameter_type_and_shape get_gradient get_moments
        gradient_norms dead_units memory profile explain to_string
    """,
}
"""Groups of the members of a session, in the order of the reference and in Python's spelling, with one exception."""
EXAMPLES = (
    Example(
        "Create a session of a model",
        "trainweb TrainingSession.from_model",
        "TrainingSession createFromModel",
        """
model = trainweb.data.example("first.onnx")
session = trainweb.TrainingSession.from_model(
    model,
    loss="CrossEntropyLoss",
    optimizer="AdamW",
    learning_rate=0.02,
)
""",
        """
const model = example("first.onnx");
const session = await TrainingSession.createFromModel(
  model,
  {
    loss: "CrossEntropyLoss",
    optimizer: "AdamW",
    learningRate: 0.02,
  },
);
""",
    ),
    Example(
        "Make data of arrays",
        "trainweb.data Dataset",
        "Dataset constructor",
        """
random = np.random.default_rng(0)
points = random.uniform(-1, 1, (500, 2)).astype("float32")
inside = np.hypot(points[:, 0], points[:, 1]) < 0.8
labels = inside.astype(np.int64)
rows = {"points": points, "labels": labels}
data, test = trainweb.data.Dataset(rows).split(0.2, seed=1)
""",
        """
const points = Array.from({ length: 500 }, () =>
  [2 * Math.random() - 1, 2 * Math.random() - 1]);
const labels = points.map(([x, y]) =>
  Number(Math.hypot(x, y) < 0.8));
const rows = new Dataset({ points, labels });
const [data, test] = rows.split(0.2, { seed: 1 });
""",
    ),
    Example(
        "Read a table",
        "trainweb.data Dataset.from_csv",
        "Dataset fromCsv",
        """
text = "x,y,kind\\n0.1,0.4,inside\\n0.9,,outside\\n"
file = io.StringIO(text)
columns = {"points": ["x", "y"], "labels": "kind"}
classes = {"labels": ["outside", "inside"]}
table = trainweb.data.Dataset.from_csv(
    file, columns, classes=classes, missing="keep"
)
table = table.fill_mean("points")
""",
        """
const file = "x,y,kind\\n0.1,0.4,inside\\n0.9,,outside\\n";
const columns = { points: ["x", "y"], labels: "kind" };
const classes = { labels: ["outside", "inside"] };
const read = await Dataset.fromCsv(
  file, columns, { classes, missing: "keep" },
);
const table = read.fillMean("points");
""",
    ),
    Example(
        "Find a learning rate",
        "trainweb TrainingSession.find_learning_rate",
        "TrainingSession findLearningRate",
        """
found = session.find_learning_rate(data)
rate = found.suggestion or 0.02
""",
        """
const found = await session.findLearningRate(data);
const rate = found.suggestion ?? 0.02;
""",
    ),
    Example(
        "Train",
        "trainweb TrainingSession.fit",
        "TrainingSession fit",
        """
history = session.fit(
    data,
    epochs=20,
    batch_size=40,
    validation_split=0.2,
    schedule={"type": "Cosine", "learning_rate": 0.02},
    metrics=["accuracy"],
)
print(history["val_accuracy"][-1])
""",
        """
const history = await session.fit(data, {
  epochs: 20,
  batchSize: 40,
  validationSplit: 0.2,
  schedule: { type: "Cosine", learningRate: 0.02 },
  metrics: ["accuracy"],
});
console.log(history.epochs.at(-1).validation.accuracy);
""",
    ),
    Example(
        "Evaluate",
        "trainweb TrainingSession.evaluate",
        "TrainingSession evaluate",
        """
values = session.evaluate(test, metrics=["accuracy", "auc"])
print(values["loss"], values["accuracy"])
""",
        """
const values = await session.evaluate(test, {
  metrics: ["accuracy", "auc"],
});
console.log(values.loss, values.accuracy);
""",
    ),
    Example(
        "Predict",
        "trainweb TrainingSession.predict",
        "TrainingSession predict",
        """
asked = {"points": [[0.0, 0.0], [1.0, 1.0]]}
logits = session.predict(asked)["logits"]
print(logits.argmax(axis=1))
""",
        """
const asked = { points: [[0, 0], [1, 1]] };
const { logits } = await session.predict(asked);
console.log(...logits.data);
""",
    ),
    Example(
        "Train step by step",
        "trainweb TrainingSession.train_step",
        "TrainingSession runTrainStep",
        """
batch = {"points": points[:40], "labels": labels[:40]}
loss, *_ = session.train_step(batch).values()
session.optimizer_step()
session.lazy_reset_grad()
""",
        """
const [x, kinds] = [points, labels].map((all) =>
  all.slice(0, 40).flat());
const batch = {
  points: new Tensor("float32", x, [40, 2]),
  labels: new Tensor("int64", kinds.map(BigInt), [40]),
};
const results = await session.runTrainStep(batch);
const [loss] = Object.values(results);
await session.runOptimizerStep();
await session.lazyResetGrad();
""",
    ),
    Example(
        "Save a checkpoint",
        "trainweb TrainingSession.save",
        "TrainingSession save",
        """
checkpoint = session.save()
""",
        """
const checkpoint = await session.save();
""",
    ),
    Example(
        "Go on from a checkpoint",
        "trainweb TrainingSession",
        "TrainingSession create",
        """
artifacts = trainweb.artifacts.build_artifacts(
    model, loss="CrossEntropyLoss", optimizer="AdamW"
)
files = {**artifacts, "checkpoint": checkpoint}
again = trainweb.TrainingSession(**files)
""",
        """
const artifacts = await session.artifacts();
const files = { ...artifacts, checkpoint };
const again = await TrainingSession.create(files);
""",
    ),
    Example(
        "Export for inference",
        "trainweb TrainingSession.export",
        "TrainingSession export",
        """
trained = trainweb.InferenceSession(session.export())
feeds = {"points": points[:3]}
scores, *_ = trained.run(["logits"], feeds)
""",
        """
const bytes = await session.export();
const trained = await InferenceSession.create(bytes);
const three = points.slice(0, 3).flat();
const scores = await trained.run({
  points: new Tensor("float32", three, [3, 2]),
});
""",
    ),
)
