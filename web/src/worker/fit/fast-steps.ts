/** Steps on rows that lie in the worker: rows go right to where the kernels read them, plans are found once a batch size. */

import type { Engine } from "../../engine/engine.js";
import { sessionError } from "../../wire/messages.js";
import type { WireClip } from "../../wire/fit.js";
import type { Feed, MaybePromise, NamedTensor } from "../../wire/protocol.js";
import type { Bundle, FeedType, TensorPlace } from "../bundle/bundle.js";
import type { LoadedPlan, PlanMemory } from "../plan-memory.js";
import { withValue } from "../python-models.js";
import type { PlanRunner } from "../runner.js";

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

  /** The feeds of some rows, in the order of the model's inputs; what it does not know comes last. */
  types(rows: number, inputNames: readonly string[], skipsOthers: boolean): FeedType[] {
    return this.#ordered(inputNames)
      .filter(({ name }) => !skipsOthers || inputNames.includes(name))
      .map(({ name, dtype, dims }) => ({ name, dtype, dims: this.#isBatches ? dims : [rows, ...dims], value: null }));
  }

  /** Copies of some rows, in the same order. */
  feeds(rows: Uint32Array, inputNames: readonly string[]): NamedTensor[] {
    return this.#ordered(inputNames).map(({ name, dtype, dims, rowBytes, data }) => {
      const copy = new Uint8Array(rows.length * rowBytes);
      rows.forEach((row, k) => copy.set(data.subarray(row * rowBytes, (row + 1) * rowBytes), k * rowBytes));
      return { name, dtype, dims: [rows.length, ...dims], data: copy };
    });
  }

  /** Copies of the feeds of one batch, where rows are batches. */
  batch(row: number): NamedTensor[] {
    return this.#columns.map(({ name, dtype, dims, rowBytes, data }) => {
      return { name, dtype, dims, data: data.slice(row * rowBytes, (row + 1) * rowBytes) };
    });
  }

  #ordered(inputNames: readonly string[]): Column[] {
    const known = inputNames.flatMap((name) => this.#columns.filter((column) => column.name === name));
    return [...known, ...this.#columns.filter(({ name }) => !inputNames.includes(name))];
  }

  /** Write rows of an input to its place. */
  write(engine: Engine, slot: TensorPlace, ptr: number, rows: Uint32Array): void {
    const column = this.#columns.find(({ name }) => name === slot.name) as Column;
    const { rowBytes, data, words } = column;
    if (words !== null && rowBytes <= SMALL_ROW && ptr % 4 === 0) {
      copyWords(words, rowBytes / 4, new Int32Array(engine.u8.buffer, ptr, slot.nbytes / 4), rows);
      return;
    }
    const target = engine.view(ptr, slot.nbytes);
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

/** What steps of a session need of it. */
export interface StepHost {
  readonly engine: Engine;
  readonly memory: PlanMemory;
  readonly runner: PlanRunner;
  /** By what losses of steps were divided. */
  readonly lossCounts: Bundle["lossCounts"];
}

/** Steps of one kind on the rows of some columns. */
export class RowSteps {
  readonly #host: StepHost;
  readonly #kind: "train" | "eval";
  readonly #columns: Columns;
  readonly #inputNames: readonly string[];
  /** Keys of plans by the number of rows and whether they overwrite. */
  readonly #keys = new Map<number, string>();

  constructor(host: StepHost, kind: "train" | "eval", columns: Columns, inputNames: readonly string[]) {
    this.#host = host;
    this.#kind = kind;
    this.#columns = columns;
    this.#inputNames = inputNames;
  }

  /** Run a step on some rows; its plan, which has the results. */
  run(rows: Uint32Array, overwrite: boolean): MaybePromise<LoadedPlan> {
    const { memory, runner } = this.#host;
    const name = 2 * rows.length + Number(overwrite);
    const key = this.#keys.get(name);
    const known = key === undefined ? undefined : memory.find(key);
    if (known !== undefined) {
      return this.#execute(known, rows);
    }
    const types = this.#columns.types(rows.length, this.#inputNames, this.#kind === "eval");
    return withValue(runner.prepare(this.#kind, overwrite, types), ({ key: found, loaded }) => {
      this.#keys.set(name, found);
      return this.#execute(loaded, rows);
    });
  }

  #execute(loaded: LoadedPlan, rows: Uint32Array): LoadedPlan {
    const { engine, memory } = this.#host;
    for (const slot of loaded.plan.inputs) {
      if (slot.nbytes > 0) {
        this.#columns.write(engine, slot, memory.addressOf(loaded, slot), rows);
      }
    }
    memory.run(loaded);
    return loaded;
  }
}

/** The optimizer's steps. */
export class Updates {
  readonly #host: StepHost;
  readonly #limits: Feed | null;
  #key: string | null = null;

  readonly #checked: (() => MaybePromise<void>) | null;

  /**
   * @param clip - what gradients are clipped to before
   * @param checked - runs the steps of a session that looks for NaN
   */
  constructor(host: StepHost, clip: WireClip | null, checked: (() => MaybePromise<void>) | null = null) {
    this.#host = host;
    this.#checked = checked;
    this.#limits = clip === null ? null : limitsOf(clip);
  }

  run(): MaybePromise<void> {
    return this.#limits === null
      ? this.#update()
      : withValue(this.#host.runner.run("clip", true, [this.#limits], []), () => this.#update());
  }

  #update(): MaybePromise<void> {
    if (this.#checked !== null) {
      return this.#checked();
    }
    const { memory, runner } = this.#host;
    const known = this.#key === null ? undefined : memory.find(this.#key);
    if (known !== undefined) {
      memory.run(known);
      return undefined;
    }
    return withValue(runner.prepare("optimizer", true, []), ({ key, loaded }) => {
      this.#key = key;
      memory.run(loaded);
    });
  }
}

/** The feed of a plan that clips. */
function limitsOf({ value, norm }: WireClip): Feed {
  const limits = Float32Array.of(value ?? Infinity, norm ?? Infinity);
  return { name: "limits", dtype: "float32", dims: [2], data: new Uint8Array(limits.buffer) };
}

/** A loss that is one float32. */
export function readLoss({ engine, memory }: StepHost, loaded: LoadedPlan, name: string): number {
  const slot = loaded.plan.outputs.find((output) => output.name === name);
  if (slot?.dtype !== "float32" || slot.nbytes !== 4) {
    throw sessionError("SCALAR_LOSS", { name, shape: slot?.dims ?? [] });
  }
  return new DataView(engine.u8.buffer).getFloat32(memory.addressOf(loaded, slot), true);
}
