// The folder of pictures that the JavaScript of docs/pictures.md asks for.
const root = await navigator.storage.getDirectory();
await root.removeEntry("photographs", { recursive: true }).catch(() => undefined);
const photographs = await root.getDirectoryHandle("photographs", { create: true });
const colours = { cat: [200, 80, 80], dog: [80, 200, 80], fox: [80, 80, 200] };
for (const [name, colour] of Object.entries(colours)) {
  const animal = await photographs.getDirectoryHandle(name, { create: true });
  for (let k = 0; k < 20; k++) {
    const canvas = new OffscreenCanvas(32, 32);
    const context = canvas.getContext("2d");
    context.fillStyle = `rgb(${colour.map((part) => Math.round((0.6 + k / 50) * part)).join(" ")})`;
    context.fillRect(0, 0, 32, 32);
    const file = await animal.getFileHandle(`${String(k).padStart(2, "0")}.png`, { create: true });
    const stream = await file.createWritable();
    await stream.write(await canvas.convertToBlob());
    await stream.close();
  }
}
globalThis.showDirectoryPicker = async () => photographs;
