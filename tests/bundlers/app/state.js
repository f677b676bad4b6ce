// A session, its data, its fit and its model are kept in the state of a framework, and work as outside of it.

import { Dataset, InferenceSession, Tensor, TrainingSession } from "trainweb";

const ROWS = 24;
const CONFIG = { loss: "CrossEntropyLoss", optimizer: "SGD", learningRate: 0.1 };

/** Train, predict, export and release; `keep(name, value)` puts a value into the state, and gives what the state has. */
async function work(keep) {
  const values = Float32Array.from({ length: 2 * ROWS }, (_, i) => ((37 * i) % 101) / 50 - 1);
  const points = keep("points", new Tensor("float32", values, [ROWS, 2]));
  const labels = keep("labels", Array.from({ length: ROWS }, (_, i) => i % 2));
  const data = keep("data", new Dataset({ points, labels }));
  const options = keep("options", { epochs: 3, batchSize: 8, seed: 1 });
  const session = keep("session", await TrainingSession.createFromModel("first.onnx", CONFIG, { reproducible: true }));
  const run = keep("run", session.fit(data, options));
  const history = keep("history", await run);
  const { logits } = keep("scores", await session.predict({ points }));
  const model = keep("model", await InferenceSession.create(await session.export()));
  const exported = keep("exported", await model.run({ points }));
  await model.release();
  await session.release();
  const refused = await session.predict({ points }).catch((error) => error.name);
  return JSON.stringify([history.losses, Array.from(logits.data), Array.from(exported.logits.data), refused]);
}

/** Do it in each state of a framework; a different result is an error. */
export async function checkStates(states) {
  const outside = await work((_, value) => value);
  if (!outside.endsWith('"ReleasedError"]')) {
    throw new Error(`outside: ${outside}`);
  }
  for (const [name, keep] of Object.entries(states)) {
    const inside = await work(keep);
    if (inside !== outside) {
      throw new Error(`in ${name}: ${inside}; outside: ${outside}`);
    }
  }
}
