// Runs the calls of tests/conformance/fits.py in a page, as its `Runner` does in Python.

const { CheckpointStore, Dataset, InferenceSession, Tensor, TrainingSession } = window.trainweb;
const ARRAYS = {
  float32: Float32Array, int64: BigInt64Array, bool: Uint8Array,
};
const PLACES = ["value", "position", "input", "row", "epoch", "batch"];

/** The elements of a text, again and again until the tensor is full. */
function decoded({ type, dims, base64 }) {
  const part = new ARRAYS[type](Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)).buffer);
  const data = new ARRAYS[type](dims.reduce((a, b) => a * b, 1));
  for (let at = 0; at < data.length; at += part.length) data.set(part.subarray(0, data.length - at), at);
  return new Tensor(type, data, dims);
}

async function* failing(data) {
  yield* data;
  throw new Error("of label 99");
}

function short(data, place) {
  let number = 0;
  return data.map((row) => (number++ === place ? { ...row, x: row.x.data.slice(0, 2) } : row));
}

function breaking(data, place) {
  let number = 0;
  return data.map((item) => {
    if (number++ === place) throw new Error("closed");
    return item;
  });
}

function rowOf({ type, dims: [rows, ...dims], data }, row) {
  const size = data.length / rows;
  return new Tensor(type, data.slice(row * size, (row + 1) * size), dims);
}

async function* once(data) {
  yield* data;
}

const STEPS = {
  dataset: (data) => new Dataset(data),
  list: ({ columns, size }) => Array.from({ length: size }, (_, row) => mapValues(Object.fromEntries(columns), (all) => rowOf(all, row))),
  map: (data) => data.map((row) => row),
  numbers: (data) => data.map(() => 3),
  standardized: (data, ...names) => new Dataset(data).standardize(...names),
  batch: (data, size, remainder = "keep") => data.batch(size, { remainder }),
  shuffle: (data, buffer, seed) => data.shuffle({ buffer, seed }),
  take: (data, count) => data.take(count),
  cache: (data) => data.cache(),
  prefetch: (data, count) => data.prefetch(count),
  function: (data) => () => data,
  "used up": once,
  begun: (data) => {
    void data[Symbol.asyncIterator]();
    return data;
  },
  short,
  breaks: breaking,
  fails: (data) => () => failing(data),
};

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Data of the table, wherever it lies in arguments. */
function made(value) {
  if (!isObject(value)) return value;
  if ("base64" in value) return decoded(value);
  if (!("columns" in value && "steps" in value)) return mapValues(value, made);
  return value.steps.reduce((data, [name, ...more]) => STEPS[name](data, ...more), made(value.columns));
}

function plain(value, name = "") {
  if (typeof value === "number" && !Number.isFinite(value)) return String(value).replace("Infinity", "inf").toLowerCase();
  if (name === "perplexity") return Number(value.toPrecision(12));
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return Array.from(value, (part) => plain(part));
  if (isObject(value)) return Object.fromEntries(Object.entries(value).map(([n, part]) => [n, plain(part, n)]));
  return typeof value === "bigint" ? Number(value) : value ?? null;
}

const CALLS = {
  fit: async ({ s, store }, source, { checkpoint, ...options }) => {
    const kept = checkpoint?.name === undefined ? { checkpoint } : { checkpoint: { store, ...checkpoint } };
    const history = await s.fit(source, checkpoint === undefined ? options : { ...options, ...kept });
    const epochs = history.epochs.map((e) => [e.epoch, e.steps, e.loss, e.learningRate, e.validation, e.terms]);
    return [history.ended, history.losses, history.optimizerSteps, history.bestEpoch, epochs, await CALLS.parameters({ s })];
  },
  open: async (run) => {
    await run.s.release();
    run.s = await run.make();
  },
  rate: ({ s }, rate) => s.setLearningRate(rate),
  train: async ({ s }, feeds) => void (await s.runTrainStep(feeds)),
  optimizer: ({ s }) => s.runOptimizerStep(),
  reset: ({ s }) => s.lazyResetGrad(),
  predict: async ({ s }, source) => mapValues(await s.predict(source), ({ data }) => data),
  evaluate: ({ s }, source) => s.evaluate(source),
  parameters: async ({ s }) => {
    const { data } = await s.getContiguousParameters(false);
    return window.hash(data);
  },
  forget: ({ store }) => store.delete("fit"),
  store: async ({ s, store }, name, ...given) => {
    if (name === "names") return (await store.list()).map((entry) => entry.name);
    if (name === "copy") return store.write(given[1], await store.read(given[0]));
    return store[name](...(name === "save" || name === "load" ? [s] : []), ...given);
  },
  averages: async ({ s }) => (await s.getContiguousParameters(true, { ema: true })).data,
  scores: async ({ s }, feeds, ema) => (await s.runEvalStep(feeds, ["logits"], { ema })).logits.data,
  "exports averages": async (run, feeds) => {
    const before = await CALLS.parameters(run);
    const exported = await InferenceSession.create(await run.s.exportModelForInferencing(["logits"], { ema: true }));
    const { data } = (await exported.run({ x: feeds.x })).logits;
    await exported.release();
    const scores = await CALLS.scores(run, feeds, true);
    const isSame = data.every((value, k) => Math.abs(value - scores[k]) < 1e-6 + 1e-5 * Math.abs(scores[k]));
    return isSame && before === (await CALLS.parameters(run));
  },
  state: async (run) => [await CALLS.parameters(run), await run.s.getLearningRate()],
  "stored steps": async ({ store }) => {
    if (!(await store.list()).some(({ name }) => name === "fit")) return 0;
    const file = new DataView(await (await store.read("fit")).arrayBuffer());
    const text = new TextDecoder().decode(new Uint8Array(file.buffer, 8, file.getUint32(0, true)));
    return JSON.parse(JSON.parse(text).__metadata__.position).optimizerSteps;
  },
};

async function outcome(run, [name, ...given]) {
  try {
    return plain(await CALLS[name](run, ...given.map(made)));
  } catch (error) {
    const places = Object.fromEntries(PLACES.filter((n) => error[n] != null).map((n) => [n, plain(error[n])]));
    return { error: error.name, message: error.message, ...places };
  }
}

/** The outcomes of the calls of each fit. */
export async function runFits(fits) {
  const outcomes = [];
  for (const [open, calls, options] of fits) {
    const store = new CheckpointStore("fits");
    for (const { name } of await store.list()) await store.delete(name);
    const make = () =>
      "files" in open
        ? TrainingSession.create(open.files, { reproducible: true, ...options })
        : TrainingSession.createFromModel(open.model, open.config, { reproducible: true, ...options });
    const run = { s: await make(), store, make };
    const found = [];
    for (const call of calls) found.push(await outcome(run, call));
    await run.s.release();
    outcomes.push(found);
  }
  return outcomes;
}
