/** The files beside the worker script, each named literally so that bundlers carry them along. */

import type { KernelBuild } from "../engine/features.js";

/** URL of a kernel build; `prefix` is where the page keeps them as they are, null for beside this script, packed. */
export function kernelUrl(build: KernelBuild, prefix: string | null): URL {
  if (prefix !== null) {
    return new URL(`${build}.wasm`, prefix);
  }
  return typeof DecompressionStream === "undefined" ? plainKernelUrl(build) : packedKernelUrl(build);
}

function packedKernelUrl(build: KernelBuild): URL {
  switch (build) {
    case "kernels":
      return new URL("./kernels.wasm.gz", import.meta.url);
    case "kernels.relaxed":
      return new URL("./kernels.relaxed.wasm.gz", import.meta.url);
    case "kernels.threads":
      return new URL("./kernels.threads.wasm.gz", import.meta.url);
    case "kernels.relaxed.threads":
      return new URL("./kernels.relaxed.threads.wasm.gz", import.meta.url);
  }
}

function plainKernelUrl(build: KernelBuild): URL {
  switch (build) {
    case "kernels":
      return new URL("./kernels.wasm", import.meta.url);
    case "kernels.relaxed":
      return new URL("./kernels.relaxed.wasm", import.meta.url);
    case "kernels.threads":
      return new URL("./kernels.threads.wasm", import.meta.url);
    case "kernels.relaxed.threads":
      return new URL("./kernels.relaxed.threads.wasm", import.meta.url);
  }
}

/** URL of the Python packages, compiled for Pyodide's Python, in one zip. */
export function packagesUrl(): URL {
  return new URL("./python/packages.zip", import.meta.url);
}

/** URLs of Pyodide's own files, of the version that the snapshot fits; the WebAssembly is packed with gzip. */
export function pyodideUrls(): { readonly loader: URL; readonly script: URL; readonly wasm: URL } {
  return {
    loader: new URL("./python/pyodide.mjs", import.meta.url),
    script: new URL("./python/pyodide.asm.mjs", import.meta.url),
    wasm: new URL("./python/pyodide.asm.wasm.gz", import.meta.url),
  };
}

/** URL of Python's standard library, compiled. */
export function libraryUrl(): URL {
  return new URL("./python/python_stdlib.zip", import.meta.url);
}

/** URL of the memory snapshot of a Python with these packages imported. */
export function snapshotUrl(): URL {
  return new URL("./python/snapshot.bin", import.meta.url);
}
