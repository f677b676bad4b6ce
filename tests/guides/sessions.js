// The session, feeds, link and file that the JavaScript of docs/sessions.md uses.
const made = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
const session = await TrainingSession.createFromModel("first.onnx", made);
const points = new Tensor("float32", Float32Array.from({ length: 128 }, (_, k) => Math.sin(k)), [64, 2]);
const feeds = { points, labels: new Tensor("int64", BigInt64Array.from({ length: 64 }, (_, k) => BigInt(k % 2)), [64]) };
const root = await navigator.storage.getDirectory();
const handle = await root.getFileHandle("checkpoint", { create: true });
Object.assign(globalThis, { session, feeds, handle, link: document.createElement("a") });
