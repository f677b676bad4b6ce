/** Steps that predict: the eval model without its loss. In Python `trainweb/training/forward.py`. */

import type { WireBatch } from "../wire/fit.js";
import type { NamedTensor } from "../wire/protocol.js";
import { firstRows, takeRows } from "./feeds.js";
import { located } from "./places.js";
import { failedBatch, warnOfGap } from "./evaluation.js";
import type { SessionCore } from "./session-core.js";
import { EVAL, stepKind } from "./step-kind.js";

/** Among the notices of a session: the predictions have had their notice of NaN. */
const LOST = "";

/** The inputs of the eval model that these outputs do not depend on, such as labels. */
export async function unreadInputs(core: SessionCore, outputs: readonly string[]): Promise<readonly string[]> {
  const needed = await core.openForward(stepKind("predict", outputs));
  return core.inputsOf(EVAL).map(({ name }) => name).filter((name) => !needed.some((one) => one.name === name));
}

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
  await core.openForward(kind);
  const { rows } = batch;
  const order = Array.from({ length: whole }, (_, k) => k % rows);
  try {
    const feeds = rows < whole ? batch.feeds.map((feed) => takeRows(feed, rows, order)) : batch.feeds;
    const { results } = await core.step(kind, feeds, outputs.map((name) => ({ name })));
    const lost = results.find(({ dtype, data }) => dtype === "float32" && data instanceof Uint8Array && hasNaN(data));
    if (batch.first === 0) {
      core.notices.delete(LOST);
    }
    if (lost !== undefined && !core.notices.has(LOST) && warnOfGap(core, `Output '${lost.name}' has NaN.`, failedBatch(batch), "given rows")) {
      core.notices.add(LOST);
    }
    return results.map((result) => (rows < whole && result.dims[0] === whole ? firstRows(result, rows) : result));
  } catch (error) {
    throw located(error, failedBatch(batch), 0, Math.floor(batch.first / whole) + 1);
  }
}

function hasNaN(bytes: Uint8Array): boolean {
  return new Float32Array(bytes.slice().buffer).some(Number.isNaN);
}
