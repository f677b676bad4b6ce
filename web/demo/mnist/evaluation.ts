/** Evaluate the network on the test images. */

import { Tensor, type TrainingSession } from "trainweb";

import type { DigitSet } from "./data.js";

export const CLASSES = 10;
const EVAL_BATCH = 250;

export interface Mistake {
  /** Index in the test set. */
  readonly index: number;
  readonly label: number;
  readonly predicted: number;
  /** Probability the network gave to its wrong answer. */
  readonly confidence: number;
}

export interface Evaluation {
  readonly loss: number;
  readonly accuracy: number;
  /** confusion[label][predicted]: how many test images. */
  readonly confusion: readonly (readonly number[])[];
  /** Most confident first. */
  readonly mistakes: readonly Mistake[];
}

export type Results = Awaited<ReturnType<TrainingSession["runEvalStep"]>>;

/** Have all images read, batch by batch. */
export async function evaluate(
  test: DigitSet,
  read: (pixels: Float32Array, labels: BigInt64Array) => Promise<Results>,
): Promise<Evaluation> {
  const confusion = Array.from({ length: CLASSES }, () => new Array<number>(CLASSES).fill(0));
  const mistakes: Mistake[] = [];
  let loss = 0;
  for (let at = 0; at < test.count; at += EVAL_BATCH) {
    const count = Math.min(EVAL_BATCH, test.count - at);
    const { pixels, labels } = test.batch(Uint32Array.from({ length: count }, (_, i) => at + i));
    const results = await read(pixels, labels);
    const logits = logitsOf(results);
    loss += lossOf(results) * count;
    for (let row = 0; row < count; row++) {
      const probabilities = softmax(rowOf(logits, row));
      const predicted = argmax(probabilities);
      const label = test.label(at + row);
      confusion[label]![predicted]! += 1;
      if (predicted !== label) {
        mistakes.push({ index: at + row, label, predicted, confidence: probabilities[predicted] ?? 0 });
      }
    }
  }
  mistakes.sort((a, b) => b.confidence - a.confidence);
  return { loss: loss / test.count, accuracy: 1 - mistakes.length / test.count, confusion, mistakes };
}

/** Feeds of the models, by any names of their inputs. */
export function feeds(
  [imageName = "", labelsName = ""]: readonly string[],
  pixels: Float32Array,
  labels: BigInt64Array,
  side: number,
): Record<string, Tensor> {
  return {
    [imageName]: new Tensor("float32", pixels, [labels.length, 1, side, side]),
    [labelsName]: new Tensor("int64", labels, [labels.length]),
  };
}

function lossOf(results: Results): number {
  const loss = Object.entries(results).find(([name]) => name !== "logits")?.[1];
  return Number((loss?.data as Float32Array | undefined)?.[0]);
}

export function logitsOf(results: Results): Float32Array {
  return results["logits"]?.data as Float32Array;
}

function rowOf(logits: Float32Array, row: number): Float32Array {
  return logits.subarray(row * CLASSES, (row + 1) * CLASSES);
}

/** The class with the highest value. */
export function argmax(values: Float32Array): number {
  return values.reduce((best, value, i) => (value > (values[best] ?? -Infinity) ? i : best), 0);
}

/** Logits as probabilities. */
export function softmax(logits: Float32Array): Float32Array {
  const highest = Math.max(...logits);
  const exponentials = logits.map((value) => Math.exp(value - highest));
  const sum = exponentials.reduce((total, value) => total + value, 0);
  return exponentials.map((value) => value / sum);
}
