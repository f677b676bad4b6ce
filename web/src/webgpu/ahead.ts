/**
 * Batches of a fit that run ahead of their losses. The host learns of them afterwards, in order. All ends as if each batch had
 * been looked at before the next one. Behind a batch that must not count nothing runs, and the state goes back to that batch.
 */

import { FIT_NEXT, FIT_WAITING, NEXT_UPDATE, STATE, STATE_LEARNING_RATE, STATE_SHARE } from "../engine/layout.js";
import type { Feed } from "../wire/protocol.js";
import type { RanBatches, StagedBatches } from "../worker/host.js";
import type { Guard, Page } from "./guard.js";
import type { GpuPlan, GpuRunner } from "./runner.js";

/** Steps that the GPU has at a time. More make browsers slower. */
const IN_FLIGHT = 2;

/** Batches, and a buffer that gets their losses with terms, if there are some. */
type Batches = StagedBatches<GpuPlan> & { readonly all: GPUBuffer | null };
/** The feeds of a batch. */
type FeedsOf = (k: number) => readonly Feed[];

/** Run so many batches. */
export async function runAhead(guard: Guard, batches: StagedBatches<GpuPlan>, n: number, feedsOf: FeedsOf): Promise<RanBatches> {
  const { runner } = guard;
  const { kernels, segments } = runner;
  const before = kernels.view(STATE).slice();
  const states: Uint8Array[] = [];
  let fault: unknown;
  let page: Page;
  let losses: Float32Array;
  try {
    const all = batches.numbers === 1 ? null : await segments.make(4 * n * batches.numbers, "terms");
    guard.begin();
    fault = await submitAll(guard, { ...batches, all }, n, feedsOf, states);
    page = await guard.read();
    losses = page.losses;
    if (all !== null) {
      losses = new Float32Array(((await segments.readAll([[all, 0, all.size]])) as [Uint8Array])[0].buffer);
      segments.drop(all);
    }
  } catch (error) {
    // The GPU is lost. The count of steps is the one that was known last.
    kernels.view(STATE).set(before);
    throw error;
  }
  if (page.isStopped) {
    kernels.view(STATE).set(states[page.losses.length - 1] as Uint8Array);
    guard.goOn();
  }
  tellAll(runner, page);
  const error = page.isStopped ? null : fault;
  if (error !== null) {
    void kernels.tellFit("tw_fit_batch");
  }
  return { losses, error };
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

/** Submit batches up to one whose head fails: its error, or null. @param states - gets the state to go back to, for each batch */
async function submitAll(guard: Guard, batches: Batches, n: number, feedsOf: FeedsOf, states: Uint8Array[]): Promise<unknown> {
  const { runner, rules } = guard;
  const { kernels } = runner;
  const { train, adding, update, clip, rates } = batches;
  let waiting = kernels.fit.getUint32(4 * FIT_WAITING, true);
  let steps = 0;
  const flight: Promise<unknown>[] = [];
  for (let k = 0; k < n; k++) {
    const before = kernels.view(STATE).slice();
    const [isFirst, isDue] = [waiting === 0, waiting + 1 >= rules.accumulate];
    if (rates !== null && isFirst) {
      kernels.state.setFloat32(4 * STATE_LEARNING_RATE, rates[steps] as number, true);
    }
    if (rules.weighs && !isFirst) {
      kernels.state.setFloat32(4 * STATE_SHARE, 1, true);
    }
    const step = isFirst ? train : adding;
    try {
      runner.feed(step, feedsOf(k));
      runner.runHead(step);
    } catch (error) {
      return error;
    }
    states.push(rules.looks ? before : kernels.view(STATE).slice());
    const plans = [step, ...(isDue ? [update] : []), ...(isDue && clip !== null ? [clip] : [])];
    await runner.submit(plans, () => encodeBatch(guard, batches, k, isFirst, isDue ? update : null));
    waiting = isDue ? 0 : waiting + 1;
    steps += Number(isDue);
    flight.push(runner.gpu.device.queue.onSubmittedWorkDone());
    if (flight.length > IN_FLIGHT) {
      await runner.gpu.settled(flight.shift() as Promise<unknown>);
    }
  }
  return null;
}

/** Add the steps of a batch, whose head has run, and the guard. @param update - the optimizer step; null: it is not due */
function encodeBatch(guard: Guard, batches: Batches, k: number, isFirst: boolean, update: GpuPlan | null): void {
  const { loss, count, rows, clip, limits, numbers, all } = batches;
  const step = isFirst ? batches.train : batches.adding;
  const { runner } = guard;
  if (guard.rules.saves) {
    guard.save();
  }
  runner.encode(step);
  if (all !== null) {
    runner.commands.between().copyBufferToBuffer(...runner.output(step, loss), all, 4 * k * numbers, 4 * numbers);
  }
  guard.trained(isFirst, update !== null, runner.output(step, loss), count === null ? rows : runner.output(step, count));
  if (update === null) {
    return;
  }
  if (clip !== null) {
    runner.feed(clip, [{ name: "limits", dtype: "float32", dims: [2], data: limits as Uint8Array }]);
    runner.runHead(clip);
    runner.encode(clip);
  }
  runner.runHead(update);
  runner.encode(update);
  guard.updated();
}
