/** A worker that runs one cell of Python in the site's Pyodide, whose lock file has trainweb. */

import type { PythonReply } from "./run.js";

interface Pyodide {
  loadPackagesFromImports(code: string, options: { messageCallback: (line: string) => void }): Promise<unknown>;
  runPythonAsync(code: string): Promise<unknown>;
  readonly FS: { writeFile(path: string, data: Uint8Array): void };
}

interface Loader {
  loadPyodide(options: {
    indexURL: string;
    stdout: (line: string) => void;
    stderr: (line: string) => void;
  }): Promise<Pyodide>;
}

const SITE = new URL("../", import.meta.url);
const FILES = ["first.onnx"];

function say(reply: PythonReply): void {
  self.postMessage(reply);
}

async function run(code: string): Promise<void> {
  const indexURL = new URL("pyodide/", SITE).href;
  const { loadPyodide } = (await import(`${indexURL}pyodide.mjs`)) as Loader;
  const print = (line: string): void => say({ line });
  const pyodide = await loadPyodide({ indexURL, stdout: print, stderr: print });
  await pyodide.loadPackagesFromImports(code, { messageCallback: () => undefined });
  for (const name of FILES) {
    const response = await fetch(new URL(`examples/${name}`, SITE));
    if (!response.ok) {
      throw new Error(`${response.url}: ${response.status}`);
    }
    pyodide.FS.writeFile(name, new Uint8Array(await response.arrayBuffer()));
  }
  await pyodide.runPythonAsync(code);
}

self.addEventListener("message", ({ data }: MessageEvent<string>) => {
  run(data).then(
    () => say({ end: true }),
    (error: unknown) => say({ error: error instanceof Error ? error.message : String(error) }),
  );
});
