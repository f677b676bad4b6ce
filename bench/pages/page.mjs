/**
 * One contender with one model: page.html?contender=ort&model=A&threads=2&...
 *
 * A contender module exports `create(env)` and returns `{ info, step(i), settled?(), parts?(i), memory?() }`. `step(i)` starts
 * from the host's batch i % nb and ends when the loss is a number in JavaScript; the parameters are updated then, or after
 * `settled()`. With `run(n)`, which gives the milliseconds of n steps, it is timed by that.
 */

const N_LOSSES = 8;
const query = Object.fromEntries(new URLSearchParams(location.search));
const bench = (window.bench = { query, state: "loading", marks: {}, losses: [] });

async function load(url) {
  const response = await fetch(url);
  if (!response.ok) {
    throw new Error(`${url}: HTTP status ${response.status}`);
  }
  return response;
}

async function environment() {
  const base = new URL(`/models/${query.model}/`, location.href).href;
  const [manifest, raw] = await Promise.all([
    load(`${base}manifest.json`).then((r) => r.json()),
    load(`${base}data.bin`).then((r) => r.arrayBuffer()),
  ]);
  const { nb, xsize, ysize, xdtype } = manifest;
  const Input = xdtype === "float32" ? Float32Array : Int32Array;
  const each = (make) => Array.from({ length: nb }, (_, i) => make(i));
  return {
    query,
    manifest,
    base,
    threads: Number(query.threads ?? 1),
    xs: each((i) => new Input(raw, 4 * i * xsize, xsize)),
    ys: each((i) => new Int32Array(raw, 4 * (nb * xsize + i * ysize), ysize)),
    /** Initial parameters: {name: {data, shape, trainable}}. */
    async parameters() {
      const all = new Float32Array(await (await load(`${base}init.bin`)).arrayBuffer());
      return Object.fromEntries(
        manifest.params.map(({ name, offset, size, shape, trainable }) => [
          name,
          { data: all.slice(offset, offset + size), shape, trainable },
        ]),
      );
    },
    /** Feeds of every batch for a session of the onnxruntime-web interface. */
    feeds(Tensor, [xName, yName]) {
      const big = (values) => BigInt64Array.from(values, BigInt);
      return this.xs.map((x, i) => ({
        [xName]:
          xdtype === "float32"
            ? new Tensor("float32", x, manifest.xshape)
            : new Tensor("int64", big(x), manifest.xshape),
        [yName]: new Tensor("int64", big(this.ys[i]), [ysize]),
      }));
    },
    files: {
      trainModel: `${base}training_model.onnx`,
      optimizerModel: `${base}optimizer_model.onnx`,
      checkpointState: `${base}checkpoint`,
    },
    /** Called right before a session is created from files. */
    creating() {
      bench.marks.creating = performance.now();
    },
    script: (src) =>
      new Promise((resolve, reject) => {
        const element = Object.assign(document.createElement("script"), { src, onload: resolve });
        element.onerror = () => reject(new Error(`script ${src} did not load`));
        document.head.append(element);
      }),
  };
}

/** Bytes of WebAssembly memory in the page, or the number that the contender reports. */
bench.memory = async () => {
  const inPage = [...window.memories].reduce((sum, { buffer }) => sum + buffer.byteLength, 0);
  return { total: inPage, ...(await bench.contender.memory?.()) };
};

async function start() {
  const [module, env] = await Promise.all([
    import(`./contenders/${query.contender}.mjs`),
    environment(),
  ]);
  const contender = await module.create(env);
  bench.contender = contender;
  bench.marks.created = performance.now();
  let count = 0;
  bench.losses.push(await contender.step(count++));
  await contender.settled?.();
  bench.marks.firstStep = performance.now();
  bench.info = contender.info;

  /**
   * Milliseconds of each of n steps. One more goes before them, so that what a step leaves to be done behind its back is
   * in the time of the next; long steps come alone.
   */
  bench.run = async (n) => {
    if (contender.run) {
      return contender.run(n);
    }
    const times = [];
    for (let k = n > 1 ? -1 : 0; k < n; k++) {
      const begin = performance.now();
      const loss = await contender.step(count++);
      if (k >= 0) {
        times.push(performance.now() - begin);
      }
      if (bench.losses.length < N_LOSSES) {
        bench.losses.push(loss);
      }
    }
    return times;
  };

  /** Median milliseconds of the parts of a step, where the contender has parts. */
  bench.parts = async (n) => {
    const rows = [];
    for (let k = 0; contender.parts && k < n; k++) {
      rows.push(await contender.parts(count++));
    }
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    return rows.length ? rows[0].map((_, part) => middle(rows.map((row) => row[part]))) : null;
  };
}

try {
  await start();
  bench.state = "ready";
} catch (error) {
  bench.error = String(error?.stack ?? error);
  bench.state = "error";
}
