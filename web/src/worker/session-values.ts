/** Places, checks and sizes of a session's parts. */

import { ARENA, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS, PREPARED } from "../engine/layout.js";
import { refuseIf } from "../wire/messages.js";
import type { SessionMemory, TensorType } from "../wire/protocol.js";
import { type ParameterSlot } from "./bundle/bundle.js";
import { sizeOf } from "./bundle/reader.js";
import { convertFloats, FLOAT_BYTES } from "../wire/floats.js";
import type { StepHost } from "./host.js";

/** Place of a parameter among all, in bytes. */
export function bytesOf({ offset, dims, dtype }: ParameterSlot): { readonly start: number; readonly end: number } {
  return { start: 4 * offset, end: 4 * offset + FLOAT_BYTES[dtype] * sizeOf(dims) };
}

/** The float32 values of a parameter among all. */
export function readParameter(all: Uint8Array, slot: ParameterSlot): Uint8Array<ArrayBuffer> {
  const { start, end } = bytesOf(slot);
  const values = new Uint8Array(4 * sizeOf(slot.dims));
  if (slot.dtype === "float32") {
    values.set(all.subarray(start, end));
  } else {
    convertFloats(all.subarray(start, end), slot.dtype, values, "float32");
  }
  return values;
}

/** Overwrite a parameter among all with float32 values. */
export function writeParameter(all: Uint8Array, slot: ParameterSlot, values: Uint8Array): void {
  const { start, end } = bytesOf(slot);
  if (slot.dtype === "float32") {
    all.set(values, start);
  } else {
    convertFloats(values, "float32", all.subarray(start, end), slot.dtype);
  }
}

export function typeOf({ dims }: ParameterSlot): TensorType {
  return { dtype: "float32", dims };
}

/** @throws SessionError unless a number is an integer that is large enough */
export function checkCount(name: string, value: number, least = 0): void {
  refuseIf(!Number.isSafeInteger(value) || value < least, "NOT_A_COUNT", { name, least, value });
}

/** Raise unless a number can be a learning rate, which is a float32. */
export function checkRate(name: string, value: number): void {
  const rate = Math.fround(value);
  refuseIf(!(rate >= 0 && rate < Infinity), "NOT_A_RATE", { name, value });
}

/** Bytes that a session takes of the kernels' memory. */
export function memoryOf({ kernelBytes, plans, planBytes, gpuBytes }: StepHost): SessionMemory {
  const size = (segment: number): number => kernelBytes[segment] as number;
  const costs = plans.map(({ recomputation }) => recomputation);
  const most = costs.sort((a, b) => b.fullBytes - a.fullBytes)[0];
  return {
    parameters: size(PARAMETERS),
    gradients: size(GRADIENTS),
    moments: size(MOMENTUM0) + size(MOMENTUM1),
    arena: size(ARENA),
    prepared: size(PREPARED),
    plans: planBytes,
    arenaWithoutBudget: most?.fullBytes ?? 0,
    recomputedInstructions: most?.instructions ?? 0,
    recomputedFlops: most?.flops ?? 0,
    recomputedShare: most?.share ?? 0,
    gpu: gpuBytes,
  };
}

const ARRAYS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array, int8: Int8Array };

/** The values of a tensor of one of these types as numbers. */
export function numbersOf(dtype: string, data: Uint8Array): readonly number[] {
  return Array.from(new ARRAYS[dtype as keyof typeof ARRAYS](data.slice().buffer) as ArrayLike<number>, Number);
}
