// The element and settings that the JavaScript of docs/deploy.md uses.
const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
Object.assign(globalThis, { progress: document.createElement("p"), config });
