/**
 * Addresses of the package's files. The page finds them and sends them to the worker, which resolves nothing itself.
 */

/** Name of a kernel build; its file is called so with .wasm behind, e.g. kernels.relaxed.threads.wasm. */
export type KernelBuild = `kernels${"" | ".relaxed"}${"" | ".threads"}`;

/** The scripts, the kernels and Python's files; `page/assets.ts` has their names. Kernels and "wasm" are as they are or packed. */
export type Asset =
  | "worker"
  | "poolWorker"
  | "webgpu"
  | KernelBuild
  | "loader"
  | "script"
  | "wasm"
  | "library"
  | "packages"
  | "snapshot";

/** Absolute URLs of all that a page asks for. */
export interface PackageFiles extends Readonly<Record<Asset, string>> {
  /** The package's kernels where the kernels lie in another place; else null. */
  readonly ownKernels: Readonly<Record<KernelBuild, string>> | null;
  /** True for the Pyodide of this package, which has the right version. */
  readonly isOurPyodide: boolean;
}
