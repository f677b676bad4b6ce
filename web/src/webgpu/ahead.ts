/**
 * Batches of a fit that run ahead of their losses. The host learns of them afterwards, in order. All ends as if each batch had
 * been looked at before the next one. Behind a batch that must not count nothing runs, and the state goes back to that batch.
 */

import { FIT_NEXT, FIT_OPTIMIZER_STEPS, FIT_WAITING, NEXT_UPDATE, STATE_LEARNING_RATE, STATE_SHARE } from "../engine/layout.js";
import type { Feed } from "../wire/protocol.js";
import type { RanBatches, StagedBatches } from "../worker/host.js";
import type { Page } from "./guard.js";
import type { GpuPlan, GpuRunner } from "./runner.js";

/** Steps that the GPU has at a time. More make browsers slower. */
const IN_FLIGHT = 2;

/** The session's state before a batch and behind its train step. */
interface States {
  readonly before: Uint8Array;
  readonly trained: Uint8Array;
}

const NOTHING: Page = { isStopped: false, fault: 0, isUpdate: false, losses: new Float32Array(0), counts: new Float32Array(0) };

/** Run so many batches. @param feedsOf - of a batch */
export async function runAhead(
  runner: GpuRunner,
  batches: StagedBatches<GpuPlan>,
  n: number,
  feedsOf: (k: number) => readonly Feed[],
): Promise<RanBatches> {
  const { kernels, guard } = runner;
  const before = runner.stateBytes.slice();
  const states: States[] = [];
  let fault: unknown = null;
  let page = NOTHING;
  try {
    guard.begin();
    fault = await submitAll(runner, batches, n, feedsOf, states);
    if (states.length > 0) {
      page = await guard.read();
    }
  } catch (error) {
    // The GPU is lost. The count of steps is the one that was known last.
    runner.stateBytes.set(before);
    throw error;
  }
  if (page.isStopped) {
    const last = states[page.losses.length - 1] as States;
    runner.stateBytes.set(guard.rules.looks ? last.before : last.trained);
    guard.goOn();
  }
  tellAll(runner, page);
  if (fault !== null && !page.isStopped) {
    void kernels.tellFit("tw_fit_batch");
    return { losses: page.losses, error: fault };
  }
  return { losses: page.losses, error: null };
}

/** Tell `fit.c` of batches. */
function tellAll({ kernels }: GpuRunner, { isStopped, isUpdate, fault, losses, counts }: Page): void {
  losses.forEach((loss, k) => {
    const own = isStopped && k === losses.length - 1 ? fault : 0;
    void kernels.tellFit("tw_fit_batch");
    void kernels.tellFit("tw_fit_elsewhere", 1, isUpdate ? 0 : own);
    void kernels.tellFit("tw_fit_trained", loss, counts[k] as number);
    if (kernels.fit.getUint32(4 * FIT_NEXT, true) === NEXT_UPDATE) {
      void kernels.tellFit("tw_fit_elsewhere", 1, own);
      void kernels.tellFit("tw_fit_updated");
    }
  });
}

/**
 * Submit batches up to one whose head fails.
 *
 * @param states - gets the states of each batch
 * @returns the error of the head; null: all were submitted
 */
async function submitAll(
  runner: GpuRunner,
  batches: StagedBatches<GpuPlan>,
  n: number,
  feedsOf: (k: number) => readonly Feed[],
  states: States[],
): Promise<unknown> {
  const { kernels } = runner;
  const { rules } = runner.guard;
  const { train, adding, update, clip, rates } = batches;
  let waiting = kernels.fit.getUint32(4 * FIT_WAITING, true);
  const first = kernels.fit.getUint32(4 * FIT_OPTIMIZER_STEPS, true);
  let steps = first;
  const flight: Promise<unknown>[] = [];
  for (let k = 0; k < n; k++) {
    const before = runner.stateBytes.slice();
    const [isFirst, isDue] = [waiting === 0, waiting + 1 >= rules.accumulate];
    if (rates !== null && isFirst) {
      kernels.state.setFloat32(4 * STATE_LEARNING_RATE, rates[steps - first] as number, true);
    }
    if (rules.weighs && !isFirst) {
      kernels.state.setFloat32(4 * STATE_SHARE, 1, true);
    }
    const step = isFirst ? train : adding;
    let fault: unknown = null;
    await runner.submit([step, ...(isDue ? [update, ...(clip === null ? [] : [clip])] : [])], () => {
      try {
        runner.feed(step, feedsOf(k));
        runner.runHead(step);
      } catch (error) {
        fault = error;
        return;
      }
      states.push({ before, trained: runner.stateBytes.slice() });
      encodeTrain(runner, batches, step, isFirst, isDue);
      if (isDue) {
        encodeUpdate(runner, batches);
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

/** Add a train step, whose head has run, and the guard. */
function encodeTrain(
  runner: GpuRunner,
  { loss, count, rows }: StagedBatches<GpuPlan>,
  step: GpuPlan,
  isFirst: boolean,
  isDue: boolean,
): void {
  const { guard } = runner;
  if (guard.rules.saves) {
    guard.save();
  }
  runner.encode(step);
  guard.trained(isFirst, isDue, runner.output(step, loss), count === null ? rows : runner.output(step, count));
}

/** Add the optimizer step. */
function encodeUpdate(runner: GpuRunner, { clip, limits, update }: StagedBatches<GpuPlan>): void {
  if (clip !== null) {
    runner.feed(clip, [{ name: "limits", dtype: "float32", dims: [2], data: limits as Uint8Array }]);
    runner.runHead(clip);
    runner.encode(clip);
  }
  runner.runHead(update);
  runner.encode(update);
  runner.guard.updated();
}
