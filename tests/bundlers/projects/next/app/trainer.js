"use client";

import { useEffect } from "react";
import { env, Tensor, TrainingSession } from "trainweb";
import { report } from "../train.js";

export default function Trainer() {
  useEffect(() => report(env, Tensor, TrainingSession), []);
  return <p>training ...</p>;
}
