/** The worker's functions for the script of the GPU, which so needs no second table of messages. */

import type { WorkerTools } from "../worker/host.js";

export let { sessionError, log, tellShaders } = {} as WorkerTools;

/** Take the functions of the worker that imports this script. */
export function useTools(tools: WorkerTools): void {
  ({ sessionError, log, tellShaders } = tools);
}
