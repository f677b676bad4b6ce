/** Made by scripts/session_description.py of what Python declares: edit that. */

import type {
  AdapterFiles, DeadUnits, Feed, FileBytes, FileForm, NamedTensor, PropertyKind, PropertyValue, SessionMemory,
  TensorType, ValueMetadata, WireTensor,
} from "./values.js";

interface Call<A extends readonly unknown[], R> {
  readonly args: A;
  readonly result: R;
}

export type ArtifactName = "training_model" | "eval_model" | "optimizer_model" | "checkpoint";

/** The calls of a training session besides its steps; training/calls.py says what they do. */
export interface SessionCalls {
  readonly lazyResetGrad: Call<[], null>;
  readonly getLearningRate: Call<[], number>;
  readonly setLearningRate: Call<[lr: number], null>;
  readonly registerLinearLrScheduler: Call<[warmupStepCount: number, totalStepCount: number, initialLr: number], null>;
  readonly getParametersSize: Call<[trainableOnly: boolean], number>;
  readonly getContiguousParameters: Call<[trainableOnly: boolean, ema: boolean], WireTensor>;
  readonly loadParametersBuffer: Call<[buffer: Uint8Array, trainableOnly: boolean], null>;
  readonly getParameter: Call<[name: string], WireTensor>;
  readonly updateParameter: Call<[tensor: NamedTensor], null>;
  readonly getParameterTypeAndShape: Call<[name: string], TensorType>;
  readonly parameterNames: Call<[trainableOnly: boolean], readonly string[]>;
  readonly getGradient: Call<[name: string], WireTensor>;
  readonly getMoments: Call<[name: string], readonly NamedTensor[]>;
  readonly gradientNorms: Call<[], Readonly<Record<string, number>>>;
  readonly deadUnits: Call<[batches: readonly (readonly Feed[])[]], readonly DeadUnits[]>;
  readonly stepCount: Call<[], number>;
  readonly inputMetadata: Call<[training: boolean], readonly ValueMetadata[]>;
  readonly outputMetadata: Call<[training: boolean], readonly ValueMetadata[]>;
  readonly addProperty: Call<[name: string, value: PropertyValue, kind: PropertyKind | null], null>;
  readonly getProperty: Call<[name: string], PropertyValue>;
  readonly getPropertyKind: Call<[name: string], PropertyKind>;
  readonly propertyNames: Call<[], readonly string[]>;
  readonly deleteProperty: Call<[name: string], null>;
  readonly memory: Call<[], SessionMemory>;
  readonly prepare: Call<[shapes: Readonly<Record<string, readonly number[]>>], null>;
  readonly keepState: Call<[], null>;
  readonly goBack: Call<[], null>;
  readonly explain: Call<[kind: "train" | "eval", feeds: readonly Feed[]], string>;
  readonly getSeed: Call<[], bigint>;
  readonly setSeed: Call<[value: bigint], null>;
  readonly saveCheckpoint: Call<[includeOptimizerState: boolean, form: FileForm], FileBytes>;
  readonly exportModelForInferencing: Call<[outputNames: readonly string[], form: FileForm, ema: boolean], FileBytes>;
  readonly exportWeights: Call<[format: "safetensors" | "npz", ema: boolean], Uint8Array>;
  readonly loadWeights: Call<[weights: Uint8Array, strict: boolean], null>;
  readonly adapter: Call<[], AdapterFiles>;
  readonly loadAdapter: Call<[adapter: AdapterFiles], null>;
  readonly mergeAdapter: Call<[form: FileForm], FileBytes>;
  readonly artifact: Call<[name: ArtifactName, form: FileForm], FileBytes | null>;
}

/** The page that documents each class of errors. */
export const DOCUMENTATION = "https://github.com/trainweb/trainweb/blob/main/docs/errors.md";
