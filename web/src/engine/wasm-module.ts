/** Change the one part of generated code that the WebAssembly API hides: its memory import. */

/** Pages of 64 KiB that a 32-bit memory can have. */
export const MAX_PAGES = 65536;

/** The import of `env.memory` up to its flags, as codegen/assembler.py writes it, and the flag for shared memory. */
const MEMORY_IMPORT = [3, ..."env", 6, ..."memory", 2].map((part) => (typeof part === "string" ? part.charCodeAt(0) : part));
const SHARED = 2;

/**
 * The same module, importing a shared memory. Generated code does not depend on threads otherwise, so
 * that the compiler need not know of them.
 */
export function withSharedMemory(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const copy = new Uint8Array(bytes);
  const start = copy.findIndex((_, k) => MEMORY_IMPORT.every((byte, i) => copy[k + i] === byte));
  const flags = start + MEMORY_IMPORT.length;
  if (start >= 0) {
    copy[flags] = (copy[flags] as number) | SHARED;
  }
  return copy;
}
