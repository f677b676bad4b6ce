import { env, Tensor, TrainingSession } from "trainweb";

console.log("isolated, so that there can be threads:", crossOriginIsolated);
const session = await TrainingSession.createFromModel("first.onnx", { loss: "CrossEntropyLoss", optimizer: "AdamW" });
const feeds = {
  points: new Tensor("float32", new Float32Array(2 * 1024), [1024, 2]),
  labels: new Tensor("int64", new BigInt64Array(1024), [1024]),
};
console.log(String(await session.profile(feeds)));
await session.release();
