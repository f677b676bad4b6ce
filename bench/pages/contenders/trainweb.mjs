/**
 * trainweb. query.reproducible picks the build without fused multiply-add; query.cache keeps the compiled session for the
 * next visit; query.bundle starts from one that was compiled ahead; query.budget is the memory budget in bytes.
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
  const { reproducible, cache, bundle, budget } = env.query;
  const sources = bundle === "1" ? { bundle: `${env.base}session.bundle` } : env.files;
  env.creating();
  const session = await TrainingSession.create(sources, {
    reproducible: reproducible === "1",
    cache: cache === "1",
    memoryBudget: budget === undefined ? undefined : Number(budget),
  });
  const contender = contenderOf(session, Tensor, env, { version: settings.versions.trainweb });
  return { ...contender, session, memory: kernelMemory };
}
