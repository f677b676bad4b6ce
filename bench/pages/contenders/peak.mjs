/**
 * No contender: what the hardware allows. A "step" is a fixed number of operations in registers; beside every few of them
 * the traffic of an optimizer step is timed, over arrays as large as the model's trainable parameters.
 */

/** Some milliseconds: the clock has steps of 5 us. */
const ITERATIONS = 2_000_000;
const FLOPS_PER_ITERATION = 13 * 4 * 2;
const UPDATE_EVERY = 8;
const PAGE = 65536;

export async function create({ manifest }) {
  const source = await (await fetch("/peak.wasm")).arrayBuffer();
  const { peak, update, memory } = (await WebAssembly.instantiate(source)).instance.exports;
  const trainable = manifest.params.filter((p) => p.trainable);
  const n = trainable.reduce((sum, { size }) => sum + size, 0);
  const start = memory.buffer.byteLength;
  memory.grow(Math.ceil((16 * n) / PAGE) + 1);
  const arrays = [0, 1, 2, 3].map((k) => start + 4 * n * k);
  const info = { flops: ITERATIONS * FLOPS_PER_ITERATION, updateMs: Infinity };
  return {
    info,
    async step(i) {
      if (i % UPDATE_EVERY === 0) {
        const begin = performance.now();
        update(...arrays, n);
        info.updateMs = Math.min(info.updateMs, performance.now() - begin);
      }
      return peak(ITERATIONS, 0.999, 1e-3);
    },
  };
}
