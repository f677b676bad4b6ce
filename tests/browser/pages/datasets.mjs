// Makes the data sets of tests/conformance/datasets.py in a page, as its `outcome` does in Python.

const { Dataset, Tensor, readCsv } = window.trainweb;

const ARRAYS = { float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array };
const plain = (data) => (typeof data[0] === "string" ? [...data] : Array.from(data, Number));

const SOURCES = {
  numbers: (n) => new Dataset(function* () { for (let k = 0; k < n; k++) yield { x: Float32Array.of(k)[0] }; }),
  columns: (given) => new Dataset(Object.fromEntries(Object.entries(given).map(([name, [type, dims, values]]) => [
    name,
    new Tensor(type, type === "string" ? values : ARRAYS[type].from(type === "int64" ? values.map(BigInt) : values), dims),
  ]))),
  rows: (rows) => new Dataset(rows),
  lengths: (sizes) => new Dataset(sizes.map((n) => ({
    ids: BigInt64Array.from({ length: n }, (_, k) => BigInt(k + 1)), label: BigInt(n), side: Float32Array.of(1, 2, 3),
  }))),
  listed: (n) => new Dataset(Array.from({ length: n }, (_, k) => ({ x: k, c: BigInt(k % 3 >> 1) }))),
  csv: (text, columns, options) => readCsv(new Blob([text]), columns, options),
};

const steps = async (chain) => JSON.parse(JSON.stringify((await dataset(chain)).preprocessing));

// What takes its arguments in another way than in Python, or a function.
const STEPS = {
  doubled: (data) => data.map(({ x }) => ({ x: 2 * x })),
  above: (data, least) => data.filter(async ({ x }) => x > least),
  thirds: (data) => data.filter(({ x }) => x % 3 === 0),
  batch: (data, size, remainder) => data.batch(size, { remainder }),
  shuffle: (data, buffer, seed) => data.shuffle({ buffer, seed }),
  split: (data, share, seed, part) => data.split(share, { seed: seed ?? undefined })[part],
  "by class": (data, share, part) => data.split(share, { stratify: "c" })[part],
  bucket: (data, bounds, size, padded) => data.bucket(({ ids }) => ids.length, bounds, size, { padded }),
  fill_mean: (data, ...names) => data.fillMean(...names),
  fill_median: (data, ...names) => data.fillMedian(...names),
  one_hot: (data, ...names) => data.oneHot(...names),
  "one_hot or zeros": (data, ...names) => data.oneHot(...names, { unknown: "zeros" }),
  "steps of": async (data, chain) => data.preprocess(await steps(chain)),
  "untyped steps of": async (data, chain) => data.preprocess((await steps(chain)).map(({ dtype, ...step }) => step)),
};

async function dataset([[kind, ...given], ...chain]) {
  let data = await SOURCES[kind](...given);
  for (const [name, ...args] of chain) data = await (STEPS[name]?.(data, ...args) ?? data[name](...args));
  return data;
}

/** Type, shape and elements; the numbers of rows that are no batches are numbers of JavaScript. */
function encoded(value) {
  if (value instanceof Tensor) return [value.type, [...value.dims], plain(value.data)];
  return ["float32", [], [value]];
}

const eachEncoded = (entries) => Object.fromEntries([...entries].map(([name, value]) => [name, encoded(value)]));

async function outcome(chain) {
  try {
    const data = await dataset(chain);
    if (data.columns !== null) return { data: eachEncoded(data.columns), steps: data.preprocessing };
    const rows = [];
    for await (const row of data) rows.push(eachEncoded(Object.entries(row)));
    return { data: rows, steps: data.preprocessing };
  } catch ({ name, message }) {
    return { error: name, message };
  }
}

/** The outcome of each chain of steps. */
export async function outcomes(chains) {
  const all = [];
  for (const chain of chains) all.push(await outcome(chain));
  return all;
}
