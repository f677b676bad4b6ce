/** Batches of rows, several of which the kernels run at once; `trainweb/fit/rows.py` is the same in Python. */

import type { WireClip } from "../../wire/fit.js";
import type { Feed, MaybePromise, NamedTensor } from "../../wire/protocol.js";
import { CLIP_INPUTS, type FeedType } from "../bundle/bundle.js";
import { MOST_BATCHES, MOST_BYTES, SLICE_S } from "../constants.js";
import { signatureOf } from "../feeds.js";
import { withValue, type RanBatches, type StepPlans } from "../host.js";
import type { PreparedPlan } from "../runner.js";
import type { SessionCore } from "../session-core.js";
import { checkRate } from "../session-values.js";
import { CLIP, OPTIMIZER, TRAIN } from "../step-kind.js";
import type { FitSteps } from "./steps.js";

/** The kernels run for about so long at a time. */
const SLICE_MS = 1000 * SLICE_S;
const NO_BYTES = new Uint8Array(0);

/** Rows of at most so many bytes are copied by words: a call of `set` takes longer than they do. */
const SMALL_ROW = 64;

/** Data whose first axis counts rows, or whole batches. */
export class Columns {
  readonly rows: number;
  readonly #columns: readonly Column[];
  readonly #isBatches: boolean;

  /** @param isBatches - a row is what a step is fed, without an axis more */
  constructor(tensors: readonly NamedTensor[], isBatches = false) {
    this.#isBatches = isBatches;
    this.rows = tensors[0]?.dims[0] ?? 0;
    this.#columns = tensors.map(({ name, dtype, dims, data }) => {
      const rowBytes = data.length / (dims[0] as number);
      const isWords = rowBytes % 4 === 0 && data.byteOffset % 4 === 0;
      const words = isWords ? new Int32Array(data.buffer, data.byteOffset, data.length / 4) : null;
      return { name, dtype, dims: dims.slice(1), rowBytes, data, words };
    });
  }

  /** The feeds of a batch of so many rows, in the order of the model's inputs; what it does not know comes last. */
  types(rows: number, inputNames: readonly string[]): FeedType[] {
    return this.#ordered(inputNames).map(({ name, dtype, dims }) => {
      return { name, dtype, dims: this.#isBatches ? dims : [rows, ...dims], value: null };
    });
  }

  /** Bytes of a row. */
  get rowBytes(): number {
    return this.#columns.reduce((sum, { rowBytes }) => sum + rowBytes, 0);
  }

  /** Copies of some rows, in the same order; of one, where rows are batches. */
  feeds(rows: Uint32Array, inputNames: readonly string[]): NamedTensor[] {
    return this.#ordered(inputNames).map(({ name, dtype, dims, rowBytes, data }) => {
      const copy = new Uint8Array(rows.length * rowBytes);
      rows.forEach((row, k) => copy.set(data.subarray(row * rowBytes, (row + 1) * rowBytes), k * rowBytes));
      return { name, dtype, dims: this.#isBatches ? dims : [rows.length, ...dims], data: copy };
    });
  }

  #ordered(inputNames: readonly string[]): Column[] {
    const known = inputNames.flatMap((name) => this.#columns.filter((column) => column.name === name));
    return [...known, ...this.#columns.filter(({ name }) => !inputNames.includes(name))];
  }

  /** Write rows of an input. */
  write(input: string, target: Uint8Array, rows: Uint32Array): void {
    const { rowBytes, data, words } = this.#columns.find(({ name }) => name === input) as Column;
    if (words !== null && rowBytes <= SMALL_ROW && target.byteOffset % 4 === 0) {
      copyWords(words, rowBytes / 4, new Int32Array(target.buffer, target.byteOffset, target.length / 4), rows);
      return;
    }
    // Rows that follow each other are copied at once: all of them, where the data is not shuffled.
    for (let k = 0, end = 1; k < rows.length; k = end, end++) {
      const first = rows[k] as number;
      while (end < rows.length && rows[end] === first + end - k) {
        end++;
      }
      target.set(data.subarray(first * rowBytes, (first + end - k) * rowBytes), k * rowBytes);
    }
  }
}

interface Column extends Omit<NamedTensor, "data"> {
  readonly rowBytes: number;
  readonly data: Uint8Array;
  /** The same bytes, where rows are made of words. */
  readonly words: Int32Array | null;
}

function copyWords(source: Int32Array, size: number, target: Int32Array, rows: Uint32Array): void {
  let at = 0;
  for (let k = 0; k < rows.length; k++) {
    const start = (rows[k] as number) * size;
    for (let i = 0; i < size; i++) {
      target[at++] = source[start + i] as number;
    }
  }
}

/** Learning rates of the optimizer steps from a number on. */
export interface Rates {
  readonly from: number;
  readonly values: Float64Array;
}

/** How a session trains on batches. */
export interface BatchOptions {
  /** An output of the training model. */
  readonly loss: string;
  readonly clip: WireClip | null;
  /** Batches for an optimizer step. */
  readonly accumulate: number;
}

/** Runs batches of some columns. */
export class RowBatches {
  readonly #core: SessionCore;
  readonly #steps: FitSteps;
  readonly #columns: Columns;
  readonly #options: BatchOptions;
  #most = 1;

  constructor(core: SessionCore, steps: FitSteps, columns: Columns, options: BatchOptions) {
    this.#core = core;
    this.#steps = steps;
    this.#columns = columns;
    this.#options = options;
  }

  /**
   * Run the first of some batches, as many as take a few milliseconds.
   *
   * @param rows - the rows of all batches, which have the same size
   * @param rates - null: the learning rate stays as it is
   * @param most - batches at most
   * @returns null: the plans are not here together, or the loss is not one float32; nothing has happened
   */
  run(rows: Uint32Array, size: number, rates: Rates | null, most: number): MaybePromise<RanBatches | null> {
    return withValue(this.#plans(size), (plans) => (plans === null ? null : this.#run(plans, rows, size, rates, most)));
  }

  #run(plans: StepPlans, rows: Uint32Array, size: number, rates: Rates | null, most: number): MaybePromise<RanBatches> {
    const { loss, clip, accumulate } = this.#options;
    const { waiting, optimizerSteps } = this.#steps.at;
    const n = Math.min(this.#most, most, rows.length / size);
    const next = optimizerSteps - (rates?.from ?? 0);
    const values = rates?.values.subarray(next, next + Math.ceil((waiting + n) / accumulate)) ?? null;
    values?.forEach((rate) => checkRate("learningRate", rate));
    const taken = rows.subarray(0, n * size);
    const now = waiting === 0 ? plans.train : plans.adding;
    const start = performance.now();
    const ran = this.#steps.run(
      {
        ...(n === 1 ? { ...plans, train: now, adding: now } : plans),
        limits: clip && limitsOf(clip).data,
        loss,
        count: this.#core.lossCounts.train.output,
        rows: size,
        rates: values && Float32Array.from(values),
        write: (input, target) => this.#columns.write(input, target, taken),
      },
      n,
    );
    return withValue(ran, (result) => {
      if (n === this.#most && performance.now() - start < SLICE_MS / 2) {
        const bytes = Math.max(size * this.#columns.rowBytes, 1);
        this.#most = Math.min(2 * n, MOST_BATCHES, Math.max(1, Math.floor(MOST_BYTES / bytes)));
      }
      return result;
    });
  }

  /** The plans of a batch of so many rows, loaded one after the other. */
  #plans(size: number): MaybePromise<StepPlans | null> {
    const { runner } = this.#core;
    const { clip, accumulate } = this.#options;
    const types = this.#columns.types(size, this.#core.info.trainingInputNames);
    const clipping = (): MaybePromise<PreparedPlan | null> =>
      clip === null ? null : runner.prepare(CLIP, true, signatureOf(CLIP_INPUTS, [limitsOf(clip)], () => NO_BYTES));
    return withValue(runner.prepare(OPTIMIZER, true, []), (update) =>
      withValue(clipping(), (clips) =>
        withValue(accumulate === 1 ? null : runner.prepare(TRAIN, false, types), (adding) =>
          withValue(runner.prepare(TRAIN, true, types), (train) => this.#together(train, adding ?? train, update, clips)),
        ),
      ),
    );
  }

  #together(
    train: PreparedPlan,
    adding: PreparedPlan,
    update: PreparedPlan,
    clips: PreparedPlan | null,
  ): StepPlans | null {
    const { host, lossCounts } = this.#core;
    // A session may keep one plan of a step only.
    const isHere = [adding, update, clips].every((one) => one === null || host.find(one.key) === one.loaded);
    const names = [this.#options.loss, lossCounts.train.output];
    const results = train.loaded.plan.outputs.filter(({ name }) => names.includes(name));
    const isNumber = results.every(({ dtype, nbytes }) => dtype === "float32" && nbytes === 4);
    const plans = { train: train.loaded, adding: adding.loaded, update: update.loaded, clip: clips?.loaded ?? null };
    return isHere && isNumber ? plans : null;
  }
}

/** The feed of a plan that clips. */
export function limitsOf({ value, norm }: WireClip): Feed & NamedTensor {
  const limits = Float32Array.of(value ?? Infinity, norm ?? Infinity);
  return { name: "limits", dtype: "float32", dims: [2], data: new Uint8Array(limits.buffer) };
}
