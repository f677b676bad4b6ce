import { env, Tensor, TrainingSession } from "trainweb";
import { train } from "./train.js";

const threads = process.env.ISOLATED ? 2 : 1;
console.log(`TRAINED ${JSON.stringify(await train(env, Tensor, TrainingSession, threads))}`);
