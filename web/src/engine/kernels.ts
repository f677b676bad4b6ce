/** One instance of the kernels: the common part of the coordinator and the pool's workers. */

import type { SessionCalls } from "./layout.js";

type SessionExports = Readonly<Record<keyof SessionCalls, (session: number, ...args: number[]) => number>>;

/** What kernels*.wasm export. Addresses are unsigned 32-bit numbers that arrive signed. */
export interface KernelExports extends SessionExports {
  readonly __indirect_function_table: WebAssembly.Table;
  readonly __stack_pointer: WebAssembly.Global;
  tw_session_open(): number;
  tw_missing(): number;
  tw_range(ptr: number, n: number): number;
  tw_alloc(nbytes: number): number;
  tw_alloc_zeroed(nbytes: number): number;
  tw_free(ptr: number): number;
  tw_bytes_in_use(): number;
  tw_profile(plan: number, times: number): number;
  tw_run(plan: number): number;
  tw_run_slice(plan: number, anew: number, milliseconds: number): number;
  tw_written(plan: number): number;
  tw_register_code(ptr: number, nbytes: number, slot: number, n: number): number;
  tw_unregister_code(slot: number): number;
  tw_description(): number;
  tw_description_size(): number;
}

/** Exports of the builds with threads; wasm_kernels/parallel.h documents the protocol. */
export interface ThreadExports extends KernelExports {
  tw_set_threads(n: number): number;
  tw_thread_stack(index: number): number;
  tw_threads_ready(): number;
  tw_worker_loop(index: number): number;
  tw_worker_failed(index: number): void;
  tw_load_ptr(): number;
  tw_load_size(): number;
  tw_load_slot(): number;
  tw_stop_threads(): void;
  tw_wake_word(): number;
}

/** What `tw_worker_loop` returns to a worker that is to load code; any other code ends the worker. */
export const WORKER_LOAD = 1;

const now = (): number => performance.now();

/** Instantiate the kernels on a memory. */
export function instantiateKernels(
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
): KernelExports {
  const instance = new WebAssembly.Instance(module, { env: { memory, now } });
  return instance.exports as unknown as KernelExports;
}

/** Instantiate generated code; its functions f0, f1, ... in order. */
export function instantiateCode(
  bytes: Uint8Array<ArrayBuffer>,
  memory: WebAssembly.Memory,
  kernels: KernelExports,
): WebAssembly.ExportValue[] {
  const instance = new WebAssembly.Instance(new WebAssembly.Module(bytes), {
    env: { memory },
    kernels: kernels as unknown as WebAssembly.ModuleImports,
  });
  const functions: WebAssembly.ExportValue[] = [];
  for (;;) {
    const value = instance.exports[`f${functions.length}`];
    if (typeof value !== "function") {
      return functions;
    }
    functions.push(value);
  }
}

/** Put functions into the table from `slot` on; it grows as needed. */
export function fillTable(
  table: WebAssembly.Table,
  slot: number,
  functions: readonly WebAssembly.ExportValue[],
): void {
  const missing = slot + functions.length - table.length;
  if (missing > 0) {
    table.grow(missing);
  }
  functions.forEach((value, index) => table.set(slot + index, value));
}
