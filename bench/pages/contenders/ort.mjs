/** onnxruntime-web 1.19.2, training build. */

import { contenderOf } from "./sessions.mjs";

const DIST = "/node_modules/onnxruntime-web/dist/";

export async function create(env) {
  const ort = await import(`${DIST}ort.training.wasm.min.mjs`);
  ort.env.wasm.numThreads = env.threads;
  ort.env.wasm.wasmPaths = location.origin + DIST;
  const trainModel = `${env.base}${env.manifest.ort}training_model.onnx`;
  env.creating();
  const session = await ort.TrainingSession.create({ ...env.files, trainModel }, { executionProviders: ["wasm"] });
  return contenderOf(session, ort.Tensor, env, {
    version: ort.env.versions.web,
    threads: ort.env.wasm.numThreads,
  });
}
