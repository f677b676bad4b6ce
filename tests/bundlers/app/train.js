// README's first model with data that are the same each time; what comes out goes to the test.

const STEPS = 300;
const SIZE = 64;

function makeRandom() {
  let state = 1;
  return () => (state = (state * 48271) % 2147483647) / 2147483647;
}

function makeBatch(random, Tensor) {
  const points = Float32Array.from({ length: 2 * SIZE }, () => 2 * random() - 1);
  const labels = BigInt64Array.from({ length: SIZE }, (_, i) =>
    BigInt(Math.hypot(points[2 * i], points[2 * i + 1]) < 0.8),
  );
  return { points: new Tensor("float32", points, [SIZE, 2]), labels: new Tensor("int64", labels, [SIZE]) };
}

export async function train(env, Tensor, TrainingSession, threads = 2) {
  env.logLevel = "info"; // says which kernels run, with how many threads
  env.wasm.numThreads = threads;
  const started = performance.now();
  const session = await TrainingSession.createFromModel(
    "first.onnx",
    { loss: "CrossEntropyLoss", optimizer: "AdamW" },
    { reproducible: true }, // the same bytes in every engine
  );
  await session.setLearningRate(0.01);
  const [loss] = session.trainingOutputNames;
  const random = makeRandom();
  const losses = [];
  let first = 0;
  for (let step = 0; step < STEPS; step++) {
    const results = await session.runTrainStep(makeBatch(random, Tensor));
    await session.runOptimizerStep();
    await session.lazyResetGrad();
    losses.push(results[loss].data[0]);
    first ||= performance.now() - started;
  }
  const parameters = await session.getContiguousParameters();
  const model = await session.exportModelForInferencing(["logits"]);
  await session.release();
  const printed = [];
  const { log } = console;
  console.log = (...words) => printed.push(words.join(" "));
  // The README's block runs as it is imported; where it is in a function, `done` settles at its end.
  await (await import("./ten.js")).done;
  console.log = log;
  return {
    printed,
    first,
    losses: [losses[0], losses[STEPS - 1]],
    parameters: Array.from(new Uint32Array(parameters.data.buffer.slice(0))),
    modelBytes: model.byteLength,
    isolated: globalThis.crossOriginIsolated ?? threads > 1,
  };
}

let isRunning = false;

/** Tell the test of the training, and of what else the project does after it. */
export function report(env, Tensor, TrainingSession, after = async () => {}) {
  if (isRunning) {
    return;
  }
  isRunning = true;
  train(env, Tensor, TrainingSession)
    .then((result) => after().then(() => result))
    .then(
      (result) => (window.trained = result),
      (error) => (window.failed = `${error?.stack ?? error}`),
    );
}
