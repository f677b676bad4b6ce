/** Find the wrong label or row in the data. In Python trainweb/fit/steps.py. */

import { FeedError, NumericsError } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import type { Feed } from "../wire/protocol.js";
import { numbersOf } from "./session-values.js";

/** A batch whose step failed. */
export interface FailedBatch {
  readonly feeds: readonly Feed[];
  readonly rows: number;
  /** The number of a row in the data. */
  readonly numberOf: (row: number) => number;
}

/**
 * The error of a batch, with epoch, batch and, of a value that is out of range or NaN, input and row.
 *
 * @param epoch - of the fit, from 1, as is `batch`; 0 without a fit
 */
export function located(error: unknown, failed: FailedBatch, epoch: number, batch: number, data = "data"): unknown {
  if (!(error instanceof FeedError || error instanceof NumericsError)) {
    return error;
  }
  const at = epoch > 0 ? { epoch, batch } : { batch };
  Object.assign(error, at);
  if (error instanceof NumericsError) {
    error.message = textOfGap(error.message, failed, data) ?? error.message;
    return error;
  }
  const { value, position } = error;
  const match = value === undefined ? null : findValue(failed, value, position ?? null);
  if (match === null) {
    return error;
  }
  const [name, k] = match;
  const row = failed.numberOf(k);
  const place = epoch > 0 ? `batch ${batch} of epoch ${epoch}` : `batch ${batch}`;
  const said = sessionError("IN_ROW", { reason: error.message, name, row, data, place });
  return Object.assign(said, { value, position, input: name, row, ...at });
}

/** The text that names the input, the row and the value of the first NaN or infinity of a batch; null without one. */
export function textOfGap(reason: string, { feeds, rows, numberOf }: FailedBatch, source: string): string | null {
  for (const { name, dtype, dims, data } of feeds) {
    const values = dtype === "float32" && dims[0] === rows && data instanceof Uint8Array ? numbersOf(dtype, data) : [];
    const k = values.findIndex((value) => !Number.isFinite(value));
    if (k >= 0) {
      const row = numberOf(Math.floor((k * rows) / values.length));
      return sessionError("NAN_IN_ROW", { reason, name, value: values[k] as number, row, data: source }).message;
    }
  }
  return null;
}

/** The input and row of an integer in a batch: at this position of the input's values, or at its only place. */
function findValue({ feeds, rows }: FailedBatch, value: number, position: number | null): [string, number] | null {
  const flat = feeds
    .filter(({ dims }) => dims[0] === rows)
    .map((feed): [string, readonly number[]] => [feed.name, integersOf(feed)])
    .filter(([, values]) => values.length > 0);
  const rowOf = (values: readonly number[], k: number): number => Math.floor((k * rows) / values.length);
  const at = flat.filter(([, values]) => position !== null && values[position] === value);
  const places = at.length > 0 ? at : flat.filter(([, values]) => values.includes(value));
  const [[name, values] = ["", []], ...others] = places;
  if (values.length === 0 || others.length > 0) {
    return null;
  }
  if (at.length > 0) {
    return [name, rowOf(values, position as number)];
  }
  const [row, ...more] = new Set([...values.keys()].filter((k) => values[k] === value).map((k) => rowOf(values, k)));
  return row === undefined || more.length > 0 ? null : [name, row];
}

/** The values of a feed of integers; [] for other feeds. */
function integersOf({ dtype, data }: Feed): readonly number[] {
  const isInteger = ["int64", "int32", "uint8", "int8"].includes(dtype);
  return isInteger && data instanceof Uint8Array ? numbersOf(dtype, data) : [];
}
