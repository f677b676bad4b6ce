/** Starting Python: Pyodide, and the packages that trainweb needs to load and step. */

import { wheelUrls } from "./assets.js";
import { EngineError } from "./errors.js";

/** The part of Pyodide's interface that is used here. */
export interface Pyodide {
  readonly version: string;
  unpackArchive(buffer: ArrayBuffer, format: string): void;
  pyimport(name: string): PyProxy;
}

/** A Python object seen from JavaScript. */
export interface PyProxy {
  readonly [name: string]: unknown;
  toJs(): unknown;
  destroy(): void;
}

interface PyodideModule {
  loadPyodide(options: { readonly indexURL: string }): Promise<Pyodide>;
}

/** Start Python and unpack the packages. No numpy and no resolver: nothing else is fetched. */
export async function bootPython(indexURL: string): Promise<Pyodide> {
  const wheels = Promise.all(wheelUrls().map(fetchBytes));
  // Taken up below; a failure of Pyodide's must not leave it unhandled.
  wheels.catch(() => {});
  const pyodide = await loadPyodide(indexURL);
  for (const wheel of await wheels) {
    pyodide.unpackArchive(wheel, "wheel");
  }
  return pyodide;
}

async function loadPyodide(indexURL: string): Promise<Pyodide> {
  const url = `${indexURL}pyodide.mjs`;
  try {
    const module = (await import(/* @vite-ignore */ /* webpackIgnore: true */ url)) as PyodideModule;
    return await module.loadPyodide({ indexURL });
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new EngineError(`Pyodide does not start from ${url} (env.pyodide.indexURL): ${reason}`);
  }
}

async function fetchBytes(url: URL): Promise<ArrayBuffer> {
  let response: Response;
  try {
    response = await fetch(url);
  } catch (error) {
    throw new EngineError(`${url} could not be fetched: ${String(error)}`);
  }
  if (!response.ok) {
    throw new EngineError(`${url} answered with HTTP status ${response.status}.`);
  }
  return response.arrayBuffer();
}
