/** Times of dispatches: by timestamps where the device has them, else of a submit for each. */

import { TIMES, USAGE } from "./device.js";
import type { GpuPlan, GpuRunner } from "./runner.js";

/** Timestamps in a set at most. */
const MOST_TIMES = 4096;
const [STAMP_BYTES, NS_PER_MS, QUERY_RESOLVE] = [8, 1e6, 0x200];

/** Milliseconds of each dispatch of a plan that an action runs, summed over its runs. */
export async function measured(runner: GpuRunner, plan: GpuPlan, action: () => Promise<void>): Promise<{ sums: Float64Array; ofSubmits: boolean }> {
  const count = plan.pipelines.length;
  const hasStamps = runner.gpu.device.features.has(TIMES) && 2 * count <= MOST_TIMES;
  const sums = new Float64Array(count);
  try {
    await (hasStamps ? addStamps(runner, sums, action) : addSubmits(runner, sums, action));
    return { sums, ofSubmits: !hasStamps };
  } finally {
    runner.timed = null;
  }
}

async function addStamps(runner: GpuRunner, sums: Float64Array, action: () => Promise<void>): Promise<void> {
  const { gpu: { device }, commands, segments } = runner;
  const count = 2 * sums.length;
  const size = count * STAMP_BYTES;
  const set = device.createQuerySet({ type: "timestamp", count });
  const stamps = device.createBuffer({ size, usage: QUERY_RESOLVE | USAGE.COPY_SRC });
  const runs: GPUBuffer[] = [];
  runner.timed = (encode, k) => {
    commands.between();
    encode(commands.pass({ querySet: set, beginningOfPassWriteIndex: 2 * k, endOfPassWriteIndex: 2 * k + 1 }));
    if (k === sums.length - 1) {
      const target = device.createBuffer({ size, usage: USAGE.COPY_SRC | USAGE.COPY_DST });
      commands.between().resolveQuerySet(set, 0, count, stamps, 0);
      commands.between().copyBufferToBuffer(stamps, 0, target, 0, size);
      runs.push(target);
    }
  };
  try {
    await action();
    for (const bytes of await segments.readAll(runs.map((run) => [run, 0, size]))) {
      const at = new BigUint64Array(bytes.buffer);
      sums.forEach((sum, k) => {
        sums[k] = sum + Number((at[2 * k + 1] as bigint) - (at[2 * k] as bigint)) / NS_PER_MS;
      });
    }
  } finally {
    set.destroy();
    [stamps, ...runs].forEach((buffer) => buffer.destroy());
  }
}

async function addSubmits(runner: GpuRunner, sums: Float64Array, action: () => Promise<void>): Promise<void> {
  const { gpu, commands } = runner;
  const ends: Promise<number>[] = [];
  let before = 0;
  runner.timed = (encode) => {
    commands.submit();
    before ||= performance.now();
    encode(commands.pass());
    commands.submit();
    ends.push(gpu.device.queue.onSubmittedWorkDone().then(() => performance.now()));
  };
  await action();
  for (const [k, end] of (await gpu.settled(Promise.all(ends))).entries()) {
    sums[k % sums.length] = (sums[k % sums.length] as number) + end - before;
    before = end;
  }
}
