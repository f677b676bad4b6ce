// The rows that the JavaScript of docs/resume.md uses.
const points = new Tensor("float32", Float32Array.from({ length: 128 }, (_, k) => Math.sin(k)), [64, 2]);
globalThis.data = { points, labels: Array.from({ length: 64 }, (_, k) => k % 2) };
globalThis.config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
