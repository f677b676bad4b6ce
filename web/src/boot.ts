/** Starting Python: Pyodide, and the packages that trainweb needs to load and step. */

import { packagesUrl, snapshotUrl } from "./assets.js";
import { EngineError } from "./errors.js";
import { PYODIDE_VERSION } from "./version.js";

/** The part of Pyodide's interface that is used here. */
export interface Pyodide {
  readonly version: string;
  unpackArchive(buffer: ArrayBuffer, format: string): void;
  pyimport(name: string): PyProxy;
  runPython(code: string): unknown;
}

/** A Python object seen from JavaScript. */
export interface PyProxy {
  readonly [name: string]: unknown;
  toJs(): unknown;
  destroy(): void;
}

interface PyodideOptions {
  readonly indexURL: string;
  readonly _loadSnapshot?: Promise<Uint8Array>;
}

interface PyodideModule {
  readonly version: string;
  loadPyodide(options: PyodideOptions): Promise<Pyodide>;
}

/** Whether to start from the snapshot; "auto" where the network carries it faster than Python starts. */
export type SnapshotChoice = boolean | "auto";

/** A snapshot holds one state of the generator for everybody. */
const RESEED = `
import sys
if "random" in sys.modules:
    sys.modules["random"].seed()
`;

/**
 * Start Python with the packages. No numpy and no resolver: nothing else is fetched.
 *
 * @throws EngineError when Pyodide or a package cannot be had
 */
export async function bootPython(indexURL: string, choice: SnapshotChoice): Promise<Pyodide> {
  const url = `${indexURL}pyodide.mjs`;
  try {
    const module = (await import(/* @vite-ignore */ /* webpackIgnore: true */ url)) as PyodideModule;
    if (module.version === PYODIDE_VERSION && wantsSnapshot(choice)) {
      try {
        return await bootFromSnapshot(module, indexURL);
      } catch (error) {
        console.info(`trainweb: plain start of Python, the snapshot failed: ${messageOf(error)}`);
      }
    }
    return await bootPlain(module, indexURL);
  } catch (error) {
    if (error instanceof EngineError) {
      throw error;
    }
    throw new EngineError(
      `Pyodide does not start from ${url} (env.pyodide.indexURL): ${messageOf(error)}`,
    );
  }
}

async function bootFromSnapshot(module: PyodideModule, indexURL: string): Promise<Pyodide> {
  const _loadSnapshot = fetchSnapshot();
  // Pyodide takes it up after its own files; until then a failure must not count as unhandled.
  _loadSnapshot.catch(() => {});
  const pyodide = await module.loadPyodide({ indexURL, _loadSnapshot });
  pyodide.runPython(RESEED);
  return pyodide;
}

async function bootPlain(module: PyodideModule, indexURL: string): Promise<Pyodide> {
  const packages = fetchOk(packagesUrl()).then((response) => response.arrayBuffer());
  // Taken up below; a failure of Pyodide's must not leave it unhandled.
  packages.catch(() => {});
  const pyodide = await module.loadPyodide({ indexURL });
  pyodide.unpackArchive(await packages, "zip");
  return pyodide;
}

async function fetchSnapshot(): Promise<Uint8Array> {
  const response = await fetchOk(snapshotUrl());
  const bytes = new Uint8Array(await response.arrayBuffer());
  // Some servers mark what is compressed as such, and the browser has undone it already.
  const isGzip = bytes[0] === 0x1f && bytes[1] === 0x8b;
  if (!isGzip) {
    return bytes;
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function fetchOk(url: URL): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url);
  } catch (error) {
    throw new EngineError(`${url} could not be fetched: ${messageOf(error)}`);
  }
  if (!response.ok) {
    throw new EngineError(`${url} answered with HTTP status ${response.status}.`);
  }
  return response;
}

interface NetworkInformation {
  readonly saveData?: boolean;
  readonly effectiveType?: string;
}

/** The snapshot is several MB, which pay off unless the network is slower than the start of Python. */
function wantsSnapshot(choice: SnapshotChoice): boolean {
  if (choice !== "auto") {
    return choice;
  }
  const { connection } = globalThis.navigator as { readonly connection?: NetworkInformation };
  return connection?.saveData !== true && (connection?.effectiveType ?? "4g") === "4g";
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
