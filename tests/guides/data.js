// The session, file and folders that the JavaScript of docs/data.md uses.
const made = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
const session = await TrainingSession.createFromModel("golden/mlp/base.onnx", made);
const colours = ["red", "blue", "green", "white", "black", "grey", "pink", "brown"];
const lines = Array.from({ length: 40 }, (_, k) =>
  [k, 2, k % 9 === 1 ? "" : 20 + k, 1500 + 70 * k, colours[k % 8], k % 2 ? "other" : "setosa"].join(),
);
const file = new Blob([["length,width,age,income,colour,kind", ...lines].join("\n")]);
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
globalThis.showDirectoryPicker = async () => photographs;
Object.assign(globalThis, { session, file });
