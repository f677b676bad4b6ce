/** One instance of the kernels: the common part of the coordinator and the pool's workers. */

import type { KernelFunctions, SessionCalls } from "./layout.js";

type SessionExports = Readonly<Record<keyof SessionCalls, (session: number, ...args: number[]) => number>>;

/** Exports of kernels*.wasm. Addresses are unsigned 32-bit numbers that arrive signed. */
export interface KernelExports extends SessionExports, KernelFunctions {
  readonly __indirect_function_table: WebAssembly.Table;
  readonly __stack_pointer: WebAssembly.Global;
}

/** Status of `tw_worker_loop`: load code, then call it again. Any other status ends the worker. */
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
