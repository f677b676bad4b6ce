/**
 * trainweb. query.reproducible picks the build without fused multiply-add; query.cache keeps the compiled session for the
 * next visit; query.loop is "fit" or "steps" (`runTrainSteps`); query.bundle starts from one that was compiled ahead; query.budget is the memory budget in bytes; query.device is wasm or webgpu.
 */

import { contenderOf } from "./sessions.mjs";

/** Worker of the package, to ask it for the kernels' memory. */
let worker = null;

const NativeWorker = globalThis.Worker;
globalThis.Worker = class extends NativeWorker {
  constructor(...args) {
    super(...args);
    worker ??= this;
  }
};

/** Bytes allocated in the kernels' memory and its size, which its own `memory` call tells. */
function kernelMemory() {
  return new Promise((resolve) => {
    const id = "bench-memory";
    const listen = ({ data }) => {
      if (data?.id === id) {
        worker.removeEventListener("message", listen);
        resolve(data.result.ok);
      }
    };
    worker.addEventListener("message", listen);
    worker.postMessage([{ id, method: "memory", args: [] }]);
  });
}

export async function create(env) {
  const { TrainingSession, Tensor, env: settings } = await import("/dist/index.js");
  settings.wasm.numThreads = env.threads;
  settings.logLevel = "info";
  const { reproducible, cache, bundle, budget, device } = env.query;
  const sources = bundle === "1" ? { bundle: `${env.base}session.bundle` } : env.files;
  env.creating();
  const session = await TrainingSession.create(sources, {
    reproducible: reproducible === "1",
    cache: cache === "1",
    device,
    memoryBudget: budget === undefined ? undefined : Number(budget),
  });
  const contender = contenderOf(session, Tensor, env, { version: settings.versions.trainweb });
  const { loop } = env.query;
  const run = loop === undefined ? undefined : await LOOPS[loop](session, env.feeds(Tensor, session.trainingInputNames));
  return { ...contender, session, memory: kernelMemory, run };
}

/** Steps a message. */
const CHUNK = 64;
/** Bytes of the data that an epoch of fit has, and its batches, at most. */
const EPOCH_BYTES = 2 ** 24;
const EPOCH_BATCHES = 4096;

/** Milliseconds of each of n steps, which are timed together. */
async function timed(n, action) {
  const begin = performance.now();
  await action();
  return new Array(n).fill((performance.now() - begin) / n);
}

/** Milliseconds of each of the n steps of a fit by the time of its epochs; `bench.once` is the least that it took besides. */
async function timedFit(n, start) {
  const begin = performance.now();
  const { epochs } = await start();
  const training = 1e3 * epochs.reduce((sum, { seconds }) => sum + seconds, 0);
  bench.once = Math.min(bench.once ?? Infinity, performance.now() - begin - training);
  return new Array(n).fill(training / n);
}

const LOOPS = {
  /** Rows where each label is one of a row, else batches as they are. */
  async fit(session, feeds) {
    const { Dataset, Tensor } = await import("/dist/index.js");
    const [[, x], [, y]] = Object.entries(feeds[0]);
    const rows = x.dims[0];
    const isRows = rows === y.dims[0];
    const join = (name, count) => {
      const { type, dims, data } = feeds[0][name];
      const all = new data.constructor(data.length * count);
      for (let k = 0; k < count; k++) {
        all.set(feeds[k % feeds.length][name].data, k * data.length);
      }
      return new Tensor(type, all, [dims[0] * count, ...dims.slice(1)]);
    };
    const columns = (count) => new Dataset(Object.fromEntries(Object.keys(feeds[0]).map((name) => [name, join(name, count)])));
    return (n) => {
      if (!isRows) {
        // A mapped data set is a stream, here of batches.
        const batches = new Dataset(function* () {
          for (let k = 0; k < n; k++) {
            yield { index: k };
          }
        });
        const data = batches.batch(1).map(({ index }) => feeds[index.data[0] % feeds.length]);
        return timedFit(n, () => session.fit(data));
      }
      // Made before: to have the data is not what fit does.
      const count = Math.max(1, Math.min(n, EPOCH_BATCHES, Math.floor(EPOCH_BYTES / x.data.byteLength)));
      const data = columns(count);
      const epochs = Math.max(1, Math.round(n / count));
      return timedFit(count * epochs, () => session.fit(data, { batchSize: rows, shuffle: false, epochs }));
    };
  },
  async steps(session, feeds) {
    return (n) =>
      timed(n, async () => {
        for (let k = 0; k < n; k += CHUNK) {
          const count = Math.min(CHUNK, n - k);
          await session.runTrainSteps(Array.from({ length: count }, (_, i) => feeds[(k + i) % feeds.length]));
        }
      });
  },
};
