// The folders of pictures that the JavaScript of docs/pictures.md asks for, one after the other.
const root = await navigator.storage.getDirectory();
const colours = { cat: [200, 80, 80], dog: [80, 200, 80], fox: [80, 80, 200] };
const newFolder = async (name) => {
  await root.removeEntry(name, { recursive: true }).catch(() => undefined);
  return root.getDirectoryHandle(name, { create: true });
};
const paint = async (folder, name, count) => {
  const animal = await folder.getDirectoryHandle(name, { create: true });
  for (let k = 0; k < count; k++) {
    const canvas = new OffscreenCanvas(32, 32);
    const context = canvas.getContext("2d");
    context.fillStyle = `rgb(${colours[name].map((part) => Math.round((0.6 + k / 50) * part)).join(" ")})`;
    context.fillRect(0, 0, 32, 32);
    const file = await animal.getFileHandle(`${String(k).padStart(2, "0")}.png`, { create: true });
    const stream = await file.createWritable();
    await stream.write(await canvas.convertToBlob());
    await stream.close();
  }
};
const [photographs, parts] = [await newFolder("photographs"), await newFolder("parts")];
const [train, val] = [await parts.getDirectoryHandle("train", { create: true }), await parts.getDirectoryHandle("val", { create: true })];
for (const name of Object.keys(colours)) {
  await paint(photographs, name, 20);
  await paint(train, name, 2);
}
for (const name of ["cat", "fox"]) {
  await paint(val, name, 2);
}
const folders = [photographs, parts];
globalThis.showDirectoryPicker = async () => folders.shift();
