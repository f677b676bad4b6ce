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

/** The calls of a training session besides its steps. */
export interface SessionCalls {
  /** Let the next train step overwrite the gradients instead of adding to them. */
  readonly lazyResetGrad: Call<[], null>;
  /** The current learning rate; 0.001 for a fresh session. */
  readonly getLearningRate: Call<[], number>;
  /** Set the current learning rate. */
  readonly setLearningRate: Call<[lr: number], null>;
  /** Register a linear schedule: up from 0 to a rate, then down to 0. */
  readonly registerLinearLrScheduler: Call<[warmupStepCount: number, totalStepCount: number, initialLr: number], null>;
  /** Number of elements of all (trainable) parameters. */
  readonly getParametersSize: Call<[trainableOnly: boolean], number>;
  /** All (trainable) parameters as one vector, a copy, in the order of the training model's inputs. */
  readonly getContiguousParameters: Call<[trainableOnly: boolean, ema: boolean], WireTensor>;
  /** Overwrite all (trainable) parameters. Gradients and moments stay. */
  readonly loadParametersBuffer: Call<[buffer: Uint8Array, trainableOnly: boolean], null>;
  /** A copy of one parameter. */
  readonly getParameter: Call<[name: string], WireTensor>;
  /** Overwrite one parameter. */
  readonly updateParameter: Call<[tensor: NamedTensor], null>;
  /** Element type and shape of one parameter. */
  readonly getParameterTypeAndShape: Call<[name: string], TensorType>;
  /** Names of all (trainable) parameters, in the order of the training model's inputs. */
  readonly parameterNames: Call<[trainableOnly: boolean], readonly string[]>;
  /** A copy of one accumulated gradient: zeros before the first step. */
  readonly getGradient: Call<[name: string], WireTensor>;
  /** Copies of the optimizer's moments of one parameter, by the names that checkpoints have for them. */
  readonly getMoments: Call<[name: string], readonly NamedTensor[]>;
  /** Euclidean norms of the accumulated gradients, by the names of the trainable parameters. */
  readonly gradientNorms: Call<[], Readonly<Record<string, number>>>;
  /** Units of ReLU, ThresholdedRelu, and Clip from 0 that are 0 for every row of some batches. */
  readonly deadUnits: Call<[batches: readonly (readonly Feed[])[]], readonly DeadUnits[]>;
  /** Completed optimizer steps. */
  readonly stepCount: Call<[], number>;
  /** Name, type and dims, with symbols, of the inputs of a train (or eval) step. */
  readonly inputMetadata: Call<[training: boolean], readonly ValueMetadata[]>;
  /** Name, type and dims, with symbols, of the outputs of a train (or eval) step. */
  readonly outputMetadata: Call<[training: boolean], readonly ValueMetadata[]>;
  /** Keep a value in the checkpoint. */
  readonly addProperty: Call<[name: string, value: PropertyValue, kind: PropertyKind | null], null>;
  /** A value that the checkpoint keeps; an integer that a number cannot hold is a bigint. */
  readonly getProperty: Call<[name: string], PropertyValue>;
  /** The kind of a value in the checkpoint: 1 may be an integer or a float. */
  readonly getPropertyKind: Call<[name: string], PropertyKind>;
  /** Names of the values that the checkpoint keeps. */
  readonly propertyNames: Call<[], readonly string[]>;
  /** Remove a value from the checkpoint. */
  readonly deleteProperty: Call<[name: string], null>;
  /** Bytes of kernel memory that the session takes, and the cost of `memoryBudget`; call it after a step. */
  readonly memory: Call<[], SessionMemory>;
  /** Compile the plans of steps with feeds of these shapes ahead, for example while data load. */
  readonly prepare: Call<[shapes: Readonly<Record<string, readonly number[]>>], null>;
  /** Copy the state that the session continues from. */
  readonly keepState: Call<[], null>;
  /** Restore the state that `keepState` copied, once. */
  readonly goBack: Call<[], null>;
  /** The compilation of a step for such feeds, as text; nothing runs, and no plan is kept. */
  readonly explain: Call<[kind: "train" | "eval", feeds: readonly Feed[]], string>;
  /** The seed of its random operators. */
  readonly getSeed: Call<[], bigint>;
  /** Seed the session's random operators. */
  readonly setSeed: Call<[value: bigint], null>;
  /** A checkpoint file. */
  readonly saveCheckpoint: Call<[includeOptimizerState: boolean, form: FileForm], FileBytes>;
  /** The eval model with the current parameters. */
  readonly exportModelForInferencing: Call<[outputNames: readonly string[], form: FileForm, ema: boolean], FileBytes>;
  /** All parameters by name, as a file that other programs read. It has no optimizer state. */
  readonly exportWeights: Call<[format: "safetensors" | "npz", ema: boolean], Uint8Array>;
  /** Overwrite parameters with the contents of a safetensors or npz file. Gradients and moments stay. */
  readonly loadWeights: Call<[weights: Uint8Array, strict: boolean], null>;
  /** The trained adapters of a session made with `lora` or `promptTuning`, as PEFT's two files. */
  readonly adapter: Call<[], AdapterFiles>;
  /** Continue with another adapter of the same targets and rank, without compiling again. Moments stay. */
  readonly loadAdapter: Call<[adapter: AdapterFiles], null>;
  /** The forward model with the adapters merged into its weights, or with the vectors of a trained prompt. */
  readonly mergeAdapter: Call<[form: FileForm], FileBytes>;
  /** A file that `createFromModel` built. */
  readonly artifact: Call<[name: ArtifactName, form: FileForm], FileBytes | null>;
}

/** The page that documents each class of errors. */
export const DOCUMENTATION = "https://github.com/trainweb/trainweb/blob/main/docs/errors.md";
