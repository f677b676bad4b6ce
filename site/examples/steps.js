import { InferenceSession, Tensor, TrainingSession } from "trainweb";

function batch(size) {
  const points = Float32Array.from({ length: 2 * size }, () => 2 * Math.random() - 1);
  const labels = BigInt64Array.from({ length: size }, (_, k) => BigInt(Math.hypot(points[2 * k], points[2 * k + 1]) < 0.8));
  return { points: new Tensor("float32", points, [size, 2]), labels: new Tensor("int64", labels, [size]) };
}

const session = await TrainingSession.createFromModel("first.onnx", { loss: "CrossEntropyLoss", optimizer: "AdamW" });
await session.setLearningRate(0.01);
const [loss] = session.trainingOutputNames;
for (let step = 1; step <= 300; step++) {
  const results = await session.runTrainStep(batch(64));
  await session.runOptimizerStep();
  await session.lazyResetGrad();
  if (step % 50 === 0) console.log(`step ${step}: loss ${results[loss].data[0].toFixed(3)}`);
}

const model = await session.exportModelForInferencing(["logits"]);
await session.release();

const trained = await InferenceSession.create(model);
const { logits } = await trained.run({ points: new Tensor("float32", [0, 0, 0.9, 0.9], [2, 2]) });
console.log("inside, outside:", logits.data);
await trained.release();
