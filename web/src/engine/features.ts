/**
 * Find the features of WebAssembly that this browser runs, by validating the smallest module that uses each one.
 * The modules come from wasm-feature-detect. That library answers only by promises, and Python asks in a call that
 * cannot wait (`Engine.pickBuild`).
 */

import type { KernelBuild } from "../wire/files.js";
import { canShareMemory } from "../wire/platform.js";

const HEADER = [0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00];

// () -> v128: two splats, i8x16.relaxed_swizzle
const RELAXED_SIMD = [
  1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2,
  11,
];

// A shared memory and an i32.atomic.load of it.
const THREADS = [
  1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 5, 4, 1, 3, 1, 1, 10, 11, 1, 9, 0, 65, 0, 254, 16, 2, 0, 26, 11,
];

function validates(sections: readonly number[]): boolean {
  return WebAssembly.validate(new Uint8Array([...HEADER, ...sections]));
}

/**
 * Choose the fastest build that runs here.
 *
 * @param canShare - true if a build with shared memory will do, which costs nothing with one thread either
 * @param reproducible - true: use plain simd128, which gives the same bytes everywhere
 */
export function pickBuild(canShare: boolean, reproducible: boolean): KernelBuild {
  const relaxed = !reproducible && validates(RELAXED_SIMD) ? ".relaxed" : "";
  // Memory can be shared between workers if the page is cross-origin isolated.
  const isShared = canShare && canShareMemory() && typeof SharedArrayBuffer !== "undefined";
  const threaded = isShared && validates(THREADS) ? ".threads" : "";
  return `kernels${relaxed}${threaded}`;
}
