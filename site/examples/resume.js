import { buildArtifacts, Tensor, TrainingSession } from "trainweb";

const points = Float32Array.from({ length: 256 }, (_, k) => Math.sin(k * k));
const labels = BigInt64Array.from({ length: 128 }, (_, k) => BigInt(Math.hypot(points[2 * k], points[2 * k + 1]) < 0.8));
const feeds = { points: new Tensor("float32", points, [128, 2]), labels: new Tensor("int64", labels, [128]) };

async function train(session, steps) {
  const [loss] = session.trainingOutputNames;
  let last = 0;
  for (let step = 0; step < steps; step++) {
    last = (await session.runTrainStep(feeds))[loss].data[0];
    await session.runOptimizerStep();
    await session.lazyResetGrad();
  }
  return last;
}

const artifacts = await buildArtifacts("first.onnx", { loss: "CrossEntropyLoss", optimizer: "AdamW" });
const first = await TrainingSession.create(artifacts);
await first.setLearningRate(0.01);
console.log("after 20 steps:", await train(first, 20));
const checkpoint = await first.saveCheckpoint({ includeOptimizerState: true });
console.log("saved:", checkpoint.byteLength, "bytes");
console.log("20 steps later:", await train(first, 20));
await first.release();

const second = await TrainingSession.create({ ...artifacts, checkpoint });
console.log("20 steps after the checkpoint, in another session:", await train(second, 20));
await second.release();
