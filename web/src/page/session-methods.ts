/** Made by scripts/session_description.py of training/calls.py: edit that. */

import type { Tensor } from "onnxruntime-common";

import type { PropertyKind, PropertyValue, SessionMemory, ValueMetadata, AdapterFiles } from "../wire/protocol.js";
import { checkAdapter, checkBuffer, checkBytes, checkFlag, checkNumber, strictOf, trainableOnlyOf, type Strict, type TrainableOnly, typeAndShape, type ParameterTypeAndShape } from "./call-values.js";
import { checkOptions } from "../data/nearest.js";
import { copyBytes, unpackNamed, unpackTensor } from "./tensors.js";
import { Opaque } from "../wire/opaque.js";
import type { Channel } from "./channel.js";

/** The calls that `TrainingSession` passes on to its worker. */
export class SessionMethods extends Opaque {
  readonly #channel: Channel;

  constructor(channel: Channel) {
    super();
    this.#channel = channel;
  }

  /**
   * The current learning rate; 0.001 for a fresh session.
   *
   * @throws SessionError: the session has no optimizer model
   */
  async getLearningRate(): Promise<number> {
    this.#channel.checkOptimizer();
    return this.#channel.call("getLearningRate");
  }

  /**
   * Set the current learning rate.
   *
   * @param learningRate - a float32 >= 0
   * @throws SessionError: the rate is negative, infinite or NaN; or the session has no optimizer model
   */
  async setLearningRate(learningRate: number): Promise<void> {
    this.#channel.checkOptimizer();
    checkNumber("learningRate", learningRate);
    await this.#channel.call("setLearningRate", learningRate);
  }

  /**
   * Register a linear schedule: up from 0 to a rate, then down to 0.
   *
   * The rate becomes `initialLr` now, and the schedule's at each `schedulerStep`.
   *
   * @param warmupStepCount - optimizer steps of the warm-up
   * @param totalStepCount - optimizer steps after which the rate is 0
   * @param initialLr - the rate at the end of the warm-up, a float32 >= 0
   * @throws SessionError: a count is not an integer >= 0, the warm-up is longer than the total, or `initialLr` is not a
   *   float32 >= 0; or the session has no optimizer model
   */
  async registerLinearLRScheduler(warmupStepCount: number, totalStepCount: number, initialLr: number): Promise<void> {
    this.#channel.checkOptimizer();
    checkNumber("warmupStepCount", warmupStepCount);
    checkNumber("totalStepCount", totalStepCount);
    checkNumber("initialLr", initialLr);
    await this.#channel.call("registerLinearLrScheduler", warmupStepCount, totalStepCount, initialLr);
  }

  /**
   * Number of elements of all (trainable) parameters.
   *
   * @param trainableOnly - leave out the frozen ones; default true
   */
  async getParametersSize(trainableOnly: boolean | TrainableOnly = true): Promise<number> {
    return this.#channel.call("getParametersSize", trainableOnlyOf(trainableOnly));
  }

  /**
   * Overwrite all (trainable) parameters. Gradients and moments stay.
   *
   * @param buffer - a float32 array of `getParametersSize` elements, or its little-endian bytes
   * @param trainableOnly - leave out the frozen ones; default true
   * @throws BufferSizeError: wrong number of elements
   */
  async loadParametersBuffer(buffer: Uint8Array | Float32Array, trainableOnly: boolean | TrainableOnly = true): Promise<void> {
    checkBuffer(buffer);
    await this.#channel.call("loadParametersBuffer", copyBytes(buffer), trainableOnlyOf(trainableOnly));
  }

  /**
   * A copy of one parameter.
   *
   * @param name - the parameter's name
   * @returns float32 of the parameter's shape
   * @throws CheckpointError: there is no such parameter
   */
  async getParameter(name: string): Promise<Tensor> {
    return unpackTensor(await this.#channel.call("getParameter", name));
  }

  /**
   * Element type and shape of one parameter.
   *
   * @param name - the parameter's name
   * @returns float32, and the sizes of its axes; none for a scalar
   * @throws CheckpointError: there is no such parameter
   */
  async getParameterTypeAndShape(name: string): Promise<ParameterTypeAndShape> {
    return typeAndShape(await this.#channel.call("getParameterTypeAndShape", name));
  }

  /**
   * Names of all (trainable) parameters, in the order of the training model's inputs.
   *
   * @param options - settings by name
   * @param options.trainableOnly - leave out the frozen ones; default false
   */
  async parameterNames(options: { readonly trainableOnly?: boolean } = {}): Promise<readonly string[]> {
    const { trainableOnly = false } = checkOptions("parameterNames", options, { trainableOnly: true });
    checkFlag("trainableOnly", trainableOnly);
    return this.#channel.call("parameterNames", trainableOnly);
  }

  /**
   * A copy of one accumulated gradient: zeros before the first step.
   *
   * @param name - the parameter's name
   * @returns float32 of the parameter's shape
   * @throws CheckpointError: there is no such parameter, or it is frozen
   */
  async getGradient(name: string): Promise<Tensor> {
    return unpackTensor(await this.#channel.call("getGradient", name));
  }

  /**
   * Copies of the optimizer's moments of one parameter, by the names that checkpoints have for them.
   *
   * A frozen parameter has none.
   *
   * @param name - the parameter's name
   * @returns float32, of the parameter's shape; Adafactor and Muon have smaller ones for matrices
   * @throws CheckpointError: there is no such parameter
   * @throws SessionError: the session has no optimizer model
   */
  async getMoments(name: string): Promise<Readonly<Record<string, Tensor>>> {
    this.#channel.checkOptimizer();
    return unpackNamed(await this.#channel.call("getMoments", name));
  }

  /**
   * Euclidean norms of the accumulated gradients, by the names of the trainable parameters.
   *
   * Call it after train steps: before the first, all norms are 0. Clipping comes later, in the optimizer step.
   *
   * @throws CheckpointError: the session has a nominal checkpoint, which has no values yet
   */
  async gradientNorms(): Promise<Readonly<Record<string, number>>> {
    return this.#channel.call("gradientNorms");
  }

  /**
   * Completed optimizer steps.
   *
   * @throws SessionError: the session has no optimizer model
   */
  async stepCount(): Promise<number> {
    this.#channel.checkOptimizer();
    return this.#channel.call("stepCount");
  }

  /**
   * Name, type and dims, with symbols, of the inputs of a train (or eval) step.
   *
   * @param options - settings by name
   * @param options.training - false: of an eval step; default true
   */
  async inputMetadata(options: { readonly training?: boolean } = {}): Promise<readonly ValueMetadata[]> {
    const { training = true } = checkOptions("inputMetadata", options, { training: true });
    checkFlag("training", training);
    return this.#channel.call("inputMetadata", training);
  }

  /**
   * Name, type and dims, with symbols, of the outputs of a train (or eval) step.
   *
   * @param options - settings by name
   * @param options.training - false: of an eval step; default true
   */
  async outputMetadata(options: { readonly training?: boolean } = {}): Promise<readonly ValueMetadata[]> {
    const { training = true } = checkOptions("outputMetadata", options, { training: true });
    checkFlag("training", training);
    return this.#channel.call("outputMetadata", training);
  }

  /**
   * A value that the checkpoint keeps; an integer that a number cannot hold is a bigint.
   *
   * @param name - the property's name
   * @throws CheckpointError: there is no such property
   */
  async getProperty(name: string): Promise<PropertyValue> {
    return this.#channel.call("getProperty", name);
  }

  /**
   * The kind of a value in the checkpoint: 1 may be an integer or a float.
   *
   * @param name - the property's name
   * @throws CheckpointError: there is no such property
   */
  async getPropertyKind(name: string): Promise<PropertyKind> {
    return this.#channel.call("getPropertyKind", name);
  }

  /** Names of the values that the checkpoint keeps. */
  async propertyNames(): Promise<readonly string[]> {
    return this.#channel.call("propertyNames");
  }

  /**
   * Remove a value from the checkpoint.
   *
   * @param name - the property's name
   * @throws CheckpointError: there is no such property
   */
  async deleteProperty(name: string): Promise<void> {
    await this.#channel.call("deleteProperty", name);
  }

  /** Bytes of kernel memory that the session takes, and the cost of `memoryBudget`; call it after a step. */
  async memory(): Promise<SessionMemory> {
    return this.#channel.call("memory");
  }

  /**
   * All parameters by name, as a file that other programs read. It has no optimizer state.
   *
   * @param format - safetensors or npz; default "safetensors"
   * @param options - settings by name
   * @param options.ema - use the averages of the parameters that the session keeps; default false
   * @throws ModelError: there is no such format
   * @throws SessionError: `ema` is true, but the session keeps no averages
   */
  async exportWeights(format: "safetensors" | "npz" = "safetensors", options: { readonly ema?: boolean } = {}): Promise<Uint8Array> {
    const { ema = false } = checkOptions("exportWeights", options, { ema: true });
    checkFlag("ema", ema);
    return this.#channel.call("exportWeights", format, ema);
  }

  /**
   * Overwrite parameters with the contents of a safetensors or npz file. Gradients and moments stay.
   *
   * @param weights - the contents of the file
   * @param strict - whether the file must have all parameters, and no others; default true
   * @throws CheckpointError: the file has neither format, other parameters though `strict`, or a wrong type or shape.
   *   Nothing was changed
   */
  async loadWeights(weights: Uint8Array, strict: boolean | Strict = true): Promise<void> {
    checkBytes(weights);
    await this.#channel.call("loadWeights", copyBytes(weights), strictOf(strict));
  }

  /**
   * The trained adapters of a session made with `lora`, as PEFT's two files.
   *
   * @throws SessionError: the session has no adapters
   */
  async adapter(): Promise<AdapterFiles> {
    return this.#channel.call("adapter");
  }

  /**
   * Continue with another adapter of the same targets and rank, without compiling again. Moments stay.
   *
   * @param adapter - PEFT's two files, as `adapter` gives them
   * @throws CheckpointError: it has other modules, another rank or another scaling
   * @throws SessionError: the session has no adapters
   */
  async loadAdapter(adapter: AdapterFiles): Promise<void> {
    await this.#channel.call("loadAdapter", checkAdapter(adapter));
  }
}

/** The calls that `TrainingSession` has besides. @internal */
export type MethodsByHand = Readonly<
  Record<
    "lazyResetGrad" | "getContiguousParameters" | "updateParameter" | "deadUnits" | "addProperty" | "prepare" | "explain" | "saveCheckpoint" | "exportModelForInferencing" | "mergeAdapter",
    (...args: never[]) => Promise<unknown>
  >
>;
