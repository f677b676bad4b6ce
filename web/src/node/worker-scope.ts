/**
 * The start of a thread: gives it the globals of a browser's worker, and runs its script. So the package's workers, and
 * Pyodide in them, are the same scripts everywhere.
 */

import { availableParallelism } from "node:os";
import { exit } from "node:process";
import { parentPort, workerData } from "node:worker_threads";

import { setDisk } from "../storage/disk.js";
import { DISK } from "./disk.js";
import { withFiles } from "./files.js";
import { ThreadWorker, transferred } from "./thread-worker.js";

const [script, gpuModule] = workerData as readonly [script: string, gpu: string | null];

/** Globals from which Pyodide would conclude that this is not a browser's worker. */
const RUNTIMES = ["process", "Deno", "Bun"];

interface WebGpuModule {
  create(flags: readonly string[]): unknown;
}

function give(name: string, value: unknown): void {
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}

/** The GPU of a module such as the npm package `webgpu`, which needs the runtime's globals. */
async function openGpu(module: string | null): Promise<unknown> {
  if (module === null) {
    return undefined;
  }
  const { create } = (await import(/* @vite-ignore */ /* webpackIgnore: true */ /* turbopackIgnore: true */ module)) as WebGpuModule;
  return create([]);
}

function becomeWorker(gpu: unknown): void {
  give("self", globalThis);
  give("WorkerGlobalScope", Object);
  give("location", new URL(script));
  give("origin", "null");
  give("crossOriginIsolated", true);
  give("navigator", { userAgent: "", hardwareConcurrency: availableParallelism(), gpu });
  give("Worker", ThreadWorker);
  give("fetch", withFiles(fetch));
  give("addEventListener", parentPort.addEventListener.bind(parentPort));
  give("postMessage", (message: unknown, options?: StructuredSerializeOptions) =>
    parentPort.postMessage(message, [...transferred(options)]),
  );
  give("close", () => exit());
  for (const name of RUNTIMES) {
    Reflect.deleteProperty(globalThis, name);
  }
}

setDisk(DISK);
becomeWorker(await openGpu(gpuModule));
// Not resolved by bundlers: it lies where the page's script says.
await import(/* @vite-ignore */ /* webpackIgnore: true */ /* turbopackIgnore: true */ script);
