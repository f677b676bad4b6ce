/** What every browser must do: each case returns what the test compares, or fails. */

import { CheckpointStore, env, InferenceSession, Tensor, TrainingSession } from "/dist/index.js";

const MODEL = "/docs/first.onnx";
/** The same for batches of `POINTS` alone: a worker with nothing to do compiles its plans. */
const FIXED = "/fixed.onnx";
/** What happens between a made session and its first step: nothing, or what the page's address asks for. */
const MEANWHILE = new URLSearchParams(location.search).get("meanwhile");
const IDLE_MS = 15_000;
const CONFIG = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
const POINTS = 64;
const FRAME_MS = 120_000;

function check(condition, what) {
  if (!condition) {
    throw new Error(what);
  }
}

/** The same data in every engine, and in CPython: quotients are rounded as IEEE 754 says. */
function feeds() {
  return {
    points: Float32Array.from({ length: 2 * POINTS }, (_, i) => ((37 * i) % 101) / 101 - 0.5),
    labels: BigInt64Array.from({ length: POINTS }, (_, i) => BigInt(i % 2)),
  };
}

async function steps(session, count) {
  const losses = [];
  for (let step = 0; step < count; step++) {
    losses.push((await session.runTrainStep(feeds()))[session.trainingOutputNames[0]].data[0]);
    await session.runOptimizerStep();
    await session.lazyResetGrad();
  }
  return losses;
}

async function bits(session) {
  const { data } = await session.getContiguousParameters();
  return Array.from(new Uint32Array(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength)));
}

/** The cases of a frame with `sandbox="allow-scripts"`, as CodePen and notebooks have it. */
async function inFrame(content) {
  const frame = Object.assign(document.createElement("iframe"), content);
  frame.sandbox = "allow-scripts";
  const outcome = new Promise((resolve, reject) => {
    addEventListener("message", ({ source, data }) => source === frame.contentWindow && resolve(data));
    setTimeout(reject, FRAME_MS, new Error(`no outcome of a frame by ${Object.keys(content)} within ${FRAME_MS} ms`));
  });
  document.body.append(frame);
  const { origin, results } = await outcome;
  frame.remove();
  check(origin === "null", `the frame has the origin ${origin}`);
  const faults = Object.entries(results).filter(([, { error }]) => error !== null);
  check(faults.length === 0, `in a frame by ${Object.keys(content)}: ${JSON.stringify(faults)}`);
  return results.reproducible.value;
}

async function refused(promise, name, ...phrases) {
  const error = await promise.then(() => null, (reason) => reason);
  check(error?.name === name, `${name} expected, got ${error}`);
  for (const phrase of phrases) {
    check(error.message.includes(phrase), `"${phrase}" is not in "${error.message}"`);
  }
}

const CASES = {
  /** How long a visitor waits; this case is the first. */
  async firstStep() {
    const started = performance.now();
    const session = await TrainingSession.createFromModel(MEANWHILE === "idle" ? FIXED : MODEL, CONFIG);
    const made = performance.now();
    if (MEANWHILE === "prepare") {
      await session.prepare({ points: [POINTS, 2], labels: [POINTS] });
    } else if (MEANWHILE === "idle") {
      await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
    }
    const asked = performance.now();
    await steps(session, 1);
    const stepped = performance.now();
    await session.release();
    return { made: made - started, step: stepped - asked };
  },

  async reproducible() {
    const all = [];
    for (const threads of [1, 2]) {
      const session = await TrainingSession.createFromModel(MODEL, CONFIG, { reproducible: true, threads });
      const losses = await steps(session, 5);
      check(losses[4] < losses[0], `the loss went from ${losses[0]} to ${losses[4]}`);
      all.push(await bits(session));
      await session.release();
    }
    check(all[0].join() === all[1].join(), "two threads give other bytes than one");
    return all[0];
  },

  /** Firefox has Mesa's adapter by the preferences of firefox.mjs; the others name what is missing. @returns true: it trained there */
  async gpu() {
    const gpu = { device: "webgpu" };
    if (!(await navigator.gpu?.requestAdapter())) {
      await refused(TrainingSession.createFromModel(MODEL, CONFIG, gpu), "DeviceError", 'device: "wasm" trains everywhere.');
      return false;
    }
    const losses = [];
    for (const options of [gpu, gpu, {}]) {
      const session = await TrainingSession.createFromModel(MODEL, CONFIG, options);
      losses.push([...(await steps(session, 5)), ...(options === gpu ? await bits(session) : [])]);
      await session.release();
    }
    check(losses[0].join() === losses[1].join(), "the GPU gives other bytes the second time");
    check(losses[2].every((loss, k) => Math.abs(loss - losses[0][k]) < 1e-4 * loss), `${losses[2]} became ${losses[0].slice(0, 5)}`);
    return true;
  },

  async resumption() {
    const session = await TrainingSession.createFromModel(MODEL, CONFIG);
    await steps(session, 3);
    const files = await session.artifacts();
    const checkpoint = await session.saveCheckpoint({ includeOptimizerState: true });
    await steps(session, 3);
    const resumed = await TrainingSession.create({ ...files, checkpoint });
    await steps(resumed, 3);
    check((await bits(resumed)).join() === (await bits(session)).join(), "a resumed run ends elsewhere");
    await session.release();
    await resumed.release();
  },

  async exportAndInference() {
    const session = await TrainingSession.createFromModel(MODEL, CONFIG);
    await steps(session, 2);
    const model = await session.exportModelForInferencing(["logits"]);
    const inference = await InferenceSession.create(model);
    const { logits } = await inference.run({ points: feeds().points });
    check(logits.dims.join() === `${POINTS},2` && logits.data.every(Number.isFinite), "no logits");
    await inference.release();
    await session.release();
  },

  async cache() {
    const options = { cache: true, reproducible: true };
    const all = [];
    for (let visit = 0; visit < 2; visit++) {
      const session = await TrainingSession.createFromModel(MODEL, CONFIG, options);
      await steps(session, 2);
      all.push(await bits(session));
      await session.release();
      await env.release();
    }
    check(all[0].join() === all[1].join(), "a cached session gives other bytes");
  },

  async feedsThatDoNotFit() {
    const session = await TrainingSession.createFromModel(MODEL, CONFIG);
    const { points, labels } = feeds();
    await refused(session.runTrainStep({ points }), "FeedError", "'labels' is missing");
    await refused(session.runTrainStep({ x: points, labels }), "FeedError", "'points' is missing", "'x'");
    const short = new Tensor("float32", points.slice(0, 2), [1, 2]);
    await refused(session.runTrainStep({ points: short, labels }), "FeedError", "batch");
    const wild = BigInt64Array.from(labels, () => 7n);
    await refused(session.runTrainStep({ points, labels: wild }), "FeedError", "7");
    await steps(session, 1);
    await session.release();
    await refused(session.runTrainStep(feeds()), "ReleasedError");
  },

  async filesThatAreNot() {
    await refused(TrainingSession.createFromModel("/nowhere.onnx", CONFIG), "ModelError", "404");
    await refused(TrainingSession.createFromModel("index.html", CONFIG), "ModelError");
    const { warn } = console;
    const lines = [];
    console.warn = (line) => lines.push(line);
    for (const path of ["/nowhere/", "/html/"]) {
      env.wasm.wasmPaths = path;
      try {
        // The package's own kernels are taken.
        const session = await TrainingSession.createFromModel(MODEL, CONFIG);
        await steps(session, 1);
        await session.release();
      } finally {
        env.wasm.wasmPaths = undefined;
      }
    }
    console.warn = warn;
    // It says so once.
    check(lines.length === 1 && lines[0].includes("env.wasm.wasmPaths"), `warned: ${lines}`);
    env.pyodide.indexURL = "/nowhere/";
    try {
      await refused(TrainingSession.createFromModel(MODEL, CONFIG), "EngineError", "env.pyodide.indexURL");
    } finally {
      env.pyodide.indexURL = null;
    }
  },

  /** As phones refuse it even to an isolated page: one thread computes. */
  async refusedSharedMemory() {
    env.baseURL = "/refused/";
    try {
      const session = await TrainingSession.createFromModel(MODEL, CONFIG, { reproducible: true, threads: 2 });
      await steps(session, 5);
      const parameters = await bits(session);
      await session.release();
      return parameters;
    } finally {
      env.baseURL = null;
    }
  },

  /** Both ways to fill a frame come to the same bytes. */
  async sandboxedFrames() {
    const html = `<base href="${location.href}"><body><script type="module" src="cases.js"></script>`;
    const all = [await inFrame({ src: location.pathname }), await inFrame({ srcdoc: html })];
    check(all[0].join() === all[1].join(), "frames give different bytes");
    return all[0];
  },

  async workersThatDie() {
    const { Worker } = globalThis;
    const started = [];
    globalThis.Worker = class extends Worker {
      constructor(...args) {
        super(...args);
        started.push(this);
      }
    };
    try {
      // A worker of its own: none of the sessions before had this setting.
      env.timeouts.stall += 1;
      const session = await TrainingSession.createFromModel(MODEL, CONFIG);
      check(started.length === 1, `${started.length} workers started`);
      const step = session.runTrainStep(feeds());
      started[0].terminate();
      await refused(step, "EngineError", "the worker is lost");
      const again = await TrainingSession.createFromModel(MODEL, CONFIG);
      await steps(again, 1);
      await again.release();
    } finally {
      globalThis.Worker = Worker;
    }
  },
};

/** The cases of a frame without an origin, where the browser denies all storage. */
const FRAMED = {
  reproducible: CASES.reproducible,
  resumption: CASES.resumption,
  exportAndInference: CASES.exportAndInference,
  cache: CASES.cache,

  /** WebKit lets the worker of such a frame read no Blob. */
  async largeFile() {
    const model = await (await fetch(MODEL)).arrayBuffer();
    // Field 100 of a protobuf message, which nobody knows: 2^25 bytes.
    const more = Uint8Array.of(0xa2, 0x06, 0x80, 0x80, 0x80, 0x10);
    const file = new Blob([model, more, new Uint8Array(2 ** 25)]);
    const session = await TrainingSession.createFromModel(file, CONFIG);
    await steps(session, 1);
    const exported = await session.exportModelForInferencing(["logits"]);
    const blob = await session.exportModelForInferencing(["logits"], { as: "blob" });
    check(new Uint8Array(await blob.arrayBuffer()).join() === exported.join(), "the exported Blob has other bytes");
    await session.release();
  },

  async noStorage() {
    await refused(new CheckpointStore("frame").list(), "StorageError", "There is no storage for checkpoints");
  },
};

async function runAll() {
  const results = {};
  const cases = origin === "null" ? FRAMED : CASES;
  for (const [name, run] of Object.entries(cases).slice(0, MEANWHILE === null ? undefined : 1)) {
    try {
      results[name] = { value: (await run()) ?? null, error: null };
    } catch (error) {
      results[name] = { value: null, error: `${error?.stack ?? ""} ${error}` };
    }
  }
  return { isolated: crossOriginIsolated, results };
}

runAll().then((outcome) => {
  if (origin === "null") {
    parent.postMessage({ origin, ...outcome }, "*");
  } else {
    window.outcome = JSON.stringify(outcome);
  }
});
