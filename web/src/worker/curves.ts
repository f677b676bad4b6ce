/** Areas under ROC curves; `areas_under_curves` of trainweb/metrics.py is the same. */

import { refuseIf, sessionError } from "../wire/messages.js";
import type { NamedTensor } from "../wire/protocol.js";
import { numbersOf } from "./session-values.js";

/** Predictions and targets of all batches. */
export class Curves {
  readonly #name: string;
  readonly #rows: (readonly number[])[] = [];
  readonly #labels: number[] = [];
  readonly #weights: number[] = [];
  readonly #isWeighed: boolean;

  /** @param isWeighed - true if the last score of each row is its weight */
  constructor(name: string, isWeighed: boolean) {
    this.#name = name;
    this.#isWeighed = isWeighed;
  }

  /** @throws FeedError unless predictions and targets have one value per row, and targets are classes */
  add(scores: NamedTensor, targets: NamedTensor): void {
    const [rows = 0, width = 1] = scores.dims;
    const classes = this.#isWeighed ? width - 1 : width;
    const values = valuesOf(scores);
    const labels = valuesOf(targets);
    refuseIf(labels.length !== rows || scores.dims.length > 2, "AUC_SHAPE", { name: this.#name, scores: scores.dims, targets: targets.dims });
    for (let k = 0; k < rows; k++) {
      this.#rows.push(values.slice(k * width, k * width + classes));
      this.#weights.push(this.#isWeighed ? (values[(k + 1) * width - 1] as number) : 1);
    }
    for (const label of labels) {
      if (classes > 1 && !(Number.isInteger(label) && label >= 0 && label < classes)) {
        throw sessionError("METRIC_CLASS", { name: this.#name, value: label, count: classes });
      }
      this.#labels.push(label);
    }
  }

  /** Areas of each class against the rest, or of the second of two classes; NaN for a class without rows. */
  areas(): number[] {
    const classes = this.#rows[0]?.length ?? 0;
    if (classes <= 2) {
      const scores = this.#rows.map((row) => (row.at(-1) as number) - (classes === 2 ? (row[0] as number) : 0));
      return [areaUnderCurve(scores, this.#labels.map((label) => label > 0.5), this.#weights)];
    }
    // As in torchmetrics: the order within a class depends on the other scores.
    const areProbabilities = this.#rows.every((row) => row.every((score) => score >= 0 && score <= 1));
    const rows = areProbabilities ? this.#rows : this.#rows.map(softmax);
    return Array.from({ length: classes }, (_, c) =>
      areaUnderCurve(rows.map((row) => row[c] as number), this.#labels.map((label) => label === c), this.#weights),
    );
  }
}

/** The mean of the areas that are not NaN; NaN if all are. */
export function meanOf(areas: readonly number[]): number {
  const known = areas.filter((area) => !Number.isNaN(area));
  return known.reduce((sum, area) => sum + area, 0) / known.length;
}

function valuesOf({ dtype, data }: NamedTensor): readonly number[] {
  refuseIf(!["float32", "int64", "int32"].includes(dtype), "METRIC_TYPE", { dtype });
  return numbersOf(dtype, data);
}

function softmax(row: readonly number[]): number[] {
  const most = Math.max(...row);
  const powers = row.map((score) => Math.exp(score - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/**
 * The share of pairs (right row, other row) in which the right row scores higher. Equal scores count half, and a pair counts as
 * the product of its weights.
 */
function areaUnderCurve(scores: readonly number[], isRight: readonly boolean[], weights: readonly number[]): number {
  if (scores.some((score) => Number.isNaN(score))) {
    return NaN;
  }
  const order = scores.map((_, k) => k).sort((a, b) => (scores[a] as number) - (scores[b] as number));
  let [right, below, wins] = [0, 0, 0];
  for (let [k, end] = [0, 0]; k < order.length; k = end) {
    let [hits, others] = [0, 0];
    for (end = k; end < order.length && scores[order[end] as number] === scores[order[k] as number]; end++) {
      const row = order[end] as number;
      const weight = weights[row] as number;
      [hits, others] = isRight[row] === true ? [hits + weight, others] : [hits, others + weight];
    }
    // Twice the pairs, so that halves are whole.
    wins += hits * (2 * below + others);
    below += others;
    right += hits;
  }
  return right * below === 0 ? NaN : wins / (2 * right * below);
}
