/**
 * Batches of a fit that run ahead of their losses. The host learns of them afterwards, in order. All ends as if each batch had
 * been looked at before the next one. Behind a batch that must not count nothing runs, and the state goes back to that batch.
 */

import { FIT_NEXT, FIT_OPTIMIZER_STEPS, FIT_WAITING, NEXT_UPDATE, STATE_LEARNING_RATE, STATE_SHARE } from "../engine/layout.js";
import type { Feed } from "../wire/protocol.js";
import type { RanBatches, StagedBatches } from "../worker/host.js";
import { IS_DUE, IS_FIRST, readPage, STOPS, type Page } from "./guard.js";
import type { GpuPlan, GpuRunner } from "./runner.js";

/** Steps that the GPU has at a time. More make browsers slower. */
const IN_FLIGHT = 2;

/** The fit, as far as it decides what a batch does. */
export interface AheadRules {
  readonly accumulate: number;
  /** True if a loss that is not finite ends the fit, or undoes the batch. */
  readonly stops: boolean;
  /** True if numbers that are not finite undo the batch, wherever they are. */
  readonly looks: boolean;
  /** True if a batch is undone alone. */
  readonly saves: boolean;
  /** True if the gradients of batches are weighted by the divisors of their losses. */
  readonly weighs: boolean;
}

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
  rules: AheadRules,
  feedsOf: (k: number) => readonly Feed[],
): Promise<RanBatches> {
  const { kernels, guard } = runner;
  const before = runner.stateBytes.slice();
  const states: States[] = [];
  let fault: unknown = null;
  let page = NOTHING;
  try {
    guard.begin();
    fault = await submitAll(runner, batches, n, rules, feedsOf, states);
    if (states.length > 0) {
      const [bytes] = await runner.readAll([guard.record]);
      page = readPage(bytes as Uint8Array);
    }
  } catch (error) {
    // The GPU is lost. The count of steps is the one that was known last.
    runner.stateBytes.set(before);
    throw error;
  }
  if (page.isStopped) {
    const last = states[page.losses.length - 1] as States;
    runner.stateBytes.set(rules.looks ? last.before : last.trained);
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
function tellAll({ kernels, guard }: GpuRunner, { isStopped, isUpdate, fault, losses, counts }: Page): void {
  losses.forEach((loss, k) => {
    const own = isStopped && k === losses.length - 1 ? fault : 0;
    const isFirst = kernels.fit.getUint32(4 * FIT_WAITING, true) === 0;
    void kernels.tellFit("tw_fit_batch");
    void kernels.tellFit("tw_fit_elsewhere", 1, isUpdate ? 0 : own);
    void kernels.tellFit("tw_fit_trained", loss, counts[k] as number);
    if (kernels.fit.getUint32(4 * FIT_NEXT, true) === NEXT_UPDATE) {
      void kernels.tellFit("tw_fit_elsewhere", 1, own);
      void kernels.tellFit("tw_fit_updated");
    }
    guard.noteWeight(counts[k] as number, isFirst, kernels.fit.getUint32(4 * FIT_NEXT, true));
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
  rules: AheadRules,
  feedsOf: (k: number) => readonly Feed[],
  states: States[],
): Promise<unknown> {
  const { kernels } = runner;
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
      encodeTrain(runner, batches, rules, step, isFirst, isDue);
      if (isDue) {
        encodeUpdate(runner, batches, rules);
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
  { stops, looks, saves, weighs }: AheadRules,
  step: GpuPlan,
  isFirst: boolean,
  isDue: boolean,
): void {
  const { guard } = runner;
  if (saves) {
    guard.save();
  }
  runner.encode(step);
  const order = (stops ? STOPS : 0) | (isFirst ? IS_FIRST : 0) | (isDue ? IS_DUE : 0);
  guard.trained(order, runner.output(step, loss), count === null ? rows : runner.output(step, count), looks);
  if (weighs && (isFirst || isDue)) {
    guard.scale(null);
  }
}

/** Add the optimizer step. */
function encodeUpdate(runner: GpuRunner, { clip, limits, update }: StagedBatches<GpuPlan>, { looks }: AheadRules): void {
  if (clip !== null) {
    runner.feedBehind(clip, [{ name: "limits", dtype: "float32", dims: [2], data: limits as Uint8Array }]);
    runner.runHead(clip);
    runner.encode(clip);
  }
  runner.runHead(update);
  runner.encode(update);
  if (looks) {
    runner.guard.updated();
  }
}
