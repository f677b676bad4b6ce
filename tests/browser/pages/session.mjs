// The globals of the tests of the JavaScript package: its exports and a few helpers.
// The package comes from ?package=URL, so that tests can load it from another origin.

const source = new URL(location.href).searchParams.get("package") ?? "/dist/index.js";
const trainweb = await import(source);

const { env, Tensor, TrainingSession } = trainweb;

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array,
  int64: BigInt64Array, bool: Uint8Array,
};

/** {type, dims, data: numbers} <-> Tensor; what crosses to the test is JSON. */
function toTensor({ type, dims, data }) {
  const values = type === "int64" ? data.map(BigInt) : data;
  return new Tensor(type, ARRAYS[type].from(values), dims);
}

function fromTensor(tensor) {
  return { type: tensor.type, dims: [...tensor.dims], data: Array.from(tensor.data, Number) };
}

const mapValues = (object, f) =>
  Object.fromEntries(Object.entries(object).map(([key, value]) => [key, f(value)]));

/** The bytes of a view or a buffer as text: Playwright takes seconds for an array of so many numbers. */
function base64(data) {
  const bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
  let text = "";
  for (let k = 0; k < bytes.length; k += 8192) text += String.fromCharCode(...bytes.subarray(k, k + 8192));
  return btoa(text);
}

/** SHA-256 in digits. */
async function hash(data) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What an action throws or rejects with. */
async function failure(action) {
  try {
    await action();
    return null;
  } catch (error) {
    const base = Object.getPrototypeOf(error.constructor.prototype)?.constructor.name;
    return { ...error, name: error.name, class: error.constructor.name, base, message: error.message };
  }
}

/** The artifacts of a golden case. */
function golden(name, { checkpoint = "checkpoint", ...more } = {}) {
  return {
    trainModel: `/golden/${name}/training_model.onnx`,
    evalModel: `/golden/${name}/eval_model.onnx`,
    optimizerModel: `/golden/${name}/optimizer_model.onnx`,
    checkpointState: `/golden/${name}/${checkpoint}`,
    ...more,
  };
}

Object.assign(window, { ...trainweb, trainweb, base64, hash, toTensor, fromTensor, mapValues, failure, golden });
window.ready = true;
