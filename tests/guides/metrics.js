// The models and rows that the JavaScript of docs/metrics.md uses.
const random = Float32Array.from({ length: 400 }, (_, k) => Math.sin(k));
const x = new Tensor("float32", random, [40, 10]);
const made = { loss: "MSELoss", optimizer: "AdamW" };
const regressor = await TrainingSession.createFromModel("golden/mlp/base.onnx", made);
const houses = { x, target: new Tensor("float32", new Float32Array(160), [40, 4]) };
const data = { x, labels: Array.from({ length: 40 }, (_, k) => k % 3) };
const session = await TrainingSession.createFromModel("golden/mlp/base.onnx", { ...made, loss: "CrossEntropyLoss" });
Object.assign(globalThis, { regressor, houses, data, session });
