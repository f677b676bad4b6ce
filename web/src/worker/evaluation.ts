/** Evaluation of data with the eval model; `trainweb/fit/evaluation.py` is the same in Python. */

import type { Evaluated, WireBatch, WireEvaluation } from "../wire/fit.js";
import { log } from "../wire/log.js";
import { refuseIf, sessionError, show } from "../wire/messages.js";
import type { Fetch, NamedTensor, WireTensor } from "../wire/protocol.js";
import { fixedRows, partsOf } from "../data/epoch.js";
import { takeRows } from "./feeds.js";
import { metricsKind, Totals } from "./fit/metrics.js";
import { located, textOfGap, type FailedBatch } from "./places.js";
import type { SessionCore } from "./session-core.js";
import { EVAL, type StepKind } from "./step-kind.js";

/** The evaluation of some data. */
export class Evaluation {
  readonly #core: SessionCore;
  readonly #spec: WireEvaluation;
  readonly #inputNames: readonly string[];
  /** The step that sums up the metrics besides the loss. */
  readonly #kind: StepKind;
  #totals: Totals | null = null;
  /** The loss of all batches so far, and its divisor: `MeanLoss` of trainweb/loss_counts.py. */
  #sum = 0;
  #weight = 0;
  /** Number of finished batches. */
  batches = 0;
  #hasWarned = false;
  /** Rows of a batch, where the file fixes them. */
  readonly #fixed: number | null;
  readonly #epoch: number;
  readonly #data: string;

  /**
   * @param epoch - of the fit, from 1, in errors; 0 without a fit
   * @param data - its name in errors
   */
  constructor(core: SessionCore, spec: WireEvaluation, epoch = 0, data = "data") {
    this.#core = core;
    this.#spec = spec;
    this.#epoch = epoch;
    this.#data = data;
    this.#inputNames = core.info.evalInputNames;
    this.#fixed = fixedRows(core.inputsOf(EVAL));
    this.#kind = core.metricsKind(metricsKind(spec));
  }

  async add(whole: WireBatch): Promise<void> {
    const { feeds, rows } = whole;
    const { numberOf } = failedBatch(whole);
    const known = this.#inputNames.flatMap((name) => feeds.filter((feed) => feed.name === name));
    for (const { order, times } of partsOf(rows, this.#fixed)) {
      const part = order.length === rows && times === 1 ? known : known.map((feed) => takeRows(feed, rows, order));
      const batch = { feeds: part, rows: order.length, numberOf: (k: number) => numberOf(order[k] as number) };
      try {
        await this.#add(batch, times);
      } catch (error) {
        throw located(error, batch, this.#epoch, this.batches + 1, this.#data);
      }
    }
    this.batches++;
  }

  /** @param times - how often each row is in the batch */
  async #add(batch: FailedBatch, times: number): Promise<void> {
    const { feeds, rows } = batch;
    this.#totals ??= new Totals(this.#kind.request === null ? [] : await this.#core.planMetrics(this.#kind, feeds));
    const totals = this.#totals;
    const { output, isSum } = this.#core.lossCounts.eval;
    const sums = totals.fetches.map((name) => ({ name }));
    const { results } = await this.#core.step(this.#kind, feeds, [...fetchesOfLoss(this.#spec.loss, output), ...sums]);
    totals.add(results, times);
    this.#checkRows(totals, rows / times);
    const [loss, count] = results;
    const value = numbersOf(loss, this.#spec.loss)[0] as number;
    if (!Number.isFinite(value) && !this.#hasWarned) {
      this.#hasWarned = warnOfGap(this.#core, `The loss is ${show(value)}.`, batch, this.#data);
    }
    const weight = (output === null ? rows : numbersOf(count, output)[0] as number) / times;
    if (weight !== 0) {
      // Without labels the loss is 0 / 0, or absent.
      this.#sum += isSum ? value / times : value * weight;
      this.#weight += weight;
    }
  }

  /** @throws SessionError if collected predictions or targets have no axis of rows */
  #checkRows(totals: Totals, rows: number): void {
    for (const [k, { dims }] of (this.batches > 0 ? (totals.rows.at(-1) ?? []) : []).entries()) {
      refuseIf(dims[0] !== rows, "NO_ROWS_IN_OUTPUT", { name: this.#spec.collects?.[k] as string, shape: dims, rows });
    }
  }

  result(): Evaluated {
    // NaN where every label is ignored, as PyTorch's.
    const loss = this.#weight === 0 ? NaN : this.#sum / this.#weight;
    const values = this.#totals?.values(this.#spec.metrics, loss);
    for (const { key: name } of this.#spec.metrics.filter(({ key }) => Number.isNaN(values?.[key]))) {
      warnOnce(this.#core, sessionError("NAN_METRIC", { name, source: this.#data }).message);
    }
    return { values: { loss, ...values }, rows: this.#totals?.rows ?? [] };
  }
}

/** The fetches for a loss and its divisor. */
export function fetchesOfLoss(name: string, count: string | null): Fetch[] {
  return count === null ? [{ name }] : [{ name }, { name: count }];
}

/** Warn, once in a session, of the first NaN or infinity of a batch, with its input and row; false: there is none. */
export function warnOfGap(core: SessionCore, reason: string, batch: FailedBatch, source: string): boolean {
  const gap = textOfGap(reason, batch, source);
  warnOnce(core, gap);
  return gap !== null;
}

function warnOnce({ notices }: SessionCore, text: string | null): void {
  if (text !== null && !notices.has(text)) {
    notices.add(text);
    log("warning", text);
  }
}

/** A batch whose step failed. */
export function failedBatch({ feeds, rows, first, numbers }: WireBatch): FailedBatch {
  return { feeds, rows, numberOf: (k) => numbers?.[k] ?? first + k };
}

/** @throws SessionError unless the tensor has so many float32 */
export function numbersOf(tensor: WireTensor | NamedTensor | undefined, name: string, count = 1): Float32Array {
  if (tensor?.dtype !== "float32" || tensor.data.length !== 4 * count) {
    throw sessionError("SCALAR_LOSS", { name, shape: tensor?.dims ?? [] });
  }
  return new Float32Array(tensor.data.slice().buffer);
}

/** The evaluations of a session outside of fits, by number. */
export class Evaluations {
  readonly #all = new Map<number, Evaluation>();

  /** Evaluate a batch; after the last one, null gives the values. */
  async run(core: SessionCore, number: number, spec: WireEvaluation, batch: WireBatch | null): Promise<Evaluated | null> {
    const evaluation = this.#all.get(number) ?? new Evaluation(core, spec);
    this.#all.set(number, evaluation);
    if (batch === null) {
      this.#all.delete(number);
      return evaluation.result();
    }
    await evaluation.add(batch);
    return null;
  }
}
