// Runs single kernels in a page: one plan of one instruction a case, interleaved with the register peak.

/** Some milliseconds: the clock has steps of 5 us. */
const PEAK_ITERATIONS = 1e6;
const FLOPS_PER_ITERATION = 13 * 4 * 2;
const NO_BUFFER = 0xffffffff;

class Kernels {
  constructor(module) {
    this.memory = new WebAssembly.Memory({ initial: 4096 });
    const imports = { env: { memory: this.memory, now: () => performance.now() } };
    this.exports = new WebAssembly.Instance(module, imports).exports;
    const bytes = new Uint8Array(this.memory.buffer, this.exports.tw_description(), this.exports.tw_description_size());
    this.description = JSON.parse(new TextDecoder().decode(bytes));
  }

  /**
   * A plan that runs `kernel` with buffers of the given bytes and the given words; returns its address. Buffers start with
   * numbers between -0.5 and 0.5, none of them 0: what decays would become subnormal.
   */
  plan({ kernel, args }) {
    const { opcode, args: kinds } = this.description.kernels.find(({ name }) => name === kernel);
    const buffers = [];
    const words = [];
    let size = 0;
    for (const { name, kind } of kinds) {
      const value = args[name];
      if (["in", "out", "inout", "scratch"].includes(kind)) {
        if (value === null) {
          words.push(NO_BUFFER);
          continue;
        }
        words.push(buffers.length);
        buffers.push([size, value]);
        size += (value + 63) & ~63;
      } else {
        const values = [value].flat();
        words.push(...new Uint32Array((kind === "f32" ? new Float32Array(values) : new Int32Array(values)).buffer));
      }
    }
    const arena = this.exports.tw_alloc(size) >>> 0;
    for (const [at, nbytes] of buffers) {
      const floats = new Float32Array(this.memory.buffer, arena + at, nbytes >> 2);
      for (let i = 0; i < floats.length; i++) floats[i] = (((i * 7919) % 1000) + 0.5) / 1000 - 0.5;
    }
    const code = [opcode | (words.length << 16), ...words];
    const total = 23 + 3 * buffers.length + 2 * code.length;
    const header = [0x4c505754, 1, total, this.description.fingerprint, 0, 1, buffers.length, code.length, 1];
    const plan = this.exports.tw_alloc(4 * total) >>> 0;
    const view = new Uint32Array(this.memory.buffer, plan, total);
    view.fill(0);
    view.set(header);
    view.set([0, 0, 1, ...buffers.flatMap(([at, nbytes]) => [0, at, nbytes]), ...code], 20);
    new Uint32Array(this.memory.buffer, this.exports.tw_place_table(1), 2).set([arena, size]);
    if (this.exports.tw_place(plan, 1, 0)) throw new Error("the plan cannot be placed");
    return { plan, arena };
  }

  run(plan) {
    const status = this.exports.tw_run(plan);
    if (status) throw new Error(`status ${status}`);
  }
}

function time(repeat, run) {
  const start = performance.now();
  for (let i = 0; i < repeat; i++) run();
  return (performance.now() - start) / repeat;
}

/** How often to run for about that long; doubles, because the clock may be coarse. */
function repetitions(milliseconds, run) {
  for (let repeat = 1; ; repeat *= 2) {
    const each = time(repeat, run);
    if (repeat * each > milliseconds / 4) return Math.max(1, Math.round(milliseconds / each));
  }
}

/** For each case the milliseconds of every round, and GFLOP/s of the peak beside it. */
export async function measure({ kernelsUrl, peakUrl, cases, rounds, milliseconds }) {
  const compile = async (url) => WebAssembly.compile(await (await fetch(url)).arrayBuffer());
  const kernels = new Kernels(await compile(kernelsUrl));
  const { peak } = new WebAssembly.Instance(await compile(peakUrl)).exports;
  const peakRate = () => (PEAK_ITERATIONS * FLOPS_PER_ITERATION) / (1e6 * time(1, () => peak(PEAK_ITERATIONS, 0.999, 1e-3)));
  const jobs = cases.map((one) => ({ one, ...kernels.plan(one), repeat: 1, times: [], peaks: [] }));
  // The optimising compiler works in the background: run everything, wait, then size the rounds.
  for (const job of jobs) for (let i = 0; i < 3; i++) kernels.run(job.plan);
  peakRate();
  await new Promise((resolve) => setTimeout(resolve, 1500));
  for (const job of jobs) job.repeat = repetitions(milliseconds, () => kernels.run(job.plan));
  for (let round = 0; round < rounds; round++) {
    for (const job of round % 2 ? [...jobs].reverse() : jobs) {
      job.peaks.push(peakRate());
      job.times.push(time(job.repeat, () => kernels.run(job.plan)));
    }
  }
  return jobs.map(({ one, times, peaks }) => ({ name: one.name, flops: one.flops, times, peaks }));
}
