// The session that the JavaScript of docs/elsewhere.md exports.
globalThis.session = await TrainingSession.createFromModel("first.onnx", { loss: "CrossEntropyLoss" });
