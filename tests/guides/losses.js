// The rows that the JavaScript of docs/losses.md uses.
const x = new Tensor("float32", Float32Array.from({ length: 128 }, (_, k) => Math.sin(k)), [64, 2]);
const [labels, kinds] = [2, 3].map((classes) => Array.from({ length: 64 }, (_, k) => k % classes));
const ages = new Tensor("float32", Float32Array.from({ length: 64 }, (_, k) => 20 + k), [64, 1]);
Object.assign(globalThis, { x, points: x, labels, kinds, ages, w: new Float32Array(64).fill(1) });
