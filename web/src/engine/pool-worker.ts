/** A thread of the kernels: blocks in `tw_worker_loop`, comes out only to load generated code. */

import { toWire } from "../wire/errors.js";
import {
  fillTable,
  instantiateCode,
  instantiateKernels,
  WORKER_LOAD,
  type KernelExports,
} from "./kernels.js";
import type { PoolTask, PulseTask } from "./pool.js";

const PULSE_MS = 200;

function loadCode(kernels: KernelExports, memory: WebAssembly.Memory): void {
  const ptr = kernels.tw_load_ptr() >>> 0;
  // Compiling refuses shared bytes, and they are freed once every thread has them.
  const bytes = new Uint8Array(memory.buffer, ptr, kernels.tw_load_size() >>> 0).slice();
  const functions = instantiateCode(bytes, memory, kernels);
  fillTable(kernels.__indirect_function_table, kernels.tw_load_slot() >>> 0, functions);
}

function serve({ module, memory, index }: PoolTask): void {
  const kernels = instantiateKernels(module, memory);
  try {
    kernels.__stack_pointer.value = kernels.tw_thread_stack(index);
    while (kernels.tw_worker_loop(index) === WORKER_LOAD) {
      loadCode(kernels, memory);
    }
    close();
  } catch (error) {
    kernels.tw_worker_failed(index);
    console.error(`trainweb: thread ${index} failed.`, toWire(error).message);
    throw error;
  }
}

addEventListener(
  "message",
  ({ data }: MessageEvent<PoolTask | PulseTask>) => {
    if ("pulse" in data) {
      setInterval(() => data.pulse.postMessage(null), PULSE_MS);
      // The worker that started this one informs the page.
      postMessage(null);
    } else {
      serve(data);
    }
  },
  { once: true },
);
