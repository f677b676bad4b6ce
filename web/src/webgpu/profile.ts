/** Times of dispatches: by timestamps where the device has them, else of a submit for each. */

import { MAP_READ, TIMES, USAGE } from "./device.js";
import type { GpuRunner, TimedPass } from "./runner.js";

/** Timestamps in a set at most. */
const MOST_TIMES = 4096;
const STAMP_BYTES = 8;
const NS_PER_MS = 1e6;
const QUERY_RESOLVE = 0x200;

/** Room for the times of the dispatches of a plan. */
export interface Times {
  readonly pass: TimedPass;
  /** The sum over all runs, by dispatch. */
  milliseconds(): Promise<Float64Array>;
  release(): void;
}

export function timesOf(runner: GpuRunner, count: number): Times {
  const hasStamps = runner.gpu.device.features.has(TIMES) && 2 * count <= MOST_TIMES;
  return hasStamps ? stampsOf(runner, count) : submitsOf(runner, count);
}

function stampsOf({ gpu, commands }: GpuRunner, count: number): Times {
  const { device } = gpu;
  const size = 2 * count * STAMP_BYTES;
  const set = device.createQuerySet({ type: "timestamp", count: 2 * count });
  const stamps = device.createBuffer({ size, usage: QUERY_RESOLVE | USAGE.COPY_SRC });
  const runs: GPUBuffer[] = [];
  return {
    pass: (encode, k) => {
      commands.between();
      encode(commands.pass({ querySet: set, beginningOfPassWriteIndex: 2 * k, endOfPassWriteIndex: 2 * k + 1 }));
      if (k === count - 1) {
        const target = device.createBuffer({ size, usage: USAGE.MAP_READ | USAGE.COPY_DST });
        commands.between().resolveQuerySet(set, 0, 2 * count, stamps, 0);
        commands.between().copyBufferToBuffer(stamps, 0, target, 0, size);
        runs.push(target);
      }
    },
    milliseconds: async () => {
      commands.submit();
      const sums = new Float64Array(count);
      for (const run of runs) {
        await gpu.settled(run.mapAsync(MAP_READ));
        const at = new BigUint64Array(run.getMappedRange());
        sums.forEach((_, k) => {
          sums[k] = (sums[k] as number) + Number((at[2 * k + 1] as bigint) - (at[2 * k] as bigint)) / NS_PER_MS;
        });
      }
      return sums;
    },
    release: () => {
      set.destroy();
      [stamps, ...runs].forEach((buffer) => buffer.destroy());
    },
  };
}

function submitsOf({ gpu, commands }: GpuRunner, count: number): Times {
  const ends: Promise<number>[] = [];
  let start = 0;
  return {
    pass: (encode) => {
      commands.submit();
      start ||= performance.now();
      encode(commands.pass());
      commands.submit();
      ends.push(gpu.device.queue.onSubmittedWorkDone().then(() => performance.now()));
    },
    milliseconds: async () => {
      const sums = new Float64Array(count);
      let before = start;
      for (const [k, end] of (await gpu.settled(Promise.all(ends))).entries()) {
        sums[k % count] = (sums[k % count] as number) + end - before;
        before = end;
      }
      return sums;
    },
    release: () => {},
  };
}
