/** Steps that predict: the eval model without its loss; `trainweb/training/forward.py` says what they are in Python. */

import type { WireBatch } from "../wire/fit.js";
import type { Feed, NamedTensor } from "../wire/protocol.js";
import { taken } from "./feeds.js";
import { located } from "./places.js";
import { failedBatch } from "./evaluation.js";
import type { SessionCore } from "./session-core.js";
import { EVAL, stepKind } from "./step-kind.js";

/**
 * The outputs of the eval model for a batch.
 *
 * @param whole - rows of the padded batch; the results of the padding are left out
 */
export async function predictBatch(
  core: SessionCore,
  outputs: readonly string[],
  batch: WireBatch,
  whole: number,
): Promise<readonly NamedTensor[]> {
  const kind = stepKind("predict", outputs);
  const needed = await core.openForward(kind);
  const isUnused = ({ name }: Feed): boolean => core.inputsOf(EVAL).some((one) => one.name === name) && !needed.some((one) => one.name === name);
  const { rows } = batch;
  const order = Array.from({ length: whole }, (_, k) => k % rows);
  try {
    const given = batch.feeds.filter((feed) => !isUnused(feed)).map((feed) => (rows < whole ? taken(feed, rows, order) : feed));
    const fetches = outputs.map((name) => ({ name }));
    const { results } = await core.step(kind, given, fetches);
    return rows < whole ? results.map((result) => cut(result, rows, whole)) : results;
  } catch (error) {
    throw located(error, failedBatch(batch), { epoch: 1, batch: 1 });
  }
}

function cut(result: NamedTensor, rows: number, whole: number): NamedTensor {
  const { dims, data } = result;
  return dims[0] === whole ? { ...result, dims: [rows, ...dims.slice(1)], data: data.slice(0, (data.length / whole) * rows) } : result;
}
