/** Data under evaluation with the eval model; `trainweb/fit/evaluation.py` is the same in Python. */

import type { Evaluated, WireBatch, WireEvaluation } from "../wire/fit.js";
import { sessionError } from "../wire/messages.js";
import type { Feed, Fetch, MaybePromise, NamedTensor, WireTensor } from "../wire/protocol.js";
import type { PlanMetric } from "./bundle/metrics.js";
import type { LossCount } from "./bundle/bundle.js";
import { fixedRows, partsOf } from "../data/epoch.js";
import { taken } from "./feeds.js";
import { withValue } from "./host.js";
import { fetchesOf, metricsKind, Totals } from "./fit/metrics.js";
import { located, type FailedBatch } from "./places.js";
import type { SessionCore } from "./session-core.js";
import { EVAL, type StepKind } from "./step-kind.js";

/** A part of a batch in which each row comes so many times. */
interface Part extends FailedBatch {
  readonly times: number;
}

/** Validation data under evaluation. */
export class Evaluation {
  readonly #core: SessionCore;
  readonly #spec: WireEvaluation;
  readonly #inputNames: readonly string[];
  /** Sums up what the metrics need besides the loss. */
  readonly #kind: StepKind;
  #metrics: readonly PlanMetric[] = [];
  #totals: Totals | null = null;
  readonly #mean: MeanLoss;
  #batches = 0;
  /** Rows of a batch, where the file fixes them. */
  readonly #fixed: number | null;
  #part: Part | null = null;

  constructor(core: SessionCore, spec: WireEvaluation) {
    this.#core = core;
    this.#spec = spec;
    this.#inputNames = core.info.evalInputNames;
    this.#fixed = fixedRows(core.inputsOf(EVAL));
    this.#mean = new MeanLoss(core.lossCounts.eval);
    const { predictions, targets } = spec;
    this.#kind =
      predictions === null || targets === null ? EVAL : core.metricsKind(metricsKind(predictions, targets, spec));
  }

  add({ feeds, rows, first }: WireBatch): MaybePromise<void> {
    const known = this.#inputNames.flatMap((name) => feeds.filter((feed) => feed.name === name));
    const parts = [...partsOf(rows, this.#fixed)].map(({ order, times }) => {
      const part = order.length === rows && times === 1 ? known : known.map((feed) => taken(feed, rows, order));
      return { feeds: part, rows: order.length, numberOf: (k: number) => first + (order[k] as number), times };
    });
    const [only] = parts;
    const added = parts.length === 1 && only !== undefined ? this.#add(only) : this.#addAll(parts);
    return withValue(added, () => {
      this.#batches++;
    });
  }

  async #addAll(parts: readonly Part[]): Promise<void> {
    for (const part of parts) {
      await this.#add(part);
    }
  }

  #add(part: Part): MaybePromise<void> {
    const { feeds, rows, times } = part;
    this.#part = part;
    return withValue(this.#totalsOf(feeds), (totals) => {
      const { output, isSum } = this.#core.lossCounts.eval;
      const sums = fetchesOf(this.#metrics).map((name) => ({ name }));
      const fetches = [...fetchesOfLoss(this.#spec.loss, output), ...sums];
      return withValue(this.#core.step(this.#kind, feeds, fetches), ({ results }) => {
        totals.add(results, times);
        this.#checkRows(totals, rows / times);
        const [loss, count] = results;
        const scale = isSum ? times : 1;
        this.#mean.add(scalarOf(loss, this.#spec.loss) / scale, (output === null ? rows : scalarOf(count, output)) / times);
      });
    });
  }

  /** @throws SessionError if what is collected for functions cannot be joined by rows */
  #checkRows(totals: Totals, rows: number): void {
    const { predictions, targets } = this.#spec;
    for (const [k, { dims }] of (this.#batches > 0 ? (totals.rows.at(-1) ?? []) : []).entries()) {
      if (dims[0] !== rows) {
        throw sessionError("NO_ROWS_IN_OUTPUT", { name: [predictions, targets][k] as string, shape: dims, rows });
      }
    }
  }

  #totalsOf(feeds: readonly Feed[]): MaybePromise<Totals> {
    if (this.#totals !== null) {
      return this.#totals;
    }
    const metrics = this.#kind.request === null ? [] : this.#core.planMetrics(this.#kind, feeds);
    return withValue(metrics, (found) => {
      this.#metrics = found;
      this.#totals = new Totals(found);
      return this.#totals;
    });
  }

  /** What was evaluated last, of which an error speaks. */
  get failed(): FailedBatch {
    return this.#part as Part;
  }

  /** Number of finished batches. */
  get batches(): number {
    return this.#batches;
  }

  result(): Evaluated {
    const loss = this.#mean.value;
    const values = this.#totals?.values(this.#spec.metrics, loss);
    return { values: { loss, ...values }, rows: this.#totals?.rows ?? [] };
  }
}

/** The results of a step for its loss, and for the number that divided it. */
export function fetchesOfLoss(name: string, count: string | null): Fetch[] {
  return count === null ? [{ name }] : [{ name }, { name: count }];
}

/** A batch whose step failed. */
export function failedBatch({ feeds, rows, first }: WireBatch): FailedBatch {
  return { feeds, rows, numberOf: (k) => first + k };
}

/** @throws SessionError for what is no single float32 */
export function scalarOf(tensor: WireTensor | NamedTensor | undefined, name: string): number {
  if (tensor?.dtype !== "float32" || tensor.data.length !== 4) {
    throw sessionError("SCALAR_LOSS", { name, shape: tensor?.dims ?? [] });
  }
  return new DataView(tensor.data.buffer, tensor.data.byteOffset).getFloat32(0, true);
}

/** Evaluations of a session apart from fits, by their numbers. */
export class Evaluations {
  readonly #all = new Map<number, Evaluation>();

  /** Evaluate a batch; null: the values, for all batches were there. */
  async run(core: SessionCore, number: number, spec: WireEvaluation, batch: WireBatch | null): Promise<Evaluated | null> {
    const evaluation = this.#all.get(number) ?? new Evaluation(core, spec);
    this.#all.set(number, evaluation);
    if (batch === null) {
      this.#all.delete(number);
      return evaluation.result();
    }
    try {
      await evaluation.add(batch);
      return null;
    } catch (error) {
      throw located(error, evaluation.failed, { epoch: 1, batch: evaluation.batches + 1 }, "validation data");
    }
  }
}

/** The loss of several batches; trainweb/loss_counts.py is the same, and finds the divisor of a loss. */
class MeanLoss {
  readonly #isSum: boolean;
  #total = 0;
  #weight = 0;

  constructor({ isSum }: LossCount) {
    this.#isSum = isSum;
  }

  /** @param weight - the divisor of the loss; for a sum, the number of rows */
  add(loss: number, weight: number): void {
    if (weight !== 0) {
      // Of no label there is no loss, or one of 0 / 0.
      this.#total += this.#isSum ? loss : loss * weight;
      this.#weight += weight;
    }
  }

  /** The loss of all rows; NaN where every label is ignored, as PyTorch's. */
  get value(): number {
    return this.#weight === 0 ? NaN : this.#total / this.#weight;
  }
}
