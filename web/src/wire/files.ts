/**
 * Addresses of the package's files. The page finds them and sends them to the worker, which resolves nothing itself.
 */

/** Name of a kernel build; its file is called so with .wasm behind, e.g. kernels.relaxed.threads.wasm. */
export type KernelBuild = `kernels${"" | ".relaxed"}${"" | ".threads"}`;

/** A Pyodide distribution. */
export interface PyodideFiles {
  readonly loader: string;
  readonly script: string;
  /** As it is or packed. */
  readonly wasm: string;
  /** True for the Pyodide of this package, which has the right version. */
  readonly isOurs: boolean;
}

/** Absolute URLs of all that a page asks for. */
export interface PackageFiles {
  readonly worker: string;
  readonly poolWorker: string;
  /** Runs plans on a GPU. */
  readonly webgpu: string;
  /** As they are or packed. */
  readonly kernels: Readonly<Record<KernelBuild, string>>;
  /** The package's kernels where `kernels` names another place; else null. */
  readonly ownKernels: Readonly<Record<KernelBuild, string>> | null;
  readonly pyodide: PyodideFiles;
  /** Python's standard library, compiled. */
  readonly library: string;
  /** The Python packages, compiled for Pyodide's Python, in one zip. */
  readonly packages: string;
  /** Memory of a Python with these packages imported. */
  readonly snapshot: string;
}
