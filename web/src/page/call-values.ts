/** Checks and conversions for the generated calls of a session. */

import type { Tensor } from "onnxruntime-common";

import { isObject } from "../wire/kinds.js";
import { refuseIf } from "../wire/messages.js";
import type { AdapterFiles, ModelMetadata, TensorType, WireModelMetadata } from "../wire/protocol.js";
import { describe, isBytes, mustBe } from "../data/checks.js";
import { checkOptions } from "../data/nearest.js";

/** Type and dims of a parameter. */
export interface ParameterTypeAndShape {
  /** As of tensors, "float32" for nearly all. */
  readonly type: Tensor.Type;
  /** Sizes, outermost first; [] for a scalar. */
  readonly dims: readonly number[];
}

/** @throws TypeError when an argument is not a number */
export function checkNumber(name: string, value: unknown): void {
  refuseIf(typeof value !== "number", "NOT_A_NUMBER", { name, actual: describe(value) });
}

/** @throws TypeError when an argument is not a boolean */
export function checkFlag(name: string, value: unknown): void {
  mustBe(typeof value === "boolean", name, "a boolean", value);
}

/** @throws TypeError when an argument is not a list of names */
export function checkNames(name: string, value: unknown): void {
  mustBe(Array.isArray(value), name, "an array of strings", value);
}

/** The parameters that a call reads or writes. */
export interface TrainableOnly {
  /** Leave out the frozen ones. Default true. */
  readonly trainableOnly?: boolean;
}

/** Exactness of `loadWeights`. */
export interface Strict {
  /** The file must have all parameters, and no others. Default true. */
  readonly strict?: boolean;
}

/** The flag, which is given as itself or by its name. */
export function trainableOnlyOf(value: unknown): boolean {
  return flagOf("trainableOnly", value);
}

/** The flag, which is given as itself or by its name. */
export function strictOf(value: unknown): boolean {
  return flagOf("strict", value);
}

function flagOf<Name extends string>(name: Name, argument: unknown): boolean {
  const isNamed = isObject(argument);
  const options = checkOptions("the call", (isNamed ? argument : {}) as Partial<Record<Name, unknown>>, { [name]: true } as Record<Name, true>);
  const value = isNamed ? (options[name] ?? true) : argument;
  checkFlag(name, value);
  return value as boolean;
}

/** @throws TypeError when an argument is not a buffer of parameters */
export function checkBuffer(buffer: unknown): void {
  mustBe(isBytes(buffer) || buffer instanceof Float32Array, "buffer", "a Uint8Array or Float32Array", buffer);
}

/** @throws TypeError when an argument is not a file in memory */
export function checkBytes(file: unknown): void {
  mustBe(isBytes(file), "weights", "a Uint8Array", file);
}

/** @throws TypeError when an argument is not an adapter */
export function checkAdapter(adapter: AdapterFiles): AdapterFiles {
  const { weights, config } = (adapter ?? {}) as Partial<AdapterFiles>;
  const isAdapter = isBytes(weights) && typeof config === "string";
  mustBe(isAdapter, "adapter", "an object with 'weights' (a Uint8Array) and 'config' (a text)", adapter);
  checkOptions("adapter", adapter, { weights: true, config: true });
  // The page loses the bytes that it sends.
  return { weights: (weights as Uint8Array).slice(), config: config as string };
}

/** As the page's users have it. */
export function typeAndShape({ dtype, dims }: TensorType): ParameterTypeAndShape {
  return { type: dtype as ParameterTypeAndShape["type"], dims };
}

/** As the page's users have it. */
export function modelMetadata(metadata: WireModelMetadata): ModelMetadata {
  return { ...metadata, version: BigInt(metadata.version) };
}
