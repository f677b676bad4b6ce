/**
 * Batches of a fit that run ahead of their losses. The host learns of them afterwards, in order. All ends as if each loss had
 * been read before the next batch. Behind a loss that is not finite nothing runs, and the state goes back to that batch.
 */

import { ARENA, FIT_NEXT, FIT_OPTIMIZER_STEPS, FIT_WAITING, NEXT_UPDATE, STATE_LEARNING_RATE } from "../engine/layout.js";
import type { Feed } from "../wire/protocol.js";
import type { RanBatches, StagedBatches } from "../worker/host.js";
import { PAGE_BYTES, readPage, type Page } from "./guard.js";
import type { GpuPlan, GpuRunner } from "./runner.js";

/** Steps that the GPU has at a time. More make browsers slower. */
const IN_FLIGHT = 2;

/** The fit, as far as it decides what a batch does. */
export interface AheadRules {
  readonly accumulate: number;
  /** True if a loss that is not finite ends the fit. */
  readonly stops: boolean;
}

/** Run so many batches. @param feedsOf - of a batch */
export async function runAhead(
  runner: GpuRunner,
  batches: StagedBatches<GpuPlan>,
  n: number,
  rules: AheadRules,
  feedsOf: (k: number) => readonly Feed[],
): Promise<RanBatches> {
  const { kernels } = runner;
  const before = runner.stateBytes.slice();
  const states: Uint8Array[] = [];
  let fault: unknown = null;
  let page: Page = { isStopped: false, losses: new Float32Array(0), counts: new Float32Array(0) };
  try {
    fault = await submitAll(runner, batches, n, rules, feedsOf, states);
    if (states.length > 0) {
      const [bytes] = await runner.readAll([[runner.segments.buffer(ARENA), runner.segments.page, PAGE_BYTES]]);
      page = readPage(bytes as Uint8Array);
    }
  } catch (error) {
    // The GPU is lost. The count of steps is the one that was known last.
    runner.stateBytes.set(before);
    throw error;
  }
  if (page.isStopped) {
    runner.stateBytes.set(states[page.losses.length - 1] as Uint8Array);
    runner.goOn();
  }
  page.losses.forEach((loss, k) => {
    void kernels.tellFit("tw_fit_batch");
    void kernels.tellFit("tw_fit_trained", loss, batches.count === null ? batches.rows : (page.counts[k] as number));
    if (kernels.fit.getUint32(4 * FIT_NEXT, true) === NEXT_UPDATE) {
      void kernels.tellFit("tw_fit_updated");
    }
  });
  if (fault !== null && !page.isStopped) {
    void kernels.tellFit("tw_fit_batch");
    return { losses: page.losses, error: fault };
  }
  return { losses: page.losses, error: null };
}

/**
 * Submit batches up to one whose head fails.
 *
 * @param states - gets the state of each batch behind its train step
 * @returns the error of the head; null: all were submitted
 */
async function submitAll(
  runner: GpuRunner,
  batches: StagedBatches<GpuPlan>,
  n: number,
  { accumulate, stops }: AheadRules,
  feedsOf: (k: number) => readonly Feed[],
  states: Uint8Array[],
): Promise<unknown> {
  const { kernels } = runner;
  const { train, adding, update, clip, limits, rates } = batches;
  let waiting = kernels.fit.getUint32(4 * FIT_WAITING, true);
  const first = kernels.fit.getUint32(4 * FIT_OPTIMIZER_STEPS, true);
  let steps = first;
  const flight: Promise<unknown>[] = [];
  runner.arm([...new Set([train, adding])], batches, stops);
  for (let k = 0; k < n; k++) {
    const step = waiting === 0 ? train : adding;
    if (rates !== null && waiting === 0) {
      kernels.state.setFloat32(4 * STATE_LEARNING_RATE, rates[steps - first] as number, true);
    }
    const isDue = waiting + 1 >= accumulate;
    let fault: unknown = null;
    await runner.submit([step, ...(isDue ? [update, ...(clip === null ? [] : [clip])] : [])], () => {
      try {
        runner.feed(step, feedsOf(k));
        runner.runHead(step);
      } catch (error) {
        fault = error;
        return;
      }
      states.push(runner.stateBytes.slice());
      runner.encode(step);
      runner.guard(step);
      if (isDue && clip !== null) {
        runner.feedBehind(clip, [{ name: "limits", dtype: "float32", dims: [2], data: limits as Uint8Array }]);
        runner.runHead(clip);
        runner.encode(clip);
      }
      if (isDue) {
        runner.runHead(update);
        runner.encode(update);
      }
    });
    if (fault !== null) {
      return fault;
    }
    waiting = isDue ? 0 : waiting + 1;
    steps += Number(isDue);
    flight.push(runner.gpu.device.queue.onSubmittedWorkDone());
    if (flight.length > IN_FLIGHT) {
      await runner.gpu.settled(flight.shift() as Promise<unknown>);
    }
  }
  return null;
}
