/** Types that onnxruntime-common has besides, under its names. */

import type { Tensor } from "onnxruntime-common";

import type { InferenceSession } from "./inference.js";
import type { TrainingSession } from "./session.js";

/** Values other than tensors, such as sequences: they cannot be fed or fetched here. */
export type NonTensorType = never;

/** Inputs and outputs of models. */
export type OnnxValue = Tensor | NonTensorType;

/** The maker of sessions that run a model: `InferenceSession` itself. */
export type InferenceSessionFactory = Pick<typeof InferenceSession, "create">;

/** The maker of sessions that train: `TrainingSession` itself. */
export type TrainingSessionFactory = Pick<typeof TrainingSession, "create">;
