import { env, Tensor, TrainingSession } from "trainweb";
import { train } from "./train.js";

test("the README's model trains", async () => {
  expect(typeof document).toBe(process.env.DOM ? "object" : "undefined");
  const threads = process.env.ISOLATED ? 2 : 1;
  process.stdout.write(`\nTRAINED ${JSON.stringify(await train(env, Tensor, TrainingSession, threads))}\n`);
}, 120_000);
