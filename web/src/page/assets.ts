/** The files beside the page's script, in the forms that bundlers and servers need. */

import { brief } from "../data/nearest.js";
import type { Asset, PackageFiles } from "../wire/files.js";
import { otherPlatform } from "../wire/platform.js";
import { schemeOfWorkers } from "../wire/start-worker.js";
import type { KnownFile, LoadStage } from "./progress.js";

/**
 * True if the built script names the files for bundlers: the script of npm imports does. The script for `<script
 * type="module">` looks beside itself, and a bundler that includes it copies no files.
 */
declare const TRAINWEB_NAMES_ASSETS: boolean;

/** The files by their names in the package, and their stages. The build checks that it is the same list as `namedAssets`. */
const FILES = {
  worker: ["worker.js", "script"],
  poolWorker: ["pool-worker.js", "script"],
  webgpu: ["webgpu.js", "script"],
  kernels: ["kernels.wasm.gz", "kernels"],
  "kernels.relaxed": ["kernels.relaxed.wasm.gz", "kernels"],
  "kernels.threads": ["kernels.threads.wasm.gz", "kernels"],
  "kernels.relaxed.threads": ["kernels.relaxed.threads.wasm.gz", "kernels"],
  loader: ["python/pyodide.mjs", "script"],
  script: ["python/pyodide.asm.mjs", "script"],
  wasm: ["python/pyodide.asm.wasm.gz", "python"],
  library: ["python/python_stdlib.zip", "python"],
  packages: ["python/packages.zip", "python"],
  snapshot: ["python/snapshot.bin", "python"],
} as const satisfies Readonly<Record<Asset, readonly [name: string, stage: LoadStage]>>;

/** Files that `env.wasm.wasmPaths` and `env.pyodide.indexURL` move. */
const KERNELS: readonly Asset[] = ["kernels", "kernels.relaxed", "kernels.threads", "kernels.relaxed.threads"];
const PYODIDE: readonly Asset[] = ["loader", "script", "wasm"];

/** Bytes of the files as they lie in the package, put here by the build. */
declare const TRAINWEB_SIZES: Readonly<Record<string, number>>;

/**
 * Each literally and outside of `new Worker`: this is the form in which every bundler carries a file along as it is.
 * In `new Worker` some make a classic worker of it, in which Pyodide does not run.
 */
function namedAssets(): Record<Asset, URL> {
  return {
    worker: new URL("./worker.js", import.meta.url),
    poolWorker: new URL("./pool-worker.js", import.meta.url),
    webgpu: new URL("./webgpu.js", import.meta.url),
    kernels: new URL("./kernels.wasm.gz", import.meta.url),
    "kernels.relaxed": new URL("./kernels.relaxed.wasm.gz", import.meta.url),
    "kernels.threads": new URL("./kernels.threads.wasm.gz", import.meta.url),
    "kernels.relaxed.threads": new URL("./kernels.relaxed.threads.wasm.gz", import.meta.url),
    loader: new URL("./python/pyodide.mjs", import.meta.url),
    script: new URL("./python/pyodide.asm.mjs", import.meta.url),
    wasm: new URL("./python/pyodide.asm.wasm.gz", import.meta.url),
    library: new URL("./python/python_stdlib.zip", import.meta.url),
    packages: new URL("./python/packages.zip", import.meta.url),
    snapshot: new URL("./python/snapshot.bin", import.meta.url),
  };
}

function assetsIn(folder: string): Record<Asset, URL> {
  const entries = Object.entries(FILES).map(([asset, [name]]) => [asset, new URL(name, folder)]);
  return Object.fromEntries(entries) as Record<Asset, URL>;
}

/**
 * Vite's development server before version 8 moves the scripts of dependencies into another folder. The files beside
 * the scripts stay in the package.
 */
const PREBUNDLED = /\/node_modules\/\.vite\/(?:[^?]*\/)?deps[^/?]*\/[^/]*$/;
const INSTALLED = "/node_modules/trainweb/dist/npm/";

/**
 * A CDN that follows `exports` sends the script under another address, such as `/npm/trainweb@0.1.0/+esm`. The
 * other files of the package stay in their folder.
 */
const ON_CDN = /(\/trainweb@[^/]+\/)(?!dist\/npm\/)[^?]*$/;

/** The scripts of the package that name their assets, for pages and for Node. Under another name they are a part of a bundle. */
const OWN_NAMES = /\/(?:module|node)\.js$/;

/**
 * The folder beside the bundle into which `npx trainweb copy` puts the files for a bundler that copies none. Rollup and
 * esbuild know no assets without a plugin, and 10 MB are no part of a bundle. Parcel knows assets, but bundles the
 * scripts among them, also behind `url:`. Tried with 2.16: it fails on the files that Pyodide's script names. Nothing
 * is taken from a CDN that the page did not name.
 */
const COPIED = "trainweb/";

function ownAssets(): Record<Asset, URL | string> {
  // Scripts that esbuild makes for pages without modules have no address.
  const here = import.meta.url as string | undefined;
  // The names must be gone from a script that is not to name them: bundlers find them in code that never runs, too.
  if (TRAINWEB_NAMES_ASSETS) {
    return assetsOfModule(here);
  }
  return assetsIn(here !== undefined && !isLeftBehind(here) ? here : besideBundle(scriptOnStack()));
}

function assetsOfModule(here: string | undefined): Record<Asset, URL | string> {
  if (here === undefined) {
    return assetsIn(besideBundle(scriptOnStack()));
  }
  const folder = here.replace(PREBUNDLED, INSTALLED).replace(ON_CDN, "$1dist/npm/");
  if (folder !== here) {
    return assetsIn(folder);
  }
  const named = namedAssets();
  return isCarried(String(named.worker), here) ? named : assetsIn(besideBundle(isLeftBehind(here) ? scriptOnStack() : here));
}

/**
 * True if a bundler copied the worker, or there was no bundler. A file that a bundler left as it was lies beside this
 * script by its name.
 */
function isCarried(worker: string, here: string): boolean {
  if (isLeftBehind(worker)) {
    return false;
  }
  const beside = new URL(FILES.worker[0], here);
  return worker !== beside.href || OWN_NAMES.test(new URL(here).pathname);
}

/** True for an address on the machine that the bundler ran on: webpack and Parcel write such for `import.meta.url`. */
function isLeftBehind(address: string): boolean {
  const page = globalThis.location as Location | undefined;
  return address.startsWith("file:") && otherPlatform() === null && page !== undefined && page.protocol !== "file:";
}

function besideBundle(bundle: string): string {
  return new URL(COPIED, bundle).href;
}

/** The address of the script that this has become a part of, which the stack has in every engine. */
function scriptOnStack(): string {
  const [address] = /https?:\/\/[^\s)]+/.exec(new Error("where").stack ?? "") ?? [];
  return address ?? absolute("");
}

/** The settings of `env` that say where files lie. */
export interface Locations {
  /** Prefix of all files; null: where this script was loaded from, its bundler put them, or beside the bundle. */
  readonly baseURL: string | null;
  /** Prefix of a Pyodide distribution; null: the Pyodide of the package. */
  readonly indexURL: string | null;
  /** Prefix of the kernels as they are; undefined: the package's kernels. */
  readonly wasmPaths: string | undefined;
}

/** Find the files, by settings of the page. @throws TypeError when a setting is not a prefix */
export function locateFiles({ baseURL, indexURL, wasmPaths }: Locations): PackageFiles {
  const base = absolutePrefix(baseURL, "env.baseURL");
  const pyodide = absolutePrefix(indexURL, "env.pyodide.indexURL");
  const kernels = absolutePrefix(wasmPaths, "env.wasm.wasmPaths");
  const assets = base === null ? ownAssets() : assetsIn(base);
  const entries = Object.entries(assets).map(([asset, url]) => [asset, absolute(url)]);
  const own = Object.fromEntries(entries) as Record<Asset, string>;
  return {
    ...own,
    ...unpackedIn(kernels, KERNELS),
    ...unpackedIn(pyodide, PYODIDE),
    ownKernels: kernels === null ? null : own,
    isOurPyodide: pyodide === null,
  };
}

/** Addresses of some files in another folder, where nothing is packed. */
function unpackedIn(prefix: string | null, assets: readonly Asset[]): Partial<Record<Asset, string>> {
  const nameOf = (asset: Asset): string => FILES[asset][0].replace(/^.*\/|\.gz$/g, "");
  return prefix === null ? {} : Object.fromEntries(assets.map((asset) => [asset, prefix + nameOf(asset)]));
}

/** Advice for a worker's script that is not where it should be. */
export function missingHelp(worker: string): string {
  if (worker.includes("/@fs/")) {
    return "Vite serves files of a linked package only from the folders of its setting server.fs.allow.";
  }
  if (worker.includes(INSTALLED)) {
    return 'Vite looks for a package of a workspace there. Its setting optimizeDeps: { exclude: ["trainweb"] } makes it look where the package is.';
  }
  const folder = worker.slice(0, worker.lastIndexOf("/") + 1);
  const isCopy = worker.slice(folder.length) === FILES.worker[0];
  const copy = `The files of trainweb should lie in ${folder}: npx trainweb copy FOLDER, as a step of the build, puts them there. `;
  return `${isCopy ? copy : ""}Another place is set by env.baseURL.`;
}

/** Advice for a worker's script that the server sends, and the browser does not start. */
export function refusedHelp(worker: string): string {
  const { origin } = new URL(worker);
  const sources = origin === globalThis.origin ? "'self'" : `${schemeOfWorkers()}: ${origin}`;
  const header = "needs the header Cross-Origin-Embedder-Policy on it, as on the page";
  return `A content security policy must allow worker-src ${sources}; a cross-origin isolated page ${header}.`;
}

/** Stages and sizes of the files by their URLs; files of other places have no size. */
export function knownFiles(files: PackageFiles): Map<string, KnownFile> {
  const moved = [...(files.ownKernels === null ? [] : KERNELS), ...(files.isOurPyodide ? [] : PYODIDE)];
  return new Map(
    (Object.keys(FILES) as Asset[]).map((asset): [string, KnownFile] => {
      const [name, stage] = FILES[asset];
      return [files[asset], { stage, nbytes: moved.includes(asset) ? 0 : (TRAINWEB_SIZES[name] ?? 0) }];
    }),
  );
}

/** Make a URL absolute for the worker, which may lie elsewhere. Some bundlers only give paths. */
export function absolute(url: URL | string): string {
  const { document, location, origin } = globalThis as Partial<typeof globalThis>;
  // A worker that was started from a blob has an address that nothing is relative to.
  const page = document?.baseURI ?? (location?.protocol === "blob:" ? origin : location?.href);
  const here = otherPlatform()?.baseURL() ?? page;
  return here === undefined ? String(url) : new URL(String(url), here).href;
}

/** A folder's URL with the slash that it needs; null for none. */
function absolutePrefix(prefix: string | null | undefined, name: string): string | null {
  if (prefix === null || prefix === undefined) {
    return null;
  }
  if (typeof prefix !== "string" || prefix === "") {
    throw new TypeError(`${name} must be a URL prefix, got ${brief(prefix)}.`);
  }
  const url = absolute(prefix);
  return url.endsWith("/") ? url : `${url}/`;
}
