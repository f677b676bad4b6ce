// The rows that the JavaScript of docs/lora.md uses.
const ids = new Tensor("int64", BigInt64Array.from({ length: 64 }, (_, k) => BigInt(k % 13)), [4, 16]);
const mask = new Tensor("int64", new BigInt64Array(64).fill(1n), [4, 16]);
globalThis.data = { input_ids: ids, attention_mask: mask, labels: ids };
