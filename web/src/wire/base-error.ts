/** The base of all errors of trainweb. */

import { DOCUMENTATION } from "./session-calls.js";

/** Characters that a message keeps of its beginning and its end; as in trainweb/errors.py. */
const LONGEST = { head: 4000, tail: 500 };

/** Shorten a text that is longer than its limits: leave out its middle. Characters are code points, as in Python. */
export function shortened(text: string, { head, tail } = LONGEST): string {
  // Code units are as many or more.
  if (text.length <= head + tail) {
    return text;
  }
  let count = 0;
  for (const _ of text) {
    count++;
  }
  const leftOut = `... (${count} characters)`;
  if (count <= head + tail + leftOut.length) {
    return text;
  }
  const first = [...text.slice(0, 2 * head)].slice(0, head).join("");
  return first + leftOut + (tail > 0 ? ` ...${[...text.slice(-2 * tail)].slice(-tail).join("")}` : "");
}

/** Base class of all errors raised by trainweb. */
export class TrainwebError extends Error {
  /** @param message - a text; the middle of a very long one is left out */
  constructor(message = "", options?: ErrorOptions) {
    super(shortened(message), options);
  }

  /** The page of the documentation that explains this error and says what to do. */
  get documentation(): string {
    return `${DOCUMENTATION}#${this.name.toLowerCase()}`;
  }
}

/** The range of values in a tensor. */
export interface TensorRange {
  /** The tensor's. */
  readonly name: string;
  /** Its dims. */
  readonly shape: readonly number[];
  /** The least of its finite values; null: it has none. */
  readonly min: number | null;
  /** The greatest of its finite values; null: it has none. */
  readonly max: number | null;
  /** Number of NaN values. */
  readonly nan: number;
  /** Number of infinite values. */
  readonly infinite: number;
}
