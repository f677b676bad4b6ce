// The session, rows and elements that the JavaScript of docs/fit.md uses.
await import(new URL("/dist/npm/vis.js", location.origin));

const random = Float32Array.from({ length: 400 }, (_, k) => Math.sin(k));
const x = new Tensor("float32", random, [40, 10]);
const data = { x, labels: Array.from({ length: 40 }, (_, k) => k % 3) };
const made = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
const session = await TrainingSession.createFromModel("golden/mlp/base.onnx", made);
const [options, chart] = [{}, () => {}];
const picture = document.createElement("div");
document.body.append(document.createElement("trainweb-rates"));
Object.assign(globalThis, { x, data, session, options, chart, picture });
