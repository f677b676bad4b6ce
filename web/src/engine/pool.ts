/**
 * The pool: module workers with an instance of the kernels each, all on one shared memory. Once started, they are
 * driven only through that memory (wasm_kernels/parallel.h); no messages pass while they compute.
 */

import { checkScript, messageOf } from "../wire/fetch-file.js";
import { startWorker } from "../wire/start-worker.js";
import type { KernelExports } from "./kernels.js";

/** Limit of a worker's start, in milliseconds; the others compute without it. */
const START_TIMEOUT_MS = 10_000;

/** Time until the server's answer for their script is checked, and the limit of the server's silence. */
const PATIENCE_MS = 2000;
const STALL_MS = 6000;

const POLL_MS = 1;

/** The task of a worker in the pool. */
export interface PoolTask {
  readonly module: WebAssembly.Module;
  readonly memory: WebAssembly.Memory;
  readonly index: number;
}

/** The task of a worker that sends messages from time to time, until the worker that started it ends. */
export interface PulseTask {
  readonly pulse: MessagePort;
}

export class Pool {
  readonly #workers: Worker[];
  readonly #kernels: KernelExports;

  private constructor(workers: Worker[], kernels: KernelExports) {
    this.#workers = workers;
    this.#kernels = kernels;
  }

  /**
   * Start workers 1 .. threads-1 and wait until they are in their loop. Workers that cannot start (a policy forbids
   * them, memory is short) are left out with a warning: `size` counts the running threads.
   *
   * @param script - URL of pool-worker.js, absolute
   */
  static async start(
    module: WebAssembly.Module,
    memory: WebAssembly.Memory,
    kernels: KernelExports,
    threads: number,
    script: string,
  ): Promise<Pool> {
    if (kernels.tw_set_threads(threads) !== 0) {
      console.warn(`trainweb: no memory for ${threads} threads; running with one.`);
      return new Pool([], kernels);
    }
    const workers: Worker[] = [];
    let failure: string | null = null;
    for (let index = 1; index < threads; index++) {
      try {
        const worker = startWorker(script);
        worker.onerror = (event) => {
          failure = event.message ? `${script}: ${event.message}` : `${script} did not load.`;
        };
        const task: PoolTask = { module, memory, index };
        worker.postMessage(task);
        workers.push(worker);
      } catch (error) {
        failure = `${script}: ${messageOf(error)}`;
      }
    }
    const isReady = (): boolean => kernels.tw_threads_ready() >= workers.length;
    await until(() => isReady() || failure !== null, PATIENCE_MS);
    if (!isReady() || failure !== null) {
      // The server may send something else under this name, which the browser does not tell; or nothing.
      await checkScript(script, STALL_MS).catch((error: unknown) => (failure = messageOf(error)));
      await until(() => isReady() || failure !== null, START_TIMEOUT_MS - PATIENCE_MS);
    }
    const ready = kernels.tw_threads_ready();
    if (ready < threads - 1) {
      const reason = failure ?? `only ${ready} of ${threads - 1} workers of ${script} started in time.`;
      console.warn(`trainweb: running with ${ready + 1} of ${threads} threads: ${reason}`);
    }
    return new Pool(workers, kernels);
  }

  /** Threads that compute, the coordinator included. */
  get size(): number {
    return this.#kernels.tw_threads_ready() + 1;
  }

  /** End the workers. */
  stop(): void {
    this.#kernels.tw_stop_threads();
    for (const worker of this.#workers) {
      worker.terminate();
    }
    this.#workers.length = 0;
  }
}

/** Wait for a state that no message announces, up to a limit. */
async function until(isDone: () => boolean, limitMs: number): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (!isDone() && performance.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
