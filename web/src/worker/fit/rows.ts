/** The data of a fit in memory, whose rows make batches. */

import type { NamedTensor } from "../../wire/protocol.js";
import type { FeedType } from "../bundle/bundle.js";

/** Rows of at most so many bytes are copied by words: a call of `set` takes longer than they do. */
const SMALL_ROW = 64;

/** Data whose first axis counts rows, or whole batches. */
export class Columns {
  readonly rows: number;
  readonly #columns: readonly Column[];
  readonly #isBatches: boolean;

  /** @param isBatches - each row is the whole feed of a step */
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

  /** The feeds of a batch of so many rows, in the order of the model's inputs. Unknown columns come last. */
  types(rows: number, inputNames: readonly string[]): FeedType[] {
    const known = inputNames.flatMap((name) => this.#columns.filter((column) => column.name === name));
    const others = this.#columns.filter(({ name }) => !inputNames.includes(name));
    return [...known, ...others].map(({ name, dtype, dims }) => {
      return { name, dtype, dims: this.#isBatches ? dims : [rows, ...dims], value: null };
    });
  }

  /** Bytes of a row. */
  get rowBytes(): number {
    return this.#columns.reduce((sum, { rowBytes }) => sum + rowBytes, 0);
  }

  /** Copies of some rows in this order; of one row, where rows are batches. */
  feeds(rows: Uint32Array, inputNames: readonly string[]): NamedTensor[] {
    return this.types(rows.length, inputNames).map(({ name, dtype, dims }) => {
      const data = new Uint8Array(rows.length * this.#find(name).rowBytes);
      this.write(name, data, rows);
      return { name, dtype, dims, data };
    });
  }

  #find(input: string): Column {
    return this.#columns.find(({ name }) => name === input) as Column;
  }

  /** Write rows of an input. */
  write(input: string, target: Uint8Array, rows: Uint32Array): void {
    const { rowBytes, data, words } = this.#find(input);
    if (words !== null && rowBytes <= SMALL_ROW && target.byteOffset % 4 === 0) {
      copyWords(words, rowBytes / 4, new Int32Array(target.buffer, target.byteOffset, target.length / 4), rows);
      return;
    }
    // Consecutive rows are copied at once. Without shuffling these are all rows.
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
