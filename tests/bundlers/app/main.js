import { env, Tensor, TrainingSession } from "trainweb";
import { report } from "./train.js";

report(env, Tensor, TrainingSession);
