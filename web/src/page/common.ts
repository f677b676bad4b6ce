/** Types that onnxruntime-common has besides, under its names. */

import type { Tensor } from "onnxruntime-common";

import type { InferenceSession } from "./inference.js";
import type { TrainingSession } from "./session.js";

/** Values that are no tensors, such as sequences: none can be fed or fetched here. */
export type NonTensorType = never;

/** What models take and give. */
export type OnnxValue = Tensor | NonTensorType;

/** What makes sessions that run a model: `InferenceSession` itself. */
export type InferenceSessionFactory = Pick<typeof InferenceSession, "create">;

/** What makes sessions that train: `TrainingSession` itself. */
export type TrainingSessionFactory = Pick<typeof TrainingSession, "create">;
