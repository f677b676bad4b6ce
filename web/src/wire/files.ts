/** Where the package's files lie. The page finds out and tells the worker, which resolves nothing itself. */

/** Name of a kernel build; its file is called so with .wasm behind, e.g. kernels.relaxed.threads.wasm. */
export type KernelBuild = `kernels${"" | ".relaxed"}${"" | ".threads"}`;

/** A Pyodide distribution. */
export interface PyodideFiles {
  readonly loader: string;
  readonly script: string;
  /** As it is or packed. */
  readonly wasm: string;
  /** Whether it is the one of this package, which is of the right version. */
  readonly isOurs: boolean;
}

/** Absolute URLs of all that a page asks for. */
export interface PackageFiles {
  readonly worker: string;
  readonly poolWorker: string;
  /** As they are or packed. */
  readonly kernels: Readonly<Record<KernelBuild, string>>;
  /** Those of the package, where `kernels` are said to lie elsewhere; else null. */
  readonly ownKernels: Readonly<Record<KernelBuild, string>> | null;
  readonly pyodide: PyodideFiles;
  /** Python's standard library, compiled. */
  readonly library: string;
  /** The Python packages, compiled for Pyodide's Python, in one zip. */
  readonly packages: string;
  /** Memory of a Python with these packages imported. */
  readonly snapshot: string;
}
