// The session, rows and file that the JavaScript of docs/fit.md uses.
await import(new URL("/dist/npm/vis.js", location.origin));

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
const regressor = await TrainingSession.createFromModel("golden/mlp/base.onnx", { ...made, loss: "MSELoss" });
const houses = { x, target: new Tensor("float32", new Float32Array(160), [40, 4]) };
const picture = document.createElement("div");
document.body.append(document.createElement("trainweb-rates"));
const database = await new Promise((resolve) => {
  const request = indexedDB.open("readings");
  request.onupgradeneeded = () => request.result.createObjectStore("rows", { autoIncrement: true });
  request.onsuccess = () => resolve(request.result);
});
database.close();
const folder = await navigator.storage.getDirectory();
const photographs = await folder.getDirectoryHandle("photographs", { create: true });
for (const name of ["cat", "dog"]) {
  const animal = await photographs.getDirectoryHandle(name, { create: true });
  await animal.getFileHandle("1.png", { create: true });
}
Object.assign(globalThis, { x, data, made, session, options, chart, controller, file, regressor, houses, picture });
