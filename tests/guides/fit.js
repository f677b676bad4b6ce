// The session, rows and file that the JavaScript of docs/fit.md uses.
import { Dataset, readCsv, Tensor, TrainingSession } from "trainweb";

const random = Float32Array.from({ length: 400 }, (_, k) => Math.sin(k));
const x = new Tensor("float32", random, [40, 10]);
const data = { x, labels: Array.from({ length: 40 }, (_, k) => k % 3) };
const made = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
const session = await TrainingSession.createFromModel("golden/mlp/base.onnx", made);
const [options, chart, controller] = [{}, () => {}, new AbortController()];
const colours = ["red", "blue", "green", "white", "black", "grey", "pink", "brown"];
const lines = Array.from({ length: 40 }, (_, k) =>
  [k, 2, k % 9 === 1 ? "" : 20 + k, 1500 + 70 * k, colours[k % 8], k % 2 ? "other" : "setosa"].join(),
);
const file = new Blob([["length,width,age,income,colour,kind", ...lines].join("\n")]);
