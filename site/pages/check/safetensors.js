// @ts-check
/** The contents of a safetensors file: https://huggingface.co/docs/safetensors */

/** @typedef {{ name: string, dtype: string, dims: number[] }} Described */

const LENGTH_BYTES = 8;
/** Bytes that a header may have, as in the library. */
const HEADER_LIMIT = 100_000_000;

/**
 * Names, types and dims of the tensors in a file.
 *
 * @param {Blob} file
 * @returns {Promise<Described[]>}
 * @throws {Error} for any other file
 */
export async function listSafetensors(file) {
  const start = await file.slice(0, LENGTH_BYTES).arrayBuffer();
  const length = start.byteLength === LENGTH_BYTES ? new DataView(start).getBigUint64(0, true) : 0n;
  if (length < 2n || length > BigInt(Math.min(HEADER_LIMIT, file.size - LENGTH_BYTES))) {
    throw new Error("It is not a safetensors file: the length of its header is wrong.");
  }
  /** @type {Record<string, { dtype: string, shape: number[] }>} */
  let header;
  try {
    header = JSON.parse(await file.slice(LENGTH_BYTES, LENGTH_BYTES + Number(length)).text());
  } catch {
    throw new Error("It is not a safetensors file: its header is not JSON.");
  }
  return Object.entries(header)
    .filter(([name]) => name !== "__metadata__")
    .map(([name, { dtype, shape }]) => ({ name, dtype, dims: shape }));
}
